/* SPDX-License-Identifier: Apache-2.0 */
/* rng.c - xoshiro256** 1.0 (Blackman, Vigna 2018), seeded by splitmix64. */
#include "base/rng.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

static uint64_t rng_splitmix64(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

void rng_seed(struct rng *rng, uint64_t seed)
{
	/* splitmix64 never returns four consecutive zeros, the only invalid state of xoshiro. */
	for (int i = 0; i < 4; i++)
		rng->s[i] = rng_splitmix64(&seed);
	rng->is_replayable = true;
	rng->error = 0;
}

/* At most 256 bytes: getrandom() then returns all or fails, and only a signal before the pool is
 * initialized interrupts it. */
static void rng_system(struct rng *rng, void *out, size_t bytes)
{
	ssize_t got;

	do {
		got = getrandom(out, bytes, 0);
	} while (got < 0 && errno == EINTR);
	if (got == (ssize_t)bytes)
		return;
	memset(out, 0, bytes);
	rng->error = got < 0 ? -errno : -EIO;
}

void rng_seed_system(struct rng *rng)
{
	rng->is_replayable = false;
	rng->error = 0;
	rng_system(rng, rng->s, sizeof(rng->s));
}

struct siphash_key rng_key(struct rng *rng)
{
	struct siphash_key key;

	if (rng->is_replayable) {
		key.k[0] = rng_u64(rng);
		key.k[1] = rng_u64(rng);
	} else {
		rng_system(rng, &key, sizeof(key));
	}
	return key;
}

static inline uint64_t rng_rotl(uint64_t x, unsigned bits)
{
	return x << bits | x >> (64 - bits);
}

uint64_t rng_u64(struct rng *rng)
{
	uint64_t *s = rng->s;
	uint64_t result = rng_rotl(s[1] * 5, 7) * 9;
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rng_rotl(s[3], 45);
	return result;
}

uint32_t rng_below(struct rng *rng, uint32_t bound)
{
	/* The high half of the product: a bias of at most bound / 2^32, without a division. */
	return (uint32_t)((rng_u64(rng) >> 32) * bound >> 32);
}
