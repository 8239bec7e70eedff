# SPDX-License-Identifier: Apache-2.0
"""The source of harpctl's statistics: the pages of this host, or harpd, which may see all.

Root sees every process's pages. Others see their own processes' pages, and ask harpd for the rest;
harpd answers users who may have leases.
"""

import os
from pathlib import Path
from typing import Any

from harp.errors import HarpError
from harp.stats.discover import find
from harp.stats.instance import host_document, look

SOCKET = "/run/harp/harpd.sock"


def ask_harpd(flows: bool) -> dict[str, Any] | None:
    """Return harpd's answer; None if there is no harpd, or it does not answer."""
    from harp.daemon.client import DaemonClient

    try:
        with DaemonClient(Path(os.environ.get("HARP_SOCKET") or SOCKET)) as harpd:
            answer: dict[str, Any] = harpd.query("stats", flows=flows)
    except HarpError:
        return None
    return answer


class Source:
    """A source for repeated readings.

    Attributes
    ----------
    daemon
        Whether the last reading was harpd's.
    """

    def __init__(self) -> None:
        self.daemon = False

    def look(self, *, flows: bool) -> dict[str, Any]:
        """Return a document of everything that is visible now (docs/metrics.md)."""
        self.daemon = False
        if os.geteuid() != 0:
            answer = ask_harpd(flows)
            if answer is not None and "instances" in answer:
                self.daemon = True
                return answer
        with find() as found:
            return host_document(look(found, flows=flows))
