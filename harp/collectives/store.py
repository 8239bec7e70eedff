# SPDX-License-Identifier: Apache-2.0
"""A small key-value store over TCP, in which the ranks of a job exchange addresses.

One rank serves it from a thread; all ranks are clients.

    request   kind (1 byte), length of the key, length of the value, key, value
    reply     status (1 byte), length of the value, value

The value of a request to wait is its timeout in milliseconds.

The server sends a nonce to each new client, which must answer with the HMAC of the nonce under the
job's secret. Without a secret, everyone who reaches the port can read and write. The store contains
addresses and one-time secrets of listeners, so use a secret on a shared network.

The server limits the number of clients, the size of keys and values and their sum, and the time
until a client proves that it knows the secret. A client that does not read its replies gets no
more.
"""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from typing import Protocol

KEY_BYTES_MAX = 256
VALUE_BYTES_MAX = 2 << 20
TOTAL_BYTES_MAX = 256 << 20
CLIENTS_MAX = 16384
PENDING_MAX = 256  # clients that are not authenticated yet
BACKLOG = 1024  # ranks of a job connect at the same time
HELLO_S = 10.0  # time to authenticate
NONCE_BYTES = 32
GREETING = b"harp-store-2"

_REQUEST = struct.Struct("!BHI")
_REPLY = struct.Struct("!BI")
_SET, _GET, _WAIT = 1, 2, 3
_OK, _ABSENT, _FULL = 0, 1, 2


class Store(Protocol):
    """The key-value store of a job. Any thread may call it. It raises TimeoutError and OSError."""

    def set(self, key: str, value: bytes) -> None:
        """Set or replace a value.

        Parameters
        ----------
        key, value
            The key and its value.
        """

    def get(self, key: str) -> bytes | None:
        """Return a value.

        Parameters
        ----------
        key
            The key.

        Returns
        -------
        bytes or None
            The value; None: the key is not set.
        """

    def wait(self, key: str, timeout_s: float) -> None:
        """Wait until a key is set.

        Parameters
        ----------
        key
            The key.
        timeout_s
            Seconds to wait at most.

        Raises
        ------
        TimeoutError
            The key was not set in time.
        """


def _proof(secret: str, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), GREETING + nonce, hashlib.sha256).digest()


class StoreServer:
    """Serves the store from a thread until close()."""

    def __init__(self, port: int, secret: str = "") -> None:
        self._secret = secret
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0
        self._events: dict[bytes, asyncio.Event] = {}  # of keys for which clients wait
        self._clients = self._pending = 0
        listener = self._listen(port)
        self.port: int = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(listener,), name="harp-store", daemon=True
        )
        self._thread.start()

    @staticmethod
    def _listen(port: int) -> socket.socket:
        """Listen on all addresses, because ranks may use another one than MASTER_ADDR."""
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            return socket.create_server(
                ("", port), family=family, dualstack_ipv6=dual, backlog=BACKLOG
            )
        except OSError as error:
            raise OSError(
                error.errno, f"the key-value store cannot listen on port {port}: {error}"
            ) from None

    def _serve(self, listener: socket.socket) -> None:
        async def serve() -> None:
            server = await asyncio.start_server(self._handle, sock=listener, backlog=BACKLOG)
            await self._closing.wait()
            server.close()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serve())  # cancels the clients at the end

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it leaves, sends something invalid or does not authenticate."""
        self._clients += 1
        try:
            if self._clients <= CLIENTS_MAX and self._pending < PENDING_MAX:
                await self._authenticate(reader, writer)
                while True:
                    await self._answer(reader, writer)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            self._clients -= 1
            writer.transport.abort()

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Raise ValueError for a wrong proof, and TimeoutError, an OSError, without one."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        expected = _proof(self._secret, nonce)
        writer.write(GREETING + nonce)
        self._pending += 1
        try:
            proof = await asyncio.wait_for(reader.readexactly(len(expected)), HELLO_S)
        finally:
            self._pending -= 1
        if not hmac.compare_digest(proof, expected):
            raise ValueError("wrong proof")
        writer.write(_REPLY.pack(_OK, 0))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        kind, key_bytes, value_bytes = _REQUEST.unpack(await reader.readexactly(_REQUEST.size))
        if key_bytes > KEY_BYTES_MAX or value_bytes > VALUE_BYTES_MAX:
            raise ValueError("too long")
        key = await reader.readexactly(key_bytes)
        value = await reader.readexactly(value_bytes)
        if kind == _SET:
            status, value = self._put(key, value), b""
        elif kind == _GET:
            status, value = (_OK if key in self._values else _ABSENT), self._values.get(key, b"")
        elif kind == _WAIT:
            status, value = await self._wait(key, int.from_bytes(value[:8], "big") / 1000), b""
        else:
            raise ValueError("no such request")
        writer.write(_REPLY.pack(status, len(value)) + value)
        await writer.drain()  # a client that reads no replies gets no more

    def _put(self, key: bytes, value: bytes) -> int:
        old = self._values.get(key)
        growth = len(value) - len(old) if old is not None else len(key) + len(value)
        if self._bytes + growth > TOTAL_BYTES_MAX:
            return _FULL
        self._bytes += growth
        self._values[key] = value
        if key in self._events:
            self._events.pop(key).set()
        return _OK

    async def _wait(self, key: bytes, timeout_s: float) -> int:
        if key not in self._values:
            event = self._events.setdefault(key, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), timeout_s)
        return _OK if key in self._values else _ABSENT

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()


class TcpStore(Store):
    """A client of the store, and on one rank also its server. Threads may share it.

    Parameters
    ----------
    address, port
        The server's address and port. With `serve`, port 0 selects a free one.
    serve
        Whether this process also serves the store.
    secret
        The secret of the job, which all its processes need; "": none.
    timeout_s
        Seconds for connecting, and for each request.

    Raises
    ------
    ConnectionError
        The server cannot be reached, or another program has the port.
    PermissionError
        The secret differs from the server's.
    OSError
        The port is in use.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        serve: bool = False,
        secret: str = "",
        timeout_s: float = 300,
    ) -> None:
        self._server = StoreServer(port, secret) if serve else None
        self.port = port if self._server is None else self._server.port
        self._address = ("localhost" if serve else address, self.port)
        self._secret = secret
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        try:
            self._sock = self._connect(time.monotonic() + timeout_s)
        except BaseException:
            if self._server is not None:
                self._server.close()
            raise

    def _connect(self, deadline: float) -> socket.socket:
        """Retry until the server listens, because ranks start in any order."""
        while True:
            left = deadline - time.monotonic()
            try:
                sock = socket.create_connection(self._address, timeout=max(left, 0.1))
                break
            except OSError as error:
                if left <= 0:
                    raise ConnectionError(
                        f"the key-value store at {self._address[0]}:{self._address[1]} cannot be "
                        f"reached: {error}; is rank 0 running, and is MASTER_ADDR its address?"
                    ) from None
                time.sleep(min(0.05, left))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = self._read(sock, len(GREETING) + NONCE_BYTES)
            if not greeting.startswith(GREETING):
                raise ConnectionError(
                    f"the server at {self._address[0]}:{self._address[1]} is not HARP's key-value "
                    "store: another program has the port; set HARP_COLL_PORT"
                )
            sock.sendall(_proof(self._secret, greeting[len(GREETING) :]))
            try:
                self._read(sock, _REPLY.size)
            except ConnectionError:
                raise PermissionError(
                    "the key-value store refused this process: HARP_COLL_SECRET differs from "
                    "rank 0's"
                ) from None
        except BaseException:
            sock.close()
            raise
        return sock

    @staticmethod
    def _read(sock: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = sock.recv(size - len(data))
            if not more:
                raise ConnectionError("the key-value store closed the connection")
            data += more
        return bytes(data)

    def _request(self, kind: int, key: str, value: bytes, timeout_s: float) -> tuple[int, bytes]:
        name = key.encode()
        if len(name) > KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
            raise ValueError(
                f"a key of {len(name)} bytes with a value of {len(value)} bytes: use at most "
                f"{KEY_BYTES_MAX} and {VALUE_BYTES_MAX}"
            )
        with self._lock:
            if self._sock is None:
                raise ConnectionError("the key-value store is closed")
            self._sock.settimeout(timeout_s)
            try:
                self._sock.sendall(_REQUEST.pack(kind, len(name), len(value)) + name + value)
                status, size = _REPLY.unpack(self._read(self._sock, _REPLY.size))
                return status, self._read(self._sock, size)
            except OSError as error:
                # The reply may still arrive, so the connection cannot be used again.
                self._sock.close()
                self._sock = None
                if isinstance(error, TimeoutError):
                    raise TimeoutError("the key-value store does not answer") from None
                raise

    def set(self, key: str, value: bytes) -> None:
        status, _ = self._request(_SET, key, value, self._timeout_s)
        if status != _OK:
            raise OSError(f"the key-value store is full ({TOTAL_BYTES_MAX} bytes)")

    def get(self, key: str) -> bytes | None:
        status, value = self._request(_GET, key, b"", self._timeout_s)
        return value if status == _OK else None

    def wait(self, key: str, timeout_s: float) -> None:
        timeout = max(round(timeout_s * 1000), 1).to_bytes(8, "big")
        status, _ = self._request(_WAIT, key, timeout, timeout_s + self._timeout_s)
        if status != _OK:
            raise TimeoutError(f"the key-value store has no {key} after {timeout_s} s")

    def close(self) -> None:
        """Close the connection, and the server if this process has it. Safe to call twice."""
        with self._lock:
            if self._sock is not None:
                self._sock.close()
                self._sock = None
        if self._server is not None:
            self._server.close()
