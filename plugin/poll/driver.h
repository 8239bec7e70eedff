/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.h - the baton: one thread at a time advances a group of lanes.
 *
 * A driver is a try-lock, a list of ready work and a function that advances. The thread that
 * polls (NCCL's isend, irecv, test) takes the baton for one turn; when nobody has polled for a short
 * while a guardian thread does. Or a dedicated thread keeps it as long as there is work, and others only
 * post. The baton is never waited for and never stolen.
 *
 * Two kinds: an engine's driver (engine.c: one per stack, advance = harp_stack_poll) shared by all its
 * lanes, and a kernel lane's own driver, one per comm.
 */
#ifndef HARP_PLUGIN_DRIVER_H
#define HARP_PLUGIN_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A thing to run with the baton held: a comm with new requests, a connection to open. Embedded. */
struct work {
	struct work *next;  /* Writer: who posted it, until the driver takes the list */
	atomic_bool queued; /* release in driver_post, acquire when run: one place in the list */
	void (*run)(struct work *work, uint64_t now_ns);
};

struct driver {
	_Alignas(64) atomic_bool baton; /* acquire on taking, release on giving */
	/* Times the ready list was run, to its end. Writer: baton, release. Reader: driver_call, acquire */
	atomic_uint_fast64_t runs;
	uint64_t now_ns;                           /* the clock of the last turn; baton */
	_Alignas(64) _Atomic(struct work *) ready; /* multi-producer push, one consumer takes all */
	_Alignas(64) atomic_uint_fast64_t polled_ns; /* last turn of an application thread */
	void (*advance)(struct driver *driver, uint64_t now_ns); /* baton held */
	void (*wake)(struct driver *driver); /* may be NULL: a sleeping guardian must look */
};

uint64_t driver_clock_ns(void); /* CLOCK_MONOTONIC */

void driver_init(struct driver *driver, void (*advance)(struct driver *, uint64_t));
/* Any thread: puts work on the ready list unless it is there. */
void driver_post(struct driver *driver, struct work *work);
/* The baton if it is free, without a turn; who has taken it gives it. */
bool driver_take(struct driver *driver);
void driver_give(struct driver *driver);
/* Baton held: the clock of a turn. Who takes it has read his own before he had the baton, and another may have been here since, with
 * a later one. Engines' threads do without: a stack's clock never goes back, and what an engine does besides compares times only. */
uint64_t driver_turn_clock(struct driver *driver, uint64_t now_ns);
/* One turn if the baton is free; false when another thread has it. */
bool driver_turn(struct driver *driver, uint64_t now_ns);
/* As driver_turn, by the application: notes the time so that the guardian keeps away. now_ns: the clock. */
bool driver_poll_at(struct driver *driver, uint64_t now_ns);
bool driver_poll(struct driver *driver);
/* Baton held: runs everything that is ready. Returns how many. */
unsigned driver_run_ready(struct driver *driver, uint64_t now_ns);
/* Posts work and takes turns (yielding in between) until it has run, here or by who has the baton; for
 * set-up and close. */
void driver_call(struct driver *driver, struct work *work);

#endif
