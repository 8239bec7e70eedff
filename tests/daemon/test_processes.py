# SPDX-License-Identifier: Apache-2.0
"""Eight processes on each host, each with a leased instance: none suffers from another's
failure."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from actor import Actor
from attack import Attack
from harpd_rig import HostDaemon

from harp import _paths
from harp.lab import Lab, LabOptions

PAIRS = 8
KEY = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
RULE = f"toeplitz:{KEY}"
SIZE = 40_000
SECONDS = 2.0


@dataclass
class Pair:
    """A process on each host, in a network namespace of its own, and a comm from the first."""

    sender: Actor
    receiver: Actor
    send: int = 0
    receive: int = 0

    def connect(self) -> None:
        handle, listen = self.receiver.call("listen")
        self.receiver.start("accept", listen=listen, timeout_s=60)
        self.send = self.sender.call("connect", handle=handle, timeout_s=60)
        self.receive = self.receiver.result()

    def begin(self, seconds: float) -> None:
        what: dict[str, Any] = {"size": SIZE, "timeout_s": 90}
        self.receiver.start("pump", sends=[], receives=[self.receive], seconds=0, **what)
        self.sender.start("pump", sends=[self.send], receives=[], seconds=seconds, **what)

    def end(self) -> int:
        """Every byte was checked; how many messages."""
        sent, received = self.sender.result(), self.receiver.result()
        assert sent == received
        assert sent[0][1] == "ncclSuccess"
        assert sent[0][0] > 0
        return int(sent[0][0])

    def run(self, seconds: float = 0.3) -> int:
        self.begin(seconds)
        return self.end()


@pytest.fixture
def lab(need_root: None) -> Iterator[Lab]:
    """Two hosts whose NICs have eight queues."""
    with Lab(LabOptions(queues=PAIRS, rss=RULE)) as lab:
        yield lab


@pytest.fixture
def harpds(lab: Lab) -> Iterator[list[HostDaemon]]:
    """One on each host."""
    daemons = [HostDaemon(host, nic=f'rss = "{RULE}"') for host in lab.hosts]
    try:
        yield [daemon.start() for daemon in daemons]
    finally:
        for daemon in daemons:
            daemon.close()


@pytest.fixture
def pairs(harpds: list[HostDaemon]) -> Iterator[list[Pair]]:
    """Connected, each with a comm that has been used."""
    with contextlib.ExitStack() as stack:

        def start(daemon: HostDaemon, name: str) -> Actor:
            job = {
                "HARP_DAEMON": "require",
                "HARP_SOCKET": str(daemon.socket),
                "HARP_PATH": "xdp",
                "HARP_LABEL": name,
                "HARP_FRAMES": "2048",
            }
            actor = Actor(None, job, ["unshare", "--net"])
            stack.callback(actor.close)
            return actor

        made = [
            Pair(start(harpds[0], f"sender {i}"), start(harpds[1], f"receiver {i}"))
            for i in range(PAIRS)
        ]
        actors = [actor for pair in made for actor in (pair.sender, pair.receiver)]
        for actor in actors:
            actor.start("load", path=str(_paths.plugin()))
        for actor in actors:
            actor.result()
        for pair in made:
            pair.connect()
            pair.run()
        yield made


def verdicts(daemon: HostDaemon) -> dict[str, int]:
    found: dict[str, int] = daemon.query("status")["nics"][0]["verdicts"]
    return found


def test_each_process_has_a_queue_and_survives_a_flood_and_a_killed_one(
    lab: Lab, harpds: list[HostDaemon], pairs: list[Pair]
) -> None:
    instances = []
    for daemon, side in zip(harpds, ("sender", "receiver"), strict=True):
        instances = daemon.query("instances")["instances"]
        assert sorted(each["queue"] for each in instances) == list(range(PAIRS))
        assert sorted(each["label"] for each in instances) == [f"{side} {i}" for i in range(PAIRS)]
        assert len({each["pid"] for each in instances}) == PAIRS
    for pair in pairs:
        log = pair.sender.call("log")
        assert any("connected by HARP TCP" in line for line in log)
    # A flood of one: its comm continues as well, because SYNs are answered by cookies or dropped.
    low, high = next(each["ports"] for each in instances if each["label"] == "receiver 0")
    before = verdicts(harpds[1])
    with Attack(lab.hosts[0], "syn", lab.hosts[1].address, range(low, high + 1)):
        for pair in pairs:
            pair.begin(SECONDS)
        assert all(pair.end() for pair in pairs)
    # Most of them hash to another queue than the ports' home.
    assert verdicts(harpds[1])["rss_mismatch"] > before["rss_mismatch"] + 100
    # The receiver of a killed one ends with an error, and the others continue.
    victim, *others = pairs
    for pair in pairs:
        pair.begin(60 if pair is victim else SECONDS)
    killed = victim.sender.process.pid
    victim.sender.kill()
    (_, result), *_ = victim.receiver.result()
    assert result == "ncclRemoteError"
    assert all(pair.end() for pair in others)
    for daemon in harpds:
        assert killed not in [each["pid"] for each in daemon.query("instances")["instances"]]
    assert all(pair.run() for pair in others)


@pytest.mark.parametrize("rule", [RULE, "hash:9"], ids=["known", "unknown"])
def test_one_process_with_four_leases(lab: Lab, rule: str) -> None:
    """Each engine has a lease: a queue, a block of ports, and what harpd knows of the NIC."""
    assert lab.spreader is not None
    known = f'rss = "{rule if rule == RULE else "unknown"}"'
    with contextlib.ExitStack() as stack:
        sides = []
        for host in lab.hosts:
            lab.spreader.rule(host.index, rule)
            daemon = HostDaemon(host, nic=known)
            stack.callback(daemon.close)
            daemon.start()
            job = {"HARP_DAEMON": "require", "HARP_SOCKET": str(daemon.socket)}
            job |= {"HARP_INSTANCES": "4", "HARP_FRAMES": "2048", "HARP_PATH": "xdp"}
            actor = Actor(None, job, ["unshare", "--net"])
            stack.callback(actor.close)
            actor.call("load", path=str(_paths.plugin()))
            assert len(daemon.query("instances")["instances"]) == 4
            sides.append(actor)
        pairs = [Pair(*sides) for _ in range(4)]
        for pair in pairs:
            pair.connect()
        sender, receiver = sides
        what: dict[str, Any] = {"size": SIZE, "timeout_s": 60}
        receives = [pair.receive for pair in pairs]
        receiver.start("pump", sends=[], receives=receives, seconds=0, **what)
        sends = [pair.send for pair in pairs]
        sent = sender.call("pump", sends=sends, receives=[], seconds=0.5, **what)
        assert sent == receiver.result()
        assert all(count > 0 and result == "ncclSuccess" for count, result in sent)
        lanes = [line for line in sender.call("log") if "connected by HARP TCP" in line]
        assert len({line.rpartition(" queue ")[2].split(",")[0] for line in lanes}) == 4
