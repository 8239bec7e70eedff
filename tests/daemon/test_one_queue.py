# SPDX-License-Identifier: Apache-2.0
"""A NIC that puts everything on queue 0: one process has HARP, the others kernel lanes, and harpd
stops leasing queues that nothing comes to, until something does."""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest
from actor import Actor
from harpd_rig import HostDaemon
from lease_client import LeaseClient
from netns_queues import connection
from netns_tools import wait_until

from harp import _paths
from harp.daemon.client import RefusedByDaemonError
from harp.lab import Host, Lab, LabOptions

PAIRS, QUEUES = 4, 8
KEY = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
RULE = f"toeplitz:{KEY}"
REASON = "eth0: the NIC puts all of HARP's packets on queue 0 ("


@pytest.fixture
def lab(need_root: None) -> Iterator[Lab]:
    """The second host's NIC has eight queues and uses one."""
    with Lab(LabOptions(queues=QUEUES, rss=RULE)) as lab:
        assert lab.spreader is not None
        lab.spreader.rule(lab.hosts[1].index, "zero")
        yield lab


@pytest.fixture
def harpds(lab: Lab) -> Iterator[list[HostDaemon]]:
    """One on each host; the first knows how its NIC chooses queues, the second does not."""
    rules = (f'rss = "{RULE}"', 'rss = "unknown"')
    daemons = [HostDaemon(host, nic=rule) for host, rule in zip(lab.hosts, rules, strict=True)]
    try:
        yield [daemon.start() for daemon in daemons]
    finally:
        for daemon in daemons:
            daemon.close()


def actor(host: Host, daemon: HostDaemon) -> Actor:
    job = {
        "HARP_DAEMON": "require",
        "HARP_SOCKET": str(daemon.socket),
        "HARP_FRAMES": "2048",
        "HARP_XDP_BYTES_MAX": "3000",  # lanes of both kinds
        "NCCL_SOCKET_IFNAME": host.ifname,
    }
    return Actor(None, job, ["nsenter", f"--net=/run/netns/{host.netns}"])


def pumped(sender: Actor, receiver: Actor, send: int, receive: int) -> int:
    """Messages that went over, every byte checked."""
    what: dict[str, Any] = {"size": 40_000, "timeout_s": 60}
    receiver.start("pump", sends=[], receives=[receive], seconds=0, **what)
    sender.start("pump", sends=[send], receives=[], seconds=0.3, **what)
    sent, received = sender.result(), receiver.result()
    assert sent == received
    assert sent[0][1] == "ncclSuccess"
    return int(sent[0][0])


def start(stack: contextlib.ExitStack, host: Host, daemon: HostDaemon) -> Actor:
    made = actor(host, daemon)
    stack.callback(made.close)
    made.call("load", path=str(_paths.plugin()))
    made.call("open_interfaces")
    return made


def connected(sender: Actor, receiver: Actor, listening: tuple[str, int]) -> str:
    """Connect and use them; return the sender's log. Its line about the path has the reason of the
    last attempt only, and on a busy machine there may have been several."""
    handle, listen = listening
    receiver.start("accept", listen=listen, timeout_s=60)
    send = sender.call("connect", handle=handle, timeout_s=60)
    assert pumped(sender, receiver, send, receiver.result()) > 0
    return "\n".join(sender.call("log"))


def lease(daemon: HostDaemon) -> tuple[LeaseClient, list[int]]:
    client = daemon.client()
    try:
        return client, client.lease("eth0")[1]
    except BaseException:
        client.close()
        raise


def harpctl(daemon: HostDaemon, *words: str) -> str:
    done = daemon.harpctl(*words, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_packets_on_one_queue(lab: Lab, harpds: list[HostDaemon]) -> None:
    here, there = lab.hosts
    with contextlib.ExitStack() as stack:
        senders, receivers, listens = [], [], []
        for _ in range(PAIRS):  # queues 0 to 3 of each host, in this order
            senders.append(start(stack, here, harpds[0]))
            receivers.append(start(stack, there, harpds[1]))
            listens.append(receivers[-1].call("listen"))
        logs = [connected(*each) for each in zip(senders, receivers, listens, strict=True)]
        assert "connected by HARP TCP" in logs[0]
        for index, log in enumerate(logs[1:], 1):
            assert "connected by kernel TCP" in log
            assert "source ports: packets between our queue" in log
            assert f"the peer's queue {index} of {QUEUES} find no way" in log
        # The packets that were lost are SYNs, as any host may send: nothing is concluded.
        verdicts = harpds[1].query("status")["nics"][0]["verdicts"]
        assert verdicts["rss_mismatch"] >= 64
        assert harpds[1].query("status")["nics"][0]["queues_unreachable"] == []
        # Now the second host connects: answers to three queues of its come to another one.
        for sender, receiver in zip(receivers[1:], senders[1:], strict=True):
            connected(sender, receiver, receiver.call("listen"))
        # Queues 4 to 7 are free, and would receive nothing.
        for _ in range(2):
            with pytest.raises(RefusedByDaemonError) as refused:
                lease(harpds[1])
            assert refused.value.error == errno.EBUSY
            assert REASON in refused.value.why
        # A fifth process gets the reason, and kernel lanes.
        fifth = start(stack, there, harpds[1])
        listening = fifth.call("listen")
        assert any(REASON in line for line in fifth.call("log"))
        connected(senders[0], fifth, listening)
        nic = harpds[1].query("status")["nics"][0]
        assert nic["queues_unreachable"] == list(range(1, QUEUES))
        assert nic["verdicts"]["rss_mismatch"] >= 64
        assert harpds[1].log_text().count(REASON) == 1, "logged once"
        assert harpds[0].query("status")["nics"][0]["queues_unreachable"] == []
        status = harpctl(harpds[1], "status")
        assert REASON in status
        assert "rss_mismatch" in status
        # The NIC is taught to spread, and a peer tries again.
        assert lab.spreader is not None
        lab.spreader.rule(there.index, RULE)
        port = harpds[1].query("instances")["instances"][1]["ports"][0]
        for source in range(20000, 20016):
            with (
                contextlib.suppress(OSError),
                connection(here, source, (there.address, port), 0.05),
            ):
                pass
        wait_until(
            lambda: harpds[1].query("status")["nics"][0]["queues_unreachable"] == [],
            "packets on other queues",
        )
        client, fds = lease(harpds[1])
        stack.callback(client.close)
        for fd in fds:
            stack.callback(os.close, fd)
        assert "all may be leased again" in harpds[1].log_text()
