/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_sim.h - libharp-coll in a simulation: its threads take turns under a virtual clock, and its messages
 * cross a network in memory.
 *
 *	coll_clock.c    threads, locks, sleep and time of the library (link_args wrap these calls)
 *	coll_network.c  coll_net.c's functions
 *	sim_coll_run.c  ranks, which compute what they must get
 */
#ifndef HARP_TESTS_COLL_SIM_H
#define HARP_TESTS_COLL_SIM_H

#include "base/rng.h"
#include "coll_scenario.h"

#define COLL_SIM_REASON_MAX 240

/* ---- coll_clock.c: one thread runs at a time --------------------------------------------------- */

struct coll_clock {
	uint64_t now_ns, steps, trace;
	struct rng rng;
	char reason[COLL_SIM_REASON_MAX]; /* of a failure */
};
extern struct coll_clock sim_clock;

typedef void (*coll_task)(void *arg);

void clock_start(uint64_t seed);
void clock_add(coll_task task, void *arg);
/* Runs tasks until all have ended. False: one failed, the time is over or all wait for ever; the
 * threads then stay where they are. */
bool clock_run(uint64_t limit_ns);
/* By a task: others run, and this one again after so long. */
void clock_sleep(uint64_t duration_ns);
/* By a task, which then stops for ever. */
void clock_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Into the hash of everything that happened. */
void clock_trace(uint64_t value);

/* ---- coll_network.c ---------------------------------------------------------------------------- */

void network_open(const struct coll_scenario *scenario);
/* What the rank sends does not arrive until the cut has ended. */
void network_set_cut(unsigned rank, bool is_cut);
extern uint64_t network_bytes; /* delivered to the library */

#endif
