/* SPDX-License-Identifier: Apache-2.0 */
/* siphash.c - SipHash-2-4, from "SipHash: a fast short-input PRF" (Aumasson, Bernstein 2012). */
#include "base/siphash.h"

#include "base/endian.h"

struct siphash_state {
	uint64_t v0, v1, v2, v3;
};

static inline uint64_t siphash_rotl(uint64_t x, unsigned bits)
{
	return x << bits | x >> (64 - bits);
}

/* Section 2.3, figure 2.1: SipRound. */
static inline void siphash_round(struct siphash_state *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = siphash_rotl(s->v1, 13) ^ s->v0;
	s->v3 = siphash_rotl(s->v3, 16) ^ s->v2;
	s->v0 = siphash_rotl(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = siphash_rotl(s->v1, 17) ^ s->v2;
	s->v3 = siphash_rotl(s->v3, 21) ^ s->v0;
	s->v2 = siphash_rotl(s->v2, 32);
}

static inline void siphash_block(struct siphash_state *s, uint64_t word)
{
	s->v3 ^= word;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= word;
}

uint64_t siphash24(const struct siphash_key *key, const void *data, size_t len)
{
	const uint8_t *p = data;
	struct siphash_state s = {
		.v0 = key->k[0] ^ 0x736f6d6570736575u,
		.v1 = key->k[1] ^ 0x646f72616e646f6du,
		.v2 = key->k[0] ^ 0x6c7967656e657261u,
		.v3 = key->k[1] ^ 0x7465646279746573u,
	};
	uint64_t last = (uint64_t)len << 56;

	for (size_t words = len / 8; words > 0; words--, p += 8)
		siphash_block(&s, le64_load(p));
	for (unsigned i = 0; i < (len & 7); i++)
		last |= (uint64_t)p[i] << (8 * i);
	siphash_block(&s, last);

	s.v2 ^= 0xff;
	for (int i = 0; i < 4; i++)
		siphash_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
