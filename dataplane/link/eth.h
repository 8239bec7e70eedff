/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eth.h - Ethernet and the neighbour table (ARP; neighbour discovery joins with IPv6).
 */
#ifndef HARP_LINK_ETH_H
#define HARP_LINK_ETH_H

#include "base/rng.h"
#include "base/wheel.h"
#include "nic/nicio.h"

#define ETH_TYPE_IPV4 0x0800u
#define ETH_TYPE_ARP 0x0806u
#define ETH_TYPE_VLAN 0x8100u
#define ETH_TYPE_IPV6 0x86ddu

enum neighbour_state {
	NEIGHBOUR_FREE = 0,
	NEIGHBOUR_INCOMPLETE, /* asked, no answer yet */
	NEIGHBOUR_REACHABLE,
	NEIGHBOUR_STALE,      /* usable, to be confirmed by use */
	NEIGHBOUR_FAILED,     /* no answer; asked again when wanted */
};

struct neighbour {
	struct harp_addr addr;
	uint8_t mac[6];
	uint8_t state; /* enum neighbour_state */
	uint8_t probes;
	uint64_t asked_ns, confirmed_ns, told_ns;
	struct timer timer;
	struct neighbour *hash_next;
};

struct eth {
	struct nicio *io;
	struct harp_stats *stats;
	struct wheel *wheel;
	struct rng *rng;
	const struct harp_stack_hooks *hooks;
	uint32_t neighbour_mode; /* enum harp_neighbour_mode */
	uint32_t resolved_generation; /* grows whenever a neighbour becomes usable: those who got
				       * -EAGAIN from ip_output() try again when it has moved */
	uint32_t neighbour_max, neighbour_count;
	struct neighbour *neighbours; /* allocated at init */
	struct neighbour **hash;      /* buckets, power of two */
	uint32_t hash_mask;
	/* own addresses, to answer ARP for: asked of the network layer by pointer, not by include */
	bool (*is_own)(const void *ctx, const struct harp_addr *addr);
	const void *is_own_ctx;
};

enum eth_verdict {
	ETH_DROPPED = 0, /* counted; release the packet */
	ETH_CONSUMED,    /* ARP: handled; release the packet */
	ETH_IPV4,        /* frame data moved to the IP header */
	ETH_IPV6,
};

int eth_init(struct eth *eth, struct nicio *io, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt);
void eth_destroy(struct eth *eth);

enum eth_verdict eth_input(struct eth *eth, struct frame *packet);

/* The record for a next hop, made when missing; NULL when the table is full of used entries.
 * A record stays valid while the eth lives; a reused one gets another addr: callers compare. */
struct neighbour *neighbour_get(struct eth *eth, const struct harp_addr *addr);
int neighbour_set(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac);
/* Forward progress on a connection through it (RFC 4861 section 7.3.1). */
void neighbour_confirm(struct eth *eth, struct neighbour *n, uint64_t now_ns);
/* A neighbour timer of the wheel fired. */
void neighbour_timer(struct eth *eth, struct timer *timer, uint64_t now_ns);

/* Writes the Ethernet header and queues. 0; -EAGAIN when n is unresolved (a request is sent, at
 * most one per 100 ms) or the NIC's ring is full. src_addr: own address to ask ARP with. */
int eth_output(struct eth *eth, struct neighbour *n, uint16_t type,
	       const struct harp_addr *src_addr, struct packet_out *out);

#endif
