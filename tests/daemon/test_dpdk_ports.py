# SPDX-License-Identifier: Apache-2.0
"""Leases of DPDK ports: one holder, freed at its end, kept across restarts."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_rig import NOBODY, Running, Start, holder, in_child, kill, refusal
from lease_client import LeaseClient

from harp import _host
from harp.config import DpdkConfig
from harp.daemon.loop import close_all
from harp.daemon.settings import Settings

RAIL0 = DpdkConfig(
    device="net_memif0,role=client,id=0",
    name="rail0",
    addresses=("10.9.0.1/24", "fd00:9::1/64"),
    mtu=9000,
    queues=4,
)
RAIL1 = DpdkConfig(device="0000:00:06.0", name="rail1", addresses=("10.9.1.1/24",))


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, dpdk=(RAIL0, RAIL1))


def ports(client: LeaseClient) -> dict[str, dict[str, Any]]:
    return {port["name"]: port for port in client.query("status")["dpdk"]}


def check_nothing_left(harpd: Running) -> None:
    """Check that no lease is left, and that harpd holds no descriptor of one."""
    harpd.until(lambda: not harpd.daemon.table.leases, "the end of all leases")
    assert all(not pages.fds for pages in harpd.kernel.pages_made)
    assert harpd.daemon.leasing._watched == {}


def port_holder(path: Path, queues: int = 1) -> tuple[int, int]:
    return holder(path, lambda client: client.lease_port("rail0", queues=queues, label="holder"))


def test_a_port_lease_has_its_specification_and_pages(harpd: Running) -> None:
    with harpd.client() as client:
        port, fds = client.lease_port("rail0", queues=2, label="rank 3")
        assert (port.page_count, port.page_bytes) == (2, 4096)
        assert port.spec == RAIL0.text + ";queues=2"
        assert len({os.fstat(fd).st_ino for fd in fds}) == 2, "a page for each queue"
        harpd.until(lambda: not harpd.kernel.pages_made[0].fds, "harpd's duplicates")
        assert harpd.kernel.queues_made == [], "no AF_XDP queue is used"
        (instance,) = client.query("instances")["instances"]
        assert (instance["ifname"], instance["device"], instance["queues"]) == (
            "rail0",
            RAIL0.device,
            2,
        )
        assert (instance["pid"], instance["label"], instance["ports"]) == (
            os.getpid(),
            "rank 3",
            None,
        )
        status = ports(client)["rail0"]
        assert (status["pid"], status["queues_leased"], status["queues"]) == (os.getpid(), 2, 4)
        assert status["addresses"] == ["10.9.0.1/24", "fd00:9::1/64"]
        assert ports(client)["rail1"]["pid"] is None
        client.release(port.lease_id)
        close_all(fds)
        assert ports(client)["rail0"]["pid"] is None
    check_nothing_left(harpd)


@pytest.mark.parametrize(("requested", "granted"), [(0, 1), (1, 1), (4, 4), (5, 4), (2**32 - 1, 4)])
def test_the_number_of_queues_is_limited_to_those_of_the_port(
    harpd: Running, requested: int, granted: int
) -> None:
    with harpd.client() as client:
        port, fds = client.lease_port("rail0", queues=requested)
        assert (port.page_count, len(fds)) == (granted, granted)
        assert port.spec.endswith(f";queues={granted}")
        close_all(fds)


def test_welcome_lists_the_ports(harpd: Running) -> None:
    harpd.kernel.port_problems["rail1"] = "0000:00:06.0 belongs to the kernel's ena"
    with harpd.client() as client:
        nic, rail0, rail1 = client.devices
        assert (nic.ifname, nic.flags & _host.DEVICE_DPDK) == ("eth0", 0)
        assert rail0.flags == _host.DEVICE_DPDK | _host.DEVICE_UP
        assert (rail0.ifname, rail0.ifindex, rail0.netns) == ("rail0", 0, 0)
        assert (rail0.queues, rail0.queues_free, rail0.mtu_bytes) == (4, 4, 9000)
        assert rail0.addr_v4 == bytes(10) + b"\xff\xff\x0a\x09\0\1"
        assert rail0.addr_v6 == b"\xfd\0\0\x09" + bytes(11) + b"\1"
        assert (rail1.flags, rail1.queues) == (_host.DEVICE_DPDK, 0)
        fds = client.lease_port("rail0")[1]
        close_all(fds)
        with harpd.client() as other:
            assert (other.devices[1].queues, other.devices[1].queues_free) == (4, 0)


def test_one_holder_at_a_time_and_its_death_frees_the_port(harpd: Running) -> None:
    pid, pipe = port_holder(harpd.path)
    with harpd.client() as client:
        error = refusal(client.lease_port, "rail0")
        assert error.error == errno.EBUSY
        assert f"leased to process {pid} (holder)" in error.why
        close_all(client.lease_port("rail1")[1])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pipe)
        harpd.until(
            lambda: len(harpd.daemon.table.leases) == 1, "the end of the dead holder's lease"
        )
        port, fds = client.lease_port("rail0")
        assert port.page_count == 1
        close_all(fds)


def test_a_port_counts_as_a_lease(start: Start, settings: Settings) -> None:
    """leases_per_uid limits queues and ports together."""
    harpd = start(settings=replace(settings, leases_per_uid=2))
    path = harpd.path

    def greedy() -> list[int]:
        with LeaseClient(path, "greedy") as client:
            client.lease("eth0")
            client.lease_port("rail0")
            errors = refusal(client.lease_port, "rail1"), refusal(client.lease, "eth0")
            return [error.error for error in errors]

    assert in_child(greedy, uid=NOBODY) == [errno.EDQUOT, errno.EDQUOT]


def test_a_port_that_cannot_be_opened_is_refused(harpd: Running) -> None:
    harpd.kernel.port_problems["rail1"] = "0000:00:06.0 has no driver: driverctl"
    with harpd.client() as client:
        error = refusal(client.lease_port, "rail1")
        assert (error.error, error.why) == (
            errno.ENODEV,
            "DPDK port rail1 can't be leased: 0000:00:06.0 has no driver: driverctl",
        )
        assert ports(client)["rail1"]["problem"] == "0000:00:06.0 has no driver: driverctl"


def test_a_port_lease_survives_a_restart(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    first = start()
    pid, pipe = port_holder(first.path, queues=3)
    first.end(remove=False)
    state = json.loads((first.daemon.settings.run_dir / "state.json").read_text())
    assert [lease["ifname"] for lease in state["leases"]] == ["rail0"]
    second = start(first.kernel)
    assert f"process {pid} continues with DPDK port rail0" in caplog.text
    with second.client() as client:
        assert ports(client)["rail0"]["pid"] == pid
        assert ports(client)["rail0"]["queues_leased"] == 3
        assert refusal(client.lease_port, "rail0").error == errno.EBUSY
    kill(pid, pipe)
    check_nothing_left(second)


def test_a_restart_renames_a_port_and_its_lease_stays(start: Start, settings: Settings) -> None:
    """The device is still leased after harp.toml renames its port."""
    renamed = replace(RAIL0, name="left")
    new = replace(settings, dpdk=(renamed,))
    first = start()
    pid, pipe = port_holder(first.path)
    first.end(remove=False)
    harpd = start(first.kernel, settings=new)
    with harpd.client() as client:
        assert list(ports(client)) == ["left"]
        assert ports(client)["left"]["pid"] == pid
        assert refusal(client.lease_port, "rail0").error == errno.ENODEV
        error = refusal(client.lease_port, "left")
        assert (error.error, f"process {pid}" in error.why) == (errno.EBUSY, True)
        kill(pid, pipe)
        harpd.until(lambda: not harpd.daemon.table.leases, "the end of the lease")
        port, fds = client.lease_port("left")
        assert port.spec.startswith("net_memif0,role=client,id=0;name=left;")
        close_all(fds)


# Opens a port, prints the error, and waits for a line on stdin.
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


def test_a_port_that_the_job_cannot_open_is_returned(
    start: Start, settings: Settings, tmp_path: Path
) -> None:
    harpd = start(settings=replace(settings, dpdk=(replace(RAIL0, device="fake0"),)))
    with subprocess.Popen(
        [sys.executable, "-c", JOB, harpd.path, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert "libharp-dpdk.so is not installed" in process.stdout.readline()
        assert not harpd.daemon.table.leases
        assert process.poll() is None
        process.communicate("\n", timeout=30)
