/* SPDX-License-Identifier: Apache-2.0 */
/* eth.c - adds and removes Ethernet headers and VLAN tags (IEEE 802.1Q). */
#include "link/eth.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ETH_CONTROL_FLOOR_FRAMES 4u
const uint8_t eth_broadcast[ETH_MAC_BYTES] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
static const struct harp_stack_hooks eth_no_hooks;

int eth_init(struct eth *eth, struct nicio *io, struct wheel *wheel, struct rng *rng,
	     struct harp_stats *stats, const struct harp_stack_options *opt)
{
	uint32_t max = opt && opt->max_neighbors ? opt->max_neighbors : 256;
	uint32_t buckets = 1;

	if (max > 1u << 16 || (opt && (opt->neighbor_mode > HARP_NEIGHBOR_EXTERNAL ||
				       opt->vlan_id > ETH_VLAN_ID_MAX)))
		return -EINVAL;
	while (buckets < max)
		buckets *= 2;
	*eth = (struct eth){
		.io = io,
		.stats = stats,
		.wheel = wheel,
		.rng = rng,
		.hooks = opt ? &opt->hooks : &eth_no_hooks,
		.learned = opt ? opt->neighbor_learned : NULL,
		.neighbor_mode = opt ? opt->neighbor_mode : HARP_NEIGHBOR_OWN,
		.vlan_id = opt ? opt->vlan_id : 0,
		.neighbor_max = max,
		.hash_mask = buckets - 1,
		.hash_key = rng_key(rng),
	};
	eth->neighbors = calloc(max, sizeof(*eth->neighbors));
	eth->hash = calloc(buckets, sizeof(*eth->hash));
	if (!eth->neighbors || !eth->hash) {
		eth_destroy(eth);
		return -ENOMEM;
	}
	return 0;
}

void eth_destroy(struct eth *eth)
{
	for (uint32_t i = 0; eth->neighbors && i < eth->neighbor_max; i++)
		wheel_cancel(eth->wheel, &eth->neighbors[i].timer);
	free(eth->neighbors);
	free(eth->hash);
	eth->neighbors = NULL;
	eth->hash = NULL;
}

/* ---- out ---- */

static inline void eth_write_header(const struct eth *eth, struct packet_out *out,
				    const uint8_t *dst, uint16_t type)
{
	struct eth_header *h;

	if (__builtin_expect(eth->vlan_id != 0, 0)) {
		out->head -= ETH_VLAN_BYTES;
		out->len += ETH_VLAN_BYTES;
		be16_store(out->head, eth->vlan_id); /* priority 0 */
		be16_store(out->head + 2, type);
		type = ETH_TYPE_VLAN;
	}
	out->head -= ETH_HEADER_BYTES;
	out->len += ETH_HEADER_BYTES;
	h = (struct eth_header *)out->head;
	memcpy(h->dst, dst, ETH_MAC_BYTES);
	memcpy(h->src, eth->io->nic->caps.mac, ETH_MAC_BYTES);
	h->type = be16_of(type);
}

int eth_output(struct eth *eth, struct neighbor *n, uint16_t type, const struct harp_addr *src_addr,
	       struct packet_out *out)
{
	unsigned frags = out->frags;

	/* In external mode, one branch suffices for a REACHABLE neighbor. */
	if (n->state != NEIGHBOR_REACHABLE || eth->neighbor_mode != HARP_NEIGHBOR_EXTERNAL)
		neighbor_solicit(eth, n, src_addr);
	if (!neighbor_usable(n)) {
		eth->stats->neighbor_wait++;
		return -EAGAIN;
	}
	for (const struct frame *f = out->frame; f && out->frags == 0; f = f->frag)
		frags++;
	if (!nicio_tx_ready(eth->io, frags))
		return -EAGAIN;
	n->used_ns = eth->io->now_ns | 1;
	eth_write_header(eth, out, n->mac, type);
	nicio_tx(eth->io, out);
	return 0;
}

struct frame *eth_control_frame(struct eth *eth)
{
	struct frame *f;

	if (!nicio_tx_ready(eth->io, 1))
		return NULL;
	f = frame_alloc(eth->io->pool, ETH_CONTROL_FLOOR_FRAMES);
	if (!f)
		eth->stats->drop_no_frame++;
	return f;
}

void eth_control_send(struct eth *eth, const uint8_t *dst, uint16_t type, struct packet_out *out)
{
	eth_write_header(eth, out, dst, type);
	nicio_tx(eth->io, out);
	frame_release(eth->io->pool, out->frame);
}

/* ---- in ---- */

static inline void eth_strip(struct frame *packet, uint32_t bytes)
{
	packet->pub.data += bytes;
	packet->pub.len -= bytes;
	packet->pub.capacity -= bytes;
}

/*
 * Removes a VLAN tag and sets *type to the inner type. False (counted): the frame is not of our
 * VLAN. A tag with VLAN 0 has only a priority and counts as untagged (IEEE 802.1Q clause 6.9.1).
 * Frames with a provider tag (802.1ad) or nested tags are dropped.
 */
static bool eth_untag(struct eth *eth, struct frame *packet, uint16_t *type)
{
	const uint8_t *tag = packet->pub.data;
	uint16_t vlan_id = 0;

	if (*type == ETH_TYPE_VLAN) {
		if (packet->pub.len < ETH_VLAN_BYTES) {
			eth->stats->drop_eth_short++;
			return false;
		}
		vlan_id = be16_load(tag) & ETH_VLAN_ID_MASK;
		*type = be16_load(tag + 2);
		eth_strip(packet, ETH_VLAN_BYTES);
	}
	if (vlan_id == eth->vlan_id && *type != ETH_TYPE_VLAN && *type != ETH_TYPE_QINQ)
		return true;
	eth->stats->drop_vlan++;
	return false;
}

/* True for the groups of all nodes and of solicited nodes (RFC 2464 section 7). The IP layer checks
 * whether a solicited-node group is ours. */
static bool eth_is_group(const uint8_t *dst)
{
	static const uint8_t all_nodes[ETH_MAC_BYTES] = { 0x33, 0x33, 0, 0, 0, 1 };

	return memcmp(dst, all_nodes, ETH_MAC_BYTES) == 0 ||
	       (dst[0] == 0x33 && dst[1] == 0x33 && dst[2] == 0xff);
}

static enum eth_verdict eth_not_ours(struct eth *eth)
{
	eth->stats->drop_eth_not_ours++;
	return ETH_DROPPED;
}

enum eth_verdict eth_input(struct eth *eth, struct frame *packet)
{
	const struct eth_header *h = (const struct eth_header *)packet->pub.data;
	bool unicast, group = false;
	uint16_t type;

	if (packet->pub.len < ETH_HEADER_BYTES) {
		eth->stats->drop_eth_short++;
		return ETH_DROPPED;
	}
	unicast = eth_mac_same(h->dst, eth->io->nic->caps.mac);
	if (!unicast && memcmp(h->dst, eth_broadcast, ETH_MAC_BYTES) != 0) {
		group = eth_is_group(h->dst);
		if (!group)
			return eth_not_ours(eth);
	}
	type = be16_get(h->type);
	eth_strip(packet, ETH_HEADER_BYTES);
	if ((type != ETH_TYPE_IPV4 || eth->vlan_id != 0) && !eth_untag(eth, packet, &type))
		return ETH_DROPPED;
	switch (type) {
	case ETH_TYPE_IPV4:
		/* RFC 1122 section 3.3.6: a unicast IP packet must not arrive in a link-layer
		 * broadcast. No supported protocol uses broadcast. */
		return unicast ? ETH_IPV4 : eth_not_ours(eth);
	case ETH_TYPE_IPV6:
		/* IPv6 has groups and no broadcast. */
		if (group)
			return ETH_IPV6_GROUP;
		return unicast ? ETH_IPV6 : eth_not_ours(eth);
	case ETH_TYPE_ARP:
		return group ? eth_not_ours(eth) : arp_input(eth, packet);
	default:
		eth->stats->drop_eth_type++;
		return ETH_DROPPED;
	}
}
