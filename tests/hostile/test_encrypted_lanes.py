# SPDX-License-Identifier: Apache-2.0
"""Encrypted lanes: eavesdroppers, a forged segment, different keys and settings.

Each test runs over HARP's TCP and over kernel lanes.
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
FEATURE_ENCRYPTED = 1 << 32
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


def encryption(key_file: Path) -> dict[str, str]:
    return {"HARP_ENCRYPT": ENCRYPT, "HARP_KEY_FILE": str(key_file)}


class Capture(Closing):
    """Captures all packets at one end of the cable in the buffer of a packet socket."""

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
        return (b"\xff" * 16).join(frames)  # no match across frames

    def close(self) -> None:
        self.raw.close()


# Every aligned 8 bytes are unique, so a captured 16-byte piece is plaintext.
PLAIN = b"".join(
    struct.pack(">QQ", 0x5EA1ED0000000000 + i, i * 0x9E3779B97F4A7C15 % 2**64) for i in range(4096)
)


def count_captured(captured: bytes) -> int:
    """Counts the 16-byte pieces of PLAIN that were captured."""
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
    """A packet socket does not see AF_XDP's packets, so the capture is on the other host."""
    env = encryption(key_file) if encrypt else {}
    with hosts.ranks(*kinds, **env) as (receiver, sender), Capture(hosts, where) as capture:
        pair = Pair(receiver, sender)
        pair.exchange(PLAIN)
        pair.exchange(b"short")
        pair.exchange(PLAIN[:5000])
        captured = capture.captured()
        log = "\n".join(sender.call("log") + receiver.call("log"))
        assert len(captured) > len(PLAIN) + 5000
        if not encrypt:  # the control: the capture contains plaintext
            assert count_captured(captured) > 3000
            assert "encrypted" not in log
            return
        assert count_captured(captured) == 0
        assert record(DATA, message=1, total=5, payload=b"short")[:24] not in captured
        assert PSK not in captured
        assert PSK.hex().encode() not in captured
        assert re.search(r"connected by encrypted \S+ TCP", log)
        assert re.search(r"accepted by encrypted \S+ TCP", log)


# ---- different settings --------------------------------------------------------------------------


def fail_to_connect(receiver: Actor, sender: Actor) -> tuple[str, str]:
    """Connects, which must fail; returns the WARN of the receiver and of the sender."""
    handle, listen = receiver.call("listen")
    failure = pytest.raises(ActorError, match="connect: ncclInvalidUsage")
    with polled(receiver, listen), failure:
        sender.call("connect", handle=handle)
    assert len(sender.call("warnings")) == 1, sender.call("warnings")
    assert len(receiver.call("warnings")) == 1, receiver.call("warnings")
    return receiver.call("warnings")[0], sender.call("warnings")[0]


def test_the_key_is_changed_between_jobs(hosts: Hosts, path: str, key_file: Path) -> None:
    """A running job keeps its key, also for new comms. A later job has the new key, and the two do
    not connect (docs/security.md)."""
    env = encryption(key_file)
    with hosts.ranks(path, path, **env) as (receiver, sender):
        before = Pair(receiver, sender)
        before.exchange(PLAIN)
        write_key(key_file.with_suffix(".new"), PSK[::-1]).replace(key_file)
        Pair(receiver, sender).exchange(PLAIN)
        with hosts.ranks("kernel", "kernel", **env) as (later_receiver, later_sender):
            Pair(later_receiver, later_sender).exchange(PLAIN)
            for pair in ((receiver, later_sender), (later_receiver, sender)):
                for warning in fail_to_connect(*pair):
                    assert "do the pre-shared keys (HARP_KEY_FILE) differ?" in warning
                    assert PSK.hex() not in warning
            before.exchange(PLAIN)


@pytest.mark.parametrize("path", ["xdp", "kernel"])
def test_encryption_on_one_side_is_logged_on_both(hosts: Hosts, path: str, key_file: Path) -> None:
    encrypting = "receiver" if path == "xdp" else "sender"
    with hosts.ranks(path, path, **{encrypting: encryption(key_file)}) as (receiver, sender):
        local = "this process encrypts its lanes (HARP_ENCRYPT) and the peer does not"
        remote = "the peer encrypts its lanes (HARP_ENCRYPT) and this process does not"
        at_receiver, at_sender = fail_to_connect(receiver, sender)
        assert (local if encrypting == "receiver" else remote) in at_receiver
        assert (local if encrypting == "sender" else remote) in at_sender


# ---- forged segments -----------------------------------------------------------------------------


class EncryptedPeer(Peer):
    """A connector that encrypts (docs/lanes.md section 8)."""

    def mac(self, label: bytes) -> bytes:
        secret, self.handle.secret = self.handle.secret, seal.preamble_key(PSK, self.handle.secret)
        try:
            return super().mac(label)
        finally:
            self.handle.secret = secret

    def hello(self, **more: object) -> bytes:
        return super().hello(features=FEATURE_ENCRYPTED, **more)  # type: ignore[arg-type]

    def handshake(self) -> None:
        super().handshake()
        key = seal.preamble_key(PSK, self.handle.secret)
        keys = seal.traffic_keys(key, self.transcript)
        self.out, self.back = seal.Flow(keys[0]), seal.Flow(keys[1])


def test_a_peer_written_from_the_document_interoperates(
    family_hosts: Hosts, path: str, key_file: Path
) -> None:
    data = random.Random(SEED).randbytes(3000)
    first = record(DATA, total=3000, payload=data[:1024])
    second = record(DATA, total=3000, offset=1024, payload=data[1024:])
    with (
        family_hosts.ranks(path, **encryption(key_file)) as (receiver,),
        connected_peer(family_hosts, receiver, EncryptedPeer) as (peer, comm),
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
    """tests/unit/lane/test_lane_encrypted.c tests each way to forge one."""
    env = encryption(key_file)
    with hosts.ranks(path, path, **env) as (receiver, sender):
        pair = Pair(receiver, sender)
        with connected_peer(hosts, receiver, EncryptedPeer) as (peer, comm):
            good, other = (
                peer.out.seal(record(DATA, message=m, total=8, payload=b"payload%d" % m))
                for m in range(2)
            )
            peer.send(good + other[:-1] + bytes([other[-1] ^ 128]))
            received = receiver.call("receive", comm=comm, size=8)
            assert base64.b64decode(received) == b"payload0"
            result, _ = receiver.call("receive_error", comm=comm, size=8)
            assert result == "ncclRemoteError"
            warnings = receiver.call("warnings")
            assert "failed authentication" in warnings[0]
            assert hosts.address[1] in warnings[0]
            assert sum("failed authentication" in line for line in warnings) == 1
        pair.exchange(b"established")
