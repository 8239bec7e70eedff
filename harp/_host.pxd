# SPDX-License-Identifier: Apache-2.0
# harp_lease.h, and what harpd uses of harp_nic.h, harp_host.h and harp_xdp.h.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool as cbool


cdef extern from "harp.h" nogil:
    struct harp_addr:
        uint8_t bytes[16]


cdef extern from "harp_lease.h" nogil:
    const char *HARP_LEASE_SOCKET
    enum:
        HARP_LEASE_MAGIC, HARP_LEASE_VERSION, HARP_LEASE_MESSAGE_MAX, HARP_LEASE_DEVICES_MAX
        HARP_LEASE_QUEUE_ANY, HARP_LEASE_HELLO, HARP_LEASE_WELCOME, HARP_LEASE_LEASE
        HARP_LEASE_LEASED, HARP_LEASE_REFUSED, HARP_LEASE_RELEASE, HARP_LEASE_DONE, HARP_LEASE_QUERY
        HARP_LEASE_ANSWER, HARP_LEASE_FDS, HARP_LEASE_DEVICE_DEFAULT_ROUTE, HARP_LEASE_DEVICE_UP
        HARP_LEASE_DEVICE_ONE_QUEUE, HARP_LEASE_DEVICE_DPDK, HARP_LEASE_DEVICE_GENERIC
        HARP_LEASE_PORT, HARP_LEASE_PORT_PAGES_MAX, HARP_LEASE_WATCH, HARP_LEASE_NETWORK
        HARP_LEASE_NEIGHBORS, HARP_LEASE_ROUTE, HARP_LEASE_ROUTED, HARP_LEASE_NEIGHBORS_MAX
        HARP_LEASE_NEIGHBORS_LEASE_MAX, HARP_LEASE_NEIGHBOR_WANTED, HARP_LEASE_NEIGHBOR_CONFIRMED
        HARP_LEASE_NEIGHBOR_KNOWN

    struct harp_lease_header:
        pass

    struct harp_lease_network:
        uint64_t lease_id

    struct harp_lease_routed:
        harp_lease_header header


cdef extern from "harp_nic.h" nogil:
    struct harp_af_xdp_options:
        uint32_t size
        const char *ifname
        uint32_t queue, frame_count, frame_size, ring_size, copy_mode, huge_pages, bind_retry_ms

    struct harp_queue:
        uint32_t size
        int xsk_fd, frames_fd
        uint32_t ifindex, queue, frame_size, frame_count, ring_size, mtu_bytes, features
        uint32_t tx_frags_max
        uint8_t zero_copy
        uint8_t mac[6]
        char ifname[16]

    int harp_queue_make(
        harp_queue *out, const harp_af_xdp_options *opt, char *why, size_t why_len
    )


cdef extern from "harp_host.h" nogil:
    struct harp_rss:
        uint32_t kind, key_bytes, table_count, queues
        uint8_t key[64]
        uint16_t table[512]

    int harp_rss_read(const char *ifname, harp_rss *out)
    int harp_rss_parse(const char *text, uint32_t queues, harp_rss *out)
    int harp_host_has_default_route(const char *ifname)

    struct harp_port_spec:
        char device[512]

    int harp_port_spec_parse(const char *text, harp_port_spec *out, char *why, size_t why_len)


cdef extern from "harp_page.h" nogil:
    int harp_page_create_fd(uint32_t flows, int *fd)


cdef extern from "xdp/harp_xdp.h" nogil:
    enum:
        HARP_XDP_VERSION, HARP_XDP_FDS_MAX, STEER_PORT_TCP, STEER_PORT_UDP, STEER_SOURCES_MAX
        STEER_VERDICT_COUNT

    struct steer_arrivals:
        unsigned long long packets, mismatches, flows

    struct harp_xdp:
        pass

    struct harp_xdp_source:
        uint8_t address_bytes, prefix_bits
        uint8_t address[16]

    struct harp_xdp_api:
        uint32_t version
        int (*attach)(
            harp_xdp **out, const char *ifname, uint32_t mode, char *why, size_t why_len
        )
        cbool (*native)(const harp_xdp *xdp)
        int (*xsk_set)(harp_xdp *xdp, uint32_t queue, int fd)
        int (*ports_set)(
            harp_xdp *xdp, uint32_t protocols, uint16_t first, uint16_t last, uint32_t home,
            cbool ours
        )
        int (*address_set)(harp_xdp *xdp, const uint8_t *address, cbool ours)
        int (*verdicts)(const harp_xdp *xdp, uint64_t *counts, unsigned count)
        unsigned (*fds)(const harp_xdp *xdp, int *fds, unsigned max)
        void (*detach)(harp_xdp *xdp)
        int64_t (*attached_id)(uint32_t ifindex)
        int (*pin)(harp_xdp *xdp, const char *dir)
        int (*adopt)(
            harp_xdp **out, const char *dir, const char *ifname, char *why, size_t why_len
        )
        int (*replace)(harp_xdp *xdp, char *why, size_t why_len) noexcept nogil
        int (*unpin)(const char *dir)
        int (*arrivals)(const harp_xdp *xdp, steer_arrivals *sums, unsigned count)
        int (*check)(harp_xdp *xdp, char *why, size_t why_len)
        int (*sources_set)(
            harp_xdp *xdp, const harp_xdp_source *sources, unsigned count
        ) noexcept nogil
        const char *(*libbpf_version)()


cdef extern from "dlfcn.h" nogil:
    int RTLD_NOW
    int RTLD_LOCAL
    void *dlopen(const char *path, int flags)
    void *dlsym(void *handle, const char *name)
    char *dlerror()


cdef extern from "host/route_cache.h" nogil:
    int route_cache_network(uint32_t ifindex, harp_lease_network *out)


cdef extern from "host/netlink_get.h" nogil:
    void netlink_get_routed(uint32_t ifindex, const harp_addr *dst, harp_lease_routed *out)


cdef extern from "host/dpdk_take.h" nogil:
    int dpdk_take_check(const harp_port_spec *spec, char *why, size_t why_len)
