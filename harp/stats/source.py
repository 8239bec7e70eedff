# SPDX-License-Identifier: Apache-2.0
"""Where harpctl gets statistics from: the pages of this host, or harpd, which may see all of them.

Root sees every process's pages. Others see their own processes', and ask harpd for the rest;
harpd answers whom it would lease to.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harp.errors import HarpError
from harp.stats.discover import find
from harp.stats.instance import Sight, look, restored_sight

SOCKET = "/run/harp/harpd.sock"


def ask_harpd(flows: bool) -> dict[str, Any] | None:
    """harpd's answer; None when there is no harpd, or none that would answer."""
    path = Path(os.environ.get("HARP_SOCKET") or SOCKET)
    try:
        client = importlib.import_module("harp.daemon.client")
        with client.DaemonClient(path) as harpd:
            answer: dict[str, Any] = harpd.query("stats", flows=flows)
    except (ImportError, HarpError):
        return None
    return answer


class Source:
    """One place to look at, again and again."""

    def __init__(self, ask: Callable[[bool], dict[str, Any] | None] = ask_harpd) -> None:
        self._ask = ask
        self.daemon = False  # the last look was harpd's

    def look(self, *, flows: bool) -> Sight:
        """Everything that can be seen now."""
        self.daemon = False
        if os.geteuid() != 0:
            answer = self._ask(flows)
            if answer is not None and "instances" in answer:
                self.daemon = True
                return restored_sight(answer)
        with find() as found:
            return look(found, flows=flows)
