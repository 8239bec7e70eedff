# SPDX-License-Identifier: Apache-2.0
"""Connects without descriptors or memory. When the resources are back, the process continues."""

from __future__ import annotations

import contextlib
import pathlib
import resource
import time
from collections.abc import Iterator

import pytest
from actor import HANGS_S, Actor, ActorError
from hosts import Hosts

COMMS = 40
FAILING = 10  # connects without memory; each is tried again for a while
ENV = {"HARP_LANES": "2", "HARP_KERNEL_LANES": "2", "HARP_FRAMES": "4096"}
SOON = {"HARP_CONNECT_TIMEOUT_MS": "2000"}
FEW = 12  # descriptors
LITTLE = 12 << 20  # bytes: a third of what the comms want, and enough for the interpreter


def descriptors(actor: Actor) -> int:
    return len(list(pathlib.Path(f"/proc/{actor.pid}/fd").iterdir()))


def address_space(actor: Actor) -> int:
    pages = pathlib.Path(f"/proc/{actor.pid}/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


@contextlib.contextmanager
def limited(actor: Actor, what: int, value: int) -> Iterator[None]:
    before = resource.prlimit(actor.pid, what)
    resource.prlimit(actor.pid, what, (value, before[1]))
    yield
    resource.prlimit(actor.pid, what, before)


class Comms:
    """`count` of them between two ranks: begun, there, closed."""

    def __init__(self, receiver: Actor, sender: Actor, count: int) -> None:
        self.receiver, self.sender = receiver, sender
        self.handles, self.listens = zip(*receiver.call("listen_many", count=count), strict=True)
        receiver.start("join", handles=[], listens=self.listens)
        sender.start("join", handles=self.handles, listens=[])

    def come(self) -> None:
        _, self.receives = self.receiver.result()
        self.sends, _ = self.sender.result()

    def cross(self) -> None:
        names = [str(n) for n in range(len(self.sends))]
        sends = list(zip(self.sends, names, strict=True))
        receives = list(zip(self.receives, names, strict=True))
        self.sender.start("cross", sends=sends, receives=[], size=5000)
        self.receiver.start("cross", sends=[], receives=receives, size=5000)
        assert self.sender.result() == self.receiver.result() == len(names)

    def close(self) -> None:
        self.sender.call("each", name="close_send", values=self.sends)
        self.receiver.call("each", name="close_recv", values=self.receives)
        self.receiver.call("each", name="close_listen", values=self.listens)


@pytest.mark.parametrize("path", ["auto", "kernel"])
def test_the_receiver_has_no_descriptor_left(hosts: Hosts, path: str) -> None:
    with hosts.ranks(path, path, **ENV) as (receiver, sender):
        limit = descriptors(receiver) + FEW
        with limited(receiver, resource.RLIMIT_NOFILE, limit):
            comms = Comms(receiver, sender, COMMS)
            if path == "kernel":  # else HARP lanes take none
                end = time.monotonic() + HANGS_S
                while descriptors(receiver) < limit:  # nobody tells
                    assert time.monotonic() < end
        comms.come()
        comms.cross()
        comms.close()


def test_the_sender_has_no_descriptor_left(hosts: Hosts) -> None:
    with hosts.ranks("kernel", "kernel", **ENV, **SOON) as (
        receiver,
        sender,
    ):
        handle, listen = receiver.call("listen")
        with limited(sender, resource.RLIMIT_NOFILE, descriptors(sender)):
            with pytest.raises(ActorError, match="ncclSystemError"):
                sender.call("connect", handle=handle)
        warnings = "\n".join(sender.call("warnings")).lower()
        assert "too many open files (raise the limit: ulimit -n)" in warnings, warnings
        assert "alive" not in warnings, warnings  # the peer has nothing to do with it
        receiver.start("accept", listen=listen)
        assert sender.call("connect", handle=handle)
        assert receiver.result()


def test_the_listener_has_no_descriptor_left(hosts: Hosts) -> None:
    """One more at a time, until there are enough: whatever lacked its own said so."""
    with hosts.ranks("kernel", "kernel", **ENV) as (receiver, sender):
        listening, had = None, descriptors(receiver)
        for limit in range(had, had + 16):
            with (
                limited(receiver, resource.RLIMIT_NOFILE, limit),
                contextlib.suppress(ActorError),
            ):
                listening = receiver.call("listen")
                break
        assert listening
        warnings = receiver.call("warnings")
        assert any("cannot listen on" in warning for warning in warnings), warnings
        for warning in warnings:
            assert "ulimit -n" in warning, warning
            assert "the interface's" not in warning, warning  # its address is as good as ever
        handle, listen = listening
        receiver.start("accept", listen=listen)
        assert sender.call("connect", handle=handle)
        assert receiver.result()


def test_the_sender_has_no_memory_left(hosts: Hosts) -> None:
    """Some of its comms come and some don't, each with a result. With memory again, others do."""
    with hosts.ranks("auto", "auto", **ENV, **SOON) as (receiver, sender):
        handles, listens = zip(*receiver.call("listen_many", count=FAILING + COMMS), strict=True)
        receiver.start("join", handles=[], listens=listens[FAILING:])
        results = []
        with limited(sender, resource.RLIMIT_AS, address_space(sender) + LITTLE):
            for handle in handles[:FAILING]:
                results.append("comm")
                try:
                    sender.call("connect", handle=handle)
                except ActorError as error:
                    results[-1] = str(error)
        assert any("nccl" in result for result in results), results
        sender.start("join", handles=handles[FAILING:], listens=[])
        assert len(receiver.result()[1]) == len(sender.result()[0]) == COMMS


@pytest.mark.parametrize("path", ["auto", "kernel"])
def test_five_hundred_connects_with_few_descriptors(hosts: Hosts, path: str) -> None:
    """A HARP port takes a descriptor, and is held in TIME-WAIT for a minute: that gives way. At
    worst a comm has fewer lanes."""
    with hosts.ranks(path, path, **ENV) as (receiver, sender):
        with contextlib.ExitStack() as stack:
            for rank in (receiver, sender):
                limit = descriptors(rank) + 200
                stack.enter_context(limited(rank, resource.RLIMIT_NOFILE, limit))
            for _ in range(20):
                comms = Comms(receiver, sender, 25)
                comms.come()
                comms.cross()
                comms.close()
        for rank in (receiver, sender):
            assert all("fewer lanes" in warning for warning in rank.call("warnings"))
