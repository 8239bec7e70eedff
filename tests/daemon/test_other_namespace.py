# SPDX-License-Identifier: Apache-2.0
"""A job in another network namespace gets routes and neighbors of its NIC from harpd."""

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
ROUTED = "192.0.2.7"  # on the second host's loopback: the route uses its link address as gateway
OTHER_MAC = "02:00:00:00:00:77"


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two hosts with IPv4 and IPv6; the second one also has the address ROUTED."""
    with Lab() as lab:
        for host in lab.hosts:
            address = f"fd77::{host.index + 1}/64"
            host.run("ip", "address", "add", address, "dev", host.ifname, "nodad")
        lab.hosts[1].run("ip", "address", "add", ROUTED, "dev", "lo")
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


def echo_job(harpd: HostDaemon, address: str) -> Work:
    """Return a job with a lease. For each command byte it reports the echo of a connection, or the
    error: of the previous connection for "k", else of a new one."""

    def work(send: Send, wait_fd: int) -> None:
        connection = None
        path = str(harpd.socket)
        with harp.Instance(harpd.host.ifname, daemon="require", socket=path) as instance:
            send(instance.leased)
            while True:
                command = os.read(wait_fd, 1)
                try:
                    if connection is None or command != b"k":
                        connection = instance.connect(address, PORT, timeout=3)
                    connection.timeout = 25
                    connection.send_all(b"a number")
                    send(bytes(connection.recv(8)))
                except (OSError, harp.HarpError) as error:
                    send(str(error))

    return work


@pytest.fixture
def job(harpd: HostDaemon, request: pytest.FixtureRequest) -> Iterator[Job]:
    with Job(echo_job(harpd, request.param)) as job:
        assert job.receive() is True
        yield job


def echo(job: Job, command: bytes = b"c") -> Any:
    os.write(job._go, command)
    return job.receive()


def neighbor(lab: Lab, address: str) -> Any:
    """Return the first host's neighbor entry for an address of the second one."""
    return json.loads(lab.hosts[0].run("ip", "-j", "neigh", "show", "to", address))[0]


def change_mac(lab: Lab, address: str) -> None:
    """Change the second host's MAC address, and its neighbor entry on the first host."""
    host, peer = lab.hosts
    peer.run("ip", "link", "set", peer.ifname, "address", OTHER_MAC)
    host.run(
        *("ip", "neigh", "replace", address, "lladdr", OTHER_MAC, "nud", "permanent"),
        *("dev", host.ifname),
    )


ADDRESSES = ["10.77.0.2", "fd77::2"]


@pytest.mark.parametrize("job", ADDRESSES, indirect=True)
def test_a_neighbor_is_resolved_and_its_change_is_sent(
    lab: Lab, server: None, job: Job, request: pytest.FixtureRequest
) -> None:
    address = request.node.callspec.params["job"]
    assert echo(job) == b"a number"
    assert neighbor(lab, address)["state"] == ["REACHABLE"]
    change_mac(lab, address)
    assert echo(job, b"k") == b"a number"
    assert neighbor(lab, address)["lladdr"] == OTHER_MAC


@pytest.mark.parametrize("job", [ROUTED], indirect=True)
def test_an_added_and_a_removed_route_are_sent(lab: Lab, server: None, job: Job) -> None:
    host, peer = lab.hosts
    assert "unreachable" in echo(job)
    host.run("ip", "route", "add", "192.0.2.0/24", "via", peer.address, "dev", host.ifname)
    while "unreachable" in str(reply := echo(job)):
        pass
    assert reply == b"a number"
    host.run("ip", "route", "del", "192.0.2.0/24")
    while "unreachable" not in str(echo(job)):
        pass


@pytest.mark.parametrize("end", ["killed", "restarted"])
@pytest.mark.parametrize("job", ADDRESSES[:1], indirect=True)
def test_a_job_continues_with_the_next_harpd(
    lab: Lab, harpd: HostDaemon, server: None, job: Job, end: str
) -> None:
    assert echo(job) == b"a number"
    if end == "killed":
        harpd.end(signal.SIGKILL)
        assert echo(job, b"k") == b"a number"
        assert echo(job) == b"a number", "a new connection, with cached routes and neighbors"
        harpd.start()
    else:
        done = harpd.harpctl("restart")
        assert done.returncode == 0, done.stderr
    assert harpd.query("status")["leases"] == 1
    change_mac(lab, "10.77.0.2")
    assert echo(job, b"k") == b"a number"
    assert echo(job) == b"a number"
