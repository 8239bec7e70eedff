# SPDX-License-Identifier: Apache-2.0
"""A small harpd that leases one queue of one host, with the changes to the lease that a test
makes."""

import contextlib
import ctypes
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harp import _host
from harp.closing import Closing
from harp.daemon.netlink import NetworkMonitor
from harp.lab import Host
from harp.lab.netns import in_namespace

MAGIC, VERSION = 0x4C505248, 2
HELLO, WELCOME, LEASE, LEASED, REFUSED, RELEASE, DONE = range(1, 8)
WATCH, NEIGHBORS, ROUTE = 11, 13, 14
HEADER = struct.Struct("=IHHII")
DEVICE = struct.Struct("=16s6Ii6s6xQQ16s16s256s")
LEASED_BODY = struct.Struct("=QQ16s9IBBHH6s6I64s1024s")
LABEL_AT = HEADER.size + 16 + 4 * 4

PORTS = (61000, 61255)
_TCP_AND_UDP = 3
_GENERIC = 1

_OPTIONS = ("queue", "count", "frame", "ring", "copy", "huge", "retry", "from", "from_netns")
_NUMBERS = (
    *("ifindex", "queue", "frame_size", "frame_count"),
    *("ring_size", "mtu", "features", "frags"),
)
_CALLS = (
    *("attach", "native", "xsk_set", "ports_set"),
    *("address_set", "verdicts", "fds", "detach"),
)


class _Options(ctypes.Structure):
    """struct harp_af_xdp_options."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("ifname", ctypes.c_char_p),
        *((name, ctypes.c_uint32) for name in _OPTIONS),
    )


class _Queue(ctypes.Structure):
    """struct harp_queue."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("xsk_fd", ctypes.c_int),
        ("frames_fd", ctypes.c_int),
        *(
            (name, ctypes.c_uint32)
            for name in [
                "ifindex",
                "queue",
                "frame_size",
                "frame_count",
                "ring_size",
                "mtu",
                "features",
                "frags",
            ]
        ),
        ("zero_copy", ctypes.c_uint8),
        ("mac", ctypes.c_uint8 * 6),
        ("reserved", ctypes.c_uint8),
        ("ifname", ctypes.c_char * 16),
        ("tx_fd", ctypes.c_int),
    )


class _Xdp(ctypes.Structure):
    """The beginning of struct harp_xdp_api."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("verdict_count", ctypes.c_uint32),
        *(
            (name, ctypes.c_void_p)
            for name in [
                "attach",
                "native",
                "xsk_set",
                "ports_set",
                "address_set",
                "verdicts",
                "fds",
                "detach",
            ]
        ),
    )


def _call(api: _Xdp, name: str, *kinds: Any) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(getattr(api, name))


class LittleHarpd(Closing):
    """Serves one host's interface on a socket until it is closed."""

    def __init__(self, build: Path, host: Host, path: Path) -> None:
        self.host, self.path = host, path
        self.asked: list[int] = []  # LEASE and RELEASE, as they came
        self.labels: list[str] = []
        # What a test changes before a job comes.
        self.refuse: tuple[int, str] | None = None
        self.settings = ""
        self.spoil: Callable[[bytearray, list[int]], None] = lambda message, fds: None
        self._libharp = ctypes.CDLL(str(build / "dataplane" / "libharp.so.1"))
        library = ctypes.CDLL(str(build / "dataplane" / "xdp" / "libharp-xdp.so"))
        library.harp_xdp_api.restype = ctypes.POINTER(_Xdp)
        self._xdp_library = library  # its functions are called until close()
        self._api: _Xdp = library.harp_xdp_api().contents
        self._xdp = ctypes.c_void_p()
        self._netns = 0
        in_namespace(host.netns, self._attach)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        path.chmod(0o666)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, name="little harpd")
        self._thread.start()

    def close(self) -> None:
        """Detaches, whatever still runs on the queue."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.path.unlink()
        _call(self._api, "detach", ctypes.c_void_p)(self._xdp)

    # ----------------------------------------------------------------------------------------------

    def _attach(self, ipr: Any) -> None:
        self._netns = Path("/proc/thread-self/ns/net").stat().st_ino
        link = ipr.get_links(ifname=self.host.ifname)[0]
        self._ifindex, self._mtu = link["index"], link.get_attr("IFLA_MTU")
        self._mac = bytes.fromhex(link.get_attr("IFLA_ADDRESS").replace(":", ""))
        why = ctypes.create_string_buffer(256)
        attach = _call(
            self._api, "attach", *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32),
            *(ctypes.c_char_p, ctypes.c_size_t),
        )  # fmt: skip
        name = self.host.ifname.encode()
        if attach(ctypes.byref(self._xdp), name, _GENERIC, why, len(why)) != 0:
            raise OSError(why.value.decode())
        address = ipaddress_bytes(self.host.address)
        _call(self._api, "address_set", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_bool)(
            self._xdp, address, True
        )

    def _make(self, made: list[Any]) -> None:
        """A queue and its sockets; in the host's namespace."""
        queue = _Queue()
        why = ctypes.create_string_buffer(256)
        options = _Options(
            size=ctypes.sizeof(_Options), ifname=self.host.ifname.encode(), count=4096, copy=1
        )
        rc = self._libharp.harp_queue_make(
            ctypes.byref(queue), ctypes.byref(options), why, len(why)
        )
        if rc != 0:
            raise OSError(-rc, why.value.decode())
        _call(self._api, "xsk_set", ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int)(
            self._xdp, 0, queue.xsk_fd
        )
        ports = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint16, ctypes.c_uint16)
        _call(self._api, "ports_set", *ports, ctypes.c_uint32, ctypes.c_bool)(
            self._xdp, _TCP_AND_UDP, *PORTS, 0, True
        )
        self._libharp.harp_page_bytes.restype = ctypes.c_size_t
        page = ctypes.c_int(-1)
        if self._libharp.harp_page_create_fd(16, ctypes.byref(page)) != 0:
            raise OSError("no page")
        fds = [queue.xsk_fd, queue.frames_fd, page.value]
        made += [queue, fds]

    # ----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection:
            while message := connection.recv(65536):
                self._answer(connection, message)

    def _answer(self, connection: socket.socket, message: bytes) -> None:
        _, _, kind, _, serial = HEADER.unpack_from(message)
        if kind in (LEASE, RELEASE):
            self.asked.append(kind)
        fds: list[int] = []
        if kind == HELLO:
            answer = self._welcome(serial)
        elif kind == RELEASE:
            answer = frame(DONE, serial, b"")
        elif kind in (WATCH, NEIGHBORS, ROUTE):
            answer = self._of_the_network(_host.unpack(message))
        elif self.refuse:
            body = struct.pack("=i384s", self.refuse[0], self.refuse[1].encode())
            answer = frame(REFUSED, serial, body)
        else:
            label = message[LABEL_AT : LABEL_AT + 64]
            self.labels.append(label.split(b"\0")[0].decode())
            answer = self._leased(serial, fds)
        try:
            socket.send_fds(connection, [answer], fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _of_the_network(self, message: _host.Message) -> bytes:
        """What it says to a job of another namespace, asked for each time anew."""
        found: list[bytes] = []
        serial, fields = message.serial, message.fields

        def look(_: Any) -> None:
            if message.kind is _host.Kind.WATCH:
                network = _host.network(self._ifindex)
                found.append(_host.pack_network(serial, fields["lease_id"], network))
            elif message.kind is _host.Kind.ROUTE:
                found.append(_host.pack_routed(serial, _host.route(self._ifindex, fields["dst"])))
            else:
                asked = [addr for addr, _, flags in fields["neighbors"] if flags & _host.WANTED]
                found.append(_host.pack_neighbors(self._resolved(asked)))

        in_namespace(self.host.netns, look)
        return found[0]

    def _resolved(self, asked: list[bytes]) -> list[tuple[bytes, bytes]]:
        monitor = NetworkMonitor()
        known: dict[bytes, bytes] = {}
        with contextlib.closing(monitor):
            if asked:
                monitor.resolve([(self._ifindex, addr) for addr in asked])
            while not known.keys() >= set(asked):
                select.select([monitor], [], [])
                known |= {addr: mac for index, addr, mac in monitor.read().neighbors}
        return [(addr, known[addr]) for addr in asked]

    def _welcome(self, serial: int) -> bytes:
        v4, v6 = bytes(16), bytes(16)
        if ":" in self.host.address:
            v6 = ipaddress_bytes(self.host.address)
        else:
            v4 = ipaddress_bytes(self.host.address)
        device = DEVICE.pack(
            self.host.ifname.encode(), self._ifindex, 2, self._mtu, 10000, 1, 1, -1,
            self._mac, self._netns, int.from_bytes(self._mac) << 16, v4, v6, b"",
        )  # fmt: skip
        text = self.settings.encode()
        return frame(
            WELCOME, serial, struct.pack("=32sII", b"little", 1, len(text)) + device + text
        )

    def _leased(self, serial: int, fds: list[int]) -> bytes:
        made: list[Any] = []
        in_namespace(self.host.netns, lambda _: self._make(made))
        queue, got = made
        page_bytes = self._libharp.harp_page_bytes(16)
        body = LEASED_BODY.pack(
            7, self._netns, queue.ifname, queue.ifindex, queue.queue, 1, queue.frame_size,
            queue.frame_count, queue.ring_size, queue.features, queue.frags, queue.mtu,
            0, queue.zero_copy, *PORTS, bytes(queue.mac), page_bytes, 0xFFFFFFFF, 0, 0, 0, 0,
            b"", b"",
        )  # fmt: skip
        message = bytearray(frame(LEASED, serial, body))
        fds += got
        self.spoil(message, fds)
        return bytes(message)


def frame(kind: int, serial: int, body: bytes) -> bytes:
    """A message with its header."""
    return HEADER.pack(MAGIC, VERSION, kind, HEADER.size + len(body), serial) + body


def ipaddress_bytes(text: str) -> bytes:
    """As struct harp_addr."""
    if ":" in text:
        return socket.inet_pton(socket.AF_INET6, text)
    return bytes(10) + b"\xff\xff" + socket.inet_aton(text)
