/* SPDX-License-Identifier: Apache-2.0 */
/* coll_ring.h - ring all-reduce of a range by some ranks of a group. */
#ifndef HARP_COLL_RING_H
#define HARP_COLL_RING_H

#include "coll_impl.h"

/* A part of the range that is complete when act is done. */
struct ring_piece {
	size_t offset, count; /* elements from the start of the range */
	int act;
};

struct ring {
	struct harp_coll_request *op;
	const int *ranks; /* [position * stride]: the rank. NULL: ranks are 0 to count - 1 */
	int stride;
	int count, me;  /* ranks of the ring, and this rank's position */
	const char *in; /* may equal out */
	char *out;
	size_t elements;
	unsigned lane;
	int ready; /* act that completes the input; -1: it is complete */
	/* Result, in order of completion. The caller frees the array. */
	struct ring_piece *pieces;
	size_t pieces_count;
};

int ring_build(struct ring *ring);
/* Sets only `pieces`, without acts, for a rank outside the ring. */
int ring_layout(struct ring *ring);
/* Receives a block from rank `source` (-1: does not receive) into `out`, and sends it from `in` to
 * `count` ranks, in pieces. */
int relay_block(struct harp_coll_request *op, int source, char *out, const char *in, size_t bytes,
		const int *ranks, int count);

#endif
