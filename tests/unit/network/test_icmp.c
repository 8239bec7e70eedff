/* SPDX-License-Identifier: Apache-2.0 */
/* test_icmp.c - echo of every size, the rate limit, and errors read out of hostile quotes. */
#include "network/icmp.h"

#include "host.h"

static struct host h;
AFTER_EACH(host_done(&h))

static void make_world(uint32_t mtu_bytes)
{
	struct harp_addr peer = ipv4_mapped(peer_ip);

	host_init(&h, mtu_bytes, HARP_NEIGHBOR_OWN);
	CHECK_EQ(neighbor_set(&h.eth, &peer, peer_mac), 0);
}

/* An echo request whose ICMP part is len bytes. */
static uint32_t make_echo(uint8_t *p, uint32_t len)
{
	uint32_t total = make_ipv4(p, IP_PROTO_ICMP, len);

	memset(p + 34, 0, 8);
	p[34] = 8;
	be32_store(p + 38, 0x12345678);
	for (uint32_t i = 8; i < len; i++)
		p[34 + i] = (uint8_t)(i * 7);
	icmp_seal(p + 34, len);
	return total;
}

TEST(echo_requests_of_every_size_are_answered)
{
	static uint8_t p[HOST_PACKET_MAX], r[HOST_PACKET_MAX];
	static const uint32_t sizes[] = { 8, 9, 64, 1480, 1901, 1950, 4001, 8980 };

	make_world(9000);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t len = make_echo(p, sizes[i]);

		peer_say(&h, p, len);
		CHECK_EQ(h.icmp_verdict, ICMP_CONSUMED);
		CHECK_EQ(peer_receive(&h, r), len);
		CHECK_EQ(csum_finish(csum_partial(r + 14, 20, 0)), 0);
		CHECK_EQ(csum_finish(csum_partial(r + 34, sizes[i], 0)), 0);
		CHECK_EQ(r[34], 0);
		CHECK_MEM(r + 26, host_ip, 4);
		CHECK_MEM(r + 30, peer_ip, 4);
		CHECK_MEM(r + 38, p + 38, sizes[i] - 4);
		CHECK_EQ(h.stats.icmp_echo_in, i + 1);
	}
	make_echo(p, 8); /* padded by the link, with options in front */
	memset(p + 42, 0xee, 18);
	peer_say(&h, p, 60);
	CHECK_EQ(peer_receive(&h, r), 42);
}

TEST(invalid_messages_are_dropped)
{
	uint8_t p[200], r[HOST_PACKET_MAX];
	uint64_t bad = 0;

	make_world(1500);
	for (uint32_t len = 0; len < 8; len++) { /* shorter than its header */
		uint32_t total = make_ipv4(p, IP_PROTO_ICMP, len);

		memset(p + 34, 0, 8);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	for (unsigned bit = 0; bit < 64 * 8; bit++) { /* any flipped bit */
		uint32_t total = make_echo(p, 64);

		p[34 + bit / 8] ^= (uint8_t)(1u << bit % 8);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	uint32_t total = make_echo(p, 64);

	p[35] = 1; /* a code that echo does not have */
	icmp_seal(p + 34, 64);
	peer_say(&h, p, total);
	CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	for (unsigned type = 0; type < 256; type++) { /* types that we have no use for */
		if (type == 3 || type == 8 || type == 11 || type == 12)
			continue;
		total = make_echo(p, 64);
		p[34] = (uint8_t)type;
		icmp_seal(p + 34, 64);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	CHECK_EQ(peer_receive(&h, r), 0);
}

TEST(echo_replies_are_rate_limited)
{
	uint8_t p[100], r[HOST_PACKET_MAX];
	unsigned answers = 0;

	make_world(1500);
	for (unsigned i = 0; i < 1000; i++) {
		uint32_t len = make_echo(p, 16);

		peer_say(&h, p, len);
		answers += peer_receive(&h, r) > 0;
	}
	CHECK_EQ(answers, 256);
	CHECK_EQ(h.stats.drop_icmp_rate, 1000 - 256);
	h.now_ns += 1000000; /* 1 ms: ten more */
	for (unsigned i = 0; i < 20; i++) {
		uint32_t len = make_echo(p, 16);

		peer_say(&h, p, len);
		answers += peer_receive(&h, r) > 0;
	}
	CHECK_EQ(answers, 266);
}

/* An error about a TCP segment of ours from port 61000 to 5001, sequence number 0xa1b2c3d4. */
static uint32_t make_error(uint8_t *p, uint8_t type, uint8_t code, uint32_t quote_len)
{
	uint32_t total = make_ipv4(p, IP_PROTO_ICMP, 8 + quote_len);
	struct ipv4_header quoted = { .version_ihl = 0x45, .ttl = 60, .proto = IP_PROTO_TCP };
	uint8_t all[60] = { 0 };

	quoted.total_len = be16_of(1500);
	memcpy(quoted.src, host_ip, 4);
	memcpy(quoted.dst, peer_ip, 4);
	ipv4_seal(&quoted);
	memcpy(all, &quoted, 20);
	be16_store(all + 20, 61000);
	be16_store(all + 22, 5001);
	be32_store(all + 24, 0xa1b2c3d4);
	memset(p + 34, 0, 8);
	p[34] = type;
	p[35] = code;
	be16_store(p + 40, type == 3 && code == 4 ? 1400 : 0);
	memcpy(p + 42, all, quote_len);
	icmp_seal(p + 34, 8 + quote_len);
	return total;
}

TEST(errors_are_parsed)
{
	static const struct {
		uint8_t type, code;
		enum icmp_error_kind kind;
	} errors[] = {
		{ 3, 0, ICMP_ERROR_UNREACHABLE_NET },
		{ 3, 1, ICMP_ERROR_UNREACHABLE_HOST },
		{ 3, 2, ICMP_ERROR_UNREACHABLE_PORT },
		{ 3, 3, ICMP_ERROR_UNREACHABLE_PORT },
		{ 3, 4, ICMP_ERROR_TOO_BIG },
		{ 3, 13, ICMP_ERROR_PROHIBITED },
		{ 11, 0, ICMP_ERROR_TTL },
		{ 12, 0, ICMP_ERROR_PARAMETER },
	};
	uint8_t p[200];

	make_world(1500);
	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		const struct harp_icmp_error *e = &h.icmp_error;

		peer_say(&h, p, make_error(p, errors[i].type, errors[i].code, 28));
		CHECK_EQ(h.icmp_verdict, ICMP_ERROR);
		CHECK_EQ(e->kind, errors[i].kind);
		CHECK_EQ(e->type, errors[i].type);
		CHECK_EQ(e->code, errors[i].code);
		CHECK_EQ(e->proto, IP_PROTO_TCP);
		CHECK_EQ(e->local.port, 61000);
		CHECK_EQ(e->remote.port, 5001);
		CHECK_EQ(e->seq, 0xa1b2c3d4);
		CHECK_EQ(e->mtu_bytes, errors[i].kind == ICMP_ERROR_TOO_BIG ? 1400 : 0);
		CHECK_MEM(e->local.addr.bytes + 12, host_ip, 4);
		CHECK_MEM(e->remote.addr.bytes + 12, peer_ip, 4);
	}
	CHECK_EQ(h.stats.icmp_error_in, sizeof(errors) / sizeof(errors[0]));
}

/* RFC 1191 section 5, 7: a router that says 0 gets the next plateau; nobody gets below the floor. */
TEST(the_mtu_of_too_big_is_validated)
{
	static const struct {
		uint16_t said, quoted, believed;
	} errors[] = {
		{ 1400, 1500, 1400 }, { 9000, 1500, 9000 }, /* no news: TCP's to see */
		{ 552, 1500, 552 },   { 551, 1500, 552 },   { 68, 1500, 552 }, { 1, 1500, 552 },
		{ 0, 1500, 1492 },    { 0, 1492, 1006 },    { 0, 9000, 8166 }, { 0, 65535, 32000 },
		{ 0, 1006, 552 },     { 0, 100, 552 },      { 0, 0, 552 },
	};
	uint8_t p[200];

	make_world(1500);
	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		uint32_t total = make_error(p, 3, 4, 28);

		be16_store(p + 40, errors[i].said);
		be16_store(p + 44, errors[i].quoted);
		icmp_seal(p + 34, 36);
		peer_say(&h, p, total);
		CHECK_EQ(h.icmp_verdict, ICMP_ERROR);
		CHECK_EQ(h.icmp_error.mtu_bytes, errors[i].believed);
	}
}

TEST(errors_with_invalid_quotes_are_dropped)
{
	static const struct {
		const char *what;
		unsigned at; /* byte of the quoted header */
		uint8_t value;
	} quotes[] = {
		{ "another's packet", 12, 11 },    { "version 6", 0, 0x65 },
		{ "header of 16 bytes", 0, 0x44 }, { "header longer than the quote", 0, 0x4f },
		{ "no first fragment", 7, 9 },     { "protocol 1", 9, 1 },
	};
	uint8_t p[200];
	uint64_t bad = 0;

	make_world(1500);
	for (uint32_t len = 0; len < 28; len++) { /* every truncation */
		peer_say(&h, p, make_error(p, 3, 3, len));
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	for (unsigned i = 0; i < sizeof(quotes) / sizeof(quotes[0]); i++) {
		uint32_t total = make_error(p, 3, 3, 28);

		p[42 + quotes[i].at] = quotes[i].value;
		icmp_seal(p + 34, 36);
		peer_say(&h, p, total);
		if (h.stats.drop_icmp_bad != ++bad) {
			fprintf(stderr, "believed: %s\n", quotes[i].what);
			CHECK_EQ(h.stats.drop_icmp_bad, bad);
		}
	}
	CHECK_EQ(h.stats.icmp_error_in, 0);
}
