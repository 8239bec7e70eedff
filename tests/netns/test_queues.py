# SPDX-License-Identifier: Apache-2.0
"""A NIC with many queues: instances of one process, RSS, and ports on their queues."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from netns_queues import RULE, check_echo, connection, source_port, syns_until_refused
from netns_tools import Tools, inside, wait_until, xdp_attached
from scapy.layers.inet import ICMP, IP, TCP
from test_steering import ethernet_of, send_frames

from harp import _host
from harp.lab import Host, Lab, LabOptions

PORT = 61000
QUEUES = 8


# Instance i uses queue i and echoes on port PORT + i. Each command on stdin prints one line.
SERVERS = """
import contextlib, json, os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import harp

ifname, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def echo(end):
    with contextlib.suppress(OSError, ValueError), end:
        while data := end.recv(1 << 16):
            end.send_all(data)

def serve(acceptor):
    with contextlib.suppress(OSError, ValueError):
        while True:
            threading.Thread(target=echo, args=(acceptor.accept(),), daemon=True).start()

def open_instance(queue):
    return harp.Instance(ifname, queue, frame_count=2048)

def refusal(queue, **options):
    try:
        harp.Instance(ifname, queue, **options).close()
    except OSError as error:
        return error.strerror
    return "opened"

with ThreadPoolExecutor(count) as pool:
    instances = list(pool.map(open_instance, range(count)))
acceptors = [instance.listen(port + i) for i, instance in enumerate(instances)]
for acceptor in acceptors:
    threading.Thread(target=serve, args=(acceptor,), daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    command, *number = line.split()
    if command == "close":
        acceptors[int(number[0])].close()
        instances[int(number[0])].close()
        print("ok", flush=True)
    elif command == "counts":
        print(json.dumps(instances[0].steering()), flush=True)
    elif command == "native":
        print(refusal(count, xdp_mode="native"), flush=True)
os._exit(0)
"""


@dataclass
class Servers:
    """A process that runs SERVERS on a host."""

    process: subprocess.Popen[str]
    host: Host

    def ask(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(self.ask("counts"))
        return counts


def start(tools: Tools, host: Host, count: int) -> Servers:
    args = [sys.executable, "-c", SERVERS, host.ifname, str(PORT), str(count)]
    process = host.popen(args, stdin=subprocess.PIPE, stderr=subprocess.STDOUT)
    tools.started.append(process)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "ready\n":
            return Servers(process, host)
    pytest.fail("".join(lines))


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def wide(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with Lab(LabOptions(queues=QUEUES, rss=RULE, ipv6=request.param)) as lab:
        yield lab


def test_the_kernel_answers_on_a_port_without_its_stack(tools: Tools, wide: Lab) -> None:
    """After its instance is closed, the port's SYNs get an RST on every queue."""
    here, there = wide.hosts
    servers = start(tools, there, 2)
    to = (there.address, PORT + 1)
    assert servers.ask("close 1") == "ok"
    for queue in (0, 1, 2):
        assert syns_until_refused(here, source_port(here.address, to, queue, QUEUES), to) == 1
    # The other instance continues to work.
    to = (there.address, PORT)
    with connection(here, source_port(here.address, to, 0, QUEUES), to) as sock:
        check_echo(sock, 1 << 20)
    servers.process.kill()
    servers.process.communicate()
    wait_until(lambda: not xdp_attached(there), "detaching")


def test_the_xdp_program_is_detached_with_the_last_instance(tools: Tools, wide: Lab) -> None:
    there = wide.hosts[1]
    servers = start(tools, there, 3)
    for index in range(3):
        assert xdp_attached(there)
        assert servers.ask(f"close {index}") == "ok"
    wait_until(lambda: not xdp_attached(there), "detaching")
    assert servers.process.poll() is None
    # The interface is free for the next process.
    start(tools, there, 1)


def test_instances_of_one_interface_have_one_xdp_mode(tools: Tools, wide4: Lab) -> None:
    here, there = wide4.hosts
    servers = start(tools, there, 2)
    assert servers.ask("native") == (
        f"{there.ifname}: this process has attached its XDP program in generic mode; request "
        "that mode or automatic choice"
    )
    to = (there.address, PORT)
    with connection(here, source_port(here.address, to, 0, 4), to) as sock:
        check_echo(sock, 1 << 20)


@pytest.fixture
def wide4(need_root: None) -> Iterator[Lab]:
    with Lab(LabOptions(queues=4, rss=RULE)) as lab:
        yield lab


def test_a_nic_without_an_rss_key_reports_none(wide4: Lab) -> None:
    """A veth reports its number of queues. With several, it does not report how it chooses one."""
    host = wide4.hosts[0]
    assert inside(host, lambda: _host.rss_read(host.ifname))[:2] == (1, 4)
    host.run("ip", "link", "add", "one", "numrxqueues", "1", "type", "veth")
    assert inside(host, lambda: _host.rss_read("one"))[:2] == (0, 1)


def test_an_icmp_error_on_another_queue_is_passed_to_the_kernel(tools: Tools, wide4: Lab) -> None:
    """The NIC hashes ICMP only by addresses. HARP receives an error only on its port's queue."""
    here, there = wide4.hosts
    servers = start(tools, there, 4)
    errors = {
        queue: bytes(
            ethernet_of(wide4)
            / IP(src=here.address, dst=there.address)
            / ICMP(type=3, code=4)
            / IP(src=there.address, dst=here.address)
            / TCP(sport=PORT + queue, dport=7)
        )
        for queue in range(4)
    }
    send_frames(wide4, list(errors.values()))
    counts = servers.counts()
    assert counts["redirect_icmp"] == 1, "all four arrive on one queue"
    assert counts["pass_icmp_queue"] == 3
