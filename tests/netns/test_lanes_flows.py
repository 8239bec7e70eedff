# SPDX-License-Identifier: Apache-2.0
"""harpctl flows for lanes that carry a stream over two rails: bytes, shares, dead and moved."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lanes_rig import MIB, options, railed, shaped, wait_for_rails

from harp import stats
from harp.bench.streams import SINK, SOURCE, Stream
from harp.lab import Lab
from harp.lab.rails import Rails
from harp.stats.instance import look
from harp.stats.job import document

HEADER_BYTES = 40  # of a DATA record: docs/lanes.md
CHUNK_BYTES_MAX = MIB
MESSAGE_BYTES = 65536
OUTSTANDING = 32


@pytest.fixture(scope="module")
def lab(need_root: None) -> Iterator[Lab]:
    with railed(2) as lab:
        shaped(lab)
        yield lab


def job(stream: Stream, rank: int) -> Any:
    with stats.find() as regions:
        pid = stream.ranks[rank].process.pid
        (own,) = [job for job in look(regions).jobs if job.pid == pid]
    return document(own)


def busiest_comm(stream: Stream, rank: int) -> Any:
    """Return the comm that carries the stream. The comm of the other direction carries little."""
    return max(job(stream, rank)["comms"], key=lambda comm: comm["bytes"])


def wait_for_job(stream: Stream, rank: int, holds: Callable[[Any], bool], what: str) -> Any:
    """Return the rank's job when the condition holds; checked at each progress of the stream."""
    latest: list[Any] = []

    def is_reached() -> bool:
        latest[:] = [job(stream, rank)]
        return holds(latest[0])

    stream.wait(is_reached, what)
    return latest[0]


def check_bytes(comm: Any) -> None:
    """Each byte of messages and headers is counted on one lane, and shares add up to 1."""
    lanes = comm["lanes"]
    assert sum(lane["share"] for lane in lanes) == pytest.approx(1.0)
    payload = sum(lane["payload_bytes"] for lane in lanes)
    repeats = sum(lane["chunks_moved_here"] + lane["chunks_duplicate"] for lane in lanes)
    repeat_bytes = repeats * CHUNK_BYTES_MAX
    pending_bytes = (OUTSTANDING + 1) * MESSAGE_BYTES
    assert comm["bytes"] <= payload <= comm["bytes"] + pending_bytes + repeat_bytes
    for lane in lanes:
        if comm["side"] == "send":
            total = lane["payload_bytes"] + HEADER_BYTES * lane["chunks_sent"]
            unsent_max = lane["lanes"] * (CHUNK_BYTES_MAX + HEADER_BYTES)  # a record per lane
            assert total - unsent_max <= lane["sent_bytes"] <= total
        else:
            assert lane["received_bytes"] >= lane["payload_bytes"]


@pytest.mark.parametrize(
    ("path", "kinds"), [("kernel", {"kernel"}), ("xdp", {"harp"}), ("auto", {"harp", "kernel"})]
)
def test_lanes_are_shown_while_they_carry(lab: Lab, path: str, kinds: set[str]) -> None:
    rails = Rails(lab)
    few = {"HARP_LANES": "1", "HARP_KERNEL_LANES": "1"}
    with Stream(lab, options(path, HARP_RAILS="all", **few)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        sender, receiver = busiest_comm(stream, SOURCE), busiest_comm(stream, SINK)
        check_bytes(sender)
        check_bytes(receiver)
        assert (sender["side"], receiver["side"]) == ("send", "receive")
        if path != "auto":  # with auto, the first lane may be of either kind
            reason = "setting" if path == "kernel" else ""
            assert sender["fallback"] == receiver["fallback"] == reason
        assert sender["comm_id"] == receiver["comm_id"] != 0
        assert {lane["kind"] for lane in sender["lanes"]} == kinds
        assert {lane["ifname"] for lane in sender["lanes"]} == {"eth0", "eth1"}
        shares = dict.fromkeys(("eth0", "eth1"), 0.0)
        for lane in sender["lanes"]:
            shares[lane["ifname"]] += lane["share"]
        assert min(shares.values()) > 0.1  # both rails carry
        assert all(lane["state"] == "open" for lane in sender["lanes"])
        assert any(lane["srtt_ns"] > 0 for lane in sender["lanes"])
        # Both sides report the same lanes.
        mirrored = {
            (lane["remote"], lane["remote_port"], lane["local"], lane["local_port"])
            for lane in receiver["lanes"]
        }
        assert {
            (lane["local"], lane["local_port"], lane["remote"], lane["remote_port"])
            for lane in sender["lanes"]
        } == mirrored
        stream.finish()


@pytest.mark.parametrize("path", ["kernel", "xdp"])
def test_a_lost_lane_is_shown_as_dead_and_its_chunks_as_moved(lab: Lab, path: str) -> None:
    rails = Rails(lab)
    few = {"HARP_LANES": "1", "HARP_KERNEL_LANES": "1"}
    with Stream(lab, options(path, HARP_RAILS="all", **few)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        rails.silence(1)
        try:
            lost = wait_for_job(
                stream, SOURCE, lambda state: state["counters"]["rails_down"] > 0, "eth1 is down"
            )
            comm = max(lost["comms"], key=lambda comm: comm["bytes"])
            (dead,) = [lane for lane in comm["lanes"] if lane["state"] == "dead"]
            assert (dead["ifname"], dead["end"]) == ("eth1", "timeout")
            assert (dead["in_flight_bytes"], dead["unsent_bytes"]) == (0, 0)
            assert lost["counters"]["lanes_died_timeout"] >= 1
            assert [rail["down"] for rail in lost["rails"] if rail["ifname"] == "eth1"] == [True]
            # Its chunks in flight move to the other lane. Shares add up without the dead lane.
            moved = wait_for_job(
                stream,
                SOURCE,
                lambda state: (
                    sum(rail["chunks_moved_here"] for rail in state["rails"])
                    >= dead["chunks_moved_away"]
                    > 0
                ),
                "chunks have moved",
            )
            comm = max(moved["comms"], key=lambda comm: comm["bytes"])
            check_bytes(comm)
            done = subprocess.run(
                [sys.executable, "-c", "from harp.cli import main; main()", "flows", "--pid",
                 str(stream.ranks[SOURCE].process.pid)],
                capture_output=True, text=True, check=True, timeout=60,
            )  # fmt: skip
            assert "dead: timeout" in done.stdout
            assert "no lane over eth1 works" in done.stdout
        finally:
            rails.restore(1)
        recovered = wait_for_job(
            stream, SOURCE, lambda state: state["counters"]["rails_up"] > 0, "eth1 is up again"
        )
        comm = max(recovered["comms"], key=lambda comm: comm["bytes"])
        (replacement,) = [lane for lane in comm["lanes"] if lane["ifname"] == "eth1"]
        assert (replacement["state"], replacement["lanes"] > 1) == ("open", True)
        assert recovered["counters"]["lanes_replaced"] >= 1
        check_bytes(comm)
        json.dumps(recovered)
        stream.finish()
