# SPDX-License-Identifier: Apache-2.0
"""Sums over jobs: they only grow while jobs come and go, and have a bounded number of labels."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from conftest_stats import A_LIFE, JobOwner, MakeOwner, Owner
from test_families import LEASED, exposition, samples

from harp import _page
from harp.stats import families, schema
from harp.stats.exporter import Scrapes
from harp.stats.families import ScrapeData
from harp.stats.job import Job
from harp.stats.totals import ABSENT_MAX, OTHER, DeviceTotals, Totals, transports

NICS = frozenset({"lo", "eth1"})
MakeJob = Callable[..., JobOwner]


def sums_from_the_beginning() -> Totals:
    """Sums whose first reading was before the start of any job."""
    sums = Totals(wall_ns=lambda: 0)
    sums.of_jobs((), NICS)
    return sums


def test_sums_outlive_jobs(make_job: MakeJob) -> None:
    """Prometheus sees a counter that restarts when a number falls: it must not."""
    sums = Totals()
    assert sums.of_jobs((), NICS).jobs == 0
    first, second = make_job("a"), make_job("b")
    for each in (first, second):
        each.send(*A_LIFE)
    both = sums.of_jobs((first.job(), second.job()), NICS)
    assert (both.jobs, both.comms_open) == (2, 4)
    assert both.counters["lanes_died_reset"] == 2
    assert both.rails["lo", "kernel"].counters["payload_bytes"] == 30000
    assert both.rails["lo", "kernel"].lanes_open == 2
    assert sum(both.rails["lo", "harp"].srtt_buckets) == 2
    second.send("bytes 0 1 700")
    one = sums.of_jobs((second.job(),), NICS)
    assert one.jobs == 1
    assert one.rails["lo", "kernel"].counters["payload_bytes"] == 30700
    assert one.rails["lo", "kernel"].lanes_open == 1
    none = sums.of_jobs((), NICS)
    assert none.rails["lo", "kernel"].counters == one.rails["lo", "kernel"].counters
    assert none.rails["lo", "kernel"].lanes_open == 0


def test_a_job_that_is_missed_for_a_while_continues_its_sums(make_job: MakeJob) -> None:
    """Its user exceeded the limit of that reading, or the process was hidden for a moment."""
    sums = Totals()
    sums.of_jobs((), NICS)
    jobs = [make_job(name) for name in "ab"]
    for each in jobs:
        each.send(*A_LIFE)
    first, second = (each.job() for each in jobs)
    both = sums.of_jobs((first, second), NICS)
    assert sums.of_jobs((first,), NICS).counters == both.counters
    assert sums.of_jobs((), NICS).counters == both.counters
    again = sums.of_jobs((first, second), NICS)
    assert (again.counters, again.rails) == (both.counters, both.rails)
    jobs[1].send("bytes 0 1 700")
    grown = sums.of_jobs((first, jobs[1].job()), NICS).rails["lo", "kernel"]
    assert grown.counters["payload_bytes"] == 30700


def test_ended_jobs_are_forgotten_and_missing_ones_are_bounded(job_owner: JobOwner) -> None:
    alive = set(range(1, ABSENT_MAX + 11))
    sums, job = Totals(alive.__contains__), job_owner.job()
    sums.of_jobs([replace(job, pid=pid) for pid in alive], NICS)
    sums.of_jobs((), NICS)
    assert [pid for pid, *_ in sums._last] == list(range(11, ABSENT_MAX + 11))
    alive.clear()
    sums.of_jobs((), NICS)
    assert not sums._last


def test_jobs_older_than_harpd_count_from_the_first_scan(job_owner: JobOwner) -> None:
    sums = Totals()
    assert sums.of_jobs((job_owner.job(),), NICS).rails["lo", "harp"].counters["payload_bytes"] == 0
    job_owner.send("bytes 0 0 512")
    assert (
        sums.of_jobs((job_owner.job(),), NICS).rails["lo", "harp"].counters["payload_bytes"] == 512
    )


def test_a_job_missed_by_the_first_scan_counts_from_its_first_sample(make_job: MakeJob) -> None:
    """Its earlier counts are left out; those of a later job count."""
    missed = make_job("missed")
    missed.send(*A_LIFE)
    sums = Totals()
    sums.of_jobs((), NICS)
    later = make_job("later")
    later.send(*A_LIFE)
    assert sums.of_jobs((missed.job(),), NICS).rails["lo", "harp"].counters["payload_bytes"] == 0
    missed.send("bytes 0 0 512")
    found = sums.of_jobs((missed.job(), later.job()), NICS)
    assert found.rails["lo", "harp"].counters["payload_bytes"] == 5000 + 512


def test_a_forgotten_job_does_not_count_twice(job_owner: JobOwner) -> None:
    now_ns = [0]
    sums, job = Totals(lambda _pid: True, lambda: now_ns[0]), job_owner.job()
    sums.of_jobs((), NICS)
    crowd = [replace(job, pid=pid) for pid in range(1, ABSENT_MAX + 11)]
    before = sums.of_jobs(crowd, NICS)
    now_ns[0] = job.snapshot.identity.start_wall_ns + 1
    sums.of_jobs((), NICS)
    assert sums.of_jobs(crowd, NICS).counters == before.counters


def test_a_counter_that_falls_is_ignored(job_owner: JobOwner) -> None:
    sums, job = Totals(), job_owner.job()
    sums.of_jobs((), NICS)
    before = sums.of_jobs((job,), NICS)
    counters = np.zeros(1, schema.job_type())[0]
    liar = replace(job, snapshot=replace(job.snapshot, counters=counters))
    assert sums.of_jobs((liar,), NICS).counters == before.counters


def test_names_of_nics_are_this_host_s(job_owner: JobOwner) -> None:
    sums = sums_from_the_beginning()
    found = sums.of_jobs((job_owner.job(),), frozenset({"eth1"}))
    assert {place for place, _ in found.rails} == {OTHER}
    assert found.rails[OTHER, "harp"].counters["payload_bytes"] == 5000


def test_a_nic_is_down_once_for_a_job(make_job: MakeJob) -> None:
    first, second = make_job("a"), make_job("b")
    for each in (first, second):
        each.send(*A_LIFE)
    first.send("rail 1")
    sums = Totals()
    assert sums.of_jobs((first.job(), second.job()), NICS).down == {"lo": 1}
    first.send("rail 0")
    assert sums.of_jobs((first.job(), second.job()), NICS).down == {"lo": 0}


def test_jobs_of_all_users_that_may_lease_count(job_owner: JobOwner) -> None:
    mine = job_owner.job()
    user, tenant = replace(mine, uid=1000), replace(mine, uid=1000, pid=4711)
    kept, ignored = families.believed_jobs((user, tenant, mine), LEASED)
    assert kept == (tenant, mine)
    assert ignored["job_of_user"] == 1
    assert families.believed_jobs([mine] * (families.INSTANCES_MAX + 2), {})[1]["too_many"] == 2


def _families_of(jobs: tuple[Job, ...]) -> ScrapeData:
    return ScrapeData(jobs=sums_from_the_beginning().of_jobs(jobs, NICS))


def test_each_sum_is_one_series(job_owner: JobOwner) -> None:
    job_owner.send("rail 1", "move 0 0 1")
    found = samples(_families_of((job_owner.job(),)))
    harp = (("device", "lo"), ("kind", "harp"))
    assert found["harp_jobs", ()] == 1
    assert found["harp_comms_open", ()] == 2
    assert found["harp_rail_down", (("device", "lo"),)] == 1
    assert found["harp_job_lanes_died_total", (("reason", "reset"),)] == 1
    assert found["harp_job_lanes_died_total", (("reason", "timeout"),)] == 0
    assert found["harp_lane_chunks_moved_here_total", (("device", "lo"), ("kind", "kernel"))] == 1
    assert found["harp_lane_payload_bytes_total", harp] == 5000
    assert found["harp_lane_chunks_moved_away_total", harp] == 1
    assert found["harp_lanes_open", harp] == 1
    assert found["harp_lane_retransmits_total", harp] == 2
    assert found["harp_lane_srtt_seconds_count", harp] == 1
    assert found["harp_lane_srtt_seconds_sum", harp] == 3e-5
    # Nothing of a peer, a port, a process or a comm.
    text = exposition(_families_of((job_owner.job(),)))
    for word in ("10.0.0", "20001", "train rank", str(job_owner.process.pid)):
        assert word not in text


def test_all_lines_of_a_scrape_are_there_before_any_job() -> None:
    found = samples(ScrapeData())
    for each in schema.job_counters():
        if not each.name.startswith(families.DIED):
            assert found[f"harp_job_{each.name}_total", ()] == 0


def test_a_scrape_finds_jobs(job_owner: JobOwner) -> None:
    reader = Scrapes()
    reader.scrape({}, frozenset())
    job_owner.send("bytes 0 0 4000")
    done = reader.scrape({}, frozenset()).jobs
    assert done.jobs >= 1
    # Jobs of tests that run at the same time are seen, too.
    assert done.rails["lo", "harp"].counters["payload_bytes"] >= 4000


# --------------------------------------------------------------------------------------------------
# Instances.
#


def test_sums_of_a_nic_outlive_its_instances(make_owner: MakeOwner) -> None:
    """The counters of an instance that ended stay in the sums; its gauges do not."""
    sums = DeviceTotals(wall_ns=lambda: 0)
    assert sums.of_devices(()) == {}
    first, second = make_owner(), make_owner()
    first.send("run 30", "latency 1000")
    seen = (*first.instances(), *second.instances())
    both = sums.of_devices(seen)["harp7"]
    assert both.instances == len(seen) == 4
    for one in schema.statistics():
        assert both.numbers[one.name] == sum(int(each.snapshot.counters[one.name]) for each in seen)
    assert both.numbers["polls"] > 0 < both.numbers["tcp_conns"]
    assert sum(map(sum, both.buckets)) == sum(
        int(each.snapshot.histograms["bucket"].sum()) for each in seen
    )
    none = sums.of_devices(())["harp7"]
    assert (none.instances, none.numbers["tcp_conns"]) == (0, 0)
    assert none.numbers["polls"] == both.numbers["polls"]
    assert none.buckets == both.buckets
    second.send("run 30")
    again = sums.of_devices(second.instances())["harp7"]
    assert again.numbers["polls"] > both.numbers["polls"]


def test_instances_of_the_first_reading_count_from_it(owner: Owner) -> None:
    sums = DeviceTotals()
    owner.send("run 30")
    assert sums.of_devices(owner.instances())["harp7"].numbers["polls"] == 0
    owner.send("run 30")
    assert sums.of_devices(owner.instances())["harp7"].numbers["polls"] > 0


def test_series_of_a_nic_have_no_queue(owner: Owner) -> None:
    devices = DeviceTotals(wall_ns=lambda: 0).of_devices(owner.instances())
    seen = owner.instances()
    found = samples(ScrapeData(seen, devices=devices))
    labels = (("device", "harp7"),)
    assert found["harp_instances", labels] == 2
    assert found["harp_tcp_conns", labels] == devices["harp7"].numbers["tcp_conns"]
    assert found["harp_tcp_rtt_seconds_count", labels] >= 0
    assert not [labels for _, labels in found if "queue" in dict(labels)]
    per_queue = samples(ScrapeData(seen))
    assert len(per_queue) > len(found)


def test_comms_are_counted_by_the_kinds_of_their_lanes(job_owner: JobOwner) -> None:
    job_owner.send(*A_LIFE)
    job = job_owner.job()
    counts = transports(job)
    assert sum(counts.values()) == job.snapshot.status.comms_open
    open_kinds = {int(lane["kind"]) for lane in job.snapshot.lanes if lane["state"] != 3}
    assert open_kinds
    found = samples(_families_of((job,)))
    for (transport, reason), count in counts.items():
        assert found["harp_comms", (("reason", reason), ("transport", transport))] == count
    alone = replace(job, snapshot=replace(job.snapshot, lanes=job.snapshot.lanes[:0]))
    assert transports(alone) == {("unknown", ""): 0, ("none", ""): len(job.snapshot.comms)}


def test_comms_on_kernel_lanes_have_the_reason(make_job: MakeJob) -> None:
    """The plugin's own, whatever number the page claims; a lane that was lost comes first."""
    owner = make_job()
    owner.send("comm 0", "lane 0 0 kernel")
    job = owner.job()
    (comm,) = job.snapshot.comms

    def reason() -> str:
        ((_, name),) = [key for key, count in transports(job).items() if count]
        return name

    assert reason() == "unknown", "a plugin that names none"
    for number, (name, _) in enumerate(_page.LISTS["fallback"], 1):
        comm["fallback"] = number
        assert reason() == name
    for claimed in (len(_page.LISTS["fallback"]) + 1, 2**64 - 1):
        comm["fallback"] = claimed
        assert reason() == "unknown"
    owner.send("lane 0 1 harp", "die 0 1 104")
    job = owner.job()
    assert reason() == "lane_lost"
    assert all(help for _, help in _page.LISTS["fallback"])
