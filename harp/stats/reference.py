# SPDX-License-Identifier: Apache-2.0
"""Generates docs/metrics.md from the lists: `python -m harp.stats.reference > docs/metrics.md`."""

import sys
from collections.abc import Iterable, Iterator

from harp import _page
from harp.daemon import families as daemon
from harp.stats import families, schema

_HEAD = """# Statistics and metrics

`python -m harp.stats.reference` generates this page from the lists in the code; a test keeps it
current. `harpctl stats`, `harpctl flows` and Prometheus show the statistics.

Every stack writes its statistics to a page of shared memory, at most once a millisecond
(`dataplane/include/harp_page.h` is the format). Reading never disturbs a job. While a stack sleeps,
its numbers are at most 0.1 s old. A page contains the claims of the job that writes it.

Every process that runs the NCCL plugin is a *job*. It has a page of its own with its comms and
lanes, of HARP and of the kernel, even without privileges, harpd or instances. TCP's numbers of a
lane (round trip, in flight) are sampled while it works.

## Cost

`tools/instructions.py` counts instructions with and without a page: about 35 more per poll, and for
a publication, at most a thousand a second, 1,450 with one connection and 3,700 with thousands.
A stack without traffic does not wake to publish.

## Prometheus

harpd serves `http://127.0.0.1:9747/metrics`; `[metrics]` in harp.toml sets address and port. The
endpoint has no password: any client that can connect can read. `conf/alerts.yml` has alert rules,
`conf/grafana-dashboard.json` a dashboard.

    scrape_configs:
      - job_name: harp
        static_configs:
          - targets: ["127.0.0.1:9747"]

Instances have sums by `device`, the name of their NIC. `/metrics?per=queue` (`params: {per:
[queue]}` in scrape_configs) has series of each queue instead, about 215 a queue, with the labels
`device`, `queue` and `slot`; slot numbers the instances on the same queue of NICs of the same name
(in several network namespaces) from 0. There is no label with a process, a peer or a job's name:
`harpctl stats` and `harpctl flows` show those. An instance counts if root owns it or harpd leased
it; `harp_pages_ignored` counts the others. harpd's own process has `process_*`.

A DPDK port's instance on queue 0 publishes its driver's counters (xstats, once a second, at most
512) by the driver's own names: `harp_port_xstat_total`, `harpctl stats --all`, and `xstats` of
`harpctl stats -o json`. A NIC has at most 512 such names for the life of the endpoint, of letters,
digits, blanks and `_.:/[]-`; `harp_port_xstats_ignored` counts the others.

Jobs have sums over all that are root's or have a lease, by `device` and `kind` (`harp`, `kernel`,
`dpdk`) of their lanes; a NIC that this host does not have is called `other`. `harp_comms` counts
open comms by `transport`, the kinds of their open lanes, and by `reason`: why a comm of `kernel`
has no HARP lane. The job's log has the details.

Sums of instances and jobs begin at 0 with harpd, and stay when an instance or a job ends. What
happens between the last scrape and the end is not counted. An instance or job that began after
harpd's first scrape counts from its beginning, whenever it is first seen; an older one counts from
the scrape that first saw it.
"""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _metrics() -> Iterator[tuple[str, str, str, str]]:
    nic = daemon.NicView("eth1", True, {"free": 1}, {"absent": 0})
    own = daemon.collect(daemon.DaemonView(0.0, (nic,)), True)
    labels = {
        "harp_drops": "device, reason",
        "harp_pages_ignored": "reason",
        "harp_port_xstat": "device, slot, name",
        "harp_port_xstats_ignored": "reason",
        "harp_build": "version",
        "harpd_queues": "device, state",
        "harp_steering_packets": "device, verdict",
        "harpd_leases_refused": "error",
        "harp_jobs": "",
        "harp_comms_open": "",
        "harp_comms": "transport, reason",
        "harp_rail_down": "device",
        "harp_job_lanes_died": "reason",
        "harp_lane_srtt_seconds": "device, kind",
    }
    labels |= {families.rail_metric(name): "device, kind" for name, _ in _page.rail_values()}
    for family in (*families.collect(families.ScrapeData(devices={})), *own):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        default = "device"
        if family.name.startswith("harpd_"):
            of_nic = ("harpd_nic_usable", "harpd_leases", "harpd_queues_unreachable")
            default = "device" if family.name in of_nic else ""
        elif family.name.startswith("harp_job_"):
            default = ""
        yield (
            f"`{family.name}{suffix}`",
            family.type,
            labels.get(family.name, default),
            family.documentation,
        )


_JOBS = """
## Jobs, comms and lanes

`harpctl flows -o json`, `harpctl stats -o json` and harpd's `stats` answer have a list `jobs`;
each:

- `pid`, `uid`, `comm` (the process's name), from the kernel. `identity`, `status`: as an
  instance's; `status.flows_open` counts its lanes, `flows_hidden` and `comms_hidden` those
  without a record, for which `page_flows` is too small (there is room for 16 lanes for each).
- `counters`: the table below.
- `rails`: for each NIC and kind of lane `ifname`, `kind`, `down` (true: no lane of a comm that
  uses the NIC works), the numbers below, and `srtt`, a histogram.
- `comms`: a list, by age. `peer`, `peer_port`, `scope_id`, `ifname` (the NIC that NCCL asked
  for), `state` (`open`, `failed`), `side` (`send`, `receive`),
  `fallback` (why it began on a kernel lane, or empty), the numbers below, and `lanes`.
  One without a record on the page has only `peer` and `lanes`.
- `lanes` of each comm, by index: `local`, `local_port`, `remote`, `remote_port`, `scope_id`,
  `ifname`, `state` (`open`, `stalled`, `dead`), `kind` (`harp`, `kernel`), `end` (why the last
  one was lost, or empty), `encrypted`, `backup`, `share` (0 to 1, of the payload that the
  comm's lanes carried), and the numbers below. A lane is a place in its comm: a lane that replaces
  a lost one continues its numbers.
"""


def _jobs() -> Iterator[str]:
    yield _JOBS
    lists = (
        ("counter of a job", _page.job_counters()),
        ("number of lanes over a NIC", _page.rail_values()),
        ("number of a comm", _page.comm_values()),
        ("number of a lane", _page.lane_values()),
    )
    for name, listed in lists:
        yield ""
        yield from _table((name, "what"), ((f"`{one}`", help) for one, help in listed))


def document() -> Iterator[str]:
    """Return the page's lines."""
    yield _HEAD
    yield from _table(("metric", "type", "labels", "what"), _metrics())
    yield "\n## Reasons of kernel lanes\n"
    yield '`harp_comms{transport="kernel", reason=...}`, and `fallback` of a comm:\n'
    reasons = (
        *_page.fallbacks(),
        ("lane_lost", "the comm had HARP lanes and lost them"),
        ("unknown", "the job's plugin is of an earlier version of HARP"),
    )
    yield from _table(("reason", "what"), ((f"`{name}`", help) for name, help in reasons))
    yield "\n## Reasons of drops\n"
    yield "`harp_drops_total{reason=...}`, and `harpctl stats`:\n"
    yield from _table(
        ("reason", "what"), ((f"`{one.drop_reason}`", one.help) for one in schema.drops())
    )
    yield "\n## Verdicts of the XDP program\n"
    yield "`harp_steering_packets_total{verdict=...}`, and `harpctl status`:\n"
    yield from _table(
        ("verdict", "what"), ((f"`{name}`", help) for name, help in _page.steering_verdicts())
    )
    yield "\n## Histograms\n"
    yield (
        "On the page four buckets an octave, so that a quantile is right within a quarter; in "
        "Prometheus one bucket an octave, from 1.024 us to 17.2 s.\n"
    )
    yield from _table(
        ("histogram", "what"), ((f"`{name}`", help) for name, help in _page.histograms())
    )
    yield "\n## Numbers of a connection\n"
    yield "`harpctl flows -o json`; besides these the addresses and the lane's label:\n"
    yield from _table(
        ("number", "what"), ((f"`{name}`", help) for name, help in _page.flow_values())
    )
    yield from _jobs()


if __name__ == "__main__":
    sys.stdout.write("\n".join(document()) + "\n")
