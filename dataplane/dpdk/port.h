/* SPDX-License-Identifier: Apache-2.0 */
/* port.h - an Ethernet device that this process has, and the NIC of each of its queue pairs. */
#ifndef HARP_DPDK_PORT_H
#define HARP_DPDK_PORT_H

#include <pthread.h>
#include <rte_ethdev.h>
#include <signal.h>

#include "base/why.h"
#include "dpdk/harp_dpdk.h"
#include "dpdk/external.h"
#include "dpdk/pool.h"
#include "harp_nic.h"

#define NIC_BURST 64u

/* What drivers don't say of themselves (driver.c). */
enum driver_trait {
	DRIVER_ANY_LENGTH =
		0x1, /* packets larger than it admits to go through, in chains if need be */
	DRIVER_TAKES_LATE = 0x2, /* asks for frames when packets have come: holds none before */
	DRIVER_COPIES = 0x4,     /* copies each packet, both ways */
	DRIVER_KERNEL = 0x8,     /* ends in a kernel interface: checksums may be partial */
	DRIVER_DIALS = 0x10,     /* has a peer, and connects once, when it is started: link.c */
	DRIVER_PULLS =
		0x20, /* looks for what it has sent when it sends: a burst of nothing makes it */
	DRIVER_SLOTS = 0x40,   /* what its slots hold must fit into an mbuf */
	DRIVER_NO_TSO = 0x80,  /* what it says of it is of no use */
	DRIVER_READS = 0x100,  /* of a virtual device: it reads what it sends on this processor */
	DRIVER_CHUNKS = 0x200, /* its mbufs are chunks of an XDP socket's memory: a page at most */
	DRIVER_MAKES = 0x400,  /* makes the interface in which it ends */
	DRIVER_TRAINS = 0x800, /* what it receives may be a train of segments, in a long chain */
	DRIVER_INDIRECT = 0x1000, /* a chain may take one slot of its ring */
};

struct dpdk_port;
struct memif;

/* The NIC of one queue pair. */
struct dpdk_nic {
	struct harp_nic nic;
	struct pool *pool;         /* for the port's life, as is the next */
	struct external *external; /* NULL: the device can't send chains */
	struct dpdk_port *port;
	uint16_t port_id, queue;
	bool cleans;        /* rte_eth_tx_done_cleanup() works */
	bool used;          /* it has been taken before */
	bool taken;         /* harp_nic_destroy() gives it back */
	uint32_t in_flight; /* descriptors the driver has not given back */
	uint32_t waiting_at, waiting_count;
	struct rte_mbuf *waiting[NIC_BURST]; /* received, not yet handed on */
	uint64_t now_ns;
	uint64_t driver_stats_ns; /* when dropped was last asked for */
	uint64_t dropped;
	uint32_t starved;    /* the pool's, when it was looked at */
	uint64_t starved_ns; /* when that was told; 0: never */
	struct harp_nic_stats stats;
};

struct dpdk_port {
	uint16_t id;
	uint16_t queues, rx_ring, tx_ring;
	uint32_t mtu_bytes, frame_size, frame_count, spare_count, frags_max;
	uint32_t slot_frames; /* that a slot of its transmit ring takes at most */
	uint32_t external_count, tso_bytes_max;
	uint32_t features;       /* HARP_NIC_* */
	uint32_t traits;         /* enum driver_trait */
	bool started;            /* Writers: the ports' lock */
	struct memif *memif;     /* NULL: of another driver */
	uint32_t shut;           /* gate.h */
	uint64_t retry_ns;       /* when link.c tries again */
	struct port_rule *rules; /* steer.c */
	unsigned rule_count;
	char name[64]; /* as DPDK has it: without arguments */
	struct rte_device *device;
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	struct dpdk_nic *nics; /* queues of them */
	struct dpdk_port *next;
};

/* Of DRIVER_INDIRECT: mbufs in a slot, at most. */
#define DRIVER_SLOT_MBUFS 7u

/* driver.c: traits by the driver's name, "net_memif", or what begins with it. */
uint32_t driver_traits(const char *driver);
/* The value of an argument ("key=" in "name,key=value,..."), which ends at a comma; NULL: not given. */
const char *driver_argument(const char *device, const char *key);
/* The slot of a packet socket (DRIVER_SLOTS) for mbufs of that size, and what of it is not the packet's. */
#define DRIVER_SLOT_KEPT 32u
uint32_t driver_slot_bytes(uint32_t frame_size);

/* What to probe instead of the text: defaults that suit a packet of this size. Bytes written; -ENAMETOOLONG. */
int driver_device(const char *device, uint32_t frame_size, char *out, size_t out_len);

/* configure.c: from what the device reports to a device that is ready to start. */
int port_configure(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
		   const struct why *why);
int port_queues_setup(struct dpdk_port *port, const struct why *why);
uint32_t port_frame_size(const struct rte_eth_dev_info *info, uint32_t traits, uint32_t mtu_bytes);

/* interface.c: the interface in which a started port ends has the port's MTU: that of the driver's own is set. */
int interface_mtu(const struct dpdk_port *port, const struct why *why);

/* sigpipe.c: around what may talk to a driver's peer, in a thread of the application's. */
struct sigpipe {
	sigset_t mask;
	bool pending;
};
void sigpipe_block(struct sigpipe *was);
void sigpipe_restore(const struct sigpipe *was);

/* forked.c: what drivers open and map while a port is opened, or started again, is closed and not there in forked children. Under the ports' lock but for the last. */
#define FORKED_MAX 256u
struct forked {
	int fds[FORKED_MAX];
	unsigned count;
};
void forked_before(struct forked *before);
void forked_after(const struct forked *before);
void forked_closed(void);
void forked_child(void); /* in the child */

/* link.c: peers of drivers that connect to one. Called under the ports' lock but for link_leaving(). */
void link_add(struct dpdk_port *port);
void link_remove(struct dpdk_port *port);
/* Runs a function in the thread that its driver needs: DPDK's interrupt thread for DRIVER_DIALS. The
 * first call may fail (-errno), later ones do not. */
int link_run(const struct dpdk_port *port, void (*run)(void *arg), void *arg);
int link_run_there(void (*run)(void *arg), void *arg); /* not in the interrupt thread */
/* DPDK's interrupt thread is about to take a memif connection down, under the bursts that use it. */
void link_leaving(void);
void link_guard(void (*leaving)(void), void (*done)(void)); /* harp_dpdk.h */
/* The ports' lock, link.c's too. */
void port_lock_all(void);
bool port_trylock_all(void);
void port_unlock_all(void);
/* The lock, around a call into drivers in a thread of the application's. */
void port_enter(struct sigpipe *was);
void port_leave(const struct sigpipe *was);

/* harp_dpdk.h's is opaque. */
static inline struct dpdk_port *port_of(const struct harp_dpdk_port *port)
{
	return (struct dpdk_port *)(uintptr_t)port;
}

/* probe.c: the device's name, from its text; and the device, which its driver takes. */
int port_name(struct dpdk_port *port, const char *device, const struct why *why);
int port_probe(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
	       const struct why *why);

/* steer.c. Devices forget their rules when they are stopped: they are taken out before, and put in again. */
void port_rules_stop(struct dpdk_port *port);
int port_rules_start(struct dpdk_port *port);
void port_rules_flush(struct dpdk_port *port);

/* queues.c: what waits in a port, in the rings of a net_ring for one, and would be lost with it. */
void port_drain(struct dpdk_port *port);
/* Makes the driver let go of what a queue has sent; what is in flight is lost. By who drives the NIC, not inside it. */
void port_flush(struct dpdk_nic *nic, enum port_flush how);

/* nic.c, nic_rx.c */
void nic_init(struct dpdk_nic *nic, struct dpdk_port *port, uint16_t queue);
/* Frees what rx() has not handed on. */
void nic_drop_waiting(struct dpdk_nic *nic);

/* offload.c: prepares a packet, all of whose headers lie in its first mbuf, for what the descriptor's flags ask of the
 * device. False: it is no packet that this can be asked for. */
bool offload_packet(struct rte_mbuf *mbuf, uint32_t flags);

/* harp_dpdk_api's, guest.c */
int guest_memif_probe(struct harp_dpdk_memif **out, const char *device, char *why, size_t why_len);
void guest_memif_hold(struct harp_dpdk_memif *memif);
void guest_memif_release(struct harp_dpdk_memif *memif);
void guest_memif_close(struct harp_dpdk_memif *memif);

/* harp_dpdk_api's, port.c, queues.c, info.c, rss.c, steer.c */
int port_open(struct harp_dpdk_port **out, const struct harp_dpdk_port_options *opt, char *why,
	      size_t why_len);
int port_nic(struct harp_dpdk_port *port, uint32_t queue, struct harp_nic **out, char *why,
	     size_t why_len);
int port_info(const struct harp_dpdk_port *port, struct harp_dpdk_info *out);
int port_rss(const struct harp_dpdk_port *port, struct harp_rss *out);
int port_steer(struct harp_dpdk_port *port, uint8_t protocol, uint16_t local_port, uint32_t queue,
	       bool add);
int port_xstats(const struct harp_dpdk_port *port, char (*names)[64], uint64_t *values,
		unsigned max);
void port_close(struct harp_dpdk_port *port);

#endif
