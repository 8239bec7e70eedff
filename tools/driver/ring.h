/* SPDX-License-Identifier: Apache-2.0 */
/* ring.h - ring all-reduce of float32 as an operation of the progress thread. */
#ifndef HARP_DRIVER_RING_H
#define HARP_DRIVER_RING_H

#include "play.h"

/* One channel's part of the array, and the progress in it. */
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
	bool done;
};

struct ring_op {
	struct op op; /* first member */
	struct play *play;
	const float *src;
	float *dst;
	size_t count;
	unsigned iterations; /* run back to back, like launches on a CUDA stream */
	unsigned iteration;
	uint64_t *iteration_ns; /* end of each iteration, CLOCK_MONOTONIC; may be NULL */
	uint64_t start_ns;
	struct ring_part parts[PLAY_CHANNELS_MAX];
};

/* If src == dst, each iteration sums the result of the previous one. */
void ring_prepare(struct ring_op *ring, struct play *play, const float *src, float *dst,
		  size_t count, unsigned iterations, uint64_t *iteration_ns);

#endif
