# SPDX-License-Identifier: Apache-2.0
"""Programs that use harp.torch, each in a network namespace of its own."""

from collections.abc import Mapping, Sequence

import new_network

TIMEOUT_S = 120
ENV = {
    "HARP_DAEMON": "off",
    "HARP_PATH": "kernel",
    "NCCL_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def output_of(
    words: Sequence[str], env: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> tuple[int, str, str]:
    """Runs a program in a new network namespace: exit status and what it printed."""
    return new_network.output_of(words, ENV | dict(env), timeout_s)
