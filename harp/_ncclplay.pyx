# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""One rank of a ring that plays NCCL over any ncclNet plugin (tools/driver/ncclplay.h).

The all-reduce runs outside the GIL, in place, in the caller's own float32 memory.
"""

import warnings

from libc.string cimport memset

from harp._ncclplay cimport *


class NcclplayError(RuntimeError):
    """What the driver says; code is its exit code (ncclplay.h)."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


cdef void _keep_log(void *arg, int level, const char *text) noexcept with gil:
    # The plugin's threads call this; the object lives until close() has joined them.
    try:
        (<list>arg).append((level, text.decode("utf-8", "replace")))
    except Exception:  # a log line is not worth a crash
        pass


cdef class Rank:
    """A rank: open on creation, then connect(), allreduce() and close().

    plugin: name or path; root: "host:port" where rank 0 listens; cpu: processor to pin the driver's
    threads to, or None; rest_us: how long they sleep when nothing moves (0: they spin).
    """

    cdef ncclplay *play
    cdef readonly list log
    cdef object __weakref__

    def __cinit__(self, *args, **kwargs):
        self.play = NULL
        self.log = []

    def __init__(self, str plugin, int rank, int ranks, str root, *, int channels=1,
                 double timeout_s=60, cpu=None, bint quiet=True, unsigned int rest_us=0):
        cdef ncclplay_options options
        cdef char error[NCCLPLAY_ERROR_BYTES]
        cdef int code
        plugin_bytes = plugin.encode()
        root_bytes = root.encode()
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        options.plugin = plugin_bytes
        options.rank = rank
        options.ranks = ranks
        options.root = root_bytes
        options.channels = channels
        options.timeout_s = timeout_s
        options.quiet = quiet
        options.rest_us = rest_us
        options.log = _keep_log
        options.log_arg = <void *>self.log
        if cpu is not None:
            options.pin = True
            options.cpu = cpu
        with nogil:
            code = ncclplay_open(&options, &self.play, error, sizeof(error))
        if code != NCCLPLAY_OK:
            self.play = NULL
            raise NcclplayError(error.decode("utf-8", "replace"), code)

    cdef ncclplay *_open(self) except NULL:
        if self.play == NULL:
            raise ValueError("this rank is closed")
        return self.play

    cdef _check(self, int code):
        if code != NCCLPLAY_OK:
            message = ncclplay_error(self.play).decode("utf-8", "replace")
            raise NcclplayError(message or f"driver error {code}", code)

    def connect(self):
        """Connects to the neighbours in the ring; returns when all ranks have."""
        cdef ncclplay *play = self._open()
        cdef int code
        with nogil:
            code = ncclplay_connect(play)
        self._check(code)

    def allreduce(self, float[::1] values not None):
        """values[i] = sum over all ranks, in place; returns when it is done."""
        cdef ncclplay *play = self._open()
        cdef int code = NCCLPLAY_OK
        if values.shape[0] == 0:
            return
        with nogil:
            code = ncclplay_allreduce_f32(play, &values[0], &values[0], values.shape[0])
        self._check(code)

    def barrier(self):
        """Returns when every rank is in it."""
        cdef ncclplay *play = self._open()
        cdef int code
        with nogil:
            code = ncclplay_barrier(play)
        self._check(code)

    def gather(self, bytes data not None, int ranks):
        """The same number of bytes from every rank, in rank order, on every rank."""
        cdef ncclplay *play = self._open()
        cdef int code
        cdef const char *source = data
        cdef size_t length = len(data)
        cdef char *target
        if not 0 < length <= NCCLPLAY_GATHER_BYTES_MAX:
            raise ValueError(f"gather takes 1..{NCCLPLAY_GATHER_BYTES_MAX} bytes, not {length}")
        buffer = bytearray(length * ranks)
        target = buffer
        with nogil:
            code = ncclplay_gather(play, source, length, target)
        self._check(code)
        return [bytes(buffer[length * i:length * (i + 1)]) for i in range(ranks)]

    def interrupt(self):
        """Any thread: makes the call in progress and all later ones fail soon."""
        if self.play != NULL:
            ncclplay_interrupt(self.play)

    def properties(self):
        """What the plugin says of itself and the device."""
        cdef ncclplay_properties_t properties
        self._check(ncclplay_properties(self._open(), &properties))
        return {
            "net": properties.net.decode("utf-8", "replace"),
            "path": properties.path.decode("utf-8", "replace"),
            "dev": properties.dev.decode("utf-8", "replace"),
            "abi": properties.abi,
            "devices": properties.devices,
            "speed_mbps": properties.speed_mbps,
        }

    def stats(self):
        """Counters since the rank was opened; _bytes, _ns."""
        cdef ncclplay_stats_t stats
        ncclplay_stats(self._open(), &stats)
        return {
            "sent_bytes": stats.sent_bytes,
            "sent_messages": stats.sent_messages,
            "received_bytes": stats.received_bytes,
            "received_messages": stats.received_messages,
            "operations": stats.operations,
            "busy_ns": stats.busy_ns,
            "progress_cpu_ns": stats.progress_cpu_ns,
            "process_cpu_ns": stats.process_cpu_ns,
        }

    def close(self):
        """Closes as NCCL does; the log is complete afterwards. Safe to call twice."""
        cdef ncclplay *play = self.play
        cdef int code
        self.play = NULL
        if play == NULL:
            return
        with nogil:
            code = ncclplay_close(play)
        if code != NCCLPLAY_OK:
            raise NcclplayError("the plugin did not return from closing", code)

    @property
    def closed(self):
        return self.play == NULL

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __dealloc__(self):
        cdef ncclplay *play = self.play
        self.play = NULL
        if play != NULL:
            warnings.warn("a Rank was collected while open: close() it", ResourceWarning)
            with nogil:
                ncclplay_close(play)
