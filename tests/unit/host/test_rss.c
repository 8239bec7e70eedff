/* SPDX-License-Identifier: Apache-2.0 */
/* test_rss.c - the published vectors of the Toeplitz hash, and RSS rules that drivers report or
 * operators set. */
#include <errno.h>
#include <linux/ethtool.h>

#include "base/util.h"
#include "check.h"
#include "host/rss.h"

/* "Verifying the RSS Hash Calculation" (Microsoft, Windows driver documentation). */
static const uint8_t published_key[40] = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
	0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
	0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};
#define PUBLISHED_TEXT                                                                             \
	"6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"

static const struct {
	const char *to;
	uint16_t to_port;
	const char *from;
	uint16_t from_port;
	uint32_t addresses, with_ports; /* the hashes */
} published[] = {
	{ "161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e8fc2, 0x51ccc178 },
	{ "65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718262a, 0xc626b0ea },
	{ "12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0a5de, 0x5c2b394a },
	{ "209.142.163.6", 2217, "38.27.205.30", 48228, 0x82989176, 0xafc7327f },
	{ "202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d1809c5, 0x10e828a2 },
	{ "3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc18cd5, 0x40207d3d },
	{ "ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c461c, 0xdde51bbf },
	{ "fe80::200:f8ff:fe21:67cf", 38024, "3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251,
	  0x4b61e985, 0x02d1feef },
};
#define PUBLISHED_COUNT (sizeof(published) / sizeof(published[0]))

static struct harp_endpoint endpoint(const char *address, uint16_t port)
{
	struct harp_endpoint ep = { .port = port };

	CHECK_EQ(harp_addr_parse(address, &ep.addr), 0);
	return ep;
}

TEST(address_hashes_match_the_published_ones)
{
	for (unsigned i = 0; i < PUBLISHED_COUNT; i++) {
		struct harp_endpoint to = endpoint(published[i].to, 0),
				     from = endpoint(published[i].from, 0);
		size_t skip = harp_addr_is_v4(&to.addr) ? 12 : 0;
		uint8_t input[32];

		memcpy(input, from.addr.bytes + skip, 16 - skip);
		memcpy(input + 16 - skip, to.addr.bytes + skip, 16 - skip);
		CHECK_EQ(rss_toeplitz(published_key, input, 2 * (16 - skip)),
			 published[i].addresses);
	}
}

/* If each table entry is its own index, the queue is the hash modulo the table size. Several sizes
 * check more bits. */
TEST(port_hashes_match_the_published_ones)
{
	static const uint32_t sizes[] = { 512, 509, 503, 128, 1 };
	struct harp_rss rss = { .kind = HARP_RSS_TOEPLITZ, .key_bytes = 40, .queues = 512 };

	memcpy(rss.key, published_key, sizeof(published_key));
	for (unsigned i = 0; i < HARP_RSS_TABLE_MAX; i++)
		rss.table[i] = (uint16_t)i;
	for (unsigned i = 0; i < PUBLISHED_COUNT; i++) {
		struct harp_endpoint to = endpoint(published[i].to, published[i].to_port);
		struct harp_endpoint from = endpoint(published[i].from, published[i].from_port);

		for (unsigned j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++) {
			rss.table_count = sizes[j];
			CHECK_EQ(harp_rss_queue(&rss, &from, &to),
				 published[i].with_ports % sizes[j]);
		}
	}
}

TEST(unusable_rules_give_no_queue)
{
	struct harp_endpoint v4 = endpoint("10.0.0.1", 1), v6 = endpoint("fd00::1", 1);
	struct harp_rss rss = { .kind = HARP_RSS_UNKNOWN, .queues = 4 };

	CHECK_EQ(harp_rss_queue(&rss, &v4, &v4), -ENOTSUP);
	rss.kind = HARP_RSS_NONE;
	CHECK_EQ(harp_rss_queue(&rss, &v4, &v4), 0);
	CHECK_EQ(harp_rss_queue(&rss, &v4, &v6), -EINVAL);
	/* A rule from a peer is used only if it is valid. */
	CHECK_EQ(harp_rss_parse("toeplitz:" PUBLISHED_TEXT, 4, &rss), 0);
	CHECK(harp_rss_queue(&rss, &v4, &v4) >= 0);
	rss.table_count = 0;
	CHECK_EQ(harp_rss_queue(&rss, &v4, &v4), -ENOTSUP);
	rss.table_count = HARP_RSS_TABLE_MAX + 1;
	CHECK_EQ(harp_rss_queue(&rss, &v4, &v4), -ENOTSUP);
	rss.table_count = 128;
	rss.key_bytes = 39;
	CHECK_EQ(harp_rss_queue(&rss, &v6, &v6), -ENOTSUP);
	rss.key_bytes = HARP_RSS_KEY_MAX + 1;
	CHECK_EQ(harp_rss_queue(&rss, &v6, &v6), -ENOTSUP);
	rss.key_bytes = 40;
	rss.kind = 77;
	CHECK_EQ(harp_rss_queue(&rss, &v6, &v6), -ENOTSUP);
}

/* ---- drivers --------------------------------------------------------------------------------- */

#define ALL_FIELDS (RXH_IP_SRC | RXH_IP_DST | RXH_L4_B_0_1 | RXH_L4_B_2_3)

static uint32_t table[2048];

static struct rss_answers good_answers(void)
{
	for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		table[i] = i % 8;
	return (struct rss_answers){
		.queues = 8,
		.spreads = true,
		.function = RSS_FUNCTION_TOEPLITZ,
		.fields_v4 = ALL_FIELDS,
		.fields_v6 = ALL_FIELDS,
		.key = published_key,
		.key_bytes = sizeof(published_key),
		.table = table,
		.table_count = 128,
	};
}

static uint32_t rule_kind(const struct rss_answers *answers)
{
	struct harp_rss rss;

	rss_from_answers(answers, &rss);
	CHECK_EQ(rss.queues, answers->queues ? answers->queues : 1);
	return rss.kind;
}

TEST(a_complete_rule_is_used)
{
	struct rss_answers answers = good_answers();
	struct harp_rss rss;

	rss_from_answers(&answers, &rss);
	CHECK_EQ(rss.kind, HARP_RSS_TOEPLITZ);
	CHECK_EQ(rss.queues, 8);
	CHECK_EQ(rss.table_count, 128);
	CHECK_EQ(rss.table[127], 7);
	CHECK_EQ(rss.key_bytes, 40);
	CHECK_MEM(rss.key, published_key, 40);
	/* Many drivers do not report the hashed fields: then all four are assumed. */
	answers.fields_v4 = answers.fields_v6 = 0;
	CHECK_EQ(rule_kind(&answers), HARP_RSS_TOEPLITZ);
}

TEST(one_queue_needs_no_rule)
{
	struct rss_answers answers = good_answers();

	answers.queues = 1;
	CHECK_EQ(rule_kind(&answers), HARP_RSS_NONE);
	answers.queues = 0;
	CHECK_EQ(rule_kind(&answers), HARP_RSS_NONE);
}

TEST(unsupported_rules_are_unknown)
{
	struct rss_answers bad[7];

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		bad[i] = good_answers();
	bad[0].spreads = false;
	bad[1].function = 2;  /* XOR */
	bad[2].transform = 1; /* symmetric */
	bad[3].fields_v4 = RXH_IP_SRC | RXH_IP_DST;
	bad[4].fields_v6 = ALL_FIELDS | RXH_VLAN;
	bad[5].key_bytes = 39;
	bad[6].table_count = 0;
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		CHECK_EQ(rule_kind(&bad[i]), HARP_RSS_UNKNOWN);
	bad[0] = good_answers();
	table[5] = 8; /* no such queue */
	CHECK_EQ(rule_kind(&bad[0]), HARP_RSS_UNKNOWN);
}

TEST(a_large_table_must_repeat)
{
	struct rss_answers answers = good_answers();
	struct harp_rss rss;

	answers.table_count = 2048;
	rss_from_answers(&answers, &rss);
	CHECK_EQ(rss.kind, HARP_RSS_TOEPLITZ);
	CHECK_EQ(rss.table_count, HARP_RSS_TABLE_MAX);
	table[2047] = 0; /* breaks the repetition */
	CHECK_EQ(rule_kind(&answers), HARP_RSS_UNKNOWN);
	answers = good_answers();
	answers.table_count = 513;
	CHECK_EQ(rule_kind(&answers), HARP_RSS_UNKNOWN);
}

TEST(a_long_key_is_truncated)
{
	static const uint8_t key[100] = { 1, 2, 3 };
	struct rss_answers answers = good_answers();
	struct harp_rss rss;

	answers.key = key;
	answers.key_bytes = sizeof(key);
	rss_from_answers(&answers, &rss);
	CHECK_EQ(rss.kind, HARP_RSS_TOEPLITZ);
	CHECK_EQ(rss.key_bytes, HARP_RSS_KEY_MAX);
}

TEST(the_rule_of_an_interface_is_read)
{
	struct harp_rss rss;

	CHECK_EQ(harp_rss_read("lo", &rss), 0);
	CHECK_EQ(rss.kind, HARP_RSS_NONE);
	CHECK_EQ(rss.queues, 1);
	CHECK_EQ(harp_rss_read("nosuch0", &rss), -ENODEV);
	CHECK_EQ(harp_rss_read("", &rss), -EINVAL);
	CHECK_EQ(harp_rss_read(NULL, &rss), -EINVAL);
}

/* ---- operators ------------------------------------------------------------------------------- */

TEST(a_configured_rule_is_parsed)
{
	struct harp_rss rss;

	CHECK_EQ(harp_rss_parse("unknown", 8, &rss), 0);
	CHECK_EQ(rss.kind, HARP_RSS_UNKNOWN);
	CHECK_EQ(rss.queues, 8);
	CHECK_EQ(harp_rss_parse("toeplitz:" PUBLISHED_TEXT, 3, &rss), 0);
	CHECK_EQ(rss.kind, HARP_RSS_TOEPLITZ);
	CHECK_EQ(rss.table_count, 128);
	CHECK_EQ(rss.table[127], 127 % 3);
	CHECK_EQ(rss.key_bytes, 40);
	CHECK_MEM(rss.key, published_key, 40);
	CHECK_EQ(harp_rss_parse("toeplitz:" PUBLISHED_TEXT "aAbB:3,0,2", 4, &rss), 0);
	CHECK_EQ(rss.key_bytes, 42);
	CHECK_EQ(rss.key[40], 0xaa);
	CHECK_EQ(rss.key[41], 0xbb);
	CHECK_EQ(rss.table_count, 3);
	CHECK_EQ(rss.table[0], 3);
	CHECK_EQ(rss.table[2], 2);
	/* One queue needs no rule. */
	CHECK_EQ(harp_rss_parse("unknown", 1, &rss), 0);
	CHECK_EQ(rss.kind, HARP_RSS_NONE);
	CHECK_EQ(harp_rss_parse("toeplitz:" PUBLISHED_TEXT, 0, &rss), 0);
	CHECK_EQ(rss.kind, HARP_RSS_NONE);
	CHECK_EQ(rss.queues, 1);
}

TEST(invalid_rules_are_refused)
{
	static const char *const texts[] = {
		"",
		"Unknown",
		"unknown ",
		"toeplitz",
		"toeplitz:",
		"toeplitz:6d5a",
		"toeplitz:" PUBLISHED_TEXT "a",
		"toeplitz:" PUBLISHED_TEXT "xy",
		"toeplitz:" PUBLISHED_TEXT ":",
		"toeplitz:" PUBLISHED_TEXT ":8",
		"toeplitz:" PUBLISHED_TEXT ":-1",
		"toeplitz:" PUBLISHED_TEXT ":0,",
		"toeplitz:" PUBLISHED_TEXT ":0,,1",
		"toeplitz:" PUBLISHED_TEXT ": 1",
		"toeplitz:" PUBLISHED_TEXT ":1x",
		"toeplitz:" PUBLISHED_TEXT ":0:1",
		"toeplitz:" PUBLISHED_TEXT PUBLISHED_TEXT,
		"toeplitz:" PUBLISHED_TEXT ":99999999999999999999999",
	};
	char long_table[4096] = "toeplitz:" PUBLISHED_TEXT ":0";
	struct harp_rss rss;

	for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		CHECK_EQ(harp_rss_parse(texts[i], 8, &rss), -EINVAL);
		CHECK_EQ(rss.table_count, 0);
	}
	for (unsigned i = 1; i < HARP_RSS_TABLE_MAX; i++)
		strcat(long_table, ",7");
	CHECK_EQ(harp_rss_parse(long_table, 8, &rss), 0);
	CHECK_EQ(rss.table_count, HARP_RSS_TABLE_MAX);
	strcat(long_table, ",7");
	CHECK_EQ(harp_rss_parse(long_table, 8, &rss), -EINVAL);
}
