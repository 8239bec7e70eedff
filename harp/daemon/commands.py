# SPDX-License-Identifier: Apache-2.0
"""Commands of harpctl over the socket; each answer is a JSON document."""

import errno
import logging
import os
from typing import TYPE_CHECKING, Any

from harp.daemon import peer, queries
from harp.daemon.looks import Looks
from harp.daemon.server import Client
from harp.daemon.session import Command, Later
from harp.daemon.table import RefusedError

if TYPE_CHECKING:
    from harp.daemon.daemon import Daemon

log = logging.getLogger("harpd")


_NET_ADMIN = 1 << 12  # CAP_NET_ADMIN


def _only_root(client: Client) -> None:
    who = client.peer.owner
    if who.uid not in (0, os.geteuid()):
        raise RefusedError(errno.EPERM, "only root may do that")
    # Root in a container that has only the socket is not the host's root.
    needed = _NET_ADMIN & peer.capabilities(os.getpid())
    if peer.capabilities(who.pid) & needed != needed or not peer.lives(who):
        raise RefusedError(errno.EPERM, "only root with CAP_NET_ADMIN may do that")


class Commands:
    """All commands of one harpd."""

    def __init__(self, daemon: "Daemon", looks: Looks) -> None:
        self._daemon, self._looks = daemon, looks

    def all(self) -> dict[str, Command]:
        """Return the commands by name."""
        daemon = self._daemon
        return {
            "status": lambda _client, _question: daemon.status(),
            "instances": lambda _client, _question: queries.instances(daemon.leasing),
            "config": lambda _client, _question: queries.config(daemon.settings),
            "stats": self._stats,
            "stop": self._stop,
            "restart": self._restart,
            "reload": self._reload,
        }

    def _stats(self, client: Client, question: dict[str, Any]) -> Later:
        """Return the statistics of all instances of the host, for users who may have leases."""
        who = client.peer
        if who.owner.uid not in (0, os.geteuid()) and not self._daemon.leasing.access.allows(
            who.owner.uid, who.gids
        ):
            raise RefusedError(
                errno.EACCES, f"user {who.owner.uid} may not have leases, nor see others' instances"
            )
        flows = question.get("flows") is not False
        return lambda then: self._looks.ask(who.owner.uid, flows, then)

    def _stop(self, client: Client, question: dict[str, Any]) -> dict[str, Any]:
        _only_root(client)
        leased = queries.instances(self._daemon.leasing)
        if self._daemon.in_use and question.get("force") is not True:
            return {"stopping": False, **leased}
        log.info("asked to stop by %s", client)
        self._daemon.end_soon(remove=True)
        return {"stopping": True, "pid": os.getpid(), **leased}

    def _restart(self, client: Client, _question: dict[str, Any]) -> dict[str, Any]:
        _only_root(client)
        problem = self._daemon.restart_problem()
        if problem:
            raise RefusedError(errno.EINVAL, f"{problem}; harpd goes on as it was")
        log.info("asked to restart by %s", client)
        self._daemon.end_soon(remove=False, restart=True)
        return {"restarting": True, "pid": os.getpid(), "since_s": self._daemon.since_s}

    def _reload(self, client: Client, _question: dict[str, Any]) -> dict[str, Any]:
        _only_root(client)
        return {"problem": self._daemon.reload()}
