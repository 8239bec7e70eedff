/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_icmp.c - ICMP of both families: echo of every size, the rate limit, and errors. tests/packet/test_malformed.py
 * has the malformed messages.
 */
#include "network/icmp.h"

#include "base/util.h"
#include "host.h"

#define QUOTE_MAX 400u

static struct host h;
AFTER_EACH(host_done(&h))

/* What differs between the families. */
static const struct family {
	uint32_t at; /* of the message in a packet */
	uint8_t echo, echo_reply;
	uint32_t quote_bytes; /* the least of an error that is parsed: IP header and 8 bytes */
} families[] = {
	{ .at = 34, .echo = 8, .echo_reply = 0, .quote_bytes = 28 },
	{ .at = HOST6_PAYLOAD, .echo = 128, .echo_reply = 129, .quote_bytes = 48 },
}, *family;

static bool is_v6(void)
{
	return family == &families[1];
}

static void open_host(const struct family *of, uint32_t mtu_bytes)
{
	struct harp_addr peer = ipv4_mapped(peer_ip);

	family = of;
	host_done(&h);
	host6_init(&h, mtu_bytes, HARP_NEIGHBOR_OWN);
	CHECK_EQ(neighbor_set(&h.eth, is_v6() ? &peer_ip6 : &peer, peer_mac), 0);
}

/* The packet around a message of len bytes; its length. */
static uint32_t make_packet(uint8_t *p, uint32_t len)
{
	return is_v6() ? make_ipv6(p, IP_PROTO_ICMP6, len) : make_ipv4(p, IP_PROTO_ICMP, len);
}

static void seal(uint8_t *p, uint32_t len)
{
	if (is_v6())
		icmp6_seal(p, family->at, len);
	else
		icmp_seal(p + family->at, len);
}

static bool is_good(const uint8_t *p, uint32_t len)
{
	return is_v6() ? icmp6_good(p, len)
		       : csum_finish(csum_partial(p + family->at, len, 0)) == 0;
}

static void check_addresses(const uint8_t *p)
{
	uint32_t bytes = is_v6() ? 16 : 4, end = 14 + (is_v6() ? 40 : 20);

	CHECK_MEM(p + end - 2 * bytes, is_v6() ? host_ip6.bytes : host_ip, bytes);
	CHECK_MEM(p + end - bytes, is_v6() ? peer_ip6.bytes : peer_ip, bytes);
}

/* An echo request of len bytes. */
static uint32_t make_echo(uint8_t *p, uint32_t len)
{
	uint32_t total = make_packet(p, len), at = family->at;

	memset(p + at, 0, 8);
	p[at] = family->echo;
	be32_store(p + at + 4, 0x12345678);
	for (uint32_t i = 8; i < len; i++)
		p[at + i] = (uint8_t)(i * 7);
	seal(p, len);
	return total;
}

TEST(echo_requests_of_every_size_are_answered)
{
	static uint8_t p[HOST_PACKET_MAX], r[HOST_PACKET_MAX];
	static const uint32_t sizes[] = { 8, 9, 64, 1460, 1901, 1950, 4001, 8960 };

	for (unsigned f = 0; f < ARRAY_SIZE(families); f++) {
		open_host(&families[f], 9000);
		for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
			uint32_t len = make_echo(p, sizes[i]), at = family->at;

			peer_say(&h, p, len);
			CHECK_EQ(h.icmp_verdict, ICMP_CONSUMED);
			CHECK_EQ(peer_receive(&h, r), len);
			CHECK(is_v6() || csum_finish(csum_partial(r + 14, 20, 0)) == 0);
			CHECK(is_good(r, sizes[i]));
			CHECK_EQ(r[at], family->echo_reply);
			check_addresses(r);
			CHECK_MEM(r + at + 4, p + at + 4, sizes[i] - 4);
			CHECK_EQ(h.stats.icmp_echo_in, i + 1);
		}
		if (is_v6())
			continue;
		make_echo(p, 8); /* padded by the link */
		memset(p + 42, 0xee, 18);
		peer_say(&h, p, 60);
		CHECK_EQ(peer_receive(&h, r), 42);
	}
	/* To all nodes: answered from an address of ours (RFC 4443 section 4.2). */
	make_echo(p, 8);
	memcpy(p, "\x33\x33\0\0\0\1", 6);
	CHECK_EQ(harp_addr_parse("ff02::1", &((struct ipv6_header *)(p + 14))->dst), 0);
	seal(p, 8);
	peer_say(&h, p, HOST6_PAYLOAD + 8);
	CHECK_EQ(peer_receive(&h, r), HOST6_PAYLOAD + 8);
	check_addresses(r);
	CHECK(is_good(r, 8));
}

static unsigned answers_of(unsigned requests)
{
	uint8_t p[100], r[HOST_PACKET_MAX];
	unsigned answers = 0;

	for (unsigned i = 0; i < requests; i++) {
		peer_say(&h, p, make_echo(p, 16));
		answers += peer_receive(&h, r) > 0;
	}
	return answers;
}

TEST(echo_replies_are_rate_limited)
{
	for (unsigned f = 0; f < ARRAY_SIZE(families); f++) {
		open_host(&families[f], 1500);
		CHECK_EQ(answers_of(1000), 256);
		CHECK_EQ(h.stats.drop_icmp_rate, 1000 - 256);
		h.now_ns += 1000000; /* 1 ms: ten more */
		CHECK_EQ(answers_of(20), 10);
	}
}

/* An error about a TCP segment of ours from port 61000 to 5001, sequence number 0xa1b2c3d4, quoted with
 * ext bytes of destination options (IPv6) and cut to quote_len bytes. */
static uint32_t make_error(uint8_t *p, uint8_t type, uint8_t code, uint32_t ext, uint32_t quote_len)
{
	uint32_t total = make_packet(p, 8 + quote_len), ip_bytes = is_v6() ? 40 : 20;
	uint8_t all[QUOTE_MAX] = { 0 }, *icmp = p + family->at, *th = all + ip_bytes + ext;

	if (is_v6()) {
		struct ipv6_header quoted = { .version_class_label = be32_of(0x60000000),
					      .payload_len = be16_of(1460),
					      .next = ext ? 60 : IP_PROTO_TCP,
					      .hop_limit = 60,
					      .src = host_ip6,
					      .dst = peer_ip6 };

		memcpy(all, &quoted, sizeof(quoted));
	} else {
		struct ipv4_header quoted = { .version_ihl = 0x45,
					      .ttl = 60,
					      .proto = IP_PROTO_TCP,
					      .total_len = be16_of(1500) };

		memcpy(quoted.src, host_ip, 4);
		memcpy(quoted.dst, peer_ip, 4);
		ipv4_seal(&quoted);
		memcpy(all, &quoted, sizeof(quoted));
	}
	if (ext) {
		all[ip_bytes] = IP_PROTO_TCP;
		all[ip_bytes + 1] = (uint8_t)(ext / 8 - 1);
	}
	be16_store(th, 61000);
	be16_store(th + 2, 5001);
	be32_store(th + 4, 0xa1b2c3d4);
	memset(icmp, 0, 8);
	icmp[0] = type;
	icmp[1] = code;
	if (is_v6() ? type == 2 : type == 3 && code == 4)
		be16_store(icmp + 6, 1400);
	memcpy(icmp + 8, all, quote_len);
	seal(p, 8 + quote_len);
	return total;
}

TEST(errors_are_parsed)
{
	static const struct {
		unsigned family;
		uint8_t type, code;
		enum icmp_error_kind kind;
	} errors[] = {
		{ 0, 3, 0, ICMP_ERROR_UNREACHABLE_NET },
		{ 0, 3, 1, ICMP_ERROR_UNREACHABLE_HOST },
		{ 0, 3, 2, ICMP_ERROR_UNREACHABLE_PORT },
		{ 0, 3, 3, ICMP_ERROR_UNREACHABLE_PORT },
		{ 0, 3, 4, ICMP_ERROR_TOO_BIG },
		{ 0, 3, 13, ICMP_ERROR_PROHIBITED },
		{ 0, 11, 0, ICMP_ERROR_TTL },
		{ 0, 12, 0, ICMP_ERROR_PARAMETER },
		{ 1, 1, 0, ICMP_ERROR_UNREACHABLE_NET },
		{ 1, 1, 1, ICMP_ERROR_PROHIBITED },
		{ 1, 1, 2, ICMP_ERROR_UNREACHABLE_NET },
		{ 1, 1, 3, ICMP_ERROR_UNREACHABLE_HOST },
		{ 1, 1, 4, ICMP_ERROR_UNREACHABLE_PORT },
		{ 1, 1, 5, ICMP_ERROR_PROHIBITED },
		{ 1, 1, 6, ICMP_ERROR_PROHIBITED },
		{ 1, 2, 0, ICMP_ERROR_TOO_BIG },
		{ 1, 2, 9, ICMP_ERROR_TOO_BIG }, /* the code is ignored, section 3.2 */
		{ 1, 3, 0, ICMP_ERROR_TTL },
		{ 1, 4, 0, ICMP_ERROR_PARAMETER },
		{ 1, 4, 1, ICMP_ERROR_UNREACHABLE_PORT },
	};
	const struct harp_icmp_error *e = &h.icmp_error;
	struct harp_addr own4 = ipv4_mapped(host_ip), peer4 = ipv4_mapped(peer_ip);
	uint8_t p[500];

	for (unsigned i = 0; i < ARRAY_SIZE(errors); i++) {
		open_host(&families[errors[i].family], 1500);
		for (uint32_t ext = 0; ext <= (is_v6() ? 24 : 0); ext += 8) {
			peer_say(&h, p,
				 make_error(p, errors[i].type, errors[i].code, ext,
					    family->quote_bytes + ext));
			CHECK_EQ(h.icmp_verdict, ICMP_ERROR);
			CHECK_EQ(e->kind, errors[i].kind);
			CHECK_EQ(e->type, errors[i].type);
			CHECK_EQ(e->code, errors[i].code);
			CHECK_EQ(e->proto, IP_PROTO_TCP);
			CHECK_EQ(e->local.port, 61000);
			CHECK_EQ(e->remote.port, 5001);
			CHECK_EQ(e->seq, 0xa1b2c3d4);
			CHECK_EQ(e->mtu_bytes, e->kind == ICMP_ERROR_TOO_BIG ? 1400 : 0);
			CHECK_MEM(&e->local.addr, is_v6() ? &host_ip6 : &own4, 16);
			CHECK_MEM(&e->remote.addr, is_v6() ? &peer_ip6 : &peer4, 16);
			CHECK_EQ(h.stats.icmp_error_in, ext / 8 + 1);
		}
	}
}

/* RFC 1191 sections 5 and 7: an MTU of 0 means the next plateau, and 552 is the least. RFC 8201 section
 * 4: less than 1280 is discarded. */
TEST(the_mtu_of_too_big_is_validated)
{
	static const struct {
		uint16_t reported, quoted, used;
	} errors[] = {
		{ 1400, 1500, 1400 }, { 9000, 1500, 9000 }, /* TCP ignores it */
		{ 552, 1500, 552 },   { 551, 1500, 552 },   { 68, 1500, 552 }, { 1, 1500, 552 },
		{ 0, 1500, 1492 },    { 0, 1492, 1006 },    { 0, 9000, 8166 }, { 0, 65535, 32000 },
		{ 0, 1006, 552 },     { 0, 100, 552 },      { 0, 0, 552 },
	};
	static const uint16_t small[] = { 0, 1, 68, 552, 1279 };
	uint8_t p[200];

	open_host(&families[0], 1500);
	for (unsigned i = 0; i < ARRAY_SIZE(errors); i++) {
		uint32_t total = make_error(p, 3, 4, 0, 28);

		be16_store(p + 40, errors[i].reported);
		be16_store(p + 44, errors[i].quoted);
		seal(p, 36);
		peer_say(&h, p, total);
		CHECK_EQ(h.icmp_verdict, ICMP_ERROR);
		CHECK_EQ(h.icmp_error.mtu_bytes, errors[i].used);
	}
	open_host(&families[1], 1500);
	for (unsigned i = 0; i < ARRAY_SIZE(small); i++) {
		uint32_t total = make_error(p, 2, 0, 0, 48);

		be16_store(p + HOST6_PAYLOAD + 6, small[i]);
		seal(p, 56);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, i + 1);
	}
	CHECK_EQ(h.stats.icmp_error_in, 0);
}
