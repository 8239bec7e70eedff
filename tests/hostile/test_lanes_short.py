# SPDX-License-Identifier: Apache-2.0
"""Connects without descriptors. When there are some again, the process continues.

tests/plugin/shortage.c refuses each descriptor, allocation and call in turn.
"""

from __future__ import annotations

import contextlib
import pathlib
import resource
import time
from collections.abc import Iterator

import pytest
from actor import HANGS_S, Actor, ActorError
from hosts import Comms, Hosts

COMMS = 40
ENV = {"HARP_LANES": "2", "HARP_KERNEL_LANES": "2", "HARP_FRAMES": "4096"}
SOON = {"HARP_CONNECT_TIMEOUT_MS": "2000"}
FEW = 12  # descriptors


def descriptors(actor: Actor) -> int:
    return len(list(pathlib.Path(f"/proc/{actor.pid}/fd").iterdir()))


@contextlib.contextmanager
def limited(actor: Actor, value: int) -> Iterator[None]:
    before = resource.prlimit(actor.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(actor.pid, resource.RLIMIT_NOFILE, (value, before[1]))
    yield
    resource.prlimit(actor.pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("path", ["auto", "kernel"])
def test_the_receiver_has_no_descriptor_left(hosts: Hosts, path: str) -> None:
    with hosts.ranks(path, path, **ENV) as (receiver, sender):
        limit = descriptors(receiver) + FEW
        with limited(receiver, limit):
            comms = Comms((receiver, sender), [(1, 0)], COMMS)
            if path == "kernel":  # else HARP lanes take none
                end = time.monotonic() + HANGS_S
                while descriptors(receiver) < limit:  # nobody tells
                    assert time.monotonic() < end
        comms.come()
        comms.cross(5000)
        comms.close()


def test_the_sender_has_no_descriptor_left(hosts: Hosts) -> None:
    with hosts.ranks("kernel", "kernel", **ENV, **SOON) as (receiver, sender):
        handle, listen = receiver.call("listen")
        with limited(sender, descriptors(sender)):
            with pytest.raises(ActorError, match="ncclSystemError"):
                sender.call("connect", handle=handle)
        warnings = "\n".join(sender.call("warnings")).lower()
        assert "too many open files (raise the limit: ulimit -n)" in warnings, warnings
        assert "alive" not in warnings, warnings  # the peer has nothing to do with it
        receiver.start("accept", listen=listen)
        assert sender.call("connect", handle=handle)
        assert receiver.result()


@pytest.mark.parametrize("path", ["auto", "kernel"])
def test_five_hundred_connects_with_few_descriptors(hosts: Hosts, path: str) -> None:
    """A HARP port takes a descriptor, and is held in TIME-WAIT for a minute: that gives way. At
    worst a comm has fewer lanes."""
    with hosts.ranks(path, path, **ENV) as (receiver, sender):
        with contextlib.ExitStack() as stack:
            for rank in (receiver, sender):
                limit = descriptors(rank) + 200
                stack.enter_context(limited(rank, limit))
            for _ in range(20):
                comms = Comms((receiver, sender), [(1, 0)], 25)
                comms.come()
                comms.cross(5000)
                comms.close()
        for rank in (receiver, sender):
            assert all("fewer lanes" in warning for warning in rank.call("warnings"))
