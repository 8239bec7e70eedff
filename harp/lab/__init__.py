# SPDX-License-Identifier: Apache-2.0
"""Test hosts on one machine: network namespaces joined by veth pairs.

Two hosts share one veth pair. More hosts, or two with `switch`, are connected to a bridge in
another namespace. Hosts with several NICs have a bridge and a subnet for each: a rail
(harp.lab.rails cuts and shapes them). The machine's own namespace has no part of this. A lab is a
context manager and cleans up at the end of the block, on an exception, SIGINT, SIGTERM, SIGHUP, and
at exit. The next lab removes the namespaces of a killed one, by their names
(harp-<pid>-<serial>-...).
"""

import atexit
import contextlib
import itertools
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harp.closing import Closing, unwinding
from harp.errors import Exit, HarpError
from harp.lab.netns import (
    NETNS_DIR,
    Namespace,
    end_processes,
    in_namespace,
    make_namespace,
    namespaces,
    offloads_off,
    remove_namespace,
    wait_for_carrier,
)
from harp.lab.piped import Spreader
from harp.output import err
from harp.words import endpoint

HOSTS_MAX = 8
RAILS_MAX = 4
QUEUES_MAX = 16
MTU_MIN, MTU_MAX = 1280, 65535
IFNAME = "eth0"
_NAME = re.compile(r"harp-(\d+)-(\d+)-(h\d|sw)")
RUN_DIRS = Path("/run/harp-lab")  # of the hosts' harpds (harp.lab.harpd)
_IFA_F_NODAD = 2
_IPV6 = Path("/proc/net/if_inet6")
_serial = itertools.count()


@dataclass(frozen=True)
class LabOptions:
    """The hosts and their NICs."""

    hosts: int = 2
    mtu_bytes: int = 1500
    offload: bool = True  # segmentation, GRO and checksum offloads of the veth devices
    queues: int = 1
    switch: bool = False  # a bridge even between two hosts, to drop and to shape packets
    ipv6: bool = False  # IPv6 addresses instead of IPv4 addresses
    # The rule by which each NIC chooses queues (harp.lab.piped); it needs a switch. With None, veth
    # chooses: a generic XDP program gets the packets of transmit queue n on receive queue n - 1
    # (and of 0 on 0), which is useless with several queues.
    rss: str | None = None
    rails: int = 1  # NICs of each host: eth0, eth1 ...; several need a switch

    @property
    def switched(self) -> bool:
        return self.switch or self.hosts > 2 or self.rss is not None or self.rails > 1

    @property
    def words(self) -> str:
        family = "IPv6" if self.ipv6 else "IPv4"
        return f"{family}, MTU {self.mtu_bytes}, offloads {'on' if self.offload else 'off'}"

    def check(self) -> None:
        for name, value, low, high in (
            ("hosts", self.hosts, 2, HOSTS_MAX),
            ("mtu", self.mtu_bytes, MTU_MIN, MTU_MAX),
            ("rails", self.rails, 1, RAILS_MAX),
            ("queues", self.queues, 1, QUEUES_MAX),
        ):
            if not low <= value <= high:
                raise HarpError(f"{name}: {value} is not in {low}..{high}", Exit.USAGE)
        if self.ipv6 and not _IPV6.exists():
            raise HarpError("ipv6: this kernel runs without it", Exit.MISSING)


@dataclass(frozen=True)
class Nic:
    """An interface of a host and its address."""

    ifname: str
    address: str


@dataclass
class Host(Namespace):
    """A host: a namespace with one or more NICs, which have one address each."""

    index: int
    address: str
    ifname: str = IFNAME
    other_nics: tuple[Nic, ...] = ()

    @property
    def nics(self) -> tuple[Nic, ...]:
        return (Nic(self.ifname, self.address), *self.other_nics)

    def endpoint(self, port: int) -> str:
        """Return "address:port", the address in brackets if it is IPv6."""
        return endpoint(self.address, port)


@dataclass
class Switch(Namespace):
    """The namespace with a bridge for each rail, which has a port for each host."""

    rails: tuple[tuple[str, ...], ...]  # the ports of each rail

    @property
    def ports(self) -> tuple[str, ...]:
        return self.rails[0]

    @staticmethod
    def bridge(rail: int) -> str:
        return f"br{rail}"


class Lab(Closing):
    """The hosts, from __enter__ to __exit__."""

    def __init__(self, options: LabOptions | None = None) -> None:
        self.options = options or LabOptions()
        self.options.check()
        self.hosts: list[Host] = []
        self.switch: Switch | None = None
        self.spreader: Spreader | None = None
        self._prefix = f"harp-{os.getpid()}-{next(_serial)}-"
        self._owner = os.getpid()
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> Self:
        require_root("making test hosts (network namespaces)")
        require_programs("ip", "taskset")
        clean_leftovers()
        atexit.register(self.close)
        self._signals.enter_context(unwinding())
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked child runs atexit handlers, too
        members: list[Namespace] = [*self.hosts, *([self.switch] if self.switch else [])]
        for namespace in members:
            end_processes(namespace.processes)
        self.hosts, self.switch, self.spreader = [], None, None
        for name in namespaces():
            if name.startswith(self._prefix):
                _remove(name)
        self._signals.close()
        atexit.unregister(self.close)

    def _make(self) -> None:
        for index in range(self.options.hosts):
            nics = [
                Nic(f"eth{rail}", self._address(rail, index)) for rail in range(self.options.rails)
            ]
            name = f"{self._prefix}h{index}"
            host = Host(name, index, nics[0].address, nics[0].ifname, tuple(nics[1:]))
            make_namespace(host.netns)
            self.hosts.append(host)
        if self.options.switched:
            self.switch = self._make_switch()
        else:
            _make_veth(self.hosts[0].netns, IFNAME, self.hosts[1].netns, IFNAME, self.options)
        for host in self.hosts:
            _configure(host, self.options)
        for host in self.hosts:
            in_namespace(host.netns, wait_for_carrier)
        if self.switch:
            in_namespace(self.switch.netns, wait_for_carrier)
        if self.switch and self.options.rss is not None:
            self.spreader = Spreader(self.switch, self.switch.ports, self.options.queues)
            for host in self.hosts:
                self.spreader.rule(host.index, self.options.rss)

    def _address(self, rail: int, index: int) -> str:
        if self.options.ipv6:
            return f"fd77:0:0:{rail}::{index + 1}" if rail else f"fd77::{index + 1}"
        return f"10.77.{rail}.{index + 1}"

    def _make_switch(self) -> Switch:
        rails = tuple(
            tuple(f"p{host.index}{f'r{rail}' if rail else ''}" for host in self.hosts)
            for rail in range(self.options.rails)
        )
        switch = Switch(f"{self._prefix}sw", rails)
        make_namespace(switch.netns)
        for rail in range(self.options.rails):
            self._make_bridge(switch, rail)
        return switch

    def _make_bridge(self, switch: Switch, rail: int) -> None:
        ports = switch.rails[rail]
        for host, port in zip(self.hosts, ports, strict=True):
            # For harp-switch rss, see rss.bpf.c.
            spare = int(self.options.rss is not None)
            _make_veth(switch.netns, port, host.netns, host.nics[rail].ifname, self.options, spare)

        def add_bridge(ipr: Any) -> None:
            name, mtu = switch.bridge(rail), self.options.mtu_bytes
            ipr.link("add", ifname=name, kind="bridge", br_forward_delay=0, br_stp_state=0)
            bridge = ipr.link_lookup(ifname=name)[0]
            for port in ports:
                index = ipr.link_lookup(ifname=port)[0]
                ipr.link("set", index=index, mtu=mtu, master=bridge, state="up")
            ipr.link("set", index=bridge, mtu=mtu, state="up")

        in_namespace(switch.netns, add_bridge)
        if not self.options.offload:
            for port in ports:
                offloads_off(switch.netns, port)


def cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def require_root(what: str) -> None:
    if os.geteuid() != 0:
        raise HarpError(f"{what} needs root; run as root", Exit.PRIVILEGE)


def require_programs(*names: str) -> None:
    """Raise HarpError with the missing program and its package."""
    for name in names:
        if shutil.which(name) is None:
            package = "iproute2" if name == "ip" else "util-linux"
            raise HarpError(f"{name} is not installed: apt install {package}", Exit.MISSING)


def clean_leftovers() -> list[str]:
    """Remove the namespaces of dead runs, with the processes in them; return their names."""
    removed = []
    for name in namespaces():
        match = _NAME.fullmatch(name)
        if match and not Path("/proc", match[1]).exists():
            _remove(name)
            removed.append(name)
    if removed:
        err.print(f"removed what a killed run had left: {', '.join(removed)}", soft_wrap=True)
    return removed


def _remove(name: str) -> None:
    remove_namespace(name)
    if (RUN_DIRS / name).exists():
        from harp.lab.harpd import remove_run_dir

        remove_run_dir(RUN_DIRS / name)


def _make_veth(
    ns_a: str, if_a: str, ns_b: str, if_b: str, options: LabOptions, spare: int = 0
) -> None:
    """Make a veth pair in two namespaces. spare: more transmit queues of the first end."""
    queues = {"num_tx_queues": options.queues, "num_rx_queues": options.queues}
    first = queues | {"num_tx_queues": options.queues + spare}

    def add(ipr: Any) -> None:
        with (NETNS_DIR / ns_b).open("rb") as entry:
            peer = {"ifname": if_b, "net_ns_fd": entry.fileno(), **queues}
            ipr.link("add", ifname=if_a, kind="veth", peer=peer, **first)

    in_namespace(ns_a, add)


def _configure(host: Host, options: LabOptions) -> None:
    def configure(ipr: Any) -> None:
        ipr.link("set", index=ipr.link_lookup(ifname="lo")[0], state="up")
        shape = {"prefixlen": 64, "flags": _IFA_F_NODAD} if options.ipv6 else {"prefixlen": 24}
        for nic in host.nics:
            index = ipr.link_lookup(ifname=nic.ifname)[0]
            ipr.link("set", index=index, mtu=options.mtu_bytes)
            ipr.addr("add", index=index, address=nic.address, **shape)
            ipr.link("set", index=index, state="up")

    for nic in host.nics if _IPV6.exists() else ():
        # Neighbor discovery needs the link-local address: do not wait a second for the detection of
        # duplicate addresses.
        host.sysctl(f"ipv6/conf/{nic.ifname}/accept_dad", 0)
        if host.other_nics:
            # Keep the addresses of an interface that goes down, as a host's network manager would.
            host.sysctl(f"ipv6/conf/{nic.ifname}/keep_addr_on_down", 1)
    in_namespace(host.netns, configure)
    for nic in () if options.offload else host.nics:
        offloads_off(host.netns, nic.ifname)
