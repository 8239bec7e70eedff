/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.h - a connect attempt: one lane to one candidate is opened, authenticated by the preamble, and given to a comm.
 *
 * First lanes (connect.c), further lanes and reconnects (connector.c) use the same attempt. Its owner is the control
 * thread. The lane belongs to attempt->poller: the control thread's for a kernel lane, else the engine's.
 */
#ifndef HARP_PLUGIN_ATTEMPT_H
#define HARP_PLUGIN_ATTEMPT_H

#include "connect/candidates.h"
#include "connect/port_search.h"
#include "poll/control.h"
#include "wire/preamble.h"

#define ATTEMPT_RUNNING 1 /* no result yet */

struct attempt;

/* How attempts run. All are called with the poller of attempt->poller held. The simulator and unit tests have others. */
struct attempt_ops {
	void (*start)(struct attempt *attempt, uint64_t now_ns);
	void (*advance)(struct attempt *attempt, uint64_t now_ns);
	/* Ends it without a result. */
	void (*stop)(struct attempt *attempt);
	/* It has ended: 0, or -errno with a few words, and its lane is closed. */
	void (*ended)(struct attempt *attempt, int error, const char *text, uint64_t now_ns);
};
extern const struct attempt_ops attempt_ops;

struct attempt {
	const struct attempt_ops *ops;
	/* The owner's, before attempt_begin(). */
	int dev;
	int refused; /* -errno: there is no candidate, and the attempt fails when it is begun */
	struct candidate candidate;
	uint8_t dscp;
	unsigned ports_max; /* source ports that are tried for a HARP lane; 0: the usual number */
	uint64_t listen_id, comm_id;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct preamble_terms own;              /* lanes, index, join; the rest is set here */
	uint64_t open_deadline_ns, deadline_ns; /* of the open lane, of the authenticated one */
	uint64_t answer_ns;                     /* for CHALLENGE, and for READY; 0: no limit */
	/* Takes the authenticated lane, attempt->lane. -errno: it is closed. */
	int (*proved)(struct attempt *attempt);
	void *owner;
	struct work *result_work; /* posted to the control thread when there is a result */

	/* The poller's. */
	struct poller *poller;
	bool under_way;
	bool opened; /* the connection is open: the preamble has begun */
	struct lane *lane;
	uint64_t asked_ns, rtt_ns; /* HELLO left; CHALLENGE came so much later, 0: at once */
	struct port_search search; /* of a HARP lane, as long as lane is NULL */
	struct preamble preamble;
	/* ATTEMPT_RUNNING, 0, -errno. Writer: the poller, release. Reader: owner, acquire */
	atomic_int result;
	char text[192]; /* why it failed */

	/* The control thread's. */
	struct control_source source; /* of a kernel lane */
	bool waits_for_open;          /* it is watched for room, too */
	struct control_timer timer;
	struct work start_work, advance_work, stop_work;
};

/* The control thread, no poller held. NULL: out of memory. */
struct attempt *attempt_new(const struct attempt_ops *ops);
void attempt_begin(struct attempt *attempt, uint64_t now_ns);
int attempt_result(const struct attempt *attempt);
/* Ends and frees it, whether or not it has a result; no work of it is left. NULL is accepted. */
void attempt_free(struct attempt *attempt);

#endif
