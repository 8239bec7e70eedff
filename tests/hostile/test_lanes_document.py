# SPDX-License-Identifier: Apache-2.0
"""The plugin's kernel lanes against a sender and a receiver made from docs/lanes.md alone."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from hosts import Hosts

SEEDS = 60


@pytest.mark.parametrize("role", ["send", "receive"])
def test_a_peer_made_from_the_document(hosts: Hosts, role: str) -> None:
    """Chunks over lanes in any order, twice, and of lanes that die; credits and acknowledgements of
    every kind: each message arrives, once, whole."""
    hosts.ip(0, "link", "set", "lo", "up")
    command = ["ip", "netns", "exec", hosts.netns[0], sys.executable]
    command += [str(pathlib.Path(__file__).with_name("lanes_peer.py")), role, "0", str(SEEDS)]
    env = hosts.env("kernel", NCCL_SOCKET_IFNAME="lo", HARP_KERNEL_LANES="4")
    done = subprocess.run(
        command,
        env=env | {"HARP_EAGER_BYTES": "8192"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
