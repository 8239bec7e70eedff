/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranges.c - ranges of bytes, compared with a bitmap. */
#include "comm/ranges.h"

#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "check.h"

static void test_ranges(void)
{
	enum { MAX = 40, UNITS = 64, MESSAGES = 3 };
	struct range table[MAX];
	struct ranges r = { .table = table, .max = MAX };
	uint64_t map[MESSAGES] = { 0 };
	struct rng rng;

	rng_seed(&rng, 7);
	for (unsigned i = 0; i < 100000; i++) {
		unsigned m = rng_below(&rng, MESSAGES), begin = rng_below(&rng, UNITS);
		unsigned len = 1 + rng_below(&rng, rng_below(&rng, 4) ? 3 : UNITS - begin);
		uint64_t bits;
		int want = 0;

		if (len > UNITS - begin)
			len = UNITS - begin;
		bits = (len == 64 ? ~0ull : (1ull << len) - 1) << begin;
		if ((map[m] & bits) == bits)
			want = 1;
		else if (map[m] & bits)
			want = -EPROTO;
		CHECK_EQ(ranges_have(&r, m, begin * 64, (begin + len) * 64), want);
		switch (ranges_add(&r, m, begin * 64, (begin + len) * 64)) {
		case 1:
			CHECK_EQ(want, 0);
			map[m] |= bits;
			break;
		case 0:
			CHECK_EQ(want, 1);
			break;
		case -EPROTO:
			CHECK_EQ(want, -EPROTO);
			break;
		default: /* full */
			CHECK_EQ(r.count, MAX);
			CHECK_EQ(want, 0);
		}
		CHECK_EQ(ranges_prefix(&r, m),
			 64ull * (map[m] == ~0ull ? 64u : (unsigned)__builtin_ctzll(~map[m])));
		if (!rng_below(&rng, 40)) { /* forgets older messages, too */
			ranges_forget(&r, m);
			memset(map, 0, (m + 1) * sizeof(*map));
		}
		if (check_failures)
			return;
	}
}

int main(void)
{
	test_ranges();
	return check_done();
}
