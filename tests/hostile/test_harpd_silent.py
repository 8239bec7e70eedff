# SPDX-License-Identifier: Apache-2.0
"""A harpd that is stopped after a job's init: NCCL's calls return while it withholds the lease, and
fork() waits for it."""

import base64
import contextlib
import os
import select
import signal
from collections.abc import Iterator

import pytest
from actor import Actor, actors
from harpd_rig import HostDaemon, stopped
from netns_tools import wait_until

from harp.lab import Lab

OPENING = 8  # a flag of the handle, at FLAGS: docs/lanes.md section 2
FLAGS = 11


@pytest.fixture
def daemons(need_root: None) -> Iterator[list[HostDaemon]]:
    """Two hosts with a harpd each, in the namespace of its host, as are the jobs."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab())
        made = [HostDaemon(host) for host in lab.hosts]
        for daemon in made:
            stack.callback(daemon.close)
            daemon.start()
        yield made


def job_of(daemon: HostDaemon) -> Actor:
    env = {
        "HARP_SOCKET": str(daemon.socket),
        "NCCL_SOCKET_IFNAME": "=eth0",
        "HARP_XDP_BYTES_MAX": "3000",  # on veth auto attaches nothing otherwise
    }
    return Actor(daemon.host.netns, env)


def test_calls_return_while_harpd_is_stopped(daemons: list[HostDaemon]) -> None:
    """listen, connect, accept and closeListen return. When harpd continues, the job gets its lease,
    and comms of handles made in the meantime use it."""
    jobs = [job_of(daemon) for daemon in daemons]
    with actors(*jobs) as (here, there):
        for job in jobs:
            job.load()
        with stopped(*daemons):
            (a, a_listen), (b, b_listen) = (job.call("listen") for job in jobs)
            pending_here, _ = here.call("call_while_opening", handle=b, listen=a_listen, calls=100)
            pending_there, late = there.call(
                "call_while_opening", handle=a, listen=b_listen, calls=100
            )
        assert not pending_here
        assert not pending_there
        assert all(base64.b64decode(handle)[FLAGS] & OPENING for handle in (a, b, late))
        here.start("join", handles=[b], listens=[a_listen])
        sends_there, receives_there = there.call("join", handles=[a], listens=[b_listen])
        sends_here, receives_here = here.result()
        here.start("pump", sends=sends_here, receives=receives_here, size=100_000, seconds=1)
        pumped = there.call(
            "pump", sends=sends_there, receives=receives_there, size=100_000, seconds=1
        )
        assert [result for _, result in pumped + here.result()] == ["ncclSuccess"] * 4
        # Listeners of now say their HARP ports, and comms have HARP's lanes as well.
        for job in jobs:
            handle, _ = job.call("listen")
            assert not base64.b64decode(handle)[FLAGS] & OPENING
            assert any("leased from harpd" in line for line in job.call("log"))


def test_a_child_forked_while_harpd_is_asked_keeps_no_lease(daemons: list[HostDaemon]) -> None:
    """fork() waits until the lease is known, so that the child can close its descriptors."""
    daemon = daemons[0]

    def asked() -> bool:
        """Is a connection pending at harpd's socket?"""
        return int(daemon.host.run("ss", "-xlH", "src", str(daemon.socket)).split()[2]) > 0

    with actors(job_of(daemon)) as (job,):
        job.load(logs=False)
        with stopped(daemon):
            job.call("listen")
            wait_until(asked, "the request for a lease")
            job.start("fork_sleeper")
            # Opening takes longer than any other wait of fork().
            assert not select.select([job.process.stdout], [], [], 1.5)[0], "fork() returned"
        sleeper = job.result()
        try:
            job.call("open_interfaces")
            assert daemon.query("instances")["instances"]
            job.kill()
            wait_until(lambda: not daemon.query("instances")["instances"], "the end of the lease")
        finally:
            os.kill(sleeper, signal.SIGKILL)
