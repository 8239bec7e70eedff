# SPDX-License-Identifier: Apache-2.0
"""A small key-value store over TCP, where the ranks of a job meet.

One rank serves it from a thread; all use it. A request is one byte of kind, the key's and the
value's length, key and value; a reply one byte of status, a length and a value. With a secret, the
server sends a nonce and the client answers with its HMAC, and is dropped otherwise. Without one,
everybody who reaches the port may read and write: the store holds addresses and one-time secrets of
listeners, so give a secret where others share the network.

The server keeps bounds: connections, bytes of a key, of a value and of all, and the time in which a
client must have proved that it knows the secret.
"""

import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

KEY_BYTES_MAX = 256
VALUE_BYTES_MAX = 2 << 20
TOTAL_BYTES_MAX = 256 << 20
CLIENTS_MAX = 16384
PENDING_MAX = 256  # clients that have not proved themselves
HELLO_S = 10.0
NONCE_BYTES = 32
GREETING = b"harp-store-1"

_REQUEST = struct.Struct("!BHI")
_REPLY = struct.Struct("!BI")
_SET, _GET, _WAIT = 1, 2, 3
_OK, _ABSENT, _FULL = 0, 1, 2


class Store(Protocol):
    """Where ranks meet. Any thread may call it; TimeoutError and OSError are its errors."""

    def set(self, key: str, value: bytes) -> None:
        """Sets or replaces a value."""

    def get(self, key: str) -> bytes | None:
        """The value, or None when there is none yet."""

    def wait(self, key: str, timeout_s: float) -> None:
        """Returns when the key exists; TimeoutError after timeout_s."""


def _proof(secret: str, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), GREETING + nonce, hashlib.sha256).digest()


@dataclass(eq=False)
class _Client:
    """One connection, as the server sees it."""

    sock: socket.socket
    nonce: bytes
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    to_send: bytearray = field(default_factory=bytearray)
    is_known: bool = False
    waits_for: bytes | None = None


class StoreServer:
    """Serves the store from a thread until close()."""

    def __init__(self, address: str, port: int, secret: str = "") -> None:
        self._secret = secret
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0
        self._clients: set[_Client] = set()
        self._waiting: dict[bytes, list[_Client]] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = self._listen(address, port)
        self.port: int = self._listener.getsockname()[1]
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._stop = False
        self._thread = threading.Thread(target=self._serve, name="harp-store", daemon=True)
        self._thread.start()

    @staticmethod
    def _listen(address: str, port: int) -> socket.socket:
        """At all of this host's addresses: ranks may reach it by another than the one named."""
        del address
        if socket.has_dualstack_ipv6():
            try:
                listener = socket.create_server(
                    ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
                )
            except OSError as error:
                raise OSError(
                    error.errno, f"the key-value store can't listen on port {port}: {error}"
                ) from None
        else:
            listener = socket.create_server(("", port), backlog=1024)
        listener.setblocking(False)
        return listener

    def close(self) -> None:
        """Closes all connections; safe to call twice."""
        if self._stop:
            return
        self._stop = True
        with contextlib.suppress(OSError):  # the thread may have seen the flag and ended
            self._wake_out.send(b"x")
        self._thread.join()
        self._wake_out.close()

    def _serve(self) -> None:
        try:
            while not self._stop:
                pending = [client.deadline for client in self._clients if not client.is_known]
                timeout = max(0.0, min(pending) - time.monotonic()) if pending else None
                for key, events in self._selector.select(timeout):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Client):
                        self._handle(key.data, events)
                now = time.monotonic()
                for client in [c for c in self._clients if not c.is_known and c.deadline <= now]:
                    self._drop(client)
        finally:
            for client in list(self._clients):
                self._drop(client)
            self._selector.close()
            for sock in (self._listener, self._wake_in):
                sock.close()

    def _accept(self) -> None:
        try:
            sock, _peer = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        client = _Client(sock, secrets.token_bytes(NONCE_BYTES), time.monotonic() + HELLO_S)
        pending = sum(not other.is_known for other in self._clients)
        if len(self._clients) >= CLIENTS_MAX or pending >= PENDING_MAX:
            sock.close()
            return
        self._clients.add(client)
        self._selector.register(sock, selectors.EVENT_READ, client)
        self._send(client, GREETING + client.nonce)

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        if client.waits_for is not None:
            self._waiting.get(client.waits_for, []).remove(client)
        self._selector.unregister(client.sock)
        client.sock.close()

    def _send(self, client: _Client, data: bytes) -> None:
        client.to_send += data
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        try:
            while client.to_send:
                del client.to_send[: client.sock.send(client.to_send)]
        except BlockingIOError:
            pass
        except OSError:
            client.to_send.clear()  # the next read finds the end
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.to_send else 0)
        self._selector.modify(client.sock, events, client)

    def _handle(self, client: _Client, events: int) -> None:
        if client not in self._clients:
            return  # dropped in this round
        if events & selectors.EVENT_WRITE:
            self._flush(client)
        if not events & selectors.EVENT_READ:
            return
        try:
            data = client.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        client.received += data
        while client in self._clients and self._take(client):
            pass

    def _take(self, client: _Client) -> bool:
        """Handles one message, if it is complete."""
        received = client.received
        if not client.is_known:
            proof = _proof(self._secret, client.nonce)
            if len(received) < len(proof):
                return False
            if not hmac.compare_digest(bytes(received[: len(proof)]), proof):
                self._drop(client)
                return False
            del received[: len(proof)]
            client.is_known = True
            self._send(client, _REPLY.pack(_OK, 0))
            return True
        if len(received) < _REQUEST.size:
            return False
        kind, key_bytes, value_bytes = _REQUEST.unpack_from(received)
        size = _REQUEST.size + key_bytes + value_bytes
        is_bad = kind not in (_SET, _GET, _WAIT) or client.waits_for is not None
        if is_bad or key_bytes > KEY_BYTES_MAX or value_bytes > VALUE_BYTES_MAX:
            self._drop(client)
            return False
        if len(received) < size:
            return False
        key = bytes(received[_REQUEST.size : _REQUEST.size + key_bytes])
        value = bytes(received[_REQUEST.size + key_bytes : size])
        del received[:size]
        self._do(client, kind, key, value)
        return True

    def _do(self, client: _Client, kind: int, key: bytes, value: bytes) -> None:
        if kind == _SET:
            old = self._values.get(key)
            grown = len(value) - len(old) if old is not None else len(key) + len(value)
            if self._bytes + grown > TOTAL_BYTES_MAX:
                self._send(client, _REPLY.pack(_FULL, 0))
                return
            self._bytes += grown
            self._values[key] = value
            self._send(client, _REPLY.pack(_OK, 0))
            for waiter in self._waiting.pop(key, []):
                waiter.waits_for = None
                self._send(waiter, _REPLY.pack(_OK, 0))
        elif key in self._values:
            found = self._values[key] if kind == _GET else b""
            self._send(client, _REPLY.pack(_OK, len(found)) + found)
        elif kind == _GET:
            self._send(client, _REPLY.pack(_ABSENT, 0))
        else:
            client.waits_for = key
            self._waiting.setdefault(key, []).append(client)


class TcpStore:
    """A client of the store; with serve, its server too. Threads may share it."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        serve: bool = False,
        secret: str = "",
        timeout_s: float = 300,
    ) -> None:
        self._server = StoreServer(address, port, secret) if serve else None
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
        """Until the server is there: ranks start in any order."""
        while True:
            left = deadline - time.monotonic()
            try:
                sock = socket.create_connection(self._address, timeout=max(left, 0.1))
                break
            except OSError as error:
                if left <= 0:
                    raise ConnectionError(
                        f"the key-value store at {self._address[0]}:{self._address[1]} can't be "
                        f"reached: {error}; is rank 0 running, and is MASTER_ADDR its address?"
                    ) from None
                time.sleep(min(0.05, left))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = self._read(sock, len(GREETING) + NONCE_BYTES)
            if not greeting.startswith(GREETING):
                raise ConnectionError(
                    f"what answers at {self._address[0]}:{self._address[1]} is no store of HARP's: "
                    "another program has the port; set HARP_COLL_PORT"
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
                f"a key has at most {KEY_BYTES_MAX} bytes and a value {VALUE_BYTES_MAX}, not "
                f"{len(name)} and {len(value)}"
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
                # The reply may still come: the connection can't be used again.
                self._sock.close()
                self._sock = None
                if not isinstance(error, TimeoutError):
                    raise
            if kind == _WAIT:
                self._sock = self._connect(time.monotonic() + self._timeout_s)
        raise TimeoutError(f"the key-value store has no {key} after {timeout_s} s")

    def set(self, key: str, value: bytes) -> None:
        """Sets or replaces a value."""
        status, _ = self._request(_SET, key, value, self._timeout_s)
        if status != _OK:
            raise OSError(f"the key-value store is full ({TOTAL_BYTES_MAX} bytes)")

    def get(self, key: str) -> bytes | None:
        """The value, or None when there is none yet."""
        status, value = self._request(_GET, key, b"", self._timeout_s)
        return value if status == _OK else None

    def wait(self, key: str, timeout_s: float) -> None:
        """Returns when the key exists; TimeoutError after timeout_s."""
        self._request(_WAIT, key, b"", max(timeout_s, 0.001))

    def close(self) -> None:
        """Closes the connection, and the server if this is its rank; safe to call twice."""
        with self._lock:
            if self._sock is not None:
                self._sock.close()
                self._sock = None
        if self._server is not None:
            self._server.close()
