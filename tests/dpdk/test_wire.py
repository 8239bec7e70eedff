# SPDX-License-Identifier: Apache-2.0
"""`harpctl bench wire --nic dpdk:...`: raw frames between ports, by the generator of harp.dpdk."""

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


def wire(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command for a second."""
    command = [HARPCTL, "bench", "wire", "--seconds", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def report(*words: str) -> Any:
    """Its JSON output."""
    done = wire(*words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_memif_makes_its_peer() -> None:
    """Every frame arrives whole at the other process, and pings are answered."""
    mtu = 9000
    found = report("--nic", "dpdk:net_memif0", "--mtu", str(mtu))
    stream, ping = found["stream"], found["pingpong"]
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


def test_a_signal_leaves_nothing(tmp_path: Path) -> None:
    """The memif's folder is removed, and no process stays."""
    command = [HARPCTL, "bench", "wire", "--seconds", "60", "--nic", "dpdk:net_memif0"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as running:
        while not list(tmp_path.glob("harp-wire-*/*")):  # the server listens
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGHUP)
        _, words = running.communicate(timeout=60)
    assert (running.returncode, words) == (Exit.INTERRUPTED, "\nharpctl: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_two_named_ports_exchange_frames(tmp_path: Path) -> None:
    """--peer names the other port."""
    shared = f"id=3,socket-abstract=no,socket={tmp_path}/wire.sock"
    found = report("--nic", f"dpdk:net_memif0,role=client,{shared}",
                   "--peer", f"dpdk:net_memif1,role=server,{shared}", "--size", "200")  # fmt: skip
    received = found["stream"]["received"]
    assert found["stream"]["sent"]["packets"] == received["packets"] + received["late"] > 0
    assert received["bytes"] == received["packets"] * 200


def test_a_port_alone_sends() -> None:
    """Without a peer, the frames that the driver took are counted."""
    found = report("--nic", "dpdk:net_null0")
    assert found["pingpong"] is None
    assert found["stream"]["sent"]["packets"] == found["stream"]["sent"]["stats"]["tx_packets"] > 0
    assert found["stream"]["mode"].startswith("dpdk net_null")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--nic", "eth0"], "dpdk:DEVICE"),
        (["--nic", "dpdk:nosuch"], "nosuch: no such device"),
        (["--peer", "dpdk:net_null0"], "--nic"),
        (["--nic", "dpdk:net_null0", "--peer", "dpdk:frog"], "frog: no such device"),
    ],
)
def test_invalid_options_are_refused(words: list[str], complaint: str) -> None:
    """One line that names what is wrong; no process stays."""
    done = wire(*words)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
