/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poller.h - the right to advance a group of lanes; one thread at a time has it.
 *
 * A poller is a try-lock, a list of posted work, and an advance function. An application thread
 * that polls (isend, irecv, test) acquires it for one turn. The control thread does so when no
 * thread has polled for a while. A thread releases it after each turn.
 *
 * Each engine has a poller (advance: a poll of its stack), as do each comm and the control thread.
 */
#ifndef HARP_PLUGIN_POLLER_H
#define HARP_PLUGIN_POLLER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A function to run with the poller held. Embedded. */
struct work {
	struct work *next;  /* Writer: the thread that posts it, until the poller takes the list */
	atomic_bool queued; /* it is in the list, once at most */
	void (*run)(struct work *work, uint64_t now_ns);
};

struct poller {
	_Alignas(64) atomic_bool held;             /* acquire and release */
	uint64_t now_ns;                           /* time of the last turn; poller held */
	_Alignas(64) _Atomic(struct work *) ready; /* multi-producer push, one consumer takes all */
	_Alignas(64) atomic_uint_fast64_t polled_ns; /* last turn of an application thread */
	void (*advance)(struct poller *poller, uint64_t now_ns); /* poller held */
	void (*wake)(struct poller *poller); /* wakes a sleeping thread to poll; may be NULL */
};

uint64_t clock_now_ns(void); /* CLOCK_MONOTONIC */

void poller_init(struct poller *poller, void (*advance)(struct poller *, uint64_t));
/* Adds work to the ready list unless it is there. Any thread. */
void poller_post(struct poller *poller, struct work *work);
/* Acquires the poller if it is free, without a turn. */
bool poller_try(struct poller *poller);
void poller_release(struct poller *poller);
/* Takes one turn if the poller is free; false: another thread holds it. */
bool poller_run(struct poller *poller, uint64_t now_ns);
/* Same, by the application: records the time, so that the control thread stays away. */
bool poller_poll_at(struct poller *poller, uint64_t now_ns);
bool poller_poll(struct poller *poller);
/* Runs the ready list. Poller held. Returns the number of works run. */
unsigned poller_run_ready(struct poller *poller, uint64_t now_ns);
/* Runs the function with the poller held: takes turns until it has run and that turn has ended,
 * here or on another thread. For set-up and close. */
void poller_call(struct poller *poller, void (*run)(void *arg), void *arg);

#endif
