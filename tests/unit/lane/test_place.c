/* SPDX-License-Identifier: Apache-2.0 */
/* test_place.c - received payload is written exactly, in whole units, and only bytes of incomplete
 * units are held back. */
#include "lane/place.h"

#include "base/rng.h"
#include "check.h"

#define BUF_BYTES 4096u
#define GUARD 0xa5u

/* Writes random pieces at a random alignment, and checks the memory after each one. */
static void place_stream(uint64_t seed)
{
	static uint8_t src[BUF_BYTES], dst_mem[BUF_BYTES + 64] __attribute__((aligned(64)));
	size_t placed = 0, arrived = 0, len;
	struct rng rng;
	uint8_t *dst;

	rng_seed(&rng, seed);
	dst = dst_mem + 16 + rng_below(&rng, 16);
	len = 1 + rng_below(&rng, BUF_BYTES - 64);
	memset(dst_mem, GUARD, sizeof(dst_mem));
	for (size_t i = 0; i < len; i++)
		src[i] = (uint8_t)rng_below(&rng, 256);
	while (placed < len && !check_failures) {
		struct iovec pieces[8];
		size_t avail, commit, at = placed;
		int n = 0;

		arrived += 1 + rng_below(&rng, rng_below(&rng, 2) ? 12 : 700);
		if (arrived > len)
			arrived = len;
		avail = arrived - placed;
		commit = place_commit_bytes(dst + placed, len - placed, avail);
		CHECK(commit <= avail && avail - commit < 8);
		CHECK(commit == len - placed || ((uintptr_t)(dst + placed + commit) & 7) == 0 ||
		      commit == 0);
		while (n < 7 && at < arrived) {
			size_t take = 1 + rng_below(&rng, rng_below(&rng, 2) ? 9 : 400);

			if (take > arrived - at)
				take = arrived - at;
			pieces[n++] = (struct iovec){ src + at, take };
			at += take;
		}
		if (at < arrived)
			pieces[n++] = (struct iovec){ src + at, arrived - at };
		place_gather(dst + placed, commit, pieces, n);
		placed += commit;
		CHECK_MEM(dst, src, placed);
		CHECK(dst[placed] == GUARD && dst[-1] == GUARD);
	}
	if (check_failures)
		fprintf(stderr, "seed %" PRIu64 "\n", seed);
}

TEST(payload_is_written_exactly_in_whole_units)
{
	for (uint64_t seed = 1; seed <= 20000 && !check_failures; seed++)
		place_stream(seed);
}

TEST(bytes_of_incomplete_units_are_held_back)
{
	static uint64_t mem[4];
	uint8_t *p = (uint8_t *)mem;

	CHECK_EQ(place_commit_bytes(p, 16, 7), 0);
	CHECK_EQ(place_commit_bytes(p, 16, 8), 8);
	CHECK_EQ(place_commit_bytes(p, 16, 15), 8);
	CHECK_EQ(place_commit_bytes(p, 16, 16), 16);
	CHECK_EQ(place_commit_bytes(p, 3, 3), 3);      /* end of a short payload */
	CHECK_EQ(place_commit_bytes(p + 5, 16, 2), 0); /* inside the first unit */
	CHECK_EQ(place_commit_bytes(p + 5, 16, 4), 3); /* to the first boundary */
	CHECK_EQ(place_commit_bytes(p, 0, 0), 0);
}
