# SPDX-License-Identifier: Apache-2.0
"""harpctl demo with harpd on each host and unprivileged ranks."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest


def demo(*args: str) -> dict[str, Any]:
    """Run the demo, which must succeed; return its report."""
    command = [sys.executable, "-c", "from harp.cli import main; main()", "demo", "-o", "json"]
    done = subprocess.run(
        [*command, "--epochs", "2", *args], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


LEASED = re.compile(r"AF_XDP generic copy on eth0 queue (\d+), .*, leased from harpd")


@pytest.mark.sample("args0")
@pytest.mark.parametrize("args", [("--daemon",), ("--ranks-per-host", "4", "--path", "xdp")])
def test_ranks_of_user_nobody_agree(need_root: None, args: tuple[str, ...]) -> None:
    report = demo(*args)
    ranks_per_host = report["options"]["ranks_per_host"]
    ranks, verdict = report["ranks"], report["verdict"]
    assert verdict["ranks_equal_bit_for_bit"]
    assert verdict["agree"]
    expected = [(number, number % 2) for number in range(2 * ranks_per_host)]
    assert [(rank["rank"], rank["host"]) for rank in ranks] == expected
    queues = []
    for rank in ranks:
        match = LEASED.search(rank["path"])
        assert match, rank["path"]
        queues.append((rank["host"], int(match[1])))
        # Both neighbors in the ring are on the other host, so all bytes cross the NIC. Without
        # --path xdp, a part of them uses kernel TCP, which the queue's counters do not include.
        queue_bytes, sent = rank["counters"]["tx_bytes"], rank["sent_bytes"]
        assert queue_bytes > (sent if "xdp" in args else 0)
        assert sent > 0
        assert rank["warnings"] == []
    assert sorted(queues) == [(host, queue) for host in range(2) for queue in range(ranks_per_host)]


def test_ranks_on_kernel_lanes_have_no_counters(need_root: None) -> None:
    """A container's /sys has no counters; the report omits them instead of reporting zero."""
    report = demo("--daemon", "--path", "kernel")
    assert report["verdict"]["agree"]
    assert all("kernel TCP" in rank["path"] for rank in report["ranks"])
    assert all(rank["counters"] == {} for rank in report["ranks"])
