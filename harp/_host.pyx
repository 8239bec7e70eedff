# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Bindings for harpd: queues, the XDP program, and the messages of harp_lease.h.

Messages are packed from and unpacked into the C structs themselves, so that their layout has no
second copy. A job's messages are untrusted: unpack() raises ValueError with the reason. Calls into
the kernel raise OSError with an errno and, as strerror, the library's one line.
"""

import enum
import os

from libc.string cimport memcpy, memset

from harp._host cimport *

from harp import _page
from harp._host_types import Device, Leased, Message, Port, Queue, Rss

SOCKET = HARP_LEASE_SOCKET.decode()
MESSAGE_MAX = HARP_LEASE_MESSAGE_MAX
DEVICES_MAX = HARP_LEASE_DEVICES_MAX
QUEUE_ANY = HARP_LEASE_QUEUE_ANY
FDS = HARP_LEASE_FDS
DEVICE_DEFAULT_ROUTE = HARP_LEASE_DEVICE_DEFAULT_ROUTE
DEVICE_UP = HARP_LEASE_DEVICE_UP
DEVICE_ONE_QUEUE = HARP_LEASE_DEVICE_ONE_QUEUE
DEVICE_DPDK = HARP_LEASE_DEVICE_DPDK
DEVICE_GENERIC = HARP_LEASE_DEVICE_GENERIC
PORT_PAGES_MAX = HARP_LEASE_PORT_PAGES_MAX
NEIGHBORS_MAX = HARP_LEASE_NEIGHBORS_MAX
NEIGHBORS_LEASE_MAX = HARP_LEASE_NEIGHBORS_LEASE_MAX
WANTED = HARP_LEASE_NEIGHBOR_WANTED
CONFIRMED = HARP_LEASE_NEIGHBOR_CONFIRMED
TCP, UDP = STEER_PORT_TCP, STEER_PORT_UDP
TCP_AND_UDP = STEER_PORT_TCP | STEER_PORT_UDP
WHY_BYTES = 512


class Kind(enum.IntEnum):
    """enum harp_lease_type."""

    HELLO = HARP_LEASE_HELLO
    WELCOME = HARP_LEASE_WELCOME
    LEASE = HARP_LEASE_LEASE
    LEASED = HARP_LEASE_LEASED
    REFUSED = HARP_LEASE_REFUSED
    RELEASE = HARP_LEASE_RELEASE
    DONE = HARP_LEASE_DONE
    QUERY = HARP_LEASE_QUERY
    ANSWER = HARP_LEASE_ANSWER
    PORT = HARP_LEASE_PORT
    WATCH = HARP_LEASE_WATCH
    NETWORK = HARP_LEASE_NETWORK
    NEIGHBORS = HARP_LEASE_NEIGHBORS
    ROUTE = HARP_LEASE_ROUTE
    ROUTED = HARP_LEASE_ROUTED


cdef str _text(const char *field, size_t size):
    raw = (<const char *>field)[:strnlen(field, size)]
    return raw.decode("utf-8", "replace")


cdef int _put(char *field, size_t size, str text) except -1:
    """Text of at most size - 1 bytes, cut between characters."""
    raw = text.encode("utf-8", "replace")[: size - 1]
    raw = raw.decode("utf-8", "ignore").encode()
    memcpy(field, <const char *>raw, len(raw))
    return 0


cdef int _put_raw(uint8_t *field, size_t size, bytes raw) except -1:
    if len(raw) > size:
        raise ValueError(f"{len(raw)} bytes where {size} fit")
    memcpy(field, <const char *>raw, len(raw))
    return 0


cdef bytes _finish(harp_lease_header *header, int kind, uint32_t serial, size_t size, bytes rest):
    if size + len(rest) > HARP_LEASE_MESSAGE_MAX:
        raise ValueError(f"a message of {size + len(rest)} bytes; {HARP_LEASE_MESSAGE_MAX} fit")
    header.magic = HARP_LEASE_MAGIC
    header.version = HARP_LEASE_VERSION
    header.type = kind
    header.size = size + len(rest)
    header.serial = serial
    return (<const char *>header)[:size] + rest


cdef bytes _pack_neighbors(uint32_t serial, entries):
    cdef harp_lease_neighbors m
    memset(&m, 0, sizeof(m))
    if len(entries) > HARP_LEASE_NEIGHBORS_MAX:
        raise ValueError(f"{len(entries)} neighbors; {HARP_LEASE_NEIGHBORS_MAX} fit")
    for i, (addr, mac, flags) in enumerate(entries):
        _put_raw(m.all[i].addr.bytes, 16, addr)
        _put_raw(m.all[i].mac, 6, mac)
        m.all[i].flags = flags
    m.count = len(entries)
    size = <size_t>(<char *>&m.all - <char *>&m) + m.count * sizeof(harp_lease_neighbor)
    return _finish(&m.header, HARP_LEASE_NEIGHBORS, serial, size, b"")


# --------------------------------------------------------------------------------------------------
# Messages of a job.
#
def pack_hello(uint32_t serial, str client):
    """HELLO."""
    cdef harp_lease_hello m
    memset(&m, 0, sizeof(m))
    _put(m.client, sizeof(m.client), client)
    return _finish(&m.header, HARP_LEASE_HELLO, serial, sizeof(m), b"")


def pack_lease(
    uint32_t serial,
    str ifname,
    *,
    uint32_t queue=HARP_LEASE_QUEUE_ANY,
    uint32_t frame_count=0,
    uint32_t copy_mode=0,
    uint32_t queues=0,
    str label="",
):
    """LEASE."""
    cdef harp_lease_request m
    memset(&m, 0, sizeof(m))
    _put(m.ifname, sizeof(m.ifname), ifname)
    _put(m.label, sizeof(m.label), label)
    m.queue, m.frame_count, m.copy_mode, m.queues = queue, frame_count, copy_mode, queues
    return _finish(&m.header, HARP_LEASE_LEASE, serial, sizeof(m), b"")


def pack_release(uint32_t serial, uint64_t lease_id):
    """RELEASE."""
    cdef harp_lease_release m
    memset(&m, 0, sizeof(m))
    m.lease_id = lease_id
    return _finish(&m.header, HARP_LEASE_RELEASE, serial, sizeof(m), b"")


def pack_watch(uint32_t serial, uint64_t lease_id):
    """WATCH."""
    cdef harp_lease_watch m
    memset(&m, 0, sizeof(m))
    m.lease_id = lease_id
    return _finish(&m.header, HARP_LEASE_WATCH, serial, sizeof(m), b"")


def pack_wanted(uint32_t serial, wanted):
    """NEIGHBORS of a job: pairs of an address of 16 bytes and WANTED or CONFIRMED."""
    return _pack_neighbors(serial, [(addr, b"", flags) for addr, flags in wanted])


def pack_route(uint32_t serial, uint64_t lease_id, bytes dst):
    """ROUTE."""
    cdef harp_lease_route_query m
    memset(&m, 0, sizeof(m))
    m.lease_id = lease_id
    _put_raw(m.dst.bytes, 16, dst)
    return _finish(&m.header, HARP_LEASE_ROUTE, serial, sizeof(m), b"")


def pack_query(uint32_t serial, bytes document):
    """QUERY."""
    cdef harp_lease_header m
    memset(&m, 0, sizeof(m))
    return _finish(&m, HARP_LEASE_QUERY, serial, sizeof(m), document)


# --------------------------------------------------------------------------------------------------
# Messages of harpd.
#
cdef bytes _pack_device(d):
    cdef harp_lease_device m
    memset(&m, 0, sizeof(m))
    _put(m.ifname, sizeof(m.ifname), d.ifname)
    m.ifindex, m.flags, m.mtu_bytes = d.ifindex, d.flags, d.mtu_bytes
    m.speed_mbps, m.queues, m.queues_free = d.speed_mbps, d.queues, d.queues_free
    m.numa_node, m.netns, m.guid = d.numa_node, d.netns, d.guid
    _put_raw(m.mac, 6, d.mac)
    _put_raw(m.addr_v4, 16, d.addr_v4)
    _put_raw(m.addr_v6, 16, d.addr_v6)
    _put(m.pci_path, sizeof(m.pci_path), d.pci_path)
    return (<const char *>&m)[: sizeof(m)]


def pack_welcome(uint32_t serial, str daemon, devices, str settings):
    """WELCOME, with at most DEVICES_MAX devices."""
    cdef harp_lease_welcome m
    memset(&m, 0, sizeof(m))
    listed = list(devices)[:HARP_LEASE_DEVICES_MAX]
    text = settings.encode()
    _put(m.daemon, sizeof(m.daemon), daemon)
    m.device_count = len(listed)
    m.settings_bytes = len(text)
    rest = b"".join(_pack_device(device) for device in listed) + text
    return _finish(&m.header, HARP_LEASE_WELCOME, serial, sizeof(m), rest)


def pack_leased(uint32_t serial, lease):
    """LEASED."""
    cdef harp_lease_leased m
    memset(&m, 0, sizeof(m))
    m.lease_id, m.netns, m.ifindex = lease.lease_id, lease.netns, lease.ifindex
    _put(m.ifname, sizeof(m.ifname), lease.ifname)
    m.queue, m.queue_count = lease.queue, lease.queue_count
    m.frame_size, m.frame_count = lease.frame_size, lease.frame_count
    m.ring_size, m.nic_features = lease.ring_size, lease.nic_features
    m.tx_frags_max, m.mtu_bytes = lease.tx_frags_max, lease.mtu_bytes
    m.native, m.zero_copy = lease.native, lease.zero_copy
    m.port_min, m.port_max = lease.port_min, lease.port_max
    _put_raw(m.mac, 6, lease.mac)
    m.page_bytes = lease.page_bytes
    if len(lease.rss.table) > HARP_LEASE_RSS_TABLE_MAX:
        raise ValueError(f"an RSS table of {len(lease.rss.table)}")
    _put_raw(m.rss_key, HARP_LEASE_RSS_KEY_MAX, lease.rss.key)
    m.rss_kind, m.rss_key_bytes = lease.rss.kind, len(lease.rss.key)
    m.rss_table_count = len(lease.rss.table)
    for i, queue in enumerate(lease.rss.table):
        m.rss_table[i] = queue
    return _finish(&m.header, HARP_LEASE_LEASED, serial, sizeof(m), b"")


def pack_port(uint32_t serial, port):
    """PORT."""
    cdef harp_lease_port m
    memset(&m, 0, sizeof(m))
    m.lease_id, m.page_count, m.page_bytes = port.lease_id, port.page_count, port.page_bytes
    text = port.spec.encode()
    m.spec_bytes = len(text)
    return _finish(&m.header, HARP_LEASE_PORT, serial, sizeof(m), text)


def pack_refused(uint32_t serial, int error, str why):
    """REFUSED. error: a positive errno."""
    cdef harp_lease_refused m
    memset(&m, 0, sizeof(m))
    m.error = error
    _put(m.why, sizeof(m.why), why)
    return _finish(&m.header, HARP_LEASE_REFUSED, serial, sizeof(m), b"")


def pack_done(uint32_t serial):
    """DONE."""
    cdef harp_lease_header m
    memset(&m, 0, sizeof(m))
    return _finish(&m, HARP_LEASE_DONE, serial, sizeof(m), b"")


def pack_answer(uint32_t serial):
    """ANSWER; the document goes in a descriptor."""
    cdef harp_lease_header m
    memset(&m, 0, sizeof(m))
    return _finish(&m, HARP_LEASE_ANSWER, serial, sizeof(m), b"")


def network(uint32_t ifindex):
    """Return the state of an interface of this network namespace, for pack_network(); OSError."""
    cdef harp_lease_network m
    cdef int rc
    with nogil:
        rc = route_cache_network(ifindex, &m)
    if rc:
        raise OSError(-rc, f"interface {ifindex}: {os.strerror(-rc)}")
    at = <size_t>(<char *>&m.lease_id - <char *>&m) + sizeof(m.lease_id)
    return (<const char *>&m)[at : sizeof(m)]


def pack_network(uint32_t serial, uint64_t lease_id, bytes found):
    """NETWORK, with the result of network(). serial 0: it answers no message."""
    cdef harp_lease_network m
    cdef size_t at = <size_t>(<char *>&m.lease_id - <char *>&m) + sizeof(m.lease_id)
    if len(found) != sizeof(m) - at:
        raise ValueError(f"{len(found)} bytes of a network")
    memset(&m, 0, sizeof(m))
    m.lease_id = lease_id
    memcpy(<char *>&m + at, <const char *>found, len(found))
    return _finish(&m.header, HARP_LEASE_NETWORK, serial, sizeof(m), b"")


def pack_neighbors(found):
    """NEIGHBORS of harpd: pairs of an address of 16 bytes and a MAC address; empty: it has none."""
    return _pack_neighbors(
        0, [(addr, mac, HARP_LEASE_NEIGHBOR_KNOWN if mac else 0) for addr, mac in found]
    )


def route(uint32_t ifindex, bytes dst):
    """Return the route from an interface of this network namespace to 16 bytes of address, for
    pack_routed().
    """
    cdef harp_lease_routed m
    cdef harp_addr addr
    if len(dst) != 16:
        raise ValueError(f"an address of {len(dst)} bytes")
    memcpy(addr.bytes, <const char *>dst, 16)
    with nogil:
        netlink_get_routed(ifindex, &addr, &m)
    return (<const char *>&m)[sizeof(m.header) : sizeof(m)]


def pack_routed(uint32_t serial, bytes found):
    """ROUTED, with the result of route()."""
    cdef harp_lease_routed m
    if len(found) != sizeof(m) - sizeof(m.header):
        raise ValueError(f"{len(found)} bytes of a route")
    memcpy(<char *>&m + sizeof(m.header), <const char *>found, len(found))
    return _finish(&m.header, HARP_LEASE_ROUTED, serial, sizeof(m), b"")


# --------------------------------------------------------------------------------------------------
# Unpacking of both.
#
cdef int _body(bytes raw, void *out, size_t size) except -1:
    """Copy a message's struct; a later version's longer one is cut."""
    if <size_t>len(raw) < size:
        raise ValueError(f"a message of {len(raw)} bytes where {size} are needed")
    memcpy(out, <const char *>raw, size)
    return 0


cdef _unpack_welcome(bytes raw):
    cdef harp_lease_welcome m
    cdef harp_lease_device d
    _body(raw, &m, sizeof(m))
    at = sizeof(m)
    devices = []
    if m.device_count > HARP_LEASE_DEVICES_MAX:
        raise ValueError(f"{m.device_count} devices")
    for _ in range(m.device_count):
        _body(raw[at:], &d, sizeof(d))
        at += sizeof(d)
        addresses = [(<const char *>d.addr_v4)[:16], (<const char *>d.addr_v6)[:16]]
        devices.append(
            Device(
                _text(d.ifname, sizeof(d.ifname)), d.ifindex, d.flags, d.mtu_bytes, d.speed_mbps,
                d.queues, d.queues_free, d.numa_node, (<const char *>d.mac)[:6], d.netns, d.guid,
                *[address if any(address) else b"" for address in addresses],
                _text(d.pci_path, sizeof(d.pci_path)),
            )
        )
    if at + m.settings_bytes > <size_t>len(raw):
        raise ValueError("settings cut short")
    settings = raw[at : at + m.settings_bytes].decode("utf-8", "replace")
    return {
        "daemon": _text(m.daemon, sizeof(m.daemon)), "devices": devices, "settings": settings
    }


cdef _unpack_leased(bytes raw):
    cdef harp_lease_leased m
    _body(raw, &m, sizeof(m))
    if m.rss_key_bytes > HARP_LEASE_RSS_KEY_MAX or m.rss_table_count > HARP_LEASE_RSS_TABLE_MAX:
        raise ValueError("an RSS key or table beyond its bounds")
    rss = Rss(
        m.rss_kind, m.queue_count, (<const char *>m.rss_key)[: m.rss_key_bytes],
        tuple(m.rss_table[i] for i in range(m.rss_table_count)),
    )
    lease = Leased(
        m.lease_id, m.netns, _text(m.ifname, sizeof(m.ifname)), m.ifindex, m.queue, m.queue_count,
        m.frame_size, m.frame_count, m.ring_size, m.nic_features, m.tx_frags_max, m.mtu_bytes,
        bool(m.native), bool(m.zero_copy), m.port_min, m.port_max, (<const char *>m.mac)[:6],
        m.page_bytes, rss,
    )
    return {"lease": lease}


cdef _unpack_port(bytes raw):
    cdef harp_lease_port m
    _body(raw, &m, sizeof(m))
    if m.spec_bytes > <size_t>len(raw) - sizeof(m):
        raise ValueError("a port's text cut short")
    text = raw[sizeof(m) : sizeof(m) + m.spec_bytes].decode("utf-8", "replace")
    return {"port": Port(m.lease_id, m.page_count, m.page_bytes, text)}


cdef _unpack_neighbors(bytes raw):
    cdef harp_lease_neighbors m
    cdef size_t head = <size_t>(<char *>&m.all - <char *>&m)
    _body(raw, &m, head)
    if m.count > HARP_LEASE_NEIGHBORS_MAX:
        raise ValueError(f"{m.count} neighbors")
    _body(raw, &m, head + m.count * sizeof(harp_lease_neighbor))
    return [
        (
            (<const char *>m.all[i].addr.bytes)[:16],
            (<const char *>m.all[i].mac)[:6] if m.all[i].flags & HARP_LEASE_NEIGHBOR_KNOWN else b"",
            m.all[i].flags,
        )
        for i in range(m.count)
    ]


cdef dict _unpack_routed(bytes raw):
    cdef harp_lease_routed m
    _body(raw, &m, sizeof(m))
    return {
        "error": m.error, "ifindex": m.ifindex, "mtu_bytes": m.mtu_bytes,
        "is_local": bool(m.is_local), "source": (<const char *>m.source.bytes)[:16],
        "next_hop": (<const char *>m.next_hop.bytes)[:16],
        "ifname": _text(m.ifname, sizeof(m.ifname)),
    }


cdef dict _unpack_body(int kind, bytes raw):
    cdef harp_lease_hello hello
    cdef harp_lease_request request
    cdef harp_lease_release release
    cdef harp_lease_refused refused
    cdef harp_lease_watch watch
    cdef harp_lease_route_query query
    if kind == HARP_LEASE_HELLO:
        _body(raw, &hello, sizeof(hello))
        return {"client": _text(hello.client, sizeof(hello.client))}
    if kind == HARP_LEASE_LEASE:
        _body(raw, &request, sizeof(request))
        return {
            "ifname": _text(request.ifname, sizeof(request.ifname)),
            "queue": request.queue,
            "frame_count": request.frame_count,
            "copy_mode": request.copy_mode,
            "queues": request.queues,
            "label": _text(request.label, sizeof(request.label)),
        }
    if kind == HARP_LEASE_RELEASE:
        _body(raw, &release, sizeof(release))
        return {"lease_id": release.lease_id}
    if kind == HARP_LEASE_REFUSED:
        _body(raw, &refused, sizeof(refused))
        return {"error": refused.error, "why": _text(refused.why, sizeof(refused.why))}
    if kind == HARP_LEASE_WELCOME:
        return _unpack_welcome(raw)
    if kind == HARP_LEASE_LEASED:
        return _unpack_leased(raw)
    if kind == HARP_LEASE_PORT:
        return _unpack_port(raw)
    if kind == HARP_LEASE_WATCH:
        _body(raw, &watch, sizeof(watch))
        return {"lease_id": watch.lease_id}
    if kind == HARP_LEASE_NEIGHBORS:
        return {"neighbors": _unpack_neighbors(raw)}
    if kind == HARP_LEASE_ROUTE:
        _body(raw, &query, sizeof(query))
        return {"lease_id": query.lease_id, "dst": (<const char *>query.dst.bytes)[:16]}
    if kind == HARP_LEASE_NETWORK:
        if len(raw) < <Py_ssize_t>sizeof(harp_lease_network):
            raise ValueError(f"a network of {len(raw)} bytes")
        return {"network": raw[sizeof(harp_lease_header) + 8 :]}
    if kind == HARP_LEASE_ROUTED:
        return _unpack_routed(raw)
    if kind == HARP_LEASE_QUERY:
        return {"document": raw[sizeof(harp_lease_header) :]}
    return {}


def unpack(bytes raw):
    """Unpack one message; ValueError with the reason."""
    cdef harp_lease_header header
    _body(raw, &header, sizeof(header))
    if header.magic != HARP_LEASE_MAGIC:
        raise ValueError(f"magic {header.magic:#010x}, which is not HARP's")
    if header.version != HARP_LEASE_VERSION:
        raise ValueError(f"protocol version {header.version}; {HARP_LEASE_VERSION} is spoken here")
    if header.size != <size_t>len(raw):
        raise ValueError(f"a header of {header.size} bytes in a message of {len(raw)}")
    kinds = [int(kind) for kind in Kind]
    if header.type not in kinds:
        raise ValueError(f"message type {header.type} is not known")
    return Message(Kind(header.type), header.serial, _unpack_body(header.type, raw))


# --------------------------------------------------------------------------------------------------
# Queues.
#
cdef _fail(int rc, const char *why, str what):
    words = why.decode("utf-8", "replace") if why[0] else f"{what}: {os.strerror(-rc)}"
    raise OSError(-rc, words)


def queue_make(
    str ifname,
    uint32_t queue,
    *,
    uint32_t frame_count=0,
    uint32_t frame_size=0,
    uint32_t ring_size=0,
    uint32_t copy_mode=0,
    uint32_t huge_pages=0,
    uint32_t bind_retry_ms=0,
):
    """harp_queue_make() of harp_nic.h; without the GIL, as it may wait for the kernel."""
    cdef harp_af_xdp_options opt
    cdef harp_queue made
    cdef char why[512]
    cdef int rc
    name = ifname.encode()
    memset(&opt, 0, sizeof(opt))
    memset(&made, 0, sizeof(made))
    why[0] = 0
    opt.size = sizeof(opt)
    opt.ifname = name
    opt.queue, opt.frame_count, opt.frame_size = queue, frame_count, frame_size
    opt.ring_size, opt.copy_mode = ring_size, copy_mode
    opt.huge_pages, opt.bind_retry_ms = huge_pages, bind_retry_ms
    made.size = sizeof(made)
    with nogil:
        rc = harp_queue_make(&made, &opt, why, sizeof(why))
    if rc < 0:
        _fail(rc, why, f"{ifname} queue {queue}")
    return Queue(
        made.xsk_fd, made.frames_fd, made.ifindex, made.queue, made.frame_size, made.frame_count,
        made.ring_size, made.mtu_bytes, made.features, made.tx_frags_max, bool(made.zero_copy),
        (<const char *>made.mac)[:6],
    )


def page_create(uint32_t flows):
    """harp_page_create_fd(): a new page's descriptor and its size."""
    cdef int fd = -1
    rc = harp_page_create_fd(flows, &fd)
    if rc < 0:
        raise OSError(-rc, f"a statistics page of {flows} flows: {os.strerror(-rc)}")
    return fd, os.fstat(fd).st_size


cdef _rss(const harp_rss *rss):
    return Rss(
        rss.kind, rss.queues, (<const char *>rss.key)[: rss.key_bytes],
        tuple(rss.table[i] for i in range(rss.table_count)),
    )


def rss_read(str ifname):
    """harp_rss_read(): the rule by which the interface chooses queues."""
    cdef harp_rss rss
    memset(&rss, 0, sizeof(rss))
    name = ifname.encode()
    rc = harp_rss_read(name, &rss)
    if rc < 0:
        raise OSError(-rc, f"{ifname}: {os.strerror(-rc)}")
    return _rss(&rss)


def rss_parse(str text, uint32_t queues):
    """harp_rss_parse(): an operator's rule; ValueError."""
    cdef harp_rss rss
    memset(&rss, 0, sizeof(rss))
    encoded = text.encode()
    if harp_rss_parse(encoded, queues, &rss) < 0:
        raise ValueError(f"{text!r} is neither \"unknown\" nor \"toeplitz:KEY[:TABLE]\"")
    return _rss(&rss)


def port_take_check(str text):
    """Raise OSError (EBUSY) if the host's default route uses the device of this DPDK port, whose
    specification does not allow that.
    """
    cdef harp_port_spec spec
    cdef char why[512]
    if harp_port_spec_parse(text.encode(), &spec, why, sizeof(why)) < 0:
        raise ValueError(why.decode("utf-8", "replace"))
    rc = dpdk_take_check(&spec, why, sizeof(why))
    if rc < 0:
        _fail(rc, why, spec.device.decode())


def has_default_route(str ifname):
    """Tell whether the default route uses this interface."""
    name = ifname.encode()
    rc = harp_host_has_default_route(name)
    if rc < 0:
        raise OSError(-rc, f"{ifname}: {os.strerror(-rc)}")
    return bool(rc)


def verdict_names():
    """Names of the XDP program's verdicts, with their help."""
    return dict(_page.steering_verdicts())


# --------------------------------------------------------------------------------------------------
# The XDP program.
#
cdef const harp_xdp_api *_api = NULL
ctypedef const harp_xdp_api *(*entry_fn)() noexcept


def load_library(str path):
    """Open libharp-xdp.so; OSError in one line. Further calls do nothing."""
    global _api
    cdef void *handle
    cdef entry_fn entry
    if _api != NULL:
        return
    encoded = os.fsencode(path)
    handle = dlopen(encoded, RTLD_NOW | RTLD_LOCAL)
    if handle == NULL:
        raise OSError(2, f"{dlerror().decode('utf-8', 'replace')}; install libbpf1")
    entry = <entry_fn>dlsym(handle, "harp_xdp_api")
    if entry == NULL or entry().version != HARP_XDP_VERSION:
        raise OSError(2, f"{path} is of another version of HARP; install both again")
    _api = entry()


cdef const harp_xdp_api *_loaded() except NULL:
    if _api == NULL:
        raise RuntimeError("load_library() comes first")
    return _api


def libbpf_version():
    """Return the version of the libbpf that libharp-xdp.so uses, such as "1.1"."""
    return _loaded().libbpf_version().decode().removeprefix("v")


def attached_id(uint32_t ifindex):
    """Return the number of the XDP program on an interface, 0 without one."""
    rc = _loaded().attached_id(ifindex)
    if rc < 0:
        raise OSError(-rc, os.strerror(-rc))
    return rc


def unpin(str directory):
    """Remove the pins in a directory; False without any."""
    encoded = os.fsencode(directory)
    rc = _loaded().unpin(encoded)
    if rc == -2:
        return False
    if rc < 0:
        raise OSError(-rc, f"{directory}: {os.strerror(-rc)}")
    return True


cdef class Steering:
    """The XDP program of one interface, attached; struct harp_xdp."""

    cdef harp_xdp *xdp
    cdef readonly str ifname
    cdef readonly str why

    def __cinit__(self):
        self.xdp = NULL

    @staticmethod
    def attach(str ifname, uint32_t mode=0):
        """Load and attach it; mode: enum harp_xdp_mode. OSError."""
        cdef Steering self = Steering.__new__(Steering)
        cdef char why[512]
        cdef int rc
        name = ifname.encode()
        why[0] = 0
        rc = _loaded().attach(&self.xdp, name, mode, why, sizeof(why))
        if rc < 0:
            _fail(rc, why, ifname)
        self.ifname, self.why = ifname, why.decode("utf-8", "replace")
        return self

    @staticmethod
    def adopt(str directory, str ifname):
        """Adopt the pins in a directory; OSError with ENOENT or ESTALE as in harp_xdp.h."""
        cdef Steering self = Steering.__new__(Steering)
        cdef char why[512]
        cdef int rc
        where, name = os.fsencode(directory), ifname.encode()
        why[0] = 0
        rc = _loaded().adopt(&self.xdp, where, name, why, sizeof(why))
        if rc < 0:
            _fail(rc, why, f"{ifname}: pins in {directory}")
        self.ifname, self.why = ifname, why.decode("utf-8", "replace")
        return self

    cdef harp_xdp *_open(self) except NULL:
        if self.xdp == NULL:
            raise ValueError(f"the XDP program of {self.ifname} is closed")
        return self.xdp

    cdef _check(self, int rc, str what):
        if rc < 0:
            raise OSError(-rc, f"{self.ifname}: {what}: {os.strerror(-rc)}")

    @property
    def native(self):
        """Whether it is native XDP, not generic."""
        return _loaded().native(self._open())

    def check(self):
        """Attach it again if it was detached by force. Return a line for people about changes, or
        "". OSError: it receives nothing; ENODEV: the interface is gone.
        """
        cdef char why[512]
        why[0] = 0
        rc = _loaded().check(self._open(), why, sizeof(why))
        if rc < 0:
            _fail(rc, why, f"{self.ifname}: its XDP program")
        return why.decode("utf-8", "replace")

    def pin(self, str directory):
        """Pin link, program and maps, so that they outlive this process."""
        encoded = os.fsencode(directory)
        self._check(_loaded().pin(self._open(), encoded), f"pinning in {directory}")

    def replace(self):
        """Replace the attached programs with this library's."""
        cdef char why[512]
        cdef const harp_xdp_api *api = _loaded()
        cdef harp_xdp *xdp = self._open()
        cdef int rc
        why[0] = 0
        with nogil:
            rc = api.replace(xdp, why, sizeof(why))
        if rc < 0:
            _fail(rc, why, f"{self.ifname}: replacing the XDP program")

    def xsk_set(self, uint32_t queue, int fd):
        """Set the socket of a queue; -1 removes it, also if there is none."""
        rc = _loaded().xsk_set(self._open(), queue, fd)
        if rc == -2 and fd < 0:
            return
        self._check(rc, f"socket of queue {queue} in the steering map")

    def ports_set(
        self, uint16_t first, uint16_t last, uint32_t home_queue, cbool ours,
        uint32_t protocols=TCP_AND_UDP,
    ):
        """Set the home queue of a lease's TCP and UDP ports."""
        rc = _loaded().ports_set(self._open(), protocols, first, last, home_queue, ours)
        self._check(rc, f"ports {first}-{last} in the steering map")

    def address_set(self, bytes address, cbool ours):
        """Add or remove an address of the host, 16 bytes. Removing a missing one is no error."""
        if len(address) != 16:
            raise ValueError(f"an address of {len(address)} bytes")
        rc = _loaded().address_set(self._open(), address, ours)
        if rc == -2 and not ours:
            return
        self._check(rc, "address in the steering map")

    def sources_set(self, sources):
        """Set the prefixes that may send to HARP, each an address of 4 or 16 bytes and a number of
        bits; none: every source.
        """
        cdef harp_xdp_source each[STEER_SOURCES_MAX]
        cdef const harp_xdp_api *api = _loaded()
        cdef harp_xdp *xdp = self._open()
        cdef unsigned count = 0
        cdef int rc
        memset(each, 0, sizeof(each))
        for address, bits in sources:
            if count == STEER_SOURCES_MAX:
                raise ValueError(f"more than {STEER_SOURCES_MAX} sources")
            if len(address) not in (4, 16):
                raise ValueError(f"an address of {len(address)} bytes")
            each[count].address_bytes, each[count].prefix_bits = len(address), bits
            memcpy(each[count].address, <const char *>address, len(address))
            count += 1
        with nogil:
            rc = api.sources_set(xdp, each, count)
        self._check(rc, "allow_sources in the XDP program")

    def verdicts(self):
        """Return packets by verdict since it was attached, in the order of verdict_names()."""
        cdef uint64_t counts[64]
        self._check(_loaded().verdicts(self._open(), counts, STEER_VERDICT_COUNT), "verdicts")
        return [counts[i] for i in range(STEER_VERDICT_COUNT)]

    def arrivals(self, unsigned count):
        """Return for each queue below count: HARP's packets that came there, replies to stacks of
        other queues that were dropped there, and bits of the latter's flows. Since the maps were
        made.
        """
        cdef steer_arrivals sums[256]
        count = min(count, 256)
        self._check(_loaded().arrivals(self._open(), sums, count), "arrivals")
        return [(sums[i].packets, sums[i].mismatches, sums[i].flows) for i in range(count)]

    def fds(self):
        """Its descriptors, which no job may get."""
        cdef int fds[HARP_XDP_FDS_MAX]
        count = _loaded().fds(self._open(), fds, HARP_XDP_FDS_MAX)
        return [fds[i] for i in range(count)]

    def close(self):
        """Close our descriptors, which detaches it unless it is pinned. May be called twice."""
        if self.xdp != NULL:
            _loaded().detach(self.xdp)
            self.xdp = NULL

    def __dealloc__(self):
        if self.xdp != NULL and _api != NULL:
            _api.detach(self.xdp)
