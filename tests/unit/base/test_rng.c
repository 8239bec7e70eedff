/* SPDX-License-Identifier: Apache-2.0 */
/* test_rng.c - splitmix64 and xoshiro256** against published outputs, and the bounds of rng_below. */
#include "base/rng.h"

#include "check.h"

/* splitmix64(seed 1234567), the test vector that its author publishes (Rosetta Code's list), fills the
 * state: 6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431. */
TEST(a_seed_fills_the_state)
{
	struct rng rng;

	rng_seed(&rng, 1234567);
	CHECK_EQ(rng.s[0], 6457827717110365317u);
	CHECK_EQ(rng.s[1], 3203168211198807973u);
	CHECK_EQ(rng.s[2], 9817491932198370423u);
	CHECK_EQ(rng.s[3], 4593380528125082431u);
}

/* The state 1, 2, 3, 4 gives these first outputs (rand_xoshiro's test, from the C reference). */
TEST(the_sequence_is_as_published)
{
	static const uint64_t want[] = {
		11520u,
		0u,
		1509978240u,
		1215971899390074240u,
		1216172134540287360u,
		607988272756665600u,
		16172922978634559625u,
		8476171486693032832u,
		10595114339597558777u,
		2904607092377533576u,
	};
	struct rng rng = { .s = { 1, 2, 3, 4 } };

	for (unsigned i = 0; i < 10; i++)
		CHECK_EQ(rng_u64(&rng), want[i]);
}

TEST(bounded_numbers_are_uniform)
{
	struct rng rng;
	unsigned count[7] = { 0 };

	rng_seed(&rng, 5);
	for (unsigned i = 0; i < 70000; i++) {
		uint32_t x = rng_below(&rng, 7);

		CHECK(x < 7);
		count[x < 7 ? x : 0]++;
	}
	for (unsigned i = 0; i < 7; i++) /* 10 standard deviations */
		CHECK(count[i] > 9000 && count[i] < 11000);
	CHECK_EQ(rng_below(&rng, 1), 0);
}
