/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.h - a connect attempt: one lane to one candidate is opened, proved by the preamble, and given to a comm.
 *
 * First lanes (connect.c), further lanes and reconnects (reconnect.c) use the same attempt. Its owner is the control
 * thread. The lane belongs to the poller of attempt->poller: the control thread's for a kernel lane, else the engine's.
 */
#ifndef HARP_PLUGIN_ATTEMPT_H
#define HARP_PLUGIN_ATTEMPT_H

#include "connect/candidates.h"
#include "connect/port_search.h"
#include "poll/control.h"
#include "wire/preamble.h"

#define ATTEMPT_RUNNING 1 /* no result yet */

struct attempt {
	/* The owner's, before attempt_begin(). */
	int dev;
	struct candidate candidate;
	uint8_t dscp;
	unsigned ports_max; /* source ports that are tried for a HARP lane; 0: the usual number */
	uint64_t listen_id, comm_id;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct preamble_terms own;              /* lanes, index, join; the rest is set here */
	uint64_t open_deadline_ns, deadline_ns; /* of the open lane, of the proved one */
	uint64_t answer_ns;                     /* for CHALLENGE, after HELLO; 0: no limit */
	/* Takes the proved lane, attempt->lane. -errno: it is closed. */
	int (*proved)(struct attempt *attempt);
	void *owner;
	struct work *result_work; /* posted to the control thread when there is a result */

	/* The poller's. */
	struct poller *poller;
	bool under_way;
	bool opened; /* it got through to the peer: the preamble has begun */
	struct lane *lane;
	uint64_t asked_ns,
		rtt_ns; /* HELLO left; CHALLENGE came so much later, 0: it was not waited for */
	struct port_search search; /* of a HARP lane, as long as lane is NULL */
	struct preamble preamble;
	/* It has ended: 0, or -errno with a few words, and nothing is left. */
	void (*ended)(struct attempt *attempt, int error, const char *text, uint64_t now_ns);
	/* ATTEMPT_RUNNING, 0, -errno. Writer: the poller, release. Reader: owner, acquire */
	atomic_int result;
	char text[192]; /* why it failed */

	/* The control thread's. */
	struct control_source source; /* of a kernel lane */
	bool waits_for_open;          /* it is watched for room, too */
	struct control_timer timer;
	struct work start_work, work, stop_work;
};

/* ---- attempt_run.c; the control thread, no poller held -------------------------------------------- */

/* NULL: out of memory. */
struct attempt *attempt_new(void);
void attempt_begin(struct attempt *attempt, uint64_t now_ns);
int attempt_result(const struct attempt *attempt);
/* Ends and frees it, whether or not it has a result; no work of it is left. NULL is accepted. */
void attempt_free(struct attempt *attempt);

struct reconnect;
struct reconnect_lane;
/* Begins an attempt for a further lane. -errno: there is no candidate, or no memory. */
int reconnect_attempt(struct attempt **out, struct reconnect *u, const struct reconnect_lane *lane,
		      uint64_t now_ns);

/* ---- attempt.c; poller of attempt->poller held ----------------------------------------------------- */

void attempt_start(struct attempt *attempt, uint64_t now_ns);
void attempt_advance(struct attempt *attempt, uint64_t now_ns);
/* Ends it without a word. */
void attempt_stop(struct attempt *attempt);

#endif
