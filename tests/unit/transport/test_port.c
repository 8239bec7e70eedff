/* SPDX-License-Identifier: Apache-2.0 */
/* test_port.c - local ports (reference counts, owner hooks, choice of a port) and the flow
 * table. */
#include <errno.h>

#include "base/rng.h"
#include "check.h"
#include "transport/flow.h"
#include "transport/port.h"

struct owner {
	unsigned acquired, released;
	uint16_t refused; /* 0: none */
};

static int acquire(void *ctx, uint8_t protocol, uint16_t port)
{
	struct owner *owner = ctx;

	if (port == owner->refused)
		return -EADDRINUSE;
	owner->acquired++;
	return 0;
}

static void release(void *ctx, uint8_t protocol, uint16_t port)
{
	struct owner *owner = ctx;

	owner->released++;
}

static bool can_share(void *ctx, uint16_t port)
{
	return port == 61001;
}

/* ---- The owner has no descriptor left for a port --------------------------------------------- */

static int acquire_without_descriptor(void *ctx, uint8_t protocol, uint16_t port)
{
	++*(unsigned *)ctx;
	return -EMFILE;
}

TEST(a_port_owner_without_descriptors_is_called_once)
{
	unsigned calls = 0;
	struct harp_stack_options opt = {
		.port_min = 61000,
		.port_max = 61999,
		.hooks = { .ctx = &calls, .port_acquire = acquire_without_descriptor },
	};
	struct port_table table;
	struct rng rng;

	rng_seed(&rng, 1);
	CHECK_EQ(port_init(&table, 6, &opt, &rng), 0);
	CHECK_EQ(port_choose(&table, NULL, NULL, NULL), -EMFILE);
	CHECK_EQ(calls, 1);
	CHECK_EQ(port_get(&table, 61002), -EMFILE);
	port_destroy(&table);
}

/* ---- RFC 6056 -------------------------------------------------------------------------------- */

static struct flow_key peer_key(uint32_t peer)
{
	return (struct flow_key){ .local = harp_addr_v4(10, 0, 0, 1),
				  .remote = harp_addr_v4(10, (uint8_t)(peer >> 16),
							 (uint8_t)(peer >> 8), (uint8_t)peer),
				  .remote_port = 5000 };
}

static uint16_t choose_for(struct port_table *table, uint32_t peer)
{
	struct flow_key key = peer_key(peer);
	int port = port_choose(table, &key, NULL, NULL);

	port_put(table, (uint16_t)port);
	return (uint16_t)port;
}

static bool count_call(void *ctx, uint16_t port)
{
	(void)port;
	++*(unsigned *)ctx;
	return true;
}

/* All ports are used and can be shared: the first candidate is chosen without a search. */
TEST(a_full_range_is_not_searched)
{
	struct harp_stack_options opt = { .port_min = 61000, .port_max = 65535 };
	struct port_table table;
	struct rng rng;

	rng_seed(&rng, 1);
	CHECK_EQ(port_init(&table, 6, &opt, &rng), 0);
	for (uint32_t port = opt.port_min; port <= opt.port_max; port++)
		CHECK_EQ(port_get(&table, (uint16_t)port), 0);
	for (uint32_t peer = 0; peer < 100; peer++) {
		struct flow_key key = peer_key(peer);
		unsigned calls = 0;

		CHECK(port_choose(&table, &key, count_call, &calls) > 0);
		CHECK_EQ(calls, 1);
	}
	port_destroy(&table);
}

static void open_table(struct port_table *table, uint64_t seed)
{
	static const struct harp_stack_options options = { .port_min = 61000,
							   .port_max = 65095 }; /* 4096 */
	const struct harp_stack_options *opt = &options;
	struct rng rng;

	rng_seed(&rng, seed);
	CHECK_EQ(port_init(table, 6, opt, &rng), 0);
}

/* Chi-square test over 64 equal parts of the range. With 63 degrees of freedom, 1 in 1000 uniform
 * samples exceeds 103.4; the seed is fixed. */
static void check_even(const uint32_t parts[64], uint32_t draws)
{
	double want = draws / 64.0, chi_square = 0;

	for (unsigned i = 0; i < 64; i++)
		chi_square += (parts[i] - want) * (parts[i] - want) / want;
	CHECK(chi_square < 103.4);
}

TEST(ports_are_spread_evenly)
{
	uint32_t by_peer[64] = { 0 }, by_listener[64] = { 0 };
	struct port_table table;

	open_table(&table, 6056);
	for (uint32_t peer = 0; peer < 64000; peer++) {
		int port = port_choose(&table, NULL, NULL, NULL);

		port_put(&table, (uint16_t)port);
		by_listener[(port - 61000) / 64]++;
		by_peer[(choose_for(&table, peer) - 61000) / 64]++;
	}
	check_even(by_peer, 64000);
	check_even(by_listener, 64000);
	port_destroy(&table);
}

TEST(a_port_does_not_reveal_the_next_port_to_another_remote)
{
	unsigned hits = 0;

	/* The attacker knows the port of its own connection and guesses the next 8 ports. */
	for (uint64_t seed = 0; seed < 4000; seed++) {
		struct port_table table;
		uint16_t attacker_port, victim_port;

		open_table(&table, seed);
		attacker_port = choose_for(&table, 1);
		victim_port = choose_for(&table, 2);
		hits += (uint16_t)(victim_port - attacker_port - 1) < 8;
		port_destroy(&table);
	}
	CHECK(hits >= 1 && hits <= 20); /* by chance: 4000 * 8 / 4096 */
}

TEST(a_remote_gets_other_ports_before_one_is_reused)
{
	struct port_table table;
	bool is_used[4096] = { false };
	unsigned repeats = 0;

	open_table(&table, 7);
	for (unsigned i = 0; i < 512; i++) { /* 512 steps of at most 8: once around */
		uint16_t port = choose_for(&table, 1);

		repeats += is_used[port - 61000];
		is_used[port - 61000] = true;
	}
	CHECK_EQ(repeats, 0);
	port_destroy(&table);
}

TEST(the_owner_is_called_for_the_first_and_the_last_user_of_a_port)
{
	struct owner owner = { .refused = 61002 };
	struct harp_stack_options opt = {
		.port_min = 61000,
		.port_max = 61003,
		.hooks = { .ctx = &owner, .port_acquire = acquire, .port_release = release },
	};
	struct port_table table;
	struct rng rng;
	bool is_used[4] = { false };

	rng_seed(&rng, 7);
	CHECK_EQ(port_init(&table, 17, &opt, &rng), 0);

	CHECK_EQ(port_get(&table, 80), 0);
	CHECK_EQ(port_get(&table, 80), 0);
	CHECK_EQ(owner.acquired, 1);
	port_put(&table, 80);
	CHECK(port_used(&table, 80));
	CHECK_EQ(owner.released, 0);
	port_put(&table, 80);
	CHECK(!port_used(&table, 80));
	CHECK_EQ(owner.released, 1);
	CHECK_EQ(port_get(&table, 61002), -EADDRINUSE);

	/* Each port of the range except the refused one is chosen once; then none is left. */
	for (unsigned i = 0; i < 3; i++) {
		int port = port_choose(&table, NULL, NULL, NULL);

		CHECK(port >= 61000 && port <= 61003 && port != 61002 && !is_used[port - 61000]);
		if (port >= 61000 && port <= 61003)
			is_used[port - 61000] = true;
	}
	CHECK_EQ(port_choose(&table, NULL, NULL, NULL), -EADDRINUSE);
	/* A port is shared if the 4-tuples differ. */
	CHECK_EQ(port_choose(&table, NULL, can_share, NULL), 61001);
	CHECK_EQ(table.users[61001], 2);
	port_destroy(&table);
	CHECK_EQ(owner.released, owner.acquired); /* port_destroy() releases the ports in use */
}

/* ---- the flow table -------------------------------------------------------------------------- */

#define FLOWS 200u

static struct flow_key keys[FLOWS];
static bool is_present[FLOWS];

static bool match(const void *ctx, uint32_t index, const struct flow_key *key)
{
	return memcmp(&keys[index], key, sizeof(*key)) == 0;
}

/* 4-tuples that differ in one bit are different flows. */
static void test_against_array(uint64_t seed, uint32_t max_flows)
{
	struct siphash_key secret = { .k = { seed, ~seed } };
	struct flow_table table;
	struct rng rng;
	uint32_t count = 0;

	rng_seed(&rng, seed);
	memset(is_present, 0, sizeof(is_present));
	CHECK_EQ(flow_init(&table, max_flows, &secret, match, NULL), 0);
	for (uint32_t i = 0; i < FLOWS; i++) {
		keys[i] = (struct flow_key){ .local = harp_addr_v4(10, 0, 0, 1),
					     .remote = harp_addr_v4(10, 0, 0, (uint8_t)(i / 4)),
					     .local_port = 61000,
					     .remote_port = (uint16_t)(5000 + i % 4) };
	}
	for (unsigned step = 0; step < 20000; step++) {
		uint32_t i = rng_below(&rng, FLOWS);

		CHECK_EQ(flow_find(&table, &keys[i]), is_present[i] ? i : FLOW_NONE);
		if (is_present[i] && rng_below(&rng, 2)) {
			flow_remove(&table, &keys[i], i);
			is_present[i] = false;
			count--;
		} else if (!is_present[i] && count < max_flows) {
			flow_insert(&table, &keys[i], i);
			is_present[i] = true;
			count++;
		}
		CHECK_EQ(table.count, count);
	}
	for (uint32_t i = 0; i < FLOWS; i++)
		CHECK_EQ(flow_find(&table, &keys[i]), is_present[i] ? i : FLOW_NONE);
	flow_destroy(&table);
}

TEST(the_flow_table_agrees_with_an_array)
{
	test_against_array(1, FLOWS);
	test_against_array(2, FLOWS); /* another secret, another order of slots */
	test_against_array(3, 20);
	test_against_array(4, 1);
}
