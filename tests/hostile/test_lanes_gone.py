# SPDX-License-Identifier: Apache-2.0
"""Connects to a closed listener, to a dead process, over a prohibited route, or without
descriptors: one error names the peer and the likely cause. An ended rank's last message arrives."""

import base64
import os
import pathlib
import resource
import signal
import subprocess
import time

import pytest
from actor import Actor, ActorError, actors
from hosts import Hosts

from harp.lab import Lab, LabOptions
from harp.lab.rails import Rails

MESSAGE = b"the last message"
LINGER_S = 0.05  # HARP_CLOSE_LINGER_MS
SHORT_TIMEOUT = {"HARP_CONNECT_TIMEOUT_MS": "3000"}


def fail_to_connect(sender: Actor, handle: str) -> str:
    """Connects, which must fail with ncclRemoteError; returns the one warning."""
    with pytest.raises(ActorError, match="ncclRemoteError"):
        sender.call("connect", handle=handle)
    (warning,) = sender.call("warnings")
    return str(warning)


@pytest.mark.sample(
    "IPv4-xdp-closed",
    "IPv6-auto-closed",
    "IPv4-kernel-closed",
    "IPv6-xdp-killed",
    "IPv4-auto-killed",
    "IPv6-kernel-killed",
)
@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize("path", ["auto", "xdp", "kernel"])
def test_the_listener_is_gone(family_hosts: Hosts, path: str, how: str) -> None:
    with family_hosts.ranks(path, path, **SHORT_TIMEOUT) as (receiver, sender):
        handle, listen = receiver.call("listen")
        if how == "killed":
            receiver.kill()
        else:
            receiver.call("close_listen", comm=listen)
        warning = fail_to_connect(sender, handle)
        assert family_hosts.address[0] in warning
        cause = (
            "its rank has closed this listener" if how == "closed" else "is the peer's rank alive"
        )
        assert cause in warning


@pytest.mark.sample("IPv6")
def test_the_peer_is_stopped(family_hosts: Hosts) -> None:
    """The warning does not suggest a firewall, because the peer's kernel has answered."""
    with family_hosts.ranks("kernel", "kernel", **SHORT_TIMEOUT) as (receiver, sender):
        handle, _listen = receiver.call("listen")
        receiver.process.send_signal(signal.SIGSTOP)
        # Wait until all threads have stopped: the control thread accepts connections.
        os.waitid(os.P_PID, receiver.process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            warning = fail_to_connect(sender, handle)
        finally:
            receiver.process.send_signal(signal.SIGCONT)
    assert warning.endswith("the peer does not accept; is its rank alive?")


def test_a_prohibited_route_is_an_unreachable_peer(family_hosts: Hosts) -> None:
    """Linux returns EACCES for a prohibit route, and for IPv6 that a firewall rejects. NCCL gets a
    remote error."""
    with family_hosts.ranks("kernel", "kernel", **SHORT_TIMEOUT) as (receiver, sender):
        handle, listen = receiver.call("listen")
        route = ["prohibit", family_hosts.address[0]]
        family = "-6" if ":" in family_hosts.address[0] else "-4"
        family_hosts.ip(1, family, "route", "add", *route)
        try:
            assert "rejects" in fail_to_connect(sender, handle)
        finally:
            family_hosts.ip(1, family, "route", "del", *route)
        receiver.start("accept", listen=listen)
        assert sender.call("connect", handle=handle)
        assert receiver.result()


def test_the_sender_has_no_descriptor_left(hosts: Hosts) -> None:
    """tests/plugin/fault_injection.c fails each descriptor, allocation and call in turn."""
    with hosts.ranks("kernel", "kernel", **SHORT_TIMEOUT) as (receiver, sender):
        handle, listen = receiver.call("listen")
        soft, hard = resource.prlimit(sender.pid, resource.RLIMIT_NOFILE)
        open_count = len(list(pathlib.Path(f"/proc/{sender.pid}/fd").iterdir()))
        resource.prlimit(sender.pid, resource.RLIMIT_NOFILE, (open_count, hard))
        with pytest.raises(ActorError, match="ncclSystemError"):
            sender.call("connect", handle=handle)
        resource.prlimit(sender.pid, resource.RLIMIT_NOFILE, (soft, hard))
        warnings = "\n".join(sender.call("warnings")).lower()
        assert "too many open files (raise the limit: ulimit -n)" in warnings, warnings
        assert "alive" not in warnings, warnings  # the cause is local
        receiver.start("accept", listen=listen)
        assert sender.call("connect", handle=handle)
        assert receiver.result()


def test_an_xdp_rank_has_too_few_descriptors(hosts: Hosts) -> None:
    with actors(Actor(hosts.netns[0], hosts.env("xdp"))) as (rank,):
        _soft, hard = resource.prlimit(rank.pid, resource.RLIMIT_NOFILE)
        open_count = len(list(pathlib.Path(f"/proc/{rank.pid}/fd").iterdir()))
        resource.prlimit(rank.pid, resource.RLIMIT_NOFILE, (open_count + 12, hard))
        with pytest.raises(ActorError) as error:
            rank.load()
        text = str(error.value)
        assert "Too many open files" in text, text
        assert "raise the limit: ulimit -n" in text, text


def test_a_link_that_goes_down_is_one_warning(hosts: Hosts) -> None:
    with hosts.ranks("xdp") as (rank,):
        rank.call("listen")
        ifname = hosts.ifname[0]
        hosts.ip(0, "link", "set", ifname, "down")
        try:
            deadline = time.monotonic() + 10
            while not (warnings := rank.call("warnings")) and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
            warnings = rank.call("warnings")
        finally:
            hosts.ip(0, "link", "set", ifname, "up")
        text = f"NET/HARP: {ifname} is down; its connections wait until it is up or they time out"
        assert [line for line in warnings if "is down" in line] == [text]


@pytest.mark.parametrize("end", ["finalize", "exit"])
def test_a_lost_small_message_arrives_after_its_sender_has_ended(need_root: None, end: str) -> None:
    """A small send completes before its ACK (docs/lanes.md section 6)."""
    with Lab(LabOptions(switch=True)) as lab:
        env = {"HARP_PATH": "xdp", "NCCL_SOCKET_IFNAME": "=" + lab.hosts[0].ifname}
        if end == "exit":
            env["HARP_CLOSE_LINGER_MS"] = "1000"
        with actors(*(Actor(host.netns, env) for host in lab.hosts)) as (receiver, sender):
            for rank in (receiver, sender):
                rank.load()
            handle, listen = receiver.call("listen")
            receiver.start("accept", listen=listen)
            comm = sender.call("connect", handle=handle)
            accepted = receiver.result()
            rails = Rails(lab)
            rails.silence(0)
            sender.call("send", comm=comm, data=base64.b64encode(MESSAGE).decode())
            if end == "finalize":
                sender.call("close_send", comm=comm)
                sender.start("finalize")
            sender.process.stdin.close()
            with pytest.raises(subprocess.TimeoutExpired):
                sender.process.wait(4 * LINGER_S)  # it waits for the acknowledgment
            rails.restore(0)
            received = receiver.call("receive", comm=accepted, size=len(MESSAGE))
            assert base64.b64decode(received) == MESSAGE
            assert sender.process.wait(10) == 0
