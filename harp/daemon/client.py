# SPDX-License-Identifier: Apache-2.0
"""A client of harpd: harpctl's requests."""

import array
import contextlib
import errno
import functools
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harp import __version__, _host, files
from harp._host import Kind
from harp.closing import Closing
from harp.daemon import peer
from harp.daemon.messages import HEADER, REST_MAX, Device, Hello, Message, pack, unpack
from harp.errors import Exit, HarpError
from harp.words import printable

TIMEOUT_S = 10.0
DOCUMENT_BYTES_MAX = 64 << 20  # 65536 leases take 40


class RefusedByDaemonError(HarpError):
    """harpd's REFUSED."""

    def __init__(self, error: int, why: str) -> None:
        code = Exit.PRIVILEGE if error in (errno.EPERM, errno.EACCES) else Exit.REFUSED
        super().__init__(f"harpd refuses: {why}", code)
        self.error = error
        self.why = why


class SilentDaemonError(HarpError):
    """A harpd listens but does not answer: it is stopped, or hangs."""

    def __init__(self, path: Path, pid: int) -> None:
        process, argument = (f" (process {pid})", str(pid)) if pid > 0 else ("", "PID")
        super().__init__(
            f"harpd at {path}{process} does not answer; `kill -9 {argument}` ends it, and `harpctl "
            "start` then takes over its leases",
            Exit.NOT_RUNNING,
        )


class DaemonClient(Closing):
    """A connection after HELLO, with the devices and settings of WELCOME. name: for harpd's log;
    timeout_s: limit of each request; sock: a connection that harpd made; path is then its name in
    messages. HarpError: no harpd answers, or another user runs it.
    """

    def __init__(
        self,
        path: Path,
        name: str = f"harpctl {__version__}",
        timeout_s: float = TIMEOUT_S,
        sock: socket.socket | None = None,
    ) -> None:
        self.path = path
        self._serial = 0
        self._sock = sock or socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # With settimeout(), connect() to a socket with a full queue would fail at once.
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1_000_000))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._sock.setsockopt(socket.SOL_SOCKET, option, limit)
        try:
            if sock is None:
                self._connect()
            welcome, _ = self.ask(pack(Kind.HELLO, self.next_serial(), Hello(name)), Kind.WELCOME)
        except BaseException:
            self._sock.close()
            raise
        self.daemon: str = welcome.body.daemon
        self.devices: list[Device] = welcome.records
        self.settings = welcome.text

    def _connect(self) -> None:
        try:
            self._sock.connect(str(self.path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise HarpError(
                f"no harpd at {self.path}; `harpctl start` starts it", Exit.NOT_RUNNING
            ) from error
        except BlockingIOError as error:  # its queue of connections is full
            raise SilentDaemonError(self.path, 0) from error
        except PermissionError as error:
            raise HarpError(
                f"{self.path}: this user may not use it; see socket_group in harp.toml",
                Exit.PRIVILEGE,
            ) from error
        except OSError as error:
            raise HarpError(f"{self.path}: {error.strerror or error}", Exit.NOT_RUNNING) from error
        uid = peer.connected_uid(self._sock)
        if not files.trusted_user(uid):
            raise HarpError(
                f"{self.path}: user {uid} listens on it, but harpd must run as root or as this "
                "user; use harpd's socket",
                Exit.NOT_RUNNING,
            )

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def ask(self, payload: bytes, kind: Kind) -> tuple[Message, list[int]]:
        """Send a message and return the answer; the caller owns the descriptors."""
        return self._answer(_serial(payload), kind, payload)

    def _answer(self, serial: int, kind: Kind, payload: bytes = b"") -> tuple[Message, list[int]]:
        """Send a message, if there is one, and return the next message with its serial number."""
        try:
            if payload:
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    self._sock.send(payload)
            raw, fds = self._receive()
            while 0 < _serial(raw) < serial:  # an answer that came too late
                _close(fds)
                raw, fds = self._receive()
        except BlockingIOError as error:
            raise SilentDaemonError(self.path, peer.connected_pid(self._sock)) from error
        except OSError as error:
            raise HarpError(f"harpd at {self.path}: {error.strerror}", Exit.NOT_RUNNING) from error
        try:
            if not raw:
                raise HarpError(f"harpd at {self.path} has closed the connection", Exit.NOT_RUNNING)
            message = unpack(raw)
            if message.kind is Kind.REFUSED:
                raise RefusedByDaemonError(message.body.error, message.body.why)
            if message.kind is not kind:
                raise HarpError(f"harpd at {self.path} answers with {message.kind.name}")
        except ValueError as error:
            _close(fds)
            raise HarpError(f"harpd at {self.path} uses another protocol: {error}") from error
        except BaseException:
            _close(fds)
            raise
        return message, fds

    def _receive(self) -> tuple[bytes, list[int]]:
        fds = array.array("i")
        size = socket.CMSG_SPACE(max(_host.FDS, _host.PORT_PAGES_MAX) * fds.itemsize)
        read = functools.partial(
            self._sock.recvmsg, _host.MESSAGE_MAX + 1, size, socket.MSG_CMSG_CLOEXEC
        )
        try:
            raw, ancillary, _, _ = read()
        except ConnectionResetError:  # harpd may have sent the reason before it closed
            raw, ancillary, _, _ = read()
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return raw, list(fds)

    def query(self, command: str, **fields: Any) -> Any:
        """Request a document. command: status, instances, config, stop or restart, with its
        arguments. RefusedByDaemonError: harpd refuses. HarpError: harpd does not answer, or not
        with a document.
        """
        question = json.dumps({"command": command, **fields}).encode()
        serial = self.next_serial()
        part, fds = self.ask(pack(Kind.QUERY, serial, rest=question), Kind.ANSWER)
        raw = bytearray(part.rest)
        while len(part.rest) == REST_MAX and len(raw) < DOCUMENT_BYTES_MAX:
            _close(fds)
            part, fds = self._answer(serial, Kind.ANSWER)
            raw += part.rest
        _close(fds)
        try:
            document = json.loads(raw)
            if not isinstance(document, dict):
                raise ValueError("not an object")
            return document
        except (ValueError, RecursionError) as error:
            raise HarpError(
                f"harpd at {self.path} answers with an invalid document: {error}"
            ) from error


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise HarpError if the document of another program or version lacks what the body uses."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = printable(str(error))[:200]
        raise HarpError(
            f"harpd's answer is not what this harpctl expects ({type(error).__name__}: {reason}); "
            "is it of another version?"
        ) from error


def _serial(raw: bytes) -> int:
    return int(HEADER.unpack_from(raw)[-1]) if len(raw) >= HEADER.size else 0


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
