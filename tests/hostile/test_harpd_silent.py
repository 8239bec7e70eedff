# SPDX-License-Identifier: Apache-2.0
"""harpd is stopped after a job's init: the first listen returns within the timeout of a lease, and
fork() waits for the lease."""

import base64
import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator

import pytest
from actor import Actor, actors
from harpd_rig import HostDaemon, stopped
from netns_tools import wait_until

from harp.lab import Lab

HARP_PORT = slice(92, 94)  # of the handle: docs/lanes.md section 2
LIMIT_S = 15.0  # HELLO 3 s and LEASE 10 s (dataplane/host/daemon.c), and the opening


@pytest.fixture
def daemons(need_root: None) -> Iterator[list[HostDaemon]]:
    """A harpd on each of two hosts, in its host's namespace, in which the jobs run, too."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab())
        started = [HostDaemon(host) for host in lab.hosts]
        for daemon in started:
            stack.callback(daemon.close)
            daemon.start()
        yield started


def start_job(daemon: HostDaemon) -> Actor:
    env = {
        "HARP_SOCKET": str(daemon.socket),
        "NCCL_SOCKET_IFNAME": "=eth0",
        "HARP_XDP_BYTES_MAX": "3000",  # on veth auto attaches nothing otherwise
    }
    return Actor(daemon.host.netns, env)


def test_listen_returns_while_harpd_is_stopped(daemons: list[HostDaemon]) -> None:
    """The first listen waits for a lease until the timeout; then comms use kernel lanes."""
    jobs = [start_job(daemon) for daemon in daemons]
    with actors(*jobs) as (here, there):
        for job in jobs:
            job.load()
        with stopped(*daemons):
            start_s = time.monotonic()
            (a, a_listen), (b, b_listen) = (job.call("listen") for job in jobs)
            assert time.monotonic() - start_s < 2 * LIMIT_S
            assert all(base64.b64decode(handle)[HARP_PORT] == bytes(2) for handle in (a, b))
            here.start("join", handles=[b], listens=[a_listen])
            there.call("join", handles=[a], listens=[b_listen])
            here.result()
        for job in jobs:
            lines = job.call("log")
            assert len([line for line in lines if "path kernel TCP" in line]) == 1


def test_a_child_forked_during_a_lease_request_keeps_no_lease(daemons: list[HostDaemon]) -> None:
    """fork() waits for harpd's answer, so that the child can close the lease's descriptors."""
    daemon = daemons[0]

    def is_requested() -> bool:
        """True if a connection is pending at harpd's socket."""
        return int(daemon.host.run("ss", "-xlH", "src", str(daemon.socket)).split()[2]) > 0

    with actors(start_job(daemon)) as (job,):
        job.load(logs=False)
        with stopped(daemon):
            job.call("listen_in_thread")
            wait_until(is_requested, "the request for a lease")
            job.start("fork_sleeper")
            # The request for a lease takes longer than anything else that fork() waits for.
            assert not select.select([job.process.stdout], [], [], 1.5)[0], "fork() returned"
        sleeper = job.result()
        try:
            job.call("open_interfaces")
            assert daemon.query("instances")["instances"]
            job.kill()
            wait_until(lambda: not daemon.query("instances")["instances"], "the end of the lease")
        finally:
            os.kill(sleeper, signal.SIGKILL)
