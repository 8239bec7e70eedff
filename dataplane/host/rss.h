/* SPDX-License-Identifier: Apache-2.0 */
/* rss.h - converts a driver's answers about receive side scaling to a struct harp_rss. */
#ifndef HARP_HOST_RSS_H
#define HARP_HOST_RSS_H

#include <stdbool.h>
#include <stddef.h>

#include "harp_host.h"

/* The driver's answers, with the constants of linux/ethtool.h. */
struct rss_answers {
	uint32_t queues;               /* 0: not reported */
	bool spreads;                  /* reported: the following fields are valid */
	uint32_t function;             /* RSS_FUNCTION_TOEPLITZ, or others */
	uint32_t transform;            /* of addresses and ports before hashing; 0: none */
	uint32_t fields_v4, fields_v6; /* for TCP, RXH_... bits; 0: not reported */
	const uint8_t *key;
	uint32_t key_bytes;
	const uint32_t *table;
	uint32_t table_count;
};
#define RSS_FUNCTION_TOEPLITZ 1u /* ETH_RSS_HASH_TOP of the kernel's own headers */

/* Sets Toeplitz only if the answers allow no other interpretation. */
void rss_from_answers(const struct rss_answers *answers, struct harp_rss *out);
/* Toeplitz hash of the Microsoft RSS specification. The key must be at least 4 bytes longer than
 * the input. */
uint32_t rss_toeplitz(const uint8_t *key, const uint8_t *input, size_t len);

#endif
