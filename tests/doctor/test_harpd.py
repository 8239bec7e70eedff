# SPDX-License-Identifier: Apache-2.0
"""Asking harpd, whatever is behind the socket."""

import errno
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harp.doctor import harpd

MAGIC = 0x4C505248


def header(kind: int, magic: int = MAGIC, version: int = 1) -> bytes:
    return struct.pack("=IHHII", magic, version, kind, 0, 1)


def device(name: str, ifindex: int, queues: int, free: int) -> bytes:
    fixed = struct.pack("=16sIIIIIIi", name.encode(), ifindex, 2, 1500, 0, queues, free, -1)
    return fixed.ljust(360, b"\0")


def welcome(count: int, *devices: bytes) -> bytes:
    return (
        header(2) + b"harpd 9".ljust(32, b"\0") + struct.pack("=II", count, 0) + b"".join(devices)
    )


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[bytes | None], Path]]:
    """A server that answers one question; None: it hangs up."""
    servers: list[tuple[socket.socket, threading.Thread]] = []

    def start(answer: bytes | None) -> Path:
        path = tmp_path / "s"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(str(path))
        server.listen()

        def body() -> None:
            peer, _ = server.accept()
            with peer:
                asked = peer.recv(65536)
                assert struct.unpack_from("=IHHI", asked) == (MAGIC, 1, 1, len(asked))
                if answer is not None:
                    peer.send(answer)

        thread = threading.Thread(target=body)
        thread.start()
        servers.append((server, thread))
        return path

    yield start
    for server, thread in servers:
        thread.join(10)
        server.close()
        assert not thread.is_alive()


def test_it_answers(serve: Callable[[bytes | None], Path]) -> None:
    found = harpd.ask(serve(welcome(2, device("eth1", 5, 8, 3), device("eth2", 6, 4, 0))))
    assert (found.error, found.version) == (0, "harpd 9")
    assert found.devices["eth1"] == harpd.Device("eth1", 5, 8, 3)
    assert found.devices["eth2"].queues_free == 0


def test_it_refuses(serve: Callable[[bytes | None], Path]) -> None:
    body = struct.pack("=i384s", -errno.EACCES, b"user nobody is not in harp.toml's users")
    found = harpd.ask(serve(header(5) + body))
    assert (found.error, found.why) == (errno.EACCES, "user nobody is not in harp.toml's users")


@pytest.mark.parametrize(
    "answer",
    [
        b"?",
        header(2),
        header(2, magic=1),
        header(2, version=2),
        header(7),
        header(5),
        welcome(3, device("eth1", 5, 8, 3)),
        welcome(0xFFFFFFFF),
        b"\xff" * 65536,
    ],
)
def test_it_speaks_nonsense(serve: Callable[[bytes | None], Path], answer: bytes) -> None:
    found = harpd.ask(serve(answer))
    assert found.error == errno.EPROTO
    assert found.devices == {}


def test_it_hangs_up(serve: Callable[[bytes | None], Path]) -> None:
    assert harpd.ask(serve(None)).error == errno.ECONNRESET


def test_it_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harpd, "_TIMEOUT_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        assert harpd.ask(tmp_path / "s").error == errno.ETIMEDOUT


def test_it_is_not_there(tmp_path: Path) -> None:
    assert harpd.ask(tmp_path / "s").error == errno.ENOENT
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "s"))
    assert harpd.ask(tmp_path / "s").error == errno.ECONNREFUSED
    assert harpd.ask(Path("/" + "x" * 200)).error != 0, "too long for a socket"


def test_the_layouts_are_the_headers(root_dir: Path, tmp_path: Path) -> None:
    """The compiler says so."""
    source = tmp_path / "layout.c"
    source.write_text("""
#include <stddef.h>
#include "harp_lease.h"
_Static_assert(sizeof(struct harp_lease_device) == 360, "");
_Static_assert(offsetof(struct harp_lease_device, ifindex) == 16, "");
_Static_assert(offsetof(struct harp_lease_device, queues) == 32, "");
_Static_assert(offsetof(struct harp_lease_device, queues_free) == 36, "");
_Static_assert(sizeof(struct harp_lease_header) == 16, "");
_Static_assert(sizeof(struct harp_lease_hello) == 48, "");
_Static_assert(offsetof(struct harp_lease_welcome, device_count) == 48, "");
_Static_assert(sizeof(struct harp_lease_welcome) == 56, "");
_Static_assert(offsetof(struct harp_lease_refused, why) == 20, "");
_Static_assert(HARP_LEASE_MAGIC == 0x4c505248 && HARP_LEASE_VERSION == 1, "");
_Static_assert(HARP_LEASE_HELLO == 1 && HARP_LEASE_WELCOME == 2 && HARP_LEASE_REFUSED == 5, "");
""")
    include = root_dir / "dataplane/include"
    command = [os.environ.get("CC", "cc"), "-fsyntax-only", f"-I{include}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert harpd._DEVICE.size == 360
