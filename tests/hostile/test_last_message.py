# SPDX-License-Identifier: Apache-2.0
"""A small send is done before it is acknowledged (docs/lanes.md section 6): it arrives even if the
wire loses it and its sender ends."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator

import pytest
from actor import Actor, actors

from harp import _paths
from harp.lab import Lab, LabOptions
from harp.lab.rails import Rails

MESSAGE = b"the last message"
LINGER_S = 0.05  # HARP_CLOSE_LINGER_MS


@pytest.fixture
def lab(need_root: None) -> Iterator[Lab]:
    with Lab(LabOptions(switch=True)) as lab:
        yield lab


@pytest.mark.parametrize("end", ["finalize", "exit"])
def test_a_lost_small_message_arrives_after_its_sender_has_ended(lab: Lab, end: str) -> None:
    env = {"HARP_PATH": "xdp", "NCCL_SOCKET_IFNAME": "=" + lab.hosts[0].ifname}
    if end == "exit":
        env["HARP_CLOSE_LINGER_MS"] = "1000"
    with actors(*(Actor(host.netns, env) for host in lab.hosts)) as (receiver, sender):
        for rank in (receiver, sender):
            rank.call("load", path=str(_paths.plugin()))
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
        assert sender.process.stdin
        sender.process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            sender.process.wait(4 * LINGER_S)  # it waits for the acknowledgment
        rails.restore(0)
        received = receiver.call("receive", comm=accepted, size=len(MESSAGE))
        assert base64.b64decode(received) == MESSAGE
        assert sender.process.wait(10) == 0
