# SPDX-License-Identifier: Apache-2.0
"""harpctl demo with harpd on each host and ranks without privileges."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest


def demo(*args: str) -> dict[str, Any]:
    """The demonstration's account of itself; it must be a good one."""
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
    each = report["options"]["ranks_per_host"]
    ranks, verdict = report["ranks"], report["verdict"]
    assert verdict["ranks_equal_bit_for_bit"]
    assert verdict["agree"]
    assert [(rank["rank"], rank["host"]) for rank in ranks] == [(r, r % 2) for r in range(2 * each)]
    queues = []
    for rank in ranks:
        found = LEASED.search(rank["path"])
        assert found, rank["path"]
        queues.append((rank["host"], int(found[1])))
        # Both neighbors in the ring are on the other host: all of it crossed the NIC, by default
        # partly over the kernel's TCP, which the plugin's lines do not count.
        by_queue, sent = rank["counters"]["tx_bytes"], rank["sent_bytes"]
        assert by_queue > (sent if "xdp" in args else 0)
        assert sent > 0
        assert rank["warnings"] == []
    assert sorted(queues) == [(host, queue) for host in range(2) for queue in range(each)]


def test_ranks_on_kernel_lanes_need_no_host_counter(need_root: None) -> None:
    """A container has no /sys with counters, which is not the same as zero."""
    report = demo("--daemon", "--path", "kernel")
    assert report["verdict"]["agree"]
    assert all("kernel TCP" in rank["path"] for rank in report["ranks"])
    assert all(rank["counters"] == {} for rank in report["ranks"])
