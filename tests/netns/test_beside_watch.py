# SPDX-License-Identifier: Apache-2.0
"""What becomes of a connection when somebody takes away what brings HARP its packets."""

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bpf_calls
import pytest
from netns_tools import NO_BESIDE, READY_S, Tools, finish, inside, wait_until
from steering_api import BESIDE, GENERIC
from test_beside import beside, links

from harp.lab import Host, Lab, LabOptions

PORT = 61000
COUNT = 1000  # round trips of a connection before what happens to it, and after
WAIT_S = 60
# What harp-tcp's client says first (tools/tcp/main.c): magic, test, round trips, seed, size.
REQUEST, MAGIC, ECHO = "=IIQQII", 0x48545032, 2


def wait_line(process: subprocess.Popen[str], words: str) -> str:
    """The next line of what it says with these words in it."""
    assert process.stderr is not None
    deadline = time.monotonic() + READY_S
    said = ""
    while select.select([process.stderr], [], [], max(0, deadline - time.monotonic()))[0]:
        line = process.stderr.readline()
        said += line
        if words in line:
            return line
        if not line:
            break
    pytest.fail(f"{words!r} was not said, but: {said}")


def exchange(connection: socket.socket) -> None:
    """Half of the round trips that the connection has asked for."""
    with connection.makefile("rb") as answers:
        for number in range(COUNT):
            message = struct.pack("=Q", number)
            connection.sendall(message)
            assert answers.read(len(message)) == message


@contextlib.contextmanager
def connection_held(lab: Lab) -> Iterator[None]:
    """A connection of the kernel's to HARP, in whose middle the block runs; it must end well."""
    here, there = lab.hosts
    with inside(here, lambda: socket.create_connection((there.address, PORT), WAIT_S)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(struct.pack(REQUEST, MAGIC, ECHO, 2 * COUNT, 0, 8, 0))
        exchange(client)
        yield
        exchange(client)


def serve(tools: Tools, host: Host, *more: str) -> subprocess.Popen[str]:
    server = tools.serve_tcp(host, "harp", PORT, "--count", "2", *more)
    wait_line(server, "on a device beside it")
    return server


def remove(lab: Lab, name: str) -> None:
    lab.hosts[1].run("ip", "link", "del", name)


def move(lab: Lab, name: str) -> None:
    lab.hosts[1].run("ip", "link", "set", name, "netns", lab.hosts[0].netns)


@pytest.mark.parametrize("take", [remove, move])
def test_a_device_that_was_taken_is_made_again(
    tools: Tools, lab: Lab, take: Callable[[Lab, str], None]
) -> None:
    there = lab.hosts[1]
    name = beside(there)
    server = serve(tools, there)
    before = links(there)[name]["ifindex"]
    with connection_held(lab):
        take(lab, name)
        wait_line(server, f"on a device beside it ({name}): {name} was removed")
    assert links(there)[name]["ifindex"] != before
    server.terminate()
    finish(server)
    wait_until(lambda: name not in links(there), "the device's end")
    assert name not in links(lab.hosts[0])


def put_down(host: Host, name: str) -> None:
    host.run("ip", "link", "set", name, "up")
    host.run("ip", "link", "set", name, "down")


def rename(host: Host, name: str) -> None:
    host.run("ip", "link", "set", name, "name", "mine0")


def change(host: Host, name: str) -> None:
    host.run("ip", "link", "set", name, "mtu", "68", "gro_max_size", "100000")


@pytest.mark.parametrize("how", [put_down, rename, change])
def test_what_is_done_to_the_device_that_all_see_does_not_matter(
    tools: Tools, lab: Lab, how: Callable[[Host, str], None]
) -> None:
    """Packets come out of its other end, which nobody else can get at."""
    there = lab.hosts[1]
    server = serve(tools, there)
    before = {link["ifindex"] for link in links(there).values()}
    with connection_held(lab):
        how(there, beside(there))
    assert {link["ifindex"] for link in links(there).values()} == before, "none was made anew"
    server.terminate()
    assert "HARP" not in finish(server)[1]


def aside_of(server: subprocess.Popen[str], kind: str, ifindex: object) -> bpf_calls.Link:
    return next(
        link
        for link in bpf_calls.links_of(server.pid)
        if link.kind == kind and link.ifindex == ifindex
    )


def test_a_program_that_was_detached_by_force_is_attached_again(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    server = serve(tools, there)
    bpf_calls.detach(aside_of(server, "tcx", links(there)[there.ifname]["ifindex"]))
    wait_line(server, f"{there.ifname}: harp_aside was detached; it is attached again")
    for _ in range(2):
        tools.call_tcp(here, "kernel", "echo", there.address, PORT, "--count", "10")
    assert finish(server)[1] == ""


def test_a_program_on_the_interface_is_attached_again(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    args = [*NO_BESIDE, tools.tcp, "serve", there.address, str(PORT), *tools.side(there, "harp")]
    server = tools.serve(there, args)
    wait_line(server, "cannot run on a device beside it")
    bpf_calls.detach(aside_of(server, "xdp", links(there)[there.ifname]["ifindex"]))
    wait_line(server, f"{there.ifname}: harp_steer was detached; it is attached again")
    tools.call_tcp(here, "kernel", "echo", there.address, PORT, "--count", "10")


def test_a_place_that_others_had_for_a_while_is_harps_again(tools: Tools, lab: Lab) -> None:
    """Where nothing could be attached again at first. HARP's socket is where it was."""
    here, there = lab.hosts
    args = [*NO_BESIDE, tools.tcp, "serve", there.address, str(PORT), *tools.side(there, "harp")]
    server = tools.serve(there, args)
    wait_line(server, "cannot run on a device beside it")
    ifindex = links(there)[there.ifname]["ifindex"]

    def take() -> int:
        while True:  # HARP may be quicker
            with contextlib.suppress(OSError, StopIteration):
                bpf_calls.detach(aside_of(server, "xdp", ifindex))
                return inside(there, lambda: bpf_calls.put_on(ifindex))

    fd = take()
    wait_line(server, f"{there.ifname}: harp_steer was detached; attaching it again: ")
    os.close(fd)
    wait_line(server, f"{there.ifname}: harp_steer was detached; it is attached again")
    tools.call_tcp(here, "kernel", "echo", there.address, PORT, "--count", "10")


CONFINED = """
import ctypes, os, struct, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import bpf_calls
from steering_api import Library
steering = Library(Path({build!r})).attach({ifname!r}, {mode})
assert not steering.look()
# seccomp (linux/seccomp.h): bpf() fails with EPERM.
forbidden = (0x20, 0, 0, 0), (0x15, 0, 1, bpf_calls.SYSTEM_CALL), (0x06, 0, 0, 0x50001)
steps = (*forbidden, (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps), 32)
libc = ctypes.CDLL(None, use_errno=True)
assert not libc.prctl(38, 1, 0, 0, 0)
assert not libc.prctl(22, 2, struct.pack("<HxxxxxxQ", 4, ctypes.addressof(code)))
try:
    os.close(bpf_calls.put_on(1))
    sys.exit("bpf() still works")
except PermissionError:
    pass
print([steering.look(), steering.look()])
"""


@pytest.mark.parametrize("mode", [GENERIC, GENERIC | BESIDE])
def test_who_may_not_ask_any_more_goes_on(tools: Tools, lab: Lab, mode: int) -> None:
    """A process that gave up its privileges: a question without an answer is no news."""
    there = lab.hosts[1]
    tests = str(Path(__file__).parent)
    code = CONFINED.format(tests=tests, build=str(tools.build), ifname=there.ifname, mode=mode)
    assert there.run(sys.executable, "-c", code) == "['', '']\n"


def test_a_program_before_harps_is_named(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    server = serve(tools, there)
    ifindex = links(there)[there.ifname]["ifindex"]
    fd = inside(there, lambda: bpf_calls.put_first(ifindex, bpf_calls.NEXT))
    wait_line(server, "is before HARP's at the ingress hook: HARP gets what that leaves to it")
    tools.call_tcp(here, "kernel", "echo", there.address, PORT, "--count", "10")
    os.close(fd)
    tools.call_tcp(here, "kernel", "echo", there.address, PORT, "--count", "10")
    assert finish(server)[1] == "", "it was said once"


def test_a_program_that_drops_holds_a_connection_and_ends_none(tools: Tools, lab: Lab) -> None:
    there = lab.hosts[1]
    server = serve(tools, there)
    ifindex = links(there)[there.ifname]["ifindex"]
    with connection_held(lab):
        fd = inside(there, lambda: bpf_calls.put_first(ifindex, bpf_calls.DROP))
        wait_line(server, "is before HARP's at the ingress hook")
        os.close(fd)


def test_a_users_qdisc_does_not_matter(tools: Tools, lab: Lab) -> None:
    there = lab.hosts[1]
    qdisc = ("dev", there.ifname, "clsact")
    server = serve(tools, there)
    with connection_held(lab):
        there.run("tc", "qdisc", "add", *qdisc)
    there.run("tc", "qdisc", "del", *qdisc)
    server.terminate()
    assert finish(server)[1] == ""


def test_nothing_of_harps_stays_on_an_interface_that_was_moved(tools: Tools, lab: Lab) -> None:
    """In its new namespace the same number may be anybody's device."""
    here, there = lab.hosts
    name = beside(there)
    server = serve(tools, there)
    there.run("ip", "link", "set", there.ifname, "name", "moved0", "netns", here.netns)
    wait_until(
        lambda: not any(link.ifindex for link in bpf_calls.links_of(server.pid)), "the links' end"
    )
    assert "moved0" in links(here)
    assert name not in links(there)


def test_packets_that_grow_too_long_move_the_program(tools: Tools, lab: Lab) -> None:
    """BIG TCP: the program goes where the kernel joins nothing."""
    here, there = lab.hosts
    server = serve(tools, there)
    with connection_held(lab):
        there.run("ip", "link", "set", there.ifname, "gro_max_size", "100000")
        line = wait_line(server, "the kernel joins packets up to 100000 bytes now (gro_max_size)")
    assert "what the kernel receives for itself is copied once more" in line
    assert "xdp" in links(there)[there.ifname]
    assert beside(there) not in links(there)
    tools.call_tcp(here, "kernel", "echo", there.address, PORT, "--count", "10")
    assert finish(server)[1] == ""


def test_packets_that_are_too_long_are_sent_again_shorter(tools: Tools, need_root: None) -> None:
    """A kernel on the same machine hands packets over as long as it may make them."""
    with Lab(LabOptions(offload=False, ipv6=True)) as lab:
        here, there = lab.hosts
        here.run("ethtool", "-K", here.ifname, "tx", "on", "sg", "on", "tso", "on")
        here.run("ip", "link", "set", here.ifname, "gso_max_size", "200000")
        server = tools.serve_tcp(there, "harp", PORT)
        more = ("--bytes", str(8 << 20))
        report = tools.call_tcp(here, "kernel", "send", there.address, PORT, *more)
        served = json.loads(finish(server)[0].splitlines()[-1])
    assert report["bytes"] == 8 << 20
    assert served["steering"]["too_long"] > 0


CHANGES = {
    "mac": ("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01"),
    "promiscuous": ("ip", "link", "set", "eth0", "promisc", "on"),
    "gro": ("ethtool", "-K", "eth0", "gro", "on"),
    "queues": ("ethtool", "-L", "eth0", "rx", "2", "tx", "2"),
    "bridge port": ("ip", "link", "set", "eth0", "master", "br0"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_of_the_interface_ends_no_connection(
    tools: Tools, need_root: None, change: str
) -> None:
    with Lab(LabOptions(queues=2)) as lab:
        here, there = lab.hosts
        there.run("ethtool", "-L", there.ifname, "rx", "1", "tx", "1")
        there.run("ip", "link", "add", "br0", "type", "bridge")
        server = serve(tools, there)
        with connection_held(lab):
            there.run(*CHANGES[change])
            if change == "mac":
                here.run("ip", "neigh", "flush", "dev", here.ifname)
                wait_line(server, "the MAC address of eth0 is 02:00:00:00:00:01 now")
