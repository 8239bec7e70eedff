/* SPDX-License-Identifier: Apache-2.0 */
/* engine_impl.h - struct engine, shared by engine.c, engine_turn.c and engine_background.c. */
#ifndef HARP_PLUGIN_ENGINE_IMPL_H
#define HARP_PLUGIN_ENGINE_IMPL_H

#include <pthread.h>

#include "poll/engine.h"

struct engine {
	struct poller poller; /* first: cache-line aligned */
	/* Poller. */
	struct harp_instance *instance;
	struct harp_stack *stack;
	LIST_HEAD(, engine_lane) lanes;
	struct work *listener; /* run in each turn; NULL: none */
	uint64_t listener_ns;  /* latest time of its next run */
	unsigned closing_count;
	uint64_t tick_ns;         /* next tick */
	int link_reported;        /* the interface's last -errno; 0: none */
	uint64_t in_use_extra_ns; /* control thread: engine_background.c */
	/* Constant. */
	int dev;
	unsigned index;
	char name[32]; /* for the log: the interface, and the index if there are several */
	/* Shared. */
	_Alignas(64) atomic_uint_fast64_t worked_ns; /* last turn with work. Writer: poller. Reader:
						      * control thread. Relaxed */
	/* Relaxed: hints for engine_set_choose(). */
	atomic_uint load;
	/* The control descriptor is readable: set by the control thread, cleared by a turn. */
	atomic_bool event;
	atomic_bool sleeping; /* Writer: control thread. Reader: threads that post work */
};

/* ---- engine_turn.c --------------------------------------------------------------------------- */

/* Called when stack and instance are open. */
void engine_turn_init(struct engine *engine);
/* The instance's requests hook. ctx: the engine. */
void engine_requests(void *ctx, uint64_t now_ns);
/* Takes a turn. Poller held. True if there was work. */
bool engine_turn(struct engine *engine, uint64_t now_ns);
/* The latest time of the next turn. Poller held. */
uint64_t engine_deadline_ns(const struct engine *engine);
/* Takes turns until the peers have acknowledged what the lanes have sent. Poller not held. */
void engine_deliver(struct engine *engine, uint64_t until_ns);
/* Takes a turn if lanes are closing. True: some still are. No other thread uses the engine. */
bool engine_is_closing(struct engine *engine);
/* Discards the lanes and logs the statistics. No other thread uses the engine. */
void engine_finish(struct engine *engine);

/* ---- engine_background.c --------------------------------------------------------------------- */

/* Engines that the control thread polls while the application does not. Embedded in their set. */
struct background_set {
	struct work work; /* first */
	struct engine *const *engines;
	unsigned count;
};
/* Never waits. */
void background_add(struct background_set *set);
/* When this returns, the control thread no longer polls them. Not called by the control thread. */
void background_remove(struct background_set *set);
/* engine->poller.wake and advance. */
void engine_wake(struct poller *poller);
void engine_advance(struct poller *poller, uint64_t now_ns);

#endif
