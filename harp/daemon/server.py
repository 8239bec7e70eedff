# SPDX-License-Identifier: Apache-2.0
"""harpd's socket: clients, their limits, one request and one answer at a time.

harpd never waits for a client. It reads nothing more from a client until that has taken its answer;
what the client sends meanwhile fills its own socket's buffer and then blocks it. A client that
sends invalid messages, passes descriptors, does not send HELLO or does not read its answer in time
is closed, with a line in the log (at most a few a second). So a client costs at most one
connection, one message in and two out: an answer, and a notification that it asked for
(watching.py). When no connection is free, a client that has not sent HELLO is closed for the next
one.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from harp._host import MESSAGE_MAX, Kind
from harp.daemon import peer
from harp.daemon.documents import Document
from harp.daemon.limits import Bucket, Buckets, connections_possible
from harp.daemon.loop import Loop
from harp.daemon.messages import Message, Refused, pack, unpack
from harp.daemon.peer import Peer

log = logging.getLogger("harpd")
HELLO_S, TAKE_S = 10.0, 10.0
CLIENT_PER_S, CLIENT_BURST = 20.0, 100.0
USER_PER_S, USER_BURST = 200.0, 400.0
# A refused request costs this many more messages, because repeated requests for something that is
# not available must not take harpd's time from others.
REFUSED_TOKENS = 5.0
LOGS_PER_S, LOGS_BURST = 2.0, 20.0
CONNECTIONS_MAX = 1024
ROOT_RESERVE = 16  # so that `harpctl` works when users have taken all others
# A new connection costs an examination of the process; faster ones are closed unseen.
CONNECTS_PER_S, CONNECTS_BURST = 100.0, 500.0
ACCEPTS_PER_TURN = 64
BACKLOG = 4096
ACCEPT_PAUSE_S = 0.1
UNREAD_MAX = 16  # messages that are read before a final message
SEND_SMALL = 2048  # bytes of a message that fits the smallest send buffer


def send_refusal(sock: socket.socket, error: int, why: str) -> None:
    """Send REFUSED, which answers no request, and close."""
    with contextlib.suppress(OSError):
        # Unread messages would reach the client first, as a reset.
        for _ in range(UNREAD_MAX):
            if not sock.recv(1, socket.MSG_DONTWAIT):
                break
    with contextlib.suppress(OSError):  # the client gets end-of-file
        sock.send(pack(Kind.REFUSED, 0, Refused(error, why)), socket.MSG_DONTWAIT)


# Handles a client's message: calls client.reply() once, or closes it.
Handler = Callable[["Client", Message], Coroutine[Any, Any, None]]


class Client:
    """One connection. A task reads a message, has it handled, and reads the next one. internal: of
    harpd's own process, which counts in no limit of its user, and sends only HELLO and QUERY.
    """

    def __init__(
        self, server: "Server", sock: socket.socket, process: Peer, internal: bool = False
    ) -> None:
        self._server, self._sock, self.peer = server, sock, process
        self.internal = internal
        # The smallest buffer, so that answers with descriptors do not accumulate.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)
        self.name = ""  # version in HELLO; empty before it is handled
        self.silent = True  # until HELLO arrives
        self.open = True
        self.busy = False  # a message is being handled
        self._sending = asyncio.Lock()
        self._notifying = False
        # Returns the client's next notification; see notify().
        self.next_notification: Callable[[], bytes | None] | None = None
        self.closed: Callable[[], None] = lambda: None
        self._document: Document | None = None  # its last one
        self._bucket = Bucket(CLIENT_PER_S, CLIENT_BURST)
        self._hello_timer = server.loop.call_later(HELLO_S, self._no_hello)
        server.loop.spawn(self._serve())

    def __str__(self) -> str:
        return f"process {self.peer.owner.pid} ({self.peer.name}) of user {self.peer.owner.uid}"

    # ---- in ----

    async def _serve(self) -> None:
        loop = self._server.loop
        try:
            while self.open and not self._server.ends:
                await loop.ready(self._sock)
                now_s = loop.time()
                wait_s = self._bucket.take(now_s)
                if not self.internal:
                    wait_s = wait_s or self._server.buckets.take(self.peer.owner.uid, now_s)
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                elif message := self._receive():
                    self.busy = True
                    await self._server.handler(self, message)
                    self.busy = False
        finally:
            if not self.open:
                self._sock.close()

    def pause(self) -> None:
        """Read nothing more: harpd ends."""
        self._server.loop.remove_reader(self._sock)

    def _no_hello(self) -> None:
        self.close_with_reason(errno.ETIMEDOUT, f"it sent no HELLO within {HELLO_S:.0f} s")

    def greeted(self, name: str) -> None:
        """HELLO arrived: from now on the client may be silent."""
        self.name = name or "(unnamed)"
        self.silent = False
        self._hello_timer.cancel()

    def _receive(self) -> Message | None:
        if not self.open:
            return None
        try:
            # No room for ancillary data: the kernel drops descriptors and reports that.
            raw, _, flags, _ = self._sock.recvmsg(MESSAGE_MAX + 1, 0)
        except BlockingIOError:
            return None
        except OSError:
            raw, flags = b"", 0
        try:
            if flags & socket.MSG_CTRUNC:
                raise ValueError("it passed descriptors")
            if flags & socket.MSG_TRUNC or len(raw) > MESSAGE_MAX:
                raise ValueError(f"a message of more than {MESSAGE_MAX} bytes")
            if raw:
                return unpack(raw)
        except ValueError as error:
            self.close(str(error))
        self.close("")  # it has ended
        return None

    def charge_refusal(self) -> None:
        """A request was refused: delay the next ones of this client and its user."""
        now_s = self._server.loop.time()
        self._bucket.charge(REFUSED_TOKENS, now_s)
        if not self.internal:
            self._server.buckets.charge(self.peer.owner.uid, REFUSED_TOKENS, now_s)

    # ---- out ----

    async def reply(self, payload: bytes, fds: Sequence[int] = ()) -> bool:
        """Send an answer when the client takes it. False: it never will."""
        try:
            return await self._send(payload, fds)
        except asyncio.CancelledError:
            self.close("")  # its request has no answer
            raise

    def notify(self) -> None:
        """Send notifications, message by message, as fast as the client takes them."""
        if self.open and not self._notifying:
            self._notifying = True
            self._server.loop.spawn(self._notify())

    async def _notify(self) -> None:
        try:
            while self.next_notification is not None and (message := self.next_notification()):
                await self._send(message)
        finally:
            self._notifying = False

    async def _send(self, payload: bytes, fds: Sequence[int] = ()) -> bool:
        async with self._sending:
            while self.open:
                if len(payload) > SEND_SMALL:
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(payload))
                try:
                    socket.send_fds(self._sock, [payload], fds)
                    return True
                except BlockingIOError:
                    await self._taken()
                except OSError as error:
                    gone = error.errno in (errno.EPIPE, errno.ECONNRESET)
                    self.close("" if gone else f"sending: {error.strerror}")
        return False

    async def _taken(self) -> None:
        """Wait until the client has read a message."""
        try:
            await asyncio.wait_for(self._server.loop.ready(self._sock, write=True), TAKE_S)
        except TimeoutError:
            self.close(f"it did not read its answer for {TAKE_S:.0f} s")

    def lend(self, text: str) -> int:
        """Return a descriptor of a document, which is emptied at the next call or the end."""
        last, self._document = self._document, None  # if the next one can't be made
        if last is not None:
            last.close()
        self._document = Document(text.encode())
        return self._document.opened()

    # ---- end ----

    def hand_over(self) -> tuple[int, bool] | None:
        """Return the connection for the next harpd, and whether it sent HELLO; None if an answer is
        pending, or it takes notifications, which it requests again from the next harpd.
        """
        if self.busy or self._sending.locked() or self.next_notification is not None:
            return None
        return os.dup(self._sock.fileno()), bool(self.name)

    def close_with_reason(self, error: int, why: str) -> None:
        """close() with a message to a well-behaved client."""
        if not self._sending.locked():
            send_refusal(self._sock, error, f"process {self.peer.owner.pid}: {why}")
        self.close(why)

    def close(self, why: str) -> None:
        """Close the connection; leases belong to the process and stay. why: empty logs nothing."""
        if not self.open:
            return
        self.open = False
        if why:
            self._server.log_limited(f"{self}: {why}; its connection is closed")
        self._hello_timer.cancel()
        if self._server.ends:
            self._sock.close()
        else:
            with contextlib.suppress(OSError):  # it has ended
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes _serve(), which closes the socket
        self._server.remove(self)
        self.closed()
        self.peer.close()
        if self._document is not None:  # when harpd ends, the client reads it still
            self._document.close(empty=not self._server.ends)


class Server:
    """The listening socket and its clients. handler gets each message."""

    def __init__(
        self, loop: Loop, listening: socket.socket, handler: Handler, per_uid_max: int
    ) -> None:
        self.loop, self._listening, self.handler = loop, listening, handler
        self.buckets = Buckets(USER_PER_S, USER_BURST)
        self.total_max, self.per_uid_max = connections_possible(CONNECTIONS_MAX), per_uid_max
        self._connects = Buckets(CONNECTS_PER_S, CONNECTS_BURST)
        self.clients: dict[Client, None] = {}  # the oldest first
        self.ends = False
        self._log_bucket = Bucket(LOGS_PER_S, LOGS_BURST)
        self._suppressed = 0
        listening.setblocking(False)
        self._accepting()

    def _accepting(self) -> None:
        if not self.ends:
            self.loop.add_reader(self._listening, self._acceptable)

    def _acceptable(self) -> None:
        # Accept many at once: a flood must not fill the queue in which others wait.
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor or memory is left: waiting clients wait longer.
                self.log_limited(f"accepting a connection: {error.strerror}")
                self.loop.remove_reader(self._listening)
                self.loop.call_later(ACCEPT_PAUSE_S, self._accepting)
                return
            uid = peer.connected_uid(sock)
            if uid != 0 and self._connects.take(uid, self.loop.time()) > 0:
                why = f"user {uid} connects more than {CONNECTS_PER_S:.0f} times a second"
                self.log_limited(why)
                self._refuse_connection(sock, why)
                continue
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> Client | None:
        try:
            process = peer.connected(sock)
        except (peer.PeerGoneError, OSError):
            sock.close()
            return None
        if why := self._make_room(process.owner.uid):
            self.log_limited(f"process {process.owner.pid} ({process.name}) is refused: {why}")
            self._refuse_connection(sock, why)
            process.close()
            return None
        return self.add(sock, process)

    def add(self, sock: socket.socket, process: Peer, internal: bool = False) -> Client:
        """Add a connection, whatever the limits; it owns the socket and the peer."""
        sock.setblocking(False)
        client = Client(self, sock, process, internal)
        self.clients[client] = None
        return client

    def _make_room(self, uid: int) -> str:
        """Return "" if there is room for one more connection of the user, else the limit.

        At a limit the oldest connection without HELLO is closed: of this user if it is the user's
        limit, else of the user with the most. A client that sends HELLO in time is not affected.
        """
        clients = [each for each in self.clients if not each.internal]
        mine = [each for each in clients if each.peer.owner.uid == uid]
        reserve = min(ROOT_RESERVE, self.total_max // 4) if uid == 0 else 0
        if uid != 0 and len(mine) >= self.per_uid_max:
            why = f"user {uid} has {len(mine)} connections to harpd, which is the limit; close some"
            silent = [each for each in mine if each.silent]
        elif len(clients) >= self.total_max + reserve:
            why = f"harpd has {len(clients)} connections, which is the limit; close some"
            counts = Counter(each.peer.owner.uid for each in clients if each.silent)
            most = [each for each, _ in counts.most_common(1)]
            silent = [each for each in clients if each.silent and each.peer.owner.uid in most]
        else:
            return ""
        if not silent:
            return why
        needed = "it has not sent HELLO, and another client needs the connection"
        silent[0].close_with_reason(errno.EUSERS, needed)
        return ""

    @staticmethod
    def _refuse_connection(sock: socket.socket, why: str) -> None:
        with sock:
            send_refusal(sock, errno.EUSERS, why)

    def end_reading(self) -> None:
        """Leave new connections and requests to the next harpd, if there is one."""
        self.ends = True
        self.loop.remove_reader(self._listening)
        for client in self.clients:
            client.pause()

    def hand_over(self) -> list[tuple[int, bool]]:
        """Return the connections that the next harpd can continue."""
        found = [client.hand_over() for client in self.clients]
        return [each for each in found if each is not None]

    def take_over(self, fd: int, greeted: bool) -> None:
        """Take over a connection of the previous harpd."""
        client = self._admit(socket.socket(fileno=fd))
        if client is not None and greeted:
            client.greeted("")

    def remove(self, client: Client) -> None:
        self.clients.pop(client, None)

    def log_limited(self, message: str) -> None:
        """Log a line, within the rate limit."""
        if self._log_bucket.take(self.loop.time()) > 0:
            self._suppressed += 1
            return
        if self._suppressed:
            message += f" ({self._suppressed} similar lines were suppressed)"
            self._suppressed = 0
        log.warning("%s", message)

    def close(self) -> None:
        for client in list(self.clients):
            client.close("")
