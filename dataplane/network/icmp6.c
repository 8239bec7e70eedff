/* SPDX-License-Identifier: Apache-2.0 */
/* icmp6.c - received ICMPv6 messages (RFC 4443). icmp.c sends errors. */
#include "base/checksum.h"
#include "network/icmp.h"
#include "network/ipv6.h"

#define ICMP6_HEADER_BYTES 8u
#define ICMP6_UNREACHABLE 1u
#define ICMP6_TOO_BIG 2u
#define ICMP6_TIME_EXCEEDED 3u
#define ICMP6_PARAMETER_PROBLEM 4u
#define ICMP6_ECHO_REQUEST 128u
#define ICMP6_ECHO_REPLY 129u
#define ICMP6_QUOTE_EXT_MAX 4u /* extension headers in a quoted packet */

struct icmp6_header {
	uint8_t type, code;
	uint16_t csum; /* memory order */
	be32_t mtu;    /* rest of the header, as in a packet too big */
} __attribute__((packed));
static_assert(sizeof(struct icmp6_header) == ICMP6_HEADER_BYTES, "RFC 4443 section 2.1");

static enum icmp_verdict icmp6_invalid(struct icmp *icmp)
{
	icmp->stats->drop_icmp_bad++;
	return ICMP_DROPPED;
}

/* Section 4.2. Replies with the frames of the request, like icmp_echo(). */
static enum icmp_verdict icmp6_echo(struct icmp *icmp, struct packet_in *in)
{
	struct frame *f = in->frame;
	struct icmp6_header *h = (struct icmp6_header *)f->pub.data;
	struct ip_path path = { .dst = in->src };
	struct packet_out out = { .frame = f, .head = f->pub.data, .len = in->len };
	uint32_t sum;

	if (h->code != 0 || !ip6_source_is_other(icmp->ip, &in->src))
		return icmp6_invalid(icmp);
	if (!icmp_echo_allowed(icmp))
		return ICMP_DROPPED;
	icmp->stats->icmp_echo_in++;
	if (!ipv6_is_multicast(&in->dst))
		path.src = in->dst;
	if (ip_path_lookup(icmp->ip, &path) != 0)
		return ICMP_CONSUMED; /* no route back: dropped */
	ip_path_label(icmp->ip, &path, 0, 0);
	h->type = ICMP6_ECHO_REPLY;
	h->csum = 0;
	sum = ip_pseudo_sum(&path.src, &path.dst, IP_PROTO_ICMP6, in->len);
	h->csum = csum_finish(ip_sum_add(sum, f));
	(void)ip_output(icmp->ip, &path, IP_PROTO_ICMP6, in->tos & 0xfcu, &out);
	return ICMP_CONSUMED;
}

static enum icmp_error_kind icmp6_error_kind(uint8_t type, uint8_t code)
{
	switch (type) {
	case ICMP6_TOO_BIG:
		return ICMP_ERROR_TOO_BIG;
	case ICMP6_TIME_EXCEEDED:
		return ICMP_ERROR_TTL;
	case ICMP6_PARAMETER_PROBLEM:
		/* Code 1, "unrecognized next header": the host has no such transport. */
		return code == 1 ? ICMP_ERROR_UNREACHABLE_PORT : ICMP_ERROR_PARAMETER;
	default:
		break;
	}
	switch (code) { /* of a destination unreachable, section 3.1 */
	case 1:         /* administratively prohibited */
	case 5:         /* source address failed a policy */
	case 6:         /* reject route */
		return ICMP_ERROR_PROHIBITED;
	case 3:
		return ICMP_ERROR_UNREACHABLE_HOST;
	case 4:
		return ICMP_ERROR_UNREACHABLE_PORT;
	default:
		return ICMP_ERROR_UNREACHABLE_NET;
	}
}

/* Parses the quoted packet, within the first frame. False unless it has our source address and,
 * after any extension headers, the first 8 bytes of its transport header. */
static bool icmp6_parse_quote(const struct icmp *icmp, const uint8_t *quote, uint32_t len,
			      struct harp_icmp_error *error)
{
	const struct ipv6_header *h = (const struct ipv6_header *)quote;
	uint32_t at = IPV6_HEADER_BYTES, bytes;
	uint8_t proto;

	if (len < IPV6_HEADER_BYTES || h->version_class_label.b[0] >> 4 != 6 ||
	    harp_addr_is_v4(&h->src) || harp_addr_is_v4(&h->dst))
		return false;
	proto = h->next;
	for (unsigned i = 0; i < ICMP6_QUOTE_EXT_MAX; i++) {
		bytes = ipv6_ext_bytes(proto, quote + at, len - at, &proto);
		if (bytes == 0)
			break;
		at += bytes;
	}
	if (len < at + 8)
		return false;
	error->proto = proto;
	error->local.addr = h->src;
	error->remote.addr = h->dst;
	return icmp_parse_ports(icmp, quote + at, error);
}

static enum icmp_verdict icmp6_error(struct icmp *icmp, const struct packet_in *in,
				     struct harp_icmp_error *error)
{
	const struct frame *f = in->frame;
	const struct icmp6_header *h = (const struct icmp6_header *)f->pub.data;

	*error = (struct harp_icmp_error){ .type = h->type, .code = h->code };
	error->kind = icmp6_error_kind(h->type, h->code);
	if (error->kind == ICMP_ERROR_TOO_BIG) {
		error->mtu_bytes = be32_get(h->mtu);
		/* RFC 8201 section 4: a message with less than the minimum link MTU is
		 * discarded. */
		if (error->mtu_bytes < IPV6_MTU_MIN)
			return icmp6_invalid(icmp);
	}
	if (!icmp6_parse_quote(icmp, f->pub.data + ICMP6_HEADER_BYTES,
			       f->pub.len - ICMP6_HEADER_BYTES, error))
		return icmp6_invalid(icmp);
	icmp->stats->icmp_error_in++;
	return ICMP_ERROR;
}

enum icmp_verdict icmp6_input(struct icmp *icmp, struct packet_in *in,
			      struct harp_icmp_error *error)
{
	const struct icmp6_header *h = (const struct icmp6_header *)in->frame->pub.data;

	if (in->frame->pub.len < ICMP6_HEADER_BYTES ||
	    csum_finish(ip_sum_add(in->l4_csum_pseudo, in->frame)) != 0)
		return icmp6_invalid(icmp);
	switch (h->type) {
	case ICMP6_ECHO_REQUEST:
		return icmp6_echo(icmp, in);
	case ICMP6_UNREACHABLE:
	case ICMP6_TOO_BIG:
	case ICMP6_TIME_EXCEEDED:
	case ICMP6_PARAMETER_PROBLEM:
		if (!ip6_source_is_other(icmp->ip, &in->src))
			return icmp6_invalid(icmp);
		return icmp6_error(icmp, in, error);
	case ND_ROUTER_SOLICITATION:
	case ND_ROUTER_ADVERTISEMENT:
	case ND_SOLICITATION:
	case ND_ADVERTISEMENT:
	case ND_REDIRECT:
		nd_input(icmp->ip, in);
		return ICMP_CONSUMED;
	default:
		return icmp6_invalid(icmp);
	}
}
