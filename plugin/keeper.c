/* SPDX-License-Identifier: Apache-2.0 */
/* keeper.c - the thread that lets peers in and opens lanes; see keeper.h. */
#include "keeper.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"
#include "plugin.h"

/*
 * Theory of operation
 *
 * The thread sleeps in poll() on the epoll descriptor, with no baton, and then takes a turn as anybody may: the
 * posted work, a batch of events, the timers that are due. Events are level-triggered, so it does not matter who
 * was faster: what another thread has dealt with is not reported again, and what nobody has is.
 *
 * A source that goes while a batch is being gone through is struck from the batch.
 *
 * Timers are a list: a turn looks through it only when the earliest is due. There is one for each door and
 * each comm, and few of them run.
 */

#define EVENTS_A_TURN 64
#define SLEEP_MS_MAX 1000

struct keeper {
	struct driver driver; /* first: aligned */
	int epoll_fd, wake_fd;
	pthread_t id;
	atomic_bool stop;
	/* Baton. */
	struct keeper_timer *timers;
	uint64_t earliest_ns; /* not after the first of timers */
	struct epoll_event batch[EVENTS_A_TURN];
	int batch_at, batch_count;
	/* When the thread must look again; UINT64_MAX: when woken. Writer: baton. Reader: thread. Whoever comes
	 * second, he who writes until_ns or the thread that sets `sleeping`, sees what the other wrote. */
	atomic_uint_fast64_t until_ns;
	atomic_bool sleeping;
};

static struct keeper *keeper; /* under ctx_lock; who uses the rest has seen it start */

struct driver *keeper_driver(void)
{
	return keeper ? &keeper->driver : NULL;
}

/* ---- sources ---------------------------------------------------------------------------------- */

static int keeper_control(struct keeper_source *source, int op, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };

	return epoll_ctl(keeper->epoll_fd, op, source->fd, &event) ? -errno : 0;
}

int keeper_watch(struct keeper_source *source, int fd, uint32_t events)
{
	int rc;

	source->fd = fd;
	rc = keeper_control(source, EPOLL_CTL_ADD, events);
	source->watched = !rc;
	return rc;
}

void keeper_rewatch(struct keeper_source *source, uint32_t events)
{
	(void)keeper_control(source, EPOLL_CTL_MOD, events);
}

void keeper_unwatch(struct keeper_source *source)
{
	if (!source->watched)
		return;
	(void)keeper_control(source, EPOLL_CTL_DEL, 0);
	source->watched = false;
	for (int i = keeper->batch_at; i < keeper->batch_count; i++)
		if (keeper->batch[i].data.ptr == source)
			keeper->batch[i].data.ptr = NULL;
}

static void keeper_events(uint64_t now_ns)
{
	int count = epoll_wait(keeper->epoll_fd, keeper->batch, EVENTS_A_TURN, 0);

	keeper->batch_count = count > 0 ? count : 0;
	for (keeper->batch_at = 0; keeper->batch_at < keeper->batch_count;) {
		struct keeper_source *source = keeper->batch[keeper->batch_at++].data.ptr;

		if (source)
			source->ready(source, now_ns);
	}
}

/* ---- timers ----------------------------------------------------------------------------------- */

void keeper_timer_set(struct keeper_timer *timer, uint64_t at_ns)
{
	if (at_ns == UINT64_MAX) {
		keeper_timer_unlink(timer);
		return;
	}
	timer->at_ns = at_ns;
	if (!timer->pprev) {
		timer->next = keeper->timers;
		timer->pprev = &keeper->timers;
		if (timer->next)
			timer->next->pprev = &timer->next;
		keeper->timers = timer;
	}
	if (at_ns < keeper->earliest_ns)
		keeper->earliest_ns = at_ns;
}

/* Takes those that are due off the list, then runs them: one may set or stop any other. */
static void keeper_timers(uint64_t now_ns)
{
	struct keeper_timer *due = NULL, *timer, *next;

	if (now_ns < keeper->earliest_ns)
		return;
	keeper->earliest_ns = UINT64_MAX;
	for (timer = keeper->timers; timer; timer = next) {
		next = timer->next;
		if (timer->at_ns > now_ns) {
			if (timer->at_ns < keeper->earliest_ns)
				keeper->earliest_ns = timer->at_ns;
			continue;
		}
		keeper_timer_unlink(timer);
		timer->next = due;
		timer->pprev = &due;
		if (due)
			due->pprev = &timer->next;
		due = timer;
	}
	while (due) {
		timer = due;
		keeper_timer_unlink(timer);
		timer->run(timer, now_ns);
	}
}

/* ---- turns ------------------------------------------------------------------------------------ */

static void keeper_rouse(void)
{
	uint64_t one = 1;

	(void)!write(keeper->wake_fd, &one, sizeof(one));
}

static void keeper_turn(struct driver *driver, uint64_t now_ns)
{
	driver_run_ready(driver, now_ns);
	keeper_events(now_ns);
	keeper_timers(now_ns);
	if (keeper->earliest_ns == atomic_load_explicit(&keeper->until_ns, memory_order_relaxed))
		return;
	atomic_store(&keeper->until_ns, keeper->earliest_ns);
	if (atomic_load(&keeper->sleeping))
		keeper_rouse();
}

/* Work was posted. */
static void keeper_wake(struct driver *driver)
{
	(void)driver;
	keeper_rouse();
}

static void keeper_sleep(void)
{
	struct pollfd fds[2] = { { .fd = keeper->epoll_fd, .events = POLLIN },
				 { .fd = keeper->wake_fd, .events = POLLIN } };
	uint64_t now_ns = driver_clock_ns(), until_ns, wait_ms, count;

	atomic_store(&keeper->sleeping, true);
	until_ns = atomic_load(&keeper->until_ns);
	wait_ms = until_ns > now_ns ? (until_ns - now_ns + 999999u) / 1000000u : 0;
	if (poll(fds, 2, wait_ms < SLEEP_MS_MAX ? (int)wait_ms : SLEEP_MS_MAX) > 0 &&
	    fds[1].revents)
		(void)!read(keeper->wake_fd, &count, sizeof(count));
	atomic_store(&keeper->sleeping, false);
}

static void *keeper_main(void *arg)
{
	(void)arg;
	while (!atomic_load_explicit(&keeper->stop, memory_order_acquire)) {
		/* Who has the baton may have looked before what woke us came. */
		while (!driver_turn(&keeper->driver, driver_clock_ns()))
			sched_yield();
		keeper_sleep();
	}
	return NULL;
}

/* ---- starting and stopping -------------------------------------------------------------------- */

static void keeper_free(struct keeper *k)
{
	if (k->epoll_fd >= 0)
		close(k->epoll_fd);
	if (k->wake_fd >= 0)
		close(k->wake_fd);
	free(k);
}

int keeper_start(void)
{
	struct keeper *k;
	int rc = 0;

	if (keeper)
		return 0;
	if (posix_memalign((void **)&k, 64, sizeof(*k))) {
		WARN("cannot start the thread that lets peers in: out of memory");
		return -ENOMEM;
	}
	memset(k, 0, sizeof(*k));
	driver_init(&k->driver, keeper_turn);
	k->driver.wake = keeper_wake;
	k->earliest_ns = UINT64_MAX;
	atomic_init(&k->until_ns, UINT64_MAX);
	k->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	k->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (k->epoll_fd < 0 || k->wake_fd < 0)
		rc = -errno;
	keeper = k;
	if (!rc)
		rc = thread_start(&keeper->id, keeper_main, NULL, "harp-keeper");
	if (rc) {
		WARN("cannot start the thread that lets peers in: %s; raise the limits on open "
		     "files (ulimit -n) and processes (ulimit -u)",
		     strerror(-rc));
		keeper = NULL;
		keeper_free(k);
	}
	return rc;
}

void keeper_stop(void)
{
	struct keeper *k = keeper;

	if (!k)
		return;
	atomic_store_explicit(&k->stop, true, memory_order_release);
	keeper_rouse();
	pthread_join(k->id, NULL);
	keeper = NULL; /* before: who forks now has a child that closes nothing twice */
	keeper_free(k);
}

void keeper_fork_child(void)
{
	if (!keeper)
		return;
	close(keeper->epoll_fd);
	close(keeper->wake_fd);
}
