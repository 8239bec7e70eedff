/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipv6.c - received IPv6 packets, and the header of sent ones (RFC 8200).
 *
 * Extension headers. None are sent. Received hop-by-hop and destination options are skipped, up to
 * IP6_EXT_BYTES_MAX bytes in IP6_EXT_MAX headers (RFC 8504 section 5.3 recommends limits). The
 * packet is dropped if an unknown option's type requires that. A routing header of any type is
 * skipped if no segments are left; otherwise the packet is dropped (section 4.4; RFC 5095 section 3
 * for type 0). Drops are counted; no parameter problem message is sent. Fragments are dropped,
 * including atomic fragments, which RFC 6946 would accept: no TCP sender with path MTU discovery
 * sends them, RFC 8021 deprecates their cause, and RFC 6980 forbids them for neighbor discovery.
 */
#include "network/ipv6.h"

#include <endian.h>

#include "base/checksum.h"

#define IP6_EXT_MAX 4u
#define IP6_EXT_BYTES_MAX 256u
#define IP6_OPTION_PAD1 0u
#define IP6_OPTION_ACTION_MASK                                                                     \
	0xc0u /* of an unknown option's type: 0: skip, else drop the packet */

/* RFC 4291 sections 2.7 and 2.5.3: multicast and loopback addresses must not be a source. */
static bool ip6_source_valid(const struct harp_addr *src)
{
	/* An IPv4-mapped address would be mistaken for IPv4 (RFC 4942 section 2.2). */
	return !ipv6_is_multicast(src) && !ipv6_is_loopback(src) && !harp_addr_is_v4(src);
}

bool ip6_source_is_other(const struct ip *ip, const struct harp_addr *src)
{
	return !addr_is_zero(src) && !ip_is_own(ip, src);
}

/* True for an own address, its solicited-node group, and the group of all nodes. */
static bool ip6_is_ours(const struct ip *ip, const struct packet_in *in)
{
	static const struct harp_addr all_nodes = { .bytes = { 0xff, 2, [15] = 1 } };

	/* A multicast frame must not have a unicast address (as in RFC 1122 section 3.3.6). */
	if (!ipv6_is_multicast(&in->dst))
		return !harp_addr_is_v4(&in->dst) && ip_is_own(ip, &in->dst) && !in->group;
	if (addr_equal(&in->dst, &all_nodes))
		return true;
	for (unsigned i = 0; i < ip->address_count; i++) {
		struct harp_addr group = ipv6_solicited_node(&ip->addresses[i].addr);

		if (!harp_addr_is_v4(&ip->addresses[i].addr) && addr_equal(&group, &in->dst))
			return true;
	}
	return false;
}

/* Checks len bytes of hop-by-hop or destination options (RFC 8200 section 4.2). */
static bool ip6_options_valid(const uint8_t *p, uint32_t len)
{
	for (uint32_t at = 0; at < len;) {
		uint32_t left = len - at;

		if (p[at] == IP6_OPTION_PAD1) {
			at++;
			continue;
		}
		if (left < 2 || p[at + 1] + 2u > left || (p[at] & IP6_OPTION_ACTION_MASK))
			return false;
		at += p[at + 1] + 2u;
	}
	return true;
}

static bool ip6_ext_valid(uint8_t proto, const uint8_t *p, uint32_t bytes, unsigned count)
{
	if (proto == IPV6_EXT_ROUTING) /* segments left: RFC 8200 section 4.4 */
		return p[3] == 0;
	/* RFC 8200 section 4.1: hop-by-hop options come first. */
	return (proto == IPV6_EXT_DESTINATION || count == 0) && ip6_options_valid(p + 2, bytes - 2);
}

/* Skips extension headers. Returns the verdict for the header after them, at p + *offset. */
static enum ip_verdict ip6_extensions(const struct ip *ip, struct packet_in *in, const uint8_t *p,
				      uint32_t len, uint32_t *offset)
{
	struct harp_stats *stats = ip->stats;
	uint8_t next = in->proto;

	*offset = 0;
	for (unsigned count = 0;; count++) {
		uint32_t bytes;

		switch (in->proto) {
		case IPV6_EXT_HOP_BY_HOP:
		case IPV6_EXT_ROUTING:
		case IPV6_EXT_DESTINATION:
			break;
		case IPV6_EXT_FRAGMENT:
			return ip_drop(&stats->drop_ip_fragment);
		case IP_PROTO_ICMP6:
			return IP_LOCAL_ICMP6;
		default:
			return ip_protocol(ip, in->proto);
		}
		bytes = ipv6_ext_bytes(in->proto, p + *offset, len - *offset, &next);
		if (bytes == 0 || count == IP6_EXT_MAX || *offset + bytes > IP6_EXT_BYTES_MAX ||
		    !ip6_ext_valid(in->proto, p + *offset, bytes, count))
			return ip_drop(&stats->drop_ip6_ext);
		*offset += bytes;
		in->proto = next;
	}
}

enum ip_verdict ip6_input(struct ip *ip, struct packet_in *in)
{
	struct frame *f = in->frame;
	const struct ipv6_header *h = (const struct ipv6_header *)f->pub.data;
	struct harp_stats *stats = ip->stats;
	enum ip_verdict verdict;
	uint32_t word, total, ext;

	/* The headers must be in the first frame; all NICs ensure that. */
	if (f->pub.len < IPV6_HEADER_BYTES)
		return ip_drop(&stats->drop_ip_short);
	word = be32_get(h->version_class_label);
	if (word >> 28 != 6)
		return ip_drop(&stats->drop_ip_version);
	total = IPV6_HEADER_BYTES + be16_get(h->payload_len);
	if (!ip_trim(ip, f, total))
		return ip_drop(&stats->drop_ip_short);
	in->src = h->src;
	in->dst = h->dst;
	if (!ip6_is_ours(ip, in))
		return ip_drop(&stats->drop_ip_not_ours);
	if (!ip6_source_valid(&in->src))
		return ip_drop(&stats->drop_ip_source);
	in->proto = h->next;
	verdict = ip6_extensions(ip, in, f->pub.data + IPV6_HEADER_BYTES,
				 f->pub.len - IPV6_HEADER_BYTES, &ext);
	if (verdict == IP_DROPPED)
		return verdict;
	if (verdict != IP_LOCAL_ICMP6) {
		if (!ip6_source_is_other(ip, &in->src))
			return ip_drop(&stats->drop_ip_source);
		/* RFC 9293 section 3.9.2.3 MUST-57, and UDP sockets do not join groups. */
		if (ipv6_is_multicast(&in->dst))
			return ip_drop(&stats->drop_ip_not_ours);
	}
	ext += IPV6_HEADER_BYTES;
	in->ip_header = f->pub.data;
	in->len = total - ext;
	in->ttl = h->hop_limit;
	in->tos = (uint8_t)(word >> 20);
	in->csum_valid = (f->flags & FRAME_RX_CSUM_VALID) != 0;
	in->l4_csum_pseudo = ip_pseudo_sum(&in->src, &in->dst, in->proto, in->len);
	f->pub.data += ext;
	f->pub.len -= ext;
	f->pub.capacity -= ext;
	return verdict;
}

void ip6_write_header(struct packet_out *out, const struct ip_path *path, uint8_t proto,
		      uint8_t tclass, uint8_t hop_limit)
{
	struct ipv6_header *h;
	uint32_t payload_len = out->len;

	out->head -= IPV6_HEADER_BYTES;
	out->len += IPV6_HEADER_BYTES;
	h = (struct ipv6_header *)out->head;
	h->version_class_label =
		be32_of(UINT32_C(6) << 28 | (uint32_t)tclass << 20 | path->flow_label);
	h->payload_len = be16_of((uint16_t)payload_len);
	h->next = proto;
	h->hop_limit = hop_limit;
	h->src = path->src;
	h->dst = path->dst;
}

void ip_path_label(const struct ip *ip, struct ip_path *path, uint16_t local_port,
		   uint16_t remote_port)
{
	struct {
		struct harp_addr src, dst;
		uint16_t local_port, remote_port;
	} flow = { path->src, path->dst, local_port, remote_port };

	static_assert(sizeof(flow) == 36, "hashed as bytes: no padding");
	path->flow_label = (uint32_t)siphash24(&ip->label_key, &flow, sizeof(flow)) & 0xfffffu;
	path->sent.len = 0;
	if (path->flow_label == 0) /* 0 means "no label" */
		path->flow_label = 1;
}
