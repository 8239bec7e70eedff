/* SPDX-License-Identifier: Apache-2.0 */
/* port.h - an Ethernet device owned by this process, and the NICs of its queue pairs. */
#ifndef HARP_DPDK_PORT_H
#define HARP_DPDK_PORT_H

#include <pthread.h>
#include <rte_ethdev.h>
#include <signal.h>

#include "base/why.h"
#include "dpdk/harp_dpdk.h"
#include "dpdk/external.h"
#include "dpdk/memif.h"
#include "dpdk/pool.h"
#include "harp_nic.h"

#define NIC_BURST 64u

/* Driver properties that DPDK does not report (driver.c). */
enum driver_trait {
	DRIVER_ANY_LENGTH = 0x1, /* packets longer than reported pass, if necessary in chains */
	/* takes a frame when a packet arrives, and holds none before */
	DRIVER_FILLS_LATE = 0x2,
	DRIVER_COPIES = 0x4,    /* copies each packet in both directions */
	DRIVER_KERNEL = 0x8,    /* leads to a kernel interface: checksums may be partial */
	DRIVER_CONNECTS = 0x10, /* has a peer, and connects once, when it is started: link.c */
	DRIVER_PULLS =
		0x20, /* completes transmissions only when sending; an empty burst triggers it */
	DRIVER_SLOTS = 0x40,   /* a slot's content must fit an mbuf */
	DRIVER_NO_TSO = 0x80,  /* its TSO is unusable */
	DRIVER_READS = 0x100,  /* virtual device: reads sent data with the CPU */
	DRIVER_CHUNKS = 0x200, /* its mbufs are chunks of an XDP socket's memory: at most a page */
	DRIVER_CREATES_LINK = 0x400, /* creates the kernel interface that it leads to */
	DRIVER_GSO = 0x800,          /* may receive a GSO packet in a long chain */
	DRIVER_INDIRECT = 0x1000,    /* a chain may take one slot of its ring */
};

struct dpdk_port;
struct memif;

/* The NIC of one queue pair. */
struct dpdk_nic {
	struct harp_nic nic;
	struct pool *pool;         /* for the port's lifetime, as is external */
	struct external *external; /* NULL: the device cannot send chains */
	struct dpdk_port *port;
	uint16_t port_id, queue;
	bool cleans;        /* rte_eth_tx_done_cleanup() is supported */
	bool was_used;      /* since the port was opened */
	bool is_taken;      /* in use; harp_nic_destroy() returns it */
	uint32_t in_flight; /* descriptors that the driver holds */
	uint32_t waiting_at, waiting_count;
	struct rte_mbuf *waiting[NIC_BURST]; /* received, not yet returned by rx() */
	uint64_t now_ns;
	uint64_t driver_stats_ns; /* last query of `dropped` */
	uint64_t dropped;
	uint32_t alloc_failed;        /* the pool's counter at the last check */
	uint64_t alloc_failed_log_ns; /* time of the last log line; 0: none */
	struct harp_nic_stats stats;
};

struct dpdk_port {
	uint16_t id;
	uint16_t queues, rx_ring, tx_ring;
	uint32_t mtu_bytes, frame_size, frame_count, spare_count, frags_max;
	uint32_t slot_frames; /* maximum per slot of the transmit ring */
	uint32_t external_count, tso_bytes_max;
	uint32_t features;  /* HARP_NIC_* */
	uint32_t traits;    /* enum driver_trait */
	bool started;       /* writers hold the ports' lock */
	struct memif memif; /* DRIVER_CONNECTS */
	uint32_t quiesces;  /* quiesce.h */
	uint32_t link_ends; /* link.c's count when the port was started */
	char name[64];      /* DPDK's name, without arguments */
	struct rte_device *device;
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	struct dpdk_nic *nics; /* queues of them */
	struct dpdk_port *next;
};

/* DRIVER_INDIRECT: maximum mbufs per slot. */
#define DRIVER_SLOT_MBUFS 7u

/* driver.c: traits by the driver's name, "net_memif", or a prefix of it. */
uint32_t driver_traits(const char *driver);
/* The value of an argument ("key=" in "name,key=value,..."), which ends at a comma; NULL:
 * absent. */
const char *driver_argument(const char *device, const char *key);
/* Size of a packet socket's slot (DRIVER_SLOTS) for a frame size, and the slot's overhead. */
#define DRIVER_SLOT_OVERHEAD 32u
uint32_t driver_slot_bytes(uint32_t frame_size);

/* Copies the device and its arguments, and adds defaults for a frame size. Returns the length;
 * -ENAMETOOLONG. */
int driver_device(const char *device, uint32_t frame_size, char *out, size_t out_len);

/* configure.c: configures a device from its reported properties. */
int port_configure(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
		   const struct why *why);
int port_queues_setup(struct dpdk_port *port, const struct why *why);
uint32_t port_frame_size(const struct rte_eth_dev_info *info, uint32_t traits, uint32_t mtu_bytes);

/* interface.c: checks that the interface behind a started port has the port's MTU; sets the MTU if
 * the driver created the interface. */
int interface_mtu(const struct dpdk_port *port, const struct why *why);

/* Encloses calls that may write to a driver's peer, in an application's thread. */
struct sigpipe {
	sigset_t mask;
	bool pending;
};

/* forked.c: removes descriptors and mappings of drivers, created while a port is opened or
 * restarted, from forked children. Under the ports' lock, except the last. */
#define FORKED_MAX 256u
struct forked {
	int fds[FORKED_MAX];
	unsigned count;
};
void forked_before(struct forked *before);
void forked_after(const struct forked *before);
void forked_closed(void);
void forked_child(void); /* in the child */

/* link.c: drivers that connect to a peer. Called under the ports' lock, except link_leaving(). */
void link_add(struct dpdk_port *port);
void link_remove(struct dpdk_port *port);
/* Runs a function in the thread that the driver requires: DPDK's interrupt thread for
 * DRIVER_CONNECTS. Only the first call can fail (-errno). */
int link_run(const struct dpdk_port *port, void (*run)(void *arg), void *arg);
int link_run_in_intr(void (*run)(void *arg), void *arg); /* not in the interrupt thread */
/* Number of memif connections that have ended in this process. */
uint32_t link_end_count(void);
/* Waits until a started client's handshake is over, at most a second. ends: the count at its
 * start. */
void link_wait_up(uint16_t id, uint32_t ends);
/* Call before closing a server. It keeps its clients and accepts no others. */
void link_retire(const struct memif *memif);
/* Starts the device; a memif client without a server starts when there is one. -errno. */
int link_start(struct dpdk_port *port);
/* Stops the device, and closes it if is_last. */
void link_stop(struct dpdk_port *port, bool is_last);
/* Called when DPDK's interrupt thread is about to end a memif connection that bursts may use, and
 * when it has ended it. */
void link_leaving(void);
void link_ended(void);
void link_guard(void (*leaving)(void), void (*done)(void)); /* harp_dpdk.h */
/* The ports' lock, which link.c uses, too. */
void port_lock_all(void);
bool port_trylock_all(void);
void port_unlock_all(void);
/* Takes the lock for a call into drivers in an application's thread. */
void port_enter(struct sigpipe *was);
void port_leave(const struct sigpipe *was);

/* Opaque in harp_dpdk.h. */
static inline struct dpdk_port *port_of(const struct harp_dpdk_port *port)
{
	return (struct dpdk_port *)(uintptr_t)port;
}

/* probe.c: parses the device's name, and probes the device. */
int port_name(struct dpdk_port *port, const char *device, const struct why *why);
int port_probe(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
	       const struct why *why);

/* queues.c: discards packets that wait in a port, such as in the rings of a net_ring. */
void port_drain(struct dpdk_port *port);
/* Makes the driver release what a queue has sent; packets in flight are lost. Called by the thread
 * that drives the NIC, not inside it. */
void port_flush(struct dpdk_nic *nic, enum port_flush how);

/* nic.c, nic_rx.c */
void nic_init(struct dpdk_nic *nic, struct dpdk_port *port, uint16_t queue);
/* Frees packets that rx() has not returned. */
void nic_drop_waiting(struct dpdk_nic *nic);

/* offload.c: prepares a packet, with all headers in its first mbuf, for the offloads in the
 * descriptor's flags. False: invalid packet. */
bool offload_packet(struct rte_mbuf *mbuf, uint32_t flags);

/* eal.c: harp_dpdk_api.start */
int eal_start(const struct harp_dpdk_eal_options *opt, char *why, size_t why_len);
/* 0, or -errno with the reason: it is not started, or a parent process started it. */
int eal_usable(const struct why *why);
bool eal_huge_pages(void);

/* harp_dpdk_api, memif_handle.c */
int memif_handle_probe(struct harp_dpdk_memif **out, const char *device, char *why, size_t why_len);
int memif_handle_ready(struct harp_dpdk_memif *memif);
void memif_handle_leave(struct harp_dpdk_memif *memif, uint16_t port);
void memif_handle_close(struct harp_dpdk_memif *memif);

/* harp_dpdk_api, port.c, queues.c, info.c, rss.c */
int port_open(struct harp_dpdk_port **out, const struct harp_dpdk_port_options *opt, char *why,
	      size_t why_len);
int port_nic(struct harp_dpdk_port *port, uint32_t queue, struct harp_nic **out, char *why,
	     size_t why_len);
void port_info(const struct harp_dpdk_port *port, struct harp_instance_port *out);
int port_rss(const struct harp_dpdk_port *port, struct harp_rss *out);
int port_xstats(const struct harp_dpdk_port *port, char (*names)[64], uint64_t *values,
		unsigned max);
void port_close(struct harp_dpdk_port *port);

#endif
