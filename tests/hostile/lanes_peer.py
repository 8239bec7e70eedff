# SPDX-License-Identifier: Apache-2.0
"""Both ends of a comm of several kernel lanes, written from docs/lanes.md alone, over wire.py.

It plays NCCL to a plugin under ctypes, in one process and one thread. A seed determines each trial,
which takes a few milliseconds. Run it inside a network namespace of its own:

    lanes_peer.py send|receive FIRST COUNT
"""

from __future__ import annotations

import hashlib
import os
import random
import select
import socket
import struct
import sys
import time
from typing import Any

from ncclnet import HANDLE_BYTES, NcclError, Net, Request
from wire import (
    ACK,
    CHALLENGE,
    CLOSE,
    CONFIRM,
    CREDIT,
    DATA,
    READY,
    RECORD_BYTES,
    Handle,
    Peer,
    record,
)

from harp import _paths

HANGS_S = 60.0
KEPT = 4
LANES = 4
Record = tuple[int, int, int, int, bytes]  # type, message, total, offset, payload


class Lane:
    """A socket behind its preamble."""

    def __init__(self, sock: socket.socket, step_bytes: int = 1 << 20) -> None:
        sock.setblocking(False)
        self.socket, self.out, self.inp, self.over = sock, bytearray(), bytearray(), False
        self.step_bytes = step_bytes

    def turn(self) -> list[Record]:
        """Sends what it can. Records that came whole."""
        found = []
        try:
            if self.out:
                del self.out[: self.socket.send(self.out[: self.step_bytes])]
        except (BlockingIOError, ConnectionError):
            pass
        try:
            data = self.socket.recv(1 << 20)
            self.over |= not data
            self.inp += data
        except BlockingIOError:
            pass
        except ConnectionError:
            self.over = True
        while len(self.inp) >= RECORD_BYTES:
            kind, _, zero, length, message, total, offset, _, nought = struct.unpack_from(
                "<BBHIQQQII", self.inp
            )
            assert zero == nought == 0
            whole = RECORD_BYTES + (length if kind in (DATA, CREDIT) else 0)
            if len(self.inp) < whole:
                break
            found.append((kind, message, total, offset, bytes(self.inp[RECORD_BYTES:whole])))
            del self.inp[:whole]
        return found

    def end(self, reset: bool = False) -> None:
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()


class Trial:
    """What both roles have: a plugin that plays the other one, lanes, messages."""

    def __init__(self, net: Net, seed: int) -> None:
        self.net, self.rng = net, random.Random(seed)
        self.lanes: dict[int, Lane] = {}
        self.key = b""
        self.requests: list[Request] = []
        self.done = 0  # of them
        self.messages = [self.message() for _ in range(self.rng.randint(1, 40))]
        self.deadline = time.monotonic() + HANGS_S

    def message(self) -> bytes:
        draw = self.rng.choice
        size = draw([0, 1, 8, 63, 64, 65, 4096, self.rng.randint(0, 1 << draw([10, 14, 20]))])
        return self.rng.randbytes(size)

    def test(self) -> None:
        """NCCL's: the oldest request first."""
        assert time.monotonic() < self.deadline, f"nobody goes on: {self.done} done"
        while self.done < len(self.requests):
            size = self.requests[self.done].test()
            if size is None:
                return
            self.requests_done(size)
            self.done += 1

    def requests_done(self, size: int) -> None:
        assert size == len(self.messages[self.done])

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.end()


class Sender(Trial):
    """Ours sends; the plugin receives."""

    def __init__(self, net: Net, seed: int) -> None:
        super().__init__(net, seed)
        rng, self.count = self.rng, self.rng.randint(1, LANES)
        self.comm_id = seed + 1
        self.eager_bytes = int(os.environ["HARP_EAGER_BYTES"])
        self.granted, self.acked = 0, (0, 0)
        self.cut: list[tuple[int, int, int]] = []  # message, offset, length; to be sent
        self.sent: list[tuple[int, int, int, int]] = []  # and by which lane
        self.at = (0, 0)  # what is cut next
        self.spent = [0] * len(self.messages)  # bytes of records
        raw, self.listen = net.listen()
        self.handle = Handle.decode(raw)
        first = Peer(self.handle)
        features = rng.choice([0, KEPT])
        first.handshake(lanes=self.count, comm_id=self.comm_id, features=features)
        self.key = first.comm_key()
        self.lanes[0] = Lane(first.socket, self.step())
        comm = None
        while comm is None:
            comm = net.accept_step(self.listen)
        self.comm: int = comm
        for index in range(1, self.count):
            self.join(index)

    def step(self) -> int:
        return self.rng.choice([1 << 20, 1 << 20, 1000])

    def join(self, index: int) -> None:
        peer = Peer(self.handle)
        peer.key = self.key
        peer.handshake(lanes=self.count, comm_id=self.comm_id, index=index, join=True)
        old = self.lanes.get(index)
        self.lanes[index] = Lane(peer.socket, self.step())
        if old:
            while not old.over:  # replaced by now, or soon
                old.turn()
                self.test()
            old.end()

    def hear(self) -> None:
        for lane in self.lanes.values():
            for kind, message, total, offset, _ in lane.turn():
                assert kind == CREDIT or (kind == ACK and self.count > 1), kind
                if kind == CREDIT:
                    self.granted = max(self.granted, total)
                self.acked = max(self.acked, (message, offset))

    def begin(self) -> None:
        """The next chunk, as long as section 5.1 allows."""
        message, offset = self.at
        if message == len(self.messages):
            return
        length = min(
            len(self.messages[message]) - offset,
            64 * self.rng.choice([1, 2, 33, 500, 5000, 1 << 20]),
        )
        if message >= self.granted:
            room = self.eager_bytes - sum(self.spent[self.granted :]) - RECORD_BYTES
            if length > room:
                length = room // 64 * 64
            if room < 0 or message >= self.granted + 256:
                return
            if length <= 0 and self.messages[message]:
                return
        self.spent[message] += RECORD_BYTES + length
        self.cut.append((message, offset, length))
        end = offset + length
        self.at = (message + 1, 0) if end == len(self.messages[message]) else (message, end)

    def send(self, chunk: tuple[int, int, int]) -> None:
        message, offset, length = chunk
        index = self.rng.choice(list(self.lanes))
        data = self.messages[message]
        piece = record(
            DATA,
            message=message,
            total=len(data),
            offset=offset,
            tag=self.rng.randint(0, 9),
            payload=data[offset : offset + length],
        )
        self.lanes[index].out += piece
        self.sent.append((*chunk, index))

    def lose(self) -> None:
        """A lane goes, and what it had goes by any."""
        index = self.rng.choice(list(self.lanes))
        if self.rng.random() < 0.5:
            self.lanes.pop(index).end(self.rng.random() < 0.5)
        self.join(index)
        lost = [each[:3] for each in self.sent if each[3] == index]
        self.sent = [each for each in self.sent if each[3] != index]
        for chunk in lost:
            if chunk[0] >= self.acked[0]:
                self.send(chunk)

    def requests_done(self, size: int) -> None:
        super().requests_done(size)
        assert self.requests[self.done].buffer.raw[:size] == self.messages[self.done]

    def run(self) -> None:
        rng, several = self.rng, self.count > 1
        early, losses = rng.random() < 0.5, rng.choice([0, 0.01]) if several else 0
        window = rng.choice([1, 8]) if several else 1
        while self.done < len(self.messages):
            posted = len(self.requests)
            if posted < min(len(self.messages), self.done + 8) and (
                rng.random() < 0.05 or not early
            ):
                extra = rng.choice([0, 1, 5000])
                request = self.net.irecv(self.comm, len(self.messages[posted]) + extra)
                self.requests += [request] if request else []
            if len(self.cut) < window:
                self.begin()
            if self.cut and rng.random() < 0.7:
                self.send(self.cut.pop(rng.randrange(len(self.cut))))
            if several and self.sent and rng.random() < 0.05:
                self.send(rng.choice(self.sent[-20:])[:3])
            if rng.random() < losses:
                self.lose()
            self.hear()
            self.test()
        for lane in self.lanes.values():
            lane.out += record(CLOSE, message=len(self.messages))
            lane.turn()
        self.net.close_recv(self.comm)
        self.net.close_listen(self.listen)


class Receiver(Trial):
    """Ours receives; the plugin sends."""

    def __init__(self, net: Net, seed: int) -> None:
        super().__init__(net, seed)
        rng = self.rng
        self.door = socket.create_server(("127.0.0.1", 0))
        self.secret, listen_id = rng.randbytes(16), rng.randbytes(8)
        self.count = rng.choice([1, 2, 3, LANES, 32])
        self.terms = struct.pack("<QIBB", 8, rng.choice([0, 5000, 65536]), 0, self.count)
        raw = b"HARPhndl" + bytes((1, 1, 1, 1))
        raw += struct.pack("<HHHHI", 0, self.door.getsockname()[1], 0, 0, 0) + listen_id
        raw += bytes(16) + socket.inet_aton("127.0.0.1") + bytes(20) + self.secret + bytes(24)
        raw += self.mac(self.secret, b"HARP handle v1", raw)
        assert len(raw) == HANDLE_BYTES
        self.connect, self.comm = net.connect_start(raw), 0
        self.parts: list[dict[int, bytes]] = [{} for _ in self.messages]
        self.granted = 0
        self.hello = self.let_in()
        self.several = self.count > 1 and self.hello[21] > 1
        while not self.comm:
            self.poll()

    @staticmethod
    def mac(key: bytes, label: bytes, text: bytes) -> bytes:
        return hashlib.blake2s(label + text, key=key, digest_size=16).digest()

    def poll(self) -> None:
        assert time.monotonic() < self.deadline, "nobody connects"
        if not self.comm:
            self.comm = self.connect() or 0
        self.test()

    def knocks(self) -> bool:
        return bool(select.select([self.door], [], [], 0)[0])

    def read(self, sock: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            self.poll()
            if select.select([sock], [], [], 0)[0]:
                data += (piece := sock.recv(count - len(data)))
                assert piece, "the plugin turned us away"
        return data

    def let_in(self) -> bytes:
        """The acceptor's preamble; HELLO."""
        while not self.knocks():
            self.poll()
        sock = self.door.accept()[0]
        hello = text = self.read(sock, 64)
        assert hello[:4] == b"HELO"
        text += self.read(sock, struct.unpack_from("<H", hello, 6)[0])
        key = self.key if hello[22] & 1 else self.secret
        unknown = struct.pack("<HH", 0x7FFF, 9) + bytes(12)  # to be skipped
        text += CHALLENGE + struct.pack("<HH", 1, len(unknown)) + self.terms
        text += bytes(10) + self.rng.randbytes(16) + unknown
        text += self.mac(key, b"HARP1 acceptor  ", text)
        sock.sendall(text[64 + struct.unpack_from("<H", hello, 6)[0] :])
        text += self.read(sock, 16)
        proof = self.read(sock, 16)
        assert proof == self.mac(key, b"HARP1 connector ", text), "the connector's proof"
        ready = READY + struct.pack("<HHQ", 1, 0, 0)
        ready += self.mac(key, b"HARP1 ready     ", text + proof + ready)
        sock.sendall(ready)
        assert self.read(sock, 8) == CONFIRM + struct.pack("<HH", 1, 0)
        if not self.key:
            self.key = self.mac(key, b"HARP1 comm key  ", text + proof + ready)
        old = self.lanes.get(hello[20])
        self.lanes[hello[20]] = Lane(sock)
        if old:
            old.end()
        return hello

    def hear(self) -> None:
        for lane in self.lanes.values():
            for kind, message, total, offset, payload in lane.turn():
                assert kind == DATA, kind
                assert total == len(self.messages[message])
                assert payload == self.messages[message][offset : offset + len(payload)]
                assert self.several or offset not in self.parts[message]
                assert len(self.parts[message].get(offset, payload)) == len(payload)
                self.parts[message][offset] = payload

    @property
    def completed(self) -> int:
        for message, parts in enumerate(self.parts):
            if not parts or sum(map(len, parts.values())) < len(self.messages[message]):
                return message
        return len(self.parts)

    def say(self, kind: int, message: int, **fields: Any) -> None:
        """By any lane: what is older than another is ignored."""
        lane = self.rng.choice(list(self.lanes.values()))
        lane.out += record(kind, message=message, **fields)

    def tell(self) -> None:
        done, rng = self.completed, self.rng
        more = rng.choice([0, 1, 8, 64])
        self.granted = min(done + 64, max(self.granted, done) + more)
        sizes = struct.pack("<Q", 1 << 30) * (self.granted - done)
        self.say(CREDIT, done, total=self.granted, payload=sizes)
        offset = 0
        parts = self.parts[done] if done < len(self.parts) else {}
        while offset in parts:
            offset += len(parts[offset])
        self.say(ACK, done, offset=rng.choice([0, offset]))
        if done:
            self.say(ACK, done - 1)

    def run(self) -> None:
        rng, losses = self.rng, self.rng.choice([0, 0.01])
        lazy = rng.choice([0.5, 0.05])
        while self.done < len(self.messages) or self.completed < len(self.messages):
            if len(self.requests) < len(self.messages):
                request = self.net.isend(self.comm, self.messages[len(self.requests)])
                self.requests += [request] if request else []
            if self.knocks():
                self.let_in()
            if self.several and rng.random() < lazy:
                self.tell()
            if len(self.lanes) > 1 and rng.random() < losses:
                self.lanes.pop(rng.choice(list(self.lanes))).end(rng.random() < 0.5)
            self.hear()
            self.poll()
        self.net.close_send(self.comm)

    def close(self) -> None:
        super().close()
        self.door.close()


def main(role: str, first: str, count: str) -> None:
    net = Net(str(_paths.plugin()))
    for seed in range(int(first), int(first) + int(count)):
        trial = None
        try:
            trial = (Sender if role == "send" else Receiver)(net, seed)
            trial.run()
        except (AssertionError, NcclError, OSError) as error:
            raise SystemExit(f"{role}, seed {seed}: {error!r} {net.warnings()}") from error
        finally:
            if trial:
                trial.close()
    net.finalize()
    if net.warnings():
        raise SystemExit(f"{role}: {net.warnings()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
