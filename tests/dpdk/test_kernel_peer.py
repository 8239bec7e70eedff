# SPDX-License-Identifier: Apache-2.0
"""HARP on DPDK ports against the kernel: a tap device, and a veth by AF_PACKET and AF_XDP.

HARP answers the kernel's ARP, neighbor discovery and ping, because no other stack has the address.
"""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from dpdk_tools import Ends, finish
from test_steering import ping

from harp.lab import Host, Lab, LabOptions

BYTES = 64 << 20
FAMILIES = {"IPv4": ("10.9.0.1", "10.9.0.2"), "IPv6": ("fd00:9::1", "fd00:9::2")}  # HARP, kernel
ADDRESSES = "ip=10.9.0.1/24;ip=fd00:9::1/64"


# What a chunk of an XDP socket holds besides its mbuf and the kernel's own is 3498 bytes.
PEERS = [
    ("tap", 1280),
    ("tap", 1500),
    ("af_packet", 1500),
    ("af_packet", 9000),
    ("af_xdp", 1500),
    ("af_xdp", 3498),
]


class Peer:
    """A host with HARP's process, and one with the kernel's; for a tap it is the same host."""

    def __init__(self, ends: Ends, lab: Lab, kind: str, mtu: int) -> None:
        self.ends, self.mtu = ends, mtu
        self.here, self.there = lab.hosts
        self.ifname = self.there.ifname
        device = f"net_{kind}0,iface={self.here.ifname}"
        if kind == "tap":
            # The port takes one that is there, and leaves it there when it closes.
            self.there, self.ifname = self.here, "dtap9"
            words = ["mode", "tap", "multi_queue"]
            self.here.run("ip", "tuntap", "add", "dev", self.ifname, *words)
            self.here.run("ip", "link", "set", self.ifname, "mtu", str(mtu), "up")
            device = f"net_tap0,iface={self.ifname}"
        for host in lab.hosts:
            host.run("ip", "address", "flush", "dev", host.ifname)
        for _, kernel in FAMILIES.values():
            length, words = ("64", ["nodad"]) if ":" in kernel else ("24", [])
            address = ("ip", "address", "add", f"{kernel}/{length}", "dev", self.ifname)
            self.there.run(*address, *words)
        self.spec = f"{device};{ADDRESSES};mtu={mtu}"

    def serve(self, address: str, *more: str) -> "subprocess.Popen[str]":
        """A server on HARP."""
        return self.ends.serve_port(address, self.spec, *more, host=self.here)

    def segments_are_full(self, report: Any) -> bool:
        """The MSS is the MTU without headers and options."""
        return bool(self.mtu - 80 <= report["conn"]["snd_mss_bytes"] < self.mtu)


@pytest.fixture(params=PEERS, ids=lambda peer: f"{peer[0]}-{peer[1]}")
def peer(request: pytest.FixtureRequest, ends: Ends, need_root: None) -> Iterator[Peer]:
    """Each device, at an MTU. The veth has no checksum and segmentation offload."""
    kind, mtu = request.param
    with Lab(LabOptions(offload=False, mtu_bytes=mtu)) as lab:
        yield Peer(ends, lab, kind, mtu)


@pytest.mark.sample("tap-1500-IPv6", "af_packet-9000-IPv4", "af_xdp-1500-IPv4", "af_xdp-3498-IPv6")
@pytest.mark.parametrize("family", list(FAMILIES))
def test_harp_accepts(peer: Peer, family: str) -> None:
    """The kernel resolves HARP's address, pings it, connects, sends and receives."""
    harp, _ = FAMILIES[family]
    server = peer.serve(harp, "--count", "2")
    ping(peer.there, harp)
    for test in ("send", "recv"):
        report = peer.ends.call(test, harp, None, "--bytes", str(BYTES), host=peer.there)
        assert report["bytes"] == BYTES
        assert peer.segments_are_full(report)
    reports, said = finish(server)
    assert "connection" not in said
    for far in reports:
        assert far["stats"]["drop_tcp_checksum"] == 0
        assert far["stats"]["icmp_echo_in"] >= 1
        assert far["stats"]["nd_out" if family == "IPv6" else "arp_out"] > 0


@pytest.mark.sample(
    "tap-1280-IPv6-send",
    "tap-1500-IPv4-recv",
    "af_packet-9000-IPv4-send",
    "af_packet-1500-IPv6-recv",
    "af_xdp-3498-IPv6-send",
    "af_xdp-1500-IPv4-recv",
)
@pytest.mark.parametrize("verb", ["send", "recv"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_harp_connects(peer: Peer, family: str, verb: str) -> None:
    """HARP resolves the kernel's address, connects, and sends or receives."""
    _, kernel = FAMILIES[family]
    server = peer.ends.serve_port(kernel, None, host=peer.there)
    report = peer.ends.call(verb, kernel, peer.spec, "--bytes", str(BYTES), host=peer.here)
    finish(server)
    assert report["bytes"] == BYTES
    assert peer.segments_are_full(report)
    assert report["conn"]["stats"]["drop_tcp_checksum"] == 0


@pytest.fixture(scope="module")
def bare(need_root: None) -> Iterator[Host]:
    with Lab(LabOptions(offload=False)) as lab:
        yield lab.hosts[0]


def refused(ends: Ends, host: Host, spec: str) -> str:
    return ends.refused(f"{spec};ip=10.9.0.1/24", host)


@pytest.mark.parametrize("kind", ["af_packet", "af_xdp"])
def test_an_mtu_above_the_interface_s_is_refused(ends: Ends, bare: Host, kind: str) -> None:
    """The kernel would drop such packets."""
    said = refused(ends, bare, f"net_{kind}0,iface=eth0;mtu=3000")
    assert f"net_{kind}0" in said
    assert "MTU 3000 exceeds the interface's MTU of 1500" in said
    assert "ip link set eth0 mtu 3000" in said


@pytest.mark.parametrize(
    ("device", "most"), [("net_af_xdp0,iface=eth0", 3498), ("net_tap0,iface=dtap9", 1504)]
)
def test_an_mtu_above_the_driver_s_is_refused(
    ends: Ends, bare: Host, device: str, most: int
) -> None:
    said = refused(ends, bare, f"{device};mtu=9000")
    assert f"MTU 9000 exceeds the device's maximum of {most}" in said
