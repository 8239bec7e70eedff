# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP and the kernel's with every option on and off, with and without packet loss.

A group is one lab (MTU and family), client, congestion control of the kernel, and loss rate. In a
group, each of the eight settings of SACK, timestamps (with window scaling) and ECN transfers bytes
in both directions, on one connection each. The receiver compares every byte.

`make test` runs a sample; `make test-long` runs all groups, ten gigabytes.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from netns_tools import Tools, finish

from harp.lab import Lab, LabOptions
from harp.lab.piped import Dropper

PORT = {"harp": 61000, "kernel": 7000}
SETTINGS = list(itertools.product((0, 1), repeat=3))  # SACK, timestamps, ECN
TESTS = ("send", "recv")
PAIRS = (("harp", "kernel"), ("kernel", "harp"))
CONTROLS = ("cubic", "bbr", "reno")
LABS = [(mtu, ipv6) for mtu in (1280, 1500, 3498, 9000) for ipv6 in (False, True)]
LOSSES = (0.0, 0.01)
TOTAL_BYTES = 10_000_000_000
CONNECTIONS = len(LABS) * len(PAIRS) * len(CONTROLS) * len(LOSSES) * len(SETTINGS) * len(TESTS)
LONG_BYTES = -(-TOTAL_BYTES // CONNECTIONS)
SHORT_BYTES = 500_000
SHORT_LABS = [(1280, True), (9000, False)]
HEADER_BYTES = {False: 40, True: 60}  # IP and TCP, without options
# harp_tcp_info.options
TIMESTAMPS, SACK, WINDOW_SCALE, ECN = 1, 2, 4, 8


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest, need_root: None) -> Iterator[tuple[Lab, Dropper]]:
    mtu, ipv6 = request.param
    options = LabOptions(mtu_bytes=mtu, ipv6=ipv6, switch=True, offload=False)
    with Lab(options) as lab, Dropper(lab) as dropper:
        yield lab, dropper


def label(value: Any) -> str | None:
    """Return a part of a case's name, such as "9000-ipv4-kernel-harp-cubic-0.01"."""
    match value:
        case (int(mtu), bool(ipv6)):
            return f"{mtu}-ipv{6 if ipv6 else 4}"
        case (str(client), str(server)):
            return f"{client}-{server}"
    return None


def group(
    tools: Tools,
    path: tuple[Lab, Dropper],
    pair: tuple[str, str],
    control: str,
    loss: float,
    count: int,
) -> None:
    """Run one server, and a client for each setting and direction."""
    lab, dropper = path
    here, there = lab.hosts
    client, server = pair
    cc = {"harp": (), "kernel": ("--cc", control)}
    ecn_options = {"harp": ("--ecn",), "kernel": ()}
    cases = list(itertools.product(SETTINGS, TESTS))
    more = (*cc[server], "--count", str(len(cases)), "--timeout", "60")
    dropper.lose_both_ways(loss, seed=count)
    process = tools.serve_tcp(there, server, PORT[server], *more)
    near = []
    for (sack, timestamps, ecn), test in cases:
        kernel = here if client == "kernel" else there
        kernel.sysctl("ipv4/tcp_sack", sack)
        kernel.sysctl("ipv4/tcp_timestamps", timestamps)
        kernel.sysctl("ipv4/tcp_window_scaling", timestamps)
        kernel.sysctl("ipv4/tcp_ecn", ecn)
        report = tools.call_tcp(
            *(here, client, test, there.address, PORT[server]),
            *(*cc[client], *ecn_options[client], "--bytes", str(count), "--timeout", "60"),
        )
        assert report["bytes"] == count
        near.append(report["conn"])
    out, err = finish(process)
    assert "connection" not in err
    far = [json.loads(line) for line in out.splitlines()]
    for ((sack, timestamps, ecn), test), *ends in zip(cases, near, far, strict=True):
        what = f"{test}, SACK {sack}, timestamps {timestamps}, ECN {ecn}"
        harp = next(end for end in ends if end["kind"] == "harp")
        check(harp, lab, (sack, timestamps, ecn), what)
        # RFC 3168 section 6.1.1.1: a retransmitted SYN does not request ECN.
        assert loss or bool(harp["options"] & ECN) == bool(ecn), what


def check(harp: dict[str, Any], lab: Lab, setting: tuple[int, int, int], what: str) -> None:
    """The connection uses the kernel's options, and HARP drops no segment for them."""
    sack, timestamps, ecn = setting
    options = harp["options"]
    assert bool(options & SACK) == bool(sack), what
    assert bool(options & TIMESTAMPS) == bool(timestamps), what
    assert bool(options & WINDOW_SCALE) == bool(timestamps), what
    assert bool(options & ECN) <= bool(ecn), what
    headers = HEADER_BYTES[lab.options.ipv6] + 12 * timestamps
    assert harp["snd_mss_bytes"] == lab.options.mtu_bytes - headers, what
    assert harp["stats"]["drop_tcp_checksum"] == 0, what
    assert harp["stats"]["drop_tcp_options"] == 0, what


@pytest.mark.sample(
    "0.01-harp-kernel-9000-ipv4",
    "0.0-harp-kernel-1280-ipv6",
    "0.01-kernel-harp-1280-ipv6",
    "0.0-kernel-harp-9000-ipv4",
)
@pytest.mark.parametrize("path", SHORT_LABS, indirect=True, ids=label)
@pytest.mark.parametrize("pair", PAIRS, ids=label)
@pytest.mark.parametrize("loss", LOSSES)
def test_some_option_combinations_interoperate(
    tools: Tools, path: tuple[Lab, Dropper], pair: tuple[str, str], loss: float
) -> None:
    group(tools, path, pair, "cubic", loss, SHORT_BYTES)


@pytest.mark.long
@pytest.mark.parametrize("path", LABS, indirect=True, ids=label)
@pytest.mark.parametrize("pair", PAIRS, ids=label)
@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("loss", LOSSES)
def test_all_option_combinations_interoperate(
    tools: Tools, path: tuple[Lab, Dropper], pair: tuple[str, str], control: str, loss: float
) -> None:
    group(tools, path, pair, control, loss, LONG_BYTES)
