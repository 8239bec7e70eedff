# SPDX-License-Identifier: Apache-2.0
"""The kinds of settings that NIC preparation changes: how to read, write and restore each.

A setting is a kind, a target ("eth0", "node0/2048kB", a range of ports) and some named values.
Values are of JSON types, so that changes can be written to a file.
"""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harp.nicprep import ranges
from harp.nicprep.host import Host, affinity_path
from harp.nicprep.transport import Values

PORTS_KIND = "reserved-ports"
ABSENT = (errno.EOPNOTSUPP, errno.ENOENT, errno.ENOTTY)


@dataclass(frozen=True)
class Kind:
    """Reads and writes one kind; both raise OSError."""

    title: str
    read: Callable[[Host, str], Values]
    write: Callable[[Host, str, Mapping[str, object]], None]
    of_nic: bool = True


def _of_ethtool(title: str, part: str) -> Kind:
    return Kind(
        title,
        lambda host, target: host.ethtool.get(part, target),
        lambda host, target, values: host.ethtool.set(part, target, values),
    )


def _of_files(
    title: str,
    find: Callable[[Host, str], dict[str, Path]],
    parse: Callable[[str], int | str],
    of_nic: bool = True,
) -> Kind:
    """Return a kind whose values are in existing files of the kernel."""

    def read(host: Host, target: str) -> Values:
        return {name: parse(path.read_text().strip()) for name, path in find(host, target).items()}

    def write(host: Host, target: str, values: Mapping[str, object]) -> None:
        files = find(host, target)
        for name, value in values.items():
            fd = os.open(files[name], os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(fd, f"{value}\n".encode())  # the kernel needs it in one call
            finally:
                os.close(fd)

    return Kind(title, read, write, of_nic)


def _numbers(text: str) -> str:
    return ranges.text(ranges.parse(text))


def _affinity(host: Host, target: str) -> dict[str, Path]:
    """target: "eth0 irq 34"."""
    return {"processors": affinity_path(host, int(target.rsplit(" ", 1)[1]))}


def _napi(host: Host, target: str) -> dict[str, Path]:
    folder = host.sys / "class/net" / target
    if host.number(folder / "ifindex") != host.ifindex(target):
        raise OSError(errno.EOPNOTSUPP, "/sys shows another network namespace")
    return {name: folder / name for name in ("napi_defer_hard_irqs", "gro_flush_timeout")}


def _ports(host: Host, _target: str) -> dict[str, Path]:
    return {"ports": host.proc / "sys/net/ipv4/ip_local_reserved_ports"}


def pages_path(host: Host, target: str) -> Path:
    """Return the file with the number of huge pages of target, "node0/2048kB" or "2048kB"."""
    node, _, size = target.rpartition("/")
    base = host.sys / "devices/system/node" / node if node else host.sys / "kernel/mm"
    return base / "hugepages" / f"hugepages-{size}" / "nr_hugepages"


def _pages(host: Host, target: str) -> dict[str, Path]:
    return {"pages": pages_path(host, target)}


KINDS: dict[str, Kind] = {
    "channels": _of_ethtool("queues", "channels"),
    "rings": _of_ethtool("ring sizes", "rings"),
    "coalesce": _of_ethtool("interrupt coalescing", "coalesce"),
    "features": _of_ethtool("offloads", "features"),
    "napi": _of_files("interrupt deferral", _napi, int),
    "irq-affinity": _of_files("interrupt affinity", _affinity, _numbers),
    PORTS_KIND: _of_files("reserved ports", _ports, _numbers, of_nic=False),
    "huge-pages": _of_files("huge pages", _pages, int, of_nic=False),
}
