# SPDX-License-Identifier: Apache-2.0
"""A stream over several NICs: one fails and recovers, or all fail.

The receiver compares every byte in order. Rails are far slower than the processors, and the tests
compare bytes and the receiver's ticks, so results do not depend on the machine's load.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lanes_rig import (
    CUTS,
    MIB,
    TICK_MS,
    bytes_to,
    counters,
    options,
    railed,
    shaped,
    ticks_without_a_byte,
    wait_for_rails,
    warnings,
)

from harp.bench.streams import SINK, SOURCE, Stream
from harp.lab import Lab
from harp.lab.rails import Rails

PATHS = ("xdp", "kernel")
SECOND_TICKS = 1000 // TICK_MS


@pytest.fixture(scope="module", params=[False, True], ids=["IPv4", "IPv6"])
def lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with railed(2, ipv6=request.param) as lab:
        shaped(lab)
        yield lab


@pytest.mark.sample(
    "IPv6-receiver's NIC off-kernel",
    "IPv4-silent-xdp",
    "IPv6-unplugged receiver-xdp",
    "IPv4-unplugged sender-kernel",
    "IPv4-sender's NIC off-xdp",
    "IPv6-silent-kernel",
)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cut", CUTS)
def test_a_rail_that_dies_costs_no_byte(lab: Lab, cut: str, path: str) -> None:
    """When one of two rails dies, the stream continues on the other within a second, with a warning
    and a metric. The rail is used again when it recovers. Every byte arrives once."""
    rails = Rails(lab)
    off, on = CUTS[cut]
    with Stream(lab, options(path, HARP_RAILS="all")) as stream:
        wait_for_rails(stream, rails, [0, 1])
        since, known = len(stream.ranks[SINK].samples), len(warnings(stream, SOURCE))
        off(lab, 0)
        try:
            stream.flow(4 * MIB)
            assert ticks_without_a_byte(stream, since) < SECOND_TICKS
            stream.wait(lambda: len(warnings(stream, SOURCE)) > known, "a warning")
            assert "eth0" in warnings(stream, SOURCE)[known]
            assert counters(stream, SOURCE)["rails_down"] > 0
        finally:
            on(lab, 0)
        wait_for_rails(stream, rails, [0, 1])
        now = counters(stream, SOURCE)
        assert now["rails_up"] > 0
        assert now["lanes_replaced"] > 0
        stream.finish()


@pytest.mark.sample("IPv4-xdp", "IPv6-kernel")
@pytest.mark.parametrize("path", PATHS)
def test_a_backup_rail_carries_data_only_while_the_own_rail_is_down(lab: Lab, path: str) -> None:
    rails = Rails(lab)
    with Stream(lab, options(path, HARP_RAILS="backup")) as stream:
        wait_for_rails(stream, rails, [0])
        idle = bytes_to(rails, SINK)[1]
        stream.flow(4 * MIB)
        assert bytes_to(rails, SINK)[1] - idle < MIB // 4
        off, on = CUTS["unplugged sender"]
        off(lab, 0)
        try:
            wait_for_rails(stream, rails, [1])
        finally:
            on(lab, 0)
        wait_for_rails(stream, rails, [0])
        stream.finish()


@pytest.mark.sample("IPv6")
def test_when_both_rails_die_the_error_names_the_peer(lab: Lab) -> None:
    rails = Rails(lab)
    stream_options = options("auto", HARP_RAILS="all", HARP_USER_TIMEOUT_MS="1500")
    with Stream(lab, stream_options) as stream:
        wait_for_rails(stream, rails, [0, 1])
        for rail in (0, 1):
            rails.silence(rail)
        try:
            status = stream.ranks[SOURCE].process.wait(60)
        finally:
            for rail in (0, 1):
                rails.restore(rail)
        assert status == 4
        assert any(lab.hosts[SINK].address in line for line in warnings(stream, SOURCE))


@pytest.mark.sample("IPv6-silent", "IPv4-sender's NIC off")
@pytest.mark.parametrize("cut", ["silent", "sender's NIC off"])
def test_a_stream_survives_rails_that_fail_in_turn(lab: Lab, cut: str, tmp_path: Path) -> None:
    """Each rail recovers just before the other fails, six times. Each reopened lane has new
    encryption keys."""
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text("5a" * 32 + "\n")
    encrypted = {"HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": str(key)}
    rails = Rails(lab)
    with Stream(lab, options("auto", HARP_RAILS="all", **encrypted)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        for turn in range(6):
            off, on = CUTS[cut]
            off(lab, turn % 2)
            try:
                stream.flow(MIB)
            finally:
                on(lab, turn % 2)
            wait_for_rails(stream, rails, [turn % 2], MIB // 4)
        stream.finish()
        for rank in stream.ranks:
            assert "encrypted" in rank.log()
            assert "failed authentication" not in rank.log()
