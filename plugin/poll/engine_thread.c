/* SPDX-License-Identifier: Apache-2.0 */
/* engine_thread.c - the background poller, which polls engines while the application does not. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"
#include "poll/engine_impl.h"
#include "process/config.h"

/*
 * Theory of operation
 *
 * A turn is one harp_stack_poll(): received packets, timers, the requests hook (the stack's events
 * and the comms' posted work), transmission. Application threads poll in each call of the plugin.
 * One background poller serves all engines of a device, because its timer costs the same for eight
 * engines as for one. An engine is
 *   - away: no application thread has polled it for HARP_BACKGROUND_IDLE_US. The background poller
 *     takes turns until there is no work.
 *   - in use: polled, with work in the last QUIET_NS. The background poller sleeps until it would
 *     be away.
 *   - quiet: polled, without work for QUIET_NS. The background poller sleeps as if the engine were
 *     away, so a rank that waits for a minute costs nothing.
 *
 * Sleep. The thread sets `sleeping`, executes a fence, and takes one more turn. A thread that posts
 * work adds it to the list, executes a fence, reads `sleeping`, and writes the eventfd. At least
 * one of the two sees the other's store, so no wake-up is lost. An application's turn that found
 * work also wakes the thread, because it may have set a timer.
 *
 * Deadlines (engine_deadline_ns()) and events end a sleep. Its maximum length only bounds the age
 * of statistics that change without a packet (harp_page.h).
 *
 * A NIC without a descriptor to wait on (most DPDK ports) is polled by a timer: after an eighth of
 * the time since its last work, 50 us to 1 ms.
 */

#define TURNS_EMPTY_MAX 8u /* turns without work before it sleeps */
#define QUIET_NS 20000000ull
#define SLEEP_NS_MAX 100000000ull
#define BLIND_NS_MIN 50000u
#define BLIND_NS_MAX 1000000u
#define BLIND_SHARE 8u
#define TAKE_TRIES_MAX 64u /* to acquire an engine's poller */

struct engine_thread {
	uint64_t idle_ns; /* HARP_BACKGROUND_IDLE_US */
	struct engine *const *engines;
	unsigned count;
	pthread_t id;
	int wake_fd;
	atomic_bool stop;
	/* Used by the thread only. */
	struct pollfd fds[1 + 2 * ENGINES_MAX];
	struct engine *asleep[ENGINES_MAX];
	struct engine *watched[ENGINES_MAX]; /* fds[1 + 2 * i] and the next are watched[i]'s */
};

/* ---- waking the thread ---------------------------------------------------------------------- */

static void engine_wake_thread(struct engine *engine)
{
	uint64_t one = 1;

	/* One write per sleep, even if the thread gets its core much later. */
	if (atomic_load_explicit(&engine->sleeping, memory_order_relaxed) &&
	    atomic_exchange_explicit(&engine->sleeping, false, memory_order_relaxed))
		(void)!write(engine->thread->wake_fd, &one, sizeof(one));
}

void engine_wake(struct poller *poller)
{
	/* Pairs with the fence in thread_sleep(): the work is in the list before `sleeping` is
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

static uint64_t engine_polled_ns(struct engine *engine)
{
	return atomic_load_explicit(&engine->poller.polled_ns, memory_order_relaxed);
}

/* Does an application thread poll it? */
static bool engine_is_polled(struct engine *engine, const struct engine_thread *thread,
			     uint64_t now_ns)
{
	return now_ns < engine_polled_ns(engine) + thread->idle_ns;
}

/* Does an application thread poll it, with work? Then the background poller leaves it alone. */
static bool engine_in_use(struct engine *engine, const struct engine_thread *thread,
			  uint64_t now_ns)
{
	uint64_t worked_ns = atomic_load_explicit(&engine->worked_ns, memory_order_relaxed);

	return engine_is_polled(engine, thread, now_ns) && now_ns < worked_ns + QUIET_NS;
}

/* ---- sleep ---------------------------------------------------------------------------------- */

static uint64_t earlier_ns(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns < b_ns ? a_ns : b_ns;
}

static bool thread_take(struct engine *engine)
{
	/* Pollers give it between two turns. */
	for (unsigned i = 0; i < TAKE_TRIES_MAX; i++) {
		if (poller_try(&engine->poller))
			return true;
		thread_relax();
	}
	return false;
}

/* When a blind engine must be looked at again. */
static uint64_t blind_until_ns(const struct engine *engine, uint64_t now_ns)
{
	uint64_t worked_ns = atomic_load_explicit(&engine->worked_ns, memory_order_relaxed);
	uint64_t rest_ns = now_ns > worked_ns ? (now_ns - worked_ns) / BLIND_SHARE : 0;

	if (rest_ns < BLIND_NS_MIN)
		rest_ns = BLIND_NS_MIN;
	return now_ns + earlier_ns(rest_ns, BLIND_NS_MAX);
}

/* The last look at an engine for which we are about to sleep; what to watch goes behind the count
 * fds, and when it must be looked at again to *until_ns. */
static unsigned thread_last_look(struct engine_thread *thread, struct engine *engine,
				 uint64_t now_ns, unsigned count, uint64_t *until_ns)
{
	struct pollfd *fds = thread->fds;

	if (!thread_take(engine)) {
		/* A thread that holds the poller was preempted on this core: yield. */
		atomic_store_explicit(&engine->sleeping, false, memory_order_relaxed);
		*until_ns = earlier_ns(*until_ns, now_ns + thread->idle_ns);
		return count;
	}
	*until_ns = earlier_ns(*until_ns,
			       engine_turn(engine, now_ns) ? now_ns : engine_deadline_ns(engine));
	poller_release(&engine->poller);
	if (harp_instance_fd(engine->instance) < 0) /* blind */
		*until_ns = earlier_ns(*until_ns, blind_until_ns(engine, now_ns));
	thread->watched[count / 2] = engine;
	fds[count].fd = harp_instance_fd(engine->instance);
	fds[count++].events = POLLIN;
	fds[count].fd = harp_instance_control_fd(engine->instance);
	fds[count++].events = POLLIN;
	return count;
}

/* A descriptor is ready. The host's events stay ready until a tick reads them. */
static void thread_woken(struct engine_thread *thread, unsigned fds)
{
	uint64_t count;

	if (thread->fds[0].revents)
		(void)!read(thread->wake_fd, &count, sizeof(count));
	for (unsigned i = 1; i < fds; i += 2)
		if (thread->fds[i + 1].revents)
			atomic_store_explicit(&thread->watched[i / 2]->event, true,
					      memory_order_relaxed);
}

/* Sleeps until something is to be done. */
static void thread_sleep(struct engine_thread *thread)
{
	uint64_t now_ns = clock_now_ns(), until_ns = now_ns + SLEEP_NS_MAX, wait_ns;
	unsigned asleep = 0, fds = 1;
	struct timespec ts;

	for (unsigned i = 0; i < thread->count; i++) {
		struct engine *engine = thread->engines[i];

		if (engine_in_use(engine, thread, now_ns)) {
			until_ns = earlier_ns(until_ns, engine_polled_ns(engine) + thread->idle_ns);
			continue;
		}
		atomic_store_explicit(&engine->sleeping, true, memory_order_relaxed);
		thread->asleep[asleep++] = engine;
	}
	/* Pairs with engine_wake(): `sleeping` is set before the last look. */
	atomic_thread_fence(memory_order_seq_cst);
	for (unsigned i = 0; i < asleep; i++)
		fds = thread_last_look(thread, thread->asleep[i], now_ns, fds, &until_ns);
	now_ns = clock_now_ns();
	if (until_ns > now_ns) {
		wait_ns = until_ns - now_ns;
		ts.tv_sec = (time_t)(wait_ns / 1000000000u);
		ts.tv_nsec = (long)(wait_ns % 1000000000u);
		if (ppoll(thread->fds, fds, &ts, NULL) > 0)
			thread_woken(thread, fds);
	}
	for (unsigned i = 0; i < asleep; i++)
		atomic_store_explicit(&thread->asleep[i]->sleeping, false, memory_order_relaxed);
}

static bool thread_stopped(const struct engine_thread *thread)
{
	return atomic_load_explicit(&thread->stop, memory_order_acquire);
}

/* ---- the background poller ------------------------------------------------------------------ */

static void *background_main(void *arg)
{
	struct engine_thread *thread = arg;
	unsigned empty = 0;

	while (!thread_stopped(thread)) {
		bool worked = false, away = false;

		for (unsigned i = 0; i < thread->count; i++) {
			struct engine *engine = thread->engines[i];
			uint64_t now_ns = clock_now_ns();

			if (engine_is_polled(engine, thread, now_ns) ||
			    !poller_try(&engine->poller))
				continue;
			away = true;
			worked |= engine_turn(engine, now_ns);
			poller_release(&engine->poller);
		}
		if (worked || (away && ++empty <= TURNS_EMPTY_MAX)) {
			empty = worked ? 0 : empty;
			continue;
		}
		empty = 0;
		thread_sleep(thread);
	}
	return NULL;
}

/* ---- starting and stopping ------------------------------------------------------------------ */

int engine_thread_start(struct engine_thread **out, struct engine *const *engines, unsigned count,
			char *why, size_t why_len)
{
	struct engine_thread *thread = calloc(1, sizeof(*thread));
	int rc;

	*out = NULL;
	if (!thread) {
		snprintf(why, why_len, "out of memory");
		return -ENOMEM;
	}
	thread->idle_ns = plugin_config()->background_idle_ns;
	thread->engines = engines;
	thread->count = count;
	thread->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (thread->wake_fd < 0) {
		rc = -errno;
		snprintf(why, why_len, "eventfd: %s", strerror(-rc));
		free(thread);
		return rc;
	}
	thread->fds[0] = (struct pollfd){ .fd = thread->wake_fd, .events = POLLIN };
	for (unsigned i = 0; i < count; i++)
		engines[i]->thread = thread;
	rc = thread_start(&thread->id, background_main, thread, "harp-background");
	if (rc) {
		snprintf(why, why_len, "cannot start a thread: %s", strerror(-rc));
		close(thread->wake_fd);
		free(thread);
		return rc;
	}
	*out = thread;
	return 0;
}

void engine_thread_stop(struct engine_thread *thread)
{
	uint64_t one = 1;

	if (!thread)
		return;
	atomic_store_explicit(&thread->stop, true, memory_order_release);
	(void)!write(thread->wake_fd, &one, sizeof(one));
	pthread_join(thread->id, NULL);
	close(thread->wake_fd);
	free(thread);
}

void engine_thread_fork_child(struct engine_thread *thread)
{
	close(thread->wake_fd);
}
