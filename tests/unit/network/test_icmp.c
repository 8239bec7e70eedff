/* SPDX-License-Identifier: Apache-2.0 */
/* test_icmp.c - ICMP and ICMPv6: echo of every size, the rate limit, and errors read out of hostile quotes. */
#include "network/icmp.h"

#include "base/util.h"
#include "host.h"

static struct host h;
AFTER_EACH(host_done(&h))

static bool v6; /* the family of this run */

#define AT (v6 ? HOST6_PAYLOAD : 34u) /* of the message in a packet */
#define QUOTE (AT + 8)
#define ECHO_REQUEST (v6 ? 128 : 8)
#define ECHO_REPLY (v6 ? 129 : 0)

static void make_world(uint32_t mtu_bytes)
{
	struct harp_addr peer = v6 ? peer_ip6 : ipv4_mapped(peer_ip);

	(v6 ? host6_init : host_init)(&h, mtu_bytes, HARP_NEIGHBOR_OWN);
	CHECK_EQ(neighbor_set(&h.eth, &peer, peer_mac), 0);
}

/* A packet for a message of len bytes, whose header is zero. */
static uint32_t make_icmp(uint8_t *p, uint32_t len)
{
	memset(p + AT, 0, 8);
	return v6 ? make_ipv6(p, IP_PROTO_ICMP6, len) : make_ipv4(p, IP_PROTO_ICMP, len);
}

static void seal(uint8_t *p, uint32_t len)
{
	if (v6)
		icmp6_seal(p, AT, len);
	else
		icmp_seal(p + AT, len);
}

/* An echo request whose message is len bytes. */
static uint32_t make_echo(uint8_t *p, uint32_t len)
{
	uint32_t total = make_icmp(p, len);

	p[AT] = (uint8_t)ECHO_REQUEST;
	be32_store(p + AT + 4, 0x12345678);
	for (uint32_t i = 8; i < len; i++)
		p[AT + i] = (uint8_t)(i * 7);
	seal(p, len);
	return total;
}

/* The checksums of an answer and its addresses. */
static void check_answer(uint8_t *r, uint32_t len)
{
	if (v6) {
		CHECK(icmp6_good(r, len));
		CHECK_MEM(&header6(r)->src, &host_ip6, 16);
		CHECK_MEM(&header6(r)->dst, &peer_ip6, 16);
		return;
	}
	CHECK_EQ(csum_finish(csum_partial(r + 14, 20, 0)), 0);
	CHECK_EQ(csum_finish(csum_partial(r + 34, len, 0)), 0);
	CHECK_MEM(r + 26, host_ip, 4);
	CHECK_MEM(r + 30, peer_ip, 4);
}

TEST(echo_requests_of_every_size_are_answered)
{
	static uint8_t p[HOST_PACKET_MAX], r[HOST_PACKET_MAX];
	static const uint32_t sizes[] = { 8, 9, 64, 1460, 1480, 1901, 1950, 4001, 8960 };

	make_world(9000);
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint32_t len = make_echo(p, sizes[i]);

		peer_say(&h, p, len);
		CHECK_EQ(h.icmp_verdict, ICMP_CONSUMED);
		CHECK_EQ(peer_receive(&h, r), len);
		check_answer(r, sizes[i]);
		CHECK_EQ(r[AT], ECHO_REPLY);
		CHECK_MEM(r + AT + 4, p + AT + 4, sizes[i] - 4);
		CHECK_EQ(h.stats.icmp_echo_in, i + 1);
	}
	make_echo(p, 8);
	if (v6) { /* to all nodes: answered from an address of ours (RFC 4443 section 4.2) */
		memcpy(p, "\x33\x33\0\0\0\1", 6);
		CHECK_EQ(harp_addr_parse("ff02::1", &header6(p)->dst), 0);
		seal(p, 8);
		peer_say(&h, p, AT + 8);
	} else { /* padded by the link */
		memset(p + AT + 8, 0xee, 18);
		peer_say(&h, p, 60);
	}
	CHECK_EQ(peer_receive(&h, r), AT + 8);
	check_answer(r, 8);
}

/* A type that HARP reads. */
static bool is_known(unsigned type)
{
	return v6 ? (type >= 1 && type <= 4) || type == 128 || (type >= 133 && type <= 137)
		  : type == 3 || type == 8 || type == 11 || type == 12;
}

TEST(invalid_messages_are_dropped)
{
	uint8_t p[200], r[HOST_PACKET_MAX];
	uint64_t bad = 0;
	uint32_t total;

	make_world(1500);
	for (uint32_t len = 0; len < 8; len++) { /* shorter than its header */
		peer_say(&h, p, make_icmp(p, len));
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	for (unsigned bit = 0; bit < 64 * 8; bit++) { /* any flipped bit */
		total = make_echo(p, 64);
		p[AT + bit / 8] ^= (uint8_t)(1u << bit % 8);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	for (unsigned type = 0; type < 256; type++) {
		if (is_known(type))
			continue;
		total = make_echo(p, 64);
		p[AT] = (uint8_t)type;
		seal(p, 64);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	total = make_echo(p, 64);
	p[AT + 1] = 1; /* a code that echo does not have */
	seal(p, 64);
	peer_say(&h, p, total);
	CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	if (v6) {
		total = make_echo(p, 64);
		header6(p)->src = (struct harp_addr){ { 0 } }; /* the unspecified address */
		seal(p, 64);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	CHECK_EQ(peer_receive(&h, r), 0);
}

static unsigned answers_to(unsigned requests)
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
	make_world(1500);
	CHECK_EQ(answers_to(1000), 256);
	CHECK_EQ(h.stats.drop_icmp_rate, 1000 - 256);
	h.now_ns += 1000000; /* 1 ms: ten more */
	CHECK_EQ(answers_to(20), 10);
}

/* The least quote that is read: the IP header, ext bytes of destination options, and eight of TCP's. */
static uint32_t quote_bytes(uint32_t ext)
{
	return (v6 ? 40 + ext : 20) + 8;
}

/* An error about a TCP segment of ours from port 61000 to 5001, sequence number 0xa1b2c3d4. */
static uint32_t make_error(uint8_t *p, uint8_t type, uint8_t code, uint32_t mtu_bytes, uint32_t ext,
			   uint32_t quote_len)
{
	uint32_t total = make_icmp(p, 8 + quote_len);
	struct ipv6_header quoted6 = { .version_class_label = be32_of(0x60000000),
				       .payload_len = be16_of(1460),
				       .next = ext ? 60 : IP_PROTO_TCP,
				       .hop_limit = 60,
				       .src = host_ip6,
				       .dst = peer_ip6 };
	struct ipv4_header quoted4 = { .version_ihl = 0x45, .ttl = 60, .proto = IP_PROTO_TCP };
	uint8_t all[400] = { 0 }, *tcp = all + quote_bytes(ext) - 8;

	if (v6) {
		memcpy(all, &quoted6, 40);
	} else {
		quoted4.total_len = be16_of(1500);
		memcpy(quoted4.src, host_ip, 4);
		memcpy(quoted4.dst, peer_ip, 4);
		ipv4_seal(&quoted4);
		memcpy(all, &quoted4, 20);
	}
	if (ext) {
		all[40] = IP_PROTO_TCP;
		all[41] = (uint8_t)(ext / 8 - 1);
	}
	be16_store(tcp, 61000);
	be16_store(tcp + 2, 5001);
	be32_store(tcp + 4, 0xa1b2c3d4);
	p[AT] = type;
	p[AT + 1] = code;
	be32_store(p + AT + 4, mtu_bytes); /* IPv4: 16 bits, behind 16 unused ones */
	memcpy(p + QUOTE, all, quote_len);
	seal(p, 8 + quote_len);
	return total;
}

TEST(errors_are_parsed)
{
	static const struct {
		bool v6;
		uint8_t type, code;
		enum icmp_error_kind kind;
	} errors[] = {
		{ false, 3, 0, ICMP_ERROR_UNREACHABLE_NET },
		{ false, 3, 1, ICMP_ERROR_UNREACHABLE_HOST },
		{ false, 3, 2, ICMP_ERROR_UNREACHABLE_PORT },
		{ false, 3, 3, ICMP_ERROR_UNREACHABLE_PORT },
		{ false, 3, 4, ICMP_ERROR_TOO_BIG },
		{ false, 3, 13, ICMP_ERROR_PROHIBITED },
		{ false, 11, 0, ICMP_ERROR_TTL },
		{ false, 12, 0, ICMP_ERROR_PARAMETER },
		{ true, 1, 0, ICMP_ERROR_UNREACHABLE_NET },
		{ true, 1, 1, ICMP_ERROR_PROHIBITED },
		{ true, 1, 2, ICMP_ERROR_UNREACHABLE_NET },
		{ true, 1, 3, ICMP_ERROR_UNREACHABLE_HOST },
		{ true, 1, 4, ICMP_ERROR_UNREACHABLE_PORT },
		{ true, 1, 5, ICMP_ERROR_PROHIBITED },
		{ true, 1, 6, ICMP_ERROR_PROHIBITED },
		{ true, 2, 0, ICMP_ERROR_TOO_BIG },
		{ true, 2, 9, ICMP_ERROR_TOO_BIG }, /* the code is ignored, section 3.2 */
		{ true, 3, 0, ICMP_ERROR_TTL },
		{ true, 4, 0, ICMP_ERROR_PARAMETER },
		{ true, 4, 1, ICMP_ERROR_UNREACHABLE_PORT },
	};
	const struct harp_addr own = v6 ? host_ip6 : ipv4_mapped(host_ip);
	const struct harp_addr peer = v6 ? peer_ip6 : ipv4_mapped(peer_ip);
	const struct harp_icmp_error *e = &h.icmp_error;
	uint8_t p[500];
	uint64_t count = 0;

	make_world(1500);
	for (unsigned i = 0; i < ARRAY_SIZE(errors); i++)
		for (uint32_t ext = 0; ext <= (v6 ? 24 : 0) && errors[i].v6 == v6; ext += 8) {
			bool too_big = errors[i].kind == ICMP_ERROR_TOO_BIG;

			peer_say(&h, p,
				 make_error(p, errors[i].type, errors[i].code, too_big ? 1400 : 0,
					    ext, quote_bytes(ext)));
			CHECK_EQ(h.icmp_verdict, ICMP_ERROR);
			CHECK_EQ(e->kind, errors[i].kind);
			CHECK_EQ(e->type, errors[i].type);
			CHECK_EQ(e->code, errors[i].code);
			CHECK_EQ(e->proto, IP_PROTO_TCP);
			CHECK_EQ(e->local.port, 61000);
			CHECK_EQ(e->remote.port, 5001);
			CHECK_EQ(e->seq, 0xa1b2c3d4);
			CHECK_EQ(e->mtu_bytes, too_big ? 1400 : 0);
			CHECK_MEM(&e->local.addr, &own, 16);
			CHECK_MEM(&e->remote.addr, &peer, 16);
			CHECK_EQ(h.stats.icmp_error_in, ++count);
		}
}

/* RFC 1191 section 5, 7: a router that reports 0 gets the next plateau, and the least is 552. */
TEST(the_mtu_of_too_big_is_validated)
{
	static const struct {
		uint16_t reported, quoted, believed;
	} errors[] = {
		{ 1400, 1500, 1400 }, { 9000, 1500, 9000 }, /* for TCP to ignore */
		{ 552, 1500, 552 },   { 551, 1500, 552 },   { 68, 1500, 552 }, { 1, 1500, 552 },
		{ 0, 1500, 1492 },    { 0, 1492, 1006 },    { 0, 9000, 8166 }, { 0, 65535, 32000 },
		{ 0, 1006, 552 },     { 0, 100, 552 },      { 0, 0, 552 },
	};
	static const uint32_t below_1280[] = { 0, 1, 68, 552, 1279 }; /* RFC 8201 section 4 */
	uint8_t p[200];

	make_world(1500);
	for (unsigned i = 0; i < ARRAY_SIZE(errors) && !v6; i++) {
		uint32_t total = make_error(p, 3, 4, errors[i].reported, 0, 28);

		be16_store(p + QUOTE + 2, errors[i].quoted);
		seal(p, 36);
		peer_say(&h, p, total);
		CHECK_EQ(h.icmp_verdict, ICMP_ERROR);
		CHECK_EQ(h.icmp_error.mtu_bytes, errors[i].believed);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(below_1280) && v6; i++) {
		peer_say(&h, p, make_error(p, 2, 0, below_1280[i], 0, 48));
		CHECK_EQ(h.stats.drop_icmp_bad, i + 1);
	}
}

TEST(errors_with_invalid_quotes_are_dropped)
{
	static const struct {
		const char *what;
		bool v6;
		unsigned at; /* byte of the quote */
		uint8_t value;
	} quotes[] = {
		{ "another's packet", false, 12, 11 },
		{ "version 6", false, 0, 0x65 },
		{ "header of 16 bytes", false, 0, 0x44 },
		{ "header longer than the quote", false, 0, 0x4f },
		{ "no first fragment", false, 7, 9 },
		{ "protocol 1", false, 9, 1 },
		{ "another's packet", true, 23, 11 },
		{ "version 4", true, 0, 0x45 },
		{ "protocol 58", true, 6, 58 },
		{ "a fragment", true, 6, 44 },
		{ "an extension header beyond the quote", true, 6, 60 },
		{ "encrypted", true, 6, 50 },
	};
	const uint8_t type = v6 ? 1 : 3, code = v6 ? 4 : 3;
	struct harp_addr own = ipv4_mapped(host_ip), other = ipv4_mapped(peer_ip);
	uint8_t p[500];
	uint64_t bad = 0;

	make_world(1500);
	for (uint32_t ext = 0; ext <= (v6 ? 16 : 0); ext += 16) {
		for (uint32_t len = 0; len < quote_bytes(ext); len++) { /* every truncation */
			peer_say(&h, p, make_error(p, type, code, 0, ext, len));
			CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
		}
	}
	for (unsigned i = 0; i < ARRAY_SIZE(quotes); i++) {
		uint32_t total = make_error(p, type, code, 0, 0, quote_bytes(0));

		if (quotes[i].v6 != v6)
			continue;
		p[QUOTE + quotes[i].at] = quotes[i].value;
		seal(p, 8 + quote_bytes(0));
		peer_say(&h, p, total);
		if (h.stats.drop_icmp_bad != ++bad) {
			fprintf(stderr, "believed: %s\n", quotes[i].what);
			CHECK_EQ(h.stats.drop_icmp_bad, bad);
		}
	}
	if (v6) { /* an IPv4 flow's, by its mapped form */
		uint32_t total = make_error(p, type, code, 0, 0, 48);

		memcpy(p + QUOTE + 8, &own, 16);
		memcpy(p + QUOTE + 24, &other, 16);
		seal(p, 56);
		peer_say(&h, p, total);
		CHECK_EQ(h.stats.drop_icmp_bad, ++bad);
	}
	CHECK_EQ(h.stats.icmp_error_in, 0);
}

int main(void)
{
	for (unsigned family = 0; family < 2; family++) {
		v6 = family;
		check_run();
		if (check_failures)
			fprintf(stderr, "IPv%d\n", v6 ? 6 : 4);
	}
	return check_done();
}
