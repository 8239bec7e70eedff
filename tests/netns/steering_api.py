# SPDX-License-Identifier: Apache-2.0
"""libharp-xdp.so by ctypes: version 9 of harp_xdp.h, for tests of harpd's use of it.

As a program it attaches and pins, prints "ready", and runs until it is killed:
steering_api.py BUILD DIR IFNAME [MODE]
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

VERSION = 9
HOME_NONE = 0xFFFFFFFF
QUEUES_MAX = 256
TCP, UDP = 1, 2
AUTO, GENERIC, NATIVE, NATIVE_OR_NONE = 0, 1, 2, 3
_WHY = 512
_P = ctypes.c_void_p
_S = ctypes.c_char_p
_U = ctypes.c_uint32
_Z = ctypes.c_size_t


def _function(*arguments: Any, result: Any = ctypes.c_int) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)


class _Table(ctypes.Structure):
    _fields_ = [
        ("version", _U),
        ("verdict_count", _U),
        ("attach", _function(ctypes.POINTER(_P), _S, _U, _P, _Z)),
        ("native", _function(_P, result=ctypes.c_bool)),
        ("xsk_set", _function(_P, _U, ctypes.c_int)),
        (
            "ports_set",
            _function(_P, _U, ctypes.c_uint16, ctypes.c_uint16, _U, ctypes.c_bool),
        ),
        ("address_set", _function(_P, _S, ctypes.c_bool)),
        ("verdicts", _function(_P, _P, ctypes.c_uint)),
        ("fds", _function(_P, _P, ctypes.c_uint, result=ctypes.c_uint)),
        ("detach", _function(_P, result=None)),
        ("attached_id", _function(_U, result=ctypes.c_int64)),
        ("pin", _function(_P, _S)),
        ("adopt", _function(ctypes.POINTER(_P), _S, _S, _P, _Z)),
        ("replace", _function(_P, _P, _Z)),
        ("unpin", _function(_S)),
        ("arrivals", _function(_P, _P, ctypes.c_uint)),
        ("check", _function(_P, _P, _Z)),
        ("sources_set", _function(_P, _P, ctypes.c_uint)),
    ]


class _Source(ctypes.Structure):
    _fields_ = [
        ("address_bytes", ctypes.c_uint8),
        ("prefix_bits", ctypes.c_uint8),
        ("address", ctypes.c_uint8 * 16),
    ]


class _QueueOptions(ctypes.Structure):
    _fields_ = [
        ("size", _U),
        ("ifname", _S),
        *(
            (name, _U)
            for name in (
                *("queue", "frame_count", "frame_size", "ring_size"),
                *("copy_mode", "huge_pages", "bind_retry_ms"),
            )
        ),
    ]


class _Queue(ctypes.Structure):
    _fields_ = [("size", _U), ("xsk_fd", ctypes.c_int), ("frames_fd", ctypes.c_int)]


class RefusedError(OSError):
    """A call that failed, with its one line."""


def _check(rc: int, words: str = "") -> None:
    if rc < 0:
        raise RefusedError(-rc, words or os.strerror(-rc))


class Library:
    """The functions, and the steering programs that they give."""

    def __init__(self, build: Path) -> None:
        self._libharp = ctypes.CDLL(str(build / "dataplane" / "libharp.so"))
        self._libharp.harp_steering_name.restype = _S
        entry = ctypes.CDLL(str(build / "dataplane" / "xdp" / "libharp-xdp.so")).harp_xdp_api
        entry.restype = ctypes.POINTER(_Table)
        self.api = entry().contents
        assert self.api.version == VERSION
        self.verdicts = [
            self._libharp.harp_steering_name(index).decode()
            for index in range(self.api.verdict_count)
        ]

    def _make(self, call: Callable[..., int], *arguments: Any) -> "Steering":
        handle, why = _P(), ctypes.create_string_buffer(_WHY)
        rc = call(ctypes.byref(handle), *arguments, why, _WHY)
        _check(rc, why.value.decode())
        return Steering(self, handle)

    def attach(self, ifname: str, mode: int = GENERIC) -> "Steering":
        return self._make(self.api.attach, ifname.encode(), mode)

    def adopt(self, directory: Path, ifname: str) -> "Steering":
        return self._make(self.api.adopt, bytes(directory), ifname.encode())

    def unpin(self, directory: Path) -> None:
        _check(self.api.unpin(bytes(directory)))

    def make_queue(self, ifname: str, queue: int) -> tuple[int, int]:
        """An AF_XDP socket that nobody reads, and its memory: harp_queue_make()."""
        made = ctypes.create_string_buffer(256)
        why = ctypes.create_string_buffer(_WHY)
        options = _QueueOptions(ctypes.sizeof(_QueueOptions), ifname.encode(), queue, 256)
        options.ring_size = 64
        rc = self._libharp.harp_queue_make(made, ctypes.byref(options), why, _WHY)
        _check(rc, why.value.decode())
        found = _Queue.from_buffer(made)
        return found.xsk_fd, found.frames_fd


class Steering:
    """One struct harp_xdp."""

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self._library, self._api, self._handle = library, library.api, handle

    def pin(self, directory: Path) -> None:
        _check(self._api.pin(self._handle, bytes(directory)))

    def replace(self) -> None:
        why = ctypes.create_string_buffer(_WHY)
        rc = self._api.replace(self._handle, why, _WHY)
        _check(rc, why.value.decode())

    def ports_set(
        self, protocols: int, first: int, last: int, home: int = HOME_NONE, ours: bool = True
    ) -> None:
        _check(self._api.ports_set(self._handle, protocols, first, last, home, ours))

    def address_set(self, address: bytes, ours: bool = True) -> None:
        _check(self._api.address_set(self._handle, address, ours))

    def xsk_set(self, queue: int, fd: int) -> None:
        _check(self._api.xsk_set(self._handle, queue, fd))

    def sources_set(self, sources: Iterable[tuple[bytes, int]]) -> None:
        """Each an address of 4 or 16 bytes and a number of bits."""
        each = [
            _Source(len(address), bits, (ctypes.c_uint8 * 16)(*address))
            for address, bits in sources
        ]
        _check(self._api.sources_set(self._handle, (_Source * len(each))(*each), len(each)))

    def verdicts(self) -> dict[str, int]:
        counts = (ctypes.c_uint64 * self._api.verdict_count)()
        _check(self._api.verdicts(self._handle, counts, len(counts)))
        return dict(zip(self._library.verdicts, counts, strict=True))

    def arrivals(self, count: int) -> list[tuple[int, int, int]]:
        """Of each queue: packets of ours, mismatches, how many flows' bits the latter have."""
        sums = (ctypes.c_uint64 * (3 * count))()
        _check(self._api.arrivals(self._handle, sums, count))
        return [(sums[at], sums[at + 1], sums[at + 2].bit_count()) for at in range(0, 3 * count, 3)]

    def fds(self) -> list[int]:
        fds = (ctypes.c_int * 24)()
        return list(fds[: self._api.fds(self._handle, fds, 24)])

    def check(self) -> str:
        """What changed, or ""; RefusedError."""
        why = ctypes.create_string_buffer(_WHY)
        rc = self._api.check(self._handle, why, _WHY)
        _check(rc, why.value.decode())
        return why.value.decode()

    def detach(self) -> None:
        self._api.detach(self._handle)


def main() -> None:
    build, directory, ifname, *mode = sys.argv[1:]
    steering = Library(Path(build)).attach(ifname, int(mode[0]) if mode else GENERIC)
    steering.pin(Path(directory))
    print("ready", flush=True)
    sys.stdin.read()
    raise SystemExit(errno.EPIPE)


if __name__ == "__main__":
    main()
