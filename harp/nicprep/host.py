# SPDX-License-Identifier: Apache-2.0
"""What NIC preparation reads of the host: /sys and /proc, whose paths a test can change, and the
NICs, whose transport a test can replace.
"""

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harp.nicprep import ranges
from harp.nicprep.transport import Ethtool


def _ifindex(ifname: str) -> int | None:
    try:
        return socket.if_nametoindex(ifname)
    except OSError:
        return None


@dataclass(frozen=True)
class Host:
    """The sources. Any file or setting may be absent."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    ethtool: Ethtool = field(default_factory=Ethtool)
    ifindex: Callable[[str], int | None] = _ifindex
    # The processors that this process may use.
    processors: Callable[[], set[int]] = lambda: os.sched_getaffinity(0)

    def read(self, path: Path) -> str | None:
        """Return a small file's text, stripped; None if it can't be read."""
        try:
            return path.read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: Path) -> int | None:
        text = self.read(path)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def numbers(self, path: Path) -> set[int]:
        """Return the list in a file, such as "0-3,8"; empty if it can't be read."""
        try:
            return ranges.parse(self.read(path) or "")
        except ValueError:
            return set()

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in path.iterdir())
        except OSError:
            return []

    def device(self, ifname: str) -> Path | None:
        """Return the NIC's folder on the PCI bus; None if there is none (veth, bond).

        The driver reports the bus address. /sys/class/net shows the network namespace in which /sys
        was mounted, where the name may belong to another interface.
        """
        try:
            _, address = self.ethtool.driver(ifname)
        except OSError:
            return None
        if not address or "/" in address or address.startswith("."):
            return None
        folder = self.sys / "bus/pci/devices" / address
        return folder if folder.is_dir() else None

    def node(self, ifname: str) -> int | None:
        """Return the NUMA node of the NIC; None if it has none or there is only one."""
        device = self.device(ifname)
        node = self.number(device / "numa_node") if device else None
        return node if node is not None and node >= 0 else None

    def nodes(self) -> list[int]:
        """Return the NUMA nodes that have memory; [] on a machine without NUMA information."""
        return sorted(self.numbers(self.sys / "devices/system/node/has_memory"))


# ---- The interrupts of a NIC's queues, and the processors near them ----
# "eth0-TxRx-3", "virtio2-input.0", "mlx5_comp0@pci:0000:41:00.0", "ena-eth1-Tx-Rx-7": the queue is
# the number at the end. "mlx5_async0@pci:..." and "virtio2-config" serve no queue.
_QUEUE = re.compile(r"\D(\d+)(?:@.*)?$")
_NO_QUEUE = re.compile(
    r"async|cmd|command|config|ctrl|control|admin|misc|mgmnt|mgmt|event|aeq|eqe?-|mbx|mailbox|"
    r"pages|fault|other|link|ptp|fdir",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Interrupt:
    """One queue's interrupt."""

    number: int
    name: str
    queue: int


def interrupts(host: Host, ifname: str) -> list[Interrupt]:
    """Return the interrupts of the NIC's queues, ordered by queue."""
    device = host.device(ifname)
    if device is None:
        return []
    own = {int(name) for name in host.names(device / "msi_irqs") if name.isdecimal()}
    names = interrupt_names(host)
    others = [name for name in host.names(device / "net") if name != ifname]
    result = []
    for number in sorted(own & names.keys()):
        name = names[number]
        match = _QUEUE.search(name)
        # If several ports share a PCI function, the interrupt's name contains the interface's name.
        of_other = any(re.search(rf"\b{re.escape(other)}\b", name) for other in others)
        if match and not _NO_QUEUE.search(name) and not of_other:
            result.append(Interrupt(number, name, int(match[1])))
    return sorted(result, key=lambda interrupt: (interrupt.queue, interrupt.number))


def interrupt_names(host: Host) -> dict[int, str]:
    """Return the name of each interrupt, by its number (/proc/interrupts)."""
    result: dict[int, str] = {}
    for line in (host.read(host.proc / "interrupts") or "").splitlines():
        number, colon, rest = line.strip().partition(":")
        if colon and number.isdecimal() and rest.split():
            result[int(number)] = rest.split()[-1]
    return result


def local_processors(host: Host, ifname: str) -> set[int]:
    """Return the usable processors of the NIC's NUMA node; without a node all usable ones."""
    allowed, node = host.processors(), host.node(ifname)
    if node is None:
        return allowed
    near = host.numbers(host.sys / f"devices/system/node/node{node}/cpulist")
    return near & allowed if near else allowed


def cores_near(host: Host, ifname: str) -> list[int]:
    """Return local_processors(), best first for a queue's interrupt.

    The first thread of each core comes before the siblings. Processor 0, which the kernel uses
    most, comes last of its group.
    """
    near = local_processors(host, ifname)
    base = host.sys / "devices/system/cpu"

    def rank(cpu: int) -> tuple[int, bool, int]:
        siblings = host.numbers(base / f"cpu{cpu}/topology/thread_siblings_list") & near
        thread = sorted(siblings).index(cpu) if cpu in siblings else 0
        return thread, cpu == 0, cpu

    return sorted(near, key=rank)


def affinity_path(host: Host, number: int) -> Path:
    return host.proc / "irq" / str(number) / "smp_affinity_list"
