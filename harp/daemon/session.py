# SPDX-License-Identifier: Apache-2.0
"""Handles each message of harp_lease.h."""

import errno
import json
import logging
import os
from collections.abc import Callable
from typing import Any

from harp import __version__, _host
from harp._host import Kind, Message
from harp.daemon.documents import Lending, document_fd
from harp.daemon.leasing import Granted, Leasing
from harp.daemon.looks import Then
from harp.daemon.server import Client, Reply
from harp.daemon.table import RefusedError
from harp.daemon.watching import Watching

log = logging.getLogger("harpd")
Later = Callable[[Then], None]
# A command: gets the client and its other fields; returns the document, or a function that makes
# it. RefusedError.
Command = Callable[[Client, dict[str, Any]], dict[str, Any] | Later]


class Session:
    """The handler of server.Server."""

    def __init__(
        self,
        leasing: Leasing,
        commands: dict[str, Command],
        settings: Callable[[], str],
        lending: Lending,
        watching: Watching,
    ) -> None:
        self._leasing, self._commands, self._settings = leasing, commands, settings
        self._lending, self._watching = lending, watching

    def __call__(self, client: Client, message: Message) -> None:
        """Handle one message; answer exactly once, or close the connection."""
        if message.kind is not Kind.HELLO and not client.name:
            client.close("it did not say hello first")
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
                client.close("it said hello twice")
                return
            client.greeted(fields["client"])
            devices = self._leasing.devices()
            payload = _host.pack_welcome(serial, f"harpd {__version__}", devices, self._settings())
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
            client.close(f"{message.kind.name} is what harpd says, not a job")

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
            found(lambda fd, error: self._made(client, serial, fd, error))
        else:
            text, uid = json.dumps(found, allow_nan=False), client.peer.owner.uid
            self._lending.expect_room(uid, len(text))
            self._answer(client, serial, self._lending.lend(uid, document_fd(text)))

    def _made(
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
