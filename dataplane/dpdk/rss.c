/* SPDX-License-Identifier: Apache-2.0 */
/* rss.c - the receive queue that a device chooses, if it reports how. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk/port.h"

/* The device's indirection table: entry i is the queue for hash i modulo its size. -errno. */
static int rss_table(const struct dpdk_port *port, struct harp_rss *out)
{
	uint32_t count = port->info.reta_size;
	struct rte_eth_rss_reta_entry64 groups[(HARP_RSS_TABLE_MAX + 63) / 64] = { 0 };
	int err;

	if (count == 0 || count > HARP_RSS_TABLE_MAX)
		return -ENOTSUP;
	for (uint32_t i = 0; i < count; i++)
		groups[i / 64].mask |= UINT64_C(1) << (i % 64);
	err = rte_eth_dev_rss_reta_query(port->id, groups, (uint16_t)count);
	if (err)
		return err;
	out->table_count = count;
	for (uint32_t i = 0; i < count; i++)
		out->table[i] = groups[i / 64].reta[i % 64];
	return 0;
}

int port_rss(const struct harp_dpdk_port *harp_port, struct harp_rss *out)
{
	const struct dpdk_port *port = (const struct dpdk_port *)harp_port;
	uint8_t key[HARP_RSS_KEY_MAX] = { 0 };
	struct rte_eth_rss_conf conf = { .rss_key = key, .rss_key_len = sizeof(key) };
	const uint64_t tcp = RTE_ETH_RSS_NONFRAG_IPV4_TCP | RTE_ETH_RSS_NONFRAG_IPV6_TCP;

	*out = (struct harp_rss){ .kind = HARP_RSS_NONE, .queues = port->queues };
	if (port->queues == 1)
		return 0;
	out->kind = HARP_RSS_UNKNOWN;
	if (port->info.hash_key_size < 40 || port->info.hash_key_size > sizeof(key) ||
	    rte_eth_dev_rss_hash_conf_get(port->id, &conf) != 0 || (conf.rss_hf & tcp) != tcp ||
	    rss_table(port, out) != 0)
		return 0;
	memcpy(out->key, key, sizeof(key));
	out->key_bytes = port->info.hash_key_size;
	out->kind = HARP_RSS_TOEPLITZ;
	return 0;
}
