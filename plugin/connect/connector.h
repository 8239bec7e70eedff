/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connector.h - the connector of a comm: its first lane (connect.c), further lanes, and reconnects (connector.c).
 *
 * A struct connector lives from plugin_connect() until that has returned an error or a single-lane comm, or until its
 * multi-lane comm is closed. It belongs to the control thread, unless a comment says otherwise.
 */
#ifndef HARP_PLUGIN_CONNECTOR_H
#define HARP_PLUGIN_CONNECTOR_H

#include "comm/background.h"
#include "comm/comm.h"
#include "connect/attempt.h"
#include "connect/ctx.h"
#include "connect/rails.h"
#include "poll/control.h"

#define CONNECTOR_BACKOFF_NS_MIN 100000000ull

/* How the first lane's attempts have failed, from what explains least to what explains most. */
enum connect_failure {
	CONNECT_NOT_TRIED,
	CONNECT_SILENT,      /* no answer */
	CONNECT_NO_WAY,      /* an error of the way, here or there */
	CONNECT_REJECTED,    /* a wrong proof or another protocol error: it will happen again */
	CONNECT_HELLO_RESET, /* the listen comm is closed, or the listener is at its limits */
	CONNECT_TURNED_AWAY, /* a later reset, or silence: the listen comm exists */
	CONNECT_NO_COMM,     /* no memory here, after CONFIRM: the peer has the comm */
};

enum connect_stage { CONNECT_RUNNING, CONNECT_DONE, CONNECT_FAILED };

struct connector_rail {
	int dev;                    /* ours */
	struct engine_set *engines; /* NULL: kernel lanes only */
	struct handle handle;       /* the peer's NIC */
	bool backup;
	bool bound; /* kernel lanes leave by our NIC or not at all */
	unsigned up;
	bool used; /* it has had a lane */
	bool down_logged;
};

struct connector_lane {
	uint8_t index, rail;
	bool harp, up, failure_logged;
	unsigned failures; /* in a row */
	uint64_t next_ns, backoff_ns, up_ns, rerolled_ns;
	struct attempt *attempt; /* NULL: none runs */
};

struct connector {
	/* Written when it is made. */
	const struct attempt_ops *attempt_ops;
	int dev;
	uint8_t dscp;
	struct handle handle;
	uint64_t comm_id;
	struct work work, stop_work, free_work;
	struct control_timer timer;
	bool stopped;

	/* The first lane: connect.c's. */
	struct {
		struct connector *next; /* in ctx's list */
		struct plugin_ctx *ctx;
		const void *key; /* the handle's address */
		uint64_t deadline_ns;
		/* enum connect_stage. Writer: the control thread, release. Reader: the application, acquire. */
		atomic_int stage;
		_Atomic(struct poller *)
			engine; /* of the present attempt; NULL: it has a kernel lane */
		struct interface_waiter waiter;
		struct candidates candidates; /* none before the first attempt */
		unsigned candidate;           /* of the present attempt */
		struct attempt *attempt;
		uint64_t began_ns;            /* the present attempt */
		uint64_t harp_deadline_ns;    /* of all HARP lanes of a family, in this round */
		unsigned rounds;              /* over all candidates, that have ended */
		enum connect_failure failure; /* of the present round */
		uint64_t in_vain_ns; /* since when no listen comm was found; 0: no round ended */
		int error;
		enum connect_failure reason; /* of error */
		char error_text[256];        /* empty: the error has been logged */
	} first;
	struct comm *
		comm; /* Writer: the poller of the first lane's attempt. NULL: none, or it is the application's */

	/* Further lanes. The first lane's poller writes what its preamble said. */
	struct rails peer_rails;
	struct comm_background background;
	bool first_harp;
	uint8_t planned; /* lanes that HELLO said */
	uint8_t taken;   /* that CHALLENGE did */
	uint8_t key[PREAMBLE_KEY_BYTES];
	atomic_bool begun;
	/* Bits of lanes. Any poller; work is posted after. */
	atomic_uint slow;
	unsigned rail_count, lane_count;
	struct connector_rail rails[RAIL_PAIRS_MAX];
	struct connector_lane lanes[COMM_LANES_MAX];
};

/* NULL: out of memory. */
struct connector *connector_new(int dev, uint8_t dscp, const struct handle *handle,
				const struct attempt_ops *ops);
/* The poller of the first lane is held: a multi-lane comm has just been made of it by that attempt. */
void connector_made(struct connector *c, struct comm *comm, const struct attempt *first);
/* Any thread; never waits: the further lanes are planned and opened from now on. */
void connector_begin(struct connector *c);
/* comm_options.lane_lost. */
void connector_lost(struct comm *comm, unsigned index, enum comm_loss loss);
/* Before the comm is closed: no attempt runs when this returns. No poller held. */
void connector_stop(struct connector *c);
/* When no attempt runs. Any thread; never waits. Both accept NULL. */
void connector_free(struct connector *c);
/* plan.c: fills rails and lanes. The control thread: it asks the kernel for routes. */
void connector_plan(struct connector *c);

#endif
