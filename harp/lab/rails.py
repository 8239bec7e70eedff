# SPDX-License-Identifier: Apache-2.0
"""Changes of a lab's rails: less bandwidth, a cut, and recovery.

All of it happens in the switch, except down() and up(): AF_XDP's packets bypass the qdisc of their
own device. Rail r of host h is its interface eth<r>; the cable ends at a port of the switch. Each
call returns when the kernel has made the change.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pyroute2 import NetlinkError

from harp.errors import HarpError
from harp.lab import Lab, Switch
from harp.lab.netns import in_namespace, wait_for_carrier

_RATE_MAX = (1 << 32) - 1  # pyroute2's, in bytes per second: above what a veth pair carries


def _index(ipr: Any, ifname: str) -> int:
    found: list[int] = ipr.link_lookup(ifname=ifname)
    if not found:
        raise HarpError(f"{ifname}: no such interface")
    return found[0]


class Rails:
    """The rails of a lab with a switch."""

    def __init__(self, lab: Lab) -> None:
        if lab.switch is None:
            raise HarpError("rails need a switch in the middle: LabOptions(switch=True)")
        self._lab = lab
        self._switch: Switch = lab.switch

    # ---- bandwidth -------------------------------------------------------------------------------

    def shape(self, rail: int, mbit_per_s: float, *, queue_ms: float = 20) -> None:
        """Limit what leaves the switch on the rail, towards each host, and the length of the
        queue.
        """
        limits = {
            "rate": min(int(mbit_per_s * 1e6 / 8), _RATE_MAX),
            "burst": self.burst_bytes(rail, mbit_per_s),
            "limit": self.queue_bytes(rail, mbit_per_s, queue_ms),
        }

        def work(ipr: Any) -> None:
            for port in self._switch.rails[rail]:
                try:
                    ipr.tc("replace", "tbf", _index(ipr, port), **limits)
                except NetlinkError as error:
                    raise HarpError(
                        f"{port}: the kernel refused the limit: {error.args[1]}; modprobe sch_tbf"
                    ) from error

        in_namespace(self._switch.netns, work)

    def burst_bytes(self, rail: int, mbit_per_s: float) -> int:
        """Return the burst: a millisecond of credit, which the timer's granularity withholds,
        without long bursts.
        """
        frame = self._lab.options.every_rail[rail].mtu_bytes + 18
        return max(int(mbit_per_s * 1e6 / 8 / 1000), 2 * frame)

    def queue_bytes(self, rail: int, mbit_per_s: float, queue_ms: float) -> int:
        """Return the length of a queue of that many milliseconds."""
        frame = self._lab.options.every_rail[rail].mtu_bytes + 18
        return max(int(mbit_per_s * 1e6 / 8 * queue_ms / 1000), 20 * frame)

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
            ipr.link("set", index=_index(ipr, ifname), state=state)

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
            links = [_index(ipr, ports[host]) for ports in self._switch.rails]
            more = True
            while more:
                found = [ipr.get_links(link)[0].get_attr("IFLA_STATS64") for link in links]
                more = tell([int(stats["tx_bytes"]) for stats in found])

        in_namespace(self._switch.netns, work)
