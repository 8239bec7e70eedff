# SPDX-License-Identifier: Apache-2.0
"""Finds the interrupts of a NIC's queues, and the processors near them."""

import re
from dataclasses import dataclass
from pathlib import Path

from harp.nicprep.host import Host

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
    """Return the interrupts of the NIC's queues, by queue; empty if it has none of its own."""
    device = host.device(ifname)
    if device is None:
        return []
    own = {int(name) for name in host.names(device / "msi_irqs") if name.isdecimal()}
    names = interrupt_names(host)
    others = [name for name in host.names(device / "net") if name != ifname]
    found = []
    for number in sorted(own & names.keys()):
        name = names[number]
        match = _QUEUE.search(name)
        # Ports that share one PCI function name their interface; a sibling's are not ours.
        alien = any(re.search(rf"\b{re.escape(other)}\b", name) for other in others)
        if match and not _NO_QUEUE.search(name) and not alien:
            found.append(Interrupt(number, name, int(match[1])))
    return sorted(found, key=lambda interrupt: (interrupt.queue, interrupt.number))


def interrupt_names(host: Host) -> dict[int, str]:
    """Return interrupt number -> its name by the driver (/proc/interrupts)."""
    result: dict[int, str] = {}
    for line in (host.read(host.proc / "interrupts") or "").splitlines():
        number, colon, rest = line.strip().partition(":")
        if colon and number.isdecimal() and rest.split():
            result[int(number)] = rest.split()[-1]
    return result


def local_processors(host: Host, ifname: str) -> set[int]:
    """Return the processors of the NIC's NUMA node that we may use; all if no node is known."""
    allowed, node = host.processors(), host.node(ifname)
    if node is None:
        return allowed
    near = host.numbers(host.sys / f"devices/system/node/node{node}/cpulist")
    return near & allowed if near else allowed


def cores_near(host: Host, ifname: str) -> list[int]:
    """Return local_processors(), best first for a queue's interrupt.

    Of each core one thread comes before its siblings. Processor 0, where the kernel does its
    housekeeping, comes after its equals.
    """
    near = local_processors(host, ifname)
    base = host.sys / "devices/system/cpu"

    def rank(cpu: int) -> tuple[int, bool, int]:
        siblings = host.numbers(base / f"cpu{cpu}/topology/thread_siblings_list") & near
        thread = sorted(siblings).index(cpu) if cpu in siblings else 0
        return thread, cpu == 0, cpu

    return sorted(near, key=rank)


def affinity_path(host: Host, number: int) -> Path:
    """Return the file with the processors of an interrupt."""
    return host.proc / "irq" / str(number) / "smp_affinity_list"
