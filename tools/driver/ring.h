/* SPDX-License-Identifier: Apache-2.0 */
/* ring.h - ring all-reduce of float32 as an operation of the progress thread. */
#ifndef HARP_DRIVER_RING_H
#define HARP_DRIVER_RING_H

#include "play.h"

/* One channel's part of the array and where in it the ring is. */
struct ring_part {
	struct conn *send, *recv;
	const float *src;
	float *dst;
	size_t count;    /* elements of this channel */
	size_t base;     /* first element of the current round */
	size_t chunk;    /* elements per rank in this round */
	unsigned slices; /* messages per chunk */
	unsigned step;   /* 0 .. 2 * (ranks - 1) */
	unsigned slice;
	bool over;
};

struct ring_op {
	struct op op; /* first */
	struct play *play;
	const float *src;
	float *dst;
	size_t count;
	unsigned iterations; /* run back to back, as a stream of launches does */
	unsigned iteration;
	uint64_t *iteration_ns; /* may be NULL: end of each iteration, CLOCK_MONOTONIC */
	uint64_t start_ns;
	struct ring_part parts[PLAY_CHANNELS_MAX];
};

/* src == dst: with more than one iteration the sums are summed again. */
void ring_prepare(struct ring_op *ring, struct play *play, const float *src, float *dst,
		  size_t count, unsigned iterations, uint64_t *iteration_ns);

#endif
