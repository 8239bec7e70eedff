# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Blocking connections of a user-space stack: Driver, Source, Acceptor, Endpoint.

Any thread may use any of them. A blocking call releases the GIL and polls the stacks itself. While
no thread waits, a background thread polls, so that acknowledgments, retransmissions and keepalives
continue while Python computes. Ctrl-C interrupts a wait. A forked child cannot use them.

Each call documents its copies, and Endpoint.copied counts them.
"""

import contextlib
import math
import weakref

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EBADF, EINTR, ETIMEDOUT
from libc.stdint cimport uint8_t
from libc.string cimport memset

cimport cython

from harp._c cimport *
from harp._check cimport check
from harp._core cimport Connection, Frame, Stack
from harp._nic cimport _Context, _left_open

from harp import _core


cdef extern from "errno.h" nogil:
    int ECANCELED
    int EDEADLK


class WaitTimeoutError(TimeoutError):
    """A timeout. bytes_done: bytes sent or received by then; the connection is unchanged."""

    def __init__(self, text, bytes_done=0):
        super().__init__(text)
        self.bytes_done = bytes_done


# Results of the functions below for drive_wait(), besides 0 (not yet) and -errno.
cdef enum:
    DONE = 1
    END = 2  # of the stream
    DEAD = 3  # of the connection; ctx.error has the errno


# ---- The driver ----
cdef int _interrupted(void *ctx) noexcept with gil:
    driver = <Driver>ctx
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        driver._stop = error
        return 1
    return 0


cdef uint64_t _deadline(timeout) except? 0:
    """Return the time on the drive's clock after `timeout` seconds; None and infinity: never."""
    if timeout is None:
        return DRIVE_FOREVER
    seconds = float(timeout)
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"timeout {timeout!r}: seconds, not negative; None waits forever")
    if seconds > 1e9:
        return DRIVE_FOREVER
    return drive_now_ns() + <uint64_t>(seconds * 1e9)


cdef class _Hold:
    cdef Driver driver

    def __enter__(self):
        cdef drive *d = self.driver._open()
        with nogil:
            drive_enter(d)
        if drive_stopped(d):
            with nogil:
                drive_leave(d)
            raise ValueError("this driver is closed")
        return self.driver

    def __exit__(self, *error):
        cdef drive *d = self.driver.drive
        with nogil:
            drive_leave(d)


@cython.no_gc_clear
cdef class Driver(_Context):
    """Polls one or several stacks, for threads that block.

    Their clock becomes CLOCK_MONOTONIC. Stacks joined by a Wire need one Driver for all of them. An
    Instance has its own Driver.

    Parameters
    ----------
    *stacks
        The stacks, 1 or more; a stack has one driver.
    spin_us
        How long a waiting thread polls after the last packet before it sleeps, in microseconds, 0
        to 1000000. A wake-up takes about 30 us.

    Raises
    ------
    ValueError
        A number is out of range, or a stack is closed, named twice or has a driver.
    """

    def __init__(self, *stacks, double spin_us=50.0):
        cdef drive_member members[DRIVE_MEMBERS_MAX]
        cdef Stack stack
        if self.drive != NULL:
            raise TypeError("this driver is initialized already")
        if not 1 <= len(stacks) <= DRIVE_MEMBERS_MAX:
            raise ValueError(f"a driver takes 1 to {DRIVE_MEMBERS_MAX} stacks, not {len(stacks)}")
        if not 0 <= spin_us <= 1e6:
            raise ValueError(f"spin_us {spin_us} is not in 0 to 1000000")
        if len(set(map(id, stacks))) != len(stacks):
            raise ValueError("a stack is named twice")
        memset(members, 0, sizeof(members))
        for i, stack in enumerate(stacks):
            if stack is None:
                raise TypeError("a stack is None")
            if stack._owner is not None:
                raise ValueError("an Instance's stack has the Instance's driver")
            members[i].stack = stack._open()
            if stack.drive != NULL:
                raise ValueError("this stack has a driver already")
            members[i].nic = stack.nic._open()
        self._members = stacks
        self._create(members, spin_us)

    cdef _create(self, drive_member *members, double spin_us):
        cdef drive_options options
        cdef Stack stack
        cdef unsigned count = len(self._members)
        memset(&options, 0, sizeof(options))
        options.spin_ns = <uint64_t>(spin_us * 1e3)
        options.interrupted = _interrupted
        options.ctx = <void *>self
        check(drive_create(&self.drive, members, count, &options), "driver")
        for stack in self._members:
            stack.drive = self.drive
            stack._driver = weakref.ref(self)
        with nogil:  # set the stacks' clocks before their first use
            drive_enter(self.drive)
            drive_advance(self.drive)
            drive_leave(self.drive)

    cdef drive *_open(self) except NULL:
        if self.drive == NULL or self._closing:
            raise ValueError("this driver is closed")
        if not drive_ours(self.drive):
            raise RuntimeError(
                "this driver belongs to the process that made it; a forked child cannot use it"
            )
        return self.drive

    cdef int _wait(self, drive_try_fn attempt, transfer *ctx, timeout, str what,
                   str timeout_text) except -1:
        """Call drive_wait() until attempt returns DONE or END, and return that; raise errors.
        timeout_text: what did not happen in time; None: the number of bytes.
        """
        cdef uint64_t deadline_ns = _deadline(timeout)
        cdef drive *d = self._open()
        cdef int rc
        with nogil:
            rc = drive_wait(d, attempt, ctx, deadline_ns)
        if rc == -ETIMEDOUT:
            text = timeout_text or f"{ctx.done} of {ctx.size} bytes"
            raise WaitTimeoutError(f"{what}: {text} within {timeout} s", ctx.done)
        if rc == -EINTR:
            error, self._stop = self._stop, None
            raise error
        if rc == -ECANCELED:
            raise ValueError(f"{what}: the driver was closed meanwhile")
        if rc == -EBADF:
            raise ValueError(f"{what}: it was closed meanwhile")
        if rc == -EDEADLK:
            raise RuntimeError(f"{what}: the stacks stand still while this thread holds the driver")
        return check(-ctx.error if rc == DEAD else rc, what)

    def hold(self):
        """Stop the stacks inside `with driver.hold():`; only this thread may use them and their
        objects (Connection, UdpSocket, ...).

        Returns
        -------
        AbstractContextManager
            Yields the driver. Entering it raises ValueError if the driver is closed.
        """
        cdef _Hold hold = _Hold.__new__(_Hold)
        self._open()
        hold.driver = self
        return hold

    @property
    def closed(self):
        """Whether close() was called."""
        return self.drive == NULL or self._closing

    def close(self):
        """End every wait with ValueError and release the stacks; the caller owns them and their
        connections again. May be called twice.
        """
        cdef drive *d = self.drive
        cdef Stack stack
        if d == NULL or self._closing:
            return
        if not drive_ours(d):
            self._closing = True
            return
        if drive_inside(d):
            raise RuntimeError("close: this thread holds the driver")
        self._closing = True
        with nogil:
            drive_stop(d)
        for stack in self._members:
            stack.drive = NULL
            stack._driver = _core._no_driver

    def __dealloc__(self):
        if self.drive == NULL:
            return
        if not self._closing and drive_ours(self.drive):
            _left_open("Driver")
            self.close()
        if drive_ours(self.drive):
            drive_free(self.drive)


# ---- Conditions of waits ----
cdef int _fail(transfer *ctx, long rc) noexcept nogil:
    """Return 0, not yet, for EAGAIN; otherwise DEAD."""
    if rc == -EAGAIN:
        return 0
    ctx.error = <int>-rc
    return DEAD


cdef int _try_connected(void *arg) noexcept nogil:
    cdef transfer *ctx = <transfer *>arg
    cdef harp_tcp_info info
    if ctx.conn[0] == NULL:
        return -EBADF
    if harp_conn_error(ctx.conn[0]) < 0:
        return _fail(ctx, harp_conn_error(ctx.conn[0]))
    harp_conn_info(ctx.conn[0], &info)
    return DONE if info.state >= HARP_TCP_ESTABLISHED else 0


cdef int _try_accept(void *arg) noexcept nogil:
    cdef transfer *ctx = <transfer *>arg
    cdef int rc
    if ctx.listener[0] == NULL:
        return -EBADF
    rc = harp_tcp_accept(ctx.listener[0], &ctx.accepted)
    return DONE if rc == 0 else _fail(ctx, rc)


cdef int _try_send(void *arg) noexcept nogil:
    cdef transfer *ctx = <transfer *>arg
    cdef iovec piece
    cdef ssize_t sent
    if ctx.conn[0] == NULL:
        return -EBADF
    piece.iov_base = ctx.data + ctx.done
    piece.iov_len = ctx.size - ctx.done
    sent = harp_conn_send(ctx.conn[0], &piece, 1)
    if sent < 0:
        return _fail(ctx, sent)
    ctx.done += <size_t>sent
    return DONE if ctx.done == ctx.size else 0


cdef int _try_receive(void *arg) noexcept nogil:
    """Receive `size` bytes, or at least one if frame_max is set."""
    cdef transfer *ctx = <transfer *>arg
    cdef ssize_t got
    if ctx.conn[0] == NULL:
        return -EBADF
    got = harp_conn_recv(ctx.conn[0], ctx.data + ctx.done, ctx.size - ctx.done)
    if got < 0:
        return _fail(ctx, got)
    if got == 0:
        return END
    ctx.done += <size_t>got
    return DONE if ctx.done == ctx.size or ctx.frame_max else 0


cdef int _try_frames(void *arg) noexcept nogil:
    cdef transfer *ctx = <transfer *>arg
    cdef int rc = 1
    if ctx.conn[0] == NULL:
        return -EBADF
    while ctx.frame_count < ctx.frame_max:
        rc = harp_conn_recv_frame(ctx.conn[0], &ctx.frames[ctx.frame_count])
        if rc != 1:
            break
        ctx.frame_count += 1
    if ctx.frame_count:
        ctx.lending[0] += ctx.frame_count
        return DONE
    return END if rc == 0 else _fail(ctx, rc)


cdef int _try_frame(void *arg) noexcept nogil:
    cdef transfer *ctx = <transfer *>arg
    cdef int rc
    if ctx.conn[0] == NULL:
        return -EBADF
    rc = harp_frame_alloc(ctx.conn[0], &ctx.frames[0])
    if rc < 0:
        return _fail(ctx, rc)
    ctx.frame_count = 1
    ctx.lending[0] += 1
    return DONE


cdef int _try_flushed(void *arg) noexcept nogil:
    """Tell whether everything sent is acknowledged, with frame_max also the FIN."""
    cdef transfer *ctx = <transfer *>arg
    cdef harp_tcp_info info
    if ctx.conn[0] == NULL:
        return -EBADF
    if harp_conn_error(ctx.conn[0]) < 0:
        return _fail(ctx, harp_conn_error(ctx.conn[0]))
    harp_conn_info(ctx.conn[0], &info)
    if ctx.frame_max:
        return DONE if (
            info.state == HARP_TCP_FIN_WAIT_2 or info.state >= HARP_TCP_TIME_WAIT
        ) else 0
    return DONE if info.bytes_in_flight == 0 and info.bytes_unsent == 0 else 0


cdef _refuse_objects(const char *format, what):
    """Raise TypeError for an array of Python objects: it consists of pointers."""
    if format == NULL:
        return
    # Colons enclose the names of a record's fields.
    if b"O" in b"".join((<bytes>format).split(b":")[::2]):
        raise TypeError(f"{what}: arrays of Python objects have no bytes to carry")


# ---- Connections by listen() and connect() ----
@cython.no_gc_clear
cdef class Source:
    """A stack and the driver that polls it, for connections with blocking calls.

    Parameters
    ----------
    driver
        The driver.
    stack
        One of its stacks.

    Raises
    ------
    ValueError
        The stack is not one of the driver's.
    """

    def __init__(self, Driver driver not None, Stack stack not None):
        driver._open()
        if not any(stack is member for member in driver._members):
            raise ValueError("this stack is not one of the driver's")
        self.driver, self._stack = driver, stack

    cdef Driver _driven(self):
        if self.driver is None:
            raise ValueError("Source.__init__() was not called")
        self.driver._open()
        return self.driver

    def listen(self, int port=0, str address="0.0.0.0", *, timeout=None, **options):
        """Listen on a port.

        Parameters
        ----------
        port
            The port; 0: any.
        address
            The local address.
        timeout
            Default timeout of accept(), in seconds; None: no limit.
        **options
            Fields of struct harp_tcp_options by name (docs/python.md).

        Returns
        -------
        Acceptor
            The listening port.

        Raises
        ------
        OSError
            The port is in use, or the address is not the stack's.
        """
        cdef Acceptor acceptor = Acceptor.__new__(Acceptor)
        cdef Driver driver = self._driven()
        with driver.hold():
            acceptor._listener = self._stack.listen(port, address, **options)
        acceptor.driver = driver
        acceptor.timeout = timeout
        return acceptor

    def connect(self, str address not None, int port, *, timeout=10.0, str local_address=None,
                int local_port=0, **options):
        """Connect, and wait until the peer has answered.

        Parameters
        ----------
        address, port
            The peer's.
        timeout
            Seconds to wait; None: the stack's limit (connect_timeout_ns).
        local_address, local_port
            Of this end; None and 0: the stack chooses.
        **options
            Fields of struct harp_tcp_options by name (docs/python.md).

        Returns
        -------
        Endpoint
            The connection.

        Raises
        ------
        WaitTimeoutError
            The peer did not answer in time.
        OSError
            The stack's error, such as ConnectionRefusedError.
        """
        cdef Endpoint endpoint = Endpoint.__new__(Endpoint)
        cdef transfer ctx
        cdef Driver driver = self._driven()
        if timeout is not None and "connect_timeout_ns" not in options:
            options["connect_timeout_ns"] = int(min(max(float(timeout), 0.001), 1e6) * 2e9)
        with driver.hold():
            endpoint._conn = self._stack.connect(
                address, port, local_address, local_port, **options
            )
        endpoint.driver = driver
        memset(&ctx, 0, sizeof(ctx))
        ctx.conn = &endpoint._conn.conn
        what = f"connect to {address} port {port}"
        try:
            driver._wait(_try_connected, &ctx, timeout, what, "no answer")
        except BaseException:
            endpoint._end(True)
            raise
        return endpoint


# ---- Blocking calls ----
@cython.no_gc_clear
cdef class Acceptor(_Context):
    """A listening port whose accept() blocks; returned by Instance.listen()."""

    def __init__(self):
        raise TypeError("listen() of an Instance makes acceptors")

    def accept(self, *, timeout=None):
        """Wait for the next connection.

        Parameters
        ----------
        timeout
            Seconds; None: the acceptor's own `timeout`.

        Returns
        -------
        Endpoint
            The connection.

        Raises
        ------
        WaitTimeoutError
            No peer connected in time.
        ValueError
            The acceptor is closed, or was closed meanwhile.
        """
        cdef transfer ctx
        cdef Endpoint endpoint
        if self.closed:
            raise ValueError("this acceptor is closed")
        memset(&ctx, 0, sizeof(ctx))
        ctx.listener = &self._listener.listener
        wait = self.timeout if timeout is None else timeout
        self.driver._wait(_try_accept, &ctx, wait, "accept", "no connection")
        endpoint = Endpoint.__new__(Endpoint)
        endpoint._conn = self._listener.stack._wrap(ctx.accepted)
        endpoint.driver = self.driver
        return endpoint

    @property
    def local_address(self):
        """(address, port) of the acceptor."""
        if self.closed:
            raise ValueError("this acceptor is closed")
        with self.driver.hold():
            return self._listener.endpoint

    @property
    def closed(self):
        """Whether it, or its driver, was closed."""
        return self._listener.closed or self.driver.closed

    def close(self):
        """Stop listening. Connections that were not accepted are reset; accepted ones stay open."""
        if self.closed:
            return
        with self.driver.hold():
            self._listener.close()

    def __iter__(self):
        return self

    def __next__(self):
        return self.accept()


@cython.no_gc_clear
cdef class Endpoint:
    """A TCP connection with blocking calls; returned by connect() and accept().

    `timeout` (seconds; None: no limit) applies to calls without one. A timeout raises
    WaitTimeoutError and leaves the connection unchanged. Buffers are bytes, bytearray, memoryview,
    numpy arrays of any dtype except object; their memory must be contiguous. The byte order is not
    changed. Every call raises ValueError if the endpoint is closed before it returns, and OSError
    with the stack's error if the connection is dead. harp.aio has the same calls for asyncio.
    """

    def __init__(self):
        raise TypeError("connect() and accept() make endpoints")

    cdef Connection _open(self):
        if self._conn.closed:
            raise ValueError("this endpoint is closed")
        self.driver._open()
        return self._conn

    cdef list _lend(self, transfer *ctx, bint received):
        """Return the frames that a wait has received; they keep the connection open until then."""
        with self.driver.hold():
            self._conn.lending -= ctx.frame_count
            return [self._conn._lend(ctx.frames[i], received) for i in range(ctx.frame_count)]

    cdef _begin(self, transfer *ctx):
        self._open()
        memset(ctx, 0, sizeof(ctx[0]))
        ctx.conn = &self._conn.conn
        ctx.lending = &self._conn.lending

    cdef int _transfer(self, drive_try_fn attempt, transfer *ctx, timeout, str what,
                       str timeout_text=None) except -1:
        """Call Driver._wait(). timeout None: the endpoint's own."""
        wait = self.timeout if timeout is None else timeout
        return self.driver._wait(attempt, ctx, wait, what, timeout_text)

    cdef int _move(self, data, int flags, drive_try_fn attempt, transfer *ctx, timeout,
                   str what) except -1:
        """Send or fill a whole buffer; return DONE or END."""
        cdef Py_buffer view
        self._begin(ctx)
        if not PyObject_CheckBuffer(data):
            raise TypeError(f"{what}: {type(data).__name__} has no buffer of bytes")
        PyObject_GetBuffer(data, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags)
        try:
            _refuse_objects(view.format, what)
            ctx.data, ctx.size = <uint8_t *>view.buf, view.len
            return self._transfer(attempt, ctx, timeout, what) if view.len else DONE
        finally:
            PyBuffer_Release(&view)

    def send_all(self, data, *, timeout=None):
        """Send all of a buffer. The bytes are queued on return, not delivered: flush() waits for
        that. COPY: into the stack's frames, so that the caller may reuse the buffer.

        Parameters
        ----------
        data
            The buffer.
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        int
            The bytes of the buffer.

        Raises
        ------
        WaitTimeoutError
            The stack did not take all in time; `bytes_done` is the number of queued bytes.
        """
        cdef transfer ctx
        self._move(data, 0, _try_send, &ctx, timeout, "send_all")
        return ctx.size

    def recv_exact(self, buffer, *, timeout=None):
        """Fill a writable buffer completely. COPY: out of the stack's frames.

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
            Less arrived in time; `bytes_done` is the number of bytes in the buffer.
        """
        cdef transfer ctx
        if self._move(buffer, PyBUF_WRITABLE, _try_receive, &ctx, timeout, "recv_exact") == END:
            if ctx.done:
                raise EOFError(f"recv_exact: the stream ended after {ctx.done} of {ctx.size} bytes")
            return 0
        return ctx.size

    def recv_array(self, shape, dtype="u1", *, timeout=None):
        """Receive a numpy array. COPY: out of the stack's frames.

        Parameters
        ----------
        shape, dtype
            Shape and type of the array.
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        numpy.ndarray
            A new array, filled as recv_exact() does.

        Raises
        ------
        EOFError
            The stream has ended, before the array or in it.
        WaitTimeoutError
            Less arrived in time.
        """
        import numpy

        array = numpy.empty(shape, dtype)
        if self.recv_exact(array, timeout=timeout) != array.nbytes:
            raise EOFError("recv_array: the stream has ended")
        return array

    def recv(self, size_t max_bytes=65536, *, timeout=None):
        """Receive what has arrived. COPY: out of the stack's frames, and into the bytes object.

        Parameters
        ----------
        max_bytes
            Maximum number of bytes to return, 1 or more.
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        bytes
            At least one byte; b"" at the end of the stream.

        Raises
        ------
        WaitTimeoutError
            Nothing arrived in time.
        """
        cdef transfer ctx
        cdef uint8_t[::1] room
        if max_bytes == 0:
            raise ValueError("recv: max_bytes is 0")
        self._begin(&ctx)
        buffer = bytearray(max_bytes)
        room = buffer
        ctx.data, ctx.size, ctx.frame_max = &room[0], max_bytes, 1
        self._transfer(_try_receive, &ctx, timeout, "recv", "nothing")
        return bytes(memoryview(buffer)[:ctx.done])

    def recv_frames(self, unsigned max_frames=64, *, timeout=None):
        """Receive what has arrived, without a copy. Release each frame: until then it counts
        against the receive budget (256 frames or more, or rx_frames), and the peer waits when that
        is used up.

        Parameters
        ----------
        max_frames
            Maximum number of frames to return, 1 to 1024.
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        list of Frame
            In order, at least one; empty at the end of the stream.

        Raises
        ------
        WaitTimeoutError
            Nothing arrived in time.
        """
        cdef transfer ctx
        if not 1 <= max_frames <= FRAMES_MAX:
            raise ValueError(f"recv_frames: max_frames {max_frames} is not in 1 to 1024")
        self._begin(&ctx)
        ctx.frame_max = max_frames
        self._transfer(_try_frames, &ctx, timeout, "recv_frames", "nothing")
        return self._lend(&ctx, True)

    def frame(self, *, timeout=None):
        """Wait for the send budget, and return a frame for send_frame().

        Parameters
        ----------
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Returns
        -------
        Frame
            An empty frame of the stack's memory, of at most one segment.

        Raises
        ------
        WaitTimeoutError
            The send budget stayed used up.
        """
        cdef transfer ctx
        self._begin(&ctx)
        self._transfer(_try_frame, &ctx, timeout, "frame", "no room")
        return self._lend(&ctx, False)[0]

    def send_frame(self, Frame frame not None, length=None):
        """Send a frame without a copy. The stack takes ownership, and reads the memory again for a
        retransmission.

        Parameters
        ----------
        frame
            A frame of frame().
        length
            Bytes of it to send; None: all.

        Returns
        -------
        int
            The bytes that were queued.

        Raises
        ------
        BufferError
            A memoryview or array of the frame is alive.
        """
        conn = self._open()
        with self.driver.hold():
            return conn.send_frame(frame, length)

    def flush(self, *, timeout=None):
        """Wait until the peer's TCP has acknowledged everything sent.

        Parameters
        ----------
        timeout
            Seconds; None: the endpoint's own `timeout`.

        Raises
        ------
        WaitTimeoutError
            Something was not acknowledged in time.
        """
        cdef transfer ctx
        self._begin(&ctx)
        self._transfer(_try_flushed, &ctx, timeout, "flush", "not all acknowledged")

    def shutdown(self, int how=SHUT_WR):
        """End one or both directions.

        Parameters
        ----------
        how
            socket.SHUT_WR: nothing more is sent, and the peer reads the end of the stream. SHUT_RD:
            received bytes, present and future, are discarded. SHUT_RDWR: both.
        """
        conn = self._open()
        with self.driver.hold():
            conn.shutdown(how)

    def options(self):
        """Return the present options, as connect(), listen() and set_options() take them."""
        conn = self._open()
        with self.driver.hold():
            return conn.options()

    def set_options(self, **options):
        """Change options: all of them or, on error, none. See Connection.set_options().

        Parameters
        ----------
        **options
            Fields of struct harp_tcp_options that may change (docs/python.md).

        Raises
        ------
        OSError, TypeError, ValueError
            There is no such option, it can't change now, or its value is invalid.
        """
        conn = self._open()
        with self.driver.hold():
            conn.set_options(**options)

    @property
    def copied(self):
        """(bytes copied to send, bytes copied to receive), by the stack, of this connection."""
        info = self.info()
        return info["tx_copied_bytes"], info["rx_copied_bytes"]

    def info(self):
        """Return struct harp_tcp_info as a dict, with names of state and congestion control."""
        conn = self._open()
        with self.driver.hold():
            return conn.info()

    @property
    def local_address(self):
        """(address, port) of this end."""
        conn = self._open()
        with self.driver.hold():
            return conn.endpoints[0]

    @property
    def peer_address(self):
        """(address, port) of the peer."""
        conn = self._open()
        with self.driver.hold():
            return conn.endpoints[1]

    @property
    def closed(self):
        """Whether it, or its driver, was closed."""
        return self._conn.closed or self.driver.closed

    def _end(self, bint abort):
        if self.closed:
            return
        with self.driver.hold():
            if abort:
                self._conn.abort()
            else:
                self._conn.close()

    def close(self, linger=5.0):
        """Send the queued data and the end of the stream, wait for the acknowledgment of both, and
        close. A stack ends with its process, and unacknowledged data would be lost. May be called
        twice.

        Parameters
        ----------
        linger
            Maximum seconds to wait; 0: do not wait.

        Raises
        ------
        BufferError
            Memory of a frame is in use.
        """
        cdef transfer ctx
        if self.closed:
            return
        self.driver._open()
        with self.driver.hold():
            self._conn._check_lent()
            if linger and self._conn.error == 0:
                try:
                    self._conn.shutdown()
                except OSError:
                    linger = 0  # it was never connected, or is dead
        if linger:
            memset(&ctx, 0, sizeof(ctx))
            ctx.conn, ctx.frame_max = &self._conn.conn, 1
            with contextlib.suppress(OSError):  # it is dead, or the peer is too slow
                self.driver._wait(_try_flushed, &ctx, linger, "close", "not all acknowledged")
        self._end(False)

    def abort(self):
        """Send RST and drop the connection."""
        self._end(True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        else:
            self.abort()
