# SPDX-License-Identifier: Apache-2.0
"""harpd's socket: clients, their limits, one request and one answer at a time.

A client never blocks harpd. harpd reads the next request after the client has read its answer;
requests that it sends meanwhile fill its own socket's buffer. harpd closes a client that sends
invalid messages, passes descriptors, or is late with HELLO or with reading its answer. The log has
a line for each, within a rate limit. So a client costs at most one connection, one message in, and
an answer and a notification (watching.py) out. When all connections are used, a new one
replaces a client that has not sent HELLO.
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
from harp.daemon.limits import Bucket, Buckets, connections_possible
from harp.daemon.loop import Loop
from harp.daemon.messages import Message, Refused, pack, unpack
from harp.daemon.peer import Peer

log = logging.getLogger("harpd")
HELLO_S, TAKE_S = 10.0, 10.0
CLIENT_PER_S, CLIENT_BURST = 20.0, 100.0
USER_PER_S, USER_BURST = 200.0, 400.0
# A refused request costs this many more messages, so that repeated requests do not delay other
# clients.
REFUSED_TOKENS = 5.0
LOGS_PER_S, LOGS_BURST = 2.0, 20.0
CONNECTIONS_MAX = 1024
ROOT_RESERVE = 16  # connections for root's harpctl when users have all others
# A new connection makes harpd examine its process, so their rate is limited.
CONNECTS_PER_S, CONNECTS_BURST = 100.0, 500.0
ACCEPTS_PER_TURN = 64
BACKLOG = 4096
ACCEPT_PAUSE_S = 0.1
UNREAD_MAX = 16  # messages that are read before a final message
SEND_SMALL = 2048  # bytes of a message that fits into the smallest send buffer


def send_refusal(sock: socket.socket, error: int, why: str) -> None:
    """Send REFUSED with serial 0; the caller closes the socket."""
    with contextlib.suppress(OSError):
        # Closing with unread messages would reset the connection before the client reads REFUSED.
        for _ in range(UNREAD_MAX):
            if not sock.recv(1, socket.MSG_DONTWAIT):
                break
    with contextlib.suppress(OSError):  # the client then gets only end-of-file
        sock.send(pack(Kind.REFUSED, 0, Refused(error, why)), socket.MSG_DONTWAIT)


# Handles a message: calls client.reply() once, or client.close().
Handler = Callable[["Client", Message], Coroutine[Any, Any, None]]


class Client:
    """One connection. Its task reads a message, calls the handler, and reads the next one.
    internal: the connection of harpd's own process, which is exempt from its user's limits.
    """

    def __init__(
        self, server: "Server", sock: socket.socket, process: Peer, internal: bool = False
    ) -> None:
        self._server, self._sock, self.peer = server, sock, process
        self.internal = internal
        # The kernel's minimum, so that answers with descriptors do not accumulate.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)
        self.name = ""  # program and version in HELLO; empty before HELLO
        self.silent = True  # until HELLO arrives
        self.open = True
        self.busy = False  # a message is being handled
        self._sending = asyncio.Lock()
        self._notifying = False
        # Returns the next notification for notify(), or None.
        self.next_notification: Callable[[], bytes | None] | None = None
        self.closed: Callable[[], None] = lambda: None
        self._bucket = Bucket(CLIENT_PER_S, CLIENT_BURST)
        self._hello_timer = server.loop.call_later(HELLO_S, self._no_hello)
        server.loop.spawn(self._serve())

    def __str__(self) -> str:
        return f"process {self.peer.owner.pid} ({self.peer.name}) of user {self.peer.owner.uid}"

    # ---- receiving ----

    async def _serve(self) -> None:
        loop = self._server.loop
        try:
            while self.open and not self._server.ends:
                await loop.wait_ready(self._sock)
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
        """Stop reading, because harpd ends."""
        self._server.loop.remove_reader(self._sock)

    def _no_hello(self) -> None:
        self.close_with_reason(errno.ETIMEDOUT, f"it sent no HELLO within {HELLO_S:.0f} s")

    def handle_hello(self, name: str) -> None:
        """Record the client's name, and stop the timer for HELLO."""
        self.name = name or "(unnamed)"
        self.silent = False
        self._hello_timer.cancel()

    def _receive(self) -> Message | None:
        if not self.open:
            return None
        try:
            # With a size of 0 for ancillary data the kernel drops descriptors and reports that.
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
        self.close("")  # end-of-file
        return None

    def charge_refusal(self) -> None:
        """Delay the next requests of this client and its user after a refusal."""
        now_s = self._server.loop.time()
        self._bucket.charge(REFUSED_TOKENS, now_s)
        if not self.internal:
            self._server.buckets.charge(self.peer.owner.uid, REFUSED_TOKENS, now_s)

    # ---- sending ----

    async def reply(self, payload: bytes, fds: Sequence[int] = ()) -> bool:
        """Send an answer; False if the client is closed before it reads the previous one."""
        try:
            return await self._send(payload, fds)
        except asyncio.CancelledError:
            self.close("")  # its request gets no answer
            raise

    def notify(self) -> None:
        """Send notifications, one by one, as fast as the client reads them."""
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
                    await self._wait_writable()
                except OSError as error:
                    has_ended = error.errno in (errno.EPIPE, errno.ECONNRESET)
                    self.close("" if has_ended else f"sending: {error.strerror}")
        return False

    async def _wait_writable(self) -> None:
        """Wait until the client has read the previous message, or close it."""
        try:
            await asyncio.wait_for(self._server.loop.wait_ready(self._sock, write=True), TAKE_S)
        except TimeoutError:
            self.close(f"it did not read its answer for {TAKE_S:.0f} s")

    # ---- closing ----

    def hand_over(self) -> tuple[int, bool] | None:
        """Return a descriptor for the next harpd, and whether the client has sent HELLO. None: an
        answer is pending, or the client gets notifications and must request them again.
        """
        if self.busy or self._sending.locked() or self.next_notification is not None:
            return None
        return os.dup(self._sock.fileno()), bool(self.name)

    def close_with_reason(self, error: int, why: str) -> None:
        """Send the reason to the client, unless an answer is pending, and close it."""
        if not self._sending.locked():
            send_refusal(self._sock, error, f"process {self.peer.owner.pid}: {why}")
        self.close(why)

    def close(self, why: str) -> None:
        """Close the connection; the process keeps its leases. why: for the log; empty: no line."""
        if not self.open:
            return
        self.open = False
        if why:
            self._server.log_limited(f"{self}: {why}; its connection is closed")
        self._hello_timer.cancel()
        if self._server.ends:
            self._sock.close()
        else:
            with contextlib.suppress(OSError):  # the client has closed it
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes _serve(), which closes the socket
        self._server.remove(self)
        self.closed()
        self.peer.close()


class Server:
    """The listening socket and its clients. handler: is called with each message."""

    def __init__(
        self, loop: Loop, listening: socket.socket, handler: Handler, per_uid_max: int
    ) -> None:
        self.loop, self._listening, self.handler = loop, listening, handler
        self.buckets = Buckets(USER_PER_S, USER_BURST)
        self.total_max, self.per_uid_max = connections_possible(CONNECTIONS_MAX), per_uid_max
        self._connects = Buckets(CONNECTS_PER_S, CONNECTS_BURST)
        self.clients: dict[Client, None] = {}  # in the order of their connections
        self.ends = False
        self._log_bucket = Bucket(LOGS_PER_S, LOGS_BURST)
        self._suppressed = 0
        listening.setblocking(False)
        self._start_accepting()

    def _start_accepting(self) -> None:
        if not self.ends:
            self.loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        # Accept many at once, so that one user can't fill the queue of all others.
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # harpd has no free descriptor or memory: retry later.
                self.log_limited(f"accepting a connection: {error.strerror}")
                self.loop.remove_reader(self._listening)
                self.loop.call_later(ACCEPT_PAUSE_S, self._start_accepting)
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
        if why := self._check_limits(process.owner.uid):
            self.log_limited(f"process {process.owner.pid} ({process.name}) is refused: {why}")
            self._refuse_connection(sock, why)
            process.close()
            return None
        return self.add(sock, process)

    def add(self, sock: socket.socket, process: Peer, internal: bool = False) -> Client:
        """Add a connection without a check of limits; the client owns the socket and the peer."""
        sock.setblocking(False)
        client = Client(self, sock, process, internal)
        self.clients[client] = None
        return client

    def _check_limits(self, uid: int) -> str:
        """Return "" if the user may have one more connection, else the limit.

        At a limit the oldest connection without HELLO is closed: of this user if it is the user's
        limit, else of the user with the most such connections.
        """
        clients = [client for client in self.clients if not client.internal]
        same_user = [client for client in clients if client.peer.owner.uid == uid]
        reserve = min(ROOT_RESERVE, self.total_max // 4) if uid == 0 else 0
        if uid != 0 and len(same_user) >= self.per_uid_max:
            limit = f"user {uid} has {len(same_user)} connections to harpd, which is the limit"
            silent = [client for client in same_user if client.silent]
        elif len(clients) >= self.total_max + reserve:
            limit = f"harpd has {len(clients)} connections, which is the limit"
            counts = Counter(client.peer.owner.uid for client in clients if client.silent)
            uids = [user for user, _ in counts.most_common(1)]
            silent = [
                client for client in clients if client.silent and client.peer.owner.uid in uids
            ]
        else:
            return ""
        if not silent:
            return f"{limit}; close some"
        why = "it has not sent HELLO, and another client needs the connection"
        silent[0].close_with_reason(errno.EUSERS, why)
        return ""

    @staticmethod
    def _refuse_connection(sock: socket.socket, why: str) -> None:
        with sock:
            send_refusal(sock, errno.EUSERS, why)

    def end_reading(self) -> None:
        """Stop reading; new connections and requests wait for the next harpd."""
        self.ends = True
        self.loop.remove_reader(self._listening)
        for client in self.clients:
            client.pause()

    def hand_over(self) -> list[tuple[int, bool]]:
        """Return the connections that the next harpd can continue."""
        connections = [client.hand_over() for client in self.clients]
        return [connection for connection in connections if connection is not None]

    def take_over(self, fd: int, sent_hello: bool) -> None:
        """Take over a connection of the previous harpd."""
        client = self._admit(socket.socket(fileno=fd))
        if client is not None and sent_hello:
            client.handle_hello("")

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
