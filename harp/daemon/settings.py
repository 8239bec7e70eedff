# SPDX-License-Identifier: Apache-2.0
"""harpd's settings: harp.toml's [daemon], [metrics], [[nic]] and [[dpdk]], in harpd's own types."""

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from harp.daemon.ports import Block

Prefix = IPv4Network | IPv6Network
RUN_DIR = Path("/run/harp")
SOCKET_NAME = "harpd.sock"
PINS_NAME = "bpf"
PORTS = Block(61000, 65535)
# enum harp_xdp_mode. harpd attaches a generic program only if harp.toml asks for it.
XDP_GENERIC, XDP_NATIVE, XDP_NATIVE_OR_NONE = 1, 2, 3


@dataclass(frozen=True)
class NicSettings:
    """One [[nic]]. xdp_mode as enum harp_xdp_mode; empty sets mean "all"."""

    ifname: str
    lease_queues: frozenset[int] = frozenset()
    ports: Block = PORTS
    xdp_mode: int = XDP_NATIVE_OR_NONE
    rss: str = ""
    allow_sources: tuple[Prefix, ...] = ()  # empty: every source


@dataclass(frozen=True)
class PortSettings:
    """One [[dpdk]]. text: the port's specification for harp_port_spec_parse(), without queues."""

    name: str
    device: str
    text: str
    queues: int = 1

    def spec(self, queues: int) -> str:
        """Return the specification with this number of queues."""
        return f"{self.text};queues={queues}"


@dataclass(frozen=True)
class Settings:
    """All settings. job: lines of NAME=VALUE for WELCOME."""

    run_dir: Path = RUN_DIR
    socket: Path | None = None
    socket_group: str = ""
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ("harp",)
    allow_net_admin_containers: bool = False
    leases_per_uid: int = 64
    connections_per_uid: int = 128
    ports_per_instance: int = 0
    port_rest_s: float = 60.0
    frames_max: int = 65536
    page_flows: int = 256
    prepare: bool = True
    log_level: str = "info"
    metrics_address: str = "127.0.0.1"
    metrics_port: int = 9747
    job: str = ""
    nics: tuple[NicSettings, ...] = ()
    dpdk: tuple[PortSettings, ...] = ()
    # The file's values, for the preparation of NICs.
    source: Any = field(default=None, compare=False)

    @property
    def socket_path(self) -> Path:
        """Return the path of harpd's socket."""
        return self.socket or self.run_dir / SOCKET_NAME

    @property
    def pins_dir(self) -> Path:
        """Return the path of harpd's bpffs."""
        return self.run_dir / PINS_NAME
