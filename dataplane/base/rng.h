/* SPDX-License-Identifier: Apache-2.0 */
/* rng.h - a small seeded generator (xoshiro256**): replayable, not for secrets on a wire. */
#ifndef HARP_BASE_RNG_H
#define HARP_BASE_RNG_H

#include <stdint.h>

struct rng {
	uint64_t s[4];
};
void rng_seed(struct rng *rng, uint64_t seed);
uint64_t rng_u64(struct rng *rng);
/* Uniform in [0, bound), bound > 0, without modulo bias that matters. */
uint32_t rng_below(struct rng *rng, uint32_t bound);

#endif
