# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Bindings of libharp-coll (coll/harp_coll.h). harp.collectives is the public interface.

Operations release the GIL and work in the caller's memory.
"""

import errno
import warnings

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer)
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strlen

from harp._coll cimport *


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)


class CollectiveError(RuntimeError):
    """An operation failed.

    Parameters
    ----------
    message
        What failed, on which ranks.
    code
        The errno (coll/harp_coll.h).
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


cdef int _store_code(object error):
    code = getattr(error, "errno", None)
    return -code if isinstance(code, int) and code > 0 else -errno.EIO


# The library calls the store's functions without the GIL. They return exceptions as an errno and
# save them for the text of the group's error.
cdef int _store_set(void *arg, const char *key, const void *value, size_t size) noexcept with gil:
    group = <Group>arg
    try:
        group.store.set(key.decode(), (<const char *>value)[:size])
        return 0
    except Exception as error:
        group.store_error = error
        return _store_code(error)


cdef int _store_get(void *arg, const char *key, void *value, size_t *size) noexcept with gil:
    group = <Group>arg
    cdef size_t room = size[0], length
    cdef const char *source
    try:
        stored = group.store.get(key.decode())
        if stored is None:
            return -errno.ENOENT
        data = bytes(stored)
        length = len(data)
        size[0] = length
        if length > room:
            return -errno.ENOSPC
        source = data
        memcpy(value, source, length)
        return 0
    except Exception as error:
        group.store_error = error
        return _store_code(error)


cdef int _store_wait(void *arg, const char *key, int64_t timeout_ms) noexcept with gil:
    group = <Group>arg
    try:
        group.store.wait(key.decode(), timeout_ms / 1000)
        return 0
    except TimeoutError:
        return -errno.ETIMEDOUT
    except Exception as error:
        group.store_error = error
        return _store_code(error)


# The log callback must not acquire the GIL: it may run with the library's lock held, and the GIL's
# holder may wait for that lock. So it saves lines in C.
cdef struct _LogLine:
    _LogLine *next
    int level
    char text[1]

cdef pthread_mutex_t _log_lock
pthread_mutex_init(&_log_lock, NULL)
cdef _LogLine *_log_first = NULL
cdef _LogLine *_log_last = NULL
cdef int _log_count = 0
cdef enum:
    _LOG_LINES_MAX = 4096


cdef void _save_log(void *arg, int level, const char *text) noexcept nogil:
    global _log_first, _log_last, _log_count
    cdef size_t length = strlen(text)
    cdef _LogLine *line
    pthread_mutex_lock(&_log_lock)
    if _log_count < _LOG_LINES_MAX:
        line = <_LogLine *>malloc(sizeof(_LogLine) + length)
        if line != NULL:
            line.next = NULL
            line.level = level
            memcpy(line.text, text, length + 1)
            if _log_last == NULL:
                _log_first = line
            else:
                _log_last.next = line
            _log_last = line
            _log_count += 1
    pthread_mutex_unlock(&_log_lock)


def log_lines() -> list:
    """Return the log lines of the plugin and the library: (level, text). Level 2 is a warning."""
    cdef _LogLine *line
    lines = []
    with nogil:
        pthread_mutex_lock(&_log_lock)
        line = _log_first  # lines are never removed
        pthread_mutex_unlock(&_log_lock)
    while line != NULL:
        lines.append((line.level, line.text.decode("utf-8", "replace")))
        with nogil:
            pthread_mutex_lock(&_log_lock)
            line = line.next
            pthread_mutex_unlock(&_log_lock)
    return lines


cdef int _dtype_of(const Py_buffer *view) except -1:
    cdef const char *format = view.format
    cdef Py_ssize_t size = view.itemsize
    if format == NULL:
        return HARP_COLL_UINT8
    if format[0] == b"<" or format[0] == b"=" or format[0] == b"@":
        format += 1
    if format[0] == b"Z" and format[1] == b"f" and format[2] == 0:
        return HARP_COLL_COMPLEX64
    if format[0] == b"Z" and format[1] == b"d" and format[2] == 0:
        return HARP_COLL_COMPLEX128
    if format[0] != 0 and format[1] == 0:
        if format[0] == b"f":
            return HARP_COLL_FLOAT32
        if format[0] == b"d":
            return HARP_COLL_FLOAT64
        if format[0] == b"e":
            return HARP_COLL_FLOAT16
        if format[0] == b"?":
            return HARP_COLL_BOOL
        if format[0] in b"bhilq":
            return (HARP_COLL_INT8 if size == 1 else HARP_COLL_INT16 if size == 2 else
                    HARP_COLL_INT32 if size == 4 else HARP_COLL_INT64)
        if format[0] in b"BHILQ":
            return (HARP_COLL_UINT8 if size == 1 else HARP_COLL_UINT16 if size == 2 else
                    HARP_COLL_UINT32 if size == 4 else HARP_COLL_UINT64)
    raise TypeError(f"arrays of {view.format.decode()!r} are not supported: use integers, floats, "
                    "complex numbers or bool in native byte order")


cdef class _Call:
    """The arguments of an operation. Holds its buffers and counts while it runs."""

    cdef harp_coll_call call
    cdef Py_buffer in_view, out_view
    cdef bint has_in, has_out
    cdef size_t *counts

    def __init__(self, int world, int op, *, int reduce=0, int wire=0, int peer=0, int tag=0,
                 source=None, target=None, count=None, in_counts=None, out_counts=None,
                 int dtype=-1):
        cdef harp_coll_call *call = &self.call
        cdef int array_dtype = -1
        cdef Py_ssize_t size = 0
        call.size = sizeof(call[0])
        call.op = <harp_coll_op>op
        call.reduce = <harp_coll_reduce>reduce
        call.wire = <harp_coll_wire>wire
        call.peer, call.tag = peer, tag
        if source is not None:
            PyObject_GetBuffer(source, &self.in_view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
            self.has_in = True
            call.in_ = self.in_view.buf
            array_dtype = _dtype_of(&self.in_view)
            size = self.in_view.len // self.in_view.itemsize
        if target is not None:
            PyObject_GetBuffer(target, &self.out_view,
                               PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)
            self.has_out = True
            call.out = self.out_view.buf
            if array_dtype >= 0 and array_dtype != _dtype_of(&self.out_view):
                raise TypeError("input and output have different types")
            array_dtype = _dtype_of(&self.out_view)
            if source is None:
                size = self.out_view.len // self.out_view.itemsize
        if dtype >= 0:
            array_dtype = dtype
        call.dtype = <harp_coll_dtype>(array_dtype if array_dtype >= 0 else HARP_COLL_UINT8)
        call.count = size if count is None else count
        if in_counts is not None or out_counts is not None:
            self.counts = <size_t *>malloc(2 * world * sizeof(size_t))
            if self.counts == NULL:
                raise MemoryError()
            for r in range(world):
                self.counts[r] = 0 if in_counts is None else in_counts[r]
                self.counts[world + r] = 0 if out_counts is None else out_counts[r]
            if in_counts is not None:
                call.in_counts = self.counts
            if out_counts is not None:
                call.out_counts = self.counts + world

    def __dealloc__(self):
        if self.has_in:
            PyBuffer_Release(&self.in_view)
        if self.has_out:
            PyBuffer_Release(&self.out_view)
        free(self.counts)


cdef class Request:
    """A nonblocking operation. Call wait(), or test() until it returns True."""

    cdef harp_coll_request *request
    cdef _Call call
    cdef readonly object result
    cdef object __weakref__

    cdef bint _is_done(self):
        cdef int code
        if self.request == NULL:
            return True
        with nogil:
            code = harp_coll_test(self.request)
        return code != -errno.EAGAIN

    cdef _finish(self, int code):
        if code == 0:
            return
        text = harp_coll_request_error(self.request).decode("utf-8", "replace")
        raise CollectiveError(text or f"error {-code}", -code)

    def test(self) -> bool:
        """Return whether the operation is done. Never sleeps.

        Raises
        ------
        CollectiveError
            The operation failed.
        """
        cdef int code
        with nogil:
            code = harp_coll_test(self.request)
        if code == -errno.EAGAIN:
            return False
        self._finish(code)
        return True

    def wait(self, timeout_s=None):
        """Wait until the operation is done.

        Parameters
        ----------
        timeout_s
            Seconds to wait at most; None: no limit.

        Returns
        -------
        object
            The result of the blocking method.

        Raises
        ------
        CollectiveError
            The operation failed.
        TimeoutError
            The operation is still in progress.
        """
        cdef int64_t timeout_ms = -1 if timeout_s is None else <int64_t>(timeout_s * 1000)
        cdef int code
        with nogil:
            code = harp_coll_wait(self.request, timeout_ms)
        if code == -errno.EAGAIN:
            raise TimeoutError(f"the operation is not done after {timeout_s} s")
        self._finish(code)
        return self.result

    @property
    def source(self):
        """Rank of a receive's sender; -1 for other operations."""
        return harp_coll_request_source(self.request)

    @property
    def count(self):
        """Number of elements that a receive got; 0 for other operations."""
        return harp_coll_request_count(self.request)

    def __dealloc__(self):
        if self.request != NULL:
            with nogil:
                harp_coll_request_free(self.request)


cdef class Group:
    """One rank of a group. store: an object with the methods of harp.collectives.Store."""

    cdef harp_coll *group
    cdef readonly int rank, world
    cdef readonly object store
    cdef object store_error
    cdef list pending
    cdef object __weakref__

    def __init__(self, int rank, int world, str name, store, *, plugin=None, int device=0,
                 double timeout_s=300, host=None, int wire=0):
        cdef harp_coll_options options
        cdef char error[HARP_COLL_ERROR_BYTES]
        cdef int code
        name_bytes = name.encode()
        plugin_bytes = None if plugin is None else str(plugin).encode()
        host_bytes = None if host is None else str(host).encode()
        self.rank, self.world, self.store = rank, world, store
        self.pending = []
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        options.rank = rank
        options.world = world
        options.name = name_bytes
        options.store.size = sizeof(options.store)
        options.store.arg = <void *>self
        if store is not None:
            options.store.set = _store_set
            options.store.get = _store_get
            options.store.wait = _store_wait
        if plugin_bytes is not None:
            options.plugin = plugin_bytes
        if host_bytes is not None:
            options.host = host_bytes
        options.wire = <harp_coll_wire>wire
        options.device = device
        options.timeout_ms = <int64_t>(timeout_s * 1000)
        options.log = _save_log
        with nogil:
            code = harp_coll_open(&options, &self.group, error, sizeof(error))
        if code:
            self.group = NULL
            raise self._error(code, error)

    cdef _error(self, int code, const char *text):
        message = text.decode("utf-8", "replace") or f"error {-code}"
        cause, self.store_error = self.store_error, None
        error = CollectiveError(f"{message} ({cause})" if cause else message, -code)
        if code == -errno.EINVAL:
            return ValueError(message)
        return error

    cdef harp_coll *_open(self) except NULL:
        if self.group == NULL:
            raise ValueError("this communicator is closed")
        return self.group

    def run(self, int op, **arguments) -> None:
        """Run an operation."""
        cdef harp_coll *group = self._open()
        cdef char error[HARP_COLL_ERROR_BYTES]
        cdef int code
        cdef _Call call = _Call(self.world, op, **arguments)
        with nogil:
            code = harp_coll_run(group, &call.call, error, sizeof(error))
        if code:
            raise self._error(code, error)

    def start(self, int op, *, result=None, **arguments) -> Request:
        """Start an operation; its request's wait() returns `result`."""
        cdef harp_coll *group = self._open()
        cdef char error[HARP_COLL_ERROR_BYTES]
        cdef int code
        cdef Request request = Request()
        request.call = _Call(self.world, op, **arguments)
        request.result = result
        with nogil:
            code = harp_coll_start(group, &request.call.call, &request.request, error,
                                   sizeof(error))
        if code:
            raise self._error(code, error)
        # Holds the memory until the operation is done, even if the caller drops the request.
        self.pending = [other for other in self.pending if not (<Request>other)._is_done()]
        self.pending.append(request)
        return request

    def abort(self, str reason="") -> None:
        """Fail operations in progress and all later ones, on all ranks."""
        reason_bytes = reason.encode()
        cdef const char *text = reason_bytes
        cdef harp_coll *group = self._open()
        with nogil:
            harp_coll_abort(group, text)

    def stats(self) -> dict:
        """Return counters since the group was opened."""
        cdef harp_coll_stats_t stats
        memset(&stats, 0, sizeof(stats))
        stats.size = sizeof(stats)
        cdef harp_coll *group = self._open()
        with nogil:
            harp_coll_stats(group, &stats)
        fields = dict(stats)
        del fields["size"]
        return fields

    def net(self) -> dict:
        """Return the plugin in use."""
        cdef harp_coll_net_t net
        memset(&net, 0, sizeof(net))
        net.size = sizeof(net)
        cdef harp_coll *group = self._open()
        with nogil:
            harp_coll_net(group, &net)
        return {
            "net": net.name.decode("utf-8", "replace"),
            "path": net.path.decode("utf-8", "replace"),
            "dev": net.device.decode("utf-8", "replace"),
            "abi": net.abi,
            "devices": net.devices,
            "speed_mbps": net.speed_mbps,
        }

    def close(self) -> None:
        """End operations in progress. Not collective; safe to call twice."""
        cdef harp_coll *group = self.group
        self.group = NULL
        if group != NULL:
            with nogil:
                harp_coll_close(group)
        self.pending = []

    @property
    def closed(self) -> bool:
        return self.group == NULL

    def __dealloc__(self):
        cdef harp_coll *group = self.group
        self.group = NULL
        if group != NULL:
            warnings.warn("an open Communicator was garbage-collected: call close()",
                          ResourceWarning)
            with nogil:
                harp_coll_close(group)
