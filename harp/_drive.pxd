# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport uint8_t

from harp._c cimport (
    drive, drive_member, drive_try_fn, harp_conn, harp_frame, harp_listener
)
from harp._core cimport Connection, Listener, Stack
from harp._nic cimport _Context


cdef enum:
    FRAMES_MAX = 1024


cdef struct transfer:
    harp_conn **conn  # points to Connection.conn, which is NULL after another thread's close()
    harp_listener **listener
    harp_conn *accepted
    unsigned *lending  # frames on their way to the application
    uint8_t *data
    size_t size
    size_t done
    harp_frame *frames[FRAMES_MAX]
    unsigned frame_max
    unsigned frame_count
    int error


cdef class Driver(_Context):
    cdef drive *drive
    cdef tuple _members  # the Stacks
    cdef object _stop  # what a signal handler raised while a thread waited
    cdef bint _closing
    cdef object __weakref__

    cdef _create(self, drive_member *members, double spin_us)
    cdef drive *_open(self) except NULL
    cdef int _wait(self, drive_try_fn attempt, transfer *ctx, timeout, str what,
                   str timeout_text) except -1


cdef class Source:
    cdef readonly Driver driver
    cdef Stack _stack
    cdef object __weakref__

    cdef Driver _driven(self)


cdef class Acceptor(_Context):
    cdef readonly Driver driver
    cdef Listener _listener
    cdef public object timeout
    cdef object __weakref__


cdef class Endpoint:
    cdef readonly Driver driver
    cdef Connection _conn
    cdef public object timeout
    cdef object __weakref__

    cdef Connection _open(self)
    cdef list _lend(self, transfer *ctx, bint received)
    cdef _begin(self, transfer *ctx)
    cdef int _transfer(self, drive_try_fn attempt, transfer *ctx, timeout, str what,
                       str timeout_text=*) except -1
    cdef int _move(self, data, int flags, drive_try_fn attempt, transfer *ctx, timeout,
                   str what) except -1
