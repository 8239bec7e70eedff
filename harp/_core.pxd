# SPDX-License-Identifier: Apache-2.0
from harp._c cimport drive, harp_conn, harp_frame, harp_listener, harp_stack
from harp._nic cimport Nic, _Context


cdef class Stack(_Context):
    cdef harp_stack *stack
    cdef drive *drive  # its lock guards the stack; NULL: one thread at a time uses the stack
    cdef readonly Nic nic
    cdef object _driver  # a function that returns the Driver of that drive, or None
    cdef object _owner  # the Instance whose stack this is, or None
    cdef int _pid  # with _owner: the process that has the memory
    cdef object _conns  # address of the C object -> Connection, weakly
    cdef object _log
    cdef object _log_error
    cdef readonly unsigned scope_id
    cdef object __weakref__

    cdef harp_stack *_open(self) except NULL
    cdef bint _is_reachable(self)
    cdef _enter(self)
    cdef _leave(self, driver)
    cdef Connection _wrap(self, harp_conn *conn)
    cdef _check_lent(self)
    cdef _detach(self)


cdef class Listener(_Context):
    cdef harp_listener *listener
    cdef readonly Stack stack
    cdef object __weakref__

    cdef harp_listener *_open(self) except NULL


cdef class Connection(_Context):
    cdef harp_conn *conn
    cdef readonly Stack stack
    cdef unsigned lending  # frames on their way to the application; the driver's lock guards it
    cdef void *frames  # list of borrowed references to frames that are not released
    cdef object __weakref__

    cdef harp_conn *_open(self) except NULL
    cdef _forget(self)
    cdef _check_lent(self)
    cdef _drop_frames(self, bint give_back)
    cdef Frame _lend(self, harp_frame *frame, bint received)


cdef class Frame:
    cdef harp_frame *frame  # NULL: released or sent
    cdef readonly Connection connection
    cdef void *next  # in Connection.frames
    cdef void **link
    cdef Py_ssize_t exports  # memoryviews over it
    cdef readonly bint received
    cdef object __weakref__

    cdef harp_frame *_open(self) except NULL
    cdef _check_lent(self)
    cdef _unlink(self)
