/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eth.h - Ethernet, VLAN tags, and the neighbor table of both families. This layer builds and
 * parses ARP packets; the network layer does that for neighbor discovery, which uses IPv6.
 */
#ifndef HARP_LINK_ETH_H
#define HARP_LINK_ETH_H

#include <string.h>

#include "base/addr.h"
#include "base/endian.h"
#include "base/rng.h"
#include "base/siphash.h"
#include "base/wheel.h"
#include "nic/nicio.h"

#define ETH_TYPE_IPV4 0x0800u
#define ETH_TYPE_ARP 0x0806u
#define ETH_TYPE_VLAN 0x8100u
#define ETH_TYPE_IPV6 0x86ddu
#define ETH_TYPE_QINQ 0x88a8u

#define ETH_HEADER_BYTES 14u
#define ETH_MAC_BYTES 6u
#define ETH_VLAN_BYTES 4u
#define ETH_VLAN_ID_MASK 0x0fffu
#define ETH_VLAN_ID_MAX 4094u /* 4095 is reserved */

/* how long a confirmation is valid: see neigh.c */
#define NEIGHBOR_REACHABLE_NS UINT64_C(30000000000)

/* struct timer.kind of a neighbor's timer */
#define TIMER_KIND_NEIGHBOR 1u

struct eth_header {
	uint8_t dst[ETH_MAC_BYTES], src[ETH_MAC_BYTES];
	be16_t type;
};
static_assert(sizeof(struct eth_header) == ETH_HEADER_BYTES, "IEEE 802.3");

enum neighbor_state {
	NEIGHBOR_FREE = 0,
	NEIGHBOR_INCOMPLETE, /* solicited, no answer yet */
	NEIGHBOR_REACHABLE,
	NEIGHBOR_STALE,  /* usable, but must be confirmed on use; being probed if probes > 0 */
	NEIGHBOR_FAILED, /* did not answer; solicited again on use */
};

struct neighbor {
	struct harp_addr addr;
	uint8_t mac[6];
	uint8_t state; /* enum neighbor_state */
	uint8_t probes;
	uint64_t solicited_ns, confirmed_ns, confirm_reported_ns;
	uint64_t used_ns;                /* last use; 0: never used */
	struct harp_addr solicited_from; /* own address, source of probes */
	struct timer timer;
	struct neighbor *hash_next;
};

/* Callbacks into the network layer, which this layer does not include. */
struct ip;
struct eth_network {
	struct ip *ip;
	bool (*is_own)(const struct ip *ip, const struct harp_addr *addr);
	/* Sends a neighbor solicitation, to the target's group if mac is NULL. */
	void (*solicit)(struct ip *ip, const struct harp_addr *src_addr,
			const struct harp_addr *target, const uint8_t *mac);
};

struct eth {
	struct nicio *io;
	struct harp_stats *stats;
	struct wheel *wheel;
	struct rng *rng;
	const struct harp_stack_hooks *hooks;
	uint32_t neighbor_mode; /* enum harp_neighbor_mode */
	/* incremented when a neighbor becomes usable: then packets that wait for one are retried */
	uint32_t resolved_generation;
	uint32_t neighbor_max, neighbor_count;
	struct neighbor *neighbors; /* allocated at init */
	struct neighbor **hash;     /* buckets, power of two */
	uint32_t hash_mask;
	struct siphash_key hash_key;
	uint64_t conflict_reported_ns;
	uint16_t vlan_id; /* tag of all sent frames; 0: none */
	struct eth_network network;
	/* harp_stack_options.neighbor_learned, with hooks->ctx; NULL: not set. */
	void (*learned)(void *ctx, const struct harp_addr *addr, const uint8_t *mac,
			uint32_t flags);
};

enum eth_verdict {
	ETH_DROPPED = 0, /* counted; release the packet */
	ETH_CONSUMED,    /* ARP: processed; release the packet */
	ETH_IPV4,        /* frame data begins at the IP header */
	ETH_IPV6,
	ETH_IPV6_GROUP, /* the same, for a multicast frame */
};

/* opt (NULL: defaults) must outlive the eth, which calls its hooks. 0, -EINVAL or -ENOMEM. */
int eth_init(struct eth *eth, struct nicio *io, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt);
void eth_destroy(struct eth *eth);

enum eth_verdict eth_input(struct eth *eth, struct frame *packet);

static inline bool neighbor_usable(const struct neighbor *n)
{
	return n->state == NEIGHBOR_REACHABLE || n->state == NEIGHBOR_STALE;
}

/* Flags of an ARP or neighbor discovery packet about an address. */
enum neighbor_packet_flag {
	NEIGHBOR_ASKS_US = 1, /* a request for our address */
	NEIGHBOR_REPLY = 2,   /* a reply to a solicitation */
	NEIGHBOR_OVERRIDE =
		4, /* may replace a MAC address (RFC 4861 section 4.4); all ARP packets */
};
/* Processes the information of a received packet, and calls the owner's neighbor_learned() for
 * other stacks. mac NULL: that of the entry (an advertisement without the option). */
void neighbor_learn(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac,
		    unsigned flags);
/* The same for information received by another stack. */
void neighbor_learn_forwarded(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac,
			      unsigned flags);
/* Counts and logs that a packet from mac (NULL: unknown) claims an own address, unless mac is
 * ours. */
void neighbor_conflict(struct eth *eth, const uint8_t *mac);
/* Before the use of n: resolves it, or schedules its confirmation, if necessary. */
void neighbor_solicit(struct eth *eth, struct neighbor *n, const struct harp_addr *src_addr);
extern const uint8_t eth_broadcast[ETH_MAC_BYTES];
/* arp.c: processes a packet whose data begins at the ARP header. */
enum eth_verdict arp_input(struct eth *eth, const struct frame *f);
/* arp.c: sends an ARP request, as broadcast if mac is NULL. */
void arp_request(struct eth *eth, const struct harp_addr *src_addr, const struct harp_addr *target,
		 const uint8_t *mac);

/* Returns the entry of a next hop; creates it if missing. NULL: all entries of the table are in
 * use. The pointer stays valid, but the entry may be reused for another address, so callers must
 * compare its addr. */
struct neighbor *neighbor_get(struct eth *eth, const struct harp_addr *addr);
int neighbor_set(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac);
/* Confirms n after forward progress of a connection (RFC 4861 section 7.3.1). */
void neighbor_confirm(struct eth *eth, struct neighbor *n, uint64_t now_ns);
/* TCP gets no ACKs through this neighbor (advice from higher layers, RFC 1122 section 2.3.2.1 (4)).
 * Own mode probes it at once; external mode requests that from the owner. */
void neighbor_suspect(struct eth *eth, struct neighbor *n, const struct harp_addr *src_addr);
/* A neighbor timer has expired. */
void neighbor_timer(struct eth *eth, struct timer *timer);

/* Writes the Ethernet header and queues the packet. 0; -EAGAIN: n is unresolved (and being
 * solicited) or the NIC's ring is full. src_addr: source of solicitations. */
int eth_output(struct eth *eth, struct neighbor *n, uint16_t type, const struct harp_addr *src_addr,
	       struct packet_out *out);
/* memcmp() of six bytes is not inlined. */
static inline bool eth_mac_same(const uint8_t *a, const uint8_t *b)
{
	uint32_t start[2];
	uint16_t end[2];

	memcpy(&start[0], a, 4);
	memcpy(&start[1], b, 4);
	memcpy(&end[0], a + 4, 2);
	memcpy(&end[1], b + 4, 2);
	return ((start[0] ^ start[1]) | (uint32_t)(end[0] ^ end[1])) == 0;
}
/* True if n is confirmed and has the destination address of this Ethernet header. */
static inline bool eth_neighbor_confirmed(const struct eth *eth, const struct neighbor *n,
					  const uint8_t *header)
{
	return n->state == NEIGHBOR_REACHABLE && eth_mac_same(n->mac, header) &&
	       (eth->neighbor_mode == HARP_NEIGHBOR_EXTERNAL ||
		eth->io->now_ns - n->confirmed_ns <= NEIGHBOR_REACHABLE_NS);
}
/* Queues a packet that has its Ethernet header. Requires eth_neighbor_confirmed() and
 * nicio_tx_ready(). */
static inline void eth_output_again(struct eth *eth, struct neighbor *n,
				    const struct packet_out *out)
{
	n->used_ns = eth->io->now_ns | 1;
	nicio_tx(eth->io, out);
}
/* Allocates a frame for an ARP or neighbor discovery packet. NULL: the NIC's ring is full, or no
 * frame is free (counted); the packet is sent again later. eth_control_send() releases it. */
struct frame *eth_control_frame(struct eth *eth);
void eth_control_send(struct eth *eth, const uint8_t *dst, uint16_t type, struct packet_out *out);

#endif
