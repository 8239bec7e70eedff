/* SPDX-License-Identifier: Apache-2.0 */
/* reconnect_impl.h - the plan of a comm's lanes and their state, for reconnect.c, plan.c and attempt_run.c. */
#ifndef HARP_PLUGIN_RECONNECT_IMPL_H
#define HARP_PLUGIN_RECONNECT_IMPL_H

#include "comm/comm.h"
#include "poll/control.h"
#include "connect/rails.h"
#include "comm/background.h"
#include "connect/reconnect.h"

#define RECONNECT_BACKOFF_NS_MIN 100000000ull

struct reconnect_rail {
	int dev;                    /* ours */
	struct engine_set *engines; /* NULL: kernel lanes only */
	struct handle handle;       /* the peer's NIC */
	bool backup;
	bool bound; /* kernel lanes leave by our NIC or not at all */
	unsigned up;
	bool used; /* it has had a lane */
	bool down_logged;
};

struct reconnect_lane {
	uint8_t index, rail;
	bool harp, up, failure_logged;
	unsigned failures; /* in a row */
	uint64_t next_ns, backoff_ns, up_ns, rerolled_ns;
	struct attempt *attempt; /* NULL: none runs */
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
	struct work work, stop_work, free_work;
	/* Any poller; work is posted after. */
	atomic_uint lost, slow;
	/* Lanes that are up and being replaced (writer: the control thread); those of them that the peer has ended. */
	atomic_uint rerolling, ended;
	atomic_bool begun;
	/* The control thread's. */
	struct control_timer timer;
	bool ending;
	unsigned rail_count, lane_count;
	struct reconnect_rail rails[RAIL_PAIRS_MAX];
	struct reconnect_lane lanes[COMM_LANES_MAX];
};

/* Rails and lanes. The control thread: it asks the kernel for routes. */
void reconnect_plan(struct reconnect *u);

#endif
