#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what is generated from the lists in the code: conf/harp.toml, and the parts of
docs/configuration.md, docs/check.md and docs/metrics.md between `<!-- generated: NAME -->` and
`<!-- end -->`.

Run it by the environment's Python after a change of those lists; with --check it
writes nothing and exits 1 when a file is out of date, as tests/python/test_config_docs.py does.
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


def named(head: str, listed: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a table of names and what they mean."""
    yield from table((head, "what"), ((f"`{name}`", text) for name, text in listed))


# --------------------------------------------------------------------------------------------------
# docs/configuration.md.
#
def _setting(key: Key, array: bool) -> Iterator[str]:
    default = values.to_toml(values.preset(key), key)
    yield f"`{key.key}`"
    if not array:
        yield f"`{key.variable}`"
    yield reference.range_of(key)
    yield "none" if key.name in reference.EXAMPLES else f"`{default}`"
    yield reference.applies(key)


def settings() -> Iterator[str]:
    """Yield a section for each table of harp.toml."""
    for name, purpose in reference.TABLES.items():
        keys, array = tables()[name].values(), name in ARRAYS
        yield from (f"## {reference.title(name)}", "", purpose, "")
        head = ("key", "value", "default", "when")
        head = head if array else ("key", "variable", *head[1:])
        yield from table(head, (_setting(key, array) for key in keys))
        yield from ("", *(f"- `{key.key}`: {key.help}." for key in keys), "")


def variables() -> Iterator[str]:
    """Yield a table of the variables that have no key."""
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
    """Return what yields a table of the checks of these scopes."""
    assert examine.CHECK_MODULES  # they have registered their checks
    rows = []
    for each in sorted(CHECKS, key=lambda one: one.scope in ("opened", "working", "used")):
        if each.scope in scopes:
            what, _, why = " ".join(each.description.split()).removesuffix(".").partition(": ")
            rows.append((f"`{each.name}`", what, why))
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
OF_NIC = ("harpd_nic_usable", "harpd_leases", "harpd_queues_unreachable")


def metrics() -> Iterator[str]:
    """Yield a table of the metrics."""
    status = {"since_s": 0, "nics": (), "dpdk": (), "granted": 0, "refused": {}, "reloads": 0}
    own = daemon.collect((status, {"instances": ()}), True)
    rows = []
    for family in (*families.collect(families.ScrapeData(devices={})), *own):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        of_host = family.name.startswith(("harpd_", "harp_job_")) and family.name not in OF_NIC
        labels = LABELS.get(family.name, "" if of_host else "device")
        rows.append((f"`{family.name}{suffix}`", family.type, labels, family.documentation))
    yield from table(("metric", "type", "labels", "what"), rows)


def reasons() -> Iterator[str]:
    """Yield a table of the reasons of kernel lanes."""
    more = (
        ("lane_lost", "the comm had HARP lanes and lost them"),
        ("unknown", "the job's plugin is of an earlier version of HARP"),
    )
    yield from named("reason", (*_page.LISTS["fallback"], *more))


def numbers_of_jobs() -> Iterator[str]:
    """Yield tables of the numbers of jobs, comms and lanes."""
    yield from named("counter of a job", _page.LISTS["job"])
    for what, listed in (
        ("lanes over a NIC", _page.LISTS["rail"]),
        ("a comm", _page.LISTS["comm"]),
        ("a lane", _page.LISTS["lane"]),
    ):
        yield ""
        yield from named(f"number of {what}", listed)


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    "variables": variables,
    "host-checks": checks("host"),
    "interface-checks": checks("interface"),
    "port-checks": checks("port", "opened", "working", "used"),
    "metrics": metrics,
    "reasons": reasons,
    "drops": lambda: named("reason", ((one.drop_reason or "", one.help) for one in schema.drops())),
    "verdicts": lambda: named("verdict", _page.LISTS["verdict"]),
    "histograms": lambda: named("histogram", _page.LISTS["histogram"]),
    "connections": lambda: named("number", _page.LISTS["flow"]),
    "jobs": numbers_of_jobs,
}


def generated() -> dict[Path, str]:
    """Path in the tree -> what it must contain."""
    found = {ROOT / "conf" / "harp.toml": reference.to_toml()}
    for name in PAGES:
        path = ROOT / "docs" / name
        found[path] = PART.sub(
            lambda part: part[1] + "".join(f"{line}\n" for line in PARTS[part[2]]()) + part[3],
            path.read_text(encoding="utf-8"),
        )
    return found


def main() -> int:
    """Writes, or checks."""
    late = {
        path: text
        for path, text in generated().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv[1:]:
        for path in late:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`")
        return 1 if late else 0
    for path, text in late.items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
