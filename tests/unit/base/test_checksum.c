/* SPDX-License-Identifier: Apache-2.0 */
/* test_checksum.c - compares fast sums with RFC 1071's algorithm at all sizes and alignments. */
#include "base/checksum.h"

#include <stdlib.h>

#include "base/rng.h"
#include "check.h"

/* RFC 1071 section 4.1: adds big-endian 16-bit words; the result is in memory order. */
static uint16_t reference_sum(const uint8_t *p, size_t len, uint64_t sum)
{
	for (size_t i = 0; i < len; i += 2)
		sum += (uint64_t)(p[i] << 8 | (i + 1 < len ? p[i + 1] : 0));
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	uint8_t b[2] = { (uint8_t)(~sum >> 8), (uint8_t)~sum };
	uint16_t r;

	memcpy(&r, b, 2);
	return r;
}

/* 0x0000 and 0xffff are the same number in one's complement. */
static bool is_same(uint16_t a, uint16_t b)
{
	return a == b || (uint32_t)a + b == 0xffff;
}

static void test_size(struct rng *rng, size_t len, size_t at, size_t to)
{
	static uint8_t src[70000 + 64], dst[70000 + 128];
	uint64_t guard = rng_u64(rng);

	for (size_t i = 0; i < len; i++)
		src[at + i] = (uint8_t)(rng_below(rng, 4) ? rng_u64(rng) : 0xff);
	uint16_t want = reference_sum(src + at, len, 0);
	uint16_t got = csum_finish(csum_partial(src + at, len, 0));

	CHECK(is_same(got, want));
	memset(dst, 0xa5, to + 8);
	memcpy(dst + to + len, &guard, 8);
	got = csum_finish(csum_copy(dst + to, src + at, len, 0));
	CHECK(is_same(got, want));
	CHECK_MEM(dst + to, src + at, len);
	CHECK_MEM(dst + to + len, &guard, 8);
	for (size_t i = 0; i < to; i++)
		CHECK_EQ(dst[i], 0xa5);

	/* The sums of two pieces give the sum of the whole. */
	size_t cut = len ? rng_below(rng, (uint32_t)len + 1) : 0;
	uint32_t sum = csum_partial(src + at, cut, 0);

	sum = csum_append(sum, csum_partial(src + at + cut, len - cut, 0), cut);
	CHECK(is_same(csum_finish(sum), want));
	/* Pieces of even length may also be chained through the argument. */
	cut &= ~(size_t)1;
	sum = csum_partial(src + at + cut, len - cut, csum_partial(src + at, cut, 0));
	CHECK(is_same(csum_finish(sum), want));
	if (check_failures)
		fprintf(stderr, "len %zu at %zu to %zu cut %zu\n", len, at, to, cut);
}

TEST(known_sums_are_computed)
{
	/* RFC 1071 section 3: the words 0001 f203 f4f5 f6f7 sum to ddf2. */
	static const uint8_t bytes[] = { 0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7 };
	uint16_t sum = (uint16_t)~csum_finish(csum_partial(bytes, 8, 0));
	uint8_t b[2];

	memcpy(b, &sum, 2);
	CHECK_EQ(b[0], 0xdd);
	CHECK_EQ(b[1], 0xf2);
	CHECK_EQ(csum_finish(0), 0xffff);
	CHECK_EQ(csum_finish(0xffffffff), 0);
	CHECK_EQ(csum_add(0xffffffff, 1), 1);
	CHECK_EQ(csum_partial(bytes, 0, 42), 42);
}

/* A large buffer of the largest values. */
TEST(carries_are_added)
{
	size_t len = 1u << 22;
	uint8_t *p = malloc(len);

	memset(p, 0xff, len);
	CHECK_EQ(csum_finish(csum_partial(p, len, 0xffffffff)), 0);
	p[len - 1] = 0xfe;
	CHECK_EQ(csum_finish(csum_partial(p, len, 0)), reference_sum(p, len, 0));
	/* Up to this length, 32 bits hold the sum of all words. */
	for (len = 65534; len < 65540; len++)
		CHECK(is_same(csum_finish(csum_partial(p, len, 0)), reference_sum(p, len, 0)));
	free(p);
}

TEST(every_size_and_alignment_is_summed)
{
	struct rng rng;

	rng_seed(&rng, 1071);
	for (size_t len = 0; len < 300 && !check_failures; len++)
		for (size_t at = 0; at < 4; at++)
			test_size(&rng, len, at * 9, at * 5 + (len & 7));
	for (int i = 0; i < 300 && !check_failures; i++)
		test_size(&rng, rng_below(&rng, 70000), rng_below(&rng, 64), rng_below(&rng, 64));
}
