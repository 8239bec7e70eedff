# SPDX-License-Identifier: Apache-2.0
"""A job that cannot open the DPDK port of its lease gives it back."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from daemon_rig import Running

from harp.config import DpdkConfig
from harp.daemon.settings import Settings

# Opens a port, prints the error, and lives on until a line comes on stdin.
JOB = """
import sys
from harp import Instance
socket, lib_dir = sys.argv[1:]
try:
    Instance("dpdk:rail0", daemon="require", socket=socket, lib_dir=lib_dir, drive=False)
except OSError as error:
    print(error.strerror, flush=True)
sys.stdin.readline()
"""


def test_a_port_that_can_not_be_opened_is_given_back(
    start: Callable[..., Running], settings: Settings, tmp_path: Path
) -> None:
    rail0 = DpdkConfig(device="fake0", name="rail0", addresses=("10.9.0.1/24",))
    harpd = start(given=replace(settings, dpdk=(rail0,)))
    with subprocess.Popen(
        [sys.executable, "-c", JOB, harpd.path, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "libharp-dpdk.so is not installed" in process.stdout.readline()
        assert not harpd.daemon.table.leases
        assert process.poll() is None
        process.communicate("\n", timeout=30)
