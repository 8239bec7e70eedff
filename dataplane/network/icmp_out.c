/* SPDX-License-Identifier: Apache-2.0 */
/* icmp_out.c - the only ICMP error that the stack sends: UDP port unreachable. */
#include "base/checksum.h"
#include "network/icmp.h"
#include "network/ipv4.h"
#include "network/ipv6.h"

#define OUT_HEADER_BYTES 8u
/* Quotes as much of the packet as fits: RFC 1812 section 4.3.2.3 and RFC 4443 section 2.4 (c). */
#define OUT_PACKET_BYTES_V4 576u
#define OUT_PACKET_BYTES_V6 IPV6_MTU_MIN

/* Writes header and quote; returns the length. */
static uint32_t out_write(uint8_t *at, const struct packet_in *in, bool v4)
{
	uint32_t most = v4 ? OUT_PACKET_BYTES_V4 - IPV4_HEADER_BYTES
			   : OUT_PACKET_BYTES_V6 - IPV6_HEADER_BYTES;
	uint32_t quote = (uint32_t)(in->frame->pub.data - in->ip_header) + in->frame->pub.len;

	memset(at, 0, OUT_HEADER_BYTES);
	at[0] = v4 ? 3 : 1; /* destination unreachable */
	at[1] = v4 ? 3 : 4; /* port */
	if (quote > most - OUT_HEADER_BYTES)
		quote = most - OUT_HEADER_BYTES;
	memcpy(at + OUT_HEADER_BYTES, in->ip_header, quote);
	return OUT_HEADER_BYTES + quote;
}

/*
 * Takes 0, 1 or 2 tokens at random, one on average. All peers share the bucket: with an exact
 * count, an attacker could exhaust it with forged addresses and learn from the rest which ports are
 * open (SAD DNS, CVE-2020-25705).
 */
static bool out_allowed(struct icmp *icmp)
{
	struct icmp_bucket *bucket = &icmp->error;
	uint64_t takes_ns = rng_below(icmp->ip->eth->rng, 3) * bucket->cost_ns;

	if (!icmp_allowed(bucket, icmp->ip->eth->io->now_ns))
		return false;
	bucket->credit_ns += bucket->cost_ns;
	bucket->credit_ns -= takes_ns < bucket->credit_ns ? takes_ns : bucket->credit_ns;
	return true;
}

/* Earlier layers exclude packets that must not be answered (RFC 1122 section 3.2.2, RFC 4443
 * section 2.4 (e)): broadcast, multicast, fragments, invalid sources. */
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
	/* Best effort. */
	if (ip_output(icmp->ip, &path, proto, 0, &out) == 0)
		icmp->stats->icmp_unreachable_out++;
	frame_release(io->pool, f);
}
