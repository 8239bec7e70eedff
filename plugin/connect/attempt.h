/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.h - a connect attempt: opens one lane to one candidate address, authenticates it by the
 * preamble, and gives it to a comm.
 *
 * Used for first lanes (connect.c), further lanes and reconnects (connector.c). Its owner is the
 * control thread. The lane belongs to attempt->poller: the control thread's for a kernel lane, else
 * the engine's.
 */
#ifndef HARP_PLUGIN_ATTEMPT_H
#define HARP_PLUGIN_ATTEMPT_H

#include "connect/candidates.h"
#include "connect/port_search.h"
#include "poll/control.h"
#include "wire/preamble.h"

#define ATTEMPT_RUNNING 1 /* no result yet */

struct attempt;

/* Operations on an attempt, with attempt->poller held. The simulator and unit tests replace
 * them. */
struct attempt_ops {
	void (*start)(struct attempt *attempt, uint64_t now_ns);
	void (*advance)(struct attempt *attempt, uint64_t now_ns);
	/* Cancels it. */
	void (*stop)(struct attempt *attempt);
	/* It has ended: 0, or -errno with a text, and its lane is closed. */
	void (*ended)(struct attempt *attempt, int error, const char *text, uint64_t now_ns);
};
extern const struct attempt_ops attempt_ops;

struct attempt {
	const struct attempt_ops *ops;
	/* Set by the owner before attempt_begin(). */
	int dev;
	struct candidate candidate;
	uint8_t dscp;
	unsigned ports_max; /* source ports to try for a HARP lane; 0: the default number */
	uint64_t listen_id, comm_id;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct preamble_terms own; /* index, FEATURE_JOIN or _MULTI_LANE; the rest is set here */
	uint64_t open_deadline_ns, deadline_ns; /* for the open lane, for the authenticated lane */
	/* Takes ownership of the authenticated attempt->lane. -errno: the attempt closes it. */
	int (*authenticated)(struct attempt *attempt);
	void *owner;
	struct work *result_work; /* posted to the control thread with the result */

	/* Poller. */
	struct poller *poller;
	bool running;
	bool opened; /* connected: the preamble has begun */
	struct lane *lane;
	uint64_t hello_ns, rtt_ns; /* time of HELLO; round trip to CHALLENGE */
	struct port_search search; /* of a HARP lane, while lane is NULL */
	struct preamble preamble;
	/* ATTEMPT_RUNNING, 0, -errno. Writer: the poller, release. Reader: owner, acquire */
	atomic_int result;
	char text[192]; /* reason of the failure */

	/* Control thread. */
	struct control_source source; /* of a kernel lane */
	bool waits_for_open;          /* watches EPOLLOUT, too */
	struct control_timer timer;
	struct work work; /* starts or advances a HARP lane */
	bool started;
};

/* Control thread, no poller held. NULL: out of memory. */
struct attempt *attempt_new(const struct attempt_ops *ops);
void attempt_begin(struct attempt *attempt, uint64_t now_ns);
int attempt_result(const struct attempt *attempt);
/* Ends and frees it, with or without a result; none of its work is left. NULL is accepted. */
void attempt_free(struct attempt *attempt);

#endif
