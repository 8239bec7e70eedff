# SPDX-License-Identifier: Apache-2.0
"""Changes of a lab's rails: less bandwidth, a cut, and recovery.

All of it happens in the switch: AF_XDP's packets bypass the qdisc of their own device. Rail r of
host h is its interface eth<r>; the cable ends at a port of the switch.
"""

from collections.abc import Callable
from typing import Any

from pyroute2 import NetlinkError

from harp.errors import HarpError
from harp.lab import Lab, Switch
from harp.lab.netns import in_namespace

_RATE_MAX = (1 << 32) - 1  # pyroute2's, in bytes per second: above what a veth pair carries


def _index(ipr: Any, ifname: str) -> int:
    found: list[int] = ipr.link_lookup(ifname=ifname)
    if not found:
        raise HarpError(f"{ifname}: no such interface")
    return found[0]


class Rails:
    def __init__(self, lab: Lab) -> None:
        if lab.switch is None:
            raise HarpError("rails need a switch in the middle: LabOptions(switch=True)")
        self._lab = lab
        self._switch: Switch = lab.switch

    def shape(self, rail: int, mbit_per_s: float, *, queue_ms: float = 20) -> None:
        """Limit what leaves the switch on the rail, towards each host, and the queue."""
        frame_bytes, per_ms = self._lab.options.mtu_bytes + 18, int(mbit_per_s * 1e6 / 8 / 1000)
        limits = {
            "rate": min(int(mbit_per_s * 1e6 / 8), _RATE_MAX),
            # A millisecond of credit, which the timer's granularity withholds, without long bursts.
            "burst": max(per_ms, 2 * frame_bytes),
            "limit": max(int(per_ms * queue_ms), 20 * frame_bytes),
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

    def silence(self, rail: int) -> None:
        """Drop every frame in the switch; no host can see why."""
        self._set(rail, "down")

    def restore(self, rail: int) -> None:
        self._set(rail, "up")

    def _set(self, rail: int, state: str) -> None:
        def work(ipr: Any) -> None:
            ipr.link("set", index=_index(ipr, self._switch.bridge(rail)), state=state)

        in_namespace(self._switch.netns, work)

    def watch(self, host: int, tell: Callable[[list[int]], bool]) -> None:
        """Call tell() with the bytes sent to the host so far, by rail, until it returns False."""

        def work(ipr: Any) -> None:
            links = [_index(ipr, ports[host]) for ports in self._switch.rails]
            more = True
            while more:
                found = [ipr.get_links(link)[0].get_attr("IFLA_STATS64") for link in links]
                more = tell([int(stats["tx_bytes"]) for stats in found])

        in_namespace(self._switch.netns, work)
