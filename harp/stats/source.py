# SPDX-License-Identifier: Apache-2.0
"""The source of harpctl's statistics: the pages of this host, or harpd, which may see all.

Root sees every process's pages. Others see their own processes' pages, and ask harpd for the rest;
harpd answers users who may have leases.
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
    """Return harpd's answer; None if there is no harpd, or it does not answer."""
    path = Path(os.environ.get("HARP_SOCKET") or SOCKET)
    try:
        client = importlib.import_module("harp.daemon.client")
        with client.DaemonClient(path) as harpd:
            answer: dict[str, Any] = harpd.query("stats", flows=flows)
    except (ImportError, HarpError):
        return None
    return answer


class Source:
    """A source for repeated readings."""

    def __init__(self, ask: Callable[[bool], dict[str, Any] | None] = ask_harpd) -> None:
        self._ask = ask
        self.daemon = False  # the last reading was harpd's

    def look(self, *, flows: bool) -> Sight:
        """Return everything that is visible now."""
        self.daemon = False
        if os.geteuid() != 0:
            answer = self._ask(flows)
            if answer is not None and "instances" in answer:
                self.daemon = True
                return restored_sight(answer)
        with find() as found:
            return look(found, flows=flows)
