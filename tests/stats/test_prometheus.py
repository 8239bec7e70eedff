# SPDX-License-Identifier: Apache-2.0
"""In a network namespace, a real Prometheus with the rules of conf/ scrapes the endpoint, and
Chromium draws the dashboard of conf/.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from conftest_stats import Documents, JobOwner, MakeOwner, Owner, documents, nic, tool

from harp import files
from harp.lab import Host, Lab

# Runs in the namespace: the exporter, which reads harpd's documents from a file at each scrape.
SERVE = """
import json, pathlib, sys
from harp.daemon import metrics
from harp.stats import exporter
exporter.AGE_S = 0.0  # no answer is reused
file = pathlib.Path(sys.argv[1])
socket = metrics.listen("127.0.0.1", 9747)
exporter.Exporter(socket, lambda: json.loads(file.read_text())).serve_forever()
"""

CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [RULES]
scrape_configs:
  - job_name: harp
    static_configs: [{targets: ["127.0.0.1:9747"], labels: {instance: node1}}]
"""

# Runs in the namespace: repeats a query until the answer is not empty, or time is up.
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
    """Exporter and Prometheus in a namespace. Prometheus serves the files of folder/user."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder = host, folder

    def report(self, new: Documents) -> None:
        """Set what harpd reports from the next scrape on."""
        files.write_whole(self.folder / "documents.json", json.dumps(new).encode())

    def ask(self, question: str) -> Any:
        """Query Prometheus until its answer is not empty; return it."""
        return json.loads(self.host.run(sys.executable, "-c", ASK, question, timeout_s=90))

    def values(self, query: str) -> list[float]:
        answer = self.ask("query?query=" + urllib.parse.quote(query))
        return [float(series["value"][1]) for series in answer["result"]]


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@pytest.fixture
def owner(make_owner: MakeOwner) -> Owner:
    """Its NIC has a unique name, because the exporter also sees pages of concurrent tests."""
    result = make_owner(f"prom{os.getpid()}")
    result.send("run 200")
    return result


@pytest.fixture
def prometheus(need_root: None, root_dir: Path, tmp_path: Path) -> Iterator[Prometheus]:
    """Exporter and Prometheus on the loopback interface of a lab host."""
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.replace("RULES", str(root_dir / "conf" / "alerts.yml")))
    with Lab() as lab:
        host = lab.hosts[0]
        result = Prometheus(host, tmp_path)
        result.report(documents(nic("eth1", "free", "leased", verdicts={"rss_mismatch": 3})))
        serving = host.popen([sys.executable, "-c", SERVE, tmp_path / "documents.json"])
        running = host.popen(
            [
                tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                "--web.listen-address=127.0.0.1:9090",
                f"--web.user-assets={tmp_path / 'user'}",
                "--log.level=warn",
            ]
        )
        try:
            yield result
        finally:
            _end(running)
            _end(serving)


def test_a_real_prometheus_scrapes_it(owner: Owner, prometheus: Prometheus) -> None:
    assert prometheus.values('up{job="harp"} == 1') == [1.0]
    of_owner = f'{{device="{owner.ifname}"}}'
    assert prometheus.values(f"harp_instances{of_owner}") == [2.0]
    assert prometheus.values('harp_steering_packets_total{verdict="rss_mismatch"}') == [3.0]
    before = prometheus.values(f"harp_tx_packets_total{of_owner}")[0]
    owner.send("run 300")
    # Prometheus sees the counter grow.
    series_above = prometheus.values(f"harp_tx_packets_total{of_owner} > {before + 300}")
    assert len(series_above) == 1
    (median,) = prometheus.values(
        f"histogram_quantile(0.5, sum by (le) (harp_tcp_rtt_seconds_bucket{of_owner}))"
    )
    assert 64e-6 < median < 264e-6  # the wire's three polls are 50 us apart
    (series,) = prometheus.values(f'count({{__name__=~"harp.*",device="{owner.ifname}"}})')
    assert 150 < series < 350


# --------------------------------------------------------------------------------------------------
# The dashboard.
#
TICKS = 24
PAGE = "http://127.0.0.1:9090/user/dashboard.html?from="
ENDED = 110  # ETIMEDOUT


def play(prometheus: Prometheus, owners: list[Owner], jobs: list[JobOwner]) -> None:
    """Half a minute of two NICs. eth2 loses packets and then a lane, whose comm uses its kernel
    lane until another lane replaces it. One scrape follows each tick.
    """
    for job in jobs:
        for comm in range(2):
            job.send(f"comm {comm}", f"lane {comm} 0 harp", f"lane {comm} 1 kernel")
        job.send("comm 2", "lane 2 0 harp")
    for tick in range(1, TICKS + 1):
        wave = 1 + math.sin(tick / 3) / 4
        for number, owner in enumerate(owners):
            lossy = number == 1 and 7 <= tick < 12
            owner.send(f"lose {8000 if lossy else 0}" if tick % 2 else f"twice {8000 * lossy}")
            owner.send(f"run {int(wave * (700 - 200 * number - 150 * lossy))}")
            owner.send(
                *(f"latency {int(wave * 1000 * (30 + 30 * number + 4 * i * i))}" for i in range(10))
            )
        for number, job in enumerate(jobs):
            without_lane = number == 1 and 13 <= tick < 18
            megabyte = int(wave * 1e6)
            job.send(f"bytes 0 {int(without_lane)} {(9 - 4 * without_lane) * megabyte}")
            job.send(f"bytes 1 0 {2 * megabyte}")
            job.send(f"tcp 0 0 {int(wave * 60000)} {tick}", f"tcp 0 1 {int(wave * 150000)} 0")
        if tick == 13:
            jobs[1].send(f"die 0 0 {ENDED}", *["move 0 0 1"] * 6)
        if tick == 18:
            jobs[1].send("lane 0 0 harp")
        verdicts = {"redirect_tcp": 1000 * tick, "pass_kernel": 90 * tick}
        prometheus.report(
            documents(
                nic("eth1", "leased", "leased", "free", verdicts=verdicts),
                nic("eth2", "leased", "leased", "free", verdicts=verdicts),
                leases=[(f"eth{1 + i}", queue, 4711 + i) for i in range(2) for queue in range(2)],
                refused={"EBUSY": int(tick > 9)},
            )
        )
        prometheus.values(f'harp_steering_packets_total{{device="eth2"}} >= {1000 * tick}')


def find_faults(board: Any, view: Any) -> list[str]:
    """Return what is wrong or missing in a view of the dashboard."""
    problems = list(view["problems"])
    places = {item["title"]: item for item in view["places"]}
    if list(places) != [panel["title"] for panel in board["panels"]]:
        problems.append(f"titles: {list(places)}")
        return problems
    for panel in board["panels"]:
        title, drawn = panel["title"], places[panel["title"]]
        place = panel["gridPos"]
        if (drawn["column"], drawn["row"]) != (place["x"], place["y"]):
            problems.append(f"{title}: drawn at {drawn['column']}, {drawn['row']}")
        problems += [f"{title}: {error}" for error in drawn["errors"]]
        for word in ("undefined", "NaN", "null", "Infinity", "No data"):
            if word in drawn["text"]:
                problems.append(f"{title}: shows {drawn['text']}")
        if panel["type"] == "row":
            continue
        if panel["type"] == "stat":
            continue
        names = [item.rpartition(": ")[0] for item in drawn["legend"]]
        if (
            not names
            or len(names) != drawn["lines"]
            or len(set(names)) != len(names)
            or "" in names
        ):
            problems.append(f"{title}: {drawn['lines']} lines, legend {names}")
        times = [item for item in drawn["axis"] if ":" in item]
        if not times or len(drawn["axis"]) < len(times) + 3:
            problems.append(f"{title}: axes {drawn['axis']}")
    for i, first in enumerate(view["places"]):
        for second in view["places"][:i]:
            if (
                first["x"] < second["x"] + second["width"]
                and second["x"] < first["x"] + first["width"]
                and first["y"] < second["y"] + second["height"]
                and second["y"] < first["y"] + first["height"]
            ):
                problems.append(f"{first['title']} covers {second['title']}")
    return problems


# Text, replacement, and the fault that must be found in the broken dashboard.
BROKEN = {
    "grafana-dashboard.json": [
        ("harp_rx_bytes_total{", "harp_rx_octets_total{", "Received: shows "),
        ("sum by (device, kind) (rate(", "sum by (device, kind) rate(", "status of 400"),
        ("{{device}} {{verdict}}", "{{device}}", "XDP verdicts: 4 lines"),
        ('"percentunit"', '"percent"', 'unit "percent" is not known'),
        ('"x": 8', '"x": 7', " covers "),
    ],
    "dashboard.html": [
        ('drawing.append(element("path"', '(element("path"', ": 0 lines, legend "),
        ("plot.append(", "plot.attach(", "is not a function"),
        ("await refresh();", "await refresh(", "SyntaxError"),
    ],
}


def test_a_browser_draws_every_panel_of_the_dashboard(
    prometheus: Prometheus,
    make_owner: MakeOwner,
    make_job: Callable[..., JobOwner],
    root_dir: Path,
) -> None:
    """Titles, legends and axes are in place; a broken query, legend, unit or page is found."""
    user = prometheus.folder / "user"
    user.mkdir()
    for name in ("dashboard.html", "grafana-dashboard.json"):
        shutil.copy(root_dir / "conf" / name, user)
    board = json.loads((user / "grafana-dashboard.json").read_text())
    nics = ("eth1", "eth2")
    start_s = time.monotonic()
    play(
        prometheus,
        [make_owner(ifname, f"rank {i}") for i, ifname in enumerate(nics)],
        [make_job(f"rank {i}", 4, ifname) for i, ifname in enumerate(nics)],
    )
    url = f"{PAGE}now-{int(time.monotonic() - start_s) + 5}s"
    with Browser(prometheus.host, prometheus.folder) as browser:
        view = browser.view(url)
        assert find_faults(board, view) == []
        assert {"All", "node1", *nics} <= set(view["choices"])
        both = browser.view(f"{url}&var-device=eth1&var-device=eth2")
        assert find_faults(board, both) == []
        of_eth2 = browser.view(f"{url}&var-instance=node1&var-device=eth2")
        assert find_faults(board, of_eth2) == []
        (received,) = [item for item in of_eth2["places"] if item["title"] == "Received"]
        assert [name.split(":")[0] for name in received["legend"]] == ["node1 eth2"]
        label = urllib.parse.quote('no"de\\')
        empty = browser.view(f"{url}&var-instance={label}")
        assert empty["problems"] == []
        assert not any(item["errors"] for item in empty["places"])
        for name, changes in BROKEN.items():
            good = (user / name).read_text()
            for text, replacement, fault in changes:
                assert text in good
                (user / name).write_text(good.replace(text, replacement, 1))
                faults = find_faults(board, browser.view(url))
                assert any(fault in item for item in faults), (replacement, faults)
            (user / name).write_text(good)
        invalid = browser.view(f"{PAGE}yesterday")
        assert any('"yesterday" is no duration' in item for item in invalid["problems"])
        (user / "grafana-dashboard.json").unlink()
        assert any("put it next to" in item for item in browser.view(url)["problems"])


# 400 series of 301 points, and a label's value with characters of regular expressions and strings.
MANY = """
(() => {
  const points = Array.from({ length: 301 }, (_, i) => [i, i]);
  const lines = Array.from({ length: 400 }, () => ({ points, color: "#3274d9" }));
  const drawing = chart(lines, { unit: "none" }, { start: 0, end: 300, step: 1 }, 800, 300);
  return drawing.querySelectorAll("path").length;
})()
"""


@pytest.mark.usefixtures("need_root")
def test_the_page_takes_many_points_and_any_label(root_dir: Path, tmp_path: Path) -> None:
    with Lab() as lab, Browser(lab.hosts[0], tmp_path) as browser:
        browser.view((root_dir / "conf" / "dashboard.html").as_uri())
        assert browser.value(MANY) == 400
        label = json.dumps('a"b\\c.d\n')
        assert browser.value(f"pattern({label})") == r"a\"b\\\\c\\.d\n"
