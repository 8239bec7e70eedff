/* SPDX-License-Identifier: Apache-2.0 */
/* test_flow.c - the flow table against a plain array, with random insertions and removals. */
#include "transport/flow.h"

#include "base/rng.h"
#include "check.h"

#define FLOWS 200u

static struct flow_key keys[FLOWS];
static bool present[FLOWS];

static bool match(const void *ctx, uint32_t index, const struct flow_key *key)
{
	return memcmp(&keys[index], key, sizeof(*key)) == 0;
}

/* The same 4-tuple but for one bit is another flow. */
static void test_against_array(uint64_t seed, uint32_t max_flows)
{
	struct siphash_key secret = { .k = { seed, ~seed } };
	struct flow_table table;
	struct rng rng;
	uint32_t count = 0;

	rng_seed(&rng, seed);
	memset(present, 0, sizeof(present));
	CHECK_EQ(flow_init(&table, max_flows, &secret, match, NULL), 0);
	for (uint32_t i = 0; i < FLOWS; i++) {
		keys[i] = (struct flow_key){ .local = harp_addr_v4(10, 0, 0, 1),
					     .remote = harp_addr_v4(10, 0, 0, (uint8_t)(i / 4)),
					     .local_port = 61000,
					     .remote_port = (uint16_t)(5000 + i % 4) };
	}
	for (unsigned step = 0; step < 20000; step++) {
		uint32_t i = rng_below(&rng, FLOWS);

		CHECK_EQ(flow_find(&table, &keys[i]), present[i] ? i : FLOW_NONE);
		if (present[i] && rng_below(&rng, 2)) {
			flow_remove(&table, &keys[i], i);
			present[i] = false;
			count--;
		} else if (!present[i] && count < max_flows) {
			flow_insert(&table, &keys[i], i);
			present[i] = true;
			count++;
		}
		CHECK_EQ(table.count, count);
	}
	for (uint32_t i = 0; i < FLOWS; i++)
		CHECK_EQ(flow_find(&table, &keys[i]), present[i] ? i : FLOW_NONE);
	flow_destroy(&table);
}

int main(void)
{
	test_against_array(1, FLOWS);
	test_against_array(2, FLOWS); /* another secret, another order of slots */
	test_against_array(3, 20);
	test_against_array(4, 1);
	return check_done();
}
