#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates documents from lists in the code.

These are conf/harp.toml, and the parts of docs/configuration.md, docs/check.md and docs/metrics.md
between `<!-- generated: NAME -->` and `<!-- end -->`. Run it with .venv/bin/python when those lists
change. With --check it writes nothing, and the exit code is 1 if a file is out of date;
tests/python/test_config_docs.py does that.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from harp import _page
from harp.config import reference, values
from harp.config.keys import ARRAYS, Key, Reader, global_keys, tables
from harp.daemon import families as daemon
from harp.doctor import examine
from harp.doctor.finding import CHECKS
from harp.stats import families, schema

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
PAGES = ("configuration.md", "check.md", "metrics.md")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    head = list(head)
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def name_table(head: str, entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a table of names and their meanings."""
    yield from table((head, "what"), ((f"`{name}`", text) for name, text in entries))


# --------------------------------------------------------------------------------------------------
# docs/configuration.md.
#
def _setting(key: Key, is_array: bool) -> Iterator[str]:
    default = values.to_toml(values.preset(key), key)
    yield f"`{key.key}`"
    if not is_array:
        yield f"`{key.variable}`"
    yield reference.range_of(key)
    yield "none" if key.name in reference.EXAMPLES else f"`{default}`"


def settings() -> Iterator[str]:
    """Yield a section for each table of harp.toml."""
    for name, purpose in reference.TABLES.items():
        keys, is_array = tables()[name].values(), name in ARRAYS
        yield from (f"## {reference.title(name)}", "", purpose, "")
        head: tuple[str, ...] = ("key", "value", "default")
        head = head if is_array else ("key", "variable", *head[1:])
        yield from table(head, (_setting(key, is_array) for key in keys))
        yield from ("", *(f"- `{key.key}`: {key.help}." for key in keys), "")


def variables() -> Iterator[str]:
    """Yield a table of the environment variables that have no key in harp.toml."""
    names = {Reader.JOB: "jobs", Reader.DAEMON: "harpd", Reader.TOOL: "harpctl"}
    rows = []
    for key in global_keys():
        if not key.table:
            readers = " and ".join(text for reader, text in names.items() if reader in key.readers)
            default = f"`{key.preset}`" if key.preset else "none"
            rows.append(
                (f"`{key.name}`", reference.range_of(key), default, f"{readers}: {key.help}")
            )
    yield from table(("variable", "value", "default", "for"), rows)


# --------------------------------------------------------------------------------------------------
# docs/check.md.
#
def checks(*scopes: str) -> Callable[[], Iterator[str]]:
    """Return a generator function of the table of the checks of these scopes."""
    assert examine.CHECK_MODULES  # importing them registered their checks
    rows = []
    for check in sorted(CHECKS, key=lambda check: check.scope in ("opened", "working", "used")):
        if check.scope in scopes:
            what, _, why = " ".join(check.description.split()).removesuffix(".").partition(": ")
            rows.append((f"`{check.name}`", what, why))
    return lambda: table(("name", "examines", "why"), rows)


# --------------------------------------------------------------------------------------------------
# docs/metrics.md.
#
LABELS = {
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
    **{families.rail_metric(name): "device, kind" for name, _ in _page.LISTS["rail"]},
}
NIC_METRICS = ("harpd_nic_usable", "harpd_leases", "harpd_queues_unreachable")


def metrics() -> Iterator[str]:
    """Yield a table of the metrics."""
    status = {"since_s": 0, "nics": (), "dpdk": (), "granted": 0, "refused": {}}
    daemon_families = daemon.collect((status, {"instances": ()}), True)
    rows = []
    for family in (*families.collect(families.ScrapeData(devices={})), *daemon_families):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        is_host = family.name.startswith(("harpd_", "harp_job_")) and family.name not in NIC_METRICS
        labels = LABELS.get(family.name, "" if is_host else "device")
        rows.append((f"`{family.name}{suffix}`", family.type, labels, family.documentation))
    yield from table(("metric", "type", "labels", "what"), rows)


def reasons() -> Iterator[str]:
    """Yield a table of the reasons for kernel lanes."""
    comm_reasons = (
        ("lane_lost", "the comm had HARP lanes and lost them"),
        ("unknown", "the job's plugin is of an earlier version of HARP"),
    )
    yield from name_table("reason", (*_page.LISTS["fallback"], *comm_reasons))


def job_counters() -> Iterator[str]:
    """Yield tables of the counters of jobs, comms and lanes."""
    yield from name_table("counter of a job", _page.LISTS["job"])
    for what, entries in (
        ("lanes over a NIC", _page.LISTS["rail"]),
        ("a comm", _page.LISTS["comm"]),
        ("a lane", _page.LISTS["lane"]),
    ):
        yield ""
        yield from name_table(f"number of {what}", entries)


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    "variables": variables,
    "host-checks": checks("host"),
    "interface-checks": checks("interface"),
    "port-checks": checks("port", "opened", "working", "used"),
    "metrics": metrics,
    "reasons": reasons,
    "drops": lambda: name_table(
        "reason", ((counter.drop_reason or "", counter.help) for counter in schema.drops())
    ),
    "verdicts": lambda: name_table("verdict", _page.LISTS["verdict"]),
    "histograms": lambda: name_table("histogram", _page.LISTS["histogram"]),
    "connections": lambda: name_table("number", _page.LISTS["flow"]),
    "jobs": job_counters,
}


def generated() -> dict[Path, str]:
    """The contents of each generated file."""
    contents = {ROOT / "conf" / "harp.toml": reference.to_toml()}
    for name in PAGES:
        path = ROOT / "docs" / name
        contents[path] = PART.sub(
            lambda part: part[1] + "".join(f"{line}\n" for line in PARTS[part[2]]()) + part[3],
            path.read_text(encoding="utf-8"),
        )
    return contents


def main() -> int:
    """Writes the files, or with --check, compares them."""
    outdated = {
        path: text
        for path, text in generated().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv[1:]:
        for path in outdated:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`")
        return 1 if outdated else 0
    for path, text in outdated.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
