# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP and the kernel's interoperate: both directions, MTUs, offloads, both families.

The receiver compares every byte with the expected byte at its position in the stream.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from netns_tools import Tools, all_came, finish

from harp.lab import Lab, LabOptions

BYTES = 8 << 20
PORT = {"harp": 61000, "kernel": 7000}


WIRED = [
    LabOptions(mtu_bytes=mtu, offload=offload, ipv6=ipv6)
    for mtu, offload, ipv6 in (
        (1500, True, False),
        (3498, False, False),
        (9000, True, False),
        (1280, True, True),
        (1500, False, True),
        (9000, False, True),
    )
]


@pytest.fixture(scope="module", params=WIRED, ids=lambda options: options.words)
def wired(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with Lab(request.param) as lab:
        yield lab


def segment_bytes(options: LabOptions) -> int:
    """Payload of a full segment with timestamps."""
    return options.mtu_bytes - (40 if options.ipv6 else 20) - 20 - 12


def transfer(tools: Tools, lab: Lab, client: str, server: str, test: str, *more: str) -> Any:
    """One connection; the reports of both ends by kind of end."""
    here, there = lab.hosts
    port = PORT[server]
    serving = tools.serve_tcp(there, server, port)
    report = tools.call_tcp(here, client, test, there.address, port, *more)
    out, err = finish(serving)
    assert "connection" not in err
    return report, report["conn"], json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("test", ["send", "recv"])
@pytest.mark.parametrize(("client", "server"), [("harp", "kernel"), ("kernel", "harp")])
def test_bytes_arrive(tools: Tools, wired: Lab, client: str, server: str, test: str) -> None:
    options = wired.options
    report, near, far = transfer(tools, wired, client, server, test, "--bytes", str(BYTES))
    assert report["bytes"] == BYTES
    harp = near if client == "harp" else far
    stats = harp["stats"]
    assert harp["snd_mss_bytes"] == segment_bytes(options), "timestamps are in use"
    assert stats["drop_tcp_checksum"] == 0
    assert stats["drop_gso_oversize"] == 0
    assert stats["drop_tcp_echo"] == 0, "an honest kernel echoes what it may"
    # A kernel that leaves checksums to its card leaves them undone on veth: counted apart.
    if options.offload:
        assert stats["csum_partial_accepted"] > 0
    else:  # one in 65536 looks unfinished by chance
        assert stats["csum_partial_accepted"] <= 3
    assert all_came(harp["steering"], harp["nic"])
    assert harp["steering"]["absent"] == 0


@pytest.mark.parametrize("more", [(), ("--frames",)], ids=["plain", "frames"])
@pytest.mark.parametrize("test", ["send", "recv"])
def test_bytes_arrive_from_harp_to_harp(
    tools: Tools, lab_of_mtu: Lab, test: str, more: tuple[str, ...]
) -> None:
    report, near, far = transfer(
        tools, lab_of_mtu, "harp", "harp", test, "--bytes", str(BYTES), *more
    )
    assert report["bytes"] == BYTES
    for end in (near, far):
        assert end["stats"]["drop_tcp_checksum"] == 0
        # HARP finishes its checksums; one in 65536 looks unfinished by chance.
        assert end["stats"]["csum_partial_accepted"] <= 3
    if more and test == "send":
        assert near["stats"]["tx_copied_bytes"] == 0
