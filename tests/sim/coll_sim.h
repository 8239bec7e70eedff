/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_sim.h - libharp-coll in a simulation: its threads take turns under a virtual clock, and its messages
 * cross a network in memory.
 *
 *	coll_scenario.c the scenario of a seed
 *	coll_clock.c    threads, locks, sleep and time of the library (link_args wrap these calls)
 *	coll_network.c  coll_net.c's functions
 *	sim_coll_run.c  ranks, which compute what they must get
 */
#ifndef HARP_TESTS_COLL_SIM_H
#define HARP_TESTS_COLL_SIM_H

#include "base/rng.h"
#include "elements.h"
#include "runner.h"

/* ---- coll_scenario.c: what the ranks do, as data: made from a seed, printed, read, reduced (elements.h). All ranks
 * make the same calls in the same order, unless an event says otherwise. ---- */

#define CLN_RANKS_MAX 8u
#define CLN_CALLS_MAX 16u
#define CLN_EVENTS_MAX 2u

enum cln_event_kind {
	CLN_LATE,     /* the rank pauses for duration_ns before the call */
	CLN_CUT,      /* nothing that the rank sends arrives: for duration_ns, 0: forever */
	CLN_ABSENT,   /* the rank does not make the call, nor later ones */
	CLN_MISMATCH, /* the rank calls with another number of elements */
	CLN_EVENT_KINDS,
};

#define CLN_WORLD(X)                                                                               \
	X(seed, SCN_KEEP)                                                                          \
	X(ranks, SCN_KEEP)                                                                         \
	X(hosts,                                                                                   \
	  0) /* rank r is on host r modulo this; 0:      every rank has a host of its own */       \
	X(groups, 1) /* one after another */                                                       \
	X(timeout_ms, SCN_KEEP)                                                                    \
	X(store_ns, 0)     /* a request of the store takes up to this */                           \
	X(refuse_ppm, 0)   /* chance that the plugin takes no message now */                       \
	X(plant, SCN_KEEP) /* 1: an element of a message is changed; it must be found */

#define CLN_NIC(X)                                                                                 \
	X(delay_ns, 1000)                                                                          \
	X(jitter_ns, 0)                                                                            \
	X(rate_bps, 0)                                                                             \
	X(late_ppm, 0) /* chance that a message arrives later by late_ns, as one that was lost */  \
	X(late_ns, 0)

#define CLN_CALL(X)                                                                                \
	X(op, SCN_KEEP) /* enum harp_coll_op; SEND: each rank sends to rank + peer */              \
	X(count, 1)                                                                                \
	X(peer, 0)                                                                                 \
	X(in_place, 0)                                                                             \
	X(overlaps, 0) /* it is waited for after the calls that follow */

#define CLN_EVENT(X)                                                                               \
	X(kind, SCN_KEEP)                                                                          \
	X(call, 0)                                                                                 \
	X(rank, 0)                                                                                 \
	X(duration_ns, SCN_KEEP)

struct coll_scenario {
	struct cln_world {
		CLN_WORLD(SCN_MEMBER)
	} world;
	struct cln_nic {
		CLN_NIC(SCN_MEMBER)
	} nics[CLN_RANKS_MAX];
	struct cln_call {
		CLN_CALL(SCN_MEMBER)
	} calls[CLN_CALLS_MAX];
	struct cln_event {
		CLN_EVENT(SCN_MEMBER)
	} events[CLN_EVENTS_MAX];
	unsigned nic_count, call_count, event_count;
};

extern const struct scn_layout coll_scenario_layout;

void coll_scenario_make(struct coll_scenario *scenario, uint64_t seed);

/* ---- coll_clock.c: one thread runs at a time --------------------------------------------------- */

struct coll_clock {
	uint64_t now_ns, steps;
	struct rng rng;
};
extern struct coll_clock sim_clock;

typedef void (*coll_task)(void *arg);

void clock_start(uint64_t seed);
void clock_add(coll_task task, void *arg);
/* Runs tasks until all have ended. False: one failed, the time is over, or all wait forever; the
 * threads then stay where they are. */
bool clock_run(uint64_t limit_ns);
/* Called by a task: other tasks run, and this one again after that time. */
void clock_sleep(uint64_t duration_ns);
/* Called by a task: the run has failed. The task never runs again. */
void clock_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ---- coll_network.c ---------------------------------------------------------------------------- */

void network_open(const struct coll_scenario *scenario);
/* What the rank sends does not arrive until the cut has ended. */
void network_set_cut(unsigned rank, bool is_cut);
extern uint64_t network_bytes; /* delivered to the library */

#endif
