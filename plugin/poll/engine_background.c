/* SPDX-License-Identifier: Apache-2.0 */
/* engine_background.c - the control thread polls engines while the application does not. */
#include "poll/engine.h"

#include <poll.h>

#include "base/thread.h"
#include "poll/control.h"
#include "process/config.h"

/*
 * Theory of operation
 *
 * A turn is one harp_stack_poll(): received packets, timers, the requests hook (the stack's events
 * and the comms' posted work), transmission. Application threads poll in each call of the plugin.
 * The control thread polls the others: its timer costs the same for eight engines as for one. An
 * engine is
 *   - away: no application thread has polled it for HARP_BACKGROUND_IDLE_US. The control thread
 *     takes turns until there is no work.
 *   - in use: polled, with work in the last QUIET_NS. The control thread sleeps until it would be
 *     away, and up to IN_USE_TIMES as long if it stays in use: a wake-up may take the processor
 *     from the application.
 *   - quiet: polled, without work for QUIET_NS. The control thread sleeps as if the engine were
 *     away, so a rank that waits for a minute costs nothing.
 *
 * Sleep. The control thread sets `sleeping`, executes a fence, and takes one more turn. A thread
 * that posts work adds it to the list, executes a fence, reads `sleeping`, and wakes the control
 * thread. At least one of the two sees the other's store, so no wake-up is lost. An application's
 * turn that found work also wakes it, because it may have set a timer.
 *
 * Deadlines (engine_deadline_ns()) and events end a sleep. Its maximum length only bounds the age
 * of statistics that change without a packet (harp_page.h).
 *
 * A NIC without a descriptor to wait on (most DPDK ports) is polled by a timer: after an eighth of
 * the time since its last work, 50 us to 1 ms.
 */

#define TURNS_EMPTY_MAX 8u /* turns without work before it sleeps */
#define QUIET_NS 20000000ull
#define IN_USE_TIMES 4u
#define SLEEP_NS_MAX 100000000ull
#define NO_FD_NS_MIN 50000u
#define NO_FD_NS_MAX 1000000u
#define NO_FD_SHARE 8u
#define TAKE_TRIES_MAX 64u /* to acquire an engine's poller */

/* Owned by the control thread. */
static struct {
	struct engine *engines[ENGINES_TOTAL_MAX];
	unsigned count, empty; /* empty: turns without work since the last sleep */
	struct engine *asleep[ENGINES_TOTAL_MAX];
	unsigned asleep_count;
	struct engine *watched[ENGINES_TOTAL_MAX]; /* fds[2 * i] and the next are watched[i]'s */
} background;

/* ---- waking the thread ---------------------------------------------------------------------- */

static void engine_wake_thread(struct engine *engine)
{
	/* Once per sleep, even if the thread gets its core much later. */
	if (atomic_load_explicit(&engine->sleeping, memory_order_relaxed) &&
	    atomic_exchange_explicit(&engine->sleeping, false, memory_order_relaxed))
		control_wake();
}

void engine_wake(struct poller *poller)
{
	/* Pairs with the fence in background_sleep(): the work is in the list before `sleeping` is
	 * read. */
	atomic_thread_fence(memory_order_seq_cst);
	engine_wake_thread((struct engine *)poller);
}

/* A turn by an application thread. */
void engine_advance(struct poller *poller, uint64_t now_ns)
{
	struct engine *engine = (struct engine *)poller;

	if (engine_turn(engine, now_ns))
		engine_wake_thread(engine);
}

/* ---- is an engine away, in use, or quiet? --------------------------------------------------- */

/* When no application thread polls it from now on, it is away at this time. */
static uint64_t engine_away_ns(struct engine *engine)
{
	return atomic_load_explicit(&engine->poller.polled_ns, memory_order_relaxed) +
	       plugin_config()->background_idle_ns;
}

/* Does an application thread poll it, with work? Then the control thread leaves it alone. */
static bool engine_in_use(struct engine *engine, uint64_t now_ns)
{
	uint64_t worked_ns = atomic_load_explicit(&engine->worked_ns, memory_order_relaxed);

	return now_ns < engine_away_ns(engine) && now_ns < worked_ns + QUIET_NS;
}

/* ---- sleep ---------------------------------------------------------------------------------- */

static uint64_t earlier_ns(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns < b_ns ? a_ns : b_ns;
}

static bool background_take(struct engine *engine)
{
	/* Pollers give it between two turns. */
	for (unsigned i = 0; i < TAKE_TRIES_MAX; i++) {
		if (poller_try(&engine->poller))
			return true;
		thread_relax();
	}
	return false;
}

/* When an engine without a descriptor must be polled again. */
static uint64_t no_fd_until_ns(const struct engine *engine, uint64_t now_ns)
{
	uint64_t worked_ns = atomic_load_explicit(&engine->worked_ns, memory_order_relaxed);
	uint64_t rest_ns = now_ns > worked_ns ? (now_ns - worked_ns) / NO_FD_SHARE : 0;

	if (rest_ns < NO_FD_NS_MIN)
		rest_ns = NO_FD_NS_MIN;
	return now_ns + earlier_ns(rest_ns, NO_FD_NS_MAX);
}

/* The last turn of an engine before the sleep. Appends its descriptors to the count fds, and lowers
 * *until_ns to its next turn. */
static unsigned background_enter_sleep(struct engine *engine, uint64_t now_ns, struct pollfd *fds,
				       unsigned count, uint64_t *until_ns)
{
	if (!background_take(engine)) {
		/* A thread that holds the poller was preempted on this core: yield. */
		atomic_store_explicit(&engine->sleeping, false, memory_order_relaxed);
		*until_ns = earlier_ns(*until_ns, now_ns + plugin_config()->background_idle_ns);
		return count;
	}
	*until_ns = earlier_ns(*until_ns,
			       engine_turn(engine, now_ns) ? now_ns : engine_deadline_ns(engine));
	poller_release(&engine->poller);
	if (harp_instance_fd(engine->instance) < 0) /* blind */
		*until_ns = earlier_ns(*until_ns, no_fd_until_ns(engine, now_ns));
	background.watched[count / 2] = engine;
	fds[count].fd = harp_instance_fd(engine->instance);
	fds[count++].events = POLLIN;
	fds[count].fd = harp_instance_control_fd(engine->instance);
	fds[count++].events = POLLIN;
	return count;
}

unsigned background_sleep(struct pollfd *fds, uint64_t now_ns, uint64_t *until_ns)
{
	uint64_t idle_ns = plugin_config()->background_idle_ns;
	unsigned count = 0;

	background.asleep_count = 0;
	if (background.count)
		*until_ns = earlier_ns(*until_ns, now_ns + SLEEP_NS_MAX);
	for (unsigned i = 0; i < background.count; i++) {
		struct engine *engine = background.engines[i];

		if (engine_in_use(engine, now_ns)) {
			*until_ns = earlier_ns(*until_ns,
					       engine_away_ns(engine) + engine->in_use_extra_ns);
			/* If it stays in use, the next sleep is longer. */
			engine->in_use_extra_ns = earlier_ns(2 * engine->in_use_extra_ns + idle_ns,
							     (IN_USE_TIMES - 1) * idle_ns);
			continue;
		}
		engine->in_use_extra_ns = 0;
		atomic_store_explicit(&engine->sleeping, true, memory_order_relaxed);
		background.asleep[background.asleep_count++] = engine;
	}
	/* Pairs with engine_wake(): `sleeping` is set before the last look. */
	atomic_thread_fence(memory_order_seq_cst);
	for (unsigned i = 0; i < background.asleep_count; i++)
		count = background_enter_sleep(background.asleep[i], now_ns, fds, count, until_ns);
	return count;
}

void background_awake(const struct pollfd *fds, unsigned count)
{
	/* The host's events stay ready until a tick reads them. */
	for (unsigned i = 1; i < count; i += 2)
		if (fds[i].revents)
			atomic_store_explicit(&background.watched[i / 2]->event, true,
					      memory_order_relaxed);
	for (unsigned i = 0; i < background.asleep_count; i++)
		atomic_store_explicit(&background.asleep[i]->sleeping, false, memory_order_relaxed);
}

/* ---- turns ---------------------------------------------------------------------------------- */

bool background_turn(void)
{
	bool worked = false, away = false;

	for (unsigned i = 0; i < background.count; i++) {
		struct engine *engine = background.engines[i];
		uint64_t now_ns = clock_now_ns();

		if (now_ns < engine_away_ns(engine) || !poller_try(&engine->poller))
			continue;
		away = true;
		worked |= engine_turn(engine, now_ns);
		poller_release(&engine->poller);
	}
	background.empty = worked || !away ? 0 : background.empty + 1;
	if (worked || (away && background.empty <= TURNS_EMPTY_MAX))
		return true;
	background.empty = 0;
	return false;
}

/* ---- engines that open and close ------------------------------------------------------------ */

static void background_add_run(struct work *work, uint64_t now_ns)
{
	const struct engine_set *set = container_of(work, struct engine_set, background_work);

	(void)now_ns;
	for (unsigned i = 0; i < set->count; i++)
		background.engines[background.count++] = set->engines[i];
}

void background_add(struct engine_set *set)
{
	set->background_work.run = background_add_run;
	control_post(&set->background_work);
}

static void background_remove_run(void *arg)
{
	const struct engine_set *set = arg;
	unsigned count = 0;

	for (unsigned i = 0; i < background.count; i++) {
		struct engine *engine = background.engines[i];
		bool removed = false;

		for (unsigned j = 0; j < set->count; j++)
			removed |= set->engines[j] == engine;
		if (!removed)
			background.engines[count++] = engine;
	}
	background.count = count;
}

void background_remove(struct engine_set *set)
{
	control_call(background_remove_run, set);
}
