# SPDX-License-Identifier: Apache-2.0
"""A job's instances on a DPDK port that harpd leases: opened as specified, and released."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_rig import Running

from harp import _host
from harp.config import DpdkConfig
from harp.daemon.kernel import Made
from harp.daemon.settings import Settings

# Opens instances, prints them, and closes them after a line on stdin.
JOB = """
import sys
from harp import Instance
socket, lib_dir, queues = sys.argv[1:4]
where = dict(daemon="require", socket=socket, lib_dir=lib_dir)
options = dict(where, drive=False, dpdk_queues=int(queues))
try:
    opened = [Instance("dpdk:rail0", queue, **options) for queue in range(int(queues))]
except OSError as error:
    sys.exit(f"{error.errno}: {error.strerror}")
for instance in opened:
    instance.poll()
    print(instance.describe, flush=True)
sys.stdin.readline()
for instance in opened:
    instance.close()
"""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """A port of tests/unit/fake_dpdk.c."""
    rail0 = DpdkConfig(device="fake0", name="rail0", addresses=("10.9.0.1/24",), queues=2)
    return replace(settings, dpdk=(rail0,))


@pytest.fixture
def job(build_dir: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts one; with another device library it has none."""
    fake = build_dir / "tests" / "unit" / "fake_dpdk"

    def begin(path: str | Path, queues: int = 2, lib_dir: Path = fake) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", JOB, str(path), str(lib_dir), str(queues)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


def real_pages(count: int, _flows: int) -> Made:
    """Pages that a job can use, as a real harpd makes them."""
    made = [_host.page_create(_flows) for _ in range(count)]
    return Made([fd for fd, _ in made], made[0][1])


def test_instances_on_a_leased_port(
    harpd: Running, job: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """The last instance to go gives the port back, and the next process can have it."""
    harpd.kernel.pages = real_pages  # type: ignore[method-assign]
    for _ in range(2):
        process = job(harpd.path)
        assert process.stdout is not None
        for queue in range(2):
            line = process.stdout.readline()
            assert f"DPDK 0.0 net_fake on rail0 queue {queue}, MTU 1500" in line, (
                process.communicate()[1]
            )
            assert "leased from harpd" in line
        assert len(harpd.daemon.table.leases) == 1
        refused = job(harpd.path)
        assert refused.wait(30) == 1
        assert "16: " in refused.communicate()[1]
        _, err = process.communicate("\n", timeout=30)
        assert process.returncode == 0, err
        assert err == ""
        harpd.until(lambda: not harpd.daemon.table.leases, "the end of the lease")


def test_a_port_that_can_not_be_opened_is_given_back(
    harpd: Running, job: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    """While the process that could not open it lives on."""
    process = job(harpd.path, 1, tmp_path)
    _, err = process.communicate("\n", timeout=30)
    assert process.returncode == 1
    assert "libharp-dpdk.so is not installed" in err
    assert not harpd.daemon.table.leases
    with harpd.client() as client:
        assert client.query("status")["dpdk"][0]["name"] == "rail0"
