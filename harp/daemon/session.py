# SPDX-License-Identifier: Apache-2.0
"""Handles each message of harp_lease.h, and the commands of harpctl in QUERY messages."""

import errno
import json
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harp import __version__, _host
from harp._host import Kind, Message
from harp.daemon import peer, queries
from harp.daemon.documents import Lending, document_fd
from harp.daemon.leasing import Granted
from harp.daemon.readings import Readings, Then
from harp.daemon.server import Client, Reply
from harp.daemon.table import RefusedError
from harp.daemon.watching import Watching

if TYPE_CHECKING:
    from harp.daemon.daemon import Daemon

log = logging.getLogger("harpd")
_NET_ADMIN = 1 << 12  # CAP_NET_ADMIN
# A command gets the client and the fields of its question. It returns the document, or a function
# that calls back with the document's descriptor. RefusedError.
Command = Callable[[Client, dict[str, Any]], dict[str, Any] | Callable[[Then], None]]


def _only_root(client: Client) -> None:
    owner = client.peer.owner
    if owner.uid not in (0, os.geteuid()):
        raise RefusedError(errno.EPERM, "only root may do that")
    # Root in a container that has only the socket is not the host's root.
    needed = _NET_ADMIN & peer.capabilities(os.getpid())
    if peer.capabilities(owner.pid) & needed != needed or not peer.lives(owner):
        raise RefusedError(errno.EPERM, "only root with CAP_NET_ADMIN may do that")


class Session:
    """The handler of server.Server."""

    def __init__(
        self, daemon: "Daemon", lending: Lending, readings: Readings, watching: Watching
    ) -> None:
        self._daemon, self._leasing = daemon, daemon.leasing
        self._lending, self._readings, self._watching = lending, readings, watching
        self._commands: dict[str, Command] = {
            "status": lambda _client, _question: daemon.status(),
            "instances": lambda _client, _question: queries.instances(daemon.leasing),
            "config": lambda _client, _question: queries.config(daemon.settings),
            "stats": self._stats,
            "stop": self._stop,
            "restart": self._restart,
            "reload": self._reload,
        }

    def __call__(self, client: Client, message: Message) -> None:
        """Handle one message; answer exactly once, or close the connection."""
        if message.kind is not Kind.HELLO and not client.name:
            client.close("it did not send HELLO first")
            return
        try:
            self._handle(client, message)
        except RefusedError as refused:
            self._refuse(client, message.serial, refused)
        except Exception as error:  # a bug of harpd must not leave the client waiting
            self._failed(client, message.serial, error)

    def _handle(self, client: Client, message: Message) -> None:
        serial, fields = message.serial, message.fields
        if message.kind is Kind.HELLO:
            if client.name:
                client.close("it sent HELLO twice")
                return
            client.greeted(fields["client"])
            devices, job = self._leasing.devices(), self._daemon.settings.job
            payload = _host.pack_welcome(serial, f"harpd {__version__}", devices, job)
            client.reply(Reply(payload))
        elif message.kind is Kind.LEASE:
            self._leasing.request(
                client.peer, fields, lambda answer: self._leased(client, serial, answer)
            )
        elif message.kind is Kind.RELEASE:
            self._leasing.release(client.peer.owner, fields["lease_id"])
            client.reply(Reply(_host.pack_done(serial)))
        elif message.kind is Kind.WATCH:
            self._watching.watch(client, serial, fields["lease_id"])
        elif message.kind is Kind.NEIGHBORS:
            self._watching.neighbors(client, serial, fields["neighbors"])
        elif message.kind is Kind.ROUTE:
            self._watching.route(client, serial, fields["lease_id"], fields["dst"])
        elif message.kind is Kind.QUERY:
            self._query(client, serial, fields["document"])
        else:
            client.close(f"{message.kind.name} is a message of harpd, not of a job")

    @staticmethod
    def _refuse(client: Client, serial: int, refused: RefusedError) -> None:
        log.debug("%s is refused: %s", client, refused)
        client.charge_refusal()
        client.reply(Reply(_host.pack_refused(serial, refused.error, refused.why)))

    def _failed(self, client: Client, serial: int, error: BaseException) -> None:
        log.error("internal error: %s: %s; please report it", type(error).__name__, error)
        log.debug("where", exc_info=error)
        self._refuse(client, serial, RefusedError(errno.EIO, "harpd failed; its log says more"))

    def _leased(self, client: Client, serial: int, answer: Granted | RefusedError) -> None:
        if isinstance(answer, RefusedError):
            name = errno.errorcode.get(answer.error, "EIO")
            self._leasing.refused[name] += 1
            self._refuse(client, serial, answer)
            return
        if isinstance(answer.leased, _host.Port):
            payload = _host.pack_port(serial, answer.leased)
        else:
            payload = _host.pack_leased(serial, answer.leased)
        client.reply(Reply(payload, answer.made.fds, answer.delivered))

    # ---- QUERY ----

    def _query(self, client: Client, serial: int, raw: bytes) -> None:
        try:
            question = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise RefusedError(errno.EINVAL, f"the question is not JSON: {error}"[:200]) from error
        if not isinstance(question, dict) or not isinstance(question.get("command"), str):
            raise RefusedError(errno.EINVAL, 'the question needs a "command"')
        command = self._commands.get(question["command"])
        if command is None:
            known = ", ".join(sorted(self._commands))
            raise RefusedError(errno.ENOSYS, f"this harpd knows the commands {known}")
        found = command(client, question)
        if callable(found):
            found(lambda fd, error: self._document_made(client, serial, fd, error))
        else:
            text, uid = json.dumps(found, allow_nan=False), client.peer.owner.uid
            self._lending.expect_room(uid, len(text))
            self._answer(client, serial, self._lending.lend(uid, document_fd(text)))

    def _document_made(
        self, client: Client, serial: int, fd: int | None, error: BaseException | None
    ) -> None:
        if fd is not None:
            self._answer(client, serial, fd)
        elif isinstance(error, RefusedError):
            self._refuse(client, serial, error)
        else:
            self._failed(client, serial, error or RuntimeError("no document"))

    @staticmethod
    def _answer(client: Client, serial: int, fd: int) -> None:
        client.reply(Reply(_host.pack_answer(serial), [fd], lambda _arrived: os.close(fd)))

    def _stats(self, client: Client, question: dict[str, Any]) -> Callable[[Then], None]:
        """Return the statistics of all instances of the host, for users who may have leases."""
        uid = client.peer.owner.uid
        if uid not in (0, os.geteuid()) and not self._leasing.access.allows(uid, client.peer.gids):
            raise RefusedError(
                errno.EACCES, f"user {uid} may not have leases, nor see others' instances"
            )
        flows = question.get("flows") is not False
        return lambda then: self._readings.ask(uid, flows, then)

    def _stop(self, client: Client, question: dict[str, Any]) -> dict[str, Any]:
        _only_root(client)
        leased = queries.instances(self._leasing)
        if self._daemon.in_use and question.get("force") is not True:
            return {"stopping": False, **leased}
        log.info("asked to stop by %s", client)
        self._daemon.end_soon(remove=True)
        return {"stopping": True, "pid": os.getpid(), **leased}

    def _restart(self, client: Client, _question: dict[str, Any]) -> dict[str, Any]:
        _only_root(client)
        problem = self._daemon.restart_problem()
        if problem:
            raise RefusedError(errno.EINVAL, f"{problem}; harpd continues unchanged")
        log.info("asked to restart by %s", client)
        self._daemon.end_soon(remove=False, restart=True)
        return {"restarting": True, "pid": os.getpid(), "since_s": self._daemon.since_s}

    def _reload(self, client: Client, _question: dict[str, Any]) -> dict[str, Any]:
        _only_root(client)
        return {"problem": self._daemon.reload()}
