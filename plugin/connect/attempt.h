/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.h - one lane to one candidate: opened, and proved by the preamble.
 *
 * Baton of attempt->driver held throughout. plugin_connect() dials the first lane of a comm (connect.c), the keeper
 * the further ones (upkeep.c).
 */
#ifndef HARP_PLUGIN_DIAL_H
#define HARP_PLUGIN_DIAL_H

#include "connect/candidates.h"
#include "connect/port_search.h"
#include "wire/preamble.h"

struct attempt {
	/* The caller's, before attempt_start(). */
	int dev;
	struct candidate candidate;
	struct driver
		*driver; /* of the candidate's engine, or one of the caller's for a kernel lane */
	uint8_t dscp;
	unsigned ports_max; /* source ports that are tried for a HARP lane; 0: the usual number */
	uint64_t listen_id, comm_id;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct preamble_terms own;              /* lanes, index, join; the rest is set here */
	uint64_t open_deadline_ns, deadline_ns; /* of the open lane, of the proved one */
	uint64_t answer_ns;                     /* for CHALLENGE, after HELLO; 0: no limit */
	/* It has ended: 0, and attempt->lane is the caller's, who sets it to NULL; or -errno with a few words,
	 * which pass, and nothing is left. May be called by attempt_start() and attempt_advance(). */
	void (*ended)(struct attempt *attempt, int error, const char *text, uint64_t now_ns);
	void *owner;

	/* Its own. */
	bool under_way;
	bool opened; /* it got through to the peer: the preamble has begun */
	struct lane *lane;
	/* HELLO left; CHALLENGE came so much later. rtt_ns is 0 where it was not waited for. */
	uint64_t asked_ns, rtt_ns;
	struct port_search search; /* of a HARP lane, as long as lane is NULL */
	struct preamble preamble;
};

void attempt_start(struct attempt *attempt, uint64_t now_ns);
/* Goes on; HARP lanes do it by themselves as far as nothing has to be waited out. */
void attempt_advance(struct attempt *attempt, uint64_t now_ns);
/* Ends it without a word. */
void attempt_stop(struct attempt *attempt);

#endif
