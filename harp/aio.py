# SPDX-License-Identifier: Apache-2.0
"""Connections for asyncio: connect(), listen() and the calls of Endpoint as coroutines.

A call runs in a thread: each connection has one for sending and one for receiving, which exist from
its first call on, and each acceptor has one. Calls of the same direction run in their order, and a
send and a receive run at the same time.

A call that is canceled while it runs aborts the connection, because a part of its bytes may have
been transferred. So asyncio.timeout() around a call is for giving up; `timeout` of the call itself
leaves the connection open.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import Buffer

from harp._drive import Acceptor, Endpoint

__all__ = ["AsyncAcceptor", "AsyncEndpoint", "connect", "listen"]
T = TypeVar("T")


class Source(Protocol):
    """What makes connections: harp.Instance, or a host of harp.testing."""

    def connect(self, address: str, port: int, **options: Any) -> Endpoint: ...
    def listen(self, port: int = 0, **options: Any) -> Acceptor: ...


async def _call(
    pool: ThreadPoolExecutor, give_up: Callable[[Future[T]], None], work: Callable[[], T]
) -> T:
    """Run work() in the pool. Canceled while it runs: give_up(), of its future, ends it."""
    future = pool.submit(work)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if not future.cancel():
            give_up(future)
        raise


class AsyncEndpoint:
    """A TCP connection whose calls are coroutines; made by connect() and AsyncAcceptor.

    Parameters
    ----------
    endpoint
        The connection. It belongs to this object from here on.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._sending = ThreadPoolExecutor(1, thread_name_prefix="harp-send")
        self._receiving = ThreadPoolExecutor(1, thread_name_prefix="harp-receive")

    def _give_up(self, _: Future[Any]) -> None:
        self._endpoint.abort()

    async def _send(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        call = functools.partial(work, *args, **options)
        return await _call(self._sending, self._give_up, call)

    async def _receive(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        call = functools.partial(work, *args, **options)
        return await _call(self._receiving, self._give_up, call)

    async def send_all(self, data: Buffer, *, timeout: float | None = None) -> int:
        """Send all of a buffer; see Endpoint.send_all().

        Parameters
        ----------
        data
            The buffer, which must not change meanwhile.
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        int
            The bytes of the buffer.

        Raises
        ------
        WaitTimeoutError
            It was not done in time; the connection stays open.
        """
        return await self._send(self._endpoint.send_all, data, timeout=timeout)

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until the peer has acknowledged everything sent; see Endpoint.flush().

        Parameters
        ----------
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Raises
        ------
        WaitTimeoutError
            It was not done in time; the connection stays open.
        """
        await self._send(self._endpoint.flush, timeout=timeout)

    async def recv(self, max_bytes: int = 65536, *, timeout: float | None = None) -> bytes:
        """Receive what has arrived; see Endpoint.recv().

        Parameters
        ----------
        max_bytes
            Bytes to return at most.
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        bytes
            At least one byte; b"" at the end of the stream.

        Raises
        ------
        WaitTimeoutError
            It was not done in time; the connection stays open.
        """
        return await self._receive(self._endpoint.recv, max_bytes, timeout=timeout)

    async def recv_exact(self, buffer: Buffer, *, timeout: float | None = None) -> int:
        """Fill a writable buffer completely; see Endpoint.recv_exact().

        Parameters
        ----------
        buffer
            The memory to fill.
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        int
            The bytes of the buffer; 0 if the stream has ended.

        Raises
        ------
        EOFError
            The stream ended in the middle.
        WaitTimeoutError
            It was not done in time; the connection stays open.
        """
        return await self._receive(self._endpoint.recv_exact, buffer, timeout=timeout)

    async def recv_array(
        self,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = "u1",
        *,
        timeout: float | None = None,
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """Receive a numpy array; see Endpoint.recv_array().

        Parameters
        ----------
        shape, dtype
            Of the array.
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        numpy.ndarray
            A new array.

        Raises
        ------
        EOFError
            The stream has ended.
        WaitTimeoutError
            It was not done in time; the connection stays open.
        """
        return await self._receive(self._endpoint.recv_array, shape, dtype, timeout=timeout)

    @property
    def endpoint(self) -> Endpoint:
        """The connection, for calls that do not block: info(), options(), shutdown()."""
        return self._endpoint

    @property
    def local_address(self) -> tuple[str, int]:
        """(address, port) of this end."""
        return self._endpoint.local_address

    @property
    def peer_address(self) -> tuple[str, int]:
        """(address, port) of the peer."""
        return self._endpoint.peer_address

    async def close(self, linger: float = 5.0) -> None:
        """Send the queued data and the end of the stream, and close; see Endpoint.close().

        Parameters
        ----------
        linger
            Seconds to wait at most for the peer's acknowledgment.
        """
        try:
            await self._send(self._endpoint.close, linger)
        except asyncio.CancelledError:
            self._endpoint.abort()  # it may not have begun to close
            raise
        finally:
            self._shut_down()

    def abort(self) -> None:
        """Send RST and forget the connection. Calls in progress raise ValueError."""
        self._endpoint.abort()
        self._shut_down()

    def _shut_down(self) -> None:
        for pool in (self._sending, self._receiving):
            pool.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._endpoint.closed:
            self._shut_down()
        elif kind is None:
            await self.close()
        else:
            self.abort()


class AsyncAcceptor:
    """A listening port; ``async for`` gives its connections. Made by listen().

    Parameters
    ----------
    acceptor
        The port. It belongs to this object from here on.
    """

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="harp-accept")

    async def accept(self, *, timeout: float | None = None) -> AsyncEndpoint:
        """Wait for the next connection. Canceled while it waits: the port is closed.

        Parameters
        ----------
        timeout
            Seconds; None: the acceptor's own `timeout`.

        Returns
        -------
        AsyncEndpoint
            The connection.

        Raises
        ------
        WaitTimeoutError
            No peer connected in time.
        """
        call = functools.partial(self._acceptor.accept, timeout=timeout)
        return AsyncEndpoint(await _call(self._pool, self._give_up, call))

    def _give_up(self, accepting: Future[Endpoint]) -> None:
        self.close()
        _abort_unwanted(accepting)

    @property
    def local_address(self) -> tuple[str, int]:
        """(address, port) of the port."""
        return self._acceptor.local_address

    def close(self) -> None:
        """Stop listening. A call of accept() in progress raises ValueError."""
        self._acceptor.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncEndpoint:
        return await self.accept()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()


async def connect(source: Source, address: str, port: int, **options: Any) -> AsyncEndpoint:
    """Connect, and wait until the peer has answered.

    Parameters
    ----------
    source
        An Instance with a driver.
    address, port
        The peer's.
    **options
        Those of Instance.connect(), `timeout` in seconds among them.

    Returns
    -------
    AsyncEndpoint
        The connection. If the call is canceled, the connection is aborted when it is made.

    Raises
    ------
    WaitTimeoutError
        The peer did not answer in time.
    OSError
        The stack's error, such as ConnectionRefusedError.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="harp-connect")
    call = functools.partial(source.connect, address, port, **options)
    try:
        return AsyncEndpoint(await _call(pool, _abort_unwanted, call))
    finally:
        pool.shutdown(wait=False)


def _abort_unwanted(connecting: Future[Endpoint]) -> None:
    def abort(done: Future[Endpoint]) -> None:
        with contextlib.suppress(Exception):  # it failed
            done.result().abort()

    connecting.add_done_callback(abort)


def listen(source: Source, port: int = 0, **options: Any) -> AsyncAcceptor:
    """Listen on a port.

    Parameters
    ----------
    source
        An Instance with a driver.
    port
        The port; 0: any.
    **options
        Those of Instance.listen().

    Returns
    -------
    AsyncAcceptor
        The port.
    """
    return AsyncAcceptor(source.listen(port, **options))
