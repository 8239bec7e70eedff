# SPDX-License-Identifier: Apache-2.0
"""allow_sources of harp.toml: harpd has the XDP program enforce it, from its start on."""

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


def asking(settings: Settings, *sources: str) -> Settings:
    """The settings with these allow_sources."""
    return replace(settings, nics=(NicConfig(ifname="eth0", allow_sources=sources),))


def program(harpd: Running) -> FakeSteering:
    return harpd.kernel.steerings[-1]


def sync(harpd: Running) -> None:
    harpd.call(lambda: harpd.daemon.nics.sync())


def is_leased(harpd: Running) -> bool:
    """Is a lease granted? What it got goes back."""
    with harpd.client() as client:
        lease_once(client, "eth0")
    return True


def test_no_lease_while_the_list_is_not_enforced(
    start: Start, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    harpd = start(given=asking(settings, TEN), load=lambda: asking(settings, TWENTY))
    program(harpd).failing = "sources_set"
    with harpd.client() as client:
        assert client.query("reload") == {"problem": ""}
        assert program(harpd).sources == [TEN_RAW], "the one before"
        with pytest.raises(RefusedByDaemonError, match="can't be leased: fake: sources_set"):
            client.lease("eth0")
        assert client.query("status")["nics"][0]["allow_sources"] is None
    sync(harpd)
    assert caplog.text.count("eth0: can't be leased: fake: sources_set") == 1
    program(harpd).failing = ""
    sync(harpd)
    assert program(harpd).sources == [TWENTY_RAW]
    assert is_leased(harpd)
    assert caplog.records[-1].levelno < logging.ERROR


# --------------------------------------------------------------------------------------------------
# Real queues, and a connection under it.
#


def nic(harpd: HostDaemon) -> dict[str, object]:
    return harpd.query("status")["nics"][0]


def dropped(harpd: HostDaemon) -> int:
    verdicts = nic(harpd)["verdicts"]
    assert isinstance(verdicts, dict)
    return int(verdicts["drop_source"])


def echoing(harpd: HostDaemon, address: str) -> Work:
    """A job that leases an instance, connects, and echoes a number each time it may continue."""

    def work(send: Send, wait_fd: int) -> None:
        socket = str(harpd.socket)
        with harp.Instance(harpd.host.ifname, daemon="require", socket=socket, label="e") as own:
            with own.connect(address, PORT, timeout=20) as end:
                end.timeout = 20
                number = 0
                while True:
                    number += 1
                    end.send_all(struct.pack("Q", number))
                    got = b""
                    while len(got) < 8:
                        got += bytes(end.recv(8 - len(got)))
                    send(struct.unpack("Q", got)[0])
                    if os.read(wait_fd, 1) == b"q":
                        break

    return work


def echo(job: Job, number: int) -> None:
    """The next number came back: the connection lives."""
    job.go()
    assert job.receive() == number


def test_a_connection_lives_through_changes_of_the_list_and_of_harpd(lab: Lab) -> None:
    """A removed source is cut off at once, also from open connections; TCP continues
    when it is back. Nothing is detached meanwhile, and a new harpd finds the list in force."""
    here, peer = lab.hosts
    allow, refuse = 'allow_sources = ["10.77.0.0/24"]', 'allow_sources = ["192.0.2.0/24", "::/0"]'
    echo_server(peer, PORT)
    with contextlib.ExitStack() as stack:
        harpd = stack.enter_context(HostDaemon(here, nic=allow))
        harpd.start()
        job = stack.enter_context(Job(echoing(harpd, peer.address), netns=here.netns))
        assert job.receive() == 1
        echo(job, 2)
        program, before = xdp_id(here), dropped(harpd)
        assert before == 0

        harpd.configure(nic=refuse)
        harpd.query("reload")
        assert nic(harpd)["allow_sources"] == ["192.0.2.0/24", "::/0"]
        job.go()
        wait_until(lambda: dropped(harpd) > 0, "the echo is dropped")
        assert xdp_id(here) == program

        harpd.end(signal.SIGKILL)
        harpd.start()
        assert nic(harpd)["allow_sources"] == ["192.0.2.0/24", "::/0"]
        count = dropped(harpd)
        wait_until(lambda: dropped(harpd) > count, "what is retransmitted is dropped")

        words = harpd.harpctl("status").stdout
        assert f"{here.ifname}: takes packets from 192.0.2.0/24, ::/0; dropped from" in words

        harpd.configure(nic=allow)
        assert harpd.query("reload") == {"problem": ""}
        assert job.receive() == 3
        echo(job, 4)
        assert json.loads(harpd.harpctl("status", "-o", "json").stdout)["leases"] == 1
