# SPDX-License-Identifier: Apache-2.0
"""Unprivileged ranks in containers use NICs that the harpd of each host leases to them."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_rig import NOBODY
from driver_rig import REMOTE_ERROR, Running, bench, event, finish
from harpd_rig import HostDaemon
from netns_tools import wait_until

from harp.lab import Lab, LabOptions


class Containers:
    """Two containers with a network between them, and two hosts with NICs."""

    def __init__(self, nics: Lab, network: Lab, daemons: list[HostDaemon]) -> None:
        self.nics, self.network, self.daemons = nics, network, daemons
        self.root = f"[{network.hosts[0].address}]:7000"

    def start(
        self, rank: int, mode: str, *args: str, host: int | None = None, **more: str
    ) -> Running:
        """Start a rank that leases from the harpd of a host. more: environment variables."""
        daemon = self.daemons[rank if host is None else host]
        command = bench(mode, rank, 2, self.root, "--ifname", "eth0", *args, "--timeout", "10")
        variables = {"HARP_SOCKET": str(daemon.socket), "NCCL_DEBUG": "INFO", **more}
        return self.network.hosts[rank].popen([*NOBODY, *command], env=os.environ | variables)

    def run(self, mode: str, *args: str, **more: Any) -> tuple[dict[str, Any], list[str]]:
        """Run both ranks, which must succeed; return rank 0's JSON and each rank's stderr."""
        ranks = [self.start(rank, mode, *args, **more) for rank in range(2)]
        try:
            outputs = [rank.communicate(timeout=60) for rank in ranks]
        finally:
            for rank in ranks:
                finish(rank)
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
        return json.loads(outputs[0][0]), [err for _, err in outputs]


@pytest.fixture(params=[1], ids=[""])
def containers(request: pytest.FixtureRequest, need_root: None) -> Iterator[Containers]:
    """Two hosts, each with a NIC and harpd. The containers have no NIC."""
    with contextlib.ExitStack() as stack:
        nics = stack.enter_context(Lab(LabOptions(queues=request.param)))
        network = stack.enter_context(Lab(LabOptions(ipv6=True)))
        daemons = [HostDaemon(host) for host in nics.hosts]
        for daemon in daemons:
            stack.callback(daemon.close)
            daemon.start()
        yield Containers(nics, network, daemons)


@pytest.mark.parametrize(
    "args",
    [
        ("lat", "--sizes", "8:200,2312:200,39304:200"),
        ("allreduce", "--sizes", "4:3,5324:3,644204:3", "--channels", "2"),
    ],
    ids=["lat", "allreduce"],
)
def test_ranks_of_user_nobody_in_containers_agree(
    containers: Containers, args: tuple[str, ...]
) -> None:
    document, logs = containers.run(*args)
    assert document["wrong"] == 0
    assert document["device"] == "eth0"
    for log in logs:
        assert "leases eth0 of another namespace (1 of 1 queues free)" in log
        assert "path HARP: AF_XDP generic copy on eth0 queue" in log
        assert "connected by HARP TCP 10.77.0." in log
        assert "kernel TCP" not in log
        assert "WARN" not in log
    for daemon in containers.daemons:
        wait_until(lambda d=daemon: "given back" in d.log_text(), "the release of the lease")


@pytest.mark.parametrize("containers", [4], indirect=True, ids=["4-queues"])
def test_ranks_agree_on_a_veth_with_several_queues(containers: Containers) -> None:
    """On a veth with four queues, only the two queues 0 reach each other. Kernel lanes are not
    possible. Each rank has four instances, and its comms use the instance on queue 0."""
    args = ("allreduce", "--sizes", "4:3,1024:3,262144:3", "--channels", "4")
    document, logs = containers.run(*args, HARP_INSTANCES="4")
    assert document["wrong"] == 0
    for log in logs:
        lanes = [line for line in log.splitlines() if "connected by" in line]
        assert len(lanes) >= 4
        assert all(" on eth0 queue 0" in line for line in lanes), lanes


def test_settings_of_harp_toml_reach_the_job(containers: Containers) -> None:
    for daemon in containers.daemons:
        daemon.end(signal.SIGTERM)
        with daemon.file.open("a") as file:
            file.write("[job]\nframes = 2048\n")
        daemon.start()
    _, logs = containers.run("lat", "--sizes", "8:10")
    assert all("2048 frames of 2048" in log for log in logs)
    _, logs = containers.run("lat", "--sizes", "8:10", HARP_FRAMES="4096")
    assert all("4096 frames of 2048" in log for log in logs)


def has_lease(pid: int) -> bool:
    """Does the process have a descriptor of a lease's memory?"""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "memfd:harp" in str(fd.readlink()):
                return True
    return False


def test_a_killed_job_frees_its_queue_while_its_child_lives(containers: Containers) -> None:
    daemon = containers.daemons[1]
    with contextlib.ExitStack() as stack:
        survivor = containers.start(0, "sink", "--sizes", "64K")
        stack.callback(finish, survivor)
        victim = containers.start(1, "source", "--sizes", "64K", "--fork-child")
        stack.callback(finish, victim)
        ready, victim_ready = event(survivor), event(victim)
        assert ready["event"] == victim_ready["event"] == "ready"
        stack.callback(os.kill, victim_ready["child"], signal.SIGKILL)
        # The parent may print before its child runs.
        wait_until(lambda: not has_lease(victim_ready["child"]), "the child has closed the lease")
        os.kill(victim_ready["pid"], signal.SIGKILL)
        error = event(survivor)
        assert (error["event"], error["nccl"]) == ("error", REMOTE_ERROR)
        wait_until(
            lambda: [nic["queues_free"] for nic in daemon.query("status")["nics"]] == [1],
            "the queue is free",
            1,
        )


# --------------------------------------------------------------------------------------------------
# Errors.
#
def failing_ranks(containers: Containers, **more: Any) -> list[str]:
    """Run two ranks, at least one of which must fail; return each rank's stderr."""
    ranks = [containers.start(rank, "lat", "--sizes", "8:10", **more) for rank in range(2)]
    try:
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            finish(rank)
    assert any(rank.returncode for rank in ranks)
    return errors


@pytest.mark.parametrize("containers", [2], indirect=True, ids=["2-queues"])
def test_two_containers_of_one_host_are_refused_with_a_reason(containers: Containers) -> None:
    errors = " ".join(failing_ranks(containers, host=0))
    assert (
        "cannot reach the peer: the peer is on this host: its packets never reach a NIC" in errors
    )
    assert "cannot use a NIC of another network namespace" in errors


def test_a_required_harpd_that_is_absent_fails_init(containers: Containers) -> None:
    errors = failing_ranks(containers, HARP_DAEMON="require", HARP_SOCKET="/nonexistent/harpd.sock")
    line = "HARP_DAEMON=require, but /nonexistent/harpd.sock: no such socket; is harpd running"
    assert line in errors[0]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"HARP_DAEMON": "off"}, "HARP_DAEMON=off"),
        ({"HARP_SOCKET": "/nonexistent/sock"}, "/nonexistent/sock: no such socket"),
    ],
    ids=["off", "absent"],
)
def test_without_harpd_kernel_lanes_are_used_and_both_reasons_logged(
    containers: Containers, variables: dict[str, str], reason: str
) -> None:
    document, logs = containers.run("lat", "--sizes", "8:10", **variables)
    assert document["wrong"] == 0
    for log in logs:
        path = log.split("path kernel TCP: ")[1].splitlines()[0]
        assert path.startswith("eth0 queue 0: CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF missing")
        assert reason in path
