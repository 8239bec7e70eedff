/* SPDX-License-Identifier: Apache-2.0 */
/* test_rss.c - the RSS rule of a device from complete, incomplete and invalid reports. */
#include <errno.h>

#include "check.h"
#include "dpdk/port.h"

#define TCP (RTE_ETH_RSS_NONFRAG_IPV4_TCP | RTE_ETH_RSS_NONFRAG_IPV6_TCP)

/* The key of the verification suite (Microsoft, "Verifying the RSS Hash Calculation"). */
static const uint8_t suite_key[40] = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
	0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
	0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};

static struct device {
	uint8_t key_bytes;
	uint16_t queues, table_count;
	uint64_t hashes;
	int conf_err, table_err;
} device;

int rte_eth_dev_rss_hash_conf_get(uint16_t id, struct rte_eth_rss_conf *conf)
{
	CHECK_EQ(id, 5);
	CHECK(conf->rss_key && conf->rss_key_len >= device.key_bytes);
	if (device.conf_err)
		return device.conf_err;
	memset(conf->rss_key, 0x5e, device.key_bytes);
	memcpy(conf->rss_key, suite_key, sizeof(suite_key));
	conf->rss_key_len = device.key_bytes;
	conf->rss_hf = device.hashes;
	return 0;
}

/* The queue in entry i of the table. */
static uint16_t entry(unsigned i)
{
	return (uint16_t)((i * 7 + i / 64) % device.queues);
}

int rte_eth_dev_rss_reta_query(uint16_t id, struct rte_eth_rss_reta_entry64 *groups, uint16_t size)
{
	CHECK_EQ(id, 5);
	CHECK_EQ(size, device.table_count);
	if (device.table_err)
		return device.table_err;
	for (unsigned i = 0; i < size; i++)
		if (groups[i / 64].mask & UINT64_C(1) << (i % 64))
			groups[i / 64].reta[i % 64] = entry(i);
		else
			groups[i / 64].reta[i % 64] = UINT16_MAX;
	return 0;
}

static struct harp_rss read_rss(struct device report)
{
	struct dpdk_port port = { .id = 5, .queues = report.queues };
	struct harp_rss rss;

	device = report;
	port.info.hash_key_size = report.key_bytes;
	port.info.reta_size = report.table_count;
	memset(&rss, 0x77, sizeof(rss));
	CHECK_EQ(port_rss((const struct harp_dpdk_port *)&port, &rss), 0);
	CHECK_EQ(rss.queues, report.queues);
	return rss;
}

TEST(a_reported_table_is_used)
{
	static const uint16_t counts[] = { 1, 64, 100, 128, HARP_RSS_TABLE_MAX };

	for (unsigned n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
		struct harp_rss rss = read_rss((struct device){
			.key_bytes = 40, .queues = 8, .table_count = counts[n], .hashes = TCP });

		CHECK_EQ(rss.kind, HARP_RSS_TOEPLITZ);
		CHECK_EQ(rss.key_bytes, 40);
		CHECK_MEM(rss.key, suite_key, 40);
		CHECK_EQ(rss.table_count, counts[n]);
		for (unsigned i = 0; i < counts[n]; i++)
			CHECK_EQ(rss.table[i], entry(i));
	}
}

/* Queue of a packet of the verification suite. The longer key does not change its hash. */
TEST(a_published_packet_has_its_queue)
{
	struct harp_rss rss = read_rss((struct device){ .key_bytes = HARP_RSS_KEY_MAX,
							.queues = 8,
							.table_count = 128,
							.hashes = TCP | RTE_ETH_RSS_IPV4 });
	const struct harp_endpoint from = { .addr = harp_addr_v4(66, 9, 149, 187), .port = 2794 };
	const struct harp_endpoint to = { .addr = harp_addr_v4(161, 142, 100, 80), .port = 1766 };

	CHECK_EQ(rss.kind, HARP_RSS_TOEPLITZ);
	CHECK_EQ(rss.key_bytes, HARP_RSS_KEY_MAX);
	CHECK_EQ(harp_rss_queue(&rss, &from, &to), entry(0x51ccc178 % 128));
}

/* With several queues, the rule is unknown if the report is incomplete. */
TEST(an_incomplete_report_is_unknown)
{
	const struct device good = {
		.key_bytes = 40, .queues = 4, .table_count = 128, .hashes = TCP
	};
	struct device bad[9];

	for (unsigned i = 0; i < 9; i++)
		bad[i] = good;
	bad[0].key_bytes = 0;
	bad[1].key_bytes = 39;
	bad[2].key_bytes = HARP_RSS_KEY_MAX + 1;
	bad[3].conf_err = -ENOTSUP;
	bad[4].hashes = RTE_ETH_RSS_NONFRAG_IPV4_TCP; /* not for IPv6 */
	bad[5].hashes = RTE_ETH_RSS_IP;
	bad[6].table_count = 0;
	bad[7].table_count = HARP_RSS_TABLE_MAX + 1;
	bad[8].table_err = -EIO;
	for (unsigned i = 0; i < 9; i++)
		CHECK_EQ(read_rss(bad[i]).kind, HARP_RSS_UNKNOWN);
	CHECK_EQ(read_rss(good).kind, HARP_RSS_TOEPLITZ);
}

/* With one queue the report does not matter. */
TEST(one_queue_needs_no_rule)
{
	CHECK_EQ(read_rss((struct device){ .queues = 1 }).kind, HARP_RSS_NONE);
	CHECK_EQ(read_rss((struct device){
				  .key_bytes = 40, .queues = 1, .table_count = 128, .hashes = TCP })
			 .kind,
		 HARP_RSS_NONE);
}
