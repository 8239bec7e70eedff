# SPDX-License-Identifier: Apache-2.0
"""harpctl's view of lanes that carry a stream over two rails: bytes, shares, deaths, moves."""

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
    with railed(2) as made:
        shaped(made)
        yield made


def job(stream: Stream, rank: int) -> Any:
    """The rank's job, as a document."""
    with stats.find() as found:
        (mine,) = [each for each in look(found).jobs if each.pid == stream.ranks[rank].process.pid]
    return document(mine)


def streaming(stream: Stream, rank: int) -> Any:
    """The comm that carries the stream: the other one, of the way back, has nothing to say."""
    return max(job(stream, rank)["comms"], key=lambda comm: comm["bytes"])


def when(stream: Stream, rank: int, holds: Callable[[Any], bool], what: str) -> Any:
    """The rank's job once that is so of it; looked at whenever something has moved."""
    seen: list[Any] = []

    def look_again() -> bool:
        seen[:] = [job(stream, rank)]
        return holds(seen[0])

    stream.wait(look_again, what)
    return seen[0]


def check_bytes(comm: Any) -> None:
    """Lanes carry messages and headers, each byte on one of them; shares add up."""
    lanes = comm["lanes"]
    assert sum(lane["share"] for lane in lanes) == pytest.approx(1.0)
    carried = sum(lane["payload_bytes"] for lane in lanes)
    twice = sum(lane["chunks_moved_here"] + lane["chunks_duplicate"] for lane in lanes)
    again = twice * CHUNK_BYTES_MAX
    begun = (OUTSTANDING + 1) * MESSAGE_BYTES
    assert comm["bytes"] <= carried <= comm["bytes"] + begun + again
    for lane in lanes:
        if comm["side"] == "send":
            whole = lane["payload_bytes"] + HEADER_BYTES * lane["chunks_sent"]
            left = lane["lanes"] * (CHUNK_BYTES_MAX + HEADER_BYTES)  # of a record each
            assert whole - left <= lane["sent_bytes"] <= whole
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
        sender, receiver = streaming(stream, SOURCE), streaming(stream, SINK)
        check_bytes(sender)
        check_bytes(receiver)
        assert (sender["side"], receiver["side"]) == ("send", "receive")
        if path != "auto":  # there the first lane may be of either kind
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
        # Each lane is one of the other side's.
        there = {
            (lane["remote"], lane["remote_port"], lane["local"], lane["local_port"])
            for lane in receiver["lanes"]
        }
        assert {
            (lane["local"], lane["local_port"], lane["remote"], lane["remote_port"])
            for lane in sender["lanes"]
        } == there
        stream.finish()


@pytest.mark.parametrize("path", ["kernel", "xdp"])
def test_a_lane_that_is_lost_is_shown_as_dead_and_its_chunks_as_moved(lab: Lab, path: str) -> None:
    rails = Rails(lab)
    few = {"HARP_LANES": "1", "HARP_KERNEL_LANES": "1"}
    with Stream(lab, options(path, HARP_RAILS="all", **few)) as stream:
        wait_for_rails(stream, rails, [0, 1])
        rails.silence(1)
        try:
            lost = when(
                stream, SOURCE, lambda each: each["counters"]["rails_down"] > 0, "eth1 is down"
            )
            comm = max(lost["comms"], key=lambda each: each["bytes"])
            (dead,) = [lane for lane in comm["lanes"] if lane["state"] == "dead"]
            assert (dead["ifname"], dead["end"]) == ("eth1", "timeout")
            assert (dead["in_flight_bytes"], dead["unsent_bytes"]) == (0, 0)
            assert lost["counters"]["lanes_died_timeout"] >= 1
            assert [rail["down"] for rail in lost["rails"] if rail["ifname"] == "eth1"] == [True]
            # What it had under way goes over the other; without the dead one shares still add up.
            moved = when(
                stream,
                SOURCE,
                lambda each: (
                    sum(rail["chunks_moved_here"] for rail in each["rails"])
                    >= dead["chunks_moved_away"]
                    > 0
                ),
                "chunks have moved",
            )
            comm = max(moved["comms"], key=lambda each: each["bytes"])
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
        back = when(stream, SOURCE, lambda each: each["counters"]["rails_up"] > 0, "eth1 is back")
        comm = max(back["comms"], key=lambda each: each["bytes"])
        (again,) = [lane for lane in comm["lanes"] if lane["ifname"] == "eth1"]
        assert (again["state"], again["lanes"] > 1) == ("open", True)
        assert back["counters"]["lanes_replaced"] >= 1
        check_bytes(comm)
        json.dumps(back)
        stream.finish()
