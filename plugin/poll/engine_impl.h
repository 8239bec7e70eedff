/* SPDX-License-Identifier: Apache-2.0 */
/* engine_impl.h - between engine.c, engine_turn.c and engine_thread.c: what an engine is made of. */
#ifndef HARP_PLUGIN_ENGINE_IMPL_H
#define HARP_PLUGIN_ENGINE_IMPL_H

#include <pthread.h>

#include "poll/engine.h"

struct engine_thread;

struct engine {
	struct poller poller; /* first: cache-line aligned */
	/* Poller. */
	struct harp_instance *instance;
	struct harp_stack *stack;
	LIST_HEAD(, engine_lane) lanes;
	struct work *listener; /* run in each turn; NULL: none */
	uint64_t listener_ns;  /* when it must run next though nothing comes */
	unsigned closing_count;
	uint64_t tick_ns;  /* next */
	int link_reported; /* the interface's trouble that was logged, -errno; 0: none */
	/* Since the opening. */
	int dev;
	unsigned index;
	char name[32]; /* for the log: the interface, and which of several */
	struct engine_thread *thread;
	/* Shared. */
	_Alignas(64)
		atomic_uint_fast64_t worked_ns; /* last turn that found something to do. Writer:
						      * poller. Reader: thread; it orders nothing */
	/* Relaxed: hints for choosing. */
	atomic_uint load;
	/* The host has something to tell: set by the thread that saw it come, cleared by a turn. */
	atomic_bool event;
	atomic_bool sleeping; /* Writer: thread. Reader: threads that post work */
};

/* ---- engine_turn.c --------------------------------------------------------------------------- */

/* Stack and instance are there. */
void engine_turn_init(struct engine *engine);
/* The requests hook of the instance. ctx: the engine. */
void engine_requests(void *ctx, uint64_t now_ns);
/* Poller held. True when there was something to do. */
bool engine_turn(struct engine *engine, uint64_t now_ns);
/* Poller held: when a turn is due though nothing comes. */
uint64_t engine_deadline_ns(const struct engine *engine);
/* No other thread uses the engine: finishes what is closing, within the linger, and says what
 * it did in all. */
void engine_finish(struct engine *engine);

/* ---- engine_thread.c ------------------------------------------------------------------------- */

/* The background poller of some engines, which stay the caller's and outlive it. */
/* 0, or -errno with one line in why. */
int engine_thread_start(struct engine_thread **out, struct engine *const *engines, unsigned count,
			char *why, size_t why_len);
/* Joins it. The engines can be driven on by the caller. NULL is accepted. */
void engine_thread_stop(struct engine_thread *thread);
/* engine->poller.wake and advance. */
void engine_wake(struct poller *poller);
void engine_advance(struct poller *poller, uint64_t now_ns);
/* In a forked child. */
void engine_thread_fork_child(struct engine_thread *thread);

#endif
