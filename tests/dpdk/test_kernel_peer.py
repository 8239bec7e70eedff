# SPDX-License-Identifier: Apache-2.0
"""HARP on DPDK ports against the kernel: over a tap device.

The kernel's ARP, neighbour discovery and ping are answered by HARP, for nobody else is there.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from dpdk_tools import ENVIRONMENT, Ends, finish
from netns_tools import run, wait_until

from harp import _paths
from harp.lab import Host, Lab, LabOptions
from harp.piped import PipedTool

BYTES = 64 << 20
FAMILIES = {"IPv4": ("10.9.0.1", "10.9.0.2"), "IPv6": ("fd00:9::1", "fd00:9::2")}  # HARP, kernel
ADDRESSES = "ip=10.9.0.1/24;ip=fd00:9::1/64"


# An echo request, repeated until it is answered: the machine may have no ping.
PING = """
import socket, struct, sys
v6 = ":" in sys.argv[1]
head = struct.pack("!BBHHH", 128 if v6 else 8, 0, 0 if v6 else 0xE1E0, 0x1234, 1) + b"ping" * 4
if not v6:
    words = struct.unpack("!12H", head[:2] + b"\\0\\0" + head[4:])
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[4:]
family = socket.AF_INET6 if v6 else socket.AF_INET
with socket.socket(family, socket.SOCK_RAW, 58 if v6 else 1) as s:
    s.settimeout(1)
    for _ in range(10):
        s.sendto(head, (sys.argv[1], 0))
        try:
            while True:
                data, (who, *_) = s.recvfrom(2048)
                data = data if v6 else data[20:]
                if who == sys.argv[1] and data[0] == (129 if v6 else 0) and data[8:] == head[8:]:
                    print("answered")
                    sys.exit()
        except TimeoutError:
            pass
sys.exit("no answer")
"""


class Peer:
    """HARP's process in one place, the kernel's in another or the same."""

    def __init__(self, ends: Ends, here: Host, there: Host, ifname: str, spec: str) -> None:
        self.ends, self.here, self.there, self.ifname, self.spec = ends, here, there, ifname, spec

    def popen(self, host: Host) -> Any:
        """How Ends starts a process in a host."""

        def start(args: Any) -> "subprocess.Popen[str]":
            words = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
            return host.popen(["env", *words, *args])

        return start

    def addresses(self) -> None:
        """The kernel's, on a device that is there once HARP's port is open."""
        for _, kernel in FAMILIES.values():
            length = "64" if ":" in kernel else "24"
            words = ("dev", self.ifname, *(["nodad"] if ":" in kernel else []))
            self.there.run("ip", "address", "replace", f"{kernel}/{length}", *words)

    def serve(self, address: str, *more: str) -> "subprocess.Popen[str]":
        """HARP listens."""
        server = self.ends.serve(address, self.spec, *more, run=self.popen(self.here))
        self.prepare()
        return server

    def prepare(self) -> None:
        """What is to be done after the port is open."""


class TapPeer(Peer):
    """The tap device is the kernel's end, and comes and goes with the port."""

    def prepare(self) -> None:
        self.there.run("ip", "link", "set", self.ifname, "address", "02:00:00:00:09:02", "up")
        self.addresses()


@pytest.fixture(scope="module")
def lab(need_root: None) -> Iterator[Lab]:
    """Two hosts; a veth that leaves no checksum and no cutting to a card."""
    with Lab(LabOptions(offload=False)) as lab:
        for host in lab.hosts:
            host.run("ip", "address", "flush", "dev", host.ifname)
        yield lab


@pytest.fixture
def peer(ends: Ends, lab: Lab) -> Peer:
    """A tap device."""
    here = lab.hosts[0]
    return TapPeer(ends, here, here, "dtap9", f"net_tap0,iface=dtap9;{ADDRESSES}")


@pytest.mark.parametrize("family", list(FAMILIES))
def test_harp_accepts(peer: Peer, family: str) -> None:
    """The kernel connects, having asked for HARP's address, sends and receives; and pings."""
    harp, _ = FAMILIES[family]
    server = peer.serve(harp, "--count", "2")
    assert peer.there.run(sys.executable, "-c", PING, harp) == "answered\n"
    for test in ("send", "recv"):
        report, _ = peer.ends.call(
            test, harp, None, "--bytes", str(BYTES), run=peer.popen(peer.there)
        )
        assert report["bytes"] == BYTES
    reports, said = finish(server)
    assert "connection" not in said
    for far in reports:
        assert far["stats"]["drop_tcp_checksum"] == 0
        assert far["stats"]["icmp_echo_in"] >= 1
        assert far["stats"]["nd_out" if family == "IPv6" else "arp_out"] > 0


def test_loss(peer: Peer) -> None:
    """One per cent of what HARP sends is lost on its way into the kernel: all of it arrives."""
    server = peer.serve("10.9.0.1")
    process = peer.there.popen([_paths.find("harp-drop"), peer.ifname], stdin=subprocess.PIPE)
    drop = PipedTool("harp-drop", process)
    try:
        drop.tell(f"loss {peer.ifname} 10000 7")
        report, _ = peer.ends.call(
            "recv", "10.9.0.1", None, "--bytes", str(BYTES // 4), run=peer.popen(peer.there)
        )
    finally:
        drop.close()
    (far,), _ = finish(server)
    assert report["bytes"] == BYTES // 4
    assert far["retransmits"] > 0


def test_link_down_and_up(ends: Ends, lab: Lab) -> None:
    """A tap device set down under a connection: said, and all bytes arrive when it is up again."""
    here = lab.hosts[0]
    peer = TapPeer(ends, here, here, "dtap9", f"net_tap0,iface=dtap9;{ADDRESSES}")
    server = peer.serve("10.9.0.1")
    client = peer.popen(here)(
        [*ends.command("send", "10.9.0.1", None, "--bytes", str(BYTES), "--timeout", "60")]
    )
    ends.started.append(client)
    shown = ("ip", "-s", "-o", "link", "show", "dev", "dtap9")
    wait_until(lambda: len(re.findall(r"\d{7,}", here.run(*shown))) > 0, "traffic")
    here.run("ip", "link", "set", "dtap9", "down")
    assert server.stderr is not None
    for line in server.stderr:
        if "net_tap0 is down" in line:
            break
    here.run("ip", "link", "set", "dtap9", "up")
    here.run("ip", "address", "replace", "10.9.0.2/24", "dev", "dtap9")
    assert client.wait(100) == 0
    _, said = finish(server)
    assert "net_tap0 is up again" in said


def test_port_of_an_interface_in_use(ends: Ends, lab: Lab) -> None:
    """What the kernel refuses is said with the device's name."""
    here = lab.hosts[0]
    args = ends.command("send", "10.9.0.2", "net_af_packet0,iface=nothing;ip=10.9.0.1/24")
    process = here.popen(args)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "net_af_packet0" in err
    assert run(here, ["true"]) == ""
