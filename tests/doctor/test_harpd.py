# SPDX-License-Identifier: Apache-2.0
"""harpctl check queries harpd, whatever listens on the socket."""

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checked_host import device

from harp import _host
from harp.daemon.messages import Device, Refused, pack, pack_welcome, unpack
from harp.doctor import view


def welcome(*devices: Device) -> bytes:
    return pack_welcome(1, "harpd 9", devices, "")


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
                assert unpack(asked).kind is _host.Kind.HELLO
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


def test_an_answering_harpd_is_reported(serve: Callable[[bytes | None], Path]) -> None:
    devices = [device("eth1", 5, 8, 3, _host.DEVICE_GENERIC), device("eth2", 6, 4, 0)]
    found = view.ask(serve(welcome(*devices)))
    assert (found.error, found.version) == (0, "harpd 9")
    assert list(found.devices.values()) == devices


def test_a_refusal_is_reported(serve: Callable[[bytes | None], Path]) -> None:
    why = "user nobody is not in harp.toml's users"
    found = view.ask(serve(pack(_host.Kind.REFUSED, 1, Refused(errno.EACCES, why))))
    assert (found.error, found.why) == (errno.EACCES, why)


@pytest.mark.parametrize(
    "answer",
    [
        b"?",
        welcome()[:-1],
        pack(_host.Kind.DONE, 1),
        b"\xff" * 65536,
    ],
)
def test_an_invalid_answer_is_reported(
    serve: Callable[[bytes | None], Path], answer: bytes
) -> None:
    found = view.ask(serve(answer))
    assert found.error == errno.EPROTO
    assert found.devices == {}


def test_a_closed_connection_is_reported(serve: Callable[[bytes | None], Path]) -> None:
    found = view.ask(serve(None))
    assert found.error != 0
    assert "has closed the connection" in found.why


def test_a_missing_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_HARPD_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        found = view.ask(tmp_path / "s")
    assert found.error != 0
    assert "does not answer" in found.why


def test_a_missing_harpd_is_reported(tmp_path: Path) -> None:
    assert view.ask(tmp_path / "s").error == errno.ENOENT
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "s"))
    assert view.ask(tmp_path / "s").error == errno.ECONNREFUSED
    assert view.ask(Path("/" + "x" * 200)).error != 0, "too long for a socket"
