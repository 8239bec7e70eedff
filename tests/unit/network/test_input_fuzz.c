/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_input_fuzz.c - random bytes, and good packets with random damage, through nicio, eth, ip, icmp and nd:
 * nothing crashes (run it with -Db_sanitize=address,undefined), no frame is lost, and every packet
 * is accounted for. An argument gives the number of packets.
 */
#include "host.h"

#define COUNT 200000ul

/* The same of IPv6: TCP behind extension headers, echo, an error with a quote, neighbor discovery. */
static uint32_t make_good6(struct rng *rng, uint8_t *p)
{
	uint32_t payload = rng_below(rng, rng_below(rng, 8) ? 100 : 3000), at = HOST6_PAYLOAD,
		 total;
	uint8_t first = rng_below(rng, 2) ? 60 : 0;

	switch (rng_below(rng, 4)) {
	case 0:
		for (uint32_t n = rng_below(rng, 4); n > 0; n--) {
			uint32_t bytes = 8 * (1 + rng_below(rng, 6));

			memset(p + at, 0, bytes);
			p[at] = (uint8_t)(n > 1 ? 60 : IP_PROTO_TCP);
			p[at + 1] = (uint8_t)(bytes / 8 - 1);
			at += bytes;
		}
		return make_ipv6(p, at > HOST6_PAYLOAD ? first : IP_PROTO_TCP,
				 at - HOST6_PAYLOAD + payload);
	case 1: /* echo */
		payload += 8;
		total = make_ipv6(p, IP_PROTO_ICMP6, payload);
		memset(p + at, 0, 8);
		p[at] = 128;
		icmp6_seal(p, at, payload);
		return total;
	case 2:
		payload = 8 + rng_below(rng, 120);
		total = make_ipv6(p, IP_PROTO_ICMP6, payload);
		p[at] = (uint8_t)(1 + rng_below(rng, 4));
		p[at + 8] = 0x60;
		p[at + 14] = rng_below(rng, 2) ? IP_PROTO_TCP : 60;
		memcpy(p + at + 16, &host_ip6, 16);
		icmp6_seal(p, at, payload);
		return total;
	default:
		payload = 24 + 8 * rng_below(rng, 4);
		total = make_ipv6(p, IP_PROTO_ICMP6, payload);
		p[21] = 255;
		memset(p + at, 0, payload);
		p[at] = (uint8_t)(133 + rng_below(rng, 5));
		memcpy(p + at + 8, rng_below(rng, 2) ? &host_ip6 : &peer_ip6, 16);
		for (uint32_t option = 24; option < payload; option += 8)
			memcpy(p + at + option, "\1\1\2\0\0\0\0\7", 8);
		p[at + 24] = (uint8_t)(1 + rng_below(rng, 2));
		icmp6_seal(p, at, payload);
		return total;
	}
}

/* A packet of some kind that would be accepted. */
static uint32_t make_good(struct rng *rng, uint8_t *p)
{
	static const uint8_t everyone[6] = { 255, 255, 255, 255, 255, 255 };
	uint32_t payload = rng_below(rng, rng_below(rng, 8) ? 100 : 3000), total;

	if (rng_below(rng, 2))
		return make_good6(rng, p);
	switch (rng_below(rng, 4)) {
	case 0:
		return make_arp(p, rng_below(rng, 2) ? everyone : host_mac,
				(uint16_t)(1 + rng_below(rng, 2)), peer_mac, peer_ip, host_ip);
	case 1:
		return make_ipv4(p, IP_PROTO_TCP, payload);
	case 2: /* echo */
		payload += 8;
		total = make_ipv4(p, IP_PROTO_ICMP, payload);
		memset(p + 34, 0, 8);
		p[34] = 8;
		icmp_seal(p + 34, payload);
		return total;
	default: /* an error with a quote, perhaps with options, perhaps cut */
		payload = rng_below(rng, 80);
		total = make_ipv4(p, IP_PROTO_ICMP, payload + 8);
		p[34] = rng_below(rng, 2) ? 3 : 11;
		p[42] = (uint8_t)(0x40 | rng_below(rng, 16));
		p[51] = IP_PROTO_TCP;
		memcpy(p + 54, host_ip, 4);
		icmp_seal(p + 34, payload + 8);
		return total;
	}
}

static uint32_t make_packet(struct rng *rng, uint8_t *p)
{
	uint32_t len;

	for (uint32_t i = 0; i < 3100; i += 8) {
		uint64_t x = rng_u64(rng);

		memcpy(p + i, &x, 8);
	}
	if (rng_below(rng, 8) == 0)
		return 1 + rng_below(rng, 200); /* noise */
	len = make_good(rng, p);
	for (uint32_t n = rng_below(rng, 4); n > 0; n--) { /* damage, mostly in the headers */
		uint32_t at = rng_below(rng, rng_below(rng, 4) ? (len < 60 ? len : 60) : len);

		p[at] = (uint8_t)rng_u64(rng);
	}
	if (rng_below(rng, 2) && len >= 34 && p[12] == 8 && p[13] == 0) {
		/* the checksum repaired, so that deeper code sees the damage */
		struct ipv4_header *h = (struct ipv4_header *)(p + 14);

		if (ipv4_header_bytes(h) >= 20)
			ipv4_seal(h);
	} else if (rng_below(rng, 2) && len >= HOST6_PAYLOAD + 8 && p[20] == IP_PROTO_ICMP6) {
		icmp6_seal(p, HOST6_PAYLOAD, len - HOST6_PAYLOAD);
	}
	if (rng_below(rng, 4) == 0)
		len = 1 + rng_below(rng, len); /* cut */
	return len;
}

static uint64_t nd_count(const struct harp_stats *s)
{
	return s->nd_in + s->nd_ignored + s->drop_nd_bad;
}

static uint64_t accounted(const struct host *h, uint64_t icmp_answers)
{
	const struct harp_stats *s = &h->stats;

	return s->drop_eth_short + s->drop_eth_not_ours + s->drop_eth_type + s->drop_arp_bad +
	       s->arp_in + s->drop_ip_short + s->drop_ip_version + s->drop_ip_checksum +
	       s->drop_ip_not_ours + s->drop_ip_source + s->drop_ip_fragment + s->drop_ip_protocol +
	       s->drop_icmp_bad + s->drop_icmp_rate + s->icmp_error_in + icmp_answers +
	       h->tcp_packets + s->drop_vlan + s->drop_ip6_ext + nd_count(s);
}

int main(int argc, char **argv)
{
	unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : COUNT;
	static uint8_t p[HOST_PACKET_MAX], r[HOST_PACKET_MAX];
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct rng rng;
	struct host h;
	uint64_t answered = 0, udp = 0, nd;

	host6_init(&h, 3500, HARP_NEIGHBOR_OWN);
	CHECK_EQ(neighbor_set(&h.eth, &peer, peer_mac), 0);
	rng_seed(&rng, 20261121);
	for (unsigned long i = 0; i < count && !check_failures; i++) {
		uint32_t len = make_packet(&rng, p);

		nd = nd_count(&h.stats);
		h.now_ns += rng_below(&rng, 300000);
		peer_say(&h, p, len);
		answered += h.icmp_verdict == ICMP_CONSUMED && nd_count(&h.stats) == nd;
		udp += h.ip_verdict == IP_LOCAL_UDP;
		while (peer_receive(&h, r) > 0)
			;
		CHECK_EQ(h.pool.free_count + h.io.fill_held + h.io.tx_held, h.pool.frame_count);
		CHECK_EQ(accounted(&h, answered) + udp, i + 1);
	}
	CHECK(h.stats.drop_ip_fragment > 0 && h.stats.drop_ip_protocol > 0); /* it reached deep */
	CHECK(h.stats.icmp_error_in > 0 && h.stats.arp_out > 0 && h.tcp_packets > 0);
	CHECK(h.stats.icmp_echo_in > 0 && h.stats.drop_arp_bad > 0);
	CHECK(h.stats.nd_in > 0 && h.stats.nd_out > 0 && h.stats.drop_nd_bad > 0);
	CHECK(h.stats.drop_ip6_ext > 0 && h.stats.nd_ignored > 0);
	host_done(&h);
	return check_done();
}
