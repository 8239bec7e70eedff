# SPDX-License-Identifier: Apache-2.0
"""Sums over jobs: they only grow while jobs come and go, and have a bounded number of labels."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from conftest_stats import JOB_COMMANDS, JobOwner, MakeOwner, Owner
from test_families import LEASED, exposition, samples

from harp import _page
from harp.stats import families, schema
from harp.stats.exporter import Scrapes
from harp.stats.families import ScrapeData
from harp.stats.job import Job
from harp.stats.totals import ABSENT_MAX, OTHER, DeviceTotals, Totals, transports

NICS = frozenset({"lo", "eth1"})
MakeJob = Callable[..., JobOwner]


def sums_from_the_start() -> Totals:
    """Sums whose first reading was before the start of any job."""
    sums = Totals(wall_ns=lambda: 0)
    sums.of_jobs((), NICS)
    return sums


def test_sums_outlive_jobs(make_job: MakeJob) -> None:
    """Sums must not fall, because Prometheus would see restarted counters."""
    sums = Totals()
    assert sums.of_jobs((), NICS).jobs == 0
    first, second = make_job("a"), make_job("b")
    for job in (first, second):
        job.send(*JOB_COMMANDS)
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


def test_a_job_that_some_scans_miss_continues_its_sums(make_job: MakeJob) -> None:
    """Its user exceeded a limit in that scan, or the process was hidden for a moment."""
    sums = Totals()
    sums.of_jobs((), NICS)
    jobs = [make_job(name) for name in "ab"]
    for job in jobs:
        job.send(*JOB_COMMANDS)
    first, second = (job.job() for job in jobs)
    both = sums.of_jobs((first, second), NICS)
    assert sums.of_jobs((first,), NICS).counters == both.counters
    assert sums.of_jobs((), NICS).counters == both.counters
    complete = sums.of_jobs((first, second), NICS)
    assert (complete.counters, complete.rails) == (both.counters, both.rails)
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
    """Its earlier counts are ignored, but those of a job that starts later are not."""
    missed = make_job("missed")
    missed.send(*JOB_COMMANDS)
    sums = Totals()
    sums.of_jobs((), NICS)
    later = make_job("later")
    later.send(*JOB_COMMANDS)
    assert sums.of_jobs((missed.job(),), NICS).rails["lo", "harp"].counters["payload_bytes"] == 0
    missed.send("bytes 0 0 512")
    result = sums.of_jobs((missed.job(), later.job()), NICS)
    assert result.rails["lo", "harp"].counters["payload_bytes"] == 5000 + 512


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


def test_unknown_names_of_nics_are_merged(job_owner: JobOwner) -> None:
    sums = sums_from_the_start()
    result = sums.of_jobs((job_owner.job(),), frozenset({"eth1"}))
    assert {device for device, _ in result.rails} == {OTHER}
    assert result.rails[OTHER, "harp"].counters["payload_bytes"] == 5000


def test_nics_that_are_down_are_counted_per_job(make_job: MakeJob) -> None:
    first, second = make_job("a"), make_job("b")
    for job in (first, second):
        job.send(*JOB_COMMANDS)
    first.send("rail 1")
    sums = Totals()
    assert sums.of_jobs((first.job(), second.job()), NICS).down == {"lo": 1}
    first.send("rail 0")
    assert sums.of_jobs((first.job(), second.job()), NICS).down == {"lo": 0}


def test_jobs_of_all_users_that_may_lease_count(job_owner: JobOwner) -> None:
    job = job_owner.job()
    user, tenant = replace(job, uid=1000), replace(job, uid=1000, pid=4711)
    believed, ignored = families.believed_jobs((user, tenant, job), LEASED)
    assert believed == (tenant, job)
    assert ignored["job_of_user"] == 1
    assert families.believed_jobs([job] * (families.INSTANCES_MAX + 2), {})[1]["too_many"] == 2


def _families_of(jobs: tuple[Job, ...]) -> ScrapeData:
    return ScrapeData(jobs=sums_from_the_start().of_jobs(jobs, NICS))


def test_each_sum_is_one_series(job_owner: JobOwner) -> None:
    job_owner.send("rail 1", "move 0 0 1")
    series = samples(_families_of((job_owner.job(),)))
    labels = (("device", "lo"), ("kind", "harp"))
    assert series["harp_jobs", ()] == 1
    assert series["harp_comms_open", ()] == 2
    assert series["harp_rail_down", (("device", "lo"),)] == 1
    assert series["harp_job_lanes_died_total", (("reason", "reset"),)] == 1
    assert series["harp_job_lanes_died_total", (("reason", "timeout"),)] == 0
    assert series["harp_lane_chunks_moved_here_total", (("device", "lo"), ("kind", "kernel"))] == 1
    assert series["harp_lane_payload_bytes_total", labels] == 5000
    assert series["harp_lane_chunks_moved_away_total", labels] == 1
    assert series["harp_lanes_open", labels] == 1
    assert series["harp_lane_retransmits_total", labels] == 2
    assert series["harp_lane_srtt_seconds_count", labels] == 1
    assert series["harp_lane_srtt_seconds_sum", labels] == 3e-5
    # No label names a peer, port, process or comm.
    text = exposition(_families_of((job_owner.job(),)))
    for word in ("10.0.0", "20001", "train rank", str(job_owner.process.pid)):
        assert word not in text


def test_a_scrape_without_jobs_has_all_series() -> None:
    series = samples(ScrapeData())
    for counter in schema.job_counters():
        if not counter.name.startswith(families.DIED):
            assert series[f"harp_job_{counter.name}_total", ()] == 0


def test_a_scrape_finds_jobs(job_owner: JobOwner) -> None:
    reader = Scrapes()
    reader.scrape({}, frozenset())
    job_owner.send("bytes 0 0 4000")
    totals = reader.scrape({}, frozenset()).jobs
    assert totals.jobs >= 1
    # The scrape also finds jobs of concurrent tests.
    assert totals.rails["lo", "harp"].counters["payload_bytes"] >= 4000


# --------------------------------------------------------------------------------------------------
# Instances.
#


def test_sums_of_a_nic_outlive_its_instances(make_owner: MakeOwner) -> None:
    """The counters of an instance that ended stay in the sums; its gauges do not."""
    sums = DeviceTotals(wall_ns=lambda: 0)
    assert sums.of_devices(()) == {}
    first, second = make_owner(), make_owner()
    first.send("run 30", "latency 1000")
    instances = (*first.instances(), *second.instances())
    both = sums.of_devices(instances)["harp7"]
    assert both.instances == len(instances) == 4
    for statistic in schema.statistics():
        assert both.numbers[statistic.name] == sum(
            int(instance.snapshot.counters[statistic.name]) for instance in instances
        )
    assert both.numbers["polls"] > 0 < both.numbers["tcp_conns"]
    assert sum(map(sum, both.buckets)) == sum(
        int(instance.snapshot.histograms["bucket"].sum()) for instance in instances
    )
    empty = sums.of_devices(())["harp7"]
    assert (empty.instances, empty.numbers["tcp_conns"]) == (0, 0)
    assert empty.numbers["polls"] == both.numbers["polls"]
    assert empty.buckets == both.buckets
    second.send("run 30")
    later = sums.of_devices(second.instances())["harp7"]
    assert later.numbers["polls"] > both.numbers["polls"]


def test_instances_of_the_first_scan_count_from_it(owner: Owner) -> None:
    sums = DeviceTotals()
    owner.send("run 30")
    assert sums.of_devices(owner.instances())["harp7"].numbers["polls"] == 0
    owner.send("run 30")
    assert sums.of_devices(owner.instances())["harp7"].numbers["polls"] > 0


def test_series_of_a_nic_have_no_queue(owner: Owner) -> None:
    devices = DeviceTotals(wall_ns=lambda: 0).of_devices(owner.instances())
    instances = owner.instances()
    series = samples(ScrapeData(instances, devices=devices))
    labels = (("device", "harp7"),)
    assert series["harp_instances", labels] == 2
    assert series["harp_tcp_conns", labels] == devices["harp7"].numbers["tcp_conns"]
    assert series["harp_tcp_rtt_seconds_count", labels] >= 0
    assert not [labels for _, labels in series if "queue" in dict(labels)]
    per_queue = samples(ScrapeData(instances))
    assert len(per_queue) > len(series)


def test_comms_are_counted_by_the_kinds_of_their_lanes(job_owner: JobOwner) -> None:
    job_owner.send(*JOB_COMMANDS)
    job = job_owner.job()
    counts = transports(job)
    assert sum(counts.values()) == job.snapshot.status.comms_open
    open_kinds = {int(lane["kind"]) for lane in job.snapshot.lanes if lane["state"] != 3}
    assert open_kinds
    series = samples(_families_of((job,)))
    for (transport, reason), count in counts.items():
        assert series["harp_comms", (("reason", reason), ("transport", transport))] == count
    without_lanes = replace(job, snapshot=replace(job.snapshot, lanes=job.snapshot.lanes[:0]))
    assert transports(without_lanes) == {("unknown", ""): 0, ("none", ""): len(job.snapshot.comms)}


def test_comms_on_kernel_lanes_have_the_reason(make_job: MakeJob) -> None:
    """An unknown number in the page is "unknown"; a lost lane takes precedence."""
    owner = make_job()
    owner.send("comm 0", "lane 0 0 kernel")
    job = owner.job()
    (comm,) = job.snapshot.comms

    def reason() -> str:
        ((_, name),) = [key for key, count in transports(job).items() if count]
        return name

    assert reason() == "unknown", "the plugin names no reason"
    for number, (name, _) in enumerate(_page.LISTS["fallback"], 1):
        comm["fallback"] = number
        assert reason() == name
    for unknown in (len(_page.LISTS["fallback"]) + 1, 2**64 - 1):
        comm["fallback"] = unknown
        assert reason() == "unknown"
    owner.send("lane 0 1 harp", "die 0 1 104")
    job = owner.job()
    assert reason() == "lane_lost"
    assert all(help for _, help in _page.LISTS["fallback"])
