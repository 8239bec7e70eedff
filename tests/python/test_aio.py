# SPDX-License-Identifier: Apache-2.0
"""harp.aio: endpoints under asyncio, canceled calls, and errors during a call."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import harp
import harp.testing
from harp import aio

LIMIT_S = 20.0
UNBUFFERED_BYTES = 1 << 25  # more than both stacks buffer


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop. Its threads must end with it."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 3 * LIMIT_S))
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("harp-")]
        for thread in threads:
            thread.join(LIMIT_S)
        assert not [thread.name for thread in threads if thread.is_alive()]

    return run


@asynccontextmanager
async def ends() -> AsyncIterator[tuple[aio.AsyncEndpoint, aio.AsyncEndpoint]]:
    """A connection over a wire in memory."""
    with harp.testing.pair() as (a, b):
        async with aio.listen(b, timeout=None) as acceptor:
            _, port = acceptor.local_address
            accepting = asyncio.create_task(acceptor.accept())
            here = await aio.connect(a, b.address, port)
            there = await accepting
        assert here.peer_address == there.local_address == (b.address, port)
        assert here.local_address == there.peer_address
        try:
            yield here, there
        finally:
            here.abort()
            there.abort()


@in_loop
async def test_both_directions_at_once_and_an_orderly_end() -> None:
    data: Any = np.random.default_rng(1).integers(0, 256, 3_000_000, "u1")
    async with ends() as (here, there):

        async def one_way(out: aio.AsyncEndpoint, into: aio.AsyncEndpoint) -> None:
            _, received = await asyncio.gather(out.send_all(data), into.recv_array(len(data)))
            assert (received == data).all()

        await asyncio.gather(one_way(here, there), one_way(there, here))
        await here.send_all(b"last")
        await here.flush(timeout=LIMIT_S)
        closing = asyncio.create_task(here.close())
        buffer = bytearray(4)
        assert await there.recv_exact(buffer) == 4
        assert buffer == b"last"
        assert await there.recv() == b""
        await closing
        assert here.endpoint.closed


@in_loop
async def test_calls_of_a_direction_keep_their_order() -> None:
    async with ends() as (here, there):
        parts = [asyncio.create_task(there.recv_array(1000)) for _ in range(20)]
        for number in range(20):
            part: Any = np.full(1000, number, "u1")
            await here.send_all(part)
        for number, part in enumerate(await asyncio.gather(*parts)):
            assert (part == number).all()


@in_loop
async def test_the_loop_runs_while_a_call_waits() -> None:
    async with ends() as (here, there):
        waiting = asyncio.create_task(there.recv())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        await here.send_all(b"x")
        assert await waiting == b"x"


@in_loop
async def test_a_timeout_leaves_the_connection_open_and_a_cancel_aborts_it() -> None:
    async with ends() as (here, there):
        with pytest.raises(harp.WaitTimeoutError):
            await there.recv(timeout=0.01)
        await here.send_all(b"x")
        assert await there.recv() == b"x"
        waiting = asyncio.create_task(there.recv_array(UNBUFFERED_BYTES + 1))
        # When all data is acknowledged, the thread is in the call: the stacks cannot buffer it.
        await here.send_all(bytes(UNBUFFERED_BYTES))
        await here.flush(timeout=LIMIT_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(ConnectionResetError):
            await here.recv(timeout=LIMIT_S)
        with pytest.raises(ValueError, match="closed"):
            await there.send_all(b"x")


@in_loop
async def test_a_call_canceled_before_its_start_changes_nothing() -> None:
    async with ends() as (here, there):
        first = asyncio.create_task(there.recv())
        second = asyncio.create_task(there.recv())
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await here.send_all(b"x")
        assert await first == b"x"
        await here.send_all(b"y")
        assert await there.recv(timeout=LIMIT_S) == b"y"


@in_loop
async def test_a_close_canceled_before_its_start_aborts() -> None:
    async with ends() as (here, there):
        started = threading.Event()
        release = threading.Event()

        def occupy() -> None:
            started.set()
            release.wait(LIMIT_S)

        here._sending.submit(occupy)
        await asyncio.to_thread(started.wait, LIMIT_S)
        closing = asyncio.create_task(here.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        release.set()
        assert here.endpoint.closed
        with pytest.raises(ConnectionResetError):
            await there.recv(timeout=LIMIT_S)


@in_loop
async def test_an_error_in_a_with_block_aborts_and_a_canceled_accept_closes_the_port() -> None:
    async with ends() as (here, there):
        with pytest.raises(KeyError):
            async with here:
                raise KeyError
        with pytest.raises(ConnectionResetError):
            await there.recv(timeout=LIMIT_S)
    with harp.testing.pair() as (a, b):
        acceptor = aio.listen(b, timeout=None)
        accepting = asyncio.create_task(acceptor.accept())
        await asyncio.sleep(0)
        accepting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await accepting
        with pytest.raises(OSError, match=r"refused|reset"):
            await aio.connect(a, b.address, 7000)


@in_loop
async def test_a_canceled_connect_leaves_no_connection() -> None:
    with harp.testing.pair() as (a, b):
        with a.driver.hold():
            a.wire.impair(a.port, loss_ppm=1_000_000)
        connecting = asyncio.create_task(aio.connect(a, b.address, 7000, timeout=0.3))
        await asyncio.sleep(0)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        count = 1
        while count:  # in_loop limits the time
            await asyncio.sleep(0.001)
            with a.driver.hold():
                count = len(a.stack.flows())
