# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the endpoint, in a network namespace, with the rules of conf/."""

import json
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest_stats import MakeOwner, Owner, tool
from harpd_documents import documents, nic

from harp.lab import Host, Lab

SERVE = """
from harp.daemon import metrics
from harp.stats.exporter import Exporter
Exporter(metrics.listen("127.0.0.1", 9747), lambda _problem: DOCUMENTS).serve_forever()
""".replace(
    "DOCUMENTS", repr(documents(nic("eth1", "free", "leased", verdicts={"rss_mismatch": 3})))
)

CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [RULES]
scrape_configs:
  - job_name: harp
    static_configs: [{targets: ["127.0.0.1:9747"]}]
"""

# In the namespace: each line of stdin is a query, and its answer is a line.
QUERY = """
import json, sys, urllib.error, urllib.parse, urllib.request
for line in sys.stdin:
    url = "http://127.0.0.1:9090/api/v1/query?query=" + urllib.parse.quote(line)
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            print(json.dumps(json.load(answer)))
    except urllib.error.HTTPError as error:
        print(json.dumps(json.load(error)))
"""

# In the namespace: asks until the answer isn't empty, or the time is over.
ASK = """
import json, sys, time, urllib.request
deadline = time.monotonic() + 60
while True:
    try:
        url = "http://127.0.0.1:9090/api/v1/" + sys.argv[1]
        with urllib.request.urlopen(url, timeout=5) as answer:
            data = json.load(answer)["data"]
        if data.get("result") or data.get("groups"):
            break
    except OSError:
        pass
    if time.monotonic() > deadline:
        sys.exit("Prometheus has no answer to " + sys.argv[1])
    time.sleep(0.1)
print(json.dumps(data))
"""


class Prometheus:
    """Asks the one in the namespace."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def ask(self, question: str) -> Any:
        """Its answer, once it has one."""
        return json.loads(self._host.run(sys.executable, "-c", ASK, question, timeout_s=90))

    def values(self, query: str) -> list[float]:
        """The values of a query's series."""
        answer = self.ask("query?query=" + urllib.parse.quote(query))
        return [float(each["value"][1]) for each in answer["result"]]

    def answers(self, queries: list[str]) -> list[Any]:
        """The answers to several queries, errors included."""
        process = self._host.popen([sys.executable, "-c", QUERY], stdin=subprocess.PIPE)
        out, err = process.communicate("\n".join(queries), timeout=90)
        assert process.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@pytest.fixture
def owner(make_owner: MakeOwner) -> Owner:
    """Its NIC has a name of its own, because pages of tests that run at the same time are seen."""
    result = make_owner(f"prom{os.getpid()}")
    result.send("run 200")
    return result


@pytest.fixture
def prometheus(
    need_root: None, root_dir: Path, tmp_path: Path, owner: Owner
) -> Iterator[Prometheus]:
    """Exporter and Prometheus, on the loopback interface of a laboratory's host."""
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.replace("RULES", str(root_dir / "conf" / "alerts.yml")))
    with Lab() as lab:
        host = lab.hosts[0]
        serving = host.popen([sys.executable, "-c", SERVE])
        running = host.popen(
            [
                tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                "--web.listen-address=127.0.0.1:9090",
                "--log.level=warn",
            ]
        )
        try:
            yield Prometheus(host)
        finally:
            _end(running)
            _end(serving)


def test_a_real_prometheus_scrapes_it(prometheus: Prometheus, owner: Owner) -> None:
    assert prometheus.values('up{job="harp"} == 1') == [1.0]
    of_owner = f'{{device="{owner.ifname}"}}'
    assert prometheus.values(f"harp_instances{of_owner}") == [2.0]
    assert prometheus.values('harp_steering_packets_total{verdict="rss_mismatch"}') == [3.0]
    before = prometheus.values(f"harp_tx_packets_total{of_owner}")[0]
    owner.send("run 300")
    # A counter is one to it: what was sent meanwhile is seen by increase() and grows.
    grown = prometheus.values(f"harp_tx_packets_total{of_owner} > {before + 300}")
    assert len(grown) == 1
    (middle,) = prometheus.values(
        f"histogram_quantile(0.5, sum by (le) (harp_tcp_rtt_seconds_bucket{of_owner}))"
    )
    assert 64e-6 < middle < 264e-6  # the wire's three polls are 50 us apart
    (series,) = prometheus.values(f'count({{__name__=~"harp.*",device="{owner.ifname}"}})')
    assert 150 < series < 350


# Panels of events that did not happen, and of jobs, which the processes of this test are not.
MAY_BE_EMPTY = {
    "Drops", "XDP verdicts", "Message latency", "Carried by lanes", "Lanes open",
    "Lanes lost and moved", "Round trip of lanes", "Comms by path",
}  # fmt: skip


def targets(root_dir: Path) -> list[tuple[str, str, set[str]]]:
    """Of each query of the dashboard: its panel, PromQL as Grafana sends it, and labels that the
    legend shows."""
    board = json.loads((root_dir / "conf/grafana-dashboard.json").read_text())
    values = {"$__rate_interval": "10s", "$instance": ".*", "$device": ".*"}
    found = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in values.items():
                query = query.replace(name, value)
            legend = set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
            found.append((panel["title"], query, legend))
    return found


def test_every_panel_of_the_dashboard_has_data(
    prometheus: Prometheus, owner: Owner, root_dir: Path
) -> None:
    """Prometheus accepts every query, and has the labels that the legends show. A reason may be
    empty."""
    owner.send("run 300")
    assert prometheus.values(f'rate(harp_tx_packets_total{{device="{owner.ifname}"}}[10s])')
    queries = targets(root_dir)
    assert len(queries) > 30
    answers = prometheus.answers([query for _, query, _ in queries])
    empty = set()
    for (title, query, legend), answer in zip(queries, answers, strict=True):
        assert answer["status"] == "success", f"{title}: {answer}"
        series = answer["data"]["result"]
        assert all(legend - {"reason"} <= set(each["metric"]) for each in series), query
        if not series:
            empty.add(title)
    assert empty <= MAY_BE_EMPTY, empty
