/* SPDX-License-Identifier: Apache-2.0 */
/* test_place.c - received payload is placed exactly, in whole units, and nothing is held back for
 * longer than its unit. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lane/place.h"

#define BUF_BYTES 4096u
#define GUARD 0xa5u

static int failures;

#define CHECK(cond, ...)                                                                           \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			failures++;                                                                \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                 \
			fprintf(stderr, __VA_ARGS__);                                              \
			fputc('\n', stderr);                                                       \
		}                                                                                  \
	} while (0)

static uint64_t rng_state;

static uint32_t rng_below(uint32_t bound)
{
	rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(rng_state >> 33) % bound;
}

/* Arrives in random pieces at a random alignment; what lies in memory is checked after each one. */
static void test_stream(uint64_t seed)
{
	static uint8_t src[BUF_BYTES], dst_mem[BUF_BYTES + 64] __attribute__((aligned(64)));
	uint32_t align = (rng_state = seed, rng_below(16)), len = 1 + rng_below(BUF_BYTES - 64);
	uint8_t *dst = dst_mem + 16 + align;
	size_t placed = 0, arrived = 0;

	memset(dst_mem, GUARD, sizeof(dst_mem));
	for (size_t i = 0; i < len; i++)
		src[i] = (uint8_t)rng_below(256);
	while (placed < len) {
		struct iovec pieces[8];
		size_t avail, commit, at = placed;
		int n = 0;

		arrived += 1 + rng_below(rng_below(2) ? 12 : 700);
		if (arrived > len)
			arrived = len;
		avail = arrived - placed;
		commit = place_commit_bytes(dst + placed, len - placed, avail);
		CHECK(commit <= avail, "seed %llu", (unsigned long long)seed);
		CHECK(avail - commit < 8, "seed %llu holds back %zu", (unsigned long long)seed,
		      avail - commit);
		CHECK(commit == len - placed || ((uintptr_t)(dst + placed + commit) & 7) == 0 ||
			      commit == 0,
		      "seed %llu ends inside a unit", (unsigned long long)seed);
		while (n < 7 && at < arrived) {
			size_t take = 1 + rng_below(rng_below(2) ? 9 : 400);

			if (take > arrived - at)
				take = arrived - at;
			pieces[n++] = (struct iovec){ src + at, take };
			at += take;
		}
		if (at < arrived)
			pieces[n++] = (struct iovec){ src + at, arrived - at };
		place_gather(dst + placed, commit, pieces, n);
		placed += commit;
		CHECK(!memcmp(dst, src, placed), "seed %llu differs before %zu",
		      (unsigned long long)seed, placed);
		CHECK(dst[placed] == GUARD, "seed %llu wrote behind %zu", (unsigned long long)seed,
		      placed);
		CHECK(dst[-1] == GUARD, "seed %llu wrote before the buffer",
		      (unsigned long long)seed);
	}
}

static void test_commit_limits(void)
{
	static uint64_t mem[4];
	uint8_t *p = (uint8_t *)mem;

	CHECK(place_commit_bytes(p, 16, 7) == 0, "half a unit");
	CHECK(place_commit_bytes(p, 16, 8) == 8, "one unit");
	CHECK(place_commit_bytes(p, 16, 15) == 8, "one and a half");
	CHECK(place_commit_bytes(p, 16, 16) == 16, "all");
	CHECK(place_commit_bytes(p, 3, 3) == 3, "a short payload's end");
	CHECK(place_commit_bytes(p + 5, 16, 2) == 0, "inside the first unit");
	CHECK(place_commit_bytes(p + 5, 16, 4) == 3, "to the first boundary");
	CHECK(place_commit_bytes(p, 0, 0) == 0, "nothing");
}

int main(void)
{
	test_commit_limits();
	for (uint64_t seed = 1; seed <= 20000 && !failures; seed++)
		test_stream(seed);
	return failures ? 1 : 0;
}
