# SPDX-License-Identifier: Apache-2.0
"""Connections for asyncio: connect(), listen() and the calls of Endpoint as coroutines.

Each connection has a thread for sending and one for receiving, and each acceptor has a thread. They
start with the first call. Calls of one direction run in order; a send and a receive may overlap.

Canceling a running call aborts the connection, because part of its bytes may have been transferred.
asyncio.timeout() cancels, too; the `timeout` of a call leaves the connection open.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from harp._drive import Acceptor, Endpoint, Source

__all__ = ["AsyncAcceptor", "AsyncEndpoint", "connect", "listen"]
P = ParamSpec("P")
T = TypeVar("T")


async def _call(
    pool: ThreadPoolExecutor, give_up: Callable[[Future[T]], None], work: Callable[[], T]
) -> T:
    """Run work() in the pool; if canceled while it runs, call give_up() with its future."""
    future = pool.submit(work)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if not future.cancel():
            give_up(future)
        raise


Call: TypeAlias = Callable[Concatenate["AsyncEndpoint", P], Coroutine[Any, Any, T]]


def _coroutine(pool: str, method: Callable[Concatenate[Endpoint, P], T]) -> Call[P, T]:
    """Return a coroutine function that runs the method in this pool of the connection."""

    @functools.wraps(method)
    async def call(self: "AsyncEndpoint", /, *args: P.args, **options: P.kwargs) -> T:
        work = functools.partial(method, self.endpoint, *args, **options)
        return await _call(getattr(self, pool), lambda _: self.endpoint.abort(), work)

    return call


class AsyncEndpoint:
    """A TCP connection whose calls are coroutines; returned by connect() and AsyncAcceptor.

    The calls are those of Endpoint, with its parameters, results and errors. A buffer must not
    change while it is sent. `endpoint` is the connection itself, for calls that do not block:
    info(), options(), shutdown().

    Parameters
    ----------
    endpoint
        The connection. This object takes ownership.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._sending = ThreadPoolExecutor(1, thread_name_prefix="harp-send")
        self._receiving = ThreadPoolExecutor(1, thread_name_prefix="harp-receive")

    send_all = _coroutine("_sending", Endpoint.send_all)
    flush = _coroutine("_sending", Endpoint.flush)
    recv = _coroutine("_receiving", Endpoint.recv)
    recv_exact = _coroutine("_receiving", Endpoint.recv_exact)
    recv_array = _coroutine("_receiving", Endpoint.recv_array)
    _close = _coroutine("_sending", Endpoint.close)

    @property
    def local_address(self) -> tuple[str, int]:
        """(address, port) of this end."""
        return self.endpoint.local_address

    @property
    def peer_address(self) -> tuple[str, int]:
        """(address, port) of the peer."""
        return self.endpoint.peer_address

    async def close(self, linger: float = 5.0) -> None:
        """Send the queued data and the end of the stream, and close; see Endpoint.close().

        Parameters
        ----------
        linger
            Maximum seconds to wait for the peer's acknowledgment.
        """
        try:
            await self._close(linger)
        except asyncio.CancelledError:
            self.endpoint.abort()  # Endpoint.close() may not have started
            raise
        finally:
            self._shut_down()

    def abort(self) -> None:
        """Send RST and forget the connection. Calls in progress raise ValueError."""
        self.endpoint.abort()
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
        if self.endpoint.closed:
            self._shut_down()
        elif kind is None:
            await self.close()
        else:
            self.abort()


class AsyncAcceptor:
    """A listening port; ``async for`` yields its connections. Returned by listen().

    Parameters
    ----------
    acceptor
        The port. This object takes ownership.
    """

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="harp-accept")

    async def accept(self, *, timeout: float | None = None) -> AsyncEndpoint:
        """Wait for the next connection. Canceling the call closes the port.

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
        _abort_when_done(accepting)

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
        An Instance with a driver, or a host of harp.testing.
    address, port
        The peer's.
    **options
        Options of Instance.connect(), such as `timeout` in seconds.

    Returns
    -------
    AsyncEndpoint
        The connection. If the call is canceled, the connection is aborted once it is open.

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
        return AsyncEndpoint(await _call(pool, _abort_when_done, call))
    finally:
        pool.shutdown(wait=False)


def _abort_when_done(connecting: Future[Endpoint]) -> None:
    def abort(done: Future[Endpoint]) -> None:
        with contextlib.suppress(Exception):  # connect() or accept() failed
            done.result().abort()

    connecting.add_done_callback(abort)


def listen(source: Source, port: int = 0, **options: Any) -> AsyncAcceptor:
    """Listen on a port.

    Parameters
    ----------
    source
        An Instance with a driver, or a host of harp.testing.
    port
        The port; 0: any.
    **options
        Options of Instance.listen().

    Returns
    -------
    AsyncAcceptor
        The port.
    """
    return AsyncAcceptor(source.listen(port, **options))
