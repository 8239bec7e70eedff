# SPDX-License-Identifier: Apache-2.0
"""harpctl demo --nic dpdk-memif and harpctl bench dpdk."""

import json
import subprocess
import sys

import pytest

from harp.errors import Exit

pytestmark = pytest.mark.usefixtures("need_root", "ends")


def harpctl(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from harp.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize("shape", [(), ("--ipv6",), ("--mtu", "9000")], ids=["v4", "v6", "9000"])
def test_demo_over_memif_agrees(shape: tuple[str, ...]) -> None:
    done = harpctl("demo", "--nic", "dpdk-memif", "--epochs", "2", *shape, "-o", "json")
    assert done.returncode == Exit.OK, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"]["agree"]
    assert report["verdict"]["alone_by_shards_equal_bit_for_bit"]
    for rank in report["ranks"]:
        assert "net_memif" in rank["path"]
        assert rank["counters"]["tx_packets"] > 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--hosts", "3"), "2 hosts with one rank each"),
        (("--ranks-per-host", "2"), "2 hosts with one rank each"),
        (("--daemon",), "leave --daemon out"),
        (("--path", "kernel"), "path kernel does not use DPDK ports"),
    ],
)
def test_demo_over_memif_says_what_cannot_be(args: tuple[str, ...], words: str) -> None:
    done = harpctl("demo", "--nic", "dpdk-memif", *args)
    assert done.returncode == Exit.FAILURE
    assert words in " ".join(done.stderr.split())
