/* SPDX-License-Identifier: Apache-2.0 */
/* test_ipv6.c - which IPv6 packets come in, which counter has the others, and what goes out. */
#include "network/ipv6.h"

#include <errno.h>

#include "host.h"

static struct host h;
BEFORE_EACH(host6_init(&h, 1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(host_done(&h))

#define DROP(name) offsetof(struct harp_stats, name)

/* Says it: exactly one drop, of this counter. */
static void expect_drop(const uint8_t *p, uint32_t len, size_t offset, const char *what)
{
	const uint64_t *counter = (uint64_t *)((char *)&h.stats + offset);
	uint64_t before = *counter;

	peer_say(&h, p, len);
	if (*counter != before + 1 || h.ip_verdict != IP_DROPPED) {
		fprintf(stderr, "not counted: %s\n", what);
		CHECK_EQ(*counter, before + 1);
	}
}

TEST(invalid_headers_are_dropped_by_reason)
{
	uint8_t p[200] = { 0 };
	uint32_t len;

	for (unsigned version = 0; version < 16; version++) {
		if (version == 6)
			continue;
		len = make_ipv6(p, IP_PROTO_TCP, 20);
		p[14] = (uint8_t)(version << 4);
		expect_drop(p, len, DROP(drop_ip_version), "version");
	}
	for (len = 14; len < 54; len++) {
		make_ipv6(p, IP_PROTO_TCP, 0);
		expect_drop(p, len, DROP(drop_ip_short), "short");
	}
	len = make_ipv6(p, IP_PROTO_TCP, 20);
	header6(p)->payload_len = be16_of(21);
	expect_drop(p, len, DROP(drop_ip_short), "payload beyond the frame");
	make_ipv6(p, 47, 20);
	expect_drop(p, 74, DROP(drop_ip_protocol), "protocol 47");
	make_ipv6(p, 59, 0);
	expect_drop(p, 54, DROP(drop_ip_protocol), "no next header");
	make_ipv6(p, IP_PROTO_ICMP, 20);
	expect_drop(p, 74, DROP(drop_ip_protocol), "IPv4's ICMP");
}

TEST(invalid_addresses_are_dropped)
{
	static const char *const sources[] = { "ff02::1",         "::1",
					       "::ffff:10.0.0.2", "fd00::1",
					       "::ffff:10.0.0.1", "::" };
	static const char *const destinations[] = {
		"fd00::3",         "fe80::1", "::1",
		"::ffff:10.0.0.1",                              /* own, but IPv4's */
		"ff02::2",         "ff05::1", "ff02::1:ff00:2", /* of another address */
		"ff02::1",                                      /* TCP to a group */
		"ff02::1:ff00:1"
	};
	uint8_t p[200] = { 0 };
	uint32_t len;

	for (unsigned i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		len = make_ipv6(p, IP_PROTO_TCP, 20);
		header6(p)->src = host_addr(sources[i]);
		expect_drop(p, len, DROP(drop_ip_source), sources[i]);
	}
	for (unsigned i = 0; i < sizeof(destinations) / sizeof(destinations[0]); i++) {
		len = make_ipv6(p, IP_PROTO_TCP, 20);
		header6(p)->dst = host_addr(destinations[i]);
		expect_drop(p, len, DROP(drop_ip_not_ours), destinations[i]);
	}
	len = make_ipv6(p, IP_PROTO_TCP, 20); /* for one host, in a frame for a group */
	memcpy(p, "\x33\x33\0\0\0\1", 6);
	expect_drop(p, len, DROP(drop_ip_not_ours), "unicast in a group's frame");
	CHECK_EQ(h.tcp_packets, 0);
}

/* An extension header of len bytes; its options are padding. */
static uint32_t put_ext(uint8_t *p, uint8_t next, uint32_t len)
{
	memset(p, 0, len);
	p[0] = next;
	p[1] = (uint8_t)(len / 8 - 1);
	for (uint32_t at = 2; at < len;) { /* PadN of up to 255 */
		uint32_t n = len - at < 257 ? len - at : 257;

		if (n == 1)
			break;
		p[at] = 1;
		p[at + 1] = (uint8_t)(n - 2);
		at += n;
	}
	return len;
}

TEST(valid_extension_headers_are_skipped)
{
	static const struct {
		uint8_t first;
		uint8_t headers[6]; /* next header values, in order */
		uint32_t len[5];
	} good[] = {
		{ 0, { 6 }, { 8 } },
		{ 60, { 6 }, { 8 } },
		{ 0, { 60, 6 }, { 16, 24 } },
		{ 0, { 60, 60, 60, 6 }, { 8, 8, 8, 8 } },
		{ 60, { 6 }, { 256 } },
		{ 0, { 43, 60, 6 }, { 8, 8, 8 } }, /* routing, with nothing left to do: type 2 */
		{ 43,
		  { 60, 43, 6 },
		  { 8, 8, 8 } }, /* and 0 (RFC 5095 section 3), before and behind others */
	};
	uint8_t p[400];

	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		uint32_t at = HOST6_PAYLOAD;

		for (unsigned k = 0; good[i].len[k]; k++) {
			uint8_t kind = k ? good[i].headers[k - 1] : good[i].first;

			put_ext(p + at, good[i].headers[k], good[i].len[k]);
			if (kind == 43)
				memcpy(p + at + 2, good[i].first ? "\0\0" : "\2\0", 2);
			at += good[i].len[k];
		}
		make_ipv6(p, good[i].first, at - HOST6_PAYLOAD + 20);
		memset(p + at, 0, 20);
		peer_say(&h, p, at + 20);
		CHECK_EQ(h.ip_verdict, IP_LOCAL_TCP);
		CHECK_EQ(h.tcp_packets, i + 1);
	}
	CHECK_EQ(h.stats.drop_ip6_ext, 0);
}

TEST(invalid_extension_headers_are_dropped)
{
	static const struct {
		const char *what;
		uint8_t first, ext[16];
		size_t counter;
	} bad[] = {
		{ "routing type 0 with a way to go", 43, { 6, 1, 0, 1 }, DROP(drop_ip6_ext) },
		{ "routing type 4 with a way to go", 43, { 6, 1, 4, 1 }, DROP(drop_ip6_ext) },
		{ "fragment, more to come", 44, { 6, 0, 0, 1 }, DROP(drop_ip_fragment) },
		{ "fragment, a later one", 44, { 6, 0, 0, 8 }, DROP(drop_ip_fragment) },
		{ "fragment, atomic", 44, { 6, 0, 0, 0 }, DROP(drop_ip_fragment) },
		{ "hop-by-hop beyond the packet", 0, { 6, 5 }, DROP(drop_ip6_ext) },
		{ "destination beyond the packet", 60, { 6, 255 }, DROP(drop_ip6_ext) },
		{ "hop-by-hop second", 60, { 0, 0, 1, 4 }, DROP(drop_ip6_ext) },
		{ "option beyond the header", 60, { 6, 0, 1, 5 }, DROP(drop_ip6_ext) },
		{ "option without a length", 60, { 6, 0, 1, 3, 0, 0, 0, 1 }, DROP(drop_ip6_ext) },
		{ "unknown option, discard", 60, { 6, 0, 0x40, 4 }, DROP(drop_ip6_ext) },
		{ "unknown option, discard and tell", 0, { 6, 0, 0x80, 4 }, DROP(drop_ip6_ext) },
		{ "jumbogram", 0, { 6, 0, 0xc2, 4 }, DROP(drop_ip6_ext) },
		{ "encryption", 50, { 6, 0 }, DROP(drop_ip_protocol) },
		{ "authentication", 51, { 6, 0 }, DROP(drop_ip_protocol) },
		{ "mobility", 135, { 6, 0 }, DROP(drop_ip_protocol) },
	};
	uint8_t p[500];
	uint32_t at;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint32_t len = make_ipv6(p, bad[i].first, 16 + 20);

		memset(p + HOST6_PAYLOAD, 0, 36);
		memcpy(p + HOST6_PAYLOAD, bad[i].ext, 16);
		expect_drop(p, len, bad[i].counter, bad[i].what);
	}
	at = HOST6_PAYLOAD; /* one header too many; and every length that cuts it */
	for (unsigned i = 0; i < 5; i++)
		at += put_ext(p + at, i < 4 ? 60 : 6, 8);
	make_ipv6(p, 60, at - HOST6_PAYLOAD + 20);
	expect_drop(p, at + 20, DROP(drop_ip6_ext), "five headers");
	put_ext(p + HOST6_PAYLOAD, 6, 264);
	make_ipv6(p, 60, 264 + 20);
	expect_drop(p, HOST6_PAYLOAD + 284, DROP(drop_ip6_ext), "264 bytes of options");
	put_ext(p + HOST6_PAYLOAD, 6, 24);
	for (uint32_t len = 0; len < 24; len++) {
		make_ipv6(p, 60, len);
		expect_drop(p, HOST6_PAYLOAD + len, DROP(drop_ip6_ext), "cut");
	}
	CHECK_EQ(h.tcp_packets, 0);
}

TEST(valid_packets_are_trimmed_and_delivered)
{
	struct packet_in in;
	struct frame *packets[NICIO_BURST];
	uint8_t p[200] = { 0 };

	make_ipv6(p, IP_PROTO_TCP, 22);
	header6(p)->version_class_label = be32_of(0x62eabcde);
	header6(p)->hop_limit = 1;
	peer_send(&h, p, 120); /* padding goes */
	CHECK_EQ(nicio_rx(&h.io, packets, NICIO_BURST), 1);
	in = (struct packet_in){ .frame = packets[0] };
	CHECK_EQ(eth_input(&h.eth, packets[0]), ETH_IPV6);
	CHECK_EQ(ip6_input(&h.ip, &in), IP_LOCAL_TCP);
	CHECK_EQ(in.len, 22);
	CHECK_EQ(in.frame->pub.len, 22);
	CHECK_EQ(in.ttl, 1);
	CHECK_EQ(in.tos, 0x2e);
	CHECK_MEM(&in.src, &peer_ip6, 16);
	CHECK_MEM(&in.dst, &host_ip6, 16);
	/* RFC 8200 section 8.1, by hand. */
	uint8_t pseudo[40] = { [35] = 22, [39] = 6 };

	memcpy(pseudo, &peer_ip6, 16);
	memcpy(pseudo + 16, &host_ip6, 16);
	CHECK_EQ(csum_finish(in.l4_csum_pseudo), csum_finish(csum_partial(pseudo, 40, 0)));
	frame_release_packet(&h.pool, in.frame);
}

TEST(sent_packets_have_complete_headers)
{
	struct ip_path path = { .dst = peer_ip6 };
	static const uint32_t lens[] = { 1460, 1461, 1000, 7, 1460 };
	uint8_t r[HOST_PACKET_MAX] = { 0 };
	struct frame *f;

	CHECK_EQ(neighbor_set(&h.eth, &peer_ip6, peer_mac), 0);
	CHECK_EQ(ip_path_lookup(&h.ip, &path), 0);
	ip_path_label(&h.ip, &path, 1, 2);
	/* The MTU, and one byte more; then with the headers of the packet before. */
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct packet_out out;
		uint32_t len = lens[i];

		f = frame_alloc(&h.pool, 0);
		f->pub.len = len;
		memset(f->pub.data, 0x5a, len);
		out = (struct packet_out){
			.frame = f, .head = f->pub.data, .len = len, .frags = 1
		};
		CHECK_EQ(ip_output(&h.ip, &path, IP_PROTO_TCP, 0xb9, &out),
			 len <= 1460 ? 0 : -EMSGSIZE);
		frame_release(&h.pool, f);
		host_poll(&h);
		CHECK_EQ(peer_receive(&h, r), len <= 1460 ? len + 54 : 0);
		if (len > 1460)
			continue;
		CHECK_EQ(be16_load(r + 12), ETH_TYPE_IPV6);
		CHECK_EQ(be32_load(r + 14), 0x60000000u | 0xb9u << 20 | path.flow_label);
		CHECK_EQ(be16_get(header6(r)->payload_len), len);
		CHECK_EQ(header6(r)->next, IP_PROTO_TCP);
		CHECK_EQ(header6(r)->hop_limit, 64);
		CHECK_MEM(&header6(r)->src, &host_ip6, 16);
		CHECK_MEM(&header6(r)->dst, &peer_ip6, 16);
		CHECK_EQ(r[54], 0x5a);
	}
	CHECK_EQ(path.sent.len, 54);
}

/* RFC 6437: constant for a flow, different between flows and between stacks, 20 bits, never 0. */
TEST(flow_labels_are_constant_per_flow_and_secret)
{
	struct ip_path a = { .src = host_ip6, .dst = peer_ip6 }, b = a;
	unsigned same = 0;

	ip_path_label(&h.ip, &a, 1000, 2000);
	ip_path_label(&h.ip, &b, 1000, 2000);
	CHECK_EQ(a.flow_label, b.flow_label);
	for (uint16_t port = 1; port < 1000; port++) {
		ip_path_label(&h.ip, &b, 1000, port);
		same += a.flow_label == b.flow_label;
		CHECK(b.flow_label > 0 && b.flow_label <= 0xfffff);
	}
	CHECK(same < 3);
	h.ip.label_key.k[0]++;
	ip_path_label(&h.ip, &b, 1000, 2000);
	CHECK(a.flow_label != b.flow_label);
}

/* A NIC too small for IPv6 has none (RFC 8200 section 5). */
TEST(an_mtu_below_1280_is_refused)
{
	host_done(&h);
	host_init(&h, 1279, HARP_NEIGHBOR_OWN);
	CHECK_EQ(ip_address_add(&h.ip, &host_ip6, 64), -EINVAL);
	host_done(&h);
	host6_init(&h, 1280, HARP_NEIGHBOR_OWN);
	CHECK_EQ(ip_route_add(&h.ip, &peer_ip6, 128, NULL, 1279), -EINVAL);
	CHECK_EQ(ip_route_add(&h.ip, &peer_ip6, 128, NULL, 1280), 0);
}
