# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Instance: a stack on a NIC that the kernel also uses (harp_host.h)."""

import contextlib
import logging
import os

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.unistd cimport getpid

cimport cython

from harp._c cimport *
from harp._check cimport check, check_why
from harp._core cimport Stack
from harp._drive cimport Driver, Source
from harp._nic cimport Nic, _left_open

from harp import _page


cdef enum:
    STEERING_MAX = 64
    OPEN_MAX = 64
    NAME_MAX = 15

cdef extern from "harp_lease.h" nogil:
    const char *HARP_LEASE_SOCKET
    uint32_t HARP_LEASE_QUEUE_ANY

cdef extern from "harp_host.h" nogil:
    const char *HARP_PORT_PREFIX

cdef extern from "pthread.h" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept,
                       void (*child)() noexcept)

_logger = logging.getLogger("harp")
_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}
_XDP_MODES = {"auto": 0, "generic": 1, "native": 2}
_COPY_MODES = {"auto": 0, "copy": 1, "zero-copy": 2}
_HUGE_PAGES = {"auto": 0, "never": 1, "require": 2}


# ---- A forked child must not keep a queue open, even if C code forked it ----
cdef harp_instance *_open_instances[OPEN_MAX]


cdef void _in_child() noexcept nogil:
    cdef unsigned i
    for i in range(OPEN_MAX):
        if _open_instances[i] != NULL:
            harp_instance_fork_child(_open_instances[i])
            _open_instances[i] = NULL


check(-pthread_atfork(NULL, NULL, _in_child), "pthread_atfork")


cdef _remember(harp_instance *instance, harp_instance *now):
    """Replace `instance` by `now` in the table; False if it is not there."""
    cdef unsigned i
    for i in range(OPEN_MAX):
        if _open_instances[i] == instance:
            _open_instances[i] = now
            return True
    return False


def _log_to_logging(level, text):
    _logger.log(_LEVELS.get(level, logging.DEBUG), "%s", text)


cdef void _instance_log(void *ctx, harp_log_level level, const char *message) noexcept with gil:
    handle = <_Handle>ctx
    handle.log(<int>level, message.decode("utf-8", "replace"))


@cython.no_gc_clear
cdef class _Handle:
    """Owns the C object, which is closed with the last of its Instance, stack and connections."""

    cdef harp_instance *instance
    cdef int pid
    cdef object log
    cdef object __weakref__

    @property
    def closed(self):
        """Whether close() was called."""
        return self.instance == NULL

    cdef _close(self):
        cdef harp_instance *instance = self.instance
        self.instance = NULL
        if instance == NULL or self.pid != getpid():
            return
        _remember(instance, NULL)
        with nogil:
            harp_instance_close(instance)

    def __dealloc__(self):
        if self.instance != NULL and self.pid == getpid():
            _left_open("Instance")
            self._close()


def _choose(table, name, value):
    if value not in table:
        raise ValueError(f"{name} {value!r} is not one of {', '.join(table)}")
    return table[value]


def _daemon_socket(daemon, path):
    """Return the path of harpd's socket, or None without harpd; see HARP_DAEMON, HARP_SOCKET."""
    daemon = daemon or os.environ.get("HARP_DAEMON") or "auto"
    path = path or os.environ.get("HARP_SOCKET") or HARP_LEASE_SOCKET.decode()
    if daemon not in ("auto", "off", "require"):
        raise ValueError(f"daemon {daemon!r} is not one of auto, off, require")
    if daemon == "off" or (daemon == "auto" and not os.path.exists(path)):
        return None
    return path


def _library_dir(dpdk):
    """Return the folder of libharp-xdp.so or libharp-dpdk.so, or None: the loader's search path."""
    from harp import _paths
    from harp.errors import HarpError

    try:
        return str(_paths.find(_paths.DPDK_LIBRARY if dpdk else _paths.XDP_LIBRARY).parent)
    except HarpError:
        return None


def _dpdk_number(name, least):
    """Return the number in an environment variable; 0 if it is not set."""
    text = os.environ.get(name) or "0"
    digits = text.isascii() and text.isdigit()
    if not digits or not (text == "0" or least <= int(text) < 1 << 20):
        raise ValueError(f"{name}={text}: a number from {least} is needed")
    return int(text)


@cython.no_gc_clear
cdef class Instance(Source):
    """A stack on one queue of a NIC, with the host's own addresses, routes and neighbors.

    The queue is leased from harpd if its socket exists (no privilege needed). Otherwise the process
    opens it (root, or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF).

    With drive=True (the default) a Driver polls the stack: listen() and connect() return
    connections with blocking calls, and any thread may call every method. With drive=False only
    poll() advances it; `stack` is then the nonblocking interface, and one thread at a time uses
    instance and stack. fileno() and control_fileno() are for select: when either is readable, or at
    stack.next_deadline_ns, poll() has work.

    ifname "dpdk:SPEC" is a queue of a DPDK port that the process owns; harp._core.port_spec()
    parses SPEC. A bare name ("dpdk:left") is leased from harpd if its socket exists. DPDK starts
    once in a process. fileno() of most ports is -1.

    A forked child cannot use an instance; its copies of the descriptors are closed.

    Parameters
    ----------
    ifname
        The interface, or "dpdk:SPEC".
    queue
        The queue; None: any that harpd leases, else 0.
    drive
        Whether a Driver polls the stack.
    spin_us
        Of the Driver, in microseconds.
    daemon, socket
        "auto", "off" or "require", and harpd's socket; None: HARP_DAEMON and HARP_SOCKET.
    label
        A text that `harpctl instances` shows; None: the program's name.
    xdp_mode, copy_mode
        The XDP program's and the socket's mode: "auto", or a mode of docs/xdp.md.
    huge_pages
        "auto", "never" or "require": whether frames are in huge pages; None: "auto", or for DPDK
        HARP_DPDK_HUGE_PAGES.
    frame_count, max_conns
        Frames of the pool, and maximum of connections; 0: the defaults.
    port_min, port_max
        The ports of a process that opens its own queue; 0: the defaults.
    seed
        Seed of the stack's random numbers; 0: from the system.
    lib_dir
        Where libharp-xdp.so and libharp-dpdk.so are; None: next to this library.
    log
        Called as log(level, text) for each line of the log; None: no log.
    dpdk_memory_mib
        Memory of DPDK, in MiB; 0: HARP_DPDK_MEMORY_MIB. HARP_DPDK_ARGS has DPDK's arguments.

    Raises
    ------
    OSError
        The message names interface, queue, cause and remedy.
    """

    cdef _Handle _handle
    cdef readonly str ifname
    cdef readonly bint leased

    def __init__(self, str ifname not None, queue=None, *, bint drive=True, double spin_us=50.0,
                 daemon=None, socket=None, label=None, xdp_mode="auto", copy_mode="auto",
                 huge_pages=None, unsigned frame_count=0, unsigned max_conns=0, int port_min=0,
                 int port_max=0, seed=0, lib_dir=None, log=None,
                 unsigned dpdk_memory_mib=0):
        cdef harp_instance_options options
        if self._handle is not None:
            raise TypeError("this instance is open already")
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        dpdk = ifname.startswith(HARP_PORT_PREFIX.decode())
        # A specification with arguments or keys is opened here, never leased.
        if dpdk and ("," in ifname or ";" in ifname):
            if daemon == "require":
                raise ValueError(f"{ifname!r}: harpd leases a port by its name only")
            daemon = "off"
        path = _daemon_socket(daemon, socket)
        if queue is not None and not 0 <= queue < 65536:
            raise ValueError(f"queue {queue} is not in 0 to 65535")
        for port in (port_min, port_max):
            if not 0 <= port <= 65535:
                raise ValueError(f"{port} is not a port")
        options.queue = (HARP_LEASE_QUEUE_ANY if path else 0) if queue is None else queue
        options.xdp_mode = _choose(_XDP_MODES, "xdp_mode", xdp_mode)
        options.copy_mode = _choose(_COPY_MODES, "copy_mode", copy_mode)
        if huge_pages is None:
            huge_pages = dpdk and os.environ.get("HARP_DPDK_HUGE_PAGES") or "auto"
        options.huge_pages = _choose(_HUGE_PAGES, "huge_pages", huge_pages)
        if dpdk:
            options.dpdk_memory_mib = dpdk_memory_mib or _dpdk_number("HARP_DPDK_MEMORY_MIB", 32)
            arguments = (os.environ.get("HARP_DPDK_ARGS") or "").encode()
            if arguments:
                options.dpdk_args = arguments
        options.frame_count = frame_count
        options.max_conns = max_conns
        options.port_min = port_min
        options.port_max = port_max
        options.seed = seed
        self.ifname = ifname
        self.leased = path is not None
        # The encoded names must live until harp_instance_open() has returned.
        name, label_bytes = ifname.encode(), (label or "").encode()[:63]
        if not dpdk and not 1 <= len(name) <= NAME_MAX:
            raise ValueError(f"{ifname!r} is not an interface name of 1 to {NAME_MAX} bytes")
        options.ifname = name
        if label_bytes:
            options.label = label_bytes
        if path:
            path = os.fsencode(path)
            options.daemon_socket = path
        if dpdk or not path:
            where = lib_dir or _library_dir(dpdk)
            if where:
                where = os.fsencode(where)
                options.lib_dir = where
        self._open_handle(&options, log)
        self._adopt(drive, spin_us)

    cdef _open_handle(self, harp_instance_options *options, log):
        cdef char why[320]
        cdef int rc
        cdef _Handle handle = _Handle.__new__(_Handle)
        handle.pid = getpid()
        handle.log = log or _log_to_logging
        options.ctx = <void *>handle
        options.log = _instance_log
        why[0] = 0
        with nogil:
            rc = harp_instance_open(&handle.instance, options, why, sizeof(why))
        check_why(rc, why, self.ifname)
        if not _remember(NULL, handle.instance):
            handle._close()
            raise OSError(24, f"{self.ifname}: {OPEN_MAX} instances are open in this process")
        self._handle = handle

    cdef _adopt(self, bint drive, double spin_us):
        cdef drive_member member
        cdef Nic nic = Nic.__new__(Nic)
        nic.nic = harp_instance_nic(self._handle.instance)
        nic.parent = self._handle
        self._stack = Stack.__new__(Stack)
        self._stack.stack = harp_instance_stack(self._handle.instance)
        self._stack.nic = nic
        self._stack._owner = self._handle
        self._stack._pid = self._handle.pid
        if not drive:
            return
        if not 0 <= spin_us <= 1e6:
            raise ValueError(f"spin_us {spin_us} is not in 0 to 1000000")
        member.stack = self._stack.stack
        member.nic = nic.nic
        member.instance = self._handle.instance
        self.driver = Driver.__new__(Driver)
        self.driver._members = (self._stack,)
        self.driver._create(&member, spin_us)

    cdef harp_instance *_open(self) except NULL:
        if self._handle is None or self._handle.instance == NULL:
            raise ValueError("this instance is closed")
        if self._handle.pid != getpid():
            raise RuntimeError(
                f"this instance belongs to process {self._handle.pid}; "
                "a forked child cannot use it"
            )
        return self._handle.instance

    cdef _hold(self):
        """Return a context manager inside which this thread may use the stack."""
        self._open()
        return contextlib.nullcontext() if self.driver is None else self.driver.hold()

    # ---- Properties and statistics ----
    @property
    def describe(self):
        """One line for people: "AF_XDP generic copy on eth1 queue 0, MTU 1500, ..."."""
        return harp_instance_describe(self._open()).decode("utf-8", "replace")

    @property
    def mac(self):
        """The interface's MAC address, 6 bytes."""
        self._open()
        return self._stack.nic.mac

    @property
    def mtu_bytes(self):
        """The largest IP packet, at the time of opening."""
        self._open()
        return self._stack.nic.mtu_bytes

    def fileno(self):
        """Return a descriptor that is readable when packets wait. Do not close or read it. -1:
        there is none (most DPDK devices), so call poll() regularly.
        """
        return harp_instance_fd(self._open())

    def control_fileno(self):
        """Return a descriptor that is readable when addresses, routes, neighbors or the link
        changed.
        """
        return harp_instance_control_fd(self._open())

    def stats(self):
        """Return all statistics of the stack by name."""
        with self._hold():
            return self._stack.stats()

    def snapshot(self):
        """Return the statistics and the time as a numpy record: see Stack.snapshot()."""
        with self._hold():
            return self._stack.snapshot()

    def flows(self):
        """Return the connections that Python holds, as a numpy array: see Stack.flows()."""
        with self._hold():
            return self._stack.flows()

    def steering(self):
        """Return the XDP program's counts of the interface's packets, by verdict
        (docs/metrics.md). OSError ENOTSUP for a lease: harpd has the counts.
        """
        cdef uint64_t counts[STEERING_MAX]
        cdef int count = 0
        memset(counts, 0, sizeof(counts))
        with self._hold():
            count = harp_instance_steering(self._open(), counts, STEERING_MAX)
        check(count, f"steering of {self.ifname}")
        verdicts = _page.LISTS["verdict"][:count]
        return {name: counts[i] for i, (name, _) in enumerate(verdicts)}

    cdef Driver _driven(self):
        self._open()
        if self.driver is None:
            raise ValueError("opened with drive=False: use `stack`, and poll()")
        return self.driver

    # ---- Without a driver ----
    @property
    def stack(self):
        """The Stack. With a driver, make calls on it inside driver.hold()."""
        self._open()
        return self._stack

    def poll(self):
        """drive=False: poll once now (CLOCK_MONOTONIC), and apply changes of the kernel's tables.
        Return the amount of work done. OSError ENODEV: the interface is gone. An interface that is
        down is no error.
        """
        cdef harp_instance *instance = self._open()
        if self.driver is not None:
            raise ValueError("a driver polls this instance")
        cdef uint64_t now_ns = drive_now_ns()
        cdef int rc
        work = self._stack.poll(now_ns)
        with nogil:
            rc = harp_instance_control(instance, now_ns)
        if rc < 0 and rc not in (-100, -67):  # ENETDOWN, ENOLINK
            check(rc, self.ifname)
        return work

    @property
    def closed(self):
        """Whether close() was called."""
        return self._handle is None or self._handle.instance == NULL

    def close(self):
        """End the waits of other threads, drop every connection without notice to the peers, and
        release queue and ports. Call Endpoint.close() first for an orderly end. BufferError while
        memory of a frame is in use. May be called twice.
        """
        if self.closed:
            return
        if self._handle.pid != getpid():
            return  # the child's copies were closed at the fork, and it owns nothing else
        if self.driver is not None and not self.driver.closed:
            with self.driver.hold():
                self._stack._check_lent()
            self.driver.close()
        self._stack._check_lent()
        self._stack._detach()
        self._handle._close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
