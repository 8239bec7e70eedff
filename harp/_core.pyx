# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Bindings to the stack (harp.h): one class per C object.

Children keep their parents alive; close() is safe twice; an open object that is collected warns and
is closed. Calls that fail raise OSError with the stack's errno; "nothing now" is BlockingIOError.
A stack and all that belongs to it is used by one thread at a time, as in C.
"""

import enum
import os
import warnings
import weakref
from collections import deque

from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from harp._core cimport *


class Event(enum.IntFlag):
    """What next_events() reports (HARP_EVENT_* of harp.h)."""

    CONNECTED = 0x01
    READABLE = 0x02
    WRITABLE = 0x04
    ACKED = 0x08
    EOF = 0x10
    CLOSED = 0x20
    ACCEPT = 0x40


cdef _fail(long rc, str what):
    raise OSError(-rc, f"{what}: {os.strerror(-rc)}")


cdef _check(long rc, str what):
    if rc < 0:
        _fail(rc, what)


cdef int _parse(str text, harp_addr *out) except -1:
    encoded = text.encode()
    if harp_addr_parse(encoded, out) < 0:
        raise ValueError(f"{text!r} is neither an IPv4 nor an IPv6 address")
    return 0


cdef int _endpoint(str address, int port, unsigned scope_id, harp_endpoint *out) except -1:
    memset(out, 0, sizeof(harp_endpoint))
    _parse(address, &out.addr)
    if not 0 <= port <= 65535:
        raise ValueError(f"{port} is no port")
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


def version():
    """The library's version, "0.1.0"."""
    return harp_version().decode()


def api_version():
    """HARP_API_VERSION as compiled into the library."""
    return harp_api_version()


def stat_names():
    """Names of all statistics, in the order of harp_stats.h, with their help texts."""
    return {
        harp_stats_name(i).decode(): harp_stats_help(i).decode() for i in range(harp_stats_count())
    }


def host_check(str ifname, int queue=0):
    """Would HARP work on this interface? A list of (name, severity 0..2, text, remedy)."""
    cdef harp_check_item items[64]
    cdef int count
    if queue < 0:
        raise ValueError(f"queue {queue} is negative")
    encoded = ifname.encode()
    memset(items, 0, sizeof(items))
    count = harp_host_check(encoded, queue, items, 64)
    _check(count, f"check of {ifname}")
    return [
        (
            items[i].name.decode("utf-8", "replace"),
            items[i].severity,
            items[i].text.decode("utf-8", "replace"),
            items[i].remedy.decode("utf-8", "replace"),
        )
        for i in range(min(count, 64))
    ]


def config_keys():
    """The settings of harp_config.h, one dict each; harp.config.keys gives them types."""
    cdef const harp_config_key_t *key
    result = []
    for index in range(harp_config_count()):
        key = harp_config_key_at(index)
        result.append(
            {
                "name": key.name.decode(),
                "table": key.table.decode(),
                "key": key.key.decode(),
                "unit": key.unit.decode(),
                "preset": key.preset.decode(),
                "help": key.help.decode(),
                "min": key.min,
                "max": key.max,
                "type": key.type,
                "apply": key.apply,
                "readers": key.readers,
            }
        )
    return result


# --------------------------------------------------------------------------------------------------
# NICs.
#
cdef class Nic:
    """What a stack sits on. Made by Wire.port() or by a subclass."""

    cdef harp_nic *nic
    cdef int users  # open stacks
    cdef object parent
    cdef object __weakref__

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
        """One line for people."""
        return self._open().caps.mode.decode()


cdef size_t _callback_receive(void *ctx, void *buf, size_t cap) noexcept with gil:
    cdef bytes frame
    nic = <CallbackNic>ctx
    while nic._inbound:
        frame = nic._inbound.popleft()
        if len(frame) <= cap:
            memcpy(buf, <const char *>frame, len(frame))
            return len(frame)
        nic.oversize += 1
    return 0


cdef int _callback_send(void *ctx, const void *frame, size_t length) noexcept with gil:
    (<CallbackNic>ctx)._outbound.append((<const char *>frame)[:length])
    return 0


cdef class CallbackNic(Nic):
    """A NIC whose packets are Python bytes: inject() what the stack shall receive, collect() what
    it sent. Raw Ethernet frames without FCS."""

    cdef object _inbound
    cdef list _outbound
    cdef readonly int oversize  # frames dropped because the stack offered too little room

    def __cinit__(self, *args, **kwargs):
        self._inbound = deque()
        self._outbound = []

    def __init__(self, *, mac="02:00:00:00:00:01", int mtu_bytes=1500, int frame_size=0,
                 int frame_count=1024):
        cdef harp_nic_callbacks callbacks
        memset(&callbacks, 0, sizeof(callbacks))
        callbacks.size = sizeof(callbacks)
        callbacks.mtu_bytes = mtu_bytes
        callbacks.frame_size = frame_size
        callbacks.frame_count = frame_count
        callbacks.ctx = <void *>self
        callbacks.receive = _callback_receive
        callbacks.send = _callback_send
        _mac(mac, callbacks.mac)
        _check(harp_nic_callback_create(&self.nic, &callbacks), "callback NIC")

    def inject(self, frame):
        """A frame for the stack to receive at its next poll."""
        self._open()
        self._inbound.append(bytes(frame))

    def collect(self):
        """Takes the frames that the stack has sent, oldest first."""
        frames = self._outbound
        self._outbound = []
        return frames

    @property
    def closed(self):
        return self.nic == NULL

    def close(self):
        """Frees the NIC. Its stacks must be closed before."""
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


cdef class Wire:
    """Packets in memory between ports, with everything that can go wrong on the way."""

    cdef harp_wire *wire
    cdef readonly unsigned ports
    cdef list _nics
    cdef object __weakref__

    def __init__(self, *, unsigned ports=2, seed=0, int mtu_bytes=1500, int frame_size=0,
                 int frame_count=1024, bint strict=True, complete_delay_ns=0):
        cdef harp_wire_options options
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        options.ports = ports
        options.seed = seed
        options.mtu_bytes = mtu_bytes
        options.frame_size = frame_size
        options.frame_count = frame_count
        options.strict = strict
        options.complete_delay_ns = complete_delay_ns
        _check(harp_wire_create(&self.wire, &options), "wire")
        self.ports = ports
        self._nics = [None] * ports

    cdef harp_wire *_open(self) except NULL:
        if self.wire == NULL:
            raise ValueError("this wire is closed")
        return self.wire

    def port(self, unsigned index):
        """The NIC at one end."""
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
        """Sets what happens to packets that this port sends; all of it anew."""
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
        _check(harp_wire_set_impair(self._open(), port, &impair), f"port {port}")

    def stats(self, unsigned port):
        """What happened to the packets that this port sent."""
        cdef harp_wire_stats_t stats
        _check(harp_wire_stats(self._open(), port, &stats), f"port {port}")
        return dict(stats)

    @property
    def in_flight(self):
        """Packets under way."""
        return harp_wire_in_flight(self._open())

    @property
    def closed(self):
        return self.wire == NULL

    def close(self):
        """Frees the wire and its NICs. Their stacks must be closed before."""
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

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


# --------------------------------------------------------------------------------------------------
# Stacks, listeners, connections.
#
cdef void _stack_log(void *ctx, harp_log_level level, const char *message) noexcept with gil:
    stack = <Stack>ctx
    try:
        stack._log(<int>level, message.decode("utf-8", "replace"))
    except Exception as error:
        stack._log_error = error  # raised by the poll that is running


_ECN = {"default": 0, "off": 1, "request": 2}


cdef int _congestion(str name) except -1:
    encoded = name.encode()
    cdef int congestion = harp_congestion_from_name(encoded)
    if congestion < 0:
        raise ValueError(f"{name!r} is no congestion control")
    return congestion


cdef int _tcp_options(harp_tcp_options *out, dict given) except -1:
    memset(out, 0, sizeof(harp_tcp_options))
    out.size = sizeof(harp_tcp_options)
    given = dict(given)
    out.rx_frames = given.pop("rx_frames", 0)
    out.tx_frames = given.pop("tx_frames", 0)
    out.backlog = given.pop("backlog", 0)
    out.connect_timeout_ns = given.pop("connect_timeout_ns", 0)
    out.user_timeout_ns = given.pop("user_timeout_ns", 0)
    out.keepalive_idle_ns = given.pop("keepalive_idle_ns", 0)
    out.keepalive_interval_ns = given.pop("keepalive_interval_ns", 0)
    out.keepalive_count = given.pop("keepalive_count", 0)
    out.dscp = given.pop("dscp", 0)
    out.unsent_bytes_max = given.pop("unsent_bytes_max", 0)
    out.fixed_window_bytes = given.pop("fixed_window_bytes", 0)
    out.congestion = _congestion(given.pop("congestion", "default"))
    out.ecn = _ECN[given.pop("ecn", "default")]
    if given:
        raise TypeError(f"no such TCP option: {', '.join(given)}")
    return 0


cdef class Stack:
    """A TCP stack on a NIC, advanced by poll(now_ns) and by nothing else."""

    cdef harp_stack *stack
    cdef readonly Nic nic
    cdef object _conns  # address of the C object -> Connection, weakly
    cdef object _log
    cdef object _log_error
    cdef readonly unsigned scope_id
    cdef object __weakref__

    def __init__(self, Nic nic not None, *, seed=0, now_ns=0, unsigned max_conns=0,
                 unsigned max_listeners=0, unsigned max_neighbours=0, port_min=0, port_max=0,
                 bint own_neighbours=True, log=None, unsigned scope_id=0, vlan_id=0):
        cdef harp_stack_options options
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        options.max_conns = max_conns
        options.max_listeners = max_listeners
        options.max_neighbours = max_neighbours
        options.port_min = port_min
        options.port_max = port_max
        options.neighbour_mode = HARP_NEIGHBOUR_OWN if own_neighbours else HARP_NEIGHBOUR_EXTERNAL
        options.seed = seed
        options.now_ns = now_ns
        self.scope_id = options.scope_id = scope_id
        options.vlan_id = vlan_id
        self._log = log
        if log is not None:
            options.hooks.ctx = <void *>self
            options.hooks.log = _stack_log
        self._conns = weakref.WeakValueDictionary()
        _check(harp_stack_create(&self.stack, nic._open(), &options), "stack")
        self.nic = nic
        nic.users += 1

    cdef harp_stack *_open(self) except NULL:
        if self.stack == NULL:
            raise ValueError("this stack is closed")
        return self.stack

    cdef Connection _wrap(self, harp_conn *conn):
        cdef Connection wrapped = Connection.__new__(Connection)
        wrapped.conn = conn
        wrapped.stack = self
        self._conns[<size_t>conn] = wrapped
        return wrapped

    def poll(self, uint64_t now_ns):
        """Receives, runs timers, transmits. Returns how much there was to do."""
        did = harp_stack_poll(self._open(), now_ns)
        if self._log_error is not None:
            error, self._log_error = self._log_error, None
            raise error
        return did

    @property
    def next_deadline_ns(self):
        """When poll() must be called next if nothing arrives; None when never."""
        cdef uint64_t when = harp_stack_next_deadline_ns(self._open())
        return None if when == <uint64_t>-1 else when

    @property
    def now_ns(self):
        """The clock as of the last poll."""
        return harp_stack_now_ns(self._open())

    def address_add(self, str address not None, unsigned prefix_len):
        """Adds an own address; its prefix becomes a route."""
        cdef harp_addr addr
        _parse(address, &addr)
        _check(harp_stack_address_add(self._open(), &addr, prefix_len), address)

    def address_remove(self, str address not None):
        """Removes an own address."""
        cdef harp_addr addr
        _parse(address, &addr)
        _check(harp_stack_address_remove(self._open(), &addr), address)

    def route_add(self, str prefix not None, unsigned prefix_len, str gateway=None,
                  unsigned mtu_bytes=0):
        """Adds a route; without gateway it is on-link."""
        cdef harp_addr addr
        cdef harp_addr via
        _parse(prefix, &addr)
        if gateway is not None:
            _parse(gateway, &via)
        _check(harp_stack_route_add(self._open(), &addr, prefix_len,
                                    NULL if gateway is None else &via, mtu_bytes), prefix)

    def neighbour_set(self, str address not None, mac):
        """Sets a neighbour's MAC address; None removes it."""
        cdef harp_addr addr
        cdef uint8_t raw[6]
        _parse(address, &addr)
        if mac is not None:
            _mac(mac, raw)
        _check(harp_stack_neighbour_set(self._open(), &addr, NULL if mac is None else raw),
               address)

    def listen(self, int port, str address="0.0.0.0", **options):
        """Listens; options as struct harp_tcp_options."""
        cdef harp_endpoint local
        cdef harp_tcp_options tcp
        cdef Listener listener = Listener.__new__(Listener)
        memset(&local, 0, sizeof(local))
        if address not in ("0.0.0.0", "::"):
            _parse(address, &local.addr)
        local.port = port
        _tcp_options(&tcp, options)
        _check(harp_tcp_listen(self._open(), &local, &tcp, &listener.listener),
               f"listen on {address} port {port}")
        listener.stack = self
        return listener

    def connect(self, str address not None, int port, str local_address=None, int local_port=0,
                **options):
        """Begins to connect; next_events() tells how it went."""
        cdef harp_endpoint local
        cdef harp_endpoint remote
        cdef harp_tcp_options tcp
        cdef harp_conn *conn = NULL
        memset(&local, 0, sizeof(local))
        memset(&remote, 0, sizeof(remote))
        _endpoint(address, port, self.scope_id, &remote)
        if local_address is not None:
            _parse(local_address, &local.addr)
        local.port = local_port
        _tcp_options(&tcp, options)
        _check(harp_tcp_connect(self._open(), &local, &remote, &tcp, &conn),
               f"connect to {address} port {port}")
        return self._wrap(conn)

    def udp(self, int port=0, str address="::", **options):
        """A UDP socket; options as struct harp_udp_options."""
        cdef harp_endpoint local
        cdef harp_udp_options udp
        cdef UdpSocket sock = UdpSocket.__new__(UdpSocket)
        _endpoint("::" if address == "0.0.0.0" else address, port, self.scope_id, &local)
        memset(&udp, 0, sizeof(udp))
        udp.size = sizeof(udp)
        udp.rx_frames = options.pop("rx_frames", 0)
        udp.tx_frames = options.pop("tx_frames", 0)
        udp.dscp = options.pop("dscp", 0)
        if options:
            raise TypeError(f"no such UDP option: {', '.join(options)}")
        _check(harp_udp_open(self._open(), &local, &udp, &sock.sock), f"UDP port {port}")
        sock.stack = self
        return sock

    def next_events(self):
        """All pending events, as [(Connection, Event)]; they are cleared."""
        cdef uint32_t events = 0
        cdef harp_conn *conn
        found = []
        while True:
            conn = harp_stack_next_event(self._open(), &events)
            if conn == NULL:
                return found
            wrapped = self._conns.get(<size_t>conn)
            if wrapped is not None:
                found.append((wrapped, Event(events)))

    def stat(self, str name not None):
        """One statistic of harp_stats.h."""
        cdef uint64_t value = 0
        encoded = name.encode()
        if harp_stack_stat(self._open(), encoded, &value) < 0:
            raise KeyError(name)
        return value

    def stats(self):
        """All statistics by name."""
        cdef harp_stack *stack = self._open()
        cdef unsigned count = harp_stats_count()
        cdef uint64_t *values = <uint64_t *>calloc(count, sizeof(uint64_t))
        if values == NULL:
            raise MemoryError
        try:
            count = harp_stack_stats(stack, values, count)
            return {harp_stats_name(i).decode(): values[i] for i in range(count)}
        finally:
            free(values)

    def capture_start(self, size_t ring_bytes, unsigned snap_len=0):
        """Keeps the newest packets in a ring."""
        _check(harp_stack_capture_start(self._open(), ring_bytes, snap_len), "capture")

    def capture_write(self, file, int64_t wall_offset_ns=0):
        """Writes the ring as pcapng to a file object or descriptor."""
        fd = file if isinstance(file, int) else file.fileno()
        _check(harp_stack_capture_write(self._open(), fd, wall_offset_ns), "capture")

    def capture_stop(self):
        """Ends the capture and frees its ring."""
        harp_stack_capture_stop(self._open())

    @property
    def closed(self):
        return self.stack == NULL

    def close(self):
        """Drops every connection without a word and frees the stack."""
        if self.stack != NULL:
            harp_stack_destroy(self.stack)
            self.stack = NULL
            self.nic.users -= 1

    def __dealloc__(self):
        if self.stack != NULL:
            _left_open("Stack")
            harp_stack_destroy(self.stack)
            self.nic.users -= 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


cdef class Listener:
    """A listening port; made by Stack.listen()."""

    cdef harp_listener *listener
    cdef readonly Stack stack
    cdef object __weakref__

    def __init__(self):
        raise TypeError("Stack.listen() makes listeners")

    cdef harp_listener *_open(self) except NULL:
        if self.listener == NULL or self.stack.stack == NULL:
            raise ValueError("this listener is closed")
        return self.listener

    def accept(self):
        """Takes an established connection; None when there is none."""
        cdef harp_conn *conn = NULL
        cdef int rc = harp_tcp_accept(self._open(), &conn)
        if rc == -11:  # EAGAIN
            return None
        _check(rc, "accept")
        return self.stack._wrap(conn)

    @property
    def endpoint(self):
        """(address, port) it listens on."""
        cdef harp_endpoint local
        harp_listener_endpoint(self._open(), &local)
        return _format(&local.addr), local.port

    @property
    def closed(self):
        return self.listener == NULL or self.stack.stack == NULL

    def close(self):
        """Stops listening; connections not yet accepted are reset."""
        if not self.closed:
            harp_listener_close(self.listener)
        self.listener = NULL

    def __dealloc__(self):
        if self.listener != NULL and self.stack is not None and self.stack.stack != NULL:
            _left_open("Listener")
            harp_listener_close(self.listener)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


cdef class Connection:
    """A TCP connection; made by Stack.connect() or Listener.accept()."""

    cdef harp_conn *conn
    cdef readonly Stack stack
    cdef object __weakref__

    def __init__(self):
        raise TypeError("Stack.connect() and Listener.accept() make connections")

    cdef harp_conn *_open(self) except NULL:
        if self.conn == NULL or self.stack.stack == NULL:
            raise ValueError("this connection is closed")
        return self.conn

    cdef _forget(self):
        self.stack._conns.pop(<size_t>self.conn, None)
        self.conn = NULL

    def send(self, const uint8_t[::1] data not None):
        """Takes bytes to send; returns how many. BlockingIOError when none could be taken."""
        cdef iovec piece
        cdef ssize_t sent
        cdef harp_conn *conn = self._open()
        if data.shape[0] == 0:
            return 0
        piece.iov_base = <void *>&data[0]
        piece.iov_len = data.shape[0]
        sent = harp_conn_send(conn, &piece, 1)
        _check(sent, "send")
        return sent

    @property
    def send_room(self):
        """Bytes that send() would take now."""
        return harp_conn_send_room(self._open())

    def recv(self, size_t size=65536):
        """Takes received bytes; b"" at the end of the stream; BlockingIOError when none wait."""
        cdef harp_conn *conn = self._open()
        buffer = bytearray(size)
        cdef char *target = buffer
        cdef ssize_t got = harp_conn_recv(conn, target, size)
        _check(got, "recv")
        return bytes(buffer[:got])

    @property
    def error(self):
        """0, or the errno that ended the connection."""
        return -harp_conn_error(self._open())

    @property
    def endpoints(self):
        """((local address, port), (remote address, port))."""
        cdef harp_endpoint local
        cdef harp_endpoint remote
        harp_conn_endpoints(self._open(), &local, &remote)
        return (_format(&local.addr), local.port), (_format(&remote.addr), remote.port)

    @property
    def acked_bytes(self):
        """Bytes of ours that the peer has acknowledged."""
        return harp_conn_acked_bytes(self._open())

    @property
    def state(self):
        """Name of the TCP state."""
        return self.info()["state_name"]

    def info(self):
        """struct harp_tcp_info as a dict, and state_name."""
        cdef harp_tcp_info info
        memset(&info, 0, sizeof(info))
        _check(harp_conn_info(self._open(), &info, sizeof(info)), "info")
        fields = dict(info)
        fields["congestion_name"] = harp_congestion_name(<harp_congestion>info.congestion).decode()
        fields["state_name"] = harp_tcp_state_name(<harp_tcp_state>info.state).decode()
        return fields

    def set_keepalive(self, idle_ns, interval_ns=0, unsigned count=0):
        """Changes keepalive; idle_ns 0 turns it off."""
        _check(harp_conn_set_keepalive(self._open(), idle_ns, interval_ns, count), "keepalive")

    def probe(self):
        """Sends one keepalive probe at the next poll."""
        _check(harp_conn_probe(self._open()), "probe")

    def shutdown(self):
        """FIN after what is queued; receiving goes on."""
        _check(harp_conn_shutdown(self._open()), "shutdown")

    @property
    def closed(self):
        return self.conn == NULL or self.stack.stack == NULL

    def close(self):
        """Orderly end; the stack finishes alone."""
        if not self.closed:
            harp_conn_close(self.conn)
            self._forget()

    def abort(self):
        """Sends RST and forgets the connection."""
        if not self.closed:
            harp_conn_abort(self.conn)
            self._forget()

    def __dealloc__(self):
        if self.conn != NULL and self.stack is not None and self.stack.stack != NULL:
            _left_open("Connection")
            harp_conn_abort(self.conn)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


# --------------------------------------------------------------------------------------------------
# UDP.
#
cdef class UdpSocket:
    """A UDP socket; made by Stack.udp()."""

    cdef harp_udp *sock
    cdef readonly Stack stack
    cdef object __weakref__

    def __init__(self):
        raise TypeError("Stack.udp() makes sockets")

    cdef harp_udp *_open(self) except NULL:
        if self.sock == NULL or self.stack.stack == NULL:
            raise ValueError("this socket is closed")
        return self.sock

    def connect(self, str address=None, int port=0):
        """Only this peer from now on; without an address, everyone again."""
        cdef harp_endpoint remote
        if address is not None:
            _endpoint(address, port, self.stack.scope_id, &remote)
        _check(harp_udp_connect(self._open(), NULL if address is None else &remote), "connect")

    def send(self, const uint8_t[::1] data not None, str address=None, int port=0):
        """One datagram, to the connected peer or to an address. BlockingIOError: no budget now."""
        cdef harp_endpoint remote
        cdef iovec piece
        cdef ssize_t sent
        if address is not None:
            _endpoint(address, port, self.stack.scope_id, &remote)
        piece.iov_base = <void *>&data[0] if data.shape[0] else NULL
        piece.iov_len = data.shape[0]
        sent = harp_udp_send(self._open(), NULL if address is None else &remote, &piece, 1)
        _check(sent, "send")
        return sent

    def recv(self, size_t size=65536):
        """One datagram as (bytes, real length, (address, port)); BlockingIOError: none waits."""
        cdef harp_endpoint source
        buffer = bytearray(size)
        cdef char *target = buffer
        cdef ssize_t got = harp_udp_recv(self._open(), target, size, &source)
        _check(got, "recv")
        return bytes(buffer[:got]), got, (_format(&source.addr), source.port)

    def error(self):
        """The newest error as (errno, (address, port) it is about), or None; it is taken."""
        cdef harp_endpoint about
        cdef int err = harp_udp_error(self._open(), &about)
        return None if err == 0 else (-err, (_format(&about.addr), about.port))

    def payload_max(self, str address=None, int port=0):
        """Bytes of the largest datagram to there."""
        cdef harp_endpoint remote
        if address is not None:
            _endpoint(address, port, self.stack.scope_id, &remote)
        cdef int most = harp_udp_payload_max(self._open(), NULL if address is None else &remote)
        _check(most, "payload_max")
        return most

    @property
    def endpoints(self):
        """((local address, port), (remote address, port)); the remote port is 0 unconnected."""
        cdef harp_endpoint local
        cdef harp_endpoint remote
        harp_udp_endpoints(self._open(), &local, &remote)
        return (_format(&local.addr), local.port), (_format(&remote.addr), remote.port)

    @property
    def closed(self):
        return self.sock == NULL or self.stack.stack == NULL

    def close(self):
        """Drops what is queued and closes."""
        if not self.closed:
            harp_udp_close(self.sock)
        self.sock = NULL

    def __dealloc__(self):
        if self.sock != NULL and self.stack is not None and self.stack.stack != NULL:
            _left_open("UdpSocket")
            harp_udp_close(self.sock)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
