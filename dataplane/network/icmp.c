/* SPDX-License-Identifier: Apache-2.0 */
/* icmp.c - ICMP for IPv4 (RFC 792, RFC 1122 section 3.2.2). */
#include "network/icmp.h"

#include "base/checksum.h"
#include "base/util.h"
#include "network/ipv4.h"
#include "network/ipv6.h"

#define ICMP_HEADER_BYTES 8u
#define ICMP_ECHO_REPLY 0u
#define ICMP_UNREACHABLE 3u
#define ICMP_ECHO_REQUEST 8u
#define ICMP_TIME_EXCEEDED 11u
#define ICMP_PARAMETER_PROBLEM 12u

/* 10,000 echo replies per second, bursts of 256: enough for tools, and a limit for attackers. */
#define ICMP_ECHO_COST_NS UINT64_C(100000)
#define ICMP_ECHO_BURST 256u
/* 1000 errors per second, bursts of 50; separately for sent and for forwarded errors. */
#define ICMP_ERROR_COST_NS UINT64_C(1000000)
#define ICMP_ERROR_BURST 50u
#define ICMP_MTU_MIN 552u

struct icmp_header {
	uint8_t type, code;
	uint16_t csum;      /* memory order */
	be16_t unused, mtu; /* rest of the header, as in RFC 1191 section 4 */
} __attribute__((packed));
static_assert(sizeof(struct icmp_header) == ICMP_HEADER_BYTES, "RFC 792");

static struct icmp_bucket icmp_bucket(uint64_t cost_ns, uint32_t burst, uint64_t now_ns)
{
	return (struct icmp_bucket){ .cost_ns = cost_ns,
				     .credit_max_ns = cost_ns * burst,
				     .credit_ns = cost_ns * burst,
				     .last_ns = now_ns };
}

void icmp_init(struct icmp *icmp, struct ip *ip, struct harp_stats *stats)
{
	uint64_t now_ns = ip->eth->io->now_ns;

	*icmp = (struct icmp){
		.ip = ip,
		.stats = stats,
		.echo = icmp_bucket(ICMP_ECHO_COST_NS, ICMP_ECHO_BURST, now_ns),
		.error = icmp_bucket(ICMP_ERROR_COST_NS, ICMP_ERROR_BURST, now_ns),
		.forward = icmp_bucket(ICMP_ERROR_COST_NS, ICMP_ERROR_BURST, now_ns),
	};
}

/* True if another message is allowed now; takes a token. */
static bool icmp_allowed(struct icmp_bucket *bucket, uint64_t now_ns)
{
	uint64_t passed_ns = now_ns - bucket->last_ns;

	bucket->last_ns = now_ns;
	bucket->credit_ns += passed_ns < bucket->credit_max_ns ? passed_ns : bucket->credit_max_ns;
	if (bucket->credit_ns > bucket->credit_max_ns)
		bucket->credit_ns = bucket->credit_max_ns;
	if (bucket->credit_ns < bucket->cost_ns)
		return false;
	bucket->credit_ns -= bucket->cost_ns;
	return true;
}

bool icmp_echo_allowed(struct icmp *icmp)
{
	if (icmp_allowed(&icmp->echo, icmp->ip->eth->io->now_ns))
		return true;
	icmp->stats->drop_icmp_rate++;
	return false;
}

bool icmp_forward_allowed(struct icmp *icmp)
{
	bool allowed = icmp_allowed(&icmp->forward, icmp->ip->eth->io->now_ns);

	icmp->stats->icmp_error_elsewhere += allowed;
	icmp->stats->drop_icmp_elsewhere += !allowed;
	return allowed;
}

/*
 * Replies with the frames of the request, without copying the data. The caller releases the packet
 * as usual, because nicio_tx() takes a reference.
 */
static enum icmp_verdict icmp_echo(struct icmp *icmp, struct packet_in *in)
{
	struct frame *f = in->frame;
	struct icmp_header *h = (struct icmp_header *)f->pub.data;
	struct ip_path path = { .src = in->dst, .dst = in->src };
	struct packet_out out = { .frame = f, .head = f->pub.data, .len = in->len };

	if (h->code != 0) {
		icmp->stats->drop_icmp_bad++;
		return ICMP_DROPPED;
	}
	if (!icmp_echo_allowed(icmp))
		return ICMP_DROPPED;
	icmp->stats->icmp_echo_in++;
	h->type = ICMP_ECHO_REPLY;
	h->csum = 0;
	h->csum = csum_finish(ip_sum_add(0, f));
	/* A reply that cannot be sent now is dropped. */
	(void)ip_output(icmp->ip, &path, IP_PROTO_ICMP, in->tos & 0xfcu, &out);
	return ICMP_CONSUMED;
}

/* The codes of type 3, destination unreachable: RFC 792, RFC 1812 section 5.2.7.1. */
static enum icmp_error_kind icmp_unreachable_kind(uint8_t code)
{
	switch (code) {
	case 2: /* protocol */
	case 3: /* port */
		return ICMP_ERROR_UNREACHABLE_PORT;
	case 4:
		return ICMP_ERROR_TOO_BIG;
	case 9:
	case 10:
	case 13: /* administratively prohibited: network, host, communication */
		return ICMP_ERROR_PROHIBITED;
	case 1: /* host */
	case 7: /* host unknown */
	case 8: /* source host isolated */
	case 12:
	case 14:
	case 15:
		return ICMP_ERROR_UNREACHABLE_HOST;
	default:
		return ICMP_ERROR_UNREACHABLE_NET;
	}
}

bool icmp_parse_ports(const struct icmp *icmp, const uint8_t *transport,
		      struct harp_icmp_error *error)
{
	error->local.port = be16_load(transport);
	error->remote.port = be16_load(transport + 2);
	error->seq = error->proto == IP_PROTO_TCP ? be32_load(transport + 4) : 0;
	return (error->proto == IP_PROTO_TCP || error->proto == IP_PROTO_UDP) &&
	       ip_is_own(icmp->ip, &error->local.addr);
}

/*
 * The MTU of a "fragmentation needed". A router older than RFC 1191 reports 0; then the result is
 * the largest plateau of RFC 1191 section 7 below the quoted packet's size. The result is at
 * least ICMP_MTU_MIN (like Linux's min_pmtu), because a smaller MTU would make us send mostly
 * headers.
 */
static uint32_t icmp_mtu_bytes(uint32_t mtu_bytes, uint32_t quoted_bytes)
{
	static const uint16_t plateaus[] = { 32000, 17914, 8166, 4352, 2002, 1492, 1006 };

	for (unsigned i = 0; mtu_bytes == 0 && i < ARRAY_SIZE(plateaus); i++) {
		if (plateaus[i] < quoted_bytes)
			mtu_bytes = plateaus[i];
	}
	return mtu_bytes < ICMP_MTU_MIN ? ICMP_MTU_MIN : mtu_bytes;
}

/* Parses the quoted packet. False unless it has our source address and the first 8 bytes of its
 * transport header. */
static bool icmp_parse_quote(const struct icmp *icmp, const uint8_t *quote, uint32_t len,
			     struct harp_icmp_error *error)
{
	const struct ipv4_header *h = (const struct ipv4_header *)quote;
	uint32_t header;

	if (len < IPV4_HEADER_BYTES)
		return false;
	header = ipv4_header_bytes(h);
	if (h->version_ihl >> 4 != 4 || header < IPV4_HEADER_BYTES || len < header + 8)
		return false;
	if (be16_get(h->flags_offset) & IPV4_OFFSET_MASK) /* no transport header in this fragment */
		return false;
	error->proto = h->proto;
	error->local.addr = ipv4_mapped(h->src);
	error->remote.addr = ipv4_mapped(h->dst);
	if (error->kind == ICMP_ERROR_TOO_BIG)
		error->mtu_bytes = icmp_mtu_bytes(error->mtu_bytes, be16_get(h->total_len));
	return icmp_parse_ports(icmp, quote + header, error);
}

static enum icmp_verdict icmp_error(struct icmp *icmp, const struct packet_in *in,
				    struct harp_icmp_error *error)
{
	const struct frame *f = in->frame;
	const struct icmp_header *h = (const struct icmp_header *)f->pub.data;

	*error = (struct harp_icmp_error){ .type = h->type, .code = h->code };
	if (h->type == ICMP_UNREACHABLE)
		error->kind = icmp_unreachable_kind(h->code);
	else
		error->kind = h->type == ICMP_TIME_EXCEEDED ? ICMP_ERROR_TTL : ICMP_ERROR_PARAMETER;
	if (error->kind == ICMP_ERROR_TOO_BIG)
		error->mtu_bytes = be16_get(h->mtu);
	if (!icmp_parse_quote(icmp, f->pub.data + ICMP_HEADER_BYTES, f->pub.len - ICMP_HEADER_BYTES,
			      error)) {
		icmp->stats->drop_icmp_bad++;
		return ICMP_DROPPED;
	}
	icmp->stats->icmp_error_in++;
	return ICMP_ERROR;
}

enum icmp_verdict icmp_input(struct icmp *icmp, struct packet_in *in, struct harp_icmp_error *error)
{
	const struct icmp_header *h = (const struct icmp_header *)in->frame->pub.data;

	if (in->frame->pub.len < ICMP_HEADER_BYTES || csum_finish(ip_sum_add(0, in->frame)) != 0) {
		icmp->stats->drop_icmp_bad++;
		return ICMP_DROPPED;
	}
	switch (h->type) {
	case ICMP_ECHO_REQUEST:
		return icmp_echo(icmp, in);
	case ICMP_UNREACHABLE:
	case ICMP_TIME_EXCEEDED:
	case ICMP_PARAMETER_PROBLEM:
		return icmp_error(icmp, in, error);
	default:
		icmp->stats->drop_icmp_bad++;
		return ICMP_DROPPED;
	}
}

/* ---- the only ICMP error that the stack sends: UDP port unreachable ---- */

#define OUT_HEADER_BYTES 8u
/* maximum size of an error: RFC 1812 section 4.3.2.3, RFC 4443 section 2.4 (c) */
#define OUT_PACKET_BYTES_V4 576u
#define OUT_PACKET_BYTES_V6 IPV6_MTU_MIN

/* Writes the ICMP header and as much of the packet as fits; returns the length. */
static uint32_t out_write(uint8_t *at, const struct packet_in *in, bool v4)
{
	uint32_t room = (v4 ? OUT_PACKET_BYTES_V4 - IPV4_HEADER_BYTES
			    : OUT_PACKET_BYTES_V6 - IPV6_HEADER_BYTES) -
			OUT_HEADER_BYTES;
	uint32_t quote = (uint32_t)(in->frame->pub.data - in->ip_header) + in->frame->pub.len;

	memset(at, 0, OUT_HEADER_BYTES);
	at[0] = v4 ? 3 : 1; /* destination unreachable */
	at[1] = v4 ? 3 : 4; /* port */
	if (quote > room)
		quote = room;
	memcpy(at + OUT_HEADER_BYTES, in->ip_header, quote);
	return OUT_HEADER_BYTES + quote;
}

/*
 * Takes 0, 1 or 2 tokens at random, one on average. All peers share the bucket: with an exact
 * count, an attacker could use it up with forged addresses, and learn from the remaining tokens
 * which ports are open (SAD DNS, CVE-2020-25705).
 */
static bool out_allowed(struct icmp *icmp)
{
	struct icmp_bucket *bucket = &icmp->error;
	uint64_t cost_ns = rng_below(icmp->ip->eth->rng, 3) * bucket->cost_ns;

	if (!icmp_allowed(bucket, icmp->ip->eth->io->now_ns))
		return false;
	bucket->credit_ns += bucket->cost_ns;
	bucket->credit_ns -= cost_ns < bucket->credit_ns ? cost_ns : bucket->credit_ns;
	return true;
}

/* Earlier layers have dropped packets for which no error may be sent (RFC 1122 section 3.2.2, RFC
 * 4443 section 2.4 (e)): broadcast, multicast, fragments, invalid sources. */
void icmp_unreachable_port(struct icmp *icmp, const struct packet_in *in)
{
	struct ip_path path = { .src = in->dst, .dst = in->src };
	struct nicio *io = icmp->ip->eth->io;
	bool v4 = harp_addr_is_v4(&in->dst);
	uint8_t proto = v4 ? IP_PROTO_ICMP : IP_PROTO_ICMP6;
	struct packet_out out;
	struct frame *f;
	uint32_t sum = 0;
	uint16_t csum;

	if (!out_allowed(icmp) || ip_path_lookup(icmp->ip, &path) != 0 || !nicio_tx_ready(io, 1))
		return;
	f = frame_alloc(io->pool, 0);
	if (!f) {
		icmp->stats->drop_no_frame++;
		return;
	}
	ip_path_label(icmp->ip, &path, 0, 0);
	f->pub.len = out_write(f->pub.data, in, v4);
	if (!v4)
		sum = ip_pseudo_sum(&path.src, &path.dst, proto, f->pub.len);
	csum = csum_finish(ip_sum_add(sum, f));
	memcpy(f->pub.data + 2, &csum, sizeof(csum));
	out = (struct packet_out){ .frame = f, .head = f->pub.data, .len = f->pub.len };
	if (ip_output(icmp->ip, &path, proto, 0, &out) == 0)
		icmp->stats->icmp_unreachable_out++;
	frame_release(io->pool, f);
}
