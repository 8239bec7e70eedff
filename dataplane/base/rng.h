/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.h - random numbers (xoshiro256**), and the secrets of a stack.
 *
 * The numbers are not secret: some of them show on the wire, and from a few of them the others can be computed. So a
 * key is drawn from getrandom(), apart from the numbers and from other keys.
 */
#ifndef HARP_BASE_RNG_H
#define HARP_BASE_RNG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/siphash.h"

struct rng {
	uint64_t s[4];
	bool is_replayable; /* keys, too, come from the seed */
	int error;          /* -errno of getrandom(); the keys drawn since are worthless */
};
/* For simulators and tests: the same seed gives the same numbers and keys. */
void rng_seed(struct rng *rng, uint64_t seed);
/* Seeds it with getrandom(), from where rng_key() then has each key. Look at rng->error when all are drawn. */
void rng_seed_system(struct rng *rng);
/* A secret that nothing else tells anything about, unless the generator is replayable. */
struct siphash_key rng_key(struct rng *rng);
uint64_t rng_u64(struct rng *rng);
/* Uniform in [0, bound), bound > 0, without modulo bias that matters. */
uint32_t rng_below(struct rng *rng, uint32_t bound);

#endif
