# SPDX-License-Identifier: Apache-2.0
"""The kinds of settings that NIC preparation changes: how to read, write and restore each.

A setting is a kind, a target ("eth0", "node0/2048kB", a range of ports) and some named values.
Values are JSON's, so that changes can be written to a file.
"""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harp.nicprep import ranges
from harp.nicprep.host import Host, affinity_path
from harp.nicprep.transport import Values

PORTS = "net/ipv4/ip_local_reserved_ports"
PORTS_KIND = "reserved-ports"
ABSENT = (errno.EOPNOTSUPP, errno.ENOENT, errno.ENOTTY)


@dataclass(frozen=True)
class Kind:
    """Reads and writes one kind; both raise OSError."""

    title: str
    read: Callable[[Host, str], Values]
    write: Callable[[Host, str, Mapping[str, object]], None]
    of_nic: bool = True


def _read_part(part: str) -> Callable[[Host, str], Values]:
    return lambda host, target: host.ethtool.get(part, target)


def _write_part(part: str) -> Callable[[Host, str, Mapping[str, object]], None]:
    return lambda host, target, values: host.ethtool.set(part, target, values)


def _read_text(path: Path) -> str:
    """Read a file of the kernel. Host.read() hides a missing file; this raises OSError."""
    return path.read_text().strip()


def _write_text(path: Path, text: str) -> None:
    """Write a file of the kernel, in one piece; never make one."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)


def _read_affinity(host: Host, target: str) -> Values:
    """target: "eth0 irq 34"."""
    path = affinity_path(host, _irq(target))
    return {"processors": ranges.text(ranges.parse(_read_text(path)))}


def _write_affinity(host: Host, target: str, values: Mapping[str, object]) -> None:
    _write_text(affinity_path(host, _irq(target)), str(values["processors"]))


def _irq(target: str) -> int:
    return int(target.rsplit(" ", 1)[1])


NAPI = ("napi_defer_hard_irqs", "gro_flush_timeout")


def _napi_folder(host: Host, target: str) -> Path:
    """Return the interface's folder, if /sys shows our network namespace."""
    folder = host.sys / "class/net" / target
    if host.number(folder / "ifindex") != host.ifindex(target):
        raise OSError(errno.EOPNOTSUPP, "/sys shows another network namespace")
    return folder


def _read_napi(host: Host, target: str) -> Values:
    folder = _napi_folder(host, target)
    return {name: int(_read_text(folder / name)) for name in NAPI}


def _write_napi(host: Host, target: str, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if name in NAPI:
            _write_text(_napi_folder(host, target) / name, str(value))


def _read_ports(host: Host, _target: str) -> Values:
    return {"ports": ranges.text(ranges.parse(_read_text(host.proc / "sys" / PORTS)))}


def _write_ports(host: Host, _target: str, values: Mapping[str, object]) -> None:
    _write_text(host.proc / "sys" / PORTS, str(values["ports"]))


def pages_path(host: Host, target: str) -> Path:
    """Return the file with the number of huge pages of target, "node0/2048kB" or "2048kB"."""
    node, _, size = target.rpartition("/")
    base = host.sys / "devices/system/node" / node if node else host.sys / "kernel/mm"
    return base / "hugepages" / f"hugepages-{size}" / "nr_hugepages"


def _read_pages(host: Host, target: str) -> Values:
    return {"pages": int(_read_text(pages_path(host, target)))}


def _write_pages(host: Host, target: str, values: Mapping[str, object]) -> None:
    _write_text(pages_path(host, target), str(values["pages"]))


KINDS: dict[str, Kind] = {
    "channels": Kind("queues", _read_part("channels"), _write_part("channels")),
    "rings": Kind("ring sizes", _read_part("rings"), _write_part("rings")),
    "coalesce": Kind("interrupt coalescing", _read_part("coalesce"), _write_part("coalesce")),
    "features": Kind("offloads", _read_part("features"), _write_part("features")),
    "napi": Kind("interrupt deferral", _read_napi, _write_napi),
    "irq-affinity": Kind("interrupt affinity", _read_affinity, _write_affinity),
    PORTS_KIND: Kind("reserved ports", _read_ports, _write_ports, of_nic=False),
    "huge-pages": Kind("huge pages", _read_pages, _write_pages, of_nic=False),
}
