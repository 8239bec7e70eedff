/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_sim.h - libharp-coll in a simulation: its threads take turns under a virtual clock, and its
 * messages cross a network in memory.
 *
 *	coll_scenario.c the scenario of a seed
 *	coll_clock.c    threads, locks, sleep and time of the library (link_args wrap these calls)
 *	coll_network.c  the functions of coll_net.c
 *	sim_coll_run.c  ranks, which compute their expected results
 */
#ifndef HARP_TESTS_COLL_SIM_H
#define HARP_TESTS_COLL_SIM_H

#include "base/rng.h"
#include "elements.h"
#include "runner.h"

/* ---- coll_scenario.c ------------------------------------------------------------------------- */

/* What the ranks do, as data: generated from a seed, printed, parsed, shrunk (elements.h). All
 * ranks make the same calls in the same order, unless an event changes that. */
#define CLN_RANKS_MAX 8u
#define CLN_CALLS_MAX 16u
#define CLN_EVENTS_MAX 2u

enum cln_event_kind {
	CLN_LATE,     /* the rank pauses for duration_ns before the call */
	CLN_CUT,      /* nothing from the rank arrives, for duration_ns; 0: forever */
	CLN_ABSENT,   /* the rank makes neither the call nor later ones */
	CLN_MISMATCH, /* the rank calls with another number of elements */
	CLN_EVENT_KINDS,
};

#define CLN_WORLD(X)                                                                               \
	X(seed, SCN_KEEP)                                                                          \
	X(ranks, SCN_KEEP)                                                                         \
	X(hosts, 0)  /* rank r is on host r % hosts; 0: one host per rank */                       \
	X(groups, 1) /* one after another */                                                       \
	X(timeout_ms, SCN_KEEP)                                                                    \
	X(store_ns, 0)     /* maximum time of a store request */                                   \
	X(refuse_ppm, 0)   /* chance that the plugin refuses a message for now */                  \
	X(plant, SCN_KEEP) /* 1: a bug that changes an element of a message */

#define CLN_NIC(X)                                                                                 \
	X(delay_ns, 1000)                                                                          \
	X(jitter_ns, 0)                                                                            \
	X(rate_bps, 0)                                                                             \
	X(late_ppm, 0) /* chance that a message is late by late_ns, like a lost one */             \
	X(late_ns, 0)

#define CLN_CALL(X)                                                                                \
	X(op, SCN_KEEP) /* enum harp_coll_op; SEND: each rank sends to rank + peer */              \
	X(count, 1)                                                                                \
	X(peer, 0)                                                                                 \
	X(in_place, 0)                                                                             \
	X(overlaps, 0) /* the rank waits for it after the following calls */

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

/* ---- coll_clock.c: one thread runs at a time ------------------------------------------------- */

struct coll_clock {
	uint64_t now_ns, steps;
	struct rng rng;
};
extern struct coll_clock sim_clock;

typedef void (*coll_task)(void *arg);

void clock_start(uint64_t seed);
void clock_add(coll_task task, void *arg);
/* Runs tasks until all have ended. False: one failed, the time limit passed, or all wait forever;
 * the threads then keep waiting. */
bool clock_run(uint64_t limit_ns);
/* Called by a task: other tasks run for that time. */
void clock_sleep(uint64_t duration_ns);
/* Called by a task: fails the run. The task never runs again. */
void clock_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ---- coll_network.c -------------------------------------------------------------------------- */

void network_open(const struct coll_scenario *scenario);
/* While the cut lasts, nothing that the rank sends arrives. */
void network_set_cut(unsigned rank, bool is_cut);
extern uint64_t network_bytes; /* delivered to the library */

#endif
