# SPDX-License-Identifier: Apache-2.0
"""allow_sources of harp.toml: the XDP program enforces it from the start of harpd."""

import contextlib
import json
import logging
import os
import signal
import struct
from dataclasses import replace

import pytest
from daemon_rig import Running, Start, lease_once
from fake_kernel import FakeSteering
from harpd_rig import HostDaemon, Job, Send, Work, echo_server, xdp_id
from netns_tools import wait_until

import harp
from harp.config import NicConfig
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.settings import Settings
from harp.lab import Lab

PORT = 7000
TEN, TWENTY = "10.0.0.0/8", "fd00::/8"
TEN_RAW, TWENTY_RAW = (bytes([10, 0, 0, 0]), 8), (bytes([0xFD]) + bytes(15), 8)


def with_sources(settings: Settings, *sources: str) -> Settings:
    return replace(
        settings, nics=(NicConfig(ifname="eth0", xdp_mode="generic", allow_sources=sources),)
    )


def program(harpd: Running) -> FakeSteering:
    return harpd.kernel.steerings[-1]


def sync(harpd: Running) -> None:
    harpd.call(lambda: harpd.daemon.nics.sync())


def can_lease(harpd: Running) -> bool:
    """Lease an instance and return it; a refusal raises."""
    with harpd.client() as client:
        lease_once(client, "eth0")
    return True


def test_no_lease_while_the_list_is_not_enforced(
    start: Start, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    first = start(settings=with_sources(settings, TEN))
    program(first).failing = "sources_set"
    first.end(remove=False)
    harpd = start(first.kernel, settings=with_sources(settings, TWENTY))
    with harpd.client() as client:
        assert program(harpd).sources == [TEN_RAW], "the previous list"
        with pytest.raises(RefusedByDaemonError, match="can't be leased: fake: sources_set"):
            client.lease("eth0")
        assert client.query("status")["nics"][0]["allow_sources"] is None
    sync(harpd)
    assert caplog.text.count("eth0: can't be leased: fake: sources_set") == 1
    program(harpd).failing = ""
    sync(harpd)
    assert program(harpd).sources == [TWENTY_RAW]
    assert can_lease(harpd)
    assert caplog.records[-1].levelno < logging.ERROR


# --------------------------------------------------------------------------------------------------
# Real queues.
#


def nic(harpd: HostDaemon) -> dict[str, object]:
    return harpd.query("status")["nics"][0]


def dropped(harpd: HostDaemon) -> int:
    verdicts = nic(harpd)["verdicts"]
    assert isinstance(verdicts, dict)
    return int(verdicts["drop_source"])


def echo_job(harpd: HostDaemon, address: str) -> Work:
    """Return a job that leases, connects, and reports a number from the echo server per go()."""

    def work(send: Send, wait_fd: int) -> None:
        socket = str(harpd.socket)
        with harp.Instance(
            harpd.host.ifname, daemon="require", socket=socket, label="e"
        ) as instance:
            with instance.connect(address, PORT, timeout=20) as connection:
                connection.timeout = 20
                number = 0
                while True:
                    number += 1
                    connection.send_all(struct.pack("Q", number))
                    reply = b""
                    while len(reply) < 8:
                        reply += bytes(connection.recv(8 - len(reply)))
                    send(struct.unpack("Q", reply)[0])
                    if os.read(wait_fd, 1) == b"q":
                        break

    return work


def check_echo(job: Job, number: int) -> None:
    """Let the job continue; check that its next number returns."""
    job.go()
    assert job.receive() == number


def test_a_connection_survives_changes_of_the_list_and_of_harpd(lab: Lab) -> None:
    """Packets of a removed source are dropped at once, on open connections, too; TCP continues
    when it is allowed again. The program stays attached, and a new harpd enforces the same list."""
    host, peer = lab.hosts
    allow, refuse = 'allow_sources = ["10.77.0.0/24"]', 'allow_sources = ["192.0.2.0/24", "::/0"]'
    echo_server(peer, PORT)
    with contextlib.ExitStack() as stack:
        harpd = stack.enter_context(HostDaemon(host, nic=allow))
        harpd.start()
        job = stack.enter_context(Job(echo_job(harpd, peer.address), netns=host.netns))
        assert job.receive() == 1
        check_echo(job, 2)
        assert dropped(harpd) == 0

        harpd.configure(nic=refuse)
        assert harpd.harpctl("restart").returncode == 0
        assert nic(harpd)["allow_sources"] == ["192.0.2.0/24", "::/0"]
        job.go()
        wait_until(lambda: dropped(harpd) > 0, "the echo is dropped")
        assert xdp_id(host), "the program was replaced without a gap"

        harpd.end(signal.SIGKILL)
        harpd.start()
        assert nic(harpd)["allow_sources"] == ["192.0.2.0/24", "::/0"]
        count = dropped(harpd)
        wait_until(lambda: dropped(harpd) > count, "the retransmissions are dropped")

        status = harpd.harpctl("status").stdout
        assert f"{host.ifname}: takes packets from 192.0.2.0/24, ::/0; dropped from" in status

        harpd.configure(nic=allow)
        harpd.process.send_signal(signal.SIGHUP)
        assert job.receive() == 3
        check_echo(job, 4)
        assert json.loads(harpd.harpctl("status", "-o", "json").stdout)["leases"] == 1
