/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_lease.h - the protocol between a job and harpd, by which an unprivileged process gets an
 * instance.
 *
 * The transport is a Unix socket of type SOCK_SEQPACKET (default /run/harp/harpd.sock). One message
 * is one packet of at most HARP_LEASE_MESSAGE_MAX bytes, with integers in the host's byte order.
 * The job sends requests, and harpd answers each of them, in order. A message begins with struct
 * harp_lease_header. A receiver accepts a body that is longer than it expects (later versions
 * append fields) and refuses a shorter one.
 *
 *   job                   harpd
 *   HELLO      -------->
 *              <--------  WELCOME    devices, and the settings that harp.toml has for jobs
 *   LEASE      -------->
 *              <--------  LEASED     with descriptors (SCM_RIGHTS) in the order of harp_lease_fd;
 *                         PORT       for a DPDK port: its text, and a descriptor for each queue;
 *                         REFUSED    errno and one line for the user
 *   RELEASE    -------->
 *              <--------  DONE, or REFUSED
 *   WATCH      -------->             reports about the network of a lease's NIC, for a job of
 *                                    another network namespace
 *              <--------  NETWORK    link, addresses and routes; again after each change, with
 *                                    serial 0
 *   NEIGHBORS  -------->             after WATCH: next hops to resolve, or that make progress
 *              <--------  DONE; NEIGHBORS with serial 0 for known neighbors and after each change
 *   ROUTE      -------->             route from a lease's NIC to a destination
 *              <--------  ROUTED, or REFUSED
 *   QUERY      -------->             a JSON document: a command of harpctl (docs/operating.md)
 *              <--------  ANSWER     a JSON document, in messages of HARP_LEASE_MESSAGE_MAX bytes
 *                                    and a last shorter one
 *
 * REFUSED with serial 0 answers no request. It is harpd's last message before it closes a
 * connection that exceeds a limit (EUSERS) or was silent for too long (ETIMEDOUT).
 *
 * A lease belongs to the process that connected (SO_PEERPIDFD), not to the connection. It ends with
 * RELEASE or with the process, so harpd can be restarted while jobs run. After a reconnect the
 * process may release its leases.
 *
 * harpd passes no socket of the NIC's network namespace to a job except the AF_XDP sockets, because
 * ioctl() checks capabilities against the namespace of the socket. A job in the NIC's namespace
 * opens its own sockets. A job in another namespace sends WATCH, NEIGHBORS and ROUTE. A WATCH ends
 * with its connection, with the lease, or with another WATCH of the same lease. After a restart of
 * harpd the job connects and repeats its requests; until then it uses the last reports.
 */
#ifndef HARP_LEASE_H
#define HARP_LEASE_H

#include <stdint.h>

#include "harp.h"

#define HARP_LEASE_SOCKET "/run/harp/harpd.sock"
#define HARP_LEASE_MAGIC 0x4c505248u /* "HRPL" */
#define HARP_LEASE_VERSION 3u
#define HARP_LEASE_MESSAGE_MAX 65536u
#define HARP_LEASE_DEVICES_MAX 32u
#define HARP_LEASE_PORT_PAGES_MAX 64u
#define HARP_LEASE_QUEUE_ANY 0xffffffffu

enum harp_lease_type {
	HARP_LEASE_HELLO = 1,
	HARP_LEASE_WELCOME = 2,
	HARP_LEASE_LEASE = 3,
	HARP_LEASE_LEASED = 4,
	HARP_LEASE_REFUSED = 5,
	HARP_LEASE_RELEASE = 6,
	HARP_LEASE_DONE = 7,
	HARP_LEASE_QUERY = 8,
	HARP_LEASE_ANSWER = 9,
	HARP_LEASE_PORT = 10, /* the answer to LEASE of a DPDK port */
	HARP_LEASE_WATCH = 11,
	HARP_LEASE_NETWORK = 12,
	HARP_LEASE_NEIGHBORS = 13, /* in both directions */
	HARP_LEASE_ROUTE = 14,
	HARP_LEASE_ROUTED = 15,
};

/* The descriptors of LEASED, in this order. */
enum harp_lease_fd {
	/* bound AF_XDP socket, in the XDP program's map; rings set, not mapped */
	HARP_LEASE_FD_XSK = 0,
	/* its memory, a sealed memfd of at least frame_count * frame_size bytes */
	HARP_LEASE_FD_FRAMES = 1,
	HARP_LEASE_FD_PAGE = 2, /* statistics page (harp_page.h), a sealed memfd */
};
#define HARP_LEASE_FDS 3u

struct harp_lease_header {
	uint32_t magic;   /* HARP_LEASE_MAGIC */
	uint16_t version; /* HARP_LEASE_VERSION */
	uint16_t type;    /* enum harp_lease_type */
	uint32_t size;    /* of the whole message */
	uint32_t serial;  /* chosen by the job; copied to the answer */
};

struct harp_lease_hello {
	struct harp_lease_header header;
	char client[32]; /* name for the log, such as "harp 0.1.0 plugin" */
};

/* carries the default route: used only if a setting names it */
#define HARP_LEASE_DEVICE_DEFAULT_ROUTE 1u
#define HARP_LEASE_DEVICE_UP 2u
#define HARP_LEASE_DEVICE_ONE_QUEUE 4u /* all packets arrived on one queue: harpd leases no other */
/* A DPDK port, leased as a whole and driven by the job's own DPDK: ifname is its name, ifindex and
 * netns 0, queues the number available to one job, queues_free the same, or 0 if it is leased.
 * harpd does not open it: speed and MAC address are 0, and the MTU if harp.toml has none. */
#define HARP_LEASE_DEVICE_DPDK 8u
/* Its XDP program is in generic mode, as requested in harp.toml, which slows down the kernel's own
 * traffic. */
#define HARP_LEASE_DEVICE_GENERIC 16u
struct harp_lease_device {
	char ifname[16];
	uint32_t ifindex; /* in the NIC's namespace */
	uint32_t flags;
	uint32_t mtu_bytes;
	uint32_t speed_mbps; /* 0: not known */
	uint32_t queues;     /* queues that harpd may lease */
	uint32_t queues_free;
	int32_t numa_node; /* -1: none */
	uint8_t mac[6];
	uint8_t reserved[6];
	uint64_t netns; /* inode of the NIC's network namespace */
	uint64_t guid;
	uint8_t addr_v4[16], addr_v6[16]; /* as struct harp_addr; all 0: none */
	char pci_path[256];               /* empty: none */
};

struct harp_lease_welcome {
	struct harp_lease_header header;
	char daemon[32]; /* "harpd 0.1.0" */
	uint32_t device_count;
	uint32_t settings_bytes;
	/* Followed by device_count times struct harp_lease_device, then settings_bytes of text: the
	 * HARP_ variables that harp.toml sets for jobs, one NAME=VALUE per line. The job's
	 * environment takes precedence. */
};

struct harp_lease_request {
	struct harp_lease_header header;
	char ifname[16];      /* as in WELCOME */
	uint32_t queue;       /* HARP_LEASE_QUEUE_ANY, or one */
	uint32_t frame_count; /* 0: harpd's default; harpd may grant fewer */
	uint32_t copy_mode;   /* as struct harp_af_xdp_options */
	uint32_t queues;      /* of a DPDK port: number of the job's stacks on it; 0: 1. Else 0 */
	char label[64];       /* display name, such as "train.py rank 3" */
};

/* How the NIC chooses a receive queue for a packet: receive side scaling. TOEPLITZ: table[hash of
 * the packet with key % table_count]. */
enum harp_rss_kind {
	HARP_RSS_NONE = 0,    /* one queue receives everything */
	HARP_RSS_UNKNOWN = 1, /* several queues, unknown function: find out by trial */
	HARP_RSS_TOEPLITZ = 2,
};
#define HARP_RSS_KEY_MAX 64u
#define HARP_RSS_TABLE_MAX 512u

struct harp_rss {
	uint32_t kind; /* enum harp_rss_kind */
	uint32_t key_bytes, table_count;
	uint32_t queues; /* the NIC's receive queues, at least 1; 0 in LEASED: queue_count has it */
	uint8_t key[HARP_RSS_KEY_MAX];
	uint16_t table[HARP_RSS_TABLE_MAX];
};

struct harp_lease_leased {
	struct harp_lease_header header;
	uint64_t lease_id;
	uint64_t netns;
	char ifname[16];
	uint32_t ifindex;
	uint32_t queue;
	uint32_t queue_count; /* the NIC's receive queues */
	uint32_t frame_size, frame_count, ring_size;
	uint32_t nic_features; /* HARP_NIC_* */
	uint32_t tx_frags_max;
	uint32_t mtu_bytes;
	uint8_t native, zero_copy;   /* XDP mode, AF_XDP mode */
	uint16_t port_min, port_max; /* this lease's own ports, inclusive: TCP and UDP */
	uint8_t mac[6];
	uint32_t page_bytes;
	uint32_t unused; /* 0 */
	struct harp_rss rss;
};

/* A DPDK port. Accompanied by page_count descriptors: a statistics page (harp_page.h, a sealed
 * memfd) for each stack. Ignores the request's queue, frame_count and copy_mode. */
struct harp_lease_port {
	struct harp_lease_header header;
	uint64_t lease_id;
	uint32_t page_count; /* number of queues to open the port with: as requested, or fewer */
	uint32_t page_bytes; /* of each */
	uint32_t unused;     /* 0 */
	uint32_t spec_bytes;
	/* Followed by spec_bytes of text: the port for harp_port_spec_parse(), without a final
	 * NUL. */
};

struct harp_lease_refused {
	struct harp_lease_header header;
	/* errno: EACCES user not allowed, EBUSY no queue free, EDQUOT the user's limit, ENODEV
	 * ... */
	int32_t error;
	char why[384]; /* one line: what, where, what to do */
};

struct harp_lease_release {
	struct harp_lease_header header;
	uint64_t lease_id;
};

/* The network of a lease's NIC, for a job of another network namespace. */

struct harp_lease_watch {
	struct harp_lease_header header;
	uint64_t lease_id;
};

#define HARP_LEASE_ADDRESSES_MAX 16u
#define HARP_LEASE_ROUTES_MAX 64u
struct harp_lease_route {
	struct harp_addr prefix, gateway;
	uint32_t mtu_bytes, metric;
	uint8_t prefix_len, has_gateway;
	uint8_t preference; /* among routes of equal metric: RFC 4191, larger is better */
	uint8_t reserved;
};
/* Addresses of the NIC, and the main table's routes over it. */
struct harp_lease_tables {
	uint32_t address_count, route_count;
	uint32_t skipped; /* not included for lack of space */
	struct harp_addr addresses[HARP_LEASE_ADDRESSES_MAX];
	struct harp_lease_route routes[HARP_LEASE_ROUTES_MAX];
};

enum harp_lease_link {
	HARP_LEASE_LINK_GONE = 0,
	HARP_LEASE_LINK_DOWN = 1,
	HARP_LEASE_LINK_UP = 2, /* with carrier */
};
struct harp_lease_network {
	struct harp_lease_header header;
	uint64_t lease_id;
	uint8_t link; /* enum harp_lease_link */
	uint8_t reserved;
	uint8_t mac[6];
	uint32_t mtu_bytes;
	struct harp_lease_tables tables;
};

#define HARP_LEASE_NEIGHBORS_MAX 64u /* in one message */
/* per lease, harpd reports on the most recent ones */
#define HARP_LEASE_NEIGHBORS_LEASE_MAX 256u
/* Flags of a neighbor. From a job: */
/* the kernel should resolve it, and harpd report the result */
#define HARP_LEASE_NEIGHBOR_WANTED 1u
#define HARP_LEASE_NEIGHBOR_CONFIRMED 2u /* a connection through it makes progress */
/* From harpd: */
#define HARP_LEASE_NEIGHBOR_KNOWN 4u /* mac is its MAC address; without this flag it has none */
struct harp_lease_neighbor {
	struct harp_addr addr;
	uint8_t mac[6];
	uint8_t flags; /* HARP_LEASE_NEIGHBOR_* */
	uint8_t reserved;
};
struct harp_lease_neighbors {
	struct harp_lease_header header;
	uint32_t count;
	uint32_t reserved;
	struct harp_lease_neighbor all[HARP_LEASE_NEIGHBORS_MAX]; /* `count` of them are sent */
};

struct harp_lease_route_query {
	struct harp_lease_header header;
	uint64_t lease_id;
	struct harp_addr dst;
};
struct harp_host_route {
	uint32_t ifindex;
	uint32_t mtu_bytes; /* of the route or interface */
	uint8_t is_local;   /* an address of this host: packets never reach a NIC */
	uint8_t has_gateway;
	uint8_t reserved[2];
	struct harp_addr source;   /* the kernel's choice (RFC 6724); zero: none */
	struct harp_addr next_hop; /* gateway, or the destination itself */
	char ifname[16];
};
struct harp_lease_routed {
	struct harp_lease_header header;
	int32_t error; /* errno (ENETUNREACH: no route); 0: none */
	struct harp_host_route route;
};

#endif
