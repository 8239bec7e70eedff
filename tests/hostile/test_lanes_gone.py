# SPDX-License-Identifier: Apache-2.0
"""Connect to a closed listener, to a dead process, or over a forbidden path: one error names the
peer and the likely cause."""

from __future__ import annotations

import os
import signal

import pytest
from actor import Actor, ActorError
from hosts import Hosts

SOON = {"HARP_CONNECT_TIMEOUT_MS": "3000"}


def fails(sender: Actor, handle: str) -> str:
    """The connect's one warning; it ends in ncclRemoteError."""
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
def test_the_listener_is_gone(each: Hosts, path: str, how: str) -> None:
    with each.ranks(path, path, **SOON) as (receiver, sender):
        handle, listen = receiver.call("listen")
        if how == "killed":
            receiver.kill()
        else:
            receiver.call("close_listen", comm=listen)
        warning = fails(sender, handle)
        assert each.address[0] in warning
        words = (
            "its rank has closed this listener" if how == "closed" else "is the peer's rank alive"
        )
        assert words in warning


@pytest.mark.sample("IPv6")
def test_the_peer_is_stopped(each: Hosts) -> None:
    """One question, and none of a firewall: the peer's kernel has answered."""
    with each.ranks("kernel", "kernel", **SOON) as (receiver, sender):
        handle, _listen = receiver.call("listen")
        receiver.process.send_signal(signal.SIGSTOP)
        # All of its threads: one of them lets peers in.
        os.waitid(os.P_PID, receiver.process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            warning = fails(sender, handle)
        finally:
            receiver.process.send_signal(signal.SIGCONT)
    assert warning.endswith("the peer does not accept; is its rank alive?")


def test_a_prohibited_route_is_an_unreachable_peer(each: Hosts) -> None:
    """Linux says EACCES of a route that prohibits, and of IPv6 that a firewall rejects: to NCCL the
    peer is out of reach."""
    with each.ranks("kernel", "kernel", **SOON) as (receiver, sender):
        handle, listen = receiver.call("listen")
        route = ["prohibit", each.address[0]]
        family = "-6" if ":" in each.address[0] else "-4"
        each.ip(1, family, "route", "add", *route)
        try:
            assert "rejects" in fails(sender, handle)
        finally:
            each.ip(1, family, "route", "del", *route)
        receiver.start("accept", listen=listen)
        assert sender.call("connect", handle=handle)
        assert receiver.result()
