/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds.h - a connect has failed at every candidate: does it try all of them again, and when?
 *
 * No clock of its own and no lock: part of a connect, under its poller.
 */
#ifndef HARP_PLUGIN_ROUNDS_H
#define HARP_PLUGIN_ROUNDS_H

#include <stdbool.h>
#include <stdint.h>

/* How an attempt failed; of a round the last of these that there was. */
enum rounds_kind {
	ROUNDS_WRONG,   /* it will do so again: a proof that does not hold */
	ROUNDS_REFUSED, /* no way to anybody: nothing at that port, no route, no descriptor */
	ROUNDS_UNKNOWN, /* HELLO was reset: the listen comm is closed, or the listener is crowded */
	ROUNDS_TURNED_AWAY, /* silence, or a later reset: the listen comm exists */
};

/* How much the end of an attempt explains. Of a round the last one that explains most is reported. */
enum rounds_detail {
	ROUNDS_NOT_TRIED,
	ROUNDS_SILENCE, /* no answer */
	ROUNDS_NO_WAY,  /* an error on the way, here or there */
	ROUNDS_PEER     /* it had got through to the peer */
};

struct rounds {
	uint64_t timeout_ns; /* of the connect, HARP_CONNECT_TIMEOUT_MS */
	uint64_t spread; /* random: connects that were dropped together do not return together */
	unsigned rounds; /* that are over */
	enum rounds_kind kind;     /* of the present one so far */
	enum rounds_detail detail; /* of the present one so far */
	uint64_t in_vain_ns;       /* since when no listen comm was found; 0: one was */
	uint64_t not_before_ns;    /* the next round */
};

void rounds_init(struct rounds *r, uint64_t timeout_ns, uint64_t spread);
/* An attempt of the present round has failed so. */
void rounds_note(struct rounds *r, enum rounds_kind kind);
/* It is what is to be said if there is no more. cut_short: by the deadline, before an answer was due. */
bool rounds_reports(struct rounds *r, enum rounds_detail detail, bool cut_short);
/* The last of the round has. False: that was all, though there may be time. */
bool rounds_again(struct rounds *r, uint64_t now_ns);

#endif
