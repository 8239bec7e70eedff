/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connector.h - the connector of a comm: first lane (connect.c), further lanes and reconnects
 * (connector.c).
 *
 * A struct connector lives from the first plugin_connect() until plugin_connect() returns an error
 * or a single-lane comm, or until its multi-lane comm closes. The control thread owns it, except
 * where a comment says otherwise.
 */
#ifndef HARP_PLUGIN_CONNECTOR_H
#define HARP_PLUGIN_CONNECTOR_H

#include "comm/comm.h"
#include "connect/attempt.h"
#include "connect/ctx.h"
#include "poll/control.h"

#define CONNECTOR_BACKOFF_NS_MIN 100000000ull

/* How the first lane's attempts have failed, least informative first. */
enum connect_failure {
	CONNECT_NOT_TRIED,
	CONNECT_NO_ANSWER,      /* no answer */
	CONNECT_UNREACHABLE,    /* a routing or network error */
	CONNECT_PROTOCOL_ERROR, /* an invalid proof or another protocol error */
	CONNECT_RESET_AT_HELLO, /* the listen comm is closed, or the admission limit is reached */
	CONNECT_NOT_ACCEPTED,   /* a later reset, or silence: the listen comm exists */
	CONNECT_OUT_OF_MEMORY,  /* out of memory after CONFIRM: the peer has the comm */
};

enum connect_stage { CONNECT_RUNNING, CONNECT_DONE, CONNECT_FAILED };

struct connector_rail {
	int dev;                         /* the own NIC */
	const struct nic_endpoints *nic; /* the peer's, in connector->nics */
	struct engine_set *engines;      /* NULL: kernel lanes only */
	bool backup;                     /* used only while no other rail works */
	bool bound;                      /* kernel lanes are bound to the own NIC */
	unsigned up;
	bool used; /* it has had a lane */
	bool down_logged;
};

struct connector_lane {
	uint8_t index, rail;
	bool harp, up, failure_logged;
	unsigned failures; /* in a row */
	uint64_t next_ns, backoff_ns, up_ns, replaced_ns;
	struct attempt *attempt; /* NULL: none runs */
};

struct connector {
	/* Written when it is made. */
	const struct attempt_ops *attempt_ops;
	int dev;
	uint8_t dscp;
	struct handle handle;
	uint64_t comm_id;
	struct work work, free_work;
	struct control_timer timer;
	/* Run by work and timer: connect_advance(), then connector_advance(). NULL: not begun, or
	 * stopped. Writer: any thread, release. */
	void (*_Atomic advance)(struct connector *c, uint64_t now_ns);

	/* The first lane (connect.c). */
	struct {
		struct connector *next; /* in ctx's list */
		struct plugin_ctx *ctx;
		const void *key; /* the handle's address */
		uint64_t deadline_ns;
		/* enum connect_stage. Writer: the control thread, release. Reader: the application,
		 * acquire. */
		atomic_int stage;
		_Atomic(struct poller *) engine; /* of the current attempt; NULL: a kernel lane */
		struct candidates candidates;    /* empty before the first attempt */
		bool multi_lane;                 /* HELLO says so */
		unsigned candidate;              /* of the current attempt */
		struct attempt *attempt;
		uint64_t harp_deadline_ns;    /* of all HARP lanes of a family, in this round */
		unsigned rounds;              /* completed rounds over all candidates */
		enum connect_failure failure; /* of the current round */
		uint64_t retry_since_ns; /* end of the last round that was not accepted, else of the
				      * first round; 0: no round has ended */
		int error;
		enum connect_failure reason; /* of error */
		char error_text[256];        /* empty: the error has been logged */
	} first;
	struct comm *comm; /* Writer: the poller of the first lane's attempt. NULL: none, or it is
			      the application's */

	/* Further lanes. The first lane's poller stores the preamble's results. */
	unsigned nic_count;
	struct nic_endpoints
		nics[1 + PREAMBLE_NICS_MAX]; /* of the peer; that of the handle first */
	bool first_harp;
	uint8_t key[PREAMBLE_KEY_BYTES];
	/* Bits of lanes. Writer: any poller, which then posts work. */
	atomic_uint slow;
	unsigned rail_count, lane_count;
	struct connector_rail rails[RAILS_MAX];
	struct connector_lane lanes[COMM_LANES_MAX];
};

/* NULL: out of memory. */
struct connector *connector_new(int dev, uint8_t dscp, const struct handle *handle,
				const struct attempt_ops *ops);
/* The first lane's attempt has made a multi-lane comm. The lane's poller is held. */
void connector_set_comm(struct connector *c, struct comm *comm, const struct attempt *first);
/* Plans and opens further lanes from now on. Any thread; never waits. */
void connector_start(struct connector *c);
/* comm_options.lane_lost. */
void connector_lane_lost(struct comm *comm, unsigned index, enum comm_loss loss);
/* Called before the comm closes: stops all attempts before it returns. No poller held. */
void connector_stop(struct connector *c);
/* Frees it, when no attempt runs. Any thread; never waits. Both accept NULL. */
void connector_free(struct connector *c);
/* plan.c: fills rails and lanes; queries the kernel's routes. Control thread. */
void connector_plan(struct connector *c);

#endif
