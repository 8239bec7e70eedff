/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elements.h - scenarios as lists of elements, which are printed, parsed and shrunk generically.
 *
 * A scenario is a struct. An element (the world, a stack, an event) is a struct of 64-bit numbers
 * only, whose names and simple values come from an X-macro list: X(name, simple). `simple` is the
 * value that the shrinker tries first. SCN_KEEP: the shrinker does not change the field.
 * SCN_REF(kind): the field is the number of another element, renumbered when elements are removed.
 */
#ifndef HARP_TESTS_ELEMENTS_H
#define HARP_TESTS_ELEMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/rng.h"
#include "nic/wire.h"

#define SCN_KEEP UINT64_MAX
#define SCN_REF(kind) (UINT64_MAX - 1 - (kind)) /* kind: its index in scn_layout.kinds */
#define SCN_REFS_MAX 16u

#define SCN_MEMBER(name, simple) uint64_t name;
#define SCN_FIELD(name, simple) { #name, simple },

struct scn_field {
	const char *name;
	uint64_t simple;
};
/* One kind of element. */
struct scn_kind {
	const char *name;
	const struct scn_field *fields;
	unsigned field_count, max;
	size_t size, at; /* of an element; of the first one in the scenario */
	size_t count_at; /* of the count; 0: always one element */
};
struct scn_layout {
	const struct scn_kind *kinds; /* referenced kinds before those that refer to them */
	unsigned kind_count;
	size_t size; /* of the scenario */
	/* Checks references and values. Returns the problem, or NULL. */
	const char *(*check)(const void *scenario);
	/* A remark that is printed behind an element, or NULL. */
	const char *(*remark)(const struct scn_kind *kind, const uint64_t *values);
};

#define SCN_KIND(type, word, list, limit, first, number)                                           \
	{                                                                                          \
		.name = word, .fields = list, .field_count = sizeof(list) / sizeof(list[0]),       \
		.max = limit, .size = sizeof(list) / sizeof(list[0]) * sizeof(uint64_t),           \
		.at = offsetof(type, first), .count_at = number                                    \
	}

static inline uint64_t *scn_element(void *scenario, const struct scn_kind *kind, unsigned index)
{
	return (uint64_t *)(void *)((char *)scenario + kind->at + index * kind->size);
}
static inline unsigned *scn_count(void *scenario, const struct scn_kind *kind)
{
	return kind->count_at ? (unsigned *)(void *)((char *)scenario + kind->count_at) : NULL;
}

/* Prints one line per element, with the fields that are not zero. */
void elements_print(const struct scn_layout *layout, const void *scenario, FILE *to);
/* Parses that text. False: `why` has the line and the problem. */
bool elements_read(const struct scn_layout *layout, void *scenario, FILE *from, char *why,
		   size_t why_len);

/*
 * Makes a scenario smaller while fails() returns true: fewer elements, then simpler numbers.
 * Returns the number of scenarios that it tried.
 */
unsigned elements_shrink(const struct scn_layout *layout, void *scenario,
			 bool (*fails)(const void *scenario), unsigned tries_max);

/* ---- random draws: one generator, so that a seed is a scenario ------------------------------- */

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

/* Draws one of the values. */
#define PICK(rng, ...)                                                                             \
	((const uint64_t[]){ __VA_ARGS__ }[below(rng, sizeof((const uint64_t[]){ __VA_ARGS__ }) /  \
							      sizeof(uint64_t))])

/* ---- a wire's impairments as fields of elements ---------------------------------------------- */

#define SCN_IMPAIR(X)                                                                              \
	X(delay_ns, 1000)                                                                          \
	X(jitter_ns, 0)                                                                            \
	X(rate_bps, 0)                                                                             \
	X(queue_bytes, 0)                                                                          \
	X(loss_ppm, 0)                                                                             \
	X(duplicate_ppm, 0)                                                                        \
	X(reorder_ppm, 0)                                                                          \
	X(reorder_ns, 0)                                                                           \
	X(corrupt_ppm, 0)

struct scn_impair {
	SCN_IMPAIR(SCN_MEMBER)
};

static inline struct harp_wire_impair scn_impair_wire(const struct scn_impair *i)
{
	return (struct harp_wire_impair){
		.delay_ns = i->delay_ns,
		.jitter_ns = i->jitter_ns,
		.rate_bps = i->rate_bps,
		.queue_bytes = i->queue_bytes,
		.loss_ppm = (uint32_t)i->loss_ppm,
		.duplicate_ppm = (uint32_t)i->duplicate_ppm,
		.reorder_ppm = (uint32_t)i->reorder_ppm,
		.reorder_ns = i->reorder_ns,
		.corrupt_ppm = (uint32_t)i->corrupt_ppm,
	};
}

#endif
