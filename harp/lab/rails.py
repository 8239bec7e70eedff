# SPDX-License-Identifier: Apache-2.0
"""Limits, cuts and restores the rails of a lab.

The switch does this, because AF_XDP's packets bypass the qdisc of their own device. Rail r of a
host is its interface eth<r>, which is connected to a port of the switch.
"""

from collections.abc import Callable
from typing import Any

from pyroute2 import NetlinkError

from harp.errors import HarpError
from harp.lab import Lab, Switch
from harp.lab.netns import in_namespace

_RATE_MAX = (1 << 32) - 1  # bytes per second; pyroute2's limit, which a veth pair does not reach


def _index(ipr: Any, ifname: str) -> int:
    indexes: list[int] = ipr.link_lookup(ifname=ifname)
    if not indexes:
        raise HarpError(f"{ifname}: no such interface")
    return indexes[0]


class Rails:
    def __init__(self, lab: Lab) -> None:
        if lab.switch is None:
            raise HarpError("rails need a switch: LabOptions(switch=True)")
        self._lab = lab
        self._switch: Switch = lab.switch

    def shape(self, rail: int, mbit_per_s: float, *, queue_ms: float = 20) -> None:
        """Limit the bandwidth and the queue from the switch to each host on the rail."""
        frame_bytes, per_ms = self._lab.options.mtu_bytes + 18, int(mbit_per_s * 1e6 / 8 / 1000)
        limits = {
            "rate": min(int(mbit_per_s * 1e6 / 8), _RATE_MAX),
            # One millisecond, for the timer's granularity, and no longer bursts.
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
        """Drop every frame in the switch; the hosts' links stay up."""
        self._set(rail, "down")

    def restore(self, rail: int) -> None:
        self._set(rail, "up")

    def _set(self, rail: int, state: str) -> None:
        def work(ipr: Any) -> None:
            ipr.link("set", index=_index(ipr, self._switch.bridge(rail)), state=state)

        in_namespace(self._switch.netns, work)

    def watch(self, host: int, handle: Callable[[list[int]], bool]) -> None:
        """Call handle() with the bytes sent to the host so far, by rail, until it returns False."""

        def work(ipr: Any) -> None:
            links = [_index(ipr, ports[host]) for ports in self._switch.rails]
            while True:
                stats = [ipr.get_links(link)[0].get_attr("IFLA_STATS64") for link in links]
                if not handle([int(each["tx_bytes"]) for each in stats]):
                    return

        in_namespace(self._switch.netns, work)
