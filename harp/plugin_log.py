# SPDX-License-Identifier: Apache-2.0
"""Parses the plugin's log of a rank."""

import re
from collections.abc import Sequence

# plugin/poll/engine.c and plugin/connect/ctx_devices.c log it for each device:
# "eth1: path HARP: AF_XDP ...".
_PATH = re.compile(r": path (?:HARP: |DPDK: |(?=kernel TCP: ))(?P<why>.*)")


def path_in_use(lines: Sequence[str]) -> str:
    """Return what carries lanes, and why nothing faster does, by the newest line; "" if none."""
    for line in reversed(lines):
        if match := _PATH.search(line):
            return match["why"].strip()
    return ""
