# SPDX-License-Identifier: Apache-2.0
"""Endpoints over a wire in memory: arrays, frames, waits, threads, forks, and misuse."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harp
import harp.testing
from harp.testing import MemoryHost

PORT = 7000
LIMIT_S = 20.0
Hosts = tuple[MemoryHost, MemoryHost]
Ends = tuple[harp.Endpoint, harp.Endpoint]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with harp.testing.pair(strict=True) as hosts:
        yield hosts


@pytest.fixture
def ends(hosts: Hosts) -> Iterator[Ends]:
    """A connection: the connecting and the accepting endpoint."""
    a, b = hosts
    with b.listen(PORT) as acceptor:
        here = a.connect(b.address, PORT)
        there = acceptor.accept()
    here.timeout = there.timeout = LIMIT_S
    yield here, there
    here.abort()
    there.abort()


def in_thread(work: Callable[[], Any]) -> Any:
    """Run work() in a new thread. Return its future."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


# --------------------------------------------------------------------------------------------------
# Bytes and arrays.
#
@pytest.mark.parametrize("ipv6", [False, True])
def test_bytes_both_ways_and_an_orderly_end(ipv6: bool) -> None:
    with harp.testing.pair(ipv6=ipv6) as (a, b), b.listen() as acceptor:
        _, port = acceptor.local_address
        with a.connect(b.address, port) as here, acceptor.accept(timeout=LIMIT_S) as there:
            assert here.peer_address == (b.address, port)
            assert there.peer_address == here.local_address
            assert there.local_address == here.peer_address
            assert here.send_all(b"hello") == 5
            assert there.recv(timeout=LIMIT_S) == b"hello"
            here.shutdown()
            assert there.recv(timeout=LIMIT_S) == b""
            there.send_all(b"goodbye")
            assert here.recv(timeout=LIMIT_S) == b"goodbye"
        assert here.closed
        assert there.closed


RECORD = np.dtype([("When", "f8"), ("Of", "i4", (3,)), ("name", "S5")])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(1 << 20, dtype="f4"),
        np.arange(77777, dtype=">i2"),
        np.linspace(0, 1, 3000, dtype="c16").reshape(3, 1000),
        np.zeros(300, RECORD),
        np.array([[True, False]]),
        np.array(7.25),
        np.arange(24, dtype="f8").reshape(2, 3, 4),
        np.array(["häßlich", "x"]),
    ],
    ids=lambda a: f"{a.dtype}-{a.shape}",
)
def test_arrays_of_any_dtype(ends: Ends, array: np.ndarray[Any, Any]) -> None:
    here, there = ends
    future = in_thread(lambda: here.send_all(array))
    received = there.recv_array(array.shape, array.dtype)
    assert future.result(LIMIT_S) == array.nbytes
    assert received.dtype == array.dtype
    assert received.tobytes() == array.tobytes()
    assert there.copied == (0, array.nbytes)
    assert here.copied == (array.nbytes, 0)


def test_only_contiguous_buffers_are_accepted(ends: Ends) -> None:
    here, there = ends
    grid = np.zeros((8, 8), "f4")
    objects = np.array([1, "two", None], dtype=object)
    nested = np.zeros(2, [("fine", "i4"), ("O", "i4"), ("bad", "O")])
    read_only = np.zeros(8, "u1")
    read_only.flags.writeable = False
    for call in (here.send_all, there.recv_exact):
        with pytest.raises((ValueError, BufferError), match="contiguous"):
            call(grid[:, 1])
        with pytest.raises((ValueError, BufferError), match="contiguous"):
            call(np.asfortranarray(np.zeros((3, 4))))
        with pytest.raises(TypeError, match="Python objects"):
            call(objects)
        with pytest.raises(TypeError, match="Python objects"):
            call(nested)
        with pytest.raises(TypeError, match="buffer"):
            call([1, 2, 3])
        with pytest.raises(TypeError, match="buffer"):
            call("text")
    for buffer in (read_only, b"12345678"):
        with pytest.raises((ValueError, BufferError)):
            there.recv_exact(buffer)
    assert here.copied == (0, 0)
    # A field named O is not an object, and a row is contiguous.
    named = np.zeros(2, [("O", "i4")])
    named["O"] = 5, 6
    here.send_all(named)
    here.send_all(grid[3])
    assert there.recv_array(2, named.dtype)["O"].tolist() == [5, 6]
    assert there.recv_array(8, "f4").tolist() == [0.0] * 8


def test_the_end_of_the_stream(ends: Ends) -> None:
    here, there = ends
    here.send_all(b"123")
    here.shutdown()
    with pytest.raises(EOFError, match="3 of 8"):
        there.recv_exact(bytearray(8))
    assert there.recv_exact(bytearray(8)) == 0
    assert there.recv() == b""
    assert there.recv_frames() == []
    with pytest.raises(EOFError):
        there.recv_array(1)
    with pytest.raises(BrokenPipeError):
        here.send_all(b"more")
    assert there.send_all(b"") == there.recv_exact(bytearray()) == 0


def test_a_peer_that_aborts_is_an_error(ends: Ends) -> None:
    here, there = ends
    future = in_thread(lambda: there.recv())
    here.abort()
    with pytest.raises(ConnectionResetError):
        future.result(LIMIT_S)
    with pytest.raises(ConnectionResetError):
        there.send_all(b"x")


# --------------------------------------------------------------------------------------------------
# Frames.
#
def test_frames_carry_bytes_without_a_copy(ends: Ends) -> None:
    here, there = ends
    numbers = np.arange(5000, dtype="u4")
    raw, at = numbers.tobytes(), 0
    while at < len(raw):
        frame = here.frame()
        assert not frame.received
        n = min(len(frame), len(raw) - at)
        with memoryview(frame) as view:
            view[:n] = raw[at : at + n]
        assert here.send_frame(frame, n) == n
        assert frame.released
        at += n
    received = b""
    while len(received) < len(raw):
        for frame in there.recv_frames(4):
            with frame, memoryview(frame) as view:
                assert view.readonly
                received += view
            assert frame.released
    assert received == raw
    assert here.copied == there.copied == (0, 0)


def test_use_after_release(ends: Ends) -> None:
    here, there = ends
    here.send_all(np.arange(100, dtype="u1"))
    (frame,) = there.recv_frames()
    array = np.frombuffer(frame, "u1")
    for end in (frame.release, there.close, there.abort):
        with pytest.raises(BufferError):
            end()
    assert array.tolist() == list(range(100))
    assert not there.closed
    del array
    frame.release()
    frame.release()
    for use in (lambda: memoryview(frame), lambda: len(frame), lambda: np.frombuffer(frame, "u1")):
        with pytest.raises(ValueError, match="released"):
            use()
    with pytest.raises(ValueError, match="released"):
        there.send_frame(frame)


def test_a_frame_cannot_be_used_after_it_is_sent(hosts: Hosts, ends: Ends) -> None:
    here, there = ends
    frame = here.frame()
    view = memoryview(frame)
    with pytest.raises(BufferError):
        here.send_frame(frame, 1)
    view.release()
    for length in (0, -1, len(frame) + 1, 1 << 40):
        with pytest.raises(ValueError, match="do not fit"):
            here.send_frame(frame, length)
    with pytest.raises(ValueError, match="another connection"):
        there.send_frame(frame, 1)
    with pytest.raises(TypeError):
        here.send_frame(None, 1)  # type: ignore[arg-type]
    here.send_frame(frame, 1)
    with pytest.raises(ValueError, match="released or sent"):
        here.send_frame(frame, 1)
    (received,) = there.recv_frames()
    with pytest.raises(ValueError, match="received"):
        there.send_frame(received)
    received.release()
    with pytest.raises(TypeError):
        harp.Frame()


def test_frames_are_released_with_their_connection(hosts: Hosts) -> None:
    a, b = hosts
    with a.driver.hold():
        before = b.stack.stats()["frames_tcp_rx"], a.stack.stats()["frames_tcp_tx"]
    with b.listen(PORT) as acceptor:
        here, there = a.connect(b.address, PORT), acceptor.accept()
    frames = [here.frame() for _ in range(3)]
    here.send_all(bytes(5000))
    here.flush()
    frames += there.recv_frames()
    here.abort()
    there.abort()
    assert all(frame.released for frame in frames)
    with a.driver.hold():
        assert (b.stack.stats()["frames_tcp_rx"], a.stack.stats()["frames_tcp_tx"]) == before


def test_unreleased_frames_stop_the_sender(ends: Ends) -> None:
    here, there = ends
    future = in_thread(lambda: here.send_all(bytes(4 << 20)))
    frames: list[harp.Frame] = []

    def receive() -> None:
        while True:
            frames.extend(there.recv_frames(1024, timeout=1))

    with pytest.raises(harp.WaitTimeoutError):
        receive()
    assert len(frames) <= 256
    assert not future.done()
    total = sum(map(len, frames))
    for frame in frames:
        frame.release()
    while total < 4 << 20:
        for frame in there.recv_frames():
            with frame:
                total += len(frame)
    assert future.result(LIMIT_S) == 4 << 20


def test_a_garbage_collected_frame_is_released_with_a_warning(ends: Ends) -> None:
    here, there = ends
    here.send_all(b"x")
    with pytest.warns(ResourceWarning, match="Frame"):
        assert len(there.recv_frames()) == 1
    assert there.info()["rx_frames_held"] == 0


# --------------------------------------------------------------------------------------------------
# Waits.
#
def test_timeouts_do_not_harm_the_connection(hosts: Hosts, ends: Ends) -> None:
    here, there = ends
    _, b = hosts
    for call in (
        lambda: there.recv(timeout=0.05),
        lambda: there.recv_frames(timeout=0.05),
        lambda: there.recv_exact(bytearray(8), timeout=0.05),
        lambda: b.listen(PORT + 1).accept(timeout=0.05),
    ):
        start = time.monotonic()
        with pytest.raises(harp.WaitTimeoutError):
            call()
        assert time.monotonic() - start >= 0.05
    here.send_all(b"12345")
    buffer = bytearray(8)
    with pytest.raises(harp.WaitTimeoutError) as caught:
        there.recv_exact(buffer, timeout=0.2)
    assert caught.value.bytes_done == 5
    assert buffer == b"12345\0\0\0"
    with pytest.raises(harp.WaitTimeoutError) as caught:
        here.send_all(bytes(64 << 20), timeout=0.3)
    assert 0 < caught.value.bytes_done < 64 << 20
    with pytest.raises(harp.WaitTimeoutError):
        here.flush(timeout=0.05)
    unread = caught.value.bytes_done
    while unread:
        unread -= len(there.recv(1 << 20))
    here.flush()
    for timeout in (-1, math.nan, "soon"):
        with pytest.raises(ValueError, match=r"timeout|float"):
            there.recv(timeout=timeout)  # type: ignore[arg-type]


def test_connecting_to_a_closed_port_fails(hosts: Hosts) -> None:
    a, b = hosts
    with pytest.raises(ConnectionRefusedError):
        a.connect(b.address, 9)
    with pytest.raises(harp.WaitTimeoutError):
        a.connect("10.0.0.99", 9, timeout=0.2)
    with pytest.raises(ValueError, match="nowhere"):
        a.connect("nowhere", 9)
    with pytest.raises(OSError, match="unreachable"):
        a.connect("203.0.113.1", 9)
    with pytest.raises(TypeError, match="no such TCP option"):
        a.connect(b.address, 9, speed="high")
    with a.driver.hold():
        assert a.stack.stats()["tcp_conns"] == 0


def test_the_background_thread_polls_while_no_call_waits(ends: Ends) -> None:
    """The peer's ACK needs a poll that no call of either side makes."""
    here, _ = ends
    here.send_all(bytes(1000))
    deadline = time.monotonic() + LIMIT_S
    while here.info()["bytes_acked"] < 1000:
        assert time.monotonic() < deadline


def test_a_wait_is_interrupted_by_a_signal(ends: Ends) -> None:
    _, there = ends

    class AlarmError(Exception):
        pass

    def raise_error(_number: int, _frame: object) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, raise_error)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(AlarmError):
            there.recv(timeout=LIMIT_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(harp.WaitTimeoutError):
        there.recv(timeout=0.01)


# --------------------------------------------------------------------------------------------------
# Closed objects.
#
def test_calls_of_closed_endpoints_are_errors(ends: Ends) -> None:
    here, _ = ends
    here.close(linger=0)
    here.close()
    here.abort()
    assert here.closed
    calls: list[Callable[[], object]] = [
        lambda: here.send_all(b"x"),
        lambda: here.recv(),
        lambda: here.recv_exact(bytearray(1)),
        lambda: here.recv_frames(),
        lambda: here.frame(),
        lambda: here.flush(),
        lambda: here.shutdown(),
        lambda: here.info(),
        lambda: here.copied,
        lambda: here.local_address,
        lambda: here.peer_address,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    for kind in (harp.Endpoint, harp.Acceptor):
        with pytest.raises(TypeError):
            kind()


def test_a_closed_driver_releases_its_stacks(hosts: Hosts) -> None:
    a, b = hosts
    acceptor = b.listen(PORT)
    here, there = a.connect(b.address, PORT), acceptor.accept()
    with pytest.raises(RuntimeError, match=r"hold"):
        a.stack.stats()
    with pytest.raises(ValueError, match="Driver"):
        a.stack.close()
    a.driver.close()
    a.driver.close()
    for call in (here.recv, there.info, acceptor.accept, lambda: a.connect(b.address, PORT)):
        with pytest.raises(ValueError, match="closed"):
            call()
    for end in (here, there, acceptor):
        assert end.closed
        end.close()
    assert a.stack.stats()["tcp_conns"] == 1
    with harp.Driver(a.stack, b.stack) as second:
        assert not second.closed


@pytest.mark.parametrize("what", ["endpoint", "acceptor", "driver"])
def test_closing_ends_the_waits_of_other_threads(hosts: Hosts, what: str) -> None:
    a, b = hosts
    acceptor = b.listen(PORT, timeout=None)
    here, there = a.connect(b.address, PORT), acceptor.accept()
    waits = {
        "endpoint": (there.recv, lambda: there.close(linger=0)),
        "acceptor": (acceptor.accept, acceptor.close),
        "driver": (there.recv, there.driver.close),
    }
    call, close = waits[what]
    futures = [in_thread(call) for _ in range(3)]
    with pytest.raises(harp.WaitTimeoutError):  # gives them time to start to wait
        here.recv(timeout=0.1)
    close()
    for future in futures:
        with pytest.raises(ValueError, match="closed"):
            future.result(LIMIT_S)


def test_drivers_refuse_invalid_arguments(hosts: Hosts) -> None:
    a, _ = hosts
    with harp.Wire() as wire, harp.Stack(wire.port(0)) as lone:
        with pytest.raises(ValueError, match="1 to 16"):
            harp.Driver()
        with pytest.raises(ValueError, match="twice"):
            harp.Driver(lone, lone)
        with pytest.raises(TypeError):
            harp.Driver(lone, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            harp.Driver("stack")  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="Driver"):
            harp.Driver(a.stack)
        with pytest.raises(ValueError, match="spin_us"):
            harp.Driver(lone, spin_us=-1)
        with pytest.raises(ValueError, match="not one of"):
            harp.Source(a.driver, lone)
        with harp.Driver(lone) as driver, pytest.raises(TypeError, match="already"):
            driver.__init__(lone)  # type: ignore[misc]


def test_waiting_while_holding_the_driver_is_an_error(ends: Ends) -> None:
    here, _ = ends
    with here.driver.hold() as driver:
        assert driver is here.driver
        with driver.hold():
            assert here.info()["state_name"] == "ESTABLISHED"
        with pytest.raises(RuntimeError, match="holds"):
            here.recv()
        with pytest.raises(RuntimeError, match="holds"):
            driver.close()
    here.send_all(b"x")


# --------------------------------------------------------------------------------------------------
# Threads, forks, garbage collection.
#
def test_many_threads_on_many_connections(hosts: Hosts) -> None:
    """Eight connections with a thread for each end: every byte arrives on its connection."""
    a, b = hosts
    count, size = 8, 1 << 20
    acceptor = b.listen(PORT, timeout=LIMIT_S, backlog=64)

    def serve() -> int:
        with acceptor.accept() as end:
            end.timeout = 60
            seed = int(end.recv_array(1, "u8")[0])
            data = end.recv_array(size)
            expected = np.random.default_rng(seed).integers(0, 256, size, "u1")
            end.send_all(np.packbits(data == expected))
            return seed

    def connect(seed: int) -> bool:
        with a.connect(b.address, PORT) as end:
            end.timeout = 60
            end.send_all(np.array([seed], "u8"))
            end.send_all(np.random.default_rng(seed).integers(0, 256, size, "u1"))
            return bool((end.recv_array(size // 8) == 255).all())

    with ThreadPoolExecutor(2 * count) as pool:
        servers = [pool.submit(serve) for _ in range(count)]
        clients = [pool.submit(connect, seed) for seed in range(count)]
        assert all(future.result(120) for future in clients)
        assert sorted(future.result(120) for future in servers) == list(range(count))
    acceptor.close()


def test_a_forked_child_gets_an_error(ends: Ends) -> None:
    here, there = ends
    child = os.fork()
    if child == 0:
        status = 1
        try:
            errors = 0
            for call in (
                here.recv,
                here.info,
                lambda: here.send_all(b"x"),
                here.close,
                here.driver.hold,
            ):
                try:
                    call()
                except RuntimeError as error:
                    errors += "forked child" in str(error)
            status = 0 if errors == 5 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    here.send_all(b"from the parent")
    assert there.recv() == b"from the parent"


def test_garbage_collection_closes_open_objects_with_a_warning() -> None:
    with harp.Wire() as wire:
        stacks = [harp.Stack(wire.port(index)) for index in range(2)]
        stacks[1].address_add("10.0.0.2", 24)
        driver = harp.Driver(*stacks)
        acceptor = harp.Source(driver, stacks[1]).listen(PORT)
        references = [stacks, driver, acceptor]
        del stacks, driver, acceptor
        with pytest.warns(ResourceWarning, match="Driver|Listener|Stack"):
            references.clear()
        assert wire.in_flight == 0


def test_threads_and_descriptors_do_not_leak() -> None:
    def counts() -> tuple[int, ...]:
        return tuple(len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task"))

    before = counts()
    for _ in range(20):
        with harp.testing.pair() as (a, b), b.listen(PORT):
            a.connect(b.address, PORT).abort()
    assert counts() == before
