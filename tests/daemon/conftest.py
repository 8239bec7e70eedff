# SPDX-License-Identifier: Apache-2.0
"""Fixtures: harpd in this process on a fake kernel, and a real harpd on a lab host."""

import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_rig import NoPreparation, Running, Start
from fake_kernel import FakeKernel
from harpd_rig import HostDaemon
from hypothesis import settings as hypothesis_settings

from harp.config import MetricsConfig, NicConfig
from harp.daemon import rundir
from harp.daemon.daemon import Daemon
from harp.daemon.settings import Settings
from harp.lab import Lab, LabOptions
from harp.nicprep import Preparation

# No deadline, because the machine may be busy. Few examples, because each has many steps.
hypothesis_settings.register_profile(
    "daemon", deadline=None, max_examples=40, stateful_step_count=30
)
hypothesis_settings.load_profile("daemon")


@pytest.fixture(scope="session", autouse=True)
def as_root(need_root: None) -> None:
    """All tests of this folder need root: they make namespaces, or play several users."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two hosts, two queues each."""
    with Lab(LabOptions(queues=2)) as lab:
        yield lab


@pytest.fixture
def daemon(lab: Lab) -> Iterator[HostDaemon]:
    """harpd on the first host, not started yet."""
    with HostDaemon(lab.hosts[0]) as daemon:
        yield daemon


@pytest.fixture
def run_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run_dir without mounts. Unlike pytest's folders, other users can enter it."""

    def make_directory(path: Path) -> None:
        path.mkdir(exist_ok=True)

    monkeypatch.setattr(rundir, "mount_bpffs", make_directory)
    with tempfile.TemporaryDirectory(prefix="harp-test-") as path:
        Path(path).chmod(0o755)
        yield Path(path) / "run"


@pytest.fixture
def settings(run_dir: Path) -> Settings:
    """One NIC; every user may lease."""
    return Settings(
        run_dir=run_dir,
        users=("*",),
        nics=(NicConfig(ifname="eth0"),),
        job="HARP_X=1\n",
        metrics=MetricsConfig(port=0),
    )


@pytest.fixture
def start(settings: Settings, caplog: pytest.LogCaptureFixture) -> Iterator[Start]:
    """A function that starts harpd; the fixture ends it."""
    caplog.set_level(logging.INFO, logger="harpd")
    running: list[Running] = []

    def start_harpd(
        kernel: FakeKernel | None = None,
        settings: Settings = settings,
        preparation: Preparation | None = None,
        load: Callable[[], Settings] | None = None,
    ) -> Running:
        kernel = kernel or FakeKernel()
        daemon = Daemon(
            settings, kernel, load or (lambda: settings), preparation or NoPreparation()
        )
        daemon.start()
        running.append(Running(daemon, kernel))
        return running[-1]

    yield start_harpd
    for harpd in running:
        harpd.kernel.may_make.set()
        if harpd.alive:
            harpd.end(remove=True)


@pytest.fixture
def harpd(start: Start) -> Running:
    return start()
