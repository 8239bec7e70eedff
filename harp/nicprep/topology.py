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


def processors(host: Host, ifname: str) -> list[int]:
    """Return the processors that we may use, best first for this NIC.

    Those of its NUMA node first, then the others by distance; of each core one thread before its
    siblings; processor 0, where the kernel does its housekeeping, after its equals.
    """
    allowed = host.processors()
    distance = _distances(host, ifname)
    base = host.sys / "devices/system/cpu"

    def rank(cpu: int) -> tuple[int, int, bool, int]:
        siblings = host.numbers(base / f"cpu{cpu}/topology/thread_siblings_list") & allowed
        thread = sorted(siblings).index(cpu) if cpu in siblings else 0
        return distance.get(cpu, 0), thread, cpu == 0, cpu

    return sorted(allowed, key=rank)


def local_processors(host: Host, ifname: str) -> set[int]:
    """Return those of the NIC's NUMA node; all if there is no known node."""
    allowed, node = host.processors(), host.node(ifname)
    if node is None:
        return allowed
    near = host.numbers(host.sys / f"devices/system/node/node{node}/cpulist")
    return near & allowed if near else allowed


def cores_of_queues(host: Host, ifname: str, queues: int) -> list[int]:
    """Return a processor for the thread of each queue: near the NIC, and different while they
    last.
    """
    order = processors(host, ifname)
    return [order[queue % len(order)] for queue in range(queues)] if order else []


def _distances(host: Host, ifname: str) -> dict[int, int]:
    """Return processor -> distance of its node to the NIC's; empty if unknown."""
    node = host.node(ifname)
    base = host.sys / "devices/system/node"
    if node is None:
        return {}
    words = (host.read(base / f"node{node}/distance") or "").split()
    online = sorted(host.numbers(base / "online"))
    result: dict[int, int] = {}
    for other in online:
        at = online.index(other)
        far = int(words[at]) if at < len(words) and words[at].isdecimal() else 255
        for cpu in host.numbers(base / f"node{other}/cpulist"):
            result[cpu] = far
    return result


def affinity_path(host: Host, number: int) -> Path:
    """Return the file with the processors of an interrupt."""
    return host.proc / "irq" / str(number) / "smp_affinity_list"
