/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow.h - the flow table: maps a 4-tuple to a connection.
 *
 * Open addressing with linear probing and twice as many slots as connections. The key is hashed
 * with SipHash, so a peer that chooses addresses and ports cannot create long chains. A slot holds
 * the hash and the connection's index: a lookup touches one cache line of the table and, on a hit,
 * the connection.
 *
 * A small direct-mapped cache of recent flows is searched first, since busy flows receive many
 * segments together. Its index function is not secret; a peer that forces a collision there only
 * causes the regular lookup.
 */
#ifndef HARP_TRANSPORT_FLOW_H
#define HARP_TRANSPORT_FLOW_H

#include <stdbool.h>

#include "base/siphash.h"
#include "harp.h"

/* Hashed and compared as bytes, so there is no padding. */
struct flow_key {
	struct harp_addr local, remote;
	uint16_t local_port, remote_port;
};

#define FLOW_NONE UINT32_MAX

struct flow_slot {
	uint32_t hash;
	uint32_t index; /* FLOW_NONE: empty */
};

#define FLOW_RECENT 64u
struct flow_recent {
	struct flow_key key;
	uint32_t index; /* FLOW_NONE: empty */
};

/* True if connection `index` has this key. The table itself stores no keys. */
typedef bool (*flow_match_fn)(const void *ctx, uint32_t index, const struct flow_key *key);

struct flow_table {
	struct flow_slot *slots;
	uint32_t mask;
	uint32_t count;
	struct flow_recent recent[FLOW_RECENT];
	struct siphash_key secret;
	flow_match_fn match;
	const void *match_ctx;
};

int flow_init(struct flow_table *table, uint32_t max_flows, const struct siphash_key *secret,
	      flow_match_fn match, const void *match_ctx);
void flow_destroy(struct flow_table *table);
/* Returns the index, or FLOW_NONE. */
uint32_t flow_find(struct flow_table *table, const struct flow_key *key);
/* Requires that the key is absent and that fewer than max_flows are in the table. */
void flow_insert(struct flow_table *table, const struct flow_key *key, uint32_t index);
void flow_remove(struct flow_table *table, const struct flow_key *key, uint32_t index);

#endif
