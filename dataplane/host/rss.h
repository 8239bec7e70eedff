/* SPDX-License-Identifier: Apache-2.0 */
/* rss.h - how a NIC spreads packets over its queues: from what its driver says to struct harp_rss. */
#ifndef HARP_HOST_RSS_H
#define HARP_HOST_RSS_H

#include <stdbool.h>
#include <stddef.h>

#include "harp_host.h"

/* What a driver says, in the numbers of linux/ethtool.h. */
struct rss_answers {
	uint32_t queues;               /* 0: it does not say */
	bool spreads;                  /* it says how it spreads: what follows is good */
	uint32_t function;             /* bits, of which RSS_FUNCTION_TOEPLITZ is one */
	uint32_t transform;            /* what it does to addresses and ports before; 0: nothing */
	uint32_t fields_v4, fields_v6; /* of TCP, bits RXH_...; 0: it does not say */
	const uint8_t *key;
	uint32_t key_bytes;
	const uint32_t *table;
	uint32_t table_count;
};
#define RSS_FUNCTION_TOEPLITZ 1u /* ETH_RSS_HASH_TOP of the kernel's own headers */

/* Toeplitz if that, and nothing else, is what the answers mean. */
void rss_decide(const struct rss_answers *answers, struct harp_rss *out);
/* The hash of the Microsoft RSS specification. The key has 4 bytes more than the input, at least. */
uint32_t rss_toeplitz(const uint8_t *key, const uint8_t *input, size_t len);

#endif
