/* SPDX-License-Identifier: Apache-2.0 */
/* test_blake2s.c - BLAKE2s against the test vectors of RFC 7693. */
#include "wire/blake2s.h"

#include "check.h"

static void check_hash(const uint8_t hash[32], const char *want)
{
	char text[65];

	for (size_t i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", hash[i]);
	CHECK_STR(text, want);
}

/* selftest_seq() of appendix E. */
static void rfc_sequence(uint8_t *out, size_t len, uint32_t seed)
{
	uint32_t a = 0xdead4badu * seed, b = 1;

	for (size_t i = 0; i < len; i++) {
		uint32_t t = a + b;

		a = b;
		b = t;
		out[i] = (uint8_t)(t >> 24);
	}
}

TEST(abc_has_the_hash_of_appendix_B)
{
	uint8_t out[32];

	blake2s(out, 32, NULL, 0, "abc", 3);
	check_hash(out, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
}

/* Hashes of many lengths, with and without key. */
TEST(the_self_test_of_appendix_E_passes)
{
	static const size_t out_lens[] = { 16, 20, 28, 32 };
	static const size_t in_lens[] = { 0, 3, 64, 65, 255, 1024 };
	uint8_t in[1024], key[32], out[32];
	struct blake2s all;

	blake2s_init(&all, 32, NULL, 0);
	for (unsigned o = 0; o < 4; o++) {
		for (unsigned i = 0; i < 6; i++) {
			rfc_sequence(in, in_lens[i], (uint32_t)in_lens[i]);
			blake2s(out, out_lens[o], NULL, 0, in, in_lens[i]);
			blake2s_update(&all, out, out_lens[o]);
			rfc_sequence(key, out_lens[o], (uint32_t)out_lens[o]);
			blake2s(out, out_lens[o], key, out_lens[o], in, in_lens[i]);
			blake2s_update(&all, out, out_lens[o]);
		}
	}
	blake2s_final(&all, out);
	check_hash(out, "6a411f08ce25adcdfb02aba641451cec53c598b24f4fc787fbdc88797f4c1dfe");
}

TEST(the_hash_of_pieces_equals_the_hash_of_the_whole)
{
	uint8_t data[300], whole[32], cut[32];
	struct blake2s state;

	rfc_sequence(data, sizeof(data), 7);
	blake2s(whole, 32, data, 16, data, sizeof(data));
	for (size_t first = 0; first <= sizeof(data); first++) {
		blake2s_init(&state, 32, data, 16);
		blake2s_update(&state, data, first);
		blake2s_update(&state, data + first, 0);
		blake2s_update(&state, data + first, sizeof(data) - first);
		blake2s_final(&state, cut);
		CHECK_MEM(cut, whole, 32);
	}
}

TEST(blake2s_equal_detects_any_different_bit)
{
	uint8_t a[32] = { 1, 2, 3 }, b[32] = { 1, 2, 3 };

	CHECK(blake2s_equal(a, b, 32));
	for (unsigned bit = 0; bit < 256; bit++) {
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
		CHECK(!blake2s_equal(a, b, 32));
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}
