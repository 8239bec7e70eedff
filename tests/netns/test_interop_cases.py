# SPDX-License-Identifier: Apache-2.0
"""Further behavior of the kernel's TCP: early close, half close, a thousand connections,
simultaneous open, tiny receive buffers, and no window scaling."""

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from netns_tools import Tools, finish, inside, run, wait_until

from harp.lab import Host, Lab, LabOptions
from harp.lab.piped import Dropper

PORT = {"harp": 61000, "kernel": 7000}
PAIRS = [("harp", "kernel"), ("kernel", "harp")]
WSCALE = 4  # harp_tcp_info.options
both_ways = pytest.mark.parametrize(("client", "server"), PAIRS)
both_families = pytest.mark.parametrize("lab", [False, True], indirect=True, ids=["ipv4", "ipv6"])


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    """Two hosts with a switch in the middle; IPv6 when a test asks for it."""
    ipv6 = getattr(request, "param", False)
    with Lab(LabOptions(switch=True, offload=False, ipv6=ipv6)) as made:
        yield made


def transfer(
    tools: Tools, lab: Lab, client: str, server: str, test: str, *more: str, **sides: list[str]
) -> tuple[Any, Any]:
    """One connection; what its HARP end and its kernel end had to say."""
    here, there = lab.hosts
    near, far = sides.get(client, []), sides.get(server, [])
    serving = tools.serve_tcp(there, server, PORT[server], *far)
    report = tools.call_tcp(here, client, test, there.address, PORT[server], *near, *more)
    out, err = finish(serving)
    assert "connection" not in err
    ends = {client: report["conn"], server: json.loads(out.splitlines()[-1])}
    return ends["harp"], ends["kernel"]


SEND, RECV, ECHO = range(3)
REQUEST = struct.Struct("=IIQQII")  # struct request of tools/tcp/main.c
MAGIC = 0x48545032


def request(test: int, count: int) -> bytes:
    return REQUEST.pack(MAGIC, test, count, 1, 8, 0)


def kernel_connects(here: Host, there: Host) -> socket.socket:
    """A kernel socket of one host, connected to HARP's server on the other."""
    to = (there.address, PORT["harp"])
    found: socket.socket = inside(here, lambda: socket.create_connection(to, timeout=20))
    return found


@both_families
@both_ways
@pytest.mark.parametrize("test", ["send", "recv"])
def test_bytes_arrive_without_window_scaling(
    tools: Tools, lab: Lab, client: str, server: str, test: str
) -> None:
    for host in lab.hosts:
        host.sysctl("ipv4/tcp_window_scaling", 0)
    try:
        harp, _ = transfer(tools, lab, client, server, test, "--bytes", "4000000")
    finally:
        for host in lab.hosts:
            host.sysctl("ipv4/tcp_window_scaling", 1)
    assert not harp["options"] & WSCALE


@both_ways
@pytest.mark.parametrize("test", ["send", "recv"])
@pytest.mark.parametrize("rcvbuf", [1, 5000])  # the kernel's least, and three segments
def test_bytes_arrive_through_a_tiny_receive_buffer(
    tools: Tools, lab: Lab, client: str, server: str, test: str, rcvbuf: int
) -> None:
    tiny = ["--rcvbuf", str(rcvbuf)]
    harp, _ = transfer(
        tools, lab, client, server, test, "--bytes", "400000", "--timeout", "60", kernel=tiny
    )
    assert harp["stats"]["drop_tcp_window"] == 0


@both_families
@both_ways
def test_a_client_that_sent_fin_still_receives(
    tools: Tools, lab: Lab, client: str, server: str
) -> None:
    harp, _ = transfer(tools, lab, client, server, "recv", "--half-close", "--bytes", "4000000")
    assert harp["stats"]["tcp_estab_resets"] == 0


@both_families
@both_ways
def test_a_thousand_connections_in_a_row(tools: Tools, lab: Lab, client: str, server: str) -> None:
    here, there = lab.hosts
    port, count = str(PORT[server]), "1000"
    serve = [tools.tcp, "serve", there.address, port, *tools.side(there, server)]
    serving = tools.serve(there, [*serve, "--count", count])
    send = [tools.tcp, "send", there.address, port, *tools.side(here, client)]
    # The client's end first: a server would wait for ever for one that failed.
    printed = run(here, [*send, "--repeat", count, "--bytes", "100"], 120)
    assert len(printed.splitlines()) == int(count)
    _, err = finish(serving)
    assert "connection" not in err
    kernel = here if client == "kernel" else there
    assert counter(kernel, "snmp", "EstabResets") == 0
    assert counter(kernel, "snmp", "AttemptFails") == 0


def counter(host: Host, file: str, name: str) -> int:
    """One of the kernel's counters: of TCP in /proc/net/snmp or netstat."""
    lines = [line.split() for line in host.run("cat", f"/proc/net/{file}").splitlines()]
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        if names[0].startswith("Tcp") and name in names:
            return int(values[names.index(name)])
    raise AssertionError(f"no {name} in /proc/net/{file}")


def test_the_kernel_closes_early(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    serving = tools.serve_tcp(there, "harp", PORT["harp"])
    with kernel_connects(here, there) as sock:
        sock.sendall(request(SEND, 1 << 20))
        sock.sendall(bytes(1000))
    out, err = finish(serving)
    assert serving.returncode == 1
    assert "connection 0: Bad message" in err or "connection 0: Connection reset" in err
    assert json.loads(out.splitlines()[-1])["bytes_received"] == REQUEST.size + 1000


def test_the_kernel_resets_what_it_receives(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    serving = tools.serve_tcp(there, "harp", PORT["harp"])
    with kernel_connects(here, there) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(request(RECV, 1 << 40))
        received = 0
        while received < 1 << 20:
            received += len(sock.recv(1 << 16))
    out, err = finish(serving)
    assert "connection 0: Connection reset by peer" in err
    stats = json.loads(out.splitlines()[-1])["stats"]
    assert stats["tcp_estab_resets"] == 1
    assert stats["frames_tcp_tx"] == 0, "what was queued is free again"


def test_the_kernel_reads_late(tools: Tools, lab: Lab) -> None:
    """The window closes; probes keep it in sight, and what waits arrives when it opens."""
    here, there = lab.hosts
    serving = tools.serve_tcp(there, "harp", PORT["harp"])
    with kernel_connects(here, there) as sock:
        sock.sendall(request(RECV, 8 << 20))

        def full() -> bool:
            return counter(here, "netstat", "TCPToZeroWindowAdv") > 0

        wait_until(full, "the zero window", 20)
        left = 8 << 20
        while left:
            piece = sock.recv(65536)
            assert piece, "end of stream"
            left -= len(piece)
    out, err = finish(serving)
    assert serving.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["stats"]["tcp_estab_resets"] == 0


@both_families
def test_both_open_at_once(tools: Tools, lab: Lab) -> None:
    """Both SYNs are lost until both ends are in SYN-SENT: then they cross (RFC 9293, figure 7)."""
    here, there = lab.hosts
    family = socket.AF_INET6 if lab.options.ipv6 else socket.AF_INET
    sock: socket.socket = inside(there, lambda: socket.socket(family))
    with Dropper(lab) as dropper, sock:
        dropper.lose_both_ways(1)
        args = [tools.tcp, "echo", there.address, "7001", *tools.side(here, "harp")]
        args += ["--local-port", "61500", "--count", "10", "--size", "100", "-o", "json"]
        harp = here.popen(args)
        tools.started.append(harp)
        sock.bind((there.address, 7001))
        sock.setblocking(False)
        sock.connect_ex((here.address, 61500))
        for host in (0, 1):
            wait_until(lambda host=host: dropper.counts(host)["packets"] > 0, "a SYN", 20)
        dropper.lose_both_ways(0)
        sock.settimeout(20)
        with sock.makefile("rb") as stream:
            _, test, count, _, size, _ = REQUEST.unpack(stream.read(REQUEST.size))
            assert (test, count) == (ECHO, 10)
            for _ in range(count):
                sock.sendall(stream.read(size))
            assert stream.read(1) == b""
        sock.close()
        out, err = harp.communicate(timeout=30)
        assert harp.returncode == 0, err
        stats = json.loads(out)["conn"]["stats"]
        assert (stats["tcp_passive_opens"], stats["tcp_active_opens"]) == (0, 1)
