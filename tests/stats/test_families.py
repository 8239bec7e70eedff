# SPDX-License-Identifier: Apache-2.0
"""Metric families of a scrape: types, units, buckets, and a bounded number of labels."""

from dataclasses import replace

import pytest
from conftest_stats import Documents, MakeOwner, Owner, documents, nic, tool
from programs import finished
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from harp.daemon import families as harpd_families
from harp.stats import families, schema
from harp.stats.families import ScrapeData
from harp.stats.instance import Instance

DAEMON = documents(
    nic("eth1", "leased", *["free"] * 3, verdicts={"redirect_tcp": 7, "rss_mismatch": 0}),
    leases=[("eth1", 0, 4711)],
    granted=5,
    refused={"EBUSY": 2},
)
LEASED = harpd_families.leased(DAEMON[1])


class _Collector:
    def __init__(self, scrape: ScrapeData, daemon: Documents | None) -> None:
        self._scrape, self._daemon = scrape, daemon

    def collect(self) -> list[Metric]:
        return [*harpd_families.collect(self._daemon, True), *families.collect(self._scrape)]


def exposition(scrape: ScrapeData, daemon: Documents | None = None) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(scrape, daemon))  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def samples(
    scrape: ScrapeData, daemon: Documents | None = None
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return all samples by name and labels; a duplicate series fails."""
    result: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(exposition(scrape, daemon)):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in result, f"{key} is a duplicate"
            result[key] = sample.value
    return result


@pytest.fixture
def instances(owner: Owner) -> tuple[Instance, ...]:
    owner.send("latency 1000", "latency 1024", "latency 1025", "latency 99999999999", "run 30")
    return owner.instances()


def _with_identity(instance: Instance, **identity: object) -> Instance:
    new = replace(instance.snapshot.identity, **identity)  # type: ignore[arg-type]
    return replace(instance, snapshot=replace(instance.snapshot, identity=new))


def test_promtool_accepts_the_metrics(instances: tuple[Instance, ...]) -> None:
    scrape_data = ScrapeData(instances, {"ended": 0})
    for scrape, daemon in ((ScrapeData(), None), (scrape_data, DAEMON), (ScrapeData(), DAEMON)):
        done = finished([tool("promtool"), "check", "metrics"], input=exposition(scrape, daemon))
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_statistic_is_exported_once(instances: tuple[Instance, ...]) -> None:
    series = samples(ScrapeData(instances, {}), DAEMON)
    labels = (("device", "harp7"), ("queue", "0"), ("slot", "0"))
    counters = instances[0].snapshot.counters
    for statistic in schema.statistics():
        if statistic.drop_reason:
            key = "harp_drops_total", (*labels[:2], ("reason", statistic.drop_reason), labels[2])
        else:
            suffix = "_total" if statistic.kind == "counter" else ""
            key = f"harp_{statistic.name}{suffix}", labels
        assert series[key] == counters[statistic.name], statistic.name


def test_buckets_are_cumulative_and_exact(instances: tuple[Instance, ...]) -> None:
    series = samples(ScrapeData(instances))
    name, labels = (
        "harp_message_latency_seconds",
        (("device", "harp7"), ("queue", "0"), ("slot", "0")),
    )
    buckets = {
        float(dict(key[1])["le"]): value
        for key, value in series.items()
        if key[0] == f"{name}_bucket" and dict(key[1])["queue"] == "0"
    }
    assert buckets[1.024e-06] == 2  # 1000 and 1024: a bound belongs to its bucket
    assert buckets[2.048e-06] == 3
    assert buckets[17.179869184] == 3
    assert buckets[float("inf")] == 4 == series[f"{name}_count", labels]
    assert series[f"{name}_sum", labels] == pytest.approx(99.999999999 + 3.049e-06)
    values = [buckets[bound] for bound in sorted(buckets)]
    assert values == sorted(values)


def test_the_same_queue_of_two_namespaces_has_two_slots(instances: tuple[Instance, ...]) -> None:
    first = instances[0]
    second = _with_identity(
        first, start_wall_ns=first.snapshot.identity.start_wall_ns + 1, netns=99
    )
    series = samples(ScrapeData((second, first)))
    slots = {dict(labels)["slot"] for name, labels in series if name == "harp_polls_total"}
    assert slots == {"0", "1"}
    starts = [
        value for (name, _), value in sorted(series.items()) if name.endswith("start_time_seconds")
    ]
    assert starts == sorted(starts)


def test_unknown_statistics_have_no_series(instances: tuple[Instance, ...]) -> None:
    """A page of a user has series only if it names the NIC and queue of the user's lease."""
    user = replace(_with_identity(instances[0], ifname="eth1", queue=0), uid=1000)
    tenant = replace(user, pid=4711)
    liar = replace(_with_identity(tenant, queue=1), pid=4711)
    believed, ignored = families.believed((user, tenant, liar), LEASED)
    assert believed == (tenant,)
    assert ignored["unknown_owner"] == 2
    assert families.believed((tenant,), {})[0] == ()


@pytest.mark.parametrize("ifname", ["", "a b", 'x"} 1\n', "0123456789abcdef", "é"])
def test_invalid_names_have_no_series(instances: tuple[Instance, ...], ifname: str) -> None:
    believed, ignored = families.believed((_with_identity(instances[0], ifname=ifname),), {})
    assert (believed, ignored["malformed"]) == ((), 1)


def test_the_number_of_series_is_bounded(instances: tuple[Instance, ...]) -> None:
    crowd = [instances[0]] * (families.INSTANCES_MAX + 3)
    believed, ignored = families.believed(crowd, {})
    assert (len(believed), ignored["too_many"]) == (families.INSTANCES_MAX, 3)
    queue = families.QUEUE_MAX + 1
    assert families.believed((_with_identity(instances[0], queue=queue),), {})[1]["malformed"] == 1


def test_names_of_driver_counters_are_bounded(make_owner: MakeOwner) -> None:
    """Printable names become series, at most 512 per NIC; the others are counted."""
    owner = make_owner()
    owner.send("xstat rx_missed_errors", "xstat rx_missed_errors", "xstat \x1b[2J", 'xstat a"} 1')
    names = families.Names()
    counted = (
        "harp_port_xstat_total",
        (("device", "harp7"), ("name", "rx_missed_errors"), ("slot", "0")),
    )

    def scrape() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        instances, ignored = names.sift(owner.instances())
        return samples(ScrapeData(instances, xstats_ignored=ignored))

    def ignored(scrape: dict[tuple[str, tuple[tuple[str, str], ...]], float], why: str) -> float:
        return scrape[("harp_port_xstats_ignored", (("reason", why),))]

    first = scrape()
    assert first[counted] == 7
    assert sum(name == "harp_port_xstat_total" for name, _ in first) == 1
    assert (ignored(first, "name"), ignored(first, "too_many")) == (2, 0)
    owner.send("xstats 508")
    assert sum(name == "harp_port_xstat_total" for name, _ in scrape()) == 509
    # The names of another job count up to the limit.
    owner = make_owner()
    owner.send("xstats 3", *(f"xstat other_{i}" for i in range(9)))
    last = scrape()
    assert sum(name == "harp_port_xstat_total" for name, _ in last) == 3 + 3
    assert ignored(last, "too_many") == 6


def test_metrics_of_harpd(instances: tuple[Instance, ...]) -> None:
    series = samples(ScrapeData(), DAEMON)
    assert series["harpd_leases", (("device", "eth1"),)] == 1
    assert series["harpd_queues", (("device", "eth1"), ("state", "free"))] == 3
    assert (
        series["harp_steering_packets_total", (("device", "eth1"), ("verdict", "redirect_tcp"))]
        == 7
    )
    assert series["harpd_leases_refused_total", (("error", "EBUSY"),)] == 2
    assert series["harpd_leases_refused_total", (("error", "EACCES"),)] == 0
    assert series["harpd_nic_usable", (("device", "eth1"),)] == 1
    assert series["harpd_queues_unreachable", (("device", "eth1"),)] == 0
    assert series["harpd_start_time_seconds", ()] == 1000


def test_a_port_is_leased_with_all_its_queues() -> None:
    """A NIC that can't be leased is shown as unusable."""
    port = {"name": "rail0", "problem": "", "pid": 13, "queues": 2}
    lease = {"ifname": "rail0", "queue": 0, "device": "net_memif0", "queues": 2, "pid": 13}
    broken = nic("eth2", problem="no such interface", queues_unreachable=[1, 2])
    status, _ = documents(broken, dpdk=[port])
    series = samples(ScrapeData(), (status, {"instances": [lease]}))
    assert series["harpd_nic_usable", (("device", "eth2"),)] == 0
    assert series["harpd_queues_unreachable", (("device", "eth2"),)] == 2
    assert series["harpd_nic_usable", (("device", "rail0"),)] == 1
    assert series["harpd_queues", (("device", "rail0"), ("state", "leased"))] == 2
    assert series["harpd_leases", (("device", "rail0"),)] == 2
