/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_lane.h - two lanes joined in memory: small pipes, arbitrary fragments, events on edges only.
 *
 * It behaves like HARP's lane at its worst: sends and receives are cut anywhere, acknowledgements
 * lag, and an event comes once when something changed, never again.
 */
#ifndef HARP_TESTS_FAKE_LANE_H
#define HARP_TESTS_FAKE_LANE_H

#include "base/rng.h"
#include "lane/lane.h"

struct fake_pipe {
	uint8_t *bytes;
	size_t capacity, begin, count;
	bool writer_waits; /* got -EAGAIN: wants to hear of room */
	bool closed;       /* FIN behind what is in it */
	uint64_t written;
	uint64_t flip_at; /* stream offset of a byte that is damaged on the way */
	uint8_t flip;     /* XORed to that byte; 0: none */
};

struct fake_lane {
	struct lane lane;
	struct fake_pair *pair;
	struct fake_pipe *in, *out;
	struct fake_lane *peer;
	uint64_t acked;
	unsigned acknowledged; /* calls of acknowledge() */
	bool in_place;         /* nothing is copied */
	bool unanswered;       /* the peer acknowledges nothing */
	bool event;            /* owed to the owner */
	bool closed;           /* by its owner */
	bool aborted;
};

struct fake_pair {
	struct poller poller;
	struct rng rng;
	struct fake_pipe pipes[2];
	struct fake_lane lanes[2];
};

/* capacity: bytes that either pipe holds. */
void fake_pair_init(struct fake_pair *pair, uint64_t seed, size_t capacity);
void fake_pair_free(struct fake_pair *pair);
/* One turn: acknowledges some, delivers owed events, runs posted work. */
void fake_pair_turn(struct fake_pair *pair);
/* Inserts bytes that the lane will read. Returns how many fitted. */
size_t fake_inject(struct fake_lane *lane, const void *bytes, size_t len);
/* The other side's process died. */
void fake_reset(struct fake_lane *lane);
/* The connection breaks on both sides, and bytes in flight are lost. */
void fake_break(struct fake_pair *pair);

#endif
