/* SPDX-License-Identifier: Apache-2.0 */
/* pick.h - how the makers of scenarios draw: all from one generator, so that a seed is a scenario. */
#ifndef PICK_H
#define PICK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"

/* Uniform in [0, bound); 0 if bound is 0. */
static inline uint32_t below(struct rng *rng, uint64_t bound)
{
	return bound ? rng_below(rng, (uint32_t)bound) : 0;
}

static inline uint64_t below64(struct rng *rng, uint64_t bound)
{
	return bound ? rng_u64(rng) % bound : 0;
}

static inline bool one_in(struct rng *rng, uint32_t n)
{
	return rng_below(rng, n) == 0;
}

/* One of the values. */
#define PICK(rng, ...)                                                                             \
	((const uint64_t[]){ __VA_ARGS__ }[below(rng, sizeof((const uint64_t[]){ __VA_ARGS__ }) /  \
							      sizeof(uint64_t))])

#endif
