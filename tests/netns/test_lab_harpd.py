# SPDX-License-Identifier: Apache-2.0
"""The lab's harpds leave nothing behind when a run is killed or a start fails."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from netns_tools import Tools

from harp.errors import HarpError
from harp.lab import RUN_DIRS, Lab
from harp.lab.harpd import LabHarpd

LAB_CODE = """
import os, sys
from harp.lab import Lab
from harp.lab.harpd import LabHarpd
lab = Lab().__enter__()
harpd = LabHarpd(lab.hosts[0]).__enter__()
print(harpd.run_dir, flush=True)
sys.stdin.readline()
"""


def test_the_next_lab_cleans_up_after_a_killed_one(tools: Tools) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LAB_CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run_dir = Path(process.stdout.readline().strip())
        assert run_dir.parent == RUN_DIRS
        assert (run_dir / "harpd.sock").is_socket()
        process.send_signal(signal.SIGKILL)
    assert (run_dir / "bpf").is_mount()
    with Lab():
        assert not run_dir.exists()
    assert str(run_dir) not in Path("/proc/self/mountinfo").read_text()


def test_a_harpd_that_cannot_start_leaves_nothing(lab: Lab) -> None:
    host = lab.hosts[0]
    with (
        pytest.raises(HarpError, match="port_rest"),
        LabHarpd(host, daemon={"port_rest_ms": "soon"}),
    ):
        pass
    assert not (RUN_DIRS / host.netns).exists()
    assert os.path.exists(f"/run/netns/{host.netns}")  # noqa: PTH110 - a mount, not a file
