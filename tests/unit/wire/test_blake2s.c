/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_blake2s.c - BLAKE2s against RFC 7693's own vectors, and others made with Python's hashlib:
 * hashlib.blake2s(bytes(i & 255 for i in range(n)), key=bytes(range(k)), digest_size=o)
 */
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

static const struct vector {
	size_t len, key_len, out_len;
	const char *hex;
} vectors[] = {
	{ 0, 32, 32, "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49" },
	{ 1, 32, 32, "40d15fee7c328830166ac3f918650f807e7e01e177258cdc0a39b11f598066f1" },
	{ 63, 32, 32, "c65382513f07460da39833cb666c5ed82e61b9e998f4b0c4287cee56c3cc9bcd" },
	{ 64, 32, 32, "8975b0577fd35566d750b362b0897a26c399136df07bababbde6203ff2954ed4" },
	{ 65, 32, 32, "21fe0ceb0052be7fb0f004187cacd7de67fa6eb0938d927677f2398c132317a8" },
	{ 127, 32, 32, "ddbfea75cc467882eb3483ce5e2e756a4f4701b76b445519e89f22d60fa86e06" },
	{ 128, 32, 32, "0c311f38c35a4fb90d651c289d486856cd1413df9b0677f53ece2cd9e477c60a" },
	{ 129, 32, 32, "46a73a8dd3e70f59d3942c01df599def783c9da82fd83222cd662b53dce7dbdf" },
	{ 255, 32, 32, "3fb735061abc519dfe979e54c1ee5bfad0a9d858b3315bad34bde999efd724dd" },
	{ 0, 0, 32, "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9" },
	{ 3, 0, 16, "c41561edb251df8f3c9523524d60a707" },
	{ 64, 0, 20, "68c18b80dd398444aa9fd4272ecfa8e71b31ee8a" },
	{ 128, 16, 32, "ad40caaba7d52b5e44a472da2ba8b9a727afc4983db5d9989dd93c464c9e384a" },
	{ 200, 16, 16, "b8d300fa7937e4d1e67c8468df4c9a43" },
	{ 1000, 1, 1, "0d" },
};

static void test_vectors(void)
{
	uint8_t data[1000], out[BLAKE2S_OUT_BYTES_MAX];
	char text[2 * BLAKE2S_OUT_BYTES_MAX + 1];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)i;
	for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
		const struct vector *v = &vectors[i];

		blake2s(out, v->out_len, data, v->key_len, data, v->len);
		to_hex(out, v->out_len, text);
		check(!strcmp(text, v->hex), v->hex);
	}
	/* RFC 7693 appendix B. */
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
	test_vectors();
	test_rfc_grand_hash();
	test_pieces();
	test_equal();
	return failures != 0;
}
