# SPDX-License-Identifier: Apache-2.0
"""harpctl check queries harpd, or whatever program listens on its socket."""

import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checked_host import device

from harp import _host
from harp.daemon.messages import Device, Refused, pack, pack_welcome, unpack
from harp.doctor import view


def welcome(*devices: Device) -> bytes:
    return pack_welcome(1, "harpd 9", devices, "")


def query(folder: Path, answer: bytes | None) -> view.Harpd:
    """Query a program with this answer; None: it disconnects. Return the result."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(folder / "s"))
        server.listen()

        def serve() -> None:
            with server.accept()[0] as peer:
                assert unpack(peer.recv(65536)).kind is _host.Kind.HELLO
                if answer is not None:
                    peer.send(answer)

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            result = view.ask(folder / "s")
            served.result(10)
    return result


def test_an_answering_harpd_is_reported(tmp_path: Path) -> None:
    devices = [device("eth1", 5, 8, 3, _host.DEVICE_GENERIC), device("eth2", 6, 4, 0)]
    result = query(tmp_path, welcome(*devices))
    assert (result.error, result.version) == (0, "harpd 9")
    assert list(result.devices.values()) == devices


def test_a_refusal_is_reported(tmp_path: Path) -> None:
    why = "user nobody is not in harp.toml's users"
    result = query(tmp_path, pack(_host.Kind.REFUSED, 1, Refused(errno.EACCES, why)))
    assert (result.error, result.why) == (errno.EACCES, why)


@pytest.mark.parametrize(
    "answer", [b"?", welcome()[:-1], pack(_host.Kind.DONE, 1), b"\xff" * 65536]
)
def test_an_invalid_answer_is_reported(tmp_path: Path, answer: bytes) -> None:
    result = query(tmp_path, answer)
    assert (result.error, result.devices) == (errno.EPROTO, {})


def test_a_closed_connection_is_reported(tmp_path: Path) -> None:
    result = query(tmp_path, None)
    assert result.error != 0
    assert "has closed the connection" in result.why


def test_a_missing_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_HARPD_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        result = view.ask(tmp_path / "s")
    assert result.error != 0
    assert "does not answer" in result.why


def test_a_missing_harpd_is_reported(tmp_path: Path) -> None:
    assert view.ask(tmp_path / "s").error == errno.ENOENT
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "s"))
    assert view.ask(tmp_path / "s").error == errno.ECONNREFUSED
    assert view.ask(Path("/" + "x" * 200)).error != 0, "too long for a socket"
