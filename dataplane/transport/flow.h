/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flow.h - the flow table: which connection has this 4-tuple?
 *
 * Open addressing with linear probing, twice as many slots as connections, keyed by SipHash so that a
 * peer who picks addresses and ports can't make long chains. A slot holds the hash and the
 * connection's index: a look-up touches one line of the table and, on a hit, the connection.
 *
 * Before it is asked, the few flows that were looked up last are: of a busy one many segments come together.
 * Where in that array a flow lies is no secret; who makes two meet there makes both cost what any other does.
 */
#ifndef HARP_TRANSPORT_FLOW_H
#define HARP_TRANSPORT_FLOW_H

#include <stdbool.h>

#include "base/siphash.h"
#include "harp.h"

/* Laid out without padding: it is hashed and compared as bytes. */
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

/* Says whether the connection `index` has this key: the table holds no keys itself. */
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
/* The index, or FLOW_NONE. */
uint32_t flow_find(struct flow_table *table, const struct flow_key *key);
/* The caller knows that the key is not there and that fewer than max_flows are. */
void flow_insert(struct flow_table *table, const struct flow_key *key, uint32_t index);
void flow_remove(struct flow_table *table, const struct flow_key *key, uint32_t index);

#endif
