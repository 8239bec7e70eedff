# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Bindings for harpd: queues, the XDP program, the numbers of harp_lease.h.

Calls into the kernel raise OSError with an errno and, as strerror, the library's one line.
"""

import enum
import os

from libc.string cimport memcpy, memset

from harp._check cimport check, check_why
from harp._host cimport *

from harp import _page
from harp._types import Queue, Rss

MAGIC, VERSION = HARP_LEASE_MAGIC, HARP_LEASE_VERSION
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
KNOWN = HARP_LEASE_NEIGHBOR_KNOWN
TCP, UDP = STEER_PORT_TCP, STEER_PORT_UDP


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


# ---- Contents of NETWORK and ROUTED ----
def network(uint32_t ifindex):
    """Return the state of an interface of this network namespace, for NETWORK; OSError."""
    cdef harp_lease_network m
    cdef int rc
    with nogil:
        rc = route_cache_network(ifindex, &m)
    check(rc, f"interface {ifindex}")
    at = <size_t>(<char *>&m.lease_id - <char *>&m) + sizeof(m.lease_id)
    return (<const char *>&m)[at : sizeof(m)]


def route(uint32_t ifindex, bytes dst):
    """Return the route from an interface of this network namespace to an address, for ROUTED."""
    cdef harp_lease_routed m
    cdef harp_addr addr
    if len(dst) != 16:
        raise ValueError(f"an address of {len(dst)} bytes")
    memcpy(addr.bytes, <const char *>dst, 16)
    with nogil:
        netlink_get_routed(ifindex, &addr, &m)
    return (<const char *>&m)[sizeof(m.header) : sizeof(m)]


# ---- Queues ----
def queue_make(
    str ifname, uint32_t queue, *, uint32_t frame_count=0, uint32_t frame_size=0,
    uint32_t ring_size=0, uint32_t copy_mode=0, uint32_t huge_pages=0, uint32_t bind_retry_ms=0,
):
    """Call harp_queue_make(), without the GIL because it may wait for the kernel."""
    cdef harp_af_xdp_options opt
    cdef harp_queue out
    cdef char why[512]
    cdef int rc
    name = ifname.encode()
    memset(&opt, 0, sizeof(opt))
    memset(&out, 0, sizeof(out))
    why[0] = 0
    opt.size = sizeof(opt)
    opt.ifname = name
    opt.queue, opt.frame_count, opt.frame_size = queue, frame_count, frame_size
    opt.ring_size, opt.copy_mode = ring_size, copy_mode
    opt.huge_pages, opt.bind_retry_ms = huge_pages, bind_retry_ms
    out.size = sizeof(out)
    with nogil:
        rc = harp_queue_make(&out, &opt, why, sizeof(why))
    check_why(rc, why, f"{ifname} queue {queue}")
    return Queue(
        out.xsk_fd, out.frames_fd, out.ifindex, out.queue, out.frame_size, out.frame_count,
        out.ring_size, out.mtu_bytes, out.features, out.tx_frags_max, bool(out.zero_copy),
        (<const char *>out.mac)[:6],
    )


def page_create(uint32_t flows):
    """Call harp_page_create_fd(); return a new page's descriptor and size."""
    cdef int fd = -1
    rc = harp_page_create_fd(flows, &fd)
    check(rc, f"a statistics page of {flows} flows")
    return fd, os.fstat(fd).st_size


cdef _rss(const harp_rss *rss):
    return Rss(
        rss.kind, rss.queues, (<const char *>rss.key)[: rss.key_bytes],
        tuple(rss.table[i] for i in range(rss.table_count)),
    )


def rss_read(str ifname):
    """Call harp_rss_read(); return the rule by which the interface chooses queues."""
    cdef harp_rss rss
    memset(&rss, 0, sizeof(rss))
    name = ifname.encode()
    rc = harp_rss_read(name, &rss)
    check(rc, ifname)
    return _rss(&rss)


def rss_parse(str text, uint32_t queues):
    """Call harp_rss_parse(); return an operator's rule. ValueError."""
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
    check_why(rc, why, spec.device.decode())


def has_default_route(str ifname):
    """Tell whether the default route uses this interface."""
    name = ifname.encode()
    rc = harp_host_has_default_route(name)
    check(rc, ifname)
    return bool(rc)


# ---- The XDP program ----
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
        raise RuntimeError("call load_library() first")
    return _api


def libbpf_version():
    """Return the version of the libbpf that libharp-xdp.so uses, such as "1.1"."""
    return _loaded().libbpf_version().decode().removeprefix("v")


def attached_id(uint32_t ifindex):
    """Return the id of the XDP program on an interface; 0 if there is none."""
    rc = _loaded().attached_id(ifindex)
    return check(rc, f"interface {ifindex}")


def unpin(str directory):
    """Remove the pins in a directory; return False if there are none."""
    encoded = os.fsencode(directory)
    rc = _loaded().unpin(encoded)
    if rc == -2:
        return False
    check(rc, directory)
    return True


cdef class Steering:
    """The XDP program of one interface, attached; struct harp_xdp."""

    cdef harp_xdp *xdp
    cdef readonly str ifname
    cdef readonly str why

    @staticmethod
    def attach(str ifname, uint32_t mode=0):
        """Load and attach it; mode: enum harp_xdp_mode. OSError."""
        cdef Steering self = Steering.__new__(Steering)
        cdef char why[512]
        cdef int rc
        name = ifname.encode()
        why[0] = 0
        rc = _loaded().attach(&self.xdp, name, mode, why, sizeof(why))
        check_why(rc, why, ifname)
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
        check_why(rc, why, f"{ifname}: pins in {directory}")
        self.ifname, self.why = ifname, why.decode("utf-8", "replace")
        return self

    cdef harp_xdp *_open(self) except NULL:
        if self.xdp == NULL:
            raise ValueError(f"the XDP program of {self.ifname} is closed")
        return self.xdp

    @property
    def native(self):
        """Whether it is native XDP, not generic."""
        return _loaded().native(self._open())

    def check(self):
        """Attach it again if it was detached by force. Return a line about changes, or "". OSError:
        it receives no packets; ENODEV: the interface is gone.
        """
        cdef char why[512]
        why[0] = 0
        rc = _loaded().check(self._open(), why, sizeof(why))
        check_why(rc, why, f"{self.ifname}: its XDP program")
        return why.decode("utf-8", "replace")

    def pin(self, str directory):
        """Pin link, program and maps, so that they outlive this process."""
        encoded = os.fsencode(directory)
        check(_loaded().pin(self._open(), encoded), f"{self.ifname}: pinning in {directory}")

    def replace(self):
        """Replace the attached programs with this library's."""
        cdef char why[512]
        cdef const harp_xdp_api *api = _loaded()
        cdef harp_xdp *xdp = self._open()
        cdef int rc
        why[0] = 0
        with nogil:
            rc = api.replace(xdp, why, sizeof(why))
        check_why(rc, why, f"{self.ifname}: replacing the XDP program")

    def xsk_set(self, uint32_t queue, int fd):
        """Set the socket of a queue; -1 removes it, if there is one."""
        rc = _loaded().xsk_set(self._open(), queue, fd)
        if rc == -2 and fd < 0:
            return
        check(rc, f"{self.ifname}: socket of queue {queue} in the steering map")

    def ports_set(
        self, uint16_t first, uint16_t last, uint32_t rx_queue, cbool ours,
        uint32_t protocols=STEER_PORT_TCP | STEER_PORT_UDP,
    ):
        """Set the receive queue of a lease's TCP and UDP ports."""
        rc = _loaded().ports_set(self._open(), protocols, first, last, rx_queue, ours)
        check(rc, f"{self.ifname}: ports {first}-{last} in the steering map")

    def address_set(self, bytes address, cbool ours):
        """Add or remove an address of the host, 16 bytes. Removing a missing one is no error."""
        if len(address) != 16:
            raise ValueError(f"an address of {len(address)} bytes")
        rc = _loaded().address_set(self._open(), address, ours)
        if rc == -2 and not ours:
            return
        check(rc, f"{self.ifname}: address in the steering map")

    def sources_set(self, sources):
        """Set the prefixes that may send to HARP, as pairs of an address of 4 or 16 bytes and a
        number of bits; none: every source.
        """
        cdef harp_xdp_source entries[STEER_SOURCES_MAX]
        cdef const harp_xdp_api *api = _loaded()
        cdef harp_xdp *xdp = self._open()
        cdef unsigned count = 0
        cdef int rc
        memset(entries, 0, sizeof(entries))
        for address, bits in sources:
            if count == STEER_SOURCES_MAX:
                raise ValueError(f"more than {STEER_SOURCES_MAX} sources")
            if len(address) not in (4, 16):
                raise ValueError(f"an address of {len(address)} bytes")
            entries[count].address_bytes, entries[count].prefix_bits = len(address), bits
            memcpy(entries[count].address, <const char *>address, len(address))
            count += 1
        with nogil:
            rc = api.sources_set(xdp, entries, count)
        check(rc, f"{self.ifname}: allow_sources in the XDP program")

    def verdicts(self):
        """Return the packets by verdict since the program was attached."""
        cdef uint64_t counts[64]
        rc = _loaded().verdicts(self._open(), counts, STEER_VERDICT_COUNT)
        check(rc, f"{self.ifname}: verdicts")
        return {name: counts[i] for i, (name, _) in enumerate(_page.LISTS["verdict"])}

    def arrivals(self, unsigned count):
        """Return a tuple for each queue below count, with sums since the maps were created: HARP's
        packets that arrived there, replies for stacks of other queues that were dropped there, and
        a bit mask of the flows of the latter.
        """
        cdef steer_arrivals sums[256]
        count = min(count, 256)
        check(_loaded().arrivals(self._open(), sums, count), f"{self.ifname}: arrivals")
        return [(sums[i].packets, sums[i].mismatches, sums[i].flows) for i in range(count)]

    def fds(self):
        """Return its descriptors, which jobs must not get."""
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
