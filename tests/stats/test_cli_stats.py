# SPDX-License-Identifier: Apache-2.0
"""harpctl stats and flows, as tables and as JSON."""

import json
import os
import subprocess

import pytest
from conftest_stats import MakeOwner, Owner
from harpctl import COMMAND, harpctl, harpctl_without_root

from harp.errors import Exit
from harp.stats.view import amount, span


def test_stats_shows_sums_and_notes(owner: Owner) -> None:
    owner.send("note harp7 is down", "run 50")
    done = harpctl("stats", "--pid", str(owner.process.pid))
    assert done.returncode == Exit.OK, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("harp7/")]
    assert [line.split()[0] for line in lines] == ["harp7/0", "harp7/1", "harp7/0"]
    assert "train rank 0" in lines[0]
    assert lines[2].endswith("harp7 is down")


def test_drops_are_named_with_their_meaning(owner: Owner) -> None:
    owner.send("lose 50000", "run 400", "twice 300000", "run 100")
    done = harpctl("stats", "--pid", str(owner.process.pid), "--queue", "0", "--all")
    assert done.returncode == Exit.OK, done.stderr
    assert "tcp_retransmits" in done.stdout
    assert "segments retransmitted" in done.stdout
    assert "drop_ip_checksum" not in done.stdout  # none has occurred
    done = harpctl("stats", "--pid", str(owner.process.pid))
    assert "tcp_duplicate" in done.stdout
    assert "payload dropped: received before" in done.stdout


def test_stats_as_json_has_everything(owner: Owner) -> None:
    done = harpctl("stats", "--nic", "harp7", "--pid", str(owner.process.pid), "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    first, second = json.loads(done.stdout)["instances"]
    assert first["identity"]["label"] == "train rank 0"
    assert first["counters"]["tcp_active_opens"] == 3
    assert sum(first["histograms"]["tcp_rtt"]["buckets"]) == first["histograms"]["tcp_rtt"]["count"]
    assert len(first["flows"]) == 3
    assert second["identity"]["queue"] == 1


def test_driver_counters_are_shown(owner: Owner) -> None:
    """Control characters in their names are replaced."""
    owner.send("xstat rx_missed_errors", "xstat \x1b[2J[bold]", "run 10")
    command = ("stats", "--pid", str(owner.process.pid), "--queue", "0")
    done = harpctl(*command, "--all")
    assert done.returncode == Exit.OK, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["rx_missed_errors", "7"] in lines
    assert ["?[2J[bold]", "7"] in lines
    (document,) = json.loads(harpctl(*command, "-o", "json").stdout)["instances"]
    assert document["xstats"] == {"rx_missed_errors": 7, "?[2J[bold]": 7}


def test_flows_shows_each_connection(owner: Owner) -> None:
    done = harpctl("flows", "--pid", str(owner.process.pid), "--queue", "0")
    assert done.returncode == Exit.OK, done.stderr
    lines = [line for line in done.stdout.splitlines() if "10.0.0.2:61000" in line]
    assert len(lines) == 3
    assert all("ESTABLISHED" in line and "harp7/0" in line for line in lines)
    assert any("send comm 2" in line for line in lines)
    flows = json.loads(harpctl("flows", "--pid", str(owner.process.pid), "-o", "json").stdout)
    flow = flows["instances"][0]["flows"][0]
    assert (flow["remote"], flow["remote_port"], flow["state"]) == (
        "10.0.0.2",
        61000,
        "ESTABLISHED",
    )
    assert flow["srtt_ns"] > 0
    assert flow["congestion"] == "cubic"


def test_watch_prints_one_json_line_per_sample(owner: Owner) -> None:
    command = [*COMMAND, "stats", "--watch", "--interval", "0.05", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        before = json.loads(watching.stdout.readline())
        owner.send("run 100")
        attempts = 200
        while attempts:
            now = json.loads(watching.stdout.readline())
            packets = [
                instance["counters"]["tx_packets"]
                for document in (before, now)
                for instance in document["instances"]
                if instance["pid"] == owner.process.pid and instance["identity"]["queue"] == 0
            ]
            if packets[1] > packets[0]:
                break
            attempts -= 1
        assert attempts
        assert now["time_s"] > before["time_s"]
        watching.terminate()


def test_a_filter_without_matches_is_reported(make_owner: MakeOwner) -> None:
    done = harpctl("stats", "--nic", "no-such-nic")
    assert done.returncode == Exit.OK
    assert "no process that matches publishes statistics" in done.stderr
    assert done.stdout == ""
    done = harpctl("flows", "--nic", "no-such-nic", "-o", "json")
    assert json.loads(done.stdout)["instances"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_pages_of_other_users_need_root(owner: Owner) -> None:
    """Another user gets exit code 3 and the remedy."""
    done = harpctl_without_root("stats")
    assert done.returncode == Exit.PRIVILEGE, done.stderr
    assert "run as root" in done.stderr
    assert "Traceback" not in done.stderr


def test_amounts_and_spans() -> None:
    assert [amount(n) for n in (0, 999, 1000, 1_234_567, 5e9)] == ["0", "999", "1k", "1.23M", "5G"]
    assert [span(n) for n in (None, 0, 128, 1500, 2_000_000, 3e9)] == [
        "-", "-", "128ns", "1.5us", "2ms", "3s",
    ]  # fmt: skip
