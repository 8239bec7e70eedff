/* SPDX-License-Identifier: Apache-2.0 */
/* keeper.c - the control thread; see keeper.h. */
#include "poll/keeper.h"

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
 * The thread sleeps in poll() on the epoll descriptor, with no baton, and then takes a turn as any
 * thread may: the posted work, a batch of events, the timers that are due. Slow timers and tasks
 * may wait for the kernel or for harpd, and no call of the application may: so the control thread
 * alone runs them, and tasks without the baton. Events are level-triggered: an event that one
 * thread has handled is not reported again, and any other is.
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
	pthread_mutex_t task_lock; /* of all that follows */
	pthread_cond_t task_done;
	struct keeper_task *tasks; /* in the order of posting */
	struct keeper_task *running;
};

static struct keeper *keeper; /* under ctx_lock; who uses the rest has seen it start */

struct driver *keeper_driver(void)
{
	return keeper ? &keeper->driver : NULL;
}

bool keeper_may_wait(void)
{
	return pthread_equal(pthread_self(), keeper->id);
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
	bool may_wait = keeper_may_wait();

	if (now_ns < keeper->earliest_ns)
		return;
	keeper->earliest_ns = UINT64_MAX;
	for (timer = keeper->timers; timer; timer = next) {
		next = timer->next;
		if (timer->at_ns > now_ns || (timer->is_slow && !may_wait)) {
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

/* The time at which the thread must look again. */
static void keeper_publish_timer(void)
{
	if (keeper->earliest_ns == atomic_load_explicit(&keeper->until_ns, memory_order_relaxed))
		return;
	atomic_store(&keeper->until_ns, keeper->earliest_ns);
	if (atomic_load(&keeper->sleeping))
		keeper_rouse();
}

static void keeper_turn(struct driver *driver, uint64_t now_ns)
{
	driver_run_ready(driver, now_ns);
	keeper_events(now_ns);
	keeper_timers(now_ns);
	keeper_publish_timer();
}

/* Work was posted. */
static void keeper_wake(struct driver *driver)
{
	(void)driver;
	keeper_rouse();
}

/* ---- tasks ------------------------------------------------------------------------------------ */

void keeper_task_post(struct keeper_task *task, uint64_t at_ns)
{
	struct keeper_task **at;

	pthread_mutex_lock(&keeper->task_lock);
	if (!task->queued) {
		for (at = &keeper->tasks; *at; at = &(*at)->next)
			;
		task->next = NULL;
		task->queued = true;
		task->at_ns = at_ns;
		*at = task;
	} else if (at_ns < task->at_ns) {
		task->at_ns = at_ns;
	}
	pthread_mutex_unlock(&keeper->task_lock);
	keeper_rouse();
}

/* Runs the first one that is due. UINT64_MAX: there is none at all; 0: one has run; else the
 * time of the next. */
static uint64_t keeper_run_task(uint64_t now_ns)
{
	struct keeper_task **at, *task;
	uint64_t next_ns = UINT64_MAX;

	pthread_mutex_lock(&keeper->task_lock);
	for (at = &keeper->tasks; *at && (*at)->at_ns > now_ns; at = &(*at)->next)
		if ((*at)->at_ns < next_ns)
			next_ns = (*at)->at_ns;
	task = *at;
	if (task) {
		*at = task->next;
		task->queued = false;
		keeper->running = task;
	}
	pthread_mutex_unlock(&keeper->task_lock);
	if (!task)
		return next_ns;
	task->run(task);
	pthread_mutex_lock(&keeper->task_lock);
	keeper->running = NULL;
	pthread_cond_broadcast(&keeper->task_done);
	pthread_mutex_unlock(&keeper->task_lock);
	return 0;
}

static void keeper_barrier_run(struct keeper_task *task)
{
	(void)task;
}

/* On the caller's stack: it stays there until it has run. */
void keeper_tasks_wait(void)
{
	struct keeper_task barrier = { .run = keeper_barrier_run };

	keeper_task_post(&barrier, 0);
	pthread_mutex_lock(&keeper->task_lock);
	while (barrier.queued || keeper->running == &barrier)
		pthread_cond_wait(&keeper->task_done, &keeper->task_lock);
	pthread_mutex_unlock(&keeper->task_lock);
}

/* ---- the thread ------------------------------------------------------------------------------- */

/* Until then at the latest. */
static void keeper_sleep(uint64_t task_ns)
{
	struct pollfd fds[2] = { { .fd = keeper->epoll_fd, .events = POLLIN },
				 { .fd = keeper->wake_fd, .events = POLLIN } };
	uint64_t now_ns = driver_clock_ns(), until_ns, wait_ms, count;

	atomic_store(&keeper->sleeping, true);
	until_ns = atomic_load(&keeper->until_ns);
	if (task_ns < until_ns)
		until_ns = task_ns;
	wait_ms = until_ns > now_ns ? (until_ns - now_ns + 999999u) / 1000000u : 0;
	if (poll(fds, 2, wait_ms < SLEEP_MS_MAX ? (int)wait_ms : SLEEP_MS_MAX) > 0 &&
	    fds[1].revents)
		(void)!read(keeper->wake_fd, &count, sizeof(count));
	atomic_store(&keeper->sleeping, false);
}

static void *keeper_main(void *arg)
{
	uint64_t task_ns;

	(void)arg;
	pthread_mutex_lock(&keeper->task_lock); /* until its id is known */
	pthread_mutex_unlock(&keeper->task_lock);
	while (!atomic_load_explicit(&keeper->stop, memory_order_acquire)) {
		/* The holder of the baton may have looked before the event that woke this
		 * thread. */
		while (!driver_turn(&keeper->driver, driver_clock_ns()))
			sched_yield();
		task_ns = keeper_run_task(driver_clock_ns());
		if (task_ns)
			keeper_sleep(task_ns);
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
	pthread_cond_destroy(&k->task_done);
	pthread_mutex_destroy(&k->task_lock);
	free(k);
}

int keeper_start(void)
{
	struct keeper *k;
	int rc = 0;

	if (keeper)
		return 0;
	if (posix_memalign((void **)&k, 64, sizeof(*k))) {
		WARN("cannot start the control thread: out of memory");
		return -ENOMEM;
	}
	memset(k, 0, sizeof(*k));
	driver_init(&k->driver, keeper_turn);
	k->driver.wake = keeper_wake;
	k->earliest_ns = UINT64_MAX;
	pthread_mutex_init(&k->task_lock, NULL);
	pthread_cond_init(&k->task_done, NULL);
	atomic_init(&k->until_ns, UINT64_MAX);
	k->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	k->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (k->epoll_fd < 0 || k->wake_fd < 0)
		rc = -errno;
	keeper = k;
	pthread_mutex_lock(&k->task_lock);
	if (!rc)
		rc = thread_start(&k->id, keeper_main, NULL, "harp-keeper");
	pthread_mutex_unlock(&k->task_lock);
	if (rc) {
		WARN("cannot start the control thread: %s; raise the limits on open "
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
