# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md, made from the lists: `python -m harp.stats.reference > docs/metrics.md`."""

import sys
from collections.abc import Iterable, Iterator

from harp import _page
from harp.stats import families, schema

_HEAD = """# Statistics and metrics

This page is made by `python -m harp.stats.reference` from the lists that the code is compiled with;
a test keeps it current. How to look: `harpctl stats`, `harpctl flows`, or Prometheus.

Every stack writes its statistics to a page of shared memory, at most once a millisecond, and nobody
has to ask it: `dataplane/include/harp_page.h` is the format. Reading never disturbs a job. While a
stack sleeps its numbers are at most 0.1 s old. What a job writes is its own word.

## What it costs

`tools/instructions.py` counts instructions, with a page and without: about 35 more a poll (the
histogram of gaps between polls, and the question whether a millisecond has passed), and for a
publication, at most a thousand a second, 1,450 with one connection, 3,700 with thousands.
`tools/idle.py` measures what an idle stack with 100 connections takes of a core over a minute:
0.011 % with a page, 0.007 % without, and it is woken as often: a stack without traffic isn't woken
to publish.

## Prometheus

harpd serves `http://127.0.0.1:9747/metrics`; `[metrics]` in harp.toml has address and port. The
endpoint has no password: whoever can connect can read. `conf/alerts.yml` has alert rules,
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
"""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _metrics() -> Iterator[tuple[str, str, str, str]]:
    daemon = families.DaemonView(0.0, (families.NicView("eth1", True, {"free": 1}, {"absent": 0}),))
    labels = {
        "harp_drops": "nic, queue, slot, reason",
        "harp_pages_ignored": "reason",
        "harp_build": "version",
        "harpd_queues": "nic, state",
        "harp_steering_packets": "nic, verdict",
        "harpd_leases_refused": "error",
    }
    for family in families.collect(families.Scene(daemon=daemon)):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        default = "nic, queue, slot"
        if family.name.startswith("harpd_"):
            of_nic = ("harpd_nic_usable", "harpd_leases", "harpd_queues_unreachable")
            default = "nic" if family.name in of_nic else ""
        yield (
            f"`{family.name}{suffix}`",
            family.type,
            labels.get(family.name, default),
            family.documentation,
        )


def document() -> Iterator[str]:
    """Its lines."""
    yield _HEAD
    yield from _table(("metric", "type", "labels", "what"), _metrics())
    yield "\n## Reasons of drops\n"
    yield "`harp_drops_total{reason=...}`, and `harpctl stats`:\n"
    yield from _table(
        ("reason", "what"), ((f"`{one.drop_reason}`", one.help) for one in schema.drops())
    )
    yield "\n## Verdicts of the steering program\n"
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


if __name__ == "__main__":
    sys.stdout.write("\n".join(document()) + "\n")
