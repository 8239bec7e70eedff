# SPDX-License-Identifier: Apache-2.0
"""HARP on DPDK ports with the kernel as peer, on a tap device or a veth (AF_PACKET, AF_XDP).

Only HARP's stack has the address, so it also answers ARP, neighbor discovery and ping.
"""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from dpdk_tools import DpdkTools, finish
from test_steering import ping

from harp.lab import Host, Lab, LabOptions

BYTES = 64 << 20
FAMILIES = {"IPv4": ("10.9.0.1", "10.9.0.2"), "IPv6": ("fd00:9::1", "fd00:9::2")}  # HARP, kernel
ADDRESSES = "ip=10.9.0.1/24;ip=fd00:9::1/64"

# A chunk of an XDP socket has 3498 bytes besides the mbuf's and the kernel's headroom.
PEERS = [
    ("tap", 1280),
    ("tap", 1500),
    ("af_packet", 1500),
    ("af_packet", 9000),
    ("af_xdp", 1500),
    ("af_xdp", 3498),
]


class Peer:
    """A host that runs HARP, and one that runs kernel TCP; for a tap, both are the same host."""

    def __init__(self, tools: DpdkTools, lab: Lab, kind: str, mtu: int) -> None:
        self.tools, self.mtu = tools, mtu
        self.harp_host, self.kernel_host = lab.hosts
        self.ifname = self.kernel_host.ifname
        device = f"net_{kind}0,iface={self.harp_host.ifname}"
        if kind == "tap":
            # The port uses an existing tap device, which stays when the port closes.
            self.kernel_host, self.ifname = self.harp_host, "dtap9"
            options = ["mode", "tap", "multi_queue"]
            self.harp_host.run("ip", "tuntap", "add", "dev", self.ifname, *options)
            self.harp_host.run("ip", "link", "set", self.ifname, "mtu", str(mtu), "up")
            device = f"net_tap0,iface={self.ifname}"
        for host in lab.hosts:
            host.run("ip", "address", "flush", "dev", host.ifname)
        for _, kernel in FAMILIES.values():
            length, options = ("64", ["nodad"]) if ":" in kernel else ("24", [])
            command = ("ip", "address", "add", f"{kernel}/{length}", "dev", self.ifname)
            self.kernel_host.run(*command, *options)
        self.spec = f"{device};{ADDRESSES};mtu={mtu}"

    def serve(self, address: str, *more: str) -> "subprocess.Popen[str]":
        """Start a server on HARP."""
        return self.tools.serve_port(address, self.spec, *more, host=self.harp_host)

    def has_full_segments(self, report: Any) -> bool:
        """Is the MSS the MTU without headers and options?"""
        return bool(self.mtu - 80 <= report["conn"]["snd_mss_bytes"] < self.mtu)


@pytest.fixture(params=PEERS, ids=lambda peer: f"{peer[0]}-{peer[1]}")
def peer(request: pytest.FixtureRequest, tools: DpdkTools, need_root: None) -> Iterator[Peer]:
    """One device at one MTU. The veth has no checksum or segmentation offload."""
    kind, mtu = request.param
    with Lab(LabOptions(offload=False, mtu_bytes=mtu)) as lab:
        yield Peer(tools, lab, kind, mtu)


@pytest.mark.sample("tap-1500-IPv6", "af_packet-9000-IPv4", "af_xdp-1500-IPv4", "af_xdp-3498-IPv6")
@pytest.mark.parametrize("family", list(FAMILIES))
def test_harp_accepts(peer: Peer, family: str) -> None:
    """The kernel resolves HARP's address, pings it, connects, sends and receives."""
    harp, _ = FAMILIES[family]
    server = peer.serve(harp, "--count", "2")
    ping(peer.kernel_host, harp)
    for test in ("send", "recv"):
        report = peer.tools.run_client(
            test, harp, None, "--bytes", str(BYTES), host=peer.kernel_host
        )
        assert report["bytes"] == BYTES
        assert peer.has_full_segments(report)
    reports, err = finish(server)
    assert "connection" not in err
    for report in reports:
        assert report["stats"]["drop_tcp_checksum"] == 0
        assert report["stats"]["icmp_echo_in"] >= 1
        assert report["stats"]["nd_out" if family == "IPv6" else "arp_out"] > 0


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
    server = peer.tools.serve_port(kernel, None, host=peer.kernel_host)
    report = peer.tools.run_client(
        verb, kernel, peer.spec, "--bytes", str(BYTES), host=peer.harp_host
    )
    finish(server)
    assert report["bytes"] == BYTES
    assert peer.has_full_segments(report)
    assert report["conn"]["stats"]["drop_tcp_checksum"] == 0


@pytest.fixture(scope="module")
def bare_host(need_root: None) -> Iterator[Host]:
    with Lab(LabOptions(offload=False)) as lab:
        yield lab.hosts[0]


def open_error(tools: DpdkTools, host: Host, spec: str) -> str:
    return tools.open_error(f"{spec};ip=10.9.0.1/24", host)


@pytest.mark.parametrize("kind", ["af_packet", "af_xdp"])
def test_an_mtu_above_the_interface_s_is_refused(
    tools: DpdkTools, bare_host: Host, kind: str
) -> None:
    """The kernel would drop larger packets."""
    error = open_error(tools, bare_host, f"net_{kind}0,iface=eth0;mtu=3000")
    assert f"net_{kind}0" in error
    assert "MTU 3000 exceeds the interface's MTU of 1500" in error
    assert "ip link set eth0 mtu 3000" in error


@pytest.mark.parametrize(
    ("device", "mtu_max"), [("net_af_xdp0,iface=eth0", 3498), ("net_tap0,iface=dtap9", 1504)]
)
def test_an_mtu_above_the_driver_s_is_refused(
    tools: DpdkTools, bare_host: Host, device: str, mtu_max: int
) -> None:
    error = open_error(tools, bare_host, f"{device};mtu=9000")
    assert f"MTU 9000 exceeds the device's maximum of {mtu_max}" in error
