/* SPDX-License-Identifier: Apache-2.0 */
/* flow.c - the flow table: open addressing, deletion by shifting entries back (no tombstones). */
#include "transport/flow.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"

#define FLOW_RECENT_SHIFT 26u

static_assert(FLOW_RECENT == UINT64_C(1) << (32 - FLOW_RECENT_SHIFT), "the hash's upper bits");
static_assert(sizeof(struct flow_key) == 36, "hashed as bytes: no padding");

int flow_init(struct flow_table *table, uint32_t max_flows, const struct siphash_key *secret,
	      flow_match_fn match, const void *match_ctx)
{
	uint32_t size = 16;

	while (size < max_flows * 2u)
		size *= 2;
	table->slots = malloc(size * sizeof(*table->slots));
	if (!table->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < size; i++)
		table->slots[i] = (struct flow_slot){ .index = FLOW_NONE };
	for (uint32_t i = 0; i < FLOW_RECENT; i++)
		table->recent[i].index = FLOW_NONE;
	table->mask = size - 1;
	table->count = 0;
	table->secret = *secret;
	table->match = match;
	table->match_ctx = match_ctx;
	return 0;
}

void flow_destroy(struct flow_table *table)
{
	free(table->slots);
	table->slots = NULL;
}

static uint32_t flow_hash(const struct flow_table *table, const struct flow_key *key)
{
	return (uint32_t)siphash24(&table->secret, key, sizeof(*key));
}

static inline struct flow_recent *flow_recent(struct flow_table *table, const struct flow_key *key)
{
	uint32_t addr, ports = (uint32_t)key->local_port << 16 | key->remote_port;

	memcpy(&addr, key->remote.bytes + 12, sizeof(addr));
	/* Fibonacci hashing: the upper bits are well mixed. */
	return &table->recent[((addr + ports) * 0x9e3779b9u) >> FLOW_RECENT_SHIFT];
}

static uint32_t flow_search(const struct flow_table *table, const struct flow_key *key)
{
	uint32_t hash = flow_hash(table, key);

	for (uint32_t i = hash & table->mask;; i = (i + 1) & table->mask) {
		const struct flow_slot *slot = &table->slots[i];

		if (slot->index == FLOW_NONE)
			return FLOW_NONE;
		if (slot->hash == hash && table->match(table->match_ctx, slot->index, key))
			return slot->index;
	}
}

/* Compares by field: keys were often just written, and a load wider than the store would stall. */
static inline bool flow_key_equal(const struct flow_key *a, const struct flow_key *b)
{
	return a->remote_port == b->remote_port && a->local_port == b->local_port &&
	       addr_equal(&a->remote, &b->remote) && addr_equal(&a->local, &b->local);
}

uint32_t flow_find(struct flow_table *table, const struct flow_key *key)
{
	struct flow_recent *recent = flow_recent(table, key);

	if (recent->index != FLOW_NONE && flow_key_equal(&recent->key, key))
		return recent->index;

	uint32_t index = flow_search(table, key);

	if (index != FLOW_NONE)
		*recent = (struct flow_recent){ .key = *key, .index = index };
	return index;
}

void flow_insert(struct flow_table *table, const struct flow_key *key, uint32_t index)
{
	uint32_t hash = flow_hash(table, key);
	uint32_t i = hash & table->mask;

	assert(table->count <= table->mask / 2 + 1);
	while (table->slots[i].index != FLOW_NONE)
		i = (i + 1) & table->mask;
	table->slots[i] = (struct flow_slot){ .hash = hash, .index = index };
	table->count++;
}

void flow_remove(struct flow_table *table, const struct flow_key *key, uint32_t index)
{
	struct flow_recent *recent = flow_recent(table, key);
	uint32_t i = flow_hash(table, key) & table->mask;

	if (recent->index == index)
		recent->index = FLOW_NONE;
	while (table->slots[i].index != index) {
		assert(table->slots[i].index != FLOW_NONE);
		i = (i + 1) & table->mask;
	}
	/* Shifts back each later entry of the cluster that must not follow an empty slot. */
	for (uint32_t j = (i + 1) & table->mask; table->slots[j].index != FLOW_NONE;
	     j = (j + 1) & table->mask) {
		uint32_t home = table->slots[j].hash & table->mask;

		if (((j - home) & table->mask) >= ((j - i) & table->mask)) {
			table->slots[i] = table->slots[j];
			i = j;
		}
	}
	table->slots[i].index = FLOW_NONE;
	table->count--;
}
