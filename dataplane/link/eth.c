/* SPDX-License-Identifier: Apache-2.0 */
/* eth.c - Ethernet headers on and off, and the packets of ARP (RFC 826). */
#include "link/eth.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ETH_ARP_FLOOR_FRAMES 4u
#define ETH_CONFLICT_LOG_NS UINT64_C(10000000000)
#define ARP_HTYPE_ETHERNET 1u
#define ARP_OP_REQUEST 1u
#define ARP_OP_REPLY 2u

struct arp_packet { /* RFC 826, "Packet format", for Ethernet and IPv4 */
	be16_t htype, ptype;
	uint8_t hlen, plen;
	be16_t op;
	uint8_t sender_mac[ETH_MAC_BYTES], sender_ip[4];
	uint8_t target_mac[ETH_MAC_BYTES], target_ip[4];
};
static_assert(sizeof(struct arp_packet) == 28, "RFC 826");

static const uint8_t eth_broadcast[ETH_MAC_BYTES] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
static const struct harp_stack_hooks eth_no_hooks;

int eth_init(struct eth *eth, struct nicio *io, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt)
{
	uint32_t max = opt && opt->max_neighbours ? opt->max_neighbours : 256;
	uint32_t buckets = 1;

	if (max > 1u << 16 || (opt && opt->neighbour_mode > HARP_NEIGHBOUR_EXTERNAL))
		return -EINVAL;
	while (buckets < max)
		buckets *= 2;
	*eth = (struct eth){
		.io = io,
		.stats = stats,
		.wheel = wheel,
		.rng = rng,
		.hooks = opt ? &opt->hooks : &eth_no_hooks,
		.neighbour_mode = opt ? opt->neighbour_mode : HARP_NEIGHBOUR_OWN,
		.neighbour_max = max,
		.hash_mask = buckets - 1,
		.hash_key = { .k = { rng_u64(rng), rng_u64(rng) } },
	};
	eth->neighbours = calloc(max, sizeof(*eth->neighbours));
	eth->hash = calloc(buckets, sizeof(*eth->hash));
	if (!eth->neighbours || !eth->hash) {
		eth_destroy(eth);
		return -ENOMEM;
	}
	return 0;
}

void eth_destroy(struct eth *eth)
{
	for (uint32_t i = 0; eth->neighbours && i < eth->neighbour_max; i++)
		wheel_cancel(eth->wheel, &eth->neighbours[i].timer);
	free(eth->neighbours);
	free(eth->hash);
	eth->neighbours = NULL;
	eth->hash = NULL;
}

/* ---- out --------------------------------------------------------------------------------------- */

static inline void eth_write_header(const struct eth *eth, struct packet_out *out,
				    const uint8_t *dst, uint16_t type)
{
	struct eth_header *h;

	out->head -= ETH_HEADER_BYTES;
	out->len += ETH_HEADER_BYTES;
	h = (struct eth_header *)out->head;
	memcpy(h->dst, dst, ETH_MAC_BYTES);
	memcpy(h->src, eth->io->nic->caps.mac, ETH_MAC_BYTES);
	h->type = be16_of(type);
}

int eth_output(struct eth *eth, struct neighbour *n, uint16_t type,
	       const struct harp_addr *src_addr, struct packet_out *out)
{
	unsigned frags = 1;

	/* One branch when all is well: REACHABLE, and not for too long. */
	if (n->state != NEIGHBOUR_REACHABLE || eth->neighbour_mode != HARP_NEIGHBOUR_EXTERNAL)
		neighbour_ask(eth, n, src_addr);
	if (!neighbour_usable(n)) {
		eth->stats->neighbour_wait++;
		return -EAGAIN;
	}
	for (const struct frame *f = out->frame->frag; f; f = f->frag)
		frags++;
	if (!nicio_tx_ready(eth->io, frags))
		return -EAGAIN;
	n->used_ns = eth->io->now_ns | 1;
	eth_write_header(eth, out, n->mac, type);
	nicio_tx(eth->io, out);
	return 0;
}

/* Sends an ARP packet; best effort: those who need an answer ask again. */
static void eth_arp_send(struct eth *eth, uint16_t op, const uint8_t *eth_dst,
			 const uint8_t *sender_ip, const uint8_t *target_mac,
			 const uint8_t *target_ip)
{
	struct frame *f;
	struct arp_packet *arp;

	if (!nicio_tx_ready(eth->io, 1))
		return;
	f = frame_alloc(eth->io->pool, ETH_ARP_FLOOR_FRAMES);
	if (!f) {
		eth->stats->drop_no_frame++;
		return;
	}
	arp = (struct arp_packet *)f->pub.data;
	f->pub.len = sizeof(*arp);
	*arp = (struct arp_packet){
		.htype = be16_of(ARP_HTYPE_ETHERNET),
		.ptype = be16_of(ETH_TYPE_IPV4),
		.hlen = ETH_MAC_BYTES,
		.plen = 4,
		.op = be16_of(op),
	};
	memcpy(arp->sender_mac, eth->io->nic->caps.mac, ETH_MAC_BYTES);
	memcpy(arp->sender_ip, sender_ip, 4);
	if (target_mac)
		memcpy(arp->target_mac, target_mac, ETH_MAC_BYTES);
	memcpy(arp->target_ip, target_ip, 4);

	struct packet_out out = { .frame = f, .head = f->pub.data, .len = f->pub.len };

	eth_write_header(eth, &out, eth_dst, ETH_TYPE_ARP);
	nicio_tx(eth->io, &out);
	frame_release(eth->io->pool, f);
	eth->stats->arp_out++;
}

void eth_arp_request(struct eth *eth, const struct harp_addr *src_addr,
		     const struct harp_addr *target, const uint8_t *mac)
{
	eth_arp_send(eth, ARP_OP_REQUEST, mac ? mac : eth_broadcast, src_addr->bytes + 12, NULL,
		     target->bytes + 12);
}

/* ---- in ---------------------------------------------------------------------------------------- */

static struct harp_addr eth_addr_v4(const uint8_t *ip)
{
	return harp_addr_v4(ip[0], ip[1], ip[2], ip[3]);
}

static bool eth_arp_well_formed(const struct frame *f)
{
	const struct arp_packet *arp = (const struct arp_packet *)f->pub.data;
	static const uint8_t zero[ETH_MAC_BYTES];

	if (f->pub.len < sizeof(*arp))
		return false;
	return be16_get(arp->htype) == ARP_HTYPE_ETHERNET &&
	       be16_get(arp->ptype) == ETH_TYPE_IPV4 && arp->hlen == ETH_MAC_BYTES &&
	       arp->plen == 4 &&
	       (be16_get(arp->op) == ARP_OP_REQUEST || be16_get(arp->op) == ARP_OP_REPLY) &&
	       !(arp->sender_mac[0] & 1) && memcmp(arp->sender_mac, zero, sizeof(zero)) != 0 &&
	       arp->sender_ip[0] < 224 && arp->sender_ip[0] != 127;
}

static void eth_arp_conflict(struct eth *eth)
{
	uint64_t now_ns = eth->io->now_ns;

	eth->stats->arp_conflicts++;
	if (!eth->hooks->log ||
	    (eth->conflict_told_ns && now_ns - eth->conflict_told_ns < ETH_CONFLICT_LOG_NS))
		return;
	eth->conflict_told_ns = now_ns;
	eth->hooks->log(eth->hooks->ctx, HARP_LOG_WARN,
			"another machine claims an IPv4 address of this stack (ARP): "
			"give each its own address");
}

static enum eth_verdict eth_arp_input(struct eth *eth, const struct frame *f)
{
	const struct arp_packet *arp = (const struct arp_packet *)f->pub.data;
	struct harp_addr sender, target;
	bool for_us, reply;

	if (!eth_arp_well_formed(f)) {
		eth->stats->drop_arp_bad++;
		return ETH_DROPPED;
	}
	eth->stats->arp_in++;
	if (eth->neighbour_mode == HARP_NEIGHBOUR_EXTERNAL)
		return ETH_CONSUMED; /* the kernel has it too, and answers */
	sender = eth_addr_v4(arp->sender_ip);
	target = eth_addr_v4(arp->target_ip);
	reply = be16_get(arp->op) == ARP_OP_REPLY;
	for_us = eth->is_own && eth->is_own(eth->is_own_ctx, &target);
	if (eth->is_own && eth->is_own(eth->is_own_ctx, &sender)) {
		eth_arp_conflict(eth);
		return ETH_CONSUMED;
	}
	/* A probe (RFC 5227) has no sender address: answered, nothing learned. */
	if (arp->sender_ip[0] != 0)
		neighbour_heard(eth, &sender, arp->sender_mac, for_us && !reply, reply);
	if (for_us && !reply)
		eth_arp_send(eth, ARP_OP_REPLY, arp->sender_mac, arp->target_ip, arp->sender_mac,
			     arp->sender_ip);
	return ETH_CONSUMED;
}

enum eth_verdict eth_input(struct eth *eth, struct frame *packet)
{
	const struct eth_header *h = (const struct eth_header *)packet->pub.data;
	bool unicast;

	if (packet->pub.len < ETH_HEADER_BYTES) {
		eth->stats->drop_eth_short++;
		return ETH_DROPPED;
	}
	unicast = memcmp(h->dst, eth->io->nic->caps.mac, ETH_MAC_BYTES) == 0;
	if (!unicast && memcmp(h->dst, eth_broadcast, ETH_MAC_BYTES) != 0) {
		eth->stats->drop_eth_not_ours++;
		return ETH_DROPPED;
	}
	packet->pub.data += ETH_HEADER_BYTES;
	packet->pub.len -= ETH_HEADER_BYTES;
	packet->pub.capacity -= ETH_HEADER_BYTES;
	switch (be16_get(h->type)) {
	case ETH_TYPE_IPV4:
		if (unicast)
			return ETH_IPV4;
		/* RFC 1122 section 3.3.6: an IP packet for one host has no business in a link
		 * layer broadcast, and we speak nothing that is broadcast. */
		eth->stats->drop_eth_not_ours++;
		return ETH_DROPPED;
	case ETH_TYPE_ARP:
		return eth_arp_input(eth, packet);
	default: /* ETH_TYPE_IPV6 and tagged frames (ETH_TYPE_VLAN) among them, for now */
		eth->stats->drop_eth_type++;
		return ETH_DROPPED;
	}
}
