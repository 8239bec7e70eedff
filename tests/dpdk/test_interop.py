# SPDX-License-Identifier: Apache-2.0
"""The interop cases of tests/netns with HARP on a DPDK port: net_af_packet on a host's veth.

They share the rigs and the path that loses packets. The difference: the host's kernel has no
address here, so HARP alone answers for it.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from dpdk_tools import ENVIRONMENT, Ends
from netns_tools import Tools
from test_interop_cases import (
    lab,
    test_a_client_that_sent_fin_still_receives,
    test_bytes_arrive_through_a_tiny_receive_buffer,
    test_bytes_arrive_without_window_scaling,
    test_the_kernel_closes_early,
    test_the_kernel_reads_late,
    test_the_kernel_resets_what_it_receives,
)
from test_interop_matrix import LONG_BYTES, PAIRS, every_case, group, label, path

from harp.bench.badpath import Dropper
from harp.lab import Host, Lab


def long(test: Callable[..., None]) -> Callable[..., None]:
    """The same, in `make test-long`."""

    @pytest.mark.long
    @functools.wraps(test)
    def again(**fixtures: Any) -> None:
        test(**fixtures)

    return again


# The cases of test_interop_cases are collected here a second time, with the tools below.
__all__ = [
    "lab",
    "path",
    "test_a_client_that_sent_fin_still_receives",
    "test_the_kernel_closes_early",
    "test_the_kernel_reads_late",
    "test_the_kernel_resets_what_it_receives",
]
test_bytes_arrive_through_a_tiny_receive_buffer = long(
    test_bytes_arrive_through_a_tiny_receive_buffer
)
test_bytes_arrive_without_window_scaling = long(test_bytes_arrive_without_window_scaling)
SHORT_BYTES = 200_000
LABS = [(mtu, ipv6) for mtu in (1280, 1500, 9000) for ipv6 in (False, True)]


@dataclasses.dataclass
class PortTools(Tools):
    """HARP's ends are on net_af_packet."""

    def side(self, host: Host, kind: str) -> list[str]:
        """One owner of the host's address: HARP, or the kernel, which gets it back."""
        length = 64 if ":" in host.address else 24
        address = f"{host.address}/{length}"
        if kind == "kernel":
            words = ["nodad"] if ":" in host.address else []
            host.run("ip", "address", "replace", address, "dev", host.ifname, *words)
            return ["--kernel"]
        host.run("ip", "address", "flush", "dev", host.ifname)
        (link,) = json.loads(host.run("ip", "-j", "link", "show", "dev", host.ifname))
        spec = f"net_af_packet0,iface={host.ifname};ip={address};mtu={link['mtu']}"
        return ["--ifname", f"dpdk:{spec}", "--lib-dir", str(self.build / "dataplane" / "dpdk")]


@pytest.fixture
def tools(ends: Ends, need_root: None, monkeypatch: pytest.MonkeyPatch) -> PortTools:
    """In place of tests/netns's; what a failed test left running ends with `ends`."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return PortTools(ends.build, ends.started)


# A client of HARP's starts DPDK for each of the sixteen connections of a group.
SELECTION = [
    ((1500, False), PAIRS[0], 0.01),
    ((1500, False), PAIRS[1], 0.0),
    ((1280, True), PAIRS[1], 0.01),
    ((9000, False), PAIRS[1], 0.01),
]


@pytest.mark.parametrize(("path", "pair", "loss"), SELECTION, indirect=["path"], ids=label)
def test_some_interop_cases_pass(
    tools: PortTools, path: tuple[Lab, Dropper], pair: tuple[str, str], loss: float
) -> None:
    """SACK, timestamps and ECN on and off, both directions, the kernel's CUBIC."""
    group(tools, path, pair, "cubic", loss, SHORT_BYTES)


@every_case(LABS)
def test_all_interop_cases_pass(
    tools: PortTools, path: tuple[Lab, Dropper], pair: tuple[str, str], control: str, loss: float
) -> None:
    group(tools, path, pair, control, loss, LONG_BYTES)
