# SPDX-License-Identifier: Apache-2.0
"""Calls an ncclNet v11 plugin through ctypes, as NCCL does.

It uses no code of HARP: the table is written from the NCCL contract (section 2.2, column v11).
"""

from __future__ import annotations

import ctypes as ct
import time
from collections.abc import Callable
from typing import Any

HANDLE_BYTES = 128

RESULTS = {
    0: "ncclSuccess",
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
}
WARN = 2

_P = ct.c_void_p
_PP = ct.POINTER(ct.c_void_p)


def _fn(*args: Any) -> Any:
    return ct.CFUNCTYPE(ct.c_int, *args)


class _Table(ct.Structure):
    _fields_ = [
        ("name", ct.c_char_p),
        ("init", _fn(_PP, ct.c_uint64, _P, _P, _P)),
        ("devices", _fn(ct.POINTER(ct.c_int))),
        ("getProperties", _fn(ct.c_int, _P)),
        ("listen", _fn(_P, ct.c_int, _P, _PP)),
        ("connect", _fn(_P, ct.c_int, _P, _PP, _P)),
        ("accept", _fn(_P, _PP, _P)),
        ("regMr", _fn(_P, _P, ct.c_size_t, ct.c_int, _PP)),
        ("regMrDmaBuf", _P),
        ("deregMr", _fn(_P, _P)),
        ("isend", _fn(_P, _P, ct.c_size_t, ct.c_int, _P, _P, _PP)),
        (
            "irecv",
            _fn(_P, ct.c_int, _PP, ct.POINTER(ct.c_size_t), ct.POINTER(ct.c_int), _PP, _PP, _PP),
        ),
        ("iflush", _P),
        ("test", _fn(_P, ct.POINTER(ct.c_int), ct.POINTER(ct.c_int))),
        ("closeSend", _fn(_P)),
        ("closeRecv", _fn(_P)),
        ("closeListen", _fn(_P)),
        ("getDeviceMr", _P),
        ("irecvConsumed", _P),
        ("makeVDevice", _P),
        ("finalize", _fn(_P)),
        ("setNetAttr", _P),
    ]


class NcclError(Exception):
    """A call did not return ncclSuccess."""

    def __init__(self, call: str, result: int, warnings: list[str] | None = None) -> None:
        super().__init__(
            f"{call}: {RESULTS.get(result, result)}" + "".join(f"\n{w}" for w in warnings or ())
        )
        self.result = RESULTS.get(result, str(result))


class Request:
    """An isend or irecv in flight; keeps its buffer alive."""

    def __init__(self, net: Net, pointer: int, buffer: Any) -> None:
        self._net, self.pointer, self.buffer = net, pointer, buffer

    def test(self) -> int | None:
        """The message's size when done, else None. Raises NcclError."""
        done, size = ct.c_int(-1), ct.c_int(-1)
        self._net._call("test", self.pointer, ct.byref(done), ct.byref(size))
        assert done.value in (0, 1), "test() left *done unset"
        return size.value if done.value else None

    def wait(self, timeout_s: float = 10.0) -> int:
        """Polls until done, as NCCL's progress thread does."""
        deadline = time.monotonic() + timeout_s
        while (size := self.test()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("request not done in time")
            time.sleep(0)
        return size


class Net:
    """A loaded and initialized plugin."""

    def __init__(
        self, path: str, log: Callable[[int, str], None] | None = None, logs: bool = True
    ) -> None:
        self.lines: list[tuple[int, str]] = []
        self._log_to = log
        self._lib = ct.CDLL(path)
        self._table = _Table.in_dll(self._lib, "ncclNetPlugin_v11")
        self._libc = ct.CDLL(None)
        self._logger = self._make_logger()
        self._ctx = ct.c_void_p()
        config = (ct.c_int * 4)(-1)
        logger = ct.cast(self._logger, ct.c_void_p) if logs else None
        result = self._table.init(ct.byref(self._ctx), 0x1234, config, logger, None)
        if result:
            raise NcclError("init", result, self.warnings())

    def _make_logger(self) -> Any:
        # NCCL's logger is variadic. In the System V AMD64 ABI, a function without variadic
        # arguments gets integers and pointers in the same places. The plugin passes one %s.
        proto = ct.CFUNCTYPE(
            None, ct.c_int, ct.c_ulong, ct.c_char_p, ct.c_int, ct.c_char_p, ct.c_char_p
        )

        def log(level: int, flags: int, file: bytes, line: int, fmt: bytes, text: bytes) -> None:
            message = fmt.decode().replace("%s", text.decode())
            self.lines.append((level, message))
            if self._log_to:
                self._log_to(level, message)

        return proto(log)

    def warnings(self) -> list[str]:
        """All lines logged at WARN so far."""
        return [text for level, text in self.lines if level == WARN]

    def _call(self, name: str, *args: Any) -> None:
        result = getattr(self._table, name)(*args)
        if result:
            raise NcclError(name, result)

    def listen(self, dev: int = 0) -> tuple[bytes, int]:
        """A handle for the peer, and the listen comm."""
        handle = ct.create_string_buffer(HANDLE_BYTES)
        comm = ct.c_void_p()
        self._call("listen", self._ctx, dev, handle, ct.byref(comm))
        assert comm.value
        return handle.raw, comm.value

    def connect_start(self, handle: bytes, dev: int = 0) -> Callable[[], int | None]:
        """Returns a function that returns the send comm, or None while it is pending."""
        memory = ct.create_string_buffer(handle, HANDLE_BYTES)

        def step() -> int | None:
            comm = ct.c_void_p(0xDEAD)
            self._call("connect", self._ctx, dev, memory, ct.byref(comm), None)
            return comm.value

        return step

    def accept_step(self, listen: int) -> int | None:
        comm = ct.c_void_p(0xDEAD)
        self._call("accept", listen, ct.byref(comm), None)
        return comm.value

    def isend(self, comm: int, data: bytes, tag: int = 0) -> Request | None:
        buffer = ct.create_string_buffer(data, max(len(data), 1))
        request = ct.c_void_p(0xDEAD)
        self._call("isend", comm, buffer, len(data), tag, None, None, ct.byref(request))
        return Request(self, request.value, buffer) if request.value else None

    def irecv(self, comm: int, size: int, tag: int = 0) -> Request | None:
        buffer = ct.create_string_buffer(max(size, 1))
        request = ct.c_void_p(1)
        data = (ct.c_void_p * 1)(ct.addressof(buffer))
        sizes, tags = (ct.c_size_t * 1)(size), (ct.c_int * 1)(tag)
        handles = (ct.c_void_p * 1)(None)
        self._call("irecv", comm, 1, data, sizes, tags, handles, None, ct.byref(request))
        return Request(self, request.value, buffer) if request.value else None

    def close_send(self, comm: int | None) -> None:
        self._call("closeSend", comm)

    def close_recv(self, comm: int | None) -> None:
        self._call("closeRecv", comm)

    def close_listen(self, comm: int | None) -> None:
        self._call("closeListen", comm)

    def finalize(self) -> None:
        self._call("finalize", self._ctx)
        self._ctx = ct.c_void_p()


def poll_until(steps: list[Callable[[], int | None]], timeout_s: float = 10.0) -> list[int]:
    """Calls every step until each has returned a comm, as NCCL's service thread does."""
    comms: list[int | None] = [None] * len(steps)
    deadline = time.monotonic() + timeout_s
    while any(comm is None for comm in comms):
        for i, step in enumerate(steps):
            if comms[i] is None:
                comms[i] = step()
        if time.monotonic() > deadline:
            raise TimeoutError(f"connections not set up in time: {comms}")
        time.sleep(0)
    return [comm for comm in comms if comm is not None]
