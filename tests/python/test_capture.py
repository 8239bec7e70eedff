# SPDX-License-Identifier: Apache-2.0
"""scapy and tcpdump read HARP's capture files as pcapng."""

import shutil
import subprocess
from pathlib import Path

import pytest
from programs import finished
from scapy.utils import RawPcapNgReader

PACKETS = 20  # written by test_capture


@pytest.fixture
def sample(tmp_path: Path, build_dir: Path) -> Path:
    path = tmp_path / "sample.pcapng"
    subprocess.run([build_dir / "tests" / "unit" / "test_capture", path], check=True, timeout=30)
    return path


def test_scapy_reads_it(sample: Path) -> None:
    with RawPcapNgReader(str(sample)) as reader:
        packets = list(reader)
    assert len(packets) == PACKETS
    for i, (data, meta) in enumerate(packets):
        assert data == bytes((i + k) & 255 for k in range(len(data)))
        assert meta.wirelen == len(data)
        assert meta.linktype == 1
        assert meta.ifname == b"wire0"
        wall_ns = ((meta.tshigh << 32) | meta.tslow) * (10**9 // meta.tsresol)
        assert wall_ns == 1_700_000_000_000_000_000 + i * 1000
        assert meta.direction == (2 if i % 2 else 1)


def test_tcpdump_reads_it(sample: Path) -> None:
    tcpdump = shutil.which("tcpdump", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if tcpdump is None:
        pytest.skip("tcpdump is not installed")
    done = finished([tcpdump, "-n", "-e", "-tt", "-r", str(sample)], check=True, timeout=30)
    assert len([line for line in done.stdout.splitlines() if line.startswith("1700")]) == PACKETS
