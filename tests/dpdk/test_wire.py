# SPDX-License-Identifier: Apache-2.0
"""`harpctl bench wire --nic dpdk:...` exchanges raw frames between ports with harp.dpdk."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harp.errors import Exit

HARPCTL = Path(sys.executable).with_name("harpctl")
pytestmark = pytest.mark.usefixtures("bindings")


def run_wire(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the command for a second."""
    command = [HARPCTL, "bench", "wire", "--seconds", "1", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def wire_report(*args: str) -> Any:
    """Run the command; return its JSON output."""
    done = run_wire(*args, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_memif_without_a_peer_gets_one() -> None:
    """The command starts the peer. Every frame arrives there whole, and pings are answered."""
    mtu = 9000
    report = wire_report("--nic", "dpdk:net_memif0", "--mtu", str(mtu))
    stream, ping = report["stream"], report["pingpong"]
    sent, received = stream["sent"], stream["received"]
    assert stream["mode"].startswith("dpdk net_memif")
    assert stream["frame_bytes"] == mtu + 14
    assert sent["packets"] > 0
    assert sent["packets"] == received["packets"] + received["late"]
    assert received["bytes"] == received["packets"] * (mtu + 14)
    assert received["stats"]["rx_no_buffer"] == 0
    assert stream["frames_per_s"] > 0
    assert ping["round_trips"] > 0
    assert 0 < ping["rtt_ns"]["min"] <= ping["rtt_ns"]["p50"] <= ping["rtt_ns"]["max"]


def test_a_signal_leaves_no_files(tmp_path: Path) -> None:
    """The command removes the memif's folder."""
    command = [HARPCTL, "bench", "wire", "--seconds", "60", "--nic", "dpdk:net_memif0"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as process:
        while not list(tmp_path.glob("harp-wire-*/*")):  # the server listens
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (Exit.INTERRUPTED, "\nharpctl: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_two_named_ports_exchange_frames(tmp_path: Path) -> None:
    """--peer selects the other port."""
    shared = f"id=3,socket-abstract=no,socket={tmp_path}/wire.sock"
    nic = f"dpdk:net_memif0,role=client,{shared}"
    peer = f"dpdk:net_memif1,role=server,{shared}"
    report = wire_report("--nic", nic, "--peer", peer, "--size", "200")
    received = report["stream"]["received"]
    assert report["stream"]["sent"]["packets"] == received["packets"] + received["late"] > 0
    assert received["bytes"] == received["packets"] * 200


def test_a_port_without_a_peer_sends() -> None:
    """The frames that the driver accepted are counted."""
    report = wire_report("--nic", "dpdk:net_null0")
    sent = report["stream"]["sent"]
    assert report["pingpong"] is None
    assert sent["packets"] == sent["stats"]["tx_packets"] > 0
    assert report["stream"]["mode"].startswith("dpdk net_null")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--nic", "eth0"], "dpdk:DEVICE"),
        (["--nic", "dpdk:nosuch"], "nosuch: no such device"),
        (["--peer", "dpdk:net_null0"], "--nic"),
        (["--nic", "dpdk:net_null0", "--peer", "dpdk:frog"], "frog: no such device"),
    ],
)
def test_invalid_options_are_refused(args: list[str], error: str) -> None:
    """The error names the invalid option."""
    done = run_wire(*args)
    assert done.returncode != 0
    assert error in done.stderr
    assert "Traceback" not in done.stderr
