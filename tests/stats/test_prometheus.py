# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the endpoint, in a network namespace, with the rules of conf/; a real
browser draws the dashboard of conf/ from it.
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
from conftest_stats import JobOwner, MakeOwner, Owner, tool
from harpd_documents import Documents, documents, nic

from harp import files
from harp.lab import Host, Lab

# In the namespace: the exporter, of the documents that a file has at each scrape.
SERVE = """
import json, pathlib, sys
from harp.daemon import metrics
from harp.stats import exporter
exporter.AGE_S = 0.0  # each scrape has an answer of its own
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
    """Exporter and Prometheus in a namespace. Prometheus serves the files of folder/user."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder = host, folder

    def tell(self, new: Documents) -> None:
        """What harpd reports from the next scrape on."""
        files.write_whole(self.folder / "documents.json", json.dumps(new).encode())

    def ask(self, question: str) -> Any:
        """Its answer, once it has one."""
        return json.loads(self.host.run(sys.executable, "-c", ASK, question, timeout_s=90))

    def values(self, query: str) -> list[float]:
        """The values of a query's series."""
        answer = self.ask("query?query=" + urllib.parse.quote(query))
        return [float(each["value"][1]) for each in answer["result"]]


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
def prometheus(need_root: None, root_dir: Path, tmp_path: Path) -> Iterator[Prometheus]:
    """On the loopback interface of a laboratory's host."""
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.replace("RULES", str(root_dir / "conf" / "alerts.yml")))
    with Lab() as lab:
        host = lab.hosts[0]
        result = Prometheus(host, tmp_path)
        result.tell(documents(nic("eth1", "free", "leased", verdicts={"rss_mismatch": 3})))
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
    # A counter is one to it: what was sent meanwhile is seen by increase() and grows.
    grown = prometheus.values(f"harp_tx_packets_total{of_owner} > {before + 300}")
    assert len(grown) == 1
    (middle,) = prometheus.values(
        f"histogram_quantile(0.5, sum by (le) (harp_tcp_rtt_seconds_bucket{of_owner}))"
    )
    assert 64e-6 < middle < 264e-6  # the wire's three polls are 50 us apart
    (series,) = prometheus.values(f'count({{__name__=~"harp.*",device="{owner.ifname}"}})')
    assert 150 < series < 350


# --------------------------------------------------------------------------------------------------
# The dashboard.
#
TICKS = 24
PAGE = "http://127.0.0.1:9090/user/dashboard.html?from="
ENDED = 110  # ETIMEDOUT


def play(prometheus: Prometheus, owners: list[Owner], jobs: list[JobOwner]) -> None:
    """Half a minute of two NICs: packets are lost, then a lane on eth2, whose comm falls back to
    its kernel lane until a lane replaces it. One scrape follows each tick.
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
            fallen = number == 1 and 13 <= tick < 18
            megabyte = int(wave * 1e6)
            job.send(f"bytes 0 {int(fallen)} {(9 - 4 * fallen) * megabyte}")
            job.send(f"bytes 1 0 {2 * megabyte}")
            job.send(f"tcp 0 0 {int(wave * 60000)} {tick}", f"tcp 0 1 {int(wave * 150000)} 0")
        if tick == 13:
            jobs[1].send(f"die 0 0 {ENDED}", *["move 0 0 1"] * 6)
        if tick == 18:
            jobs[1].send("lane 0 0 harp")
        verdicts = {"redirect_tcp": 1000 * tick, "pass_kernel": 90 * tick}
        prometheus.tell(
            documents(
                nic("eth1", "leased", "leased", "free", verdicts=verdicts),
                nic("eth2", "leased", "leased", "free", verdicts=verdicts),
                leases=[(f"eth{1 + i}", queue, 4711 + i) for i in range(2) for queue in range(2)],
                refused={"EBUSY": int(tick > 9)},
            )
        )
        prometheus.values(f'harp_steering_packets_total{{device="eth2"}} >= {1000 * tick}')


def faults(board: Any, view: Any) -> list[str]:
    """What a reader of the dashboard would miss in a view of it."""
    found = list(view["problems"])
    shown = {each["title"]: each for each in view["places"]}
    if list(shown) != [panel["title"] for panel in board["panels"]]:
        found.append(f"titles: {list(shown)}")
        return found
    for panel in board["panels"]:
        title, at = panel["title"], shown[panel["title"]]
        place = panel["gridPos"]
        if (at["column"], at["row"]) != (place["x"], place["y"]):
            found.append(f"{title}: drawn at {at['column']}, {at['row']}")
        found += [f"{title}: {error}" for error in at["errors"]]
        for word in ("undefined", "NaN", "null", "Infinity", "No data"):
            if word in at["text"]:
                found.append(f"{title}: shows {at['text']}")
        if panel["type"] == "row":
            continue
        if at["ink"] < 20:
            found.append(f"{title}: {at['ink']} colored pixels")
        if panel["type"] == "stat":
            continue
        names = [each.rpartition(": ")[0] for each in at["legend"]]
        if not names or len(names) != at["lines"] or len(set(names)) != len(names) or "" in names:
            found.append(f"{title}: {at['lines']} lines, legend {names}")
        times = [each for each in at["axis"] if ":" in each]
        if not times or len(at["axis"]) < len(times) + 3:
            found.append(f"{title}: axes {at['axis']}")
    for i, one in enumerate(view["places"]):
        for other in view["places"][:i]:
            if (
                one["x"] < other["x"] + other["width"]
                and other["x"] < one["x"] + one["width"]
                and one["y"] < other["y"] + other["height"]
                and other["y"] < one["y"] + one["height"]
            ):
                found.append(f"{one['title']} covers {other['title']}")
    return found


# Text, replacement, and what the reader of the broken dashboard would miss.
BROKEN = {
    "grafana-dashboard.json": [
        ("harp_rx_bytes_total{", "harp_rx_octets_total{", "Received: shows "),
        ("sum by (device, kind) (rate(", "sum by (device, kind) rate(", "status of 400"),
        ("{{device}} {{verdict}}", "{{device}}", "XDP verdicts: 4 lines"),
        ('"percentunit"', '"percent"', 'unit "percent" is not known'),
        ('"x": 8', '"x": 7', " covers "),
    ],
    "dashboard.html": [
        ('drawing.append(element("path"', '(element("path"', "colored pixels"),
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
    """Series, legends, axes and units, in their places. A broken query, legend, unit or page is
    found.
    """
    user = prometheus.folder / "user"
    user.mkdir()
    for name in ("dashboard.html", "grafana-dashboard.json"):
        shutil.copy(root_dir / "conf" / name, user)
    board = json.loads((user / "grafana-dashboard.json").read_text())
    nics = ("eth1", "eth2")
    began_s = time.monotonic()
    play(
        prometheus,
        [make_owner(nic, f"rank {i}") for i, nic in enumerate(nics)],
        [make_job(f"rank {i}", 4, nic) for i, nic in enumerate(nics)],
    )
    url = f"{PAGE}now-{int(time.monotonic() - began_s) + 5}s"
    with Browser(prometheus.host, prometheus.folder) as browser:
        view = browser.view(url)
        assert faults(board, view) == []
        assert {"All", "node1", *nics} <= set(view["choices"])
        both = browser.view(f"{url}&var-device=eth1&var-device=eth2")
        assert faults(board, both) == []
        (prometheus.folder / "dashboard.png").write_bytes(both["png"])
        one = browser.view(f"{url}&var-instance=node1&var-device=eth2")
        assert faults(board, one) == []
        (received,) = [each for each in one["places"] if each["title"] == "Received"]
        assert [name.split(":")[0] for name in received["legend"]] == ["node1 eth2"]
        label = urllib.parse.quote('no"de\\')
        none = browser.view(f"{url}&var-instance={label}")
        assert none["problems"] == []
        assert not any(each["errors"] for each in none["places"])
        for name, changes in BROKEN.items():
            good = (user / name).read_text()
            for text, replacement, miss in changes:
                assert text in good
                (user / name).write_text(good.replace(text, replacement, 1))
                found = faults(board, browser.view(url))
                assert any(miss in each for each in found), (replacement, found)
            (user / name).write_text(good)
        wrong = browser.view(f"{PAGE}yesterday")
        assert any('"yesterday" is no duration' in each for each in wrong["problems"])
        (user / "grafana-dashboard.json").unlink()
        assert any("put it next to" in each for each in browser.view(url)["problems"])


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
