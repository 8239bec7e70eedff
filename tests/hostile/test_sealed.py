# SPDX-License-Identifier: Apache-2.0
"""Encrypted lanes: eavesdroppers, a forged segment, other keys, and settings that differ.

Each test runs over HARP's own TCP and over kernel lanes.
"""

import base64
import contextlib
import random
import re
import socket
import struct
from pathlib import Path

import pytest
import seal
from actor import Actor, ActorError, polled
from hosts import Hosts
from test_hostile import Pair, connected_peer
from wire import CLOSE, DATA, Peer, record

from harp.closing import Closing

SEED = 20261122
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
PSK = bytes(range(32))
SEALED = 1 << 32
ENCRYPT = "aes-256-gcm"


@pytest.fixture(params=["xdp", "kernel"])
def path(request: pytest.FixtureRequest) -> str:
    """The kind of lane on both sides."""
    return str(request.param)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return write_key(tmp_path / "key", PSK)


def write_key(path: Path, key: bytes) -> Path:
    path.write_text(key.hex() + "\n")
    path.chmod(0o600)
    return path


def sealing(key_file: Path) -> dict[str, str]:
    return {"HARP_ENCRYPT": ENCRYPT, "HARP_KEY_FILE": str(key_file)}


class Capture(Closing):
    """All packets at one end of the cable while it is open; its socket has room for them."""

    def __init__(self, hosts: Hosts, host: int) -> None:
        with hosts.inside(host):
            self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.raw.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.raw.bind((hosts.ifname[host], 0))
        self.raw.setblocking(False)

    def captured(self) -> bytes:
        frames = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frames.append(self.raw.recv(1 << 17))
        return (b"\xff" * 16).join(frames)  # frames don't join

    def close(self) -> None:
        self.raw.close()


# No eight bytes of it are alike elsewhere, and each frame has some run of 16 that starts at 16.
PLAIN = b"".join(
    struct.pack(">QQ", 0x5EA1ED0000000000 + i, i * 0x9E3779B97F4A7C15 % 2**64) for i in range(4096)
)


def runs_captured(captured: bytes) -> int:
    """How many 16-byte pieces of PLAIN were captured."""
    return sum(PLAIN[at : at + 16] in captured for at in range(0, len(PLAIN), 16))


@pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "plaintext"])
@pytest.mark.parametrize(
    ("kinds", "where"),
    [(("kernel", "kernel"), 0), (("xdp", "kernel"), 1), (("kernel", "xdp"), 0)],
    ids=["kernel", "HARP receives", "HARP sends"],
)
def test_no_plaintext_is_on_the_wire(
    hosts: Hosts, key_file: Path, kinds: tuple[str, str], where: int, encrypt: bool
) -> None:
    """A packet socket sees no queue that HARP holds, so the capture is on the other host."""
    env = sealing(key_file) if encrypt else {}
    with hosts.ranks(*kinds, **env) as (receiver, sender), Capture(hosts, where) as capture:
        pair = Pair(receiver, sender)
        pair.exchange(PLAIN)
        pair.exchange(b"short")
        pair.exchange(PLAIN[:5000])
        captured = capture.captured()
        said = "\n".join(sender.call("log") + receiver.call("log"))
        assert len(captured) > len(PLAIN) + 5000
        if not encrypt:  # the same capture shows what is not encrypted
            assert runs_captured(captured) > 3000
            assert "encrypted" not in said
            return
        assert runs_captured(captured) == 0
        assert record(DATA, message=1, total=5, payload=b"short")[:24] not in captured
        assert PSK not in captured
        assert PSK.hex().encode() not in captured
        assert re.search(r"connected by encrypted \S+ TCP", said)
        assert re.search(r"accepted by encrypted \S+ TCP", said)


# ---- settings that differ ------------------------------------------------------------------------


def refusal(receiver: Actor, sender: Actor) -> tuple[str, str]:
    """Connects, which must fail; the last WARN of either side."""
    handle, listen = receiver.call("listen")
    refused = pytest.raises(ActorError, match="connect: ncclInvalidUsage")
    with polled(receiver, listen), refused:
        sender.call("connect", handle=handle)
    assert len(sender.call("warnings")) == 1, sender.call("warnings")
    assert len(receiver.call("warnings")) == 1, receiver.call("warnings")
    return receiver.call("warnings")[0], sender.call("warnings")[0]


def test_the_key_is_changed_between_jobs(hosts: Hosts, path: str, key_file: Path) -> None:
    """As docs/security.md says: a running job keeps the key that it began with, for its new comms
    too. A job that begins later has the new one, and the two do not connect."""
    env = sealing(key_file)
    with hosts.ranks(path, path, **env) as (receiver, sender):
        before = Pair(receiver, sender)
        before.exchange(PLAIN)
        write_key(key_file.with_suffix(".new"), PSK[::-1]).replace(key_file)
        Pair(receiver, sender).exchange(PLAIN)
        with hosts.ranks("kernel", "kernel", **env) as (later_receiver, later_sender):
            Pair(later_receiver, later_sender).exchange(PLAIN)
            for pair in ((receiver, later_sender), (later_receiver, sender)):
                for said in refusal(*pair):
                    assert "do the pre-shared keys (HARP_KEY_FILE) differ?" in said
                    assert PSK.hex() not in said
            before.exchange(PLAIN)


@pytest.mark.parametrize("path", ["xdp", "kernel"])
def test_one_side_alone_is_named_on_both_sides(hosts: Hosts, path: str, key_file: Path) -> None:
    who = "receiver" if path == "xdp" else "sender"
    with hosts.ranks(path, path, **{who: sealing(key_file)}) as (receiver, sender):
        here = "this process encrypts its lanes (HARP_ENCRYPT) and the peer does not"
        there = "the peer encrypts its lanes (HARP_ENCRYPT) and this process does not"
        at_receiver, at_sender = refusal(receiver, sender)
        assert (here if who == "receiver" else there) in at_receiver
        assert (here if who == "sender" else there) in at_sender


# ---- forged segments -----------------------------------------------------------------------------


class SealedPeer(Peer):
    """A connector that seals (docs/lanes.md section 8)."""

    def mac(self, label: bytes) -> bytes:
        secret, self.handle.secret = self.handle.secret, seal.preamble_key(PSK, self.handle.secret)
        try:
            return super().mac(label)
        finally:
            self.handle.secret = secret

    def hello(self, **more: object) -> bytes:
        return super().hello(features=SEALED, **more)  # type: ignore[arg-type]

    def handshake(self) -> None:
        super().handshake()
        key = seal.preamble_key(PSK, self.handle.secret)
        keys = seal.traffic_keys(key, self.transcript)
        self.out, self.back = seal.Flow(keys[0]), seal.Flow(keys[1])


def test_a_peer_written_from_the_document_interoperates(
    each: Hosts, path: str, key_file: Path
) -> None:
    data = random.Random(SEED).randbytes(3000)
    first = record(DATA, total=3000, payload=data[:1024])
    second = record(DATA, total=3000, offset=1024, payload=data[1024:])
    with (
        each.ranks(path, **sealing(key_file)) as (receiver,),
        connected_peer(each, receiver, SealedPeer) as (peer, comm),
    ):
        receiver.start("receive", comm=comm, size=4096)
        # Records need not begin where segments do.
        for piece in (first[:7], first[7:100], first[100:] + second[:50], second[50:]):
            peer.send(peer.out.seal(piece))
        assert base64.b64decode(receiver.result()) == data
        receiver.call("close_recv", comm=comm)
        head = peer.read(seal.HEAD_BYTES)
        size = struct.unpack("<I", head)[0]
        received = peer.back.open(head + peer.read(size + seal.TAG_BYTES))
        assert received[-40] == CLOSE


def test_a_forged_segment_fails_its_comm_only(hosts: Hosts, path: str, key_file: Path) -> None:
    """tests/unit/lane/test_lane_encrypted.c has each way to forge one."""
    env = sealing(key_file)
    with hosts.ranks(path, path, **env) as (receiver, sender):
        pair = Pair(receiver, sender)
        with connected_peer(hosts, receiver, SealedPeer) as (peer, comm):
            good, other = (
                peer.out.seal(record(DATA, message=m, total=8, payload=b"payload%d" % m))
                for m in range(2)
            )
            peer.send(good + other[:-1] + bytes([other[-1] ^ 128]))
            got = receiver.call("receive", comm=comm, size=8)
            assert base64.b64decode(got) == b"payload0"
            result, _ = receiver.call("receive_error", comm=comm, size=8)
            assert result == "ncclRemoteError"
            said = receiver.call("warnings")
            assert "failed authentication" in said[0]
            assert hosts.address[1] in said[0]
            assert sum("failed authentication" in line for line in said) == 1
        pair.exchange(b"established")
