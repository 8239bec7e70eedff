# SPDX-License-Identifier: Apache-2.0
"""Handles each message of harp_lease.h, and the commands of harpctl in QUERY messages."""

import asyncio
import errno
import json
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harp import __version__
from harp._host import Kind
from harp.daemon import peer, queries
from harp.daemon.leasing import STOPPING
from harp.daemon.messages import REST_MAX, Message, Refused, Request, pack, pack_welcome
from harp.daemon.server import Client
from harp.daemon.table import RefusedError
from harp.daemon.watching import Watching

if TYPE_CHECKING:
    from harp.daemon.daemon import Daemon

log = logging.getLogger("harpd")
_NET_ADMIN = 1 << 12  # CAP_NET_ADMIN
# A command gets the client and the fields of its question. It returns a document. RefusedError.
Command = Callable[[Client, dict[str, Any]], dict[str, Any]]


def _only_root(client: Client) -> None:
    owner = client.peer.owner
    if owner.uid not in (0, os.geteuid()):
        raise RefusedError(errno.EPERM, "only root may do that")
    # Root in a container that has only the socket is not the host's root.
    needed = _NET_ADMIN & peer.capabilities(os.getpid())
    if peer.capabilities(owner.pid) & needed != needed or not peer.is_alive(owner):
        raise RefusedError(errno.EPERM, "only root with CAP_NET_ADMIN may do that")


class Session:
    """The handler of server.Server."""

    def __init__(self, daemon: "Daemon", watching: Watching) -> None:
        self._daemon, self._leasing, self._watching = daemon, daemon.leasing, watching
        self._commands: dict[str, Command] = {
            "status": lambda _client, _question: daemon.status(),
            "instances": lambda _client, _question: queries.instances(daemon.leasing),
            "config": lambda _client, _question: queries.config(daemon.settings),
            "stop": self._stop,
            "restart": self._restart,
        }

    async def __call__(self, client: Client, message: Message) -> None:
        """Handle one message; answer exactly once, or close the connection."""
        if not client.open:  # another client's message, handled in between, closed it
            return
        if message.kind is not Kind.HELLO and not client.name:
            client.close("it did not send HELLO first")
            return
        if client.internal and message.kind not in (Kind.HELLO, Kind.QUERY):
            client.close(f"{message.kind.name} is for jobs, not for harpd's own process")
            return
        serial = message.serial
        try:
            payload = await self._handle(client, message)
            if payload:
                await client.reply(payload)
        except RefusedError as refused:
            await self._refuse(client, serial, refused)
        except asyncio.CancelledError:
            await self._refuse(client, serial, RefusedError(errno.ESHUTDOWN, STOPPING))
        except Exception as error:  # after a bug, too, the client gets an answer
            log.error("internal error: %s: %s; please report it", type(error).__name__, error)
            log.debug("where", exc_info=error)
            failed = RefusedError(errno.EIO, "harpd failed; its log says more")
            await self._refuse(client, serial, failed)

    async def _handle(self, client: Client, message: Message) -> bytes:
        """Return the answer; empty if it was sent, or the connection was closed."""
        serial, body = message.serial, message.body
        match message.kind:
            case Kind.HELLO if not client.name:
                client.handle_hello(body.client)
                devices, job = self._leasing.devices(), self._daemon.settings.job
                return pack_welcome(serial, f"harpd {__version__}", devices, job)
            case Kind.HELLO:
                client.close("it sent HELLO twice")
            case Kind.LEASE:
                await self._lease(client, serial, body)
            case Kind.RELEASE:
                self._leasing.release(client.peer.owner, body.lease_id)
                return pack(Kind.DONE, serial)
            case Kind.WATCH:
                return await self._watching.watch(client, serial, body.lease_id)
            case Kind.NEIGHBORS:
                self._watching.neighbors(client, message.records)
                return pack(Kind.DONE, serial)
            case Kind.ROUTE:
                route = await self._watching.route(client, body.lease_id, body.dst)
                return pack(Kind.ROUTED, serial, rest=route)
            case Kind.QUERY:
                await self._query(client, serial, message.rest)
            case _:
                client.close(f"{message.kind.name} is a message of harpd, not of a job")
        return b""

    @staticmethod
    async def _refuse(client: Client, serial: int, refused: RefusedError) -> None:
        log.debug("%s is refused: %s", client, refused)
        client.charge_refusal()
        await client.reply(pack(Kind.REFUSED, serial, Refused(refused.error, refused.why)))

    async def _lease(self, client: Client, serial: int, request: Request) -> None:
        try:
            granted = await self._leasing.request(client.peer, request)
        except RefusedError as refused:
            self._leasing.refused[errno.errorcode.get(refused.error, "EIO")] += 1
            raise
        arrived = False
        try:
            arrived = await client.reply(granted.message(serial), granted.descriptors.fds)
        finally:
            granted.delivered(arrived)

    # ---- QUERY ----

    async def _query(self, client: Client, serial: int, raw: bytes) -> None:
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
        document = json.dumps(command(client, question), allow_nan=False).encode()
        for at in range(0, len(document) + 1, REST_MAX):
            await client.reply(pack(Kind.ANSWER, serial, rest=document[at : at + REST_MAX]))

    def _stop(self, client: Client, question: dict[str, Any]) -> dict[str, Any]:
        _only_root(client)
        if self._daemon.has_jobs and question.get("force") is not True:
            return {"stopping": False, **queries.instances(self._leasing)}
        log.info("asked to stop by %s", client)
        self._daemon.end_soon(remove=True)
        return {"stopping": True, "pid": os.getpid()}

    def _restart(self, client: Client, _question: dict[str, Any]) -> dict[str, Any]:
        _only_root(client)
        problem = self._daemon.restart_problem()
        if problem:
            raise RefusedError(errno.EINVAL, f"{problem}; harpd continues unchanged")
        log.info("asked to restart by %s", client)
        self._daemon.end_soon(remove=False, restart=True)
        return {"restarting": True, "pid": os.getpid(), "since_s": self._daemon.since_s}
