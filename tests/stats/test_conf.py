# SPDX-License-Identifier: Apache-2.0
"""conf/: alert rules fire when they should, and queries name metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest_stats import documents, nic, tool
from programs import finished

from harp import _page
from harp.daemon import families as daemon
from harp.stats import families, schema

WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
VERDICT = re.compile(r'verdict="([a-z_0-9]+)"')
REASON = re.compile(r'reason="([a-z_0-9]+)"')


def exported() -> set[str]:
    """Return the names of all series that the exporter may publish."""
    of_harpd = daemon.collect(documents(nic("eth1", "free", verdicts={"absent": 1})), True)
    names = {"up"}
    for family in (*families.collect(families.ScrapeData(devices={})), *of_harpd):
        if family.type == "counter":
            names.add(f"{family.name}_total")
        elif family.type == "histogram":
            names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
        elif family.type == "info":
            names.add(f"{family.name}_info")
        else:
            names.add(family.name)
    return names


def metric_names(query: str) -> set[str]:
    unquoted = STRING.sub("", query)
    return {word for word in WORD.findall(unquoted) if word.startswith(("harp_", "harpd_"))}


def dashboard(root_dir: Path) -> Any:
    return json.loads((root_dir / "conf" / "grafana-dashboard.json").read_text())


def queries(root_dir: Path) -> Iterator[tuple[str, str]]:
    """Return every expression of the dashboard and the rules with its place."""
    board = dashboard(root_dir)
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]
    rules = (root_dir / "conf" / "alerts.yml").read_text()
    for rule in re.split(r"(?m)^      - alert: ", rules)[1:]:
        yield f"alert {rule.split()[0]}", rule.split("expr:")[1].split("labels:")[0]


def test_every_metric_in_a_query_exists(root_dir: Path) -> None:
    existing, count = exported(), 0
    for place, query in queries(root_dir):
        metrics = metric_names(query) - {"harpd", "harp"}
        count += len(metrics)
        assert metrics <= existing, f"{place}: {metrics - existing}"
    assert count > 40
    assert not metric_names('up{job="harp_x"}')
    assert metric_names("rate(harp_nonsense_total[5m])") - existing


def test_every_label_value_exists(root_dir: Path) -> None:
    verdicts = {name for name, _ in _page.LISTS["verdict"]}
    reasons = {statistic.drop_reason for statistic in schema.drops()}
    for place, query in queries(root_dir):
        assert set(VERDICT.findall(query)) <= verdicts, place
        if "harp_drops" in query:
            assert set(REASON.findall(query)) <= reasons, place
            for pattern in re.findall(r'reason[!=]~"([^"]*)"', query):
                for part in pattern.split("|"):
                    text = part.replace("(", "").replace(")", "")
                    assert any(text in (reason or "") for reason in reasons), f"{place}: {part}"


@pytest.mark.parametrize(
    "command",
    [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]],
    ids=" ".join,
)
def test_alert_rules(root_dir: Path, command: list[str]) -> None:
    done = finished([tool("promtool"), *command], cwd=root_dir / "conf")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_both_ways(root_dir: Path) -> None:
    """Each alert fires in one test and is quiet in another."""
    names = re.findall(r"(?m)^      - alert: (\w+)", (root_dir / "conf" / "alerts.yml").read_text())
    tests = (root_dir / "conf" / "alerts_test.yml").read_text()
    assert len(names) >= 15
    for name in names:
        assert re.search(rf"alertname: {name}\}}", tests), f"{name} is never quiet"
        assert re.search(rf"alertname: {name}\n +exp_alerts", tests), f"{name} never fires"
