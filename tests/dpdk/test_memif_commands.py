# SPDX-License-Identifier: Apache-2.0
"""harpctl demo and bench with --nic dpdk-memif, and harpctl bench dpdk."""

import json
import subprocess
import sys

import pytest

from harp.errors import Exit

pytestmark = pytest.mark.usefixtures("need_root", "tools")


def harpctl(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from harp.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize("shape", [("--ipv6",), ("--mtu", "9000")], ids=["v6", "9000"])
def test_demo_over_memif_agrees(shape: tuple[str, ...]) -> None:
    done = harpctl("demo", "--nic", "dpdk-memif", "--epochs", "1", *shape, "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"]["agree"]
    assert report["verdict"]["alone_equal_bit_for_bit"]
    for rank in report["ranks"]:
        assert "net_memif" in rank["path"]
        assert rank["counters"]["tx_packets"] > 0


def test_bench_idle_over_memif_uses_the_ports() -> None:
    done = harpctl("bench", "idle", "--seconds", "0.5", "--nic", "dpdk-memif", "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["nic"] == "dpdk-memif"
    assert report["results"]
    paths = [line["text"] for line in report["log"] if "path DPDK: " in line["text"]]
    assert paths
    assert "net_memif0" in paths[0]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("demo", "--hosts", "3"), "2 hosts with one rank each"),
        (("demo", "--daemon"), "omit --daemon"),
        (("demo", "--path", "kernel"), "path kernel does not use DPDK ports"),
        (("bench", "idle", "--path", "xdp"), "path xdp does not use DPDK ports"),
        (("bench", "idle", "--nic", "dpdk-frog"), "is not one of"),
    ],
)
def test_options_that_memif_excludes_are_refused(args: tuple[str, ...], text: str) -> None:
    """The error is one line, printed before a host is created."""
    nic = () if "--nic" in args else ("--nic", "dpdk-memif")
    done = harpctl(*args, *nic)
    assert done.returncode == Exit.USAGE
    assert text in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_bench_counts_copies_and_checks_targets() -> None:
    args = ("--mtu", "1500", "--flows", "2", "--rounds", "1", "--seconds", "0.5")
    done = harpctl("bench", "dpdk", *args, "-o", "json")
    assert done.returncode in (Exit.OK, Exit.FAILURE), done.stderr
    report = json.loads(done.stdout)  # a crash prints no report
    (result,) = report["results"]
    median = result["median"]
    assert set(median) == {"raw", "harp frames x2", "harp external x2", "kernel x2"}
    assert all(row["gbit_per_s"] > 0 for row in median.values())
    assert median["harp frames x2"]["sender_copied"] == 0
    assert median["harp external x2"]["sender_copied"] < 0.01
    assert median["harp frames x2"]["nic_copied"] == 0
    assert 0.99 < median["harp frames x2"]["driver_copied"] < 1.01  # by memif
    assert report["ok"] == all(result["met"].values())
    assert (done.returncode == Exit.OK) == report["ok"]
