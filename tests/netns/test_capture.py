# SPDX-License-Identifier: Apache-2.0
"""HARP_CAPTURE: a job's packets in a file that Wireshark reads."""

import os
import signal
import time
from itertools import islice
from pathlib import Path

from scapy.layers.inet import IP, TCP
from scapy.packet import Packet
from scapy.utils import PcapNgReader

from harp.bench.streams import SINK, SOURCE, Stream, StreamOptions
from harp.lab import Lab

SNAP_BYTES = 192


def captured(directory: Path) -> StreamOptions:
    env = {"HARP_PATH": "xdp", "HARP_CAPTURE": str(directory)}
    return StreamOptions(env=(env, env))


def packets_of(directory: Path, stream: Stream, rank: int) -> list[Packet]:
    """The first 2000 packets of a rank's file."""
    pid = stream.ranks[rank].process.pid
    (file,) = directory.glob(f"{os.uname().nodename}-{pid}-*.pcapng")
    assert file.stat().st_mode & 0o777 == 0o600
    with PcapNgReader(str(file)) as reader:
        return list(islice(reader, 2000))


def test_a_job_leaves_its_packets(shared_lab: Lab, tmp_path: Path) -> None:
    begin = time.time()
    with Stream(shared_lab, captured(tmp_path)) as stream:
        stream.flow(1 << 20)
        stream.finish()
    for rank in (SINK, SOURCE):
        packets = packets_of(tmp_path, stream, rank)
        assert {packet[IP].src for packet in packets if TCP in packet} == {
            host.address for host in shared_lab.hosts
        }
        assert max(len(packet) for packet in packets) <= SNAP_BYTES
        assert max(packet.wirelen for packet in packets) > 1400
        assert begin - 1 < float(packets[0].time) < time.time() + 1
    assert not list(tmp_path.glob("*.pcapng.*"))


def test_a_killed_peer_is_in_the_packets(shared_lab: Lab, tmp_path: Path) -> None:
    with Stream(shared_lab, captured(tmp_path)) as stream:
        os.kill(stream.ranks[SINK].process.pid, signal.SIGKILL)
        stream.ranks[SOURCE].process.wait(60)
    (file,) = tmp_path.glob("*.pcapng")
    with PcapNgReader(str(file)) as reader:
        assert any(TCP in packet and packet[TCP].flags.R for packet in reader)


def test_a_missing_directory_is_one_warning(shared_lab: Lab, tmp_path: Path) -> None:
    directory = tmp_path / "missing"
    with Stream(shared_lab, captured(directory)) as stream:
        stream.flow(1 << 20)
        stream.finish()
        logs = [rank.log() for rank in stream.ranks]
    for log in logs:
        (line,) = [line for line in log.splitlines() if "not captured" in line]
        assert line.endswith(
            f"packets are not captured to HARP_CAPTURE={directory}: No such file or directory"
        )
    assert not directory.exists()
