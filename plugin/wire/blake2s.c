/* SPDX-License-Identifier: Apache-2.0 */
/* blake2s.c - BLAKE2s as RFC 7693 defines it; section numbers are the RFC's. */
#include "wire/blake2s.h"

#include <assert.h>
#include <string.h>

#include "wire/record.h"

#define BLAKE2S_ROUNDS 10u

/* Section 2.6: the fractional parts of the square roots of the first eight primes. */
static const uint32_t blake2s_iv[8] = {
	0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
	0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u,
};

/* Section 2.7: the order in which each round takes the message words. */
static const uint8_t blake2s_sigma[BLAKE2S_ROUNDS][16] = {
	{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
	{ 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
	{ 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 },
	{ 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
	{ 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 },
	{ 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
	{ 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 },
	{ 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
	{ 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 },
	{ 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
};

static uint32_t blake2s_rotate_right(uint32_t value, unsigned bits)
{
	return value >> bits | value << (32u - bits);
}

/* Section 3.1: the mixing function G, with BLAKE2s's rotations of section 2.1. */
static void blake2s_mix(uint32_t v[16], unsigned a, unsigned b, unsigned c, unsigned d, uint32_t x,
			uint32_t y)
{
	v[a] += v[b] + x;
	v[d] = blake2s_rotate_right(v[d] ^ v[a], 16);
	v[c] += v[d];
	v[b] = blake2s_rotate_right(v[b] ^ v[c], 12);
	v[a] += v[b] + y;
	v[d] = blake2s_rotate_right(v[d] ^ v[a], 8);
	v[c] += v[d];
	v[b] = blake2s_rotate_right(v[b] ^ v[c], 7);
}

/* Section 3.2: the compression function F. hashed_bytes already counts this block. */
static void blake2s_compress(struct blake2s *state, bool last)
{
	uint32_t v[16], m[16];

	for (unsigned i = 0; i < 16; i++)
		m[i] = wire_get32(state->block + 4 * i);
	memcpy(v, state->h, sizeof(state->h));
	memcpy(v + 8, blake2s_iv, sizeof(blake2s_iv));
	v[12] ^= (uint32_t)state->hashed_bytes;
	v[13] ^= (uint32_t)(state->hashed_bytes >> 32);
	if (last)
		v[14] = ~v[14];
	for (unsigned round = 0; round < BLAKE2S_ROUNDS; round++) {
		const uint8_t *s = blake2s_sigma[round];

		blake2s_mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
		blake2s_mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
		blake2s_mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
		blake2s_mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
		blake2s_mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
		blake2s_mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
		blake2s_mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
		blake2s_mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
	}
	for (unsigned i = 0; i < 8; i++)
		state->h[i] ^= v[i] ^ v[i + 8];
}

void blake2s_init(struct blake2s *state, size_t out_len, const void *key, size_t key_len)
{
	assert(out_len >= 1 && out_len <= BLAKE2S_OUT_BYTES_MAX);
	assert(key_len <= BLAKE2S_KEY_BYTES_MAX);
	memset(state, 0, sizeof(*state));
	memcpy(state->h, blake2s_iv, sizeof(state->h));
	/* Section 2.5, the parameter block: depth 1, fanout 1, lengths of key and hash. */
	state->h[0] ^= 0x01010000u ^ (uint32_t)key_len << 8 ^ (uint32_t)out_len;
	state->out_bytes = (uint32_t)out_len;
	/* Section 3.3: a key is a first block of its own, padded with zeros. */
	if (key_len > 0) {
		memcpy(state->block, key, key_len);
		state->block_bytes = BLAKE2S_BLOCK_BYTES;
	}
}

void blake2s_update(struct blake2s *state, const void *data, size_t len)
{
	const uint8_t *bytes = data;

	while (len > 0) {
		size_t piece = BLAKE2S_BLOCK_BYTES - state->block_bytes;

		/* A full block is hashed only when more follows it. */
		if (piece == 0) {
			state->hashed_bytes += BLAKE2S_BLOCK_BYTES;
			blake2s_compress(state, false);
			state->block_bytes = 0;
			continue;
		}
		if (piece > len)
			piece = len;
		memcpy(state->block + state->block_bytes, bytes, piece);
		state->block_bytes += (uint32_t)piece;
		bytes += piece;
		len -= piece;
	}
}

void blake2s_final(struct blake2s *state, void *out)
{
	uint8_t *bytes = out;

	state->hashed_bytes += state->block_bytes;
	memset(state->block + state->block_bytes, 0, BLAKE2S_BLOCK_BYTES - state->block_bytes);
	blake2s_compress(state, true);
	for (unsigned i = 0; i < state->out_bytes; i++)
		bytes[i] = (uint8_t)(state->h[i / 4] >> 8 * (i % 4));
	explicit_bzero(state, sizeof(*state));
}

void blake2s(void *out, size_t out_len, const void *key, size_t key_len, const void *data,
	     size_t len)
{
	struct blake2s state;

	blake2s_init(&state, out_len, key, key_len);
	blake2s_update(&state, data, len);
	blake2s_final(&state, out);
}

bool blake2s_equal(const void *a, const void *b, size_t len)
{
	const volatile uint8_t *left = a, *right = b;
	uint8_t difference = 0;

	for (size_t i = 0; i < len; i++)
		difference |= (uint8_t)(left[i] ^ right[i]);
	return difference == 0;
}
