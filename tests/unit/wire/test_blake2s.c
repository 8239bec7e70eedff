/* SPDX-License-Identifier: Apache-2.0 */
/* test_blake2s.c - BLAKE2s against RFC 7693's own vectors. */
#include "wire/blake2s.h"

#include <stdio.h>
#include <string.h>

static unsigned failures;

static void check(bool good, const char *what)
{
	if (!good) {
		fprintf(stderr, "FAIL: %s\n", what);
		failures++;
	}
}

static void to_hex(const uint8_t *bytes, size_t len, char *text)
{
	for (size_t i = 0; i < len; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* RFC 7693 appendix B. */
static void test_abc(void)
{
	uint8_t out[BLAKE2S_OUT_BYTES_MAX];
	char text[2 * BLAKE2S_OUT_BYTES_MAX + 1];

	blake2s(out, 32, NULL, 0, "abc", 3);
	to_hex(out, 32, text);
	check(!strcmp(text, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"),
	      "RFC 7693 appendix B: \"abc\"");
}

/* RFC 7693 appendix E: a deterministic sequence ... */
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

/* ... and the hash of the hashes of many lengths, plain and keyed. */
static void test_rfc_grand_hash(void)
{
	static const size_t out_lens[] = { 16, 20, 28, 32 };
	static const size_t in_lens[] = { 0, 3, 64, 65, 255, 1024 };
	uint8_t in[1024], key[32], out[32];
	char text[65];
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
	to_hex(out, 32, text);
	check(!strcmp(text, "6a411f08ce25adcdfb02aba641451cec53c598b24f4fc787fbdc88797f4c1dfe"),
	      "RFC 7693 appendix E: grand hash");
}

/* The same bytes in every cut give the same hash. */
static void test_pieces(void)
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
		if (memcmp(whole, cut, 32)) {
			check(false, "pieces give the hash of the whole");
			return;
		}
	}
}

static void test_equal(void)
{
	uint8_t a[32] = { 1, 2, 3 }, b[32] = { 1, 2, 3 };

	check(blake2s_equal(a, b, 32), "equal bytes are equal");
	check(blake2s_equal(a, b, 0), "nothing equals nothing");
	for (unsigned i = 0; i < 32; i++) {
		for (unsigned bit = 0; bit < 8; bit++) {
			b[i] ^= (uint8_t)(1u << bit);
			check(!blake2s_equal(a, b, 32), "one bit differs");
			b[i] ^= (uint8_t)(1u << bit);
		}
	}
}

int main(void)
{
	test_abc();
	test_rfc_grand_hash();
	test_pieces();
	test_equal();
	return failures != 0;
}
