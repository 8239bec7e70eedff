# SPDX-License-Identifier: Apache-2.0
"""Statistics of jobs: lanes by comm and peer, shares, dead lanes; and invalid regions."""

import io
import json
import os
import struct
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import numpy as np
import pytest
from conftest_stats import JobOwner, content_of, memory
from harpctl import harpctl
from rich.console import Console

from harp import _page, stats
from harp.errors import Exit
from harp.stats import lanes_view, view
from harp.stats.instance import HostSnapshot, host_document, look
from harp.stats.job import document
from harp.stats.page import read_job
from harp.stats.schema import record_type
from harp.stats.view import Rates

MakeJob = Callable[..., JobOwner]


def test_a_job_is_found_and_its_lanes_are_grouped(job_owner: JobOwner) -> None:
    job = job_owner.job()
    assert (job.snapshot.identity.label, job.uid) == ("train rank 1", os.geteuid())
    first, second = document(job)["comms"]
    assert (first["peer"], second["peer"]) == ("10.0.0.2", "10.0.0.3")
    assert [lane["index"] for lane in first["lanes"]] == [0, 1]
    assert [lane["share"] for lane in first["lanes"]] == [0.25, 0.75]
    assert second["lanes"][0]["share"] == 0.0
    assert job.snapshot.status.comms_open == 2
    assert job.snapshot.status.flows_open == 2


def test_a_job_is_not_an_instance(job_owner: JobOwner) -> None:
    with stats.find() as regions:
        assert job_owner.process.pid not in [page.pid for page in regions.pages]
        host = look(regions)
    assert job_owner.process.pid not in [instance.pid for instance in host.instances]


def test_shares_add_up_through_deaths_and_moves(job_owner: JobOwner) -> None:
    """A lane's slot counts the bytes of its earlier lanes, too."""
    job_owner.send(
        "move 0 0 1", "die 0 0 110", "bytes 0 1 512", "lane 0 0 harp", "bytes 0 0 1000",
        "lane 0 0 harp", "stall 0 0 1",
    )  # fmt: skip
    job = document(job_owner.job())
    replaced, other = job["comms"][0]["lanes"]
    assert replaced["share"] + other["share"] == pytest.approx(1.0)
    assert (replaced["state"], replaced["end"], replaced["lanes"]) == ("stalled", "timeout", 3)
    assert (replaced["payload_bytes"], replaced["rehashes"], replaced["stalls"]) == (6000, 1, 1)
    assert (replaced["chunks_moved_away"], other["chunks_moved_here"]) == (1, 1)
    assert job["comms"][0]["lanes_died"] == job["comms"][0]["lanes_replaced"] == 1
    assert job["counters"]["lanes_died_timeout"] == 1
    assert sum(rail["payload_bytes"] for rail in job["rails"]) == 21512
    # Bytes on the lanes are those of the messages and 40 of each chunk's header.
    for lane in (replaced, other):
        assert lane["sent_bytes"] == lane["payload_bytes"] + 40 * lane["chunks_sent"]


def test_removed_comms_are_counted_and_not_shown(job_owner: JobOwner) -> None:
    job_owner.send("remove 0", "remove 1")
    job = document(job_owner.job())
    assert job["comms"] == []
    assert job["counters"]["comms_opened"] == 2
    assert {rail["kind"]: rail["payload_bytes"] for rail in job["rails"]} == {
        "harp": 5000,
        "kernel": 15000,
    }
    assert [rail["lanes_open"] for rail in job["rails"]] == [0, 0]
    job_owner.send("end")
    with stats.find() as regions:
        assert job_owner.process.pid not in [page.pid for page in regions.jobs]


def test_records_that_do_not_fit_the_page_are_counted(
    job_owner: JobOwner, make_job: MakeJob
) -> None:
    full = make_job("full", 0)
    full.send("comm 2", "lane 2 0 harp")
    job_owner.send("failed 1")
    with stats.find() as regions:
        host = host_document(look(regions))
    (shown,) = [job for job in host["jobs"] if job["pid"] == job_owner.process.pid]
    assert shown["comms"][1]["state"] == "failed"
    (hidden,) = [job for job in host["jobs"] if job["pid"] == full.process.pid]
    assert hidden["comms"] == []
    assert (hidden["status"]["comms_hidden"], hidden["status"]["flows_hidden"]) == (1, 1)


def test_lanes_can_be_omitted(job_owner: JobOwner) -> None:
    with stats.find() as regions:
        snapshot = read_job(job_owner.page(regions).fd, lanes=False)
    assert (len(snapshot.lanes), len(snapshot.comms), len(snapshot.rails)) == (0, 0, 2)


# --------------------------------------------------------------------------------------------------
# harpctl.
#
def _pid(owner: JobOwner) -> tuple[str, str]:
    return "--pid", str(owner.process.pid)


def test_flows_is_a_tree(job_owner: JobOwner) -> None:
    job_owner.send("move 0 0 1")
    done = harpctl("flows", *_pid(job_owner))
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    lines = done.stdout.splitlines()
    names = [line.split("  ")[0].strip() or line.strip().split("  ")[0] for line in lines]
    order = [names.index(peer) for peer in ("10.0.0.2", "10.0.0.3")]
    assert order == sorted(order)
    lane = next(line for line in lines if "lane 1: 10.0.0.1:20001 > 10.0.0.2:7000" in line)
    assert lane.split()[5:9] == ["kernel", "lo", "open", "75.0"]
    assert "-0 +1" in lane
    assert any("dead: reset" in line for line in lines)
    assert "mixed 1" in next(line for line in lines if "comm 1 of train rank 1: send" in line)


@pytest.mark.parametrize(
    ("options", "comms_shown"),
    [
        (("--peer", "10.0.0.3"), [2]),
        (("--peer", "10.0.0.0/30"), [1, 2]),
        (("--peer", "10.0.0.2/31"), [1, 2]),
        (("--peer", "fd00::/8"), []),
        (("--nic", "lo"), [1, 2]),
    ],
)
def test_flows_can_be_filtered(
    job_owner: JobOwner, options: tuple[str, ...], comms_shown: list[int]
) -> None:
    done = harpctl("flows", *_pid(job_owner), *options, "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert [comm["serial"] for comm in job["comms"]] == comms_shown


def test_an_unknown_job_is_an_error(job_owner: JobOwner) -> None:
    done = harpctl("flows", *_pid(job_owner), "--nic", "no-such-nic", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["jobs"]) == (Exit.OK, [])
    done = harpctl("flows", "--peer", "10.0.0.300")
    assert done.returncode == Exit.USAGE
    assert "neither an address nor a network" in done.stderr
    # --queue and --flat show instances without lanes.
    assert "20001" not in harpctl("flows", *_pid(job_owner), "--queue", "0").stdout
    assert "20001" not in harpctl("flows", *_pid(job_owner), "--flat").stdout


def test_rates_of_lanes_are_changes_between_two_readings(job_owner: JobOwner) -> None:
    before = {"jobs": [document(job_owner.job())]}
    job_owner.send("bytes 0 0 3000", "lane 1 5 kernel", "bytes 1 5 800")
    job = document(job_owner.job())
    rates = lanes_view.rates(before, 2.0)
    carried = [rates.carried(job, lane) for comm in job["comms"] for lane in comm["lanes"]]
    assert carried == [1500, 0, 0, 400]


def test_stats_shows_jobs(job_owner: JobOwner) -> None:
    job_owner.send("rail 1")
    done = harpctl("stats", *_pid(job_owner))
    assert done.returncode == Exit.OK, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("train rank 1"))
    pid = str(job_owner.process.pid)
    assert row.split()[3:] == [pid, "2", "1", "1", "5kB", "15kB", "1", *"0000", "1", "0"]
    assert "no lane over lo works" in done.stdout
    everything = harpctl("stats", *_pid(job_owner), "--all").stdout
    assert "lanes_died_reset" in everything
    assert "lanes_died_timeout" not in everything


# --------------------------------------------------------------------------------------------------
# Hostile pages.
#
def _copy(job_owner: JobOwner) -> bytearray:
    with stats.find() as regions:
        return content_of(job_owner.page(regions))


def _part(raw: bytes, part: int) -> tuple[int, int]:
    """Return the offset and stride of a part's records."""
    offset, stride = struct.unpack_from("=II", raw, 24 + 16 * part)
    return offset + 64, stride


def test_invalid_records_are_shown_as_invalid(job_owner: JobOwner) -> None:
    """Unknown numbers, duplicate comms and escape sequences become text."""
    raw = _copy(job_owner)
    lanes, stride = _part(raw, _page.LANES)
    comm_at, comm_stride = _part(raw, _page.COMMS)
    layout, comm_layout = record_type("lane"), record_type("comm")

    def put(start: int, record: np.dtype[np.void], name: str, content: bytes) -> None:
        offset = record.fields[name][1]  # type: ignore[index]
        raw[start + offset : start + offset + len(content)] = content

    for name in ("state", "kind", "end", "index", "payload_bytes", "srtt_ns", "retransmits"):
        put(lanes, layout, name, b"\xff" * 8)
    put(lanes, layout, "ifname", b"\x1b[2J\n")
    put(lanes + stride, layout, "comm", struct.pack("=Q", 77))
    put(comm_at + comm_stride, comm_layout, "serial", struct.pack("=Q", 1))
    put(comm_at, comm_layout, "ifname", b"\x1b]0;x\x07" + b"\xff" * 10)
    put(comm_at, comm_layout, "side", struct.pack("=Q", 9))
    with memory(raw) as fd:
        snapshot = read_job(fd)
    job = stats.Job(1, 0, "liar", snapshot)
    shown = document(job)
    lane = shown["comms"][0]["lanes"][0]
    assert (lane["state"], lane["kind"], lane["end"], lane["ifname"]) == ("?", "?", "", "?[2J?")
    assert shown["comms"][0]["side"] == "?"
    assert shown["comms"][0]["ifname"].startswith("?]0;x?")
    orphan = shown["comms"][-1]
    assert "serial" not in orphan
    assert orphan["lanes"][0]["comm"] == 77
    host = host_document(HostSnapshot((), jobs=(job,)))
    lines = list(lanes_view.tree(host, lanes_view.LaneRates()))
    assert any("a comm without a record" in line.title for line in lines)
    (filtered,) = lanes_view.of_peers(host, ip_network("10.0.0.2"))["jobs"]
    assert sum(len(comm["lanes"]) for comm in filtered["comms"]) == 2
    assert "\x1b" not in render(host)


def test_only_the_record_of_an_unfinished_write_is_missing(job_owner: JobOwner) -> None:
    raw = _copy(job_owner)
    offset, _ = _part(raw, _page.LANES)
    raw[offset] |= 1
    with memory(raw) as fd:
        assert len(read_job(fd).lanes) == 2


def render(host: dict[str, Any]) -> str:
    output = io.StringIO()
    console = Console(file=output, width=200)
    rates = [Rates(entry, entry, 1.0) for entry in host["instances"]]
    console.print(view.stats_view(host, rates, live=True))
    console.print(lanes_view.lanes_view(host, lanes_view.LaneRates()))
    console.print(lanes_view.jobs_table(host))
    for job in host["jobs"]:
        console.print(lanes_view.all_job_counters(job))
    for entry in host["instances"]:
        console.print(view.all_counters(entry), view.all_xstats(entry))
    return output.getvalue()
