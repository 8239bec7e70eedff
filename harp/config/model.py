# SPDX-License-Identifier: Apache-2.0
"""A configuration: every value with its source, and typed views of tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from harp.config import values
from harp.config.keys import Key, Reader, global_keys
from harp.config.values import Setting

SourceKind = Literal["default", "file", "environment", "command line"]


@dataclass(frozen=True)
class Source:
    """The source of a value; with file and line if it is a file."""

    kind: SourceKind = "default"
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.kind == "file" else self.kind


DEFAULT = Source()


@dataclass(frozen=True)
class Value:
    """A key's value and its source."""

    key: Key
    value: Setting
    source: Source = DEFAULT

    @property
    def is_default(self) -> bool:
        return self.value == values.preset(self.key)

    @property
    def text(self) -> str:
        return values.to_text(self.value, self.key)

    @property
    def toml(self) -> str:
        return values.to_toml(self.value, self.key)


# ---- Typed tables, with the fields, defaults and units of harp_config.h ----
@dataclass(frozen=True, kw_only=True)
class DaemonConfig:
    socket: str = ""  # see socket_path
    run_dir: Path = Path("/run/harp")
    socket_group: str = ""
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ("harp",)
    allow_net_admin_containers: bool = False
    leases_per_uid: int = 64
    connections_per_uid: int = 128
    ports_per_instance: int = 0
    port_rest_ms: int = 60000
    frames_max: int = 65536
    huge_pages: int = 0
    prepare: bool = True
    log_level: str = "info"

    @property
    def socket_path(self) -> Path:
        """harpd's socket: socket, else harpd.sock in run_dir."""
        return Path(self.socket) if self.socket else self.run_dir / "harpd.sock"

    @property
    def pins_dir(self) -> Path:
        return self.run_dir / "bpf"


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """[metrics]. port 0: no endpoint."""

    address: str = "127.0.0.1"
    port: int = 9747


@dataclass(frozen=True, kw_only=True)
class NicConfig:
    ifname: str
    queues: int = 0
    lease_queues: tuple[int, ...] = ()
    ports: tuple[int, int] = (61000, 65535)
    xdp_mode: str = "auto"
    rss: str = ""
    allow_sources: tuple[str, ...] = ()
    rx_ring: int = 0
    tx_ring: int = 0
    coalesce: str = "keep"
    coalesce_rx_us: int = 8
    coalesce_tx_us: int = 8
    defer_irqs: int = 0
    gro_flush_us: int = 0
    lro: str = "keep"
    gro_hw: str = "keep"
    gro: str = "keep"
    tso: str = "keep"
    rx_checksum: str = "keep"
    tx_checksum: str = "keep"
    irq_affinity: str = "keep"
    irq_cores: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DpdkConfig:
    device: str
    name: str = ""
    addresses: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    mtu: int = 0
    vlan: int = 0
    queues: int = 1
    frames: int = 0
    default_route: bool = False

    @property
    def port(self) -> str:
        """The name that jobs use."""
        return self.name or port_name(self.device)

    @property
    def text(self) -> str:
        """The specification for harp_port_spec_parse(), without the number of queues."""
        parts = [self.device, f"name={self.port}"]
        parts += [f"ip={address}" for address in self.addresses]
        parts += [f"gw={gateway}" for gateway in self.gateways]
        parts += [f"route={route}" for route in self.routes]
        numbers = {"mtu": self.mtu, "vlan": self.vlan, "frames": self.frames}
        parts += [f"{key}={number}" for key, number in numbers.items() if number]
        parts += ["take=default-route"] if self.default_route else []
        return ";".join(parts)

    def spec(self, queues: int = 0) -> str:
        """Return the specification for a job with this number of queues; 0: all of the port."""
        return f"{self.text};queues={queues or self.queues}"


View = TypeVar("View", DaemonConfig, MetricsConfig, NicConfig, DpdkConfig)
PORT_NAME_BYTES_MAX = 15  # of struct harp_port_spec: the length of an interface's name


def port_name(device: str) -> str:
    return device.partition(",")[0][:PORT_NAME_BYTES_MAX]


def _view(view: type[View], table: Mapping[str, Value]) -> View:
    fields: dict[str, object] = {name: value.value for name, value in table.items()}
    if view is DaemonConfig:
        fields["run_dir"] = Path(str(fields["run_dir"]))
    return view(**fields)  # type: ignore[arg-type]


def dpdk_view(table: Mapping[str, Value]) -> DpdkConfig:
    return _view(DpdkConfig, table)


@dataclass(frozen=True)
class Config:
    """All settings of a host. values by variable; nic_values, dpdk_values: by key, per table."""

    values: Mapping[str, Value]
    nic_values: tuple[Mapping[str, Value], ...] = ()
    dpdk_values: tuple[Mapping[str, Value], ...] = ()
    file: str = ""
    warnings: tuple[str, ...] = ()

    def table(self, name: str) -> dict[str, Value]:
        return {key.key: self.values[key.name] for key in global_keys() if key.table == name}

    @cached_property
    def daemon(self) -> DaemonConfig:
        return _view(DaemonConfig, self.table("daemon"))

    @cached_property
    def metrics(self) -> MetricsConfig:
        return _view(MetricsConfig, self.table("metrics"))

    @cached_property
    def nics(self) -> tuple[NicConfig, ...]:
        return tuple(_view(NicConfig, nic) for nic in self.nic_values)

    @property
    def dpdk_named(self) -> dict[str, Mapping[str, Value]]:
        """dpdk_values by the names that jobs use."""
        return {port.port: table for port, table in zip(self.dpdk, self.dpdk_values, strict=True)}

    @cached_property
    def dpdk(self) -> tuple[DpdkConfig, ...]:
        return tuple(map(dpdk_view, self.dpdk_values))

    def __getitem__(self, name: str) -> Setting:
        """Return a value by its variable: config["HARP_FRAMES"]."""
        return self.values[name].value

    def job_values(self) -> dict[str, Value]:
        """Return the job settings of harp.toml and the command line, by variable.

        A default in the file is left out. A default on the command line is kept, because it may
        override the file or the environment.
        """
        return {
            name: value
            for name, value in self.values.items()
            if Reader.JOB in value.key.readers
            and (
                value.source.kind == "command line"
                or (value.source.kind == "file" and not value.is_default)
            )
        }

    def job_settings(self) -> str:
        """Return the NAME=VALUE lines for WELCOME, without the settings that locate harpd."""
        lines = [
            f"{name}={value.text}\n"
            for name, value in self.job_values().items()
            if name not in ("HARP_SOCKET", "HARP_DAEMON") and value.source.kind == "file"
        ]
        return "".join(lines)
