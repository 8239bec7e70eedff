/* SPDX-License-Identifier: Apache-2.0 */
/* reconnect_impl.h - between upkeep.c, reconnect_plan.c and reconnect_attempt.c: the plan of a comm's lanes, and how they fare. */
#ifndef HARP_PLUGIN_UPKEEP_IMPL_H
#define HARP_PLUGIN_UPKEEP_IMPL_H

#include "comm/comm.h"
#include "poll/control.h"
#include "connect/rails.h"
#include "comm/background.h"
#include "connect/reconnect.h"

#define RECONNECT_BACKOFF_NS_MIN 100000000ull

struct attempt_run;

struct reconnect_rail {
	int dev;                    /* ours */
	struct engine_set *engines; /* NULL: kernel lanes only */
	struct handle handle;       /* the peer's NIC */
	bool backup;
	bool bound; /* kernel lanes leave by our NIC or not at all */
	bool harp_dialled;
	unsigned up;
	bool used; /* it has had a lane */
	bool down_said;
};

struct reconnect_lane {
	uint8_t index, rail;
	bool harp, up, failure_said;
	unsigned failures; /* in a row */
	uint64_t next_ns, backoff_ns, up_ns, rerolled_ns;
	struct attempt_run *attempt; /* NULL: not being dialled */
};

struct reconnect {
	int dev;
	uint8_t dscp;
	struct handle handle;
	struct comm *comm;
	struct rails peer_rails;
	struct comm_background background;
	bool first_harp;
	uint8_t planned; /* lanes that HELLO said */
	uint8_t taken;   /* that CHALLENGE did */
	uint64_t comm_id;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct work work, stop_work, idle_work, free_work;
	/* Any baton; work is posted behind. */
	atomic_uint lost, slow;
	/* Lanes that are up and dialled once more (writer: the keeper); those of them that the peer has ended. */
	atomic_uint rerolling, ended;
	atomic_bool begun;
	/* The keeper's. */
	struct control_timer timer;
	bool ending;
	unsigned rail_count, lane_count;
	struct reconnect_rail rails[RAIL_PAIRS_MAX];
	struct reconnect_lane lanes[COMM_LANES_MAX];
};

/* Rails and lanes; the control thread, baton of the keeper: it asks the kernel for routes. */
void reconnect_plan(struct reconnect *u);

/* reconnect_attempt.c; baton of the keeper, but for attempt_run_stop(). */
#define ATTEMPT_RUNNING 1 /* no result yet */

/* Dials the lane once; whoever ends it posts u->work. -errno: there is nothing to dial, or no memory. */
int attempt_run_begin(struct attempt_run **out, struct reconnect *u,
		      const struct reconnect_lane *lane, uint64_t now_ns);
/* ATTEMPT_RUNNING, 0: the comm has the lane, or -errno: attempt_run_text() says why. */
int attempt_run_result(const struct attempt_run *a);
const char *attempt_run_text(const struct attempt_run *a);
/* While it runs: rounds, and what has taken too long. */
void attempt_run_advance(struct attempt_run *a, uint64_t now_ns);
/* It has a result, and nobody asks any more. */
void attempt_run_free(struct attempt_run *a);
/* Whether or not it has one: nothing of it is left. Of a HARP lane: by the thread that stops the reconnect, no baton held. */
void attempt_run_stop(struct attempt_run *a);

#endif
