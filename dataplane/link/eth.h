/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eth.h - Ethernet, VLAN tags, and the neighbour table, which both families share. ARP's packets are
 * made here, neighbour discovery's in the network layer, being IPv6 packets.
 */
#ifndef HARP_LINK_ETH_H
#define HARP_LINK_ETH_H

#include <string.h>

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
#define ETH_VLAN_ID_MAX 4094u /* 0: no VLAN, only a priority; 4095: reserved */

#define NEIGHBOUR_REACHABLE_NS UINT64_C(30000000000) /* confirmed within: see neigh.c */

/* timer.kind of neighbour timers; the owner of the wheel gives other kinds other numbers. */
#define TIMER_KIND_NEIGHBOUR 1u

struct eth_header {
	uint8_t dst[ETH_MAC_BYTES], src[ETH_MAC_BYTES];
	be16_t type;
};
static_assert(sizeof(struct eth_header) == ETH_HEADER_BYTES, "IEEE 802.3");

enum neighbour_state {
	NEIGHBOUR_FREE = 0,
	NEIGHBOUR_INCOMPLETE, /* asked, no answer yet */
	NEIGHBOUR_REACHABLE,
	NEIGHBOUR_STALE,  /* usable, to be confirmed by use; asked when probes > 0 */
	NEIGHBOUR_FAILED, /* no answer; asked again when wanted */
};

struct neighbour {
	struct harp_addr addr;
	uint8_t mac[6];
	uint8_t state; /* enum neighbour_state */
	uint8_t probes;
	uint64_t asked_ns, confirmed_ns, told_ns;
	uint64_t used_ns;            /* last handed out or sent to; 0: only heard of */
	struct harp_addr asked_from; /* own address that probes come from */
	struct timer timer;
	struct neighbour *hash_next;
};

/* What the table asks of the network layer: by pointer, not by include. */
struct eth_network {
	void *ctx;
	bool (*is_own)(void *ctx, const struct harp_addr *addr);
	/* Sends a neighbour solicitation, to the target's group when mac is NULL. */
	void (*solicit)(void *ctx, const struct harp_addr *src_addr, const struct harp_addr *target,
			const uint8_t *mac);
};

struct eth {
	struct nicio *io;
	struct harp_stats *stats;
	struct wheel *wheel;
	struct rng *rng;
	const struct harp_stack_hooks *hooks;
	uint32_t neighbour_mode;      /* enum harp_neighbour_mode */
	uint32_t resolved_generation; /* grows whenever a neighbour becomes usable: those who got
				       * -EAGAIN from ip_output() try again when it has moved */
	uint32_t neighbour_max, neighbour_count;
	struct neighbour *neighbours; /* allocated at init */
	struct neighbour **hash;      /* buckets, power of two */
	uint32_t hash_mask;
	struct siphash_key hash_key;
	uint64_t conflict_told_ns;
	uint16_t vlan_id; /* tag of all our frames; 0: none */
	struct eth_network network;
	/* harp_stack_options.neighbour_heard, with hooks->ctx; NULL: nobody listens. */
	void (*tell)(void *ctx, const struct harp_addr *addr, const uint8_t *mac, uint32_t news);
};

enum eth_verdict {
	ETH_DROPPED = 0, /* counted; release the packet */
	ETH_CONSUMED,    /* ARP: handled; release the packet */
	ETH_IPV4,        /* frame data moved to the IP header */
	ETH_IPV6,
	ETH_IPV6_GROUP, /* the same, of a frame sent to a multicast group */
};

/* opt (NULL: defaults) must live as long as the eth does: its hooks are called through it. -EINVAL,
 * -ENOMEM. */
int eth_init(struct eth *eth, struct nicio *io, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt);
void eth_destroy(struct eth *eth);

enum eth_verdict eth_input(struct eth *eth, struct frame *packet);

static inline bool neighbour_usable(const struct neighbour *n)
{
	return n->state == NEIGHBOUR_REACHABLE || n->state == NEIGHBOUR_STALE;
}

/* What a packet of ARP or neighbour discovery says about an address. */
enum neighbour_news {
	NEIGHBOUR_ASKS_US = 1, /* it is a request for our address */
	NEIGHBOUR_REPLY = 2,   /* it answers a question */
	NEIGHBOUR_OVERRIDE =
		4, /* it may replace what is known (RFC 4861 section 4.4; ARP always) */
};
/* Of a packet, which others are told of, too. mac NULL: where it was known to be (an advertisement without the option). */
void neighbour_heard(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac,
		     unsigned news);
/* The same of one that another stack heard. */
void neighbour_told(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac,
		    unsigned news);
/* Somebody claims an own address, from mac (NULL: it does not say): another machine, unless that is our own. */
void neighbour_conflict(struct eth *eth, const uint8_t *mac);
/* neigh.c, for eth.c: someone wants to send through n. */
void neighbour_ask(struct eth *eth, struct neighbour *n, const struct harp_addr *src_addr);
extern const uint8_t eth_broadcast[ETH_MAC_BYTES];
/* arp.c, for eth.c: a packet whose data begins at ARP's. */
enum eth_verdict arp_input(struct eth *eth, const struct frame *f);
/* arp.c, for neigh.c: sends an ARP request, to everyone when mac is NULL. */
void arp_request(struct eth *eth, const struct harp_addr *src_addr, const struct harp_addr *target,
		 const uint8_t *mac);

/* The record for a next hop, made when missing; NULL when the table is full of used entries.
 * A record stays valid while the eth lives; a reused one gets another addr: callers compare. */
struct neighbour *neighbour_get(struct eth *eth, const struct harp_addr *addr);
int neighbour_set(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac);
/* Forward progress on a connection through it (RFC 4861 section 7.3.1). */
void neighbour_confirm(struct eth *eth, struct neighbour *n, uint64_t now_ns);
/* The contrary: nothing sent through it was answered for a while (RFC 1122 section 2.3.2.1 (4), advice
 * from above). Own mode probes it at once; external mode asks the owner to. */
void neighbour_suspect(struct eth *eth, struct neighbour *n, const struct harp_addr *src_addr);
/* A neighbour timer of the wheel fired. */
void neighbour_timer(struct eth *eth, struct timer *timer, uint64_t now_ns);

/* Writes the Ethernet header and queues. 0; -EAGAIN when n is unresolved (a request is sent, at
 * most one per 100 ms) or the NIC's ring is full. src_addr: own address to ask ARP with. */
int eth_output(struct eth *eth, struct neighbour *n, uint16_t type,
	       const struct harp_addr *src_addr, struct packet_out *out);
/* Compilers call memcmp() for six bytes. */
static inline bool eth_mac_same(const uint8_t *a, const uint8_t *b)
{
	uint32_t first[2];
	uint16_t rest[2];

	memcpy(&first[0], a, 4);
	memcpy(&first[1], b, 4);
	memcpy(&rest[0], a + 4, 2);
	memcpy(&rest[1], b + 4, 2);
	return ((first[0] ^ first[1]) | (uint32_t)(rest[0] ^ rest[1])) == 0;
}
/* Is n, as far as anyone can know, where this Ethernet header sends to? Then nobody is to be asked. */
static inline bool eth_is_certain(const struct eth *eth, const struct neighbour *n,
				  const uint8_t *header)
{
	return n->state == NEIGHBOUR_REACHABLE && eth_mac_same(n->mac, header) &&
	       (eth->neighbour_mode == HARP_NEIGHBOUR_EXTERNAL ||
		eth->io->now_ns - n->confirmed_ns <= NEIGHBOUR_REACHABLE_NS);
}
/* Queues a packet that has its Ethernet header, for which eth_is_certain() and nicio_tx_ready(). */
static inline void eth_output_again(struct eth *eth, struct neighbour *n,
				    const struct packet_out *out)
{
	n->used_ns = eth->io->now_ns | 1;
	nicio_tx(eth->io, out);
}
/* A packet of our own making that needs no neighbour record: best effort, those who need an answer ask
 * again. frame: NULL when none may be had (counted). Owned by the caller until eth_control_send(). */
struct frame *eth_control_frame(struct eth *eth);
void eth_control_send(struct eth *eth, const uint8_t *dst, uint16_t type, struct packet_out *out);

#endif
