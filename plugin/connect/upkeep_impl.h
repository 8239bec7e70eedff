/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep_impl.h - between upkeep.c, upkeep_plan.c and upkeep_attempt.c: the plan of a comm's lanes, and how they fare. */
#ifndef HARP_PLUGIN_UPKEEP_IMPL_H
#define HARP_PLUGIN_UPKEEP_IMPL_H

#include "comm/comm.h"
#include "poll/keeper.h"
#include "connect/rails.h"
#include "comm/tender.h"
#include "connect/upkeep.h"

#define UPKEEP_BACKOFF_NS_MIN 100000000ull

struct attempt;

struct upkeep_rail {
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

struct upkeep_lane {
	uint8_t index, rail;
	bool harp, up, failure_said;
	unsigned failures; /* in a row */
	uint64_t next_ns, backoff_ns, up_ns, rerolled_ns;
	struct attempt *attempt; /* NULL: not being dialled */
};

struct upkeep {
	int dev;
	uint8_t dscp;
	struct handle handle;
	struct comm *comm;
	struct rails peer_rails;
	struct tender tender;
	bool first_harp;
	uint8_t planned; /* lanes that HELLO said */
	uint8_t taken;   /* that CHALLENGE did */
	uint64_t comm_id;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct work work, stop_work, idle_work;
	/* Any baton; work is posted behind. */
	atomic_uint lost, slow;
	/* Lanes that are up and dialled once more (writer: the keeper); those of them that the peer has ended. */
	atomic_uint rerolling, ended;
	atomic_bool begun;
	/* The keeper's. */
	struct keeper_timer timer;
	bool ending;
	unsigned rail_count, lane_count;
	struct upkeep_rail rails[RAIL_PAIRS_MAX];
	struct upkeep_lane lanes[COMM_LANES_MAX];
};

/* Rails and lanes; the control thread, baton of the keeper: it asks the kernel for routes. */
void upkeep_plan(struct upkeep *u);

/* upkeep_attempt.c; baton of the keeper, but for attempt_end_harp(). */
#define ATTEMPT_RUNS 1 /* no result yet */

/* Dials the lane once; whoever ends it posts u->work. -errno: there is nothing to dial, or no memory. */
int attempt_begin(struct attempt **out, struct upkeep *u, const struct upkeep_lane *lane,
		  uint64_t now_ns);
/* ATTEMPT_RUNS, 0: the comm has the lane, or -errno: attempt_text() says why. */
int attempt_result(const struct attempt *a);
const char *attempt_text(const struct attempt *a);
/* While it runs: rounds, and what has taken too long. */
void attempt_advance(struct attempt *a, uint64_t now_ns);
/* It has a result, and nobody asks any more. */
void attempt_forget(struct attempt *a);
/* Whether or not it has one: nothing of it is left. Of a HARP lane: by the thread that stops the upkeep, no baton held. */
void attempt_end_kernel(struct attempt *a);
void attempt_end_harp(struct attempt *a);

#endif
