/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poller.h - the right to advance a group of lanes; one thread at a time has it.
 *
 * A poller is a try-lock, a list of posted work, and a function that advances. An application thread that polls (isend,
 * irecv, test) takes it for one turn. When no thread has polled for a while the background poller does. No thread keeps
 * it longer than a turn.
 *
 * Each engine has one (advance = a poll of its stack), so has each comm, and the control thread.
 */
#ifndef HARP_PLUGIN_POLLER_H
#define HARP_PLUGIN_POLLER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A thing to run with the poller held: a comm with new requests, a connection to open. Embedded. */
struct work {
	struct work *next;  /* Writer: the thread that posts it, until the poller takes the list */
	atomic_bool queued; /* release in poller_post, acquire when run: one place in the list */
	void (*run)(struct work *work, uint64_t now_ns);
};

struct poller {
	_Alignas(64) atomic_bool held;             /* acquire on taking, release on giving */
	uint64_t now_ns;                           /* the clock of the last turn; poller */
	_Alignas(64) _Atomic(struct work *) ready; /* multi-producer push, one consumer takes all */
	_Alignas(64) atomic_uint_fast64_t polled_ns; /* last turn of an application thread */
	void (*advance)(struct poller *poller, uint64_t now_ns); /* poller held */
	void (*wake)(
		struct poller *poller); /* may be NULL: a sleeping background poller must look */
};

uint64_t clock_now_ns(void); /* CLOCK_MONOTONIC */

void poller_init(struct poller *poller, void (*advance)(struct poller *, uint64_t));
/* Any thread: puts work on the ready list unless it is there. */
void poller_post(struct poller *poller, struct work *work);
/* Acquires the poller if it is free, without a turn. */
bool poller_try(struct poller *poller);
void poller_release(struct poller *poller);
/* One turn if the poller is free; false when another thread has it. */
bool poller_run(struct poller *poller, uint64_t now_ns);
/* As poller_run, by the application: notes the time so that the background poller keeps away. now_ns: the clock. */
bool poller_poll_at(struct poller *poller, uint64_t now_ns);
bool poller_poll(struct poller *poller);
/* Poller held: runs everything that is ready. Returns how many. */
unsigned poller_run_ready(struct poller *poller, uint64_t now_ns);
/* Posts work and takes turns (yielding in between) until it has run, here or in a turn of another thread that has ended;
 * for set-up and close. */
void poller_call(struct poller *poller, struct work *work);

#endif
