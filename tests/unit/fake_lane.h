/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_lane.h - two lanes joined by small pipes in memory: the worst case of a HARP lane.
 *
 * Sends and receives transfer random parts, acknowledgments are late, and each change causes one
 * event only.
 */
#ifndef HARP_TESTS_FAKE_LANE_H
#define HARP_TESTS_FAKE_LANE_H

#include "base/rng.h"
#include "lane/lane.h"

struct fake_pipe {
	uint8_t *bytes;
	size_t capacity, begin, count;
	bool writer_waits; /* the writer got -EAGAIN and needs an event */
	bool closed;       /* FIN follows the last byte */
	uint64_t written;
	uint64_t flip_at; /* stream offset of the byte to damage */
	uint8_t flip;     /* XORed with that byte; 0: none is damaged */
};

struct fake_lane {
	struct lane lane;
	struct fake_pair *pair;
	struct fake_pipe *in, *out;
	struct fake_lane *peer;
	uint64_t acked;
	unsigned acknowledged; /* calls of acknowledge() */
	bool in_place;         /* bytes are not copied before they are acknowledged */
	bool unanswered;       /* the peer acknowledges nothing */
	bool event;            /* an event for the owner is pending */
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
/* One turn: acknowledges some bytes, delivers pending events, runs posted work. */
void fake_pair_turn(struct fake_pair *pair);
/* Inserts bytes that the lane will read. Returns how many fit. */
size_t fake_inject(struct fake_lane *lane, const void *bytes, size_t len);
/* The lane receives a RST. */
void fake_reset(struct fake_lane *lane);
/* The connection breaks on both sides, and bytes in flight are lost. */
void fake_break(struct fake_pair *pair);

#endif
