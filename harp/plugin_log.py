# SPDX-License-Identifier: Apache-2.0
"""What a rank reads in its plugin's log."""

import re
from collections.abc import Sequence

# plugin/poll/engine.c and plugin/connect/ctx_devices.c log it for each device:
# "eth1: path HARP: AF_XDP ...".
_PATH = re.compile(r": path (?:HARP: |DPDK: |(?=kernel TCP: ))(?P<why>.*)")


def path_in_use(lines: Sequence[str]) -> str:
    """What carries lanes, and why no better; the newest line wins, "" when none says so.

    By which of its lanes a comm sends what is another line, which names both kinds.
    """
    for line in reversed(lines):
        if match := _PATH.search(line):
            return match["why"].strip()
    return ""
