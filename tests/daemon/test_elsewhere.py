# SPDX-License-Identifier: Apache-2.0
"""A job of another network namespace gets the state of its NIC's network from harpd."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from harpd_rig import HostDaemon, Job, Send, Work, echo_server

import harp
from harp.lab import Lab

PORT = 7000
BEHIND = "192.0.2.7"  # an address of the other host's, behind its own on the link
OTHER_MAC = "02:00:00:00:00:77"


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two hosts of both families. The second has one address behind a gateway, itself."""
    with Lab() as lab:
        for host in lab.hosts:
            address = f"fd77::{host.index + 1}/64"
            host.run("ip", "address", "add", address, "dev", host.ifname, "nodad")
        lab.hosts[1].run("ip", "address", "add", BEHIND, "dev", "lo")
        yield lab


@pytest.fixture
def harpd(lab: Lab) -> Iterator[HostDaemon]:
    with HostDaemon(lab.hosts[0], net_admin=False) as daemon:
        yield daemon.start()


@pytest.fixture
def server(lab: Lab) -> Iterator[None]:
    process = echo_server(lab.hosts[1], PORT)
    yield
    process.kill()
    process.communicate()


def talking(harpd: HostDaemon, address: str) -> Work:
    """A job with a lease. Whenever it is continued, it sends what a connection of its own receives
    back, or an error; with "k" the connection is the one of before."""

    def work(send: Send, wait_fd: int) -> None:
        kept = None
        path = str(harpd.socket)
        with harp.Instance(harpd.host.ifname, daemon="require", socket=path) as own:
            send(own.leased)
            while True:
                command = os.read(wait_fd, 1)
                try:
                    if kept is None or command != b"k":
                        kept = own.connect(address, PORT, timeout=3)
                    kept.timeout = 25
                    kept.send_all(b"a number")
                    send(bytes(kept.recv(8)))
                except (OSError, harp.HarpError) as error:
                    send(str(error))

    return work


@pytest.fixture
def job(harpd: HostDaemon, request: pytest.FixtureRequest) -> Iterator[Job]:
    with Job(talking(harpd, request.param)) as started:
        assert started.receive() is True
        yield started


def again(job: Job, command: bytes = b"c") -> Any:
    os.write(job._go, command)
    return job.receive()


def neighbor(lab: Lab, address: str) -> Any:
    """The first host's entry for an address of the second one."""
    return json.loads(lab.hosts[0].run("ip", "-j", "neigh", "show", "to", address))[0]


def other_mac(lab: Lab, address: str) -> None:
    """The second host gets another MAC address, and the first one's kernel learns it."""
    here, there = lab.hosts
    there.run("ip", "link", "set", there.ifname, "address", OTHER_MAC)
    here.run(
        *("ip", "neigh", "replace", address, "lladdr", OTHER_MAC, "nud", "permanent"),
        *("dev", here.ifname),
    )


ADDRESSES = ["10.77.0.2", "fd77::2"]


@pytest.mark.parametrize("job", ADDRESSES, indirect=True)
def test_a_neighbor_is_resolved_and_its_change_is_sent(
    lab: Lab, server: None, job: Job, request: pytest.FixtureRequest
) -> None:
    address = request.node.callspec.params["job"]
    assert again(job) == b"a number"
    assert neighbor(lab, address)["state"] == ["REACHABLE"]
    other_mac(lab, address)
    assert again(job, b"k") == b"a number"
    assert neighbor(lab, address)["lladdr"] == OTHER_MAC


@pytest.mark.parametrize("job", [BEHIND], indirect=True)
def test_a_route_through_a_gateway_comes_and_goes(lab: Lab, server: None, job: Job) -> None:
    here, there = lab.hosts
    assert "unreachable" in again(job)
    here.run("ip", "route", "add", "192.0.2.0/24", "via", there.address, "dev", here.ifname)
    while "unreachable" in str(found := again(job)):
        pass
    assert found == b"a number"
    here.run("ip", "route", "del", "192.0.2.0/24")
    while "unreachable" not in str(again(job)):
        pass


@pytest.mark.parametrize("how", ["killed", "restarted"])
@pytest.mark.parametrize("job", ADDRESSES[:1], indirect=True)
def test_a_job_requests_from_the_next_harpd(
    lab: Lab, harpd: HostDaemon, server: None, job: Job, how: str
) -> None:
    assert again(job) == b"a number"
    if how == "killed":
        harpd.end(signal.SIGKILL)
        assert again(job, b"k") == b"a number"
        assert again(job) == b"a number", "a new connection, with what is known"
        harpd.start()
    else:
        done = harpd.harpctl("restart")
        assert done.returncode == 0, done.stderr
    assert harpd.query("status")["leases"] == 1
    other_mac(lab, "10.77.0.2")
    assert again(job, b"k") == b"a number"
    assert again(job) == b"a number"
