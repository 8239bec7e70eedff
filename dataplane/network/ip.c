/* SPDX-License-Identifier: Apache-2.0 */
/* ip.c - received IPv4 packets (RFC 791, RFC 1122 section 3.2), and output for both families. */
#include "network/ip.h"

#include <errno.h>

#include "network/ipv4.h"
#include "network/ipv6.h"

#define IP_TTL 64u /* RFC 1122 section 3.2.1.7: configurable; RFC 1700 recommends 64 */

void ip_init(struct ip *ip, struct eth *eth, struct harp_stats *stats,
	     const struct harp_stack_options *opt)
{
	*ip = (struct ip){ .eth = eth, .stats = stats, .generation = 1 };
	ip->label_key = rng_key(eth->rng);
	ip->scope_id = opt ? opt->scope_id : 0;
	eth->network = (struct eth_network){ ip, ip_is_own, nd_solicit };
}

uint32_t ip_pseudo_sum(const struct harp_addr *src, const struct harp_addr *dst, uint8_t proto,
		       uint32_t len)
{
	/* IPv4: skips the prefix of the mapped form. */
	unsigned skip = harp_addr_is_v4(dst) ? 12 : 0;
	uint32_t sum = csum_words(src->bytes + skip, 16 - skip, 0);

	return ip_pseudo_add(csum_words(dst->bytes + skip, 16 - skip, sum), proto, len);
}

/* ---- in ---- */

bool ip_trim(struct ip *ip, struct frame *f, uint32_t total)
{
	for (; f->frag; f = f->frag) {
		if (f->pub.len >= total)
			break;
		total -= f->pub.len;
	}
	if (f->pub.len < total)
		return false;
	f->pub.len = total;
	if (f->frag) {
		frame_release_packet(ip->eth->io->pool, f->frag);
		f->frag = NULL;
	}
	return true;
}

/* RFC 1122 section 3.2.1.3: some addresses must never be a source; own ones are invalid in received
 * packets. */
static bool ip_source_valid(const struct ip *ip, const struct harp_addr *src)
{
	uint32_t v4 = ipv4_number(src);

	if (v4 >> 24 == 0 || v4 >> 24 == 127 || v4 >> 28 >= 14)
		return false;
	return !ip_is_own(ip, src) && !ip_is_broadcast(ip, src);
}

enum ip_verdict ip_protocol(const struct ip *ip, uint8_t proto)
{
	switch (proto) {
	case IP_PROTO_TCP:
		return IP_LOCAL_TCP;
	case IP_PROTO_UDP:
		return IP_LOCAL_UDP;
	default:
		return ip_drop(&ip->stats->drop_ip_protocol);
	}
}

/*
 * True if a source route (RFC 791 section 3.1: options 131 and 137) is not at its end: the packet
 * is for another host. RFC 1122 section 3.3.5 permits hosts to forward it; this stack does not (RFC
 * 7126 section 4.3). Ignores other options.
 */
static bool ip_has_source_route(const uint8_t *options, uint32_t len)
{
	for (uint32_t at = 0, size; at < len && options[at] != IPV4_OPTION_END; at += size) {
		size = 1;
		if (options[at] == IPV4_OPTION_NOP)
			continue;
		if (len - at < 2 || options[at + 1] < 2 || options[at + 1] > len - at)
			return false;
		size = options[at + 1];
		if (options[at] == IPV4_OPTION_LSRR || options[at] == IPV4_OPTION_SSRR)
			return size >= 3 && options[at + 2] <= size; /* pointer to the next hop */
	}
	return false;
}

/* Checks a packet's addresses and caches them if they are valid, until the generation changes.
 * False (counted): not valid. */
static bool ip_cache_addresses(struct ip *ip, const struct ipv4_header *h)
{
	struct harp_addr src = ipv4_mapped(h->src), dst = ipv4_mapped(h->dst);

	if (!ip_is_own(ip, &dst)) {
		ip->stats->drop_ip_not_ours++;
		return false;
	}
	if (!ip_source_valid(ip, &src)) {
		ip->stats->drop_ip_source++;
		return false;
	}
	ip->last = (struct ip_last_addresses){ .generation = ip->generation,
					       .pseudo_sum = ip_pseudo_sum(&src, &dst, 0, 0),
					       .src = src,
					       .dst = dst };
	memcpy(ip->last.header, ipv4_addresses(h), sizeof(ip->last.header));
	return true;
}

enum ip_verdict ip_input(struct ip *ip, struct packet_in *in)
{
	struct frame *f = in->frame;
	const struct ipv4_header *h = (const struct ipv4_header *)f->pub.data;
	struct harp_stats *stats = ip->stats;

	/* The header must be in the first frame; all NICs ensure that. */
	if (f->pub.len < IPV4_HEADER_BYTES)
		return ip_drop(&stats->drop_ip_short);
	uint32_t header = ipv4_header_bytes(h), total = be16_get(h->total_len);

	/* RFC 1122 sections 3.2.1.1, 3.2.1.2. */
	if (h->version_ihl >> 4 != 4 || header < IPV4_HEADER_BYTES)
		return ip_drop(&stats->drop_ip_version);
	if (f->pub.len < header || total < header)
		return ip_drop(&stats->drop_ip_short);
	if (csum_finish(header == IPV4_HEADER_BYTES ? csum_words(h, IPV4_HEADER_BYTES, 0)
						    : csum_words(h, header, 0)) != 0)
		return ip_drop(&stats->drop_ip_checksum);
	if (!ip_trim(ip, f, total))
		return ip_drop(&stats->drop_ip_short);

	if ((ip->last.generation != ip->generation ||
	     memcmp(ip->last.header, ipv4_addresses(h), sizeof(ip->last.header)) != 0) &&
	    !ip_cache_addresses(ip, h))
		return IP_DROPPED;
	in->src = ip->last.src;
	in->dst = ip->last.dst;
	if (be16_get(h->flags_offset) & (IPV4_FLAG_MF | IPV4_OFFSET_MASK))
		return ip_drop(&stats->drop_ip_fragment);
	/* A host may ignore the other options (RFC 1122 section 3.2.1.8). */
	if (header > IPV4_HEADER_BYTES &&
	    ip_has_source_route(f->pub.data + IPV4_HEADER_BYTES, header - IPV4_HEADER_BYTES))
		return ip_drop(&stats->drop_ip_not_ours);
	in->ip_header = f->pub.data;
	in->len = total - header;
	in->proto = h->proto;
	in->ttl = h->ttl;
	in->tos = h->tos;
	in->csum_valid = (f->flags & FRAME_RX_CSUM_VALID) != 0;
	in->l4_csum_pseudo = ip_pseudo_add(ip->last.pseudo_sum, in->proto, in->len);
	f->pub.data += header;
	f->pub.len -= header;
	f->pub.capacity -= header;
	return h->proto == IP_PROTO_ICMP ? IP_LOCAL_ICMP : ip_protocol(ip, h->proto);
}

/* ---- out ---- */

/* With DF the identification has no meaning (RFC 6864 section 4). Each path counts it, as GRO in
 * receivers expects. A global counter would reveal to each peer how much is sent to others. */
static void ip_write_header(struct ip_path *path, uint8_t proto, uint8_t tos,
			    struct packet_out *out)
{
	struct ipv4_header *h;

	out->head -= IPV4_HEADER_BYTES;
	out->len += IPV4_HEADER_BYTES;
	h = (struct ipv4_header *)out->head;
	h->version_ihl = 0x45;
	h->tos = tos;
	h->total_len = be16_of((uint16_t)out->len);
	h->id = be16_of(path->v4_id);
	/* The NIC increments the identification for each segment of a GSO packet. */
	path->v4_id = (uint16_t)(path->v4_id + (out->segments > 1 ? out->segments : 1));
	h->flags_offset = be16_of(IPV4_FLAG_DF);
	h->ttl = IP_TTL;
	h->proto = proto;
	h->csum = 0;
	memcpy(h->src, path->src.bytes + 12, 4);
	memcpy(h->dst, path->dst.bytes + 12, 4);
	h->csum = csum_finish(csum_words(h, IPV4_HEADER_BYTES, 0));
}

/* True if the previous packet's headers can be reused and the next hop is unchanged. */
static inline bool ip_sent_fits(const struct ip *ip, const struct ip_path *path, uint8_t proto,
				uint8_t tos)
{
	const struct ip_sent *sent = &path->sent;

	return sent->len != 0 && sent->proto == proto && sent->tos == tos &&
	       ip_path_neighbor(path) &&
	       eth_neighbor_confirmed(ip->eth, path->neighbor, sent->bytes);
}

/* Caches the headers of a sent packet. */
static void ip_sent_note(struct ip_path *path, uint8_t proto, uint8_t tos,
			 const struct packet_out *payload, const struct packet_out *out)
{
	struct ip_sent *sent = &path->sent;
	bool v4 = harp_addr_is_v4(&path->dst);

	*sent = (struct ip_sent){ .len = (uint8_t)(payload->head - out->head),
				  .proto = proto,
				  .tos = tos,
				  .ip_bytes = v4 ? IPV4_HEADER_BYTES : IPV6_HEADER_BYTES };
	memcpy(sent->bytes, out->head, sent->len);
	if (v4) {
		struct ipv4_header *h =
			(struct ipv4_header *)(sent->bytes + sent->len - IPV4_HEADER_BYTES);

		h->total_len = h->id = be16_of(0);
		h->csum = 0;
		sent->sum = csum_words(h, IPV4_HEADER_BYTES, 0);
	}
}

bool ip_output_repeats(const struct ip *ip, const struct ip_path *path, uint8_t proto, uint8_t tos)
{
	return ip_sent_fits(ip, path, proto, tos);
}

static inline void ip_write_again(struct ip *ip, struct ip_path *path, struct packet_out *out)
{
	const struct ip_sent *sent = &path->sent;
	uint8_t *ip_header = out->head - sent->ip_bytes;

	out->head -= sent->len;
	/* a copy of constant size is inlined */
	if (sent->len == ETH_HEADER_BYTES + IPV4_HEADER_BYTES)
		memcpy(out->head, sent->bytes, ETH_HEADER_BYTES + IPV4_HEADER_BYTES);
	else
		memcpy(out->head, sent->bytes, sent->len);
	if (sent->ip_bytes == IPV4_HEADER_BYTES) {
		struct ipv4_header *h = (struct ipv4_header *)ip_header;
		uint16_t len = htobe16((uint16_t)(out->len + IPV4_HEADER_BYTES));
		uint16_t id = htobe16(path->v4_id);

		memcpy(&h->total_len, &len, sizeof(len));
		memcpy(&h->id, &id, sizeof(id));
		h->csum = csum_finish(csum_add(sent->sum, (uint32_t)len + id));
		path->v4_id = (uint16_t)(path->v4_id + (out->segments > 1 ? out->segments : 1));
	} else {
		((struct ipv6_header *)ip_header)->payload_len = be16_of((uint16_t)out->len);
	}
	out->len += sent->len;
	eth_output_again(ip->eth, path->neighbor, out);
}

void ip_output_next(struct ip *ip, struct ip_path *path, struct packet_out *out)
{
	ip_write_again(ip, path, out);
}

/* Sends with the cached headers. */
static int ip_output_again(struct ip *ip, struct ip_path *path, struct packet_out *out)
{
	if (out->len - out->cut_bytes + path->sent.ip_bytes > path->mtu_bytes)
		return -EMSGSIZE;
	if (!nicio_tx_ready(ip->eth->io, out->frags))
		return -EAGAIN;
	ip_write_again(ip, path, out);
	return 0;
}

int ip_output(struct ip *ip, struct ip_path *path, uint8_t proto, uint8_t tos,
	      struct packet_out *out)
{
	struct packet_out payload; /* *out without IP and Ethernet headers */
	int err = ip_path_check(ip, path);
	bool v4;

	if (err)
		return err;
	if (out->frags > 0 && ip_sent_fits(ip, path, proto, tos))
		return ip_output_again(ip, path, out);
	v4 = harp_addr_is_v4(&path->dst);
	if (out->len - out->cut_bytes + (v4 ? IPV4_HEADER_BYTES : IPV6_HEADER_BYTES) >
	    path->mtu_bytes)
		return -EMSGSIZE;
	payload = *out;
	path->neighbor = ip_path_neighbor(path);
	if (!path->neighbor)
		path->neighbor = neighbor_get(ip->eth, &path->next_hop);
	if (!path->neighbor)
		return -EAGAIN;
	if (v4)
		ip_write_header(path, proto, tos, out);
	else
		ip6_write_header(out, path, proto, tos, IP_TTL);
	err = eth_output(ip->eth, path->neighbor, v4 ? ETH_TYPE_IPV4 : ETH_TYPE_IPV6, &path->src,
			 out);
	if (err)
		*out = payload;
	else if (out->frags > 0) /* only such packets reuse the headers */
		ip_sent_note(path, proto, tos, &payload, out);
	return err;
}
