# SPDX-License-Identifier: Apache-2.0
"""harp-tcp's messages: on many connections at once, each comes whole and is answered."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from netns_tools import Tools, finish, outcome

from harp.bench.badpath import Dropper
from harp.lab import Lab, LabOptions

PORT = {"harp": 61000, "kernel": 7000}
FLOWS = 4
COUNT = 300  # messages of a connection


def messages(
    tools: Tools,
    lab: Lab,
    client: str,
    server: str,
    *more: str,
    until: Sequence[str] = ("--count", str(COUNT)),
) -> Any:
    """What the client reported, and each connection's account at the server."""
    here, there = lab.hosts
    port = str(PORT[server])
    sink = [tools.tcp, "sink", there.address, port, *tools.side(there, server)]
    serving = tools.serve(there, [*sink, "--count", str(FLOWS), "-o", "json"])
    report = tools.call_tcp(
        *(here, client, "message", there.address, int(port)),
        *("--flows", str(FLOWS), *until, *more),
    )
    out, err = finish(serving)
    assert "connection" not in err
    return report, [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize(("client", "server"), [("harp", "kernel"), ("kernel", "harp")])
@pytest.mark.parametrize("size", [24, 65536])
def test_every_message_is_answered(
    tools: Tools, lab: Lab, client: str, server: str, size: int
) -> None:
    report, sources = messages(tools, lab, client, server, "--size", str(size))
    assert len(report["flows"]) == len(sources) == FLOWS
    assert report["messages"] == FLOWS * COUNT
    assert report["bytes"] == FLOWS * COUNT * size
    for flow in report["flows"]:
        assert (flow["messages"], flow["bytes"]) == (COUNT, COUNT * size)
        assert 0 < flow["message_ns"]["min"] <= flow["message_ns"]["p99"]
    for source in sources:
        assert (source["messages"], source["bytes"]) == (COUNT, COUNT * size)


def test_what_is_skipped_does_not_count(tools: Tools, lab: Lab) -> None:
    """Nor what is answered after the end. How much that is depends on the machine."""
    until = ("--seconds", "1", "--skip", "0.6")
    report, sources = messages(tools, lab, "kernel", "kernel", until=until)
    assert report["seconds"] == pytest.approx(0.4)
    assert report["bytes"] == sum(flow["bytes"] for flow in report["flows"])
    assert all(flow["bytes"] % report["size"] == 0 for flow in report["flows"])
    assert sum(source["bytes"] for source in sources) > report["bytes"]


@pytest.mark.parametrize(("client", "server"), [("harp", "harp"), ("kernel", "kernel")])
def test_over_a_path_that_loses(tools: Tools, client: str, server: str, need_root: None) -> None:
    with Lab(LabOptions(switch=True, offload=False)) as lab, Dropper(lab) as dropper:
        dropper.lose_both_ways(0.005)
        report, sources = messages(tools, lab, client, server)
        assert [source["messages"] for source in sources] == [COUNT] * FLOWS
        resent = sum(flow["conn"]["bytes_retransmitted"] for flow in report["flows"])
        lost = dropper.counts(0)["dropped_payload_bytes"]
        assert resent >= lost > 0, "what was lost was sent again"


def test_a_sleeping_process_wakes_for_packets_and_timers(tools: Tools, need_root: None) -> None:
    """A tenth of what is sent is lost, the last of a message too: only timers bring it back."""
    with Lab(LabOptions(switch=True, offload=False)) as lab, Dropper(lab) as dropper:
        dropper.lose_both_ways(0.1)
        options = ("--sleep", "--size", "5000", "--depth", "1")
        until = ("--count", "25")
        report, sources = messages(tools, lab, "harp", "harp", *options, until=until)
        assert [source["bytes"] for source in sources] == [25 * 5000] * FLOWS
        sent = [flow["at_end"] for flow in report["flows"]]
        assert sum(conn["tlp_probes"] + conn["rto_count"] for conn in sent) > 0


def test_an_expired_start_is_named(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    serving = tools.serve(there, [tools.tcp, "sink", there.address, "7000", "--kernel"])
    args = [tools.tcp, "message", there.address, "7000", "--kernel", "--start-ns", "1"]
    _, err, status = outcome(here, args)
    assert status == 1
    assert "--start-ns has passed" in err
    finish(serving)


def test_a_sink_refuses_invalid_messages(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    sink = [tools.tcp, "sink", there.address, "7000", "--kernel"]
    serving = tools.serve(there, sink)
    outcome(here, [tools.tcp, "send", there.address, "7000", "--kernel"])
    _, err = finish(serving)
    assert "Bad message" in err
    assert serving.returncode == 1


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--skip", "3"], "--skip leaves nothing"),
        (["--flows", "0"], "--flows 0: a number in 1..64"),
        (["--seconds", "soon"], "--seconds soon: seconds in 0..3600"),
        (["--cc", "nosuch"], "no such congestion control here"),
        (["--size", "23"], "Message too long"),
    ],
)
def test_bad_options_are_named(tools: Tools, shared_lab: Lab, more: list[str], word: str) -> None:
    here, there = shared_lab.hosts
    args = [tools.tcp, "message", there.address, "7000", "--kernel", *more]
    _, err, status = outcome(here, args)
    assert status in (1, 2)
    assert word in err
