/* SPDX-License-Identifier: Apache-2.0 */
/* test_icmp6.c - ICMPv6: echo of every size, and errors read out of hostile quotes. */
#include "network/icmp.h"

#include "host.h"

static struct host h;
AFTER_EACH(host_done(&h))

#define AT HOST6_PAYLOAD
#define QUOTE (AT + 8)

static void make_world(uint32_t mtu_bytes)
{
	host6_init(&h, mtu_bytes, HARP_NEIGHBOR_OWN);
	CHECK_EQ(neighbor_set(&h.eth, &peer_ip6, peer_mac), 0);
}

static struct ipv6_header *header(uint8_t *p)
{
	return (struct ipv6_header *)(p + 14);
}

static uint32_t make_echo(uint8_t *p, uint32_t len)
{
	uint32_t total = make_ipv6(p, IP_PROTO_ICMP6, len);

	memset(p + AT, 0, 8);
	p[AT] = 128;
	be32_store(p + AT + 4, 0x12345678);
	for (uint32_t i = 8; i < len; i++)
		p[AT + i] = (uint8_t)(i * 7);
	icmp6_seal(p, AT, len);
	return total;
}

TEST(echo_requests_of_every_size_are_answered)
{
	static uint8_t p[HOST_PACKET_MAX], r[HOST_PACKET_MAX];
	static const uint32_t sizes[] = { 8, 9, 64, 1460, 1901, 1950, 4001, 8960 };

	make_world(9000);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t len = make_echo(p, sizes[i]);

		peer_say(&h, p, len);
		CHECK_EQ(h.icmp_verdict, ICMP_CONSUMED);
		CHECK_EQ(peer_receive(&h, r), len);
		CHECK(icmp6_good(r, sizes[i]));
		CHECK_EQ(r[AT], 129);
		CHECK_MEM(&header(r)->src, &host_ip6, 16);
		CHECK_MEM(&header(r)->dst, &peer_ip6, 16);
		CHECK_MEM(r + AT + 4, p + AT + 4, sizes[i] - 4);
		CHECK_EQ(h.stats.icmp_echo_in, i + 1);
	}
	/* To all nodes: answered from an address of ours (RFC 4443 section 4.2). */
	make_ipv6(p, IP_PROTO_ICMP6, 8);
	memcpy(p, "\x33\x33\0\0\0\1", 6);
	CHECK_EQ(harp_addr_parse("ff02::1", &header(p)->dst), 0);
	memset(p + AT, 0, 8);
	p[AT] = 128;
	icmp6_seal(p, AT, 8);
	peer_say(&h, p, AT + 8);
	CHECK_EQ(peer_receive(&h, r), AT + 8);
	CHECK_MEM(&header(r)->src, &host_ip6, 16);
	CHECK(icmp6_good(r, 8));
}

TEST(invalid_messages_are_dropped)
{
	uint8_t p[200], r[HOST_PACKET_MAX];
	uint64_t bad = 0;
	uint32_t total;

	make_world(1500);
	for (uint32_t len = 0; len < 8; len++) {
		total = make_ipv6(p, IP_PROTO_ICMP6, len);
		memset(p + AT, 0, 8);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	for (unsigned bit = 0; bit < 64 * 8; bit++) { /* any flipped bit of the message */
		total = make_echo(p, 64);
		p[AT + bit / 8] ^= (uint8_t)(1u << bit % 8);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	for (unsigned type = 0; type < 256; type++) {
		if ((type >= 1 && type <= 4) || type == 128 || (type >= 133 && type <= 137))
			continue;
		total = make_echo(p, 64);
		p[AT] = (uint8_t)type;
		icmp6_seal(p, AT, 64);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	total = make_echo(p, 64);
	p[AT + 1] = 1; /* a code that echo does not have */
	icmp6_seal(p, AT, 64);
	peer_say(&h, p, total);
	CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	total = make_echo(p, 64);
	header(p)->src = (struct harp_addr){ { 0 } }; /* from nobody */
	icmp6_seal(p, AT, 64);
	peer_say(&h, p, total);
	CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	CHECK_EQ(peer_receive(&h, r), 0);
}

TEST(the_rate_limit_is_shared_with_ipv4)
{
	uint8_t p[100], r[HOST_PACKET_MAX];
	unsigned answers = 0;

	make_world(1500);
	for (unsigned i = 0; i < 1000; i++) {
		peer_say(&h, p, make_echo(p, 16));
		answers += peer_receive(&h, r) > 0;
	}
	CHECK_EQ(answers, 256);
	CHECK_EQ(h.stats.drop_icmp_rate, 1000 - 256);
}

/* An error about a TCP segment of ours from port 61000 to 5001, sequence number 0xa1b2c3d4, with ext
 * bytes of destination options in front of it. */
static uint32_t make_error(uint8_t *p, uint8_t type, uint8_t code, uint32_t mtu_bytes, uint32_t ext,
			   uint32_t quote_len)
{
	uint32_t total = make_ipv6(p, IP_PROTO_ICMP6, 8 + quote_len);
	struct ipv6_header quoted = { .version_class_label = be32_of(0x60000000),
				      .payload_len = be16_of(1460),
				      .next = ext ? 60 : IP_PROTO_TCP,
				      .hop_limit = 60,
				      .src = host_ip6,
				      .dst = peer_ip6 };
	uint8_t all[400] = { 0 };

	memcpy(all, &quoted, 40);
	if (ext) {
		all[40] = IP_PROTO_TCP;
		all[41] = (uint8_t)(ext / 8 - 1);
	}
	be16_store(all + 40 + ext, 61000);
	be16_store(all + 42 + ext, 5001);
	be32_store(all + 44 + ext, 0xa1b2c3d4);
	memset(p + AT, 0, 8);
	p[AT] = type;
	p[AT + 1] = code;
	be32_store(p + AT + 4, mtu_bytes);
	memcpy(p + QUOTE, all, quote_len);
	icmp6_seal(p, AT, 8 + quote_len);
	return total;
}

TEST(errors_are_parsed)
{
	static const struct {
		uint8_t type, code;
		enum icmp_error_kind kind;
	} errors[] = {
		{ 1, 0, ICMP_ERROR_UNREACHABLE_NET },
		{ 1, 1, ICMP_ERROR_PROHIBITED },
		{ 1, 2, ICMP_ERROR_UNREACHABLE_NET },
		{ 1, 3, ICMP_ERROR_UNREACHABLE_HOST },
		{ 1, 4, ICMP_ERROR_UNREACHABLE_PORT },
		{ 1, 5, ICMP_ERROR_PROHIBITED },
		{ 1, 6, ICMP_ERROR_PROHIBITED },
		{ 2, 0, ICMP_ERROR_TOO_BIG },
		{ 2, 9, ICMP_ERROR_TOO_BIG }, /* the code is ignored, section 3.2 */
		{ 3, 0, ICMP_ERROR_TTL },
		{ 4, 0, ICMP_ERROR_PARAMETER },
		{ 4, 1, ICMP_ERROR_UNREACHABLE_PORT },
	};
	uint8_t p[500];
	uint64_t count = 0;

	make_world(1500);
	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		for (uint32_t ext = 0; ext <= 24; ext += 8) {
			const struct harp_icmp_error *e = &h.icmp_error;

			peer_say(&h, p,
				 make_error(p, errors[i].type, errors[i].code, 1400, ext,
					    48 + ext));
			CHECK_EQ(h.icmp_verdict, ICMP_ERROR);
			CHECK_EQ(e->kind, errors[i].kind);
			CHECK_EQ(e->proto, IP_PROTO_TCP);
			CHECK_EQ(e->local.port, 61000);
			CHECK_EQ(e->remote.port, 5001);
			CHECK_EQ(e->seq, 0xa1b2c3d4);
			CHECK_EQ(e->mtu_bytes, e->kind == ICMP_ERROR_TOO_BIG ? 1400 : 0);
			CHECK_MEM(&e->local.addr, &host_ip6, 16);
			CHECK_MEM(&e->remote.addr, &peer_ip6, 16);
			CHECK_EQ(h.stats.icmp_error_in, ++count);
		}
	}
}

TEST(errors_with_invalid_quotes_are_dropped)
{
	static const struct {
		const char *what;
		unsigned at; /* byte of the quote */
		uint8_t value;
	} quotes[] = {
		{ "another's packet", 23, 11 },
		{ "version 4", 0, 0x45 },
		{ "protocol 58", 6, 58 },
		{ "a fragment", 6, 44 },
		{ "an extension header beyond the quote", 6, 60 },
		{ "encrypted", 6, 50 },
	};
	static const uint32_t lies[] = { 0, 1, 68, 552, 1279 };
	uint8_t p[500];
	uint64_t bad = 0;

	make_world(1500);
	for (uint32_t ext = 0; ext <= 16; ext += 16) {
		for (uint32_t len = 0; len < 48 + ext; len++) { /* every truncation */
			peer_say(&h, p, make_error(p, 1, 4, 0, ext, len));
			CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
		}
	}
	for (unsigned i = 0; i < sizeof(quotes) / sizeof(quotes[0]); i++) {
		uint32_t total = make_error(p, 1, 4, 0, 0, 48);

		p[QUOTE + quotes[i].at] = quotes[i].value;
		icmp6_seal(p, AT, 56);
		peer_say(&h, p, total);
		if (h.stats.drop_icmp_bad != ++bad) {
			fprintf(stderr, "believed: %s\n", quotes[i].what);
			CHECK_EQ(h.stats.drop_icmp_bad, bad);
		}
	}
	for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) { /* RFC 8201 section 4 */
		peer_say(&h, p, make_error(p, 2, 0, lies[i], 0, 48));
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	uint32_t total = make_error(p, 1, 4, 0, 0, 48); /* an IPv4 flow's, by its mapped form */
	struct harp_addr own = ipv4_mapped(host_ip), other = ipv4_mapped(peer_ip);

	memcpy(p + QUOTE + 8, &own, 16);
	memcpy(p + QUOTE + 24, &other, 16);
	icmp6_seal(p, AT, 56);
	peer_say(&h, p, total);
	CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	CHECK_EQ(h.stats.icmp_error_in, 0);
}
