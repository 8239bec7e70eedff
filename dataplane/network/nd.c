/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nd.c - neighbor discovery (RFC 4861).
 *
 * Solicitations and advertisements are IPv6 packets, so this layer builds and parses them. The
 * neighbor table (link/neigh.c) processes their content and decides what to send and accept. Router
 * discovery and redirects are counted and ignored, because the stack's owner sets the routes. The
 * stack does not probe its own addresses before use (RFC 4862 section 5.4), because the owner has
 * chosen them. It detects a conflict when the other node sends, and counts and reports it.
 *
 * In external mode the kernel sends solicitations and advertisements; received messages are only
 * counted.
 *
 * The stack does not announce membership of its solicited-node groups (RFC 4861 section 7.2.1
 * requires MLD, RFC 3810). Own mode is for the wire and for callers' NICs, which receive all
 * groups. On a NIC shared with the kernel, which has the same addresses, the kernel has joined the
 * groups. On a dedicated NIC behind a switch with MLD snooping (RFC 4541), solicitations arrive
 * only while the switch floods them.
 */
#include <endian.h>

#include "base/checksum.h"
#include "network/ipv6.h"

#define ND_HOP_LIMIT 255u /* the sender is on the link, because routers decrement the limit */
#define ND_OPTION_SOURCE_LINK 1u
#define ND_OPTION_TARGET_LINK 2u
#define ND_FLAG_SOLICITED 0x40u
#define ND_FLAG_OVERRIDE 0x20u

/* A solicitation or advertisement with one option: sections 4.3, 4.4, 4.6.1. */
struct nd_message {
	uint8_t type, code;
	uint16_t csum; /* memory order */
	uint8_t flags; /* of an advertisement */
	uint8_t reserved[3];
	struct harp_addr target;
	uint8_t option, option_len; /* in units of 8 bytes */
	uint8_t mac[ETH_MAC_BYTES];
} __attribute__((packed));
static_assert(sizeof(struct nd_message) == 32, "RFC 4861 section 4.3");
#define ND_MESSAGE_BYTES_MIN 24u /* up to the options */

/* ---- out ---- */

static void nd_send(struct ip *ip, const struct ip_path *path, const uint8_t *mac, uint8_t type,
		    uint8_t flags, const struct harp_addr *target)
{
	struct frame *f = eth_control_frame(ip->eth);
	uint8_t group_mac[ETH_MAC_BYTES];
	struct nd_message *m;
	struct packet_out out;
	uint32_t sum;

	if (!f)
		return;
	if (!mac) {
		ipv6_group_mac(&path->dst, group_mac);
		mac = group_mac;
	}
	m = (struct nd_message *)f->pub.data;
	f->pub.len = sizeof(*m);
	*m = (struct nd_message){
		.type = type,
		.flags = flags,
		.target = *target,
		.option = type == ND_SOLICITATION ? ND_OPTION_SOURCE_LINK : ND_OPTION_TARGET_LINK,
		.option_len = 1,
	};
	memcpy(m->mac, ip->eth->io->nic->caps.mac, ETH_MAC_BYTES);
	sum = ip_pseudo_sum(&path->src, &path->dst, IP_PROTO_ICMP6, sizeof(*m));
	m->csum = csum_finish(csum_words(m, sizeof(*m), sum));
	out = (struct packet_out){ .frame = f, .head = f->pub.data, .len = sizeof(*m) };
	ip6_write_header(&out, path, IP_PROTO_ICMP6, 0, ND_HOP_LIMIT);
	eth_control_send(ip->eth, mac, ETH_TYPE_IPV6, &out);
	ip->stats->nd_out++;
}

void nd_solicit(struct ip *ip, const struct harp_addr *src_addr, const struct harp_addr *target,
		const uint8_t *mac)
{
	struct ip_path path = { .src = *src_addr, .dst = *target };
	const struct harp_addr *src;

	if (!ip_is_own(ip, &path.src)) { /* section 7.2.2: the source is an own address */
		src = ip_source(ip, target, target);
		if (!src)
			return;
		path.src = *src;
	}
	if (!mac)
		path.dst = ipv6_solicited_node(target);
	nd_send(ip, &path, mac, ND_SOLICITATION, 0, target);
}

/* Section 7.2.4. mac: of the solicitor; NULL for a probe of our address. */
static void nd_advertise(struct ip *ip, const struct harp_addr *target,
			 const struct harp_addr *solicitor, const uint8_t *mac)
{
	struct ip_path path = { .src = *target, .dst = *solicitor };

	if (mac) {
		nd_send(ip, &path, mac, ND_ADVERTISEMENT, ND_FLAG_SOLICITED | ND_FLAG_OVERRIDE,
			target);
		return;
	}
	/* RFC 4862 section 5.4.3: another node probes our address. The advertisement goes to all
	 * nodes. */
	path.dst = (struct harp_addr){ .bytes = { 0xff, 2, [15] = 1 } };
	nd_send(ip, &path, NULL, ND_ADVERTISEMENT, ND_FLAG_OVERRIDE, target);
}

/* ---- in ---- */

/*
 * Parses the options; sets *mac to the link-layer address in the option of this type (NULL: none).
 * False: an option has length 0 or exceeds the packet (section 7.1: discard the packet), or the
 * address is not unicast.
 */
static bool nd_options(const uint8_t *p, uint32_t len, uint8_t type, const uint8_t **mac)
{
	static const uint8_t zero[ETH_MAC_BYTES];

	*mac = NULL;
	for (uint32_t at = 0; at < len; at += p[at + 1] * 8u) {
		if (len - at < 8 || p[at + 1] == 0 || p[at + 1] * 8u > len - at)
			return false;
		if (p[at] != type)
			continue;
		if (p[at + 1] != 1 || (p[at + 2] & 1) ||
		    memcmp(p + at + 2, zero, sizeof(zero)) == 0)
			return false;
		*mac = p + at + 2;
	}
	return true;
}

/* The checks of sections 7.1.1 and 7.1.2 in their order, without that of the checksum. */
static bool nd_valid(const struct packet_in *in, const uint8_t **mac)
{
	const struct nd_message *m = (const struct nd_message *)in->frame->pub.data;
	bool solicitation = m->type == ND_SOLICITATION;
	bool unspecified = addr_is_zero(&in->src), multicast = ipv6_is_multicast(&in->dst);

	if (in->ttl != ND_HOP_LIMIT || in->frame->frag || in->len < ND_MESSAGE_BYTES_MIN ||
	    m->code != 0 || ipv6_is_multicast(&m->target) || harp_addr_is_v4(&m->target))
		return false;
	if (!nd_options(in->frame->pub.data + ND_MESSAGE_BYTES_MIN, in->len - ND_MESSAGE_BYTES_MIN,
			solicitation ? ND_OPTION_SOURCE_LINK : ND_OPTION_TARGET_LINK, mac))
		return false;
	if (!solicitation)
		return !unspecified && !(multicast && (m->flags & ND_FLAG_SOLICITED));
	/* "If the IP source address is the unspecified address, the IP destination address is a
	 * solicited-node multicast address"; "there is no source link-layer address option". */
	return !unspecified || (multicast && in->dst.bytes[12] == 0xff && !*mac);
}

/* Processes a solicitation: section 7.2.3. */
static void nd_solicited(struct ip *ip, const struct packet_in *in, const uint8_t *mac)
{
	const struct nd_message *m = (const struct nd_message *)in->frame->pub.data;
	struct ip_path path = { .dst = in->src };
	bool for_us = ip_is_own(ip, &m->target);

	if (mac)
		neighbor_learn(ip->eth, &in->src, mac,
			       NEIGHBOR_OVERRIDE | (for_us ? NEIGHBOR_ASKS_US : 0u));
	if (!for_us)
		return;
	if (!mac && !addr_is_zero(&in->src)) {
		/* A unicast probe may omit the solicitor's address. If the table lacks it, this
		 * resolves it, and the next probe gets the reply. */
		if (ip_path_lookup(ip, &path) != 0 || !path.neighbor)
			return;
		if (!neighbor_usable(path.neighbor)) {
			neighbor_solicit(ip->eth, path.neighbor, &m->target);
			return;
		}
		mac = path.neighbor->mac;
	}
	nd_advertise(ip, &m->target, &in->src, mac);
}

/* Processes an advertisement: section 7.2.5. */
static void nd_advertised(struct ip *ip, const struct packet_in *in, const uint8_t *mac)
{
	const struct nd_message *m = (const struct nd_message *)in->frame->pub.data;

	neighbor_learn(ip->eth, &m->target, mac,
		       ((m->flags & ND_FLAG_SOLICITED) ? NEIGHBOR_REPLY : 0u) |
			       ((m->flags & ND_FLAG_OVERRIDE) ? NEIGHBOR_OVERRIDE : 0u));
}

/* True for an advertisement of an own address by another node (RFC 4862 section 5.4.4), or any
 * message from such an address. */
static bool nd_claims_ours(const struct ip *ip, const struct packet_in *in)
{
	const struct nd_message *m = (const struct nd_message *)in->frame->pub.data;

	return ip_is_own(ip, &in->src) ||
	       (m->type == ND_ADVERTISEMENT && ip_is_own(ip, &m->target));
}

void nd_input(struct ip *ip, const struct packet_in *in)
{
	const uint8_t *mac = NULL;
	uint8_t type = in->frame->pub.data[0];

	if (type != ND_SOLICITATION && type != ND_ADVERTISEMENT) {
		ip->stats->nd_ignored++;
		return;
	}
	if (!nd_valid(in, &mac)) {
		ip->stats->drop_nd_bad++;
		return;
	}
	ip->stats->nd_in++;
	if (ip->eth->neighbor_mode == HARP_NEIGHBOR_EXTERNAL)
		return; /* the kernel has the same addresses and replies */
	if (nd_claims_ours(ip, in))
		neighbor_conflict(ip->eth, mac);
	else if (type == ND_SOLICITATION)
		nd_solicited(ip, in, mac);
	else
		nd_advertised(ip, in, mac);
}
