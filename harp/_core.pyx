# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Bindings to the stack (harp.h): one class per C object.

Children keep their parents alive. close() may be called twice; an open object that is collected
warns and is closed. Failed calls raise OSError with the stack's errno; BlockingIOError means "not
now". As in C, one thread at a time uses a stack and its objects. A stack that a harp.Driver polls
belongs to the driver: calls outside Driver.hold() raise RuntimeError.
"""

import weakref

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.unistd cimport getpid

cimport cython

from harp._c cimport *
from harp._check cimport check
from harp._nic cimport Nic, _Context, _endpoint, _format, _left_open, _mac, _parse

from harp._types import Event, PortSpec


def version():
    """Return the library's version, "0.1.0"."""
    return harp_version().decode()


def stat_names():
    """Return the names of all statistics, in the order of harp_stats.h, with their help texts."""
    return {
        harp_stats_name(i).decode(): harp_stats_help(i).decode() for i in range(harp_stats_count())
    }


_dtypes = {}


cdef _stats_dtype():
    """Return numpy's dtype of Stack.snapshot(): now_ns, then each statistic by name, all uint64."""
    if "stats" not in _dtypes:
        import numpy

        _dtypes["stats"] = numpy.dtype([(name, "u8") for name in ("now_ns", *stat_names())])
    return _dtypes["stats"]


cdef _flow_dtype():
    """Return numpy's dtype of Stack.flows()."""
    cdef harp_tcp_info info
    if "flow" not in _dtypes:
        import numpy

        memset(&info, 0, sizeof(info))
        ends = [("local", "U45"), ("local_port", "u2"), ("remote", "U45"), ("remote_port", "u2")]
        names = [("state_name", "U16"), ("congestion_name", "U16"), ("ca_state_name", "U16")]
        numbers = [(name, "u8") for name in dict(info)]
        _dtypes["flow"] = numpy.dtype(ends + names + numbers)
    return _dtypes["flow"]


def host_check(str ifname, int queue=0):
    """Check whether HARP works on an interface. Return (name, severity 0..2, text, remedy) rows."""
    cdef harp_check_item items[64]
    cdef int count
    if queue < 0:
        raise ValueError(f"queue {queue} is negative")
    encoded = ifname.encode()
    memset(items, 0, sizeof(items))
    count = harp_host_check(encoded, queue, items, 64)
    check(count, f"check of {ifname}")
    return [
        (
            items[i].name.decode("utf-8", "replace"),
            items[i].severity,
            items[i].text.decode("utf-8", "replace"),
            items[i].remedy.decode("utf-8", "replace"),
        )
        for i in range(min(count, 64))
    ]


def port_spec(str text):
    """Parse a DPDK port's specification (harp_host.h), without "dpdk:"; ValueError with the reason.
    """
    cdef harp_port_spec spec
    cdef char why[512]
    cdef char buf[HARP_PORT_TEXT_MAX]
    encoded = text.encode("utf-8", "surrogateescape")
    # C would end the text at a zero byte.
    rc = harp_port_spec_parse(encoded.replace(b"\0", b" "), &spec, why, sizeof(why))
    if rc < 0:
        raise ValueError(why.decode("utf-8", "replace"))
    check(harp_port_spec_format(&spec, buf, sizeof(buf)), "port")
    gateways = [_format(&spec.gateway_v4), _format(&spec.gateway_v6)]
    return PortSpec(
        spec.device.decode(),
        spec.name.decode(),
        tuple(
            f"{_format(&spec.addresses[i])}/{spec.prefix_lens[i]}"
            for i in range(spec.address_count)
        ),
        tuple(gateway for gateway in gateways if gateway != "::"),
        tuple(
            f"{_format(&spec.routes[i].prefix)}/{spec.routes[i].prefix_len}"
            f"@{_format(&spec.routes[i].gateway)}"
            for i in range(spec.route_count)
        ),
        spec.mtu_bytes,
        spec.vlan_id,
        spec.queues,
        spec.frame_count,
        bool(spec.take_default_route),
        buf.decode(),
    )


def config_keys():
    """Return the settings of harp_config.h, one dict each; harp.config.keys adds types."""
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
                "readers": key.readers,
            }
        )
    return result


# ---- Stacks, listeners, connections ----
cdef void _stack_log(void *ctx, harp_log_level level, const char *message) noexcept with gil:
    stack = <Stack>ctx
    try:
        stack._log(<int>level, message.decode("utf-8", "replace"))
    except Exception as error:
        stack._log_error = error  # raised by the running poll


SSTHRESH_NONE = HARP_SSTHRESH_NONE

_ECN = {"default": 0, "off": 1, "request": 2}
_HANDSHAKE = {
    "timestamps": HARP_TCPI_TIMESTAMPS,
    "sack": HARP_TCPI_SACK,
    "window_scaling": HARP_TCPI_WSCALE,
}


cdef int _congestion(str name) except -1:
    encoded = name.encode()
    cdef int congestion = harp_congestion_from_name(encoded)
    if congestion < 0:
        raise ValueError(f"{name!r} is not a congestion control")
    return congestion


cdef int _change_tcp_options(harp_tcp_options *out, dict options) except -1:
    """Set fields by the names of options."""
    fields = dict(out[0])
    changes = dict(options)
    if "congestion" in changes:
        changes["congestion"] = _congestion(changes["congestion"])
    if "ecn" in changes:
        if changes["ecn"] not in _ECN:
            raise ValueError(f"ecn {changes['ecn']!r} is not one of {', '.join(_ECN)}")
        changes["ecn"] = _ECN[changes["ecn"]]
    for name, bit in _HANDSHAKE.items():
        if name in changes:
            fields["options_off"] &= ~bit
            fields["options_off"] |= 0 if changes.pop(name) else bit
    unknown = changes.keys() - (fields.keys() - {"size", "options_off"})
    if unknown:
        raise TypeError(f"no such TCP option: {', '.join(unknown)}")
    out[0] = fields | changes
    return 0


cdef int _tcp_options(harp_tcp_options *out, dict options) except -1:
    memset(out, 0, sizeof(harp_tcp_options))
    out.size = sizeof(harp_tcp_options)
    return _change_tcp_options(out, options)


def _no_driver():
    return None


@cython.no_gc_clear
cdef class Stack(_Context):
    """A TCP stack on a NIC. Only poll(now_ns) advances it.

    Parameters
    ----------
    nic
        The NIC, for this stack only.
    seed
        Seed of the random numbers; 0: from the system.
    now_ns
        The clock at the start, in nanoseconds.
    max_conns, max_neighbors
        Limits; 0: the defaults of harp.h.
    port_min, port_max
        Range of the ports that the stack chooses; 0: the default.
    own_neighbors
        Whether it resolves neighbors; False: only neighbor_set() does.
    log
        Called as log(level, text) for each line of its log; None: no log.
    scope_id
        The interface's index, for link-local addresses.
    vlan_id
        The VLAN tag of its packets; 0: none.

    Raises
    ------
    OSError
        Memory is exhausted, or an option is out of range.
    """

    def __cinit__(self, *args, **kwargs):
        self._driver = _no_driver
        self._conns = weakref.WeakValueDictionary()

    def __init__(self, Nic nic not None, *, seed=0, now_ns=0, unsigned max_conns=0,
                 unsigned max_neighbors=0, port_min=0, port_max=0,
                 bint own_neighbors=True, log=None, unsigned scope_id=0, vlan_id=0):
        cdef harp_stack_options options
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        options.max_conns = max_conns
        options.max_neighbors = max_neighbors
        options.port_min = port_min
        options.port_max = port_max
        options.neighbor_mode = HARP_NEIGHBOR_OWN if own_neighbors else HARP_NEIGHBOR_EXTERNAL
        options.seed = seed
        options.now_ns = now_ns
        self.scope_id = options.scope_id = scope_id
        options.vlan_id = vlan_id
        self._log = log
        if log is not None:
            options.hooks.ctx = <void *>self
            options.hooks.log = _stack_log
        check(harp_stack_create(&self.stack, nic._open(), &options), "stack")
        self.nic = nic
        nic.users += 1

    cdef harp_stack *_open(self) except NULL:
        if self.stack == NULL:
            raise ValueError("this stack is closed")
        if self._owner is not None and self._pid != getpid():
            raise RuntimeError(
                f"this stack belongs to process {self._pid}; a forked child has none of its memory"
            )
        if self.drive != NULL and not drive_inside(self.drive):
            raise RuntimeError("a Driver advances this stack: call it inside `with driver.hold():`")
        return self.stack

    cdef bint _is_reachable(self):
        """Return whether a collected child may release its memory."""
        if self.stack == NULL:
            return False
        return self._owner is None or self._pid == getpid()

    cdef _enter(self):
        """Enter a stack that a driver polls; pass the result to _leave()."""
        cdef drive *drive
        driver = self._driver()
        if driver is not None:
            drive = self.drive
            with nogil:
                drive_enter(drive)
            if drive_stopped(drive):
                with nogil:
                    drive_leave(drive)
                return None
        return driver

    cdef _leave(self, driver):
        cdef drive *drive = self.drive
        if driver is not None:
            with nogil:
                drive_leave(drive)

    cdef _check_lent(self):
        cdef Connection conn
        for conn in list(self._conns.values()):
            conn._check_lent()

    cdef _detach(self):
        """Close everything that belongs to this stack."""
        cdef Connection conn
        for conn in list(self._conns.values()):
            conn._drop_frames(False)
        self.stack = NULL

    cdef Connection _wrap(self, harp_conn *conn):
        cdef Connection wrapped = Connection.__new__(Connection)
        wrapped.conn = conn
        wrapped.stack = self
        self._conns[<size_t>conn] = wrapped
        return wrapped

    def poll(self, uint64_t now_ns):
        """Receive, run timers, transmit.

        Parameters
        ----------
        now_ns
            The clock, in nanoseconds; never earlier than at the last call.

        Returns
        -------
        int
            The amount of work done; 0: there was none.
        """
        work = harp_stack_poll(self._open(), now_ns)
        if self._log_error is not None:
            error, self._log_error = self._log_error, None
            raise error
        return work

    @property
    def next_deadline_ns(self):
        """When poll() must be called next if nothing arrives; None: never."""
        cdef uint64_t when = harp_stack_next_deadline_ns(self._open())
        return None if when == <uint64_t>-1 else when

    @property
    def now_ns(self):
        """The time of the last poll."""
        return harp_stack_now_ns(self._open())

    def address_add(self, str address not None, unsigned prefix_len):
        """Add an address of this stack; its prefix becomes a route.

        Parameters
        ----------
        address
            IPv4 or IPv6, as text.
        prefix_len
            Bits of the prefix.

        Raises
        ------
        OSError
            The address exists, or the table is full.
        """
        cdef harp_addr addr
        _parse(address, &addr)
        check(harp_stack_address_add(self._open(), &addr, prefix_len), address)

    def route_add(self, str prefix not None, unsigned prefix_len, str gateway=None,
                  unsigned mtu_bytes=0):
        """Add a route.

        Parameters
        ----------
        prefix, prefix_len
            The destinations.
        gateway
            The next hop; None: the destinations are on the link.
        mtu_bytes
            Largest packet of the route; 0: the NIC's.

        Raises
        ------
        OSError
            The table is full, or the gateway is not reachable.
        """
        cdef harp_addr addr
        cdef harp_addr via
        _parse(prefix, &addr)
        if gateway is not None:
            _parse(gateway, &via)
        check(harp_stack_route_add(self._open(), &addr, prefix_len,
                                   NULL if gateway is None else &via, mtu_bytes), prefix)

    def neighbor_set(self, str address not None, mac):
        """Set a neighbor's MAC address.

        Parameters
        ----------
        address
            IPv4 or IPv6, as text.
        mac
            "02:00:00:00:00:01" or 6 bytes; None removes the neighbor.
        """
        cdef harp_addr addr
        cdef uint8_t raw[6]
        _parse(address, &addr)
        if mac is not None:
            _mac(mac, raw)
        check(harp_stack_neighbor_set(self._open(), &addr, NULL if mac is None else raw),
              address)

    def listen(self, int port, str address="0.0.0.0", **options):
        """Listen on a port.

        Parameters
        ----------
        port
            The port; 0: any.
        address
            The local address; 0.0.0.0 or ::: all.
        **options
            Fields of struct harp_tcp_options by name (docs/python.md).

        Returns
        -------
        Listener
            The listening port.

        Raises
        ------
        OSError
            The port is in use, or no listener is left.
        """
        cdef harp_endpoint local
        cdef harp_tcp_options tcp
        cdef Listener listener = Listener.__new__(Listener)
        memset(&local, 0, sizeof(local))
        if address not in ("0.0.0.0", "::"):
            _parse(address, &local.addr)
        local.port = port
        _tcp_options(&tcp, options)
        check(harp_tcp_listen(self._open(), &local, &tcp, &listener.listener),
              f"listen on {address} port {port}")
        listener.stack = self
        return listener

    def connect(self, str address not None, int port, str local_address=None, int local_port=0,
                **options):
        """Begin to connect; next_events() reports the result.

        Parameters
        ----------
        address, port
            The peer's.
        local_address, local_port
            Of this end; None and 0: the stack chooses.
        **options
            Fields of struct harp_tcp_options by name (docs/python.md).

        Returns
        -------
        Connection
            The connection, which is not established yet.

        Raises
        ------
        OSError
            There is no route, port or memory for it.
        """
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
        check(harp_tcp_connect(self._open(), &local, &remote, &tcp, &conn),
              f"connect to {address} port {port}")
        return self._wrap(conn)

    def udp(self, int port=0, str address="::", **options):
        """Open a UDP socket.

        Parameters
        ----------
        port
            The local port; 0: any.
        address
            The local address.
        **options
            Fields of struct harp_udp_options by name.

        Returns
        -------
        UdpSocket
            The socket.

        Raises
        ------
        OSError
            The port is in use.
        """
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
        check(harp_udp_open(self._open(), &local, &udp, &sock.sock), f"UDP port {port}")
        sock.stack = self
        return sock

    def next_events(self):
        """Return all pending events as [(Connection, Event)], and clear them."""
        cdef uint32_t events = 0
        cdef harp_conn *conn
        result = []
        while True:
            conn = harp_stack_next_event(self._open(), &events)
            if conn == NULL:
                return result
            wrapped = self._conns.get(<size_t>conn)
            if wrapped is not None:
                result.append((wrapped, Event(events)))

    def stats(self):
        """Return all statistics by name."""
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

    def snapshot(self):
        """Return the time, now_ns, and all statistics as the uint64 fields of a numpy record."""
        import numpy

        cdef harp_stack *stack = self._open()
        records = numpy.zeros(1, _stats_dtype())
        cdef uint64_t[::1] values = records.view("u8")
        values[0] = harp_stack_now_ns(stack)
        harp_stack_stats(stack, &values[1], values.shape[0] - 1)
        return records[0]

    def flows(self):
        """Return the connections that Python holds as a numpy array. A record has both ends, the
        names of the states, and struct harp_tcp_info.
        """
        import numpy

        self._open()
        flows = []
        for conn in list(self._conns.values()):
            if conn.closed:
                continue
            info = conn.info()
            (local, local_port), (remote, remote_port) = conn.endpoints
            info |= {
                "local": local, "local_port": local_port,
                "remote": remote, "remote_port": remote_port,
            }
            flows.append(tuple(info[name] for name in _flow_dtype().names))
        return numpy.array(flows, _flow_dtype())

    @property
    def closed(self):
        """Whether it, or its Instance, was closed."""
        return self.stack == NULL

    def close(self):
        """Drop every connection without notice to the peers and free the stack. BufferError while
        memory of its frames is in use.
        """
        if self.stack == NULL:
            return
        if self._owner is not None:
            raise ValueError("this stack is an Instance's: close that")
        if self.drive != NULL:
            raise ValueError("a Driver advances this stack: close that first")
        self._check_lent()
        stack = self.stack
        self._detach()
        harp_stack_destroy(stack)
        self.nic.users -= 1

    def __dealloc__(self):
        if self.stack != NULL and self._owner is None:
            _left_open("Stack")
            harp_stack_destroy(self.stack)
            self.nic.users -= 1


@cython.no_gc_clear
cdef class Listener(_Context):
    """A listening port; returned by Stack.listen()."""

    def __init__(self):
        raise TypeError("Stack.listen() makes listeners")

    cdef harp_listener *_open(self) except NULL:
        if self.closed:
            raise ValueError("this listener is closed")
        self.stack._open()
        return self.listener

    def accept(self):
        """Return an established connection; None if there is none."""
        cdef harp_conn *conn = NULL
        cdef int rc = harp_tcp_accept(self._open(), &conn)
        if rc == -11:  # EAGAIN
            return None
        check(rc, "accept")
        return self.stack._wrap(conn)

    @property
    def endpoint(self):
        """The (address, port) of the listener."""
        cdef harp_endpoint local
        harp_listener_endpoint(self._open(), &local)
        return _format(&local.addr), local.port

    @property
    def closed(self):
        """Whether it, or its stack, was closed."""
        return self.listener == NULL or self.stack.stack == NULL

    def close(self):
        """Stop listening; connections that were not accepted are reset."""
        if not self.closed:
            harp_listener_close(self._open())
        self.listener = NULL

    def __dealloc__(self):
        if self.listener == NULL or not self.stack._is_reachable():
            return
        _left_open("Listener")
        driver = self.stack._enter()
        if self.stack._is_reachable():
            harp_listener_close(self.listener)
        self.stack._leave(driver)


@cython.no_gc_clear
cdef class Connection(_Context):
    """A TCP connection; returned by Stack.connect() or Listener.accept()."""

    def __init__(self):
        raise TypeError("Stack.connect() and Listener.accept() make connections")

    cdef harp_conn *_open(self) except NULL:
        if self.closed:
            raise ValueError("this connection is closed")
        self.stack._open()
        return self.conn

    cdef _check_lent(self):
        cdef void *at = self.frames
        if self.lending:
            raise BufferError("another thread is receiving frames of this connection")
        while at != NULL:
            (<Frame>at)._check_lent()
            at = (<Frame>at).next

    cdef _drop_frames(self, bint give_back):
        """Invalidate frames that the application still holds."""
        cdef Frame frame
        while self.frames != NULL:
            frame = <Frame>self.frames
            if give_back:
                harp_frame_release(self.conn, frame.frame)
            frame._unlink()

    cdef Frame _lend(self, harp_frame *frame, bint received):
        cdef Frame lent = Frame.__new__(Frame)
        lent.frame = frame
        lent.connection = self
        lent.received = received
        lent.link = &self.frames
        lent.next = self.frames
        if lent.next != NULL:
            (<Frame>lent.next).link = &lent.next
        self.frames = <void *>lent
        return lent

    cdef _forget(self):
        self.stack._conns.pop(<size_t>self.conn, None)
        self.conn = NULL

    def send(self, const uint8_t[::1] data not None):
        """Queue bytes to send.

        Parameters
        ----------
        data
            A contiguous buffer of bytes.

        Returns
        -------
        int
            The number of queued bytes, at least 1.

        Raises
        ------
        BlockingIOError
            No byte could be queued.
        OSError
            The connection is dead.
        """
        cdef iovec piece
        cdef ssize_t sent
        cdef harp_conn *conn = self._open()
        if data.shape[0] == 0:
            return 0
        piece.iov_base = <void *>&data[0]
        piece.iov_len = data.shape[0]
        sent = harp_conn_send(conn, &piece, 1)
        check(sent, "send")
        return sent

    @property
    def send_room(self):
        """Bytes that send() would accept now."""
        return harp_conn_send_space(self._open())

    def recv(self, size_t size=65536):
        """Return received bytes.

        Parameters
        ----------
        size
            Maximum number of bytes to return.

        Returns
        -------
        bytes
            At least one byte; b"" at the end of the stream.

        Raises
        ------
        BlockingIOError
            Nothing has arrived.
        OSError
            The connection is dead.
        """
        cdef harp_conn *conn = self._open()
        buffer = bytearray(size)
        cdef char *target = buffer
        cdef ssize_t got = harp_conn_recv(conn, target, size)
        check(got, "recv")
        return bytes(buffer[:got])

    def recv_frame(self):
        """Return received bytes as a Frame, without a copy; None at the end of the stream.
        BlockingIOError: nothing has arrived.
        """
        cdef harp_frame *frame = NULL
        cdef int rc = harp_conn_recv_frame(self._open(), &frame)
        check(rc, "recv_frame")
        return self._lend(frame, True) if rc else None

    def frame(self):
        """Return an empty Frame to fill and send. BlockingIOError while the send budget is used up.
        """
        cdef harp_frame *frame = NULL
        check(harp_frame_alloc(self._open(), &frame), "frame")
        return self._lend(frame, False)

    def send_frame(self, Frame frame not None, length=None):
        """Send a frame without a copy. The stack takes ownership.

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
            A memoryview of the frame is alive.
        """
        cdef harp_conn *conn = self._open()
        cdef harp_frame *buffer = frame._open()
        if frame.connection is not self:
            raise ValueError("this frame belongs to another connection")
        if frame.received:
            raise ValueError("a received frame cannot be sent: copy it into one of frame()")
        capacity = buffer.capacity
        size = capacity if length is None else length
        if not 1 <= size <= capacity:
            raise ValueError(f"{size} bytes do not fit: the frame takes 1 to {capacity}")
        frame._check_lent()
        buffer.length = size
        check(harp_conn_send_frame(conn, buffer), "send_frame")
        frame._unlink()
        return size

    @property
    def readable_bytes(self):
        """Bytes that recv() would return now."""
        return harp_conn_readable_bytes(self._open())

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
        """Sent bytes that the peer has acknowledged."""
        return harp_conn_acked_bytes(self._open())

    @property
    def state(self):
        """Name of the TCP state."""
        return self.info()["state_name"]

    def info(self):
        """Return struct harp_tcp_info as a dict, with state_name, congestion_name and
        ca_state_name. snd_ssthresh_bytes is harp.SSTHRESH_NONE before the first congestion.
        """
        cdef harp_tcp_info info
        memset(&info, 0, sizeof(info))
        harp_conn_info(self._open(), &info)
        fields = dict(info)
        fields["congestion_name"] = harp_congestion_name(<harp_congestion>info.congestion).decode()
        fields["state_name"] = harp_tcp_state_name(<harp_tcp_state>info.state).decode()
        fields["ca_state_name"] = harp_ca_state_name(<harp_ca_state>info.ca_state).decode()
        return fields

    def options(self):
        """Return the present options, as connect(), listen() and set_options() take them."""
        cdef harp_tcp_options tcp
        tcp.size = sizeof(tcp)
        check(harp_conn_options(self._open(), &tcp), "options")
        fields = dict(tcp)
        for name in ("size", "backlog"):
            del fields[name]
        fields["congestion"] = harp_congestion_name(<harp_congestion>tcp.congestion).decode()
        fields["ecn"] = {number: name for name, number in _ECN.items()}[tcp.ecn]
        off = fields.pop("options_off")
        fields |= {name: not off & bit for name, bit in _HANDSHAKE.items()}
        return fields

    def set_options(self, **options):
        """Change options: all of them or, on error, none.

        Parameters
        ----------
        **options
            Fields of struct harp_tcp_options by name; 0 restores a default. docs/python.md says
            which may change when.

        Raises
        ------
        OSError
            An option can't change now, or is out of range.
        TypeError
            There is no such option.
        ValueError
            There is no such congestion control or ECN mode.
        """
        cdef harp_tcp_options tcp
        tcp.size = sizeof(tcp)
        check(harp_conn_options(self._open(), &tcp), "set_options")
        _change_tcp_options(&tcp, options)
        check(harp_conn_set_options(self._open(), &tcp), "set_options")

    def shutdown(self, int how=SHUT_WR):
        """End one or both directions.

        Parameters
        ----------
        how
            socket.SHUT_WR: FIN after the queued data; receiving continues. SHUT_RD: received
            bytes, present and future, are acknowledged and discarded, and recv() returns b"".
            SHUT_RDWR: both.
        """
        check(harp_conn_shutdown(self._open(), how), "shutdown")

    @property
    def closed(self):
        """Whether it, or its stack, was closed."""
        return self.conn == NULL or self.stack.stack == NULL

    def close(self):
        """Close in order; the stack completes the close in the background. Held frames are
        released; BufferError while the memory of one is in use.
        """
        if not self.closed:
            self._open()
            self._check_lent()
            self._drop_frames(True)
            harp_conn_close(self.conn)
            self._forget()

    def abort(self):
        """Send RST and drop the connection. Frames: see close()."""
        if not self.closed:
            self._open()
            self._check_lent()
            self._drop_frames(True)
            harp_conn_abort(self.conn)
            self._forget()

    def __dealloc__(self):
        if self.conn == NULL or not self.stack._is_reachable():
            return
        _left_open("Connection")
        self.stack._conns.pop(<size_t>self.conn, None)  # no lookup must find it from here on
        driver = self.stack._enter()
        if self.stack._is_reachable():
            harp_conn_abort(self.conn)
        self.stack._leave(driver)


@cython.no_gc_clear
cdef class Frame:
    """A buffer of the stack's own memory, held by the application.

    A received frame is a read-only buffer of the bytes that arrived. A frame of frame() is a
    writable buffer of len(frame) bytes. memoryview(frame) and numpy.frombuffer(frame, dtype) copy
    nothing, and keep the memory: release() raises BufferError until all of them are gone
    (memoryview.release(), del array). After release() any use raises ValueError. Frames that are
    not released count against the connection's receive budget, and finally stop the sender.
    """

    def __init__(self):
        raise TypeError("recv_frame() and frame() make frames")

    cdef harp_frame *_open(self) except NULL:
        if self.frame == NULL:
            raise ValueError("this frame was released or sent: the stack owns its memory again")
        return self.frame

    cdef _check_lent(self):
        if self.exports:
            raise BufferError(
                f"{self.exports} views of a frame's memory are in use: release them first"
            )

    cdef _unlink(self):
        self.link[0] = self.next
        if self.next != NULL:
            (<Frame>self.next).link = self.link
        self.frame = NULL

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef harp_frame *frame = self._open()
        # An instance's memory does not exist in a forked child. Any thread may read a driven
        # stack's frame: only the application changes it.
        if not self.connection.stack._is_reachable():
            raise RuntimeError("this frame's memory belongs to another process")
        length = frame.length if self.received else frame.capacity
        PyBuffer_FillInfo(buffer, self, frame.data, length, self.received, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.exports -= 1

    def __len__(self):
        """Bytes received, or the capacity."""
        cdef harp_frame *frame = self._open()
        return frame.length if self.received else frame.capacity

    @property
    def released(self):
        """Whether the stack owns it again."""
        return self.frame == NULL

    def release(self):
        """Release the memory. May be called twice."""
        cdef harp_frame *frame
        if self.frame == NULL:
            return
        stack = self.connection.stack
        if stack.stack != NULL and not stack._is_reachable():
            raise RuntimeError("this frame belongs to another process")
        driver = stack._enter()
        try:
            frame = self.frame  # another thread may have released it
            if frame != NULL:
                self._check_lent()
                self._unlink()
                if self.connection.conn != NULL and stack._is_reachable():
                    harp_frame_release(self.connection.conn, frame)
        finally:
            stack._leave(driver)

    def __dealloc__(self):
        if self.frame == NULL:
            return
        if not self.connection.stack._is_reachable():
            self._unlink()
            return
        _left_open("Frame")
        self.release()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.release()


# ---- UDP ----
@cython.no_gc_clear
cdef class UdpSocket(_Context):
    """A UDP socket; returned by Stack.udp()."""

    cdef harp_udp *sock
    cdef readonly Stack stack
    cdef object __weakref__

    def __init__(self):
        raise TypeError("Stack.udp() makes sockets")

    cdef harp_udp *_open(self) except NULL:
        if self.closed:
            raise ValueError("this socket is closed")
        self.stack._open()
        return self.sock

    def connect(self, str address=None, int port=0):
        """Receive only from this peer from now on.

        Parameters
        ----------
        address, port
            The peer's; None: receive from all.
        """
        cdef harp_endpoint remote
        if address is not None:
            _endpoint(address, port, self.stack.scope_id, &remote)
        check(harp_udp_connect(self._open(), NULL if address is None else &remote), "connect")

    def send(self, const uint8_t[::1] data not None, str address=None, int port=0):
        """Send one datagram.

        Parameters
        ----------
        data
            A contiguous buffer of bytes.
        address, port
            The destination; None: the connected peer.

        Returns
        -------
        int
            The bytes of the datagram.

        Raises
        ------
        BlockingIOError
            The send budget is used up.
        OSError
            There is no route, or the datagram is too long.
        """
        cdef harp_endpoint remote
        cdef iovec piece
        cdef ssize_t sent
        if address is not None:
            _endpoint(address, port, self.stack.scope_id, &remote)
        piece.iov_base = <void *>&data[0] if data.shape[0] else NULL
        piece.iov_len = data.shape[0]
        sent = harp_udp_send(self._open(), NULL if address is None else &remote, &piece, 1)
        check(sent, "send")
        return sent

    def recv(self, size_t size=65536):
        """Return one datagram.

        Parameters
        ----------
        size
            Maximum number of bytes to return; the rest of the datagram is dropped.

        Returns
        -------
        tuple
            (bytes, real length, (address, port) of the sender).

        Raises
        ------
        BlockingIOError
            Nothing has arrived.
        """
        cdef harp_udp_from source
        buffer = bytearray(size)
        cdef char *target = buffer
        cdef ssize_t got = harp_udp_recv(self._open(), target, size, &source)
        check(got, "recv")
        return bytes(buffer[:got]), got, (_format(&source.peer.addr), source.peer.port)

    def error(self):
        """Return and clear the newest error: (errno, (address, port) of the peer), or None."""
        cdef harp_endpoint about
        cdef int err = harp_udp_error(self._open(), &about)
        return None if err == 0 else (-err, (_format(&about.addr), about.port))

    @property
    def endpoints(self):
        """((local address, port), (remote address, port)); the remote port is 0 if unconnected."""
        cdef harp_endpoint local
        cdef harp_endpoint remote
        harp_udp_endpoints(self._open(), &local, &remote)
        return (_format(&local.addr), local.port), (_format(&remote.addr), remote.port)

    @property
    def closed(self):
        """Whether it, or its stack, was closed."""
        return self.sock == NULL or self.stack.stack == NULL

    def close(self):
        """Drop the queued datagrams and close."""
        if not self.closed:
            harp_udp_close(self._open())
        self.sock = NULL

    def __dealloc__(self):
        if self.sock == NULL or not self.stack._is_reachable():
            return
        _left_open("UdpSocket")
        driver = self.stack._enter()
        if self.stack._is_reachable():
            harp_udp_close(self.sock)
        self.stack._leave(driver)
