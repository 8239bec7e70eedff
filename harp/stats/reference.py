# SPDX-License-Identifier: Apache-2.0
"""Generates docs/metrics.md from the lists: `python -m harp.stats.reference > docs/metrics.md`."""

import sys
from collections.abc import Iterable, Iterator

from harp import _page
from harp.daemon import families as daemon
from harp.stats import families, schema

_HEAD = """# Statistics and metrics

This page is made by `python -m harp.stats.reference` from the lists that the code is compiled with;
a test keeps it current. How to look: `harpctl stats`, `harpctl flows`, or Prometheus.

Every stack writes its statistics to a page of shared memory, at most once a millisecond, and nobody
has to ask it: `dataplane/include/harp_page.h` is the format. Reading never disturbs a job. While a
stack sleeps its numbers are at most 0.1 s old. What a job writes is its own word.

Every process that runs the NCCL plugin is a *job* and has a page of its own besides, with its
comms and their lanes, HARP's and the kernel's: without privileges, harpd or instances too. A
comm's records are written every 10 ms while it works, and some 20 ms after its last request is done
at the latest; at once when it or a lane of it opens, fails or ends. What TCP says of a lane (round
trip, in flight) is asked now and then while it works.

## What it costs

`tools/instructions.py` counts instructions, with a page and without: about 35 more a poll (the
histogram of gaps between polls, and the question whether a millisecond has passed), and for a
publication, at most a thousand a second, 1,450 with one connection, 3,700 with thousands.
`tools/idle.py` measures what an idle stack with 100 connections takes of a core over a minute:
0.011 % with a page, 0.007 % without, and it is woken as often: a stack without traffic isn't woken
to publish.

## Prometheus

harpd serves `http://127.0.0.1:9747/metrics`; `[metrics]` in harp.toml has address and port. The
endpoint has no password: any client that can connect can read. `conf/alerts.yml` has alert rules,
`conf/grafana-dashboard.json` a dashboard.

    scrape_configs:
      - job_name: harp
        static_configs:
          - targets: ["127.0.0.1:9747"]

Labels: `nic`, `queue`, and `slot`, which counts instances that are on the same queue of NICs of the
same name (in several network namespaces) from 0. There is no label with a process, a peer or a
job's name: `harpctl stats` and `harpctl flows` show those. Instances have series when root owns
them or harpd leased them; `harp_pages_ignored` counts the others. A new process on a queue begins
at 0 again, which `rate()` takes for what it is.

Of a DPDK port the instance on queue 0 tells what its driver counts (xstats, once a second; 512 at
most), under the driver's own names: `harp_port_xstat_total`, `harpctl stats --all`, and `xstats` of
`harpctl stats -o json`. A NIC has 512 names at most for as long as the endpoint lives, of letters,
digits, blanks and `_.:/[]-`; `harp_port_xstats_ignored` counts what that leaves out.

Of jobs there are sums over all that are root's or have a lease, by `nic` and `kind` (`harp`,
`kernel`) of their lanes; a NIC that this host doesn't have is called `other`. Sums go on when a job
ends, and begin at 0 when harpd does. What a job did after the last scrape before its end is not in
them. A job that began after harpd's first scrape counts from its beginning, in whichever scrape it
is first seen: one whose user publishes more pages than are looked at, or that has no lease yet, may
come late, as a step. One that is older counts from when it is first seen. The series of a NIC and
kind are there from the first job on that has lanes of it, at what that job did.
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
        "harp_drops": "nic, queue, slot, reason",
        "harp_pages_ignored": "reason",
        "harp_port_xstat": "nic, slot, name",
        "harp_port_xstats_ignored": "reason",
        "harp_build": "version",
        "harpd_queues": "nic, state",
        "harp_steering_packets": "nic, verdict",
        "harpd_leases_refused": "error",
        "harp_jobs": "",
        "harp_comms_open": "",
        "harp_rail_down": "nic",
        "harp_job_lanes_died": "reason",
        "harp_lane_srtt_seconds": "nic, kind",
    }
    labels |= {families.rail_metric(name): "nic, kind" for name, _ in _page.rail_values()}
    for family in (*families.collect(families.Scene()), *own):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        default = "nic, queue, slot"
        if family.name.startswith("harpd_"):
            of_nic = ("harpd_nic_usable", "harpd_leases", "harpd_queues_unreachable")
            default = "nic" if family.name in of_nic else ""
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

- `pid`, `uid`, `comm` (the process's name): the kernel's word. `identity`, `status`: as an
  instance's; `status.flows_open` counts its lanes, `flows_hidden` and `comms_hidden` those
  without a record, for which `page_flows` is too small (there is room for 16 lanes for each).
- `counters`: the table below.
- `rails`: for each NIC and kind of lane `ifname`, `kind`, `down` (true: no lane of a comm that
  wants the NIC works), the numbers below, and `srtt`, a histogram.
- `comms`: a list, by age. `peer`, `peer_port`, `scope_id`, `ifname` (the NIC that NCCL asked
  for), `state` (`open`, `failed`), `side` (`send`, `receive`),
  the numbers below, and `lanes`. One whose record the page has no room for has `peer` and `lanes`
  alone.
- `lanes` of each comm, by index: `local`, `local_port`, `remote`, `remote_port`, `scope_id`,
  `ifname`, `state` (`open`, `stalled`, `dead`), `kind` (`harp`, `kernel`), `end` (why the last
  one there was lost, or empty), `sealed`, `backup`, `share` (0 to 1, of the payload that the
  comm's lanes carried), and the numbers below. A lane is a place in its comm: one that takes a
  lost one's place goes on with its numbers.
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
