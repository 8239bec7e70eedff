# SPDX-License-Identifier: Apache-2.0
"""Streams on several lanes and rails with an unprivileged, a stopped and a restarted peer."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
from crash_rig import NOBODY  # no capability and little locked memory: no AF_XDP
from lanes_rig import (
    LANE_TIMEOUT_MS,
    MIB,
    TICK_MS,
    options,
    railed,
    shaped,
    wait_for_rails,
    wait_for_ticks,
)

from harp.bench.streams import SINK, SOURCE, Stream, StreamOptions
from harp.lab import Lab
from harp.lab.rails import Rails

FEW = {"HARP_LANES": "2", "HARP_KERNEL_LANES": "2"}


@pytest.fixture(scope="module", params=[False, True], ids=["IPv4", "IPv6"])
def lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with railed(2, ipv6=request.param) as lab:
        shaped(lab)
        yield lab


def with_prefix(stream_options: StreamOptions, poor: int) -> StreamOptions:
    prefix = tuple(NOBODY if rank == poor else () for rank in range(2))
    return replace(stream_options, prefix=(prefix[0], prefix[1]))


@pytest.mark.sample(
    "IPv4-auto-poor receiver",
    "IPv6-auto-poor sender",
    "IPv4-xdp-poor sender",
    "IPv6-xdp-poor receiver",
)
@pytest.mark.parametrize("poor", [SINK, SOURCE], ids=["poor receiver", "poor sender"])
@pytest.mark.parametrize("rich", ["auto", "xdp"])
def test_an_unprivileged_host_reaches_a_privileged_one(lab: Lab, poor: int, rich: str) -> None:
    """Each lane on both rails ends at kernel TCP on one host and at HARP's stack on the other."""
    rails = Rails(lab)
    paths = ("auto", rich) if poor == SINK else (rich, "auto")
    stream_options = options(*paths, HARP_RAILS="all", **FEW)
    with Stream(lab, with_prefix(stream_options, poor)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        rails.silence(1)
        try:
            stream.flow(MIB)
        finally:
            rails.restore(1)
        wait_for_rails(stream, rails, [0, 1])
        stream.finish()
        logs = [rank.log() for rank in stream.ranks]
    assert "path HARP: AF_XDP" in logs[1 - poor]
    assert "path kernel TCP" in logs[poor]
    assert "path HARP" not in logs[poor]


@pytest.mark.sample("IPv4-sender-xdp", "IPv6-receiver-kernel", "IPv6-receiver-auto")
@pytest.mark.parametrize("path", ["xdp", "kernel", "auto"])
@pytest.mark.parametrize("stopped", [SINK, SOURCE], ids=["receiver", "sender"])
def test_a_stream_survives_a_stopped_process(lab: Lab, path: str, stopped: int) -> None:
    """SIGSTOP for four lane timeouts, then SIGCONT: no error, no byte lost."""
    rails = Rails(lab)
    with Stream(lab, options(path, HARP_RAILS="all", **FEW)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        process = stream.ranks[stopped].process
        process.send_signal(signal.SIGSTOP)
        try:
            wait_for_ticks(stream, 1 - stopped, 4 * LANE_TIMEOUT_MS // TICK_MS)
        finally:
            process.send_signal(signal.SIGCONT)
        stream.flow(2 * MIB)
        wait_for_rails(stream, rails, [0, 1])
        stream.finish()


@pytest.mark.sample("IPv4-xdp", "IPv6-auto")
@pytest.mark.parametrize("path", ["xdp", "auto"])
def test_both_sides_restart_simultaneously(lab: Lab, path: str) -> None:
    """Both ranks are killed under traffic and restarted, five times. Queues, ports and rails are
    available again, and no old packet reaches a new connection."""
    rails = Rails(lab)
    for _ in range(5):
        with Stream(lab, options(path, HARP_RAILS="all", **FEW)) as stream:
            wait_for_rails(stream, rails, [0, 1], MIB // 4)
            for rank in stream.ranks:
                os.kill(rank.process.pid, signal.SIGKILL)
    with Stream(lab, options(path, HARP_RAILS="all", **FEW)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        stream.finish()
