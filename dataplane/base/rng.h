/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.h - random numbers (xoshiro256**), and the secrets of a stack.
 *
 * The numbers are not secret: some appear on the wire, and a few reveal the generator's state. So
 * each key comes from getrandom() and is independent of the numbers and of other keys.
 */
#ifndef HARP_BASE_RNG_H
#define HARP_BASE_RNG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/siphash.h"

struct rng {
	uint64_t s[4];
	bool is_replayable; /* keys are derived from the seed, too */
	int error;          /* -errno of getrandom(); later keys are invalid */
};
/* For simulators and tests: the same seed gives the same numbers and keys. */
void rng_seed(struct rng *rng, uint64_t seed);
/* Seeds from getrandom(), which also provides each rng_key(). Check rng->error after drawing all
 * keys. */
void rng_seed_system(struct rng *rng);
/* An independent secret, unless the generator is replayable. */
struct siphash_key rng_key(struct rng *rng);
uint64_t rng_u64(struct rng *rng);
/* Uniform in [0, bound), bound > 0, with negligible modulo bias. */
uint32_t rng_below(struct rng *rng, uint32_t bound);

#endif
