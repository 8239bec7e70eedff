# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""NICs for stacks: packets as Python bytes, or a wire in memory between several stacks."""

import warnings
import weakref
from collections import deque

from libc.string cimport memcpy, memset

from harp._c cimport *
from harp._check cimport check

cdef enum:
    FRAME_COUNT = 1024  # of the pool of each NIC


cdef int _parse(str text, harp_addr *out) except -1:
    encoded = text.encode()
    if harp_addr_parse(encoded, out) < 0:
        raise ValueError(f"{text!r} is neither an IPv4 nor an IPv6 address")
    return 0


cdef int _endpoint(str address, int port, unsigned scope_id, harp_endpoint *out) except -1:
    memset(out, 0, sizeof(harp_endpoint))
    _parse(address, &out.addr)
    if not 0 <= port <= 65535:
        raise ValueError(f"{port} is not a port")
    out.port = port
    if out.addr.bytes[0] == 0xFE and out.addr.bytes[1] & 0xC0 == 0x80:
        out.scope_id = scope_id
    return 0


cdef str _format(const harp_addr *addr):
    cdef char text[HARP_ADDR_TEXT_MAX]
    return harp_addr_format(addr, text).decode()


cdef int _mac(mac, uint8_t *out) except -1:
    raw = bytes.fromhex(mac.replace(":", "")) if isinstance(mac, str) else bytes(mac)
    if len(raw) != 6:
        raise ValueError(f"{mac!r} is not a MAC address of 6 bytes")
    memcpy(out, <const char *>raw, 6)
    return 0


cdef _left_open(what):
    warnings.warn(f"a {what} was collected while open: close() it", ResourceWarning)


cdef class _Context:
    """A context manager that calls close() at the end."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


cdef class Nic:
    """A NIC for a stack, of Wire.port() or of a subclass."""

    cdef harp_nic *_open(self) except NULL:
        if self.nic == NULL or (self.parent is not None and self.parent.closed):
            raise ValueError("this NIC is closed")
        return self.nic

    @property
    def mac(self):
        """The MAC address, 6 bytes."""
        cdef harp_nic *nic = self._open()
        return bytes((<char *>nic.caps.mac)[:6])

    @property
    def mtu_bytes(self):
        """The largest IP packet."""
        return self._open().caps.mtu_bytes

    @property
    def mode(self):
        """The NIC's mode, one line for people."""
        return self._open().caps.mode.decode()


cdef size_t _callback_receive(void *ctx, void *buf, size_t cap) noexcept with gil:
    cdef bytes frame
    nic = <CallbackNic>ctx
    while nic._inbound:
        frame = nic._inbound.popleft()
        if len(frame) <= cap:
            memcpy(buf, <const char *>frame, len(frame))
            return len(frame)
    return 0


cdef int _callback_send(void *ctx, const void *frame, size_t length) noexcept with gil:
    (<CallbackNic>ctx)._outbound.append((<const char *>frame)[:length])
    return 0


cdef class CallbackNic(Nic):
    """A NIC whose packets are Python bytes: inject() delivers packets to the stack, collect()
    returns its packets. Raw Ethernet frames without FCS.

    Parameters
    ----------
    mac
        The MAC address.
    mtu_bytes
        The largest IP packet.
    """

    cdef object _inbound
    cdef list _outbound

    def __cinit__(self, *args, **kwargs):
        self._inbound = deque()
        self._outbound = []

    def __init__(self, *, mac="02:00:00:00:00:01", int mtu_bytes=1500):
        cdef harp_nic_callbacks callbacks
        memset(&callbacks, 0, sizeof(callbacks))
        callbacks.size = sizeof(callbacks)
        callbacks.mtu_bytes = mtu_bytes
        callbacks.frame_count = FRAME_COUNT
        callbacks.ctx = <void *>self
        callbacks.receive = _callback_receive
        callbacks.send = _callback_send
        _mac(mac, callbacks.mac)
        check(harp_nic_callback_create(&self.nic, &callbacks), "callback NIC")

    def inject(self, frame):
        """Queue a frame that the stack receives at its next poll.

        Parameters
        ----------
        frame
            Anything that bytes() accepts: bytes, or scapy's packets.
        """
        self._open()
        self._inbound.append(bytes(frame))

    def collect(self):
        """Return the frames that the stack has sent, oldest first."""
        frames = self._outbound
        self._outbound = []
        return frames

    @property
    def closed(self):
        """Whether close() was called."""
        return self.nic == NULL

    def close(self):
        """Free the NIC. Close its stack first."""
        if self.nic == NULL:
            return
        if self.users:
            raise ValueError("a stack still uses this NIC: close it first")
        harp_nic_destroy(self.nic)
        self.nic = NULL

    def __dealloc__(self):
        if self.nic != NULL:
            _left_open("CallbackNic")
            harp_nic_destroy(self.nic)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


cdef class Wire(_Context):
    """Packets in memory between ports, with configurable impairments.

    Parameters
    ----------
    ports
        Ends of the wire, 2 or more.
    seed
        Seed of the impairments' random numbers.
    mtu_bytes
        The largest IP packet.
    strict
        Whether the wire checks that stacks do not change frames after sending them.
    """

    cdef harp_wire *wire
    cdef readonly unsigned ports
    cdef list _nics
    cdef object __weakref__

    def __init__(self, *, unsigned ports=2, seed=0, int mtu_bytes=1500, bint strict=True):
        cdef harp_wire_options options
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        options.ports = ports
        options.seed = seed
        options.mtu_bytes = mtu_bytes
        options.frame_count = FRAME_COUNT
        options.strict = strict
        check(harp_wire_create(&self.wire, &options), "wire")
        self.ports = ports
        self._nics = [None] * ports

    cdef harp_wire *_open(self) except NULL:
        if self.wire == NULL:
            raise ValueError("this wire is closed")
        return self.wire

    def port(self, unsigned index):
        """Return the NIC at one end.

        Parameters
        ----------
        index
            The port, from 0.

        Returns
        -------
        Nic
            The NIC, for one stack.
        """
        cdef harp_nic *nic = harp_wire_port(self._open(), index)
        cdef Nic port
        if nic == NULL:
            raise IndexError(f"the wire has {self.ports} ports, no port {index}")
        existing = self._nics[index]() if self._nics[index] is not None else None
        if existing is not None:
            return existing
        port = Nic()
        port.nic = nic
        port.parent = self
        self._nics[index] = weakref.ref(port)
        return port

    def impair(self, unsigned port, *, delay_ns=0, jitter_ns=0, rate_bps=0, queue_bytes=0,
               loss_ppm=0, duplicate_ppm=0, reorder_ppm=0, reorder_ns=0, corrupt_ppm=0, down=False):
        """Set the impairments of packets that this port sends; replaces all previous ones.

        Parameters
        ----------
        port
            The port.
        delay_ns, jitter_ns
            Delay of each packet, and maximum of its random addition, in nanoseconds.
        rate_bps, queue_bytes
            Bits per second, and the queue in front of that; 0: no limit.
        loss_ppm, duplicate_ppm, corrupt_ppm
            Packets per million that are lost, duplicated, or corrupted.
        reorder_ppm, reorder_ns
            Packets per million with an additional delay, and this delay in nanoseconds.
        down
            Whether the port loses all packets.
        """
        cdef harp_wire_impair_t impair
        memset(&impair, 0, sizeof(impair))
        impair.delay_ns = delay_ns
        impair.jitter_ns = jitter_ns
        impair.rate_bps = rate_bps
        impair.queue_bytes = queue_bytes
        impair.loss_ppm = loss_ppm
        impair.duplicate_ppm = duplicate_ppm
        impair.reorder_ppm = reorder_ppm
        impair.reorder_ns = reorder_ns
        impair.corrupt_ppm = corrupt_ppm
        impair.down = down
        check(harp_wire_set_impair(self._open(), port, &impair), f"port {port}")

    def stats(self, unsigned port):
        """Return the counts of packets that this port sent.

        Parameters
        ----------
        port
            The port.

        Returns
        -------
        dict
            Counts by name.
        """
        cdef harp_wire_stats_t stats
        check(harp_wire_stats(self._open(), port, &stats), f"port {port}")
        return dict(stats)

    @property
    def in_flight(self):
        """Packets in flight."""
        return harp_wire_in_flight(self._open())

    @property
    def closed(self):
        """Whether close() was called."""
        return self.wire == NULL

    def close(self):
        """Free the wire and its NICs. Close their stacks first."""
        cdef Nic nic
        if self.wire == NULL:
            return
        for reference in self._nics:
            nic = reference() if reference is not None else None
            if nic is not None and nic.users:
                raise ValueError("a stack still uses a port of this wire: close it first")
        harp_wire_destroy(self.wire)
        self.wire = NULL

    def __dealloc__(self):
        if self.wire != NULL:
            _left_open("Wire")
            harp_wire_destroy(self.wire)
