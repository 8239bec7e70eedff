# SPDX-License-Identifier: Apache-2.0
"""Changes of a lab's rails: less bandwidth, a cut, and recovery.

All of it happens in the switch, except down() and up(): AF_XDP's packets bypass the qdisc of their
own device. Rail r of host h is its interface eth<r>; the cable ends at a port of the switch. Each
call returns when the kernel has made the change.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from harp.errors import HarpError
from harp.lab import Lab, Switch, require_programs
from harp.lab.netns import in_namespace, wait_for_carrier

_CLASS = re.compile(r"class htb 1:(\d+) .*\n Sent (\d+) bytes")
CLASSES_MAX = 8  # a power of two
_PATH_SHIFT = 1  # bit 0 is the same for all ports that Linux chooses for connect()


class Rails:
    """The rails of a lab with a switch."""

    def __init__(self, lab: Lab) -> None:
        if lab.switch is None:
            raise HarpError("rails need a switch in the middle: LabOptions(switch=True)")
        require_programs("tc")
        self._lab = lab
        self._switch: Switch = lab.switch

    # ---- bandwidth -------------------------------------------------------------------------------

    def shape(self, rail: int, mbit_per_s: float, *, queue_ms: float = 20) -> None:
        """Limit what leaves the switch on the rail, towards each host, and the length of the
        queue.
        """
        queue_bytes = self._queue_bytes(rail, mbit_per_s, queue_ms)
        for port in self._switch.rails[rail]:
            self._tc(
                *("qdisc", "replace", "dev", port, "root", "tbf", "rate", _rate(mbit_per_s)),
                *("burst", str(self._burst_bytes(rail, mbit_per_s)), "limit", str(queue_bytes)),
            )

    def shape_paths(self, rail: int, mbit_per_s: Sequence[float], *, queue_ms: float = 20) -> None:
        """Make paths of the rail, towards each host, each with its own rate and queue.

        Like the hash of a fabric with several spines, half of the source port modulo the number of
        paths, a power of two, selects the path of a TCP connection. Another call changes the rates
        during traffic.
        """
        count = len(mbit_per_s)
        if not 1 < count <= CLASSES_MAX or count & (count - 1):
            raise HarpError(f"paths: {count} is not 2, 4 or {CLASSES_MAX}")
        for port in self._switch.rails[rail]:
            # Replacing an htb root is refused; the present one stays.
            if not self._has_paths(port):
                self._tc(
                    "qdisc", "replace", "dev", port, "root", "handle", "1:", "htb", "default", "1"
                )
            for path, rate in enumerate(mbit_per_s):
                self._shape_path(rail, port, path, rate, queue_ms, count)

    def _has_paths(self, port: str) -> bool:
        return "htb 1:" in self._switch.run("tc", "qdisc", "show", "dev", port)

    def _shape_path(
        self, rail: int, port: str, path: int, mbit: float, queue_ms: float, count: int
    ) -> None:
        minor = path + 1
        burst = str(self._burst_bytes(rail, mbit))
        self._tc(
            *("class", "replace", "dev", port, "parent", "1:", "classid", f"1:{minor}", "htb"),
            *("rate", _rate(mbit), "burst", burst, "cburst", burst, "quantum", "3000"),
        )
        limit = str(self._queue_bytes(rail, mbit, queue_ms))
        leaf = ("parent", f"1:{minor}", "handle", f"{minor}0:", "bfifo", "limit", limit)
        self._tc("qdisc", "replace", "dev", port, *leaf)
        value, mask = str(path << _PATH_SHIFT), hex((count - 1) << _PATH_SHIFT)
        for table, (protocol, match) in enumerate((("ip", "ip"), ("ipv6", "ip6"))):
            self._tc(
                *("filter", "replace", "dev", port, "parent", "1:", "protocol", protocol),
                *("prio", str(table + 1), "handle", f"80{table}::{minor}", "u32"),
                *("match", match, "sport", value, mask, "flowid", f"1:{minor}"),
            )

    def _burst_bytes(self, rail: int, mbit_per_s: float) -> int:
        """Return the burst: a millisecond of credit, which the timer's granularity withholds,
        without long bursts.
        """
        frame = self._lab.options.every_rail[rail].mtu_bytes + 18
        return max(int(mbit_per_s * 1e6 / 8 / 1000), 2 * frame)

    def _queue_bytes(self, rail: int, mbit_per_s: float, queue_ms: float) -> int:
        frame = self._lab.options.every_rail[rail].mtu_bytes + 18
        return max(int(mbit_per_s * 1e6 / 8 * queue_ms / 1000), 20 * frame)

    def _tc(self, *words: str) -> None:
        self._switch.run("tc", *words)

    # ---- cuts ------------------------------------------------------------------------------------

    def unplug(self, host: int, rail: int) -> None:
        """The host's NIC loses its carrier."""
        self._set(self._switch.netns, self._switch.rails[rail][host], "down")
        self._wait(host, rail, up=False)

    def plug(self, host: int, rail: int) -> None:
        """The host's NIC has a carrier again."""
        self._set(self._switch.netns, self._switch.rails[rail][host], "up")
        self._wait(host, rail)

    def down(self, host: int, rail: int) -> None:
        """Switch the host's NIC off, on the host."""
        place = self._lab.hosts[host]
        self._set(place.netns, place.nics[rail].ifname, "down")
        self._wait(host, rail, up=False)

    def up(self, host: int, rail: int) -> None:
        """Switch it on again."""
        place = self._lab.hosts[host]
        self._set(place.netns, place.nics[rail].ifname, "up")
        self._wait(host, rail)

    def silence(self, rail: int) -> None:
        """Drop every frame in the switch; no host can see why."""
        self._set(self._switch.netns, self._switch.bridge(rail), "down")

    def restore(self, rail: int) -> None:
        """Forward again."""
        self._set(self._switch.netns, self._switch.bridge(rail), "up")

    @staticmethod
    def _set(netns: str, ifname: str, state: str) -> None:
        def work(ipr: Any) -> None:
            ipr.link("set", index=ipr.link_lookup(ifname=ifname)[0], state=state)

        in_namespace(netns, work)

    def _wait(self, host: int, rail: int, *, up: bool = True) -> None:
        """Wait for both ends of the cable: the switch sees its carrier after the host."""
        place = self._lab.hosts[host]
        ends = (
            (place.netns, place.nics[rail].ifname),
            (self._switch.netns, self._switch.rails[rail][host]),
        )
        for netns, ifname in ends:
            in_namespace(netns, partial(wait_for_carrier, ifname=ifname, up=up))

    # ---- what came through -----------------------------------------------------------------------

    def bytes_to(self, host: int) -> list[int]:
        """Return the bytes of frames that left the switch towards the host so far, on each rail."""
        found: list[int] = []

        def once(counts: list[int]) -> bool:
            found.extend(counts)
            return False

        self.watch(host, once)
        return found

    def watch(self, host: int, tell: Callable[[list[int]], bool]) -> None:
        """Call tell() with bytes_to() repeatedly, until it returns False."""

        def work(ipr: Any) -> None:
            links = [ipr.link_lookup(ifname=ports[host])[0] for ports in self._switch.rails]
            more = True
            while more:
                found = [ipr.get_links(link)[0].get_attr("IFLA_STATS64") for link in links]
                more = tell([int(stats["tx_bytes"]) for stats in found])

        in_namespace(self._switch.netns, work)

    def path_bytes(self, rail: int, host: int) -> list[int]:
        """The same for each path of a rail with paths."""
        port = self._switch.rails[rail][host]
        shown = self._switch.run("tc", "-s", "class", "show", "dev", port)
        found = {int(path): int(count) for path, count in _CLASS.findall(shown)}
        return [found[path] for path in sorted(found)]


def _rate(mbit_per_s: float) -> str:
    return f"{round(mbit_per_s * 1000)}kbit"
