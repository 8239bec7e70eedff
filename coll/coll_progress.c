/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_progress.c - chooses the thread that advances the groups of the process.
 *
 * Theory of operation. A thread that waits for an operation polls: it acquires runtime.lock if that
 * is free, advances all active groups and checks its request. While another thread polls, it only
 * checks. If operations are in progress and no thread waits, the background thread polls, after
 * GRACE_NS in which the caller may begin to wait. Without operations in progress it sleeps without
 * a timeout.
 *
 * ncclNet has no event to wait for. A poller without progress spins, then yields, then sleeps for
 * growing times; meanwhile the plugin's control thread advances its connections. On a processor
 * that another thread uses, sched_yield() returns after that thread's time slice (milliseconds).
 * There the poller sleeps instead, because the scheduler prefers a thread that wakes up.
 *
 * Fork. A child of a process with open groups shares their connections, so all its calls fail and
 * access no state. This library has no handler before fork() that acquires runtime.lock: the
 * plugin's handlers, which run earlier, may hold a lock that the poller waits for.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "coll_impl.h"

#define SPIN_NS 2000
#define YIELD_NS (2 * COLL_NSEC_PER_MSEC)
#define BUSY_YIELD_NS COLL_NSEC_PER_MSEC /* a longer sched_yield(): the processor is busy */
/* For this time after two long yields in a row, the poller sleeps instead. The time doubles with
 * each further long yield. A single one may be due to a kernel thread. */
#define BUSY_NS_MIN (8 * COLL_NSEC_PER_MSEC)
#define BUSY_NS_MAX (256 * COLL_NSEC_PER_MSEC)
#define SLEEP_NS_MIN 20000
#define SLEEP_NS_MAX (500 * 1000)
#define GRACE_NS 50000 /* from the wake-up of the background thread to its first poll */
#define LINGER_NS (50 * COLL_NSEC_PER_MSEC) /* from its last work to its sleep without a timeout */

struct runtime runtime = { .lock = PTHREAD_MUTEX_INITIALIZER,
			   .process_lock = PTHREAD_MUTEX_INITIALIZER,
			   .notify = TAILQ_HEAD_INITIALIZER(runtime.notify) };

static struct {
	pthread_t id;
	pthread_mutex_t lock; /* protects the following fields */
	pthread_cond_t wake;
	bool is_running, stop, kicked;
	atomic_bool asleep;
} background = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

int64_t coll_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * COLL_NSEC_PER_SEC + now.tv_nsec;
}

void runtime_log(int level, const char *fmt, ...)
{
	char text[HARP_COLL_ERROR_BYTES];
	va_list args;

	if (!runtime.log)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	runtime.log(runtime.log_arg, level, text);
}

void runtime_lock(void)
{
	pthread_mutex_lock(&runtime.lock);
}

/* Reserves a group with work in the store for this thread. NULL: there is none. */
static struct harp_coll *runtime_take_store_work(void)
{
	struct harp_coll *group;

	pthread_mutex_lock(&runtime.lock);
	LIST_FOREACH(group, &runtime.groups, link)
	if (!group->is_in_store && (group->state == GROUP_FAILING || group->has_stalled))
		break;
	if (group)
		group->is_in_store = true;
	else
		runtime.has_store_work = false;
	pthread_mutex_unlock(&runtime.lock);
	return group;
}

static void runtime_call_notify(void)
{
	for (;;) {
		struct harp_coll_request *op;
		void (*notify)(void *arg);
		void *arg;

		pthread_mutex_lock(&runtime.lock);
		op = TAILQ_FIRST(&runtime.notify);
		if (op) {
			TAILQ_REMOVE(&runtime.notify, op, link);
			notify = op->notify;
			arg = op->notify_arg;
			op->notify = NULL;
			if (op->is_released)
				op_put(op);
		}
		pthread_mutex_unlock(&runtime.lock);
		if (!op)
			return;
		notify(arg);
	}
}

void runtime_unlock(void)
{
	bool has_notify = !TAILQ_EMPTY(&runtime.notify), has_store_work = runtime.has_store_work;
	struct harp_coll *group;

	pthread_mutex_unlock(&runtime.lock);
	if (has_store_work) {
		while ((group = runtime_take_store_work())) {
			if (group->state == GROUP_FAILING)
				meet_settle(group);
			else
				meet_diagnose(group);
		}
		has_notify = true;
	}
	if (has_notify)
		runtime_call_notify();
}

static int runtime_progress(void)
{
	int64_t now_ns = coll_now_ns();
	struct harp_coll *group, *next;
	int moved = 0;

	if (runtime.inbound_expected)
		moved = link_accept_progress(now_ns);
	/* Groups that become active meanwhile are inserted at the front. */
	LIST_FOREACH(group, &runtime.active, active_link)
	moved |= group_progress(group, now_ns);
	for (group = LIST_FIRST(&runtime.active); group; group = next) {
		next = LIST_NEXT(group, active_link);
		if (!group_is_active(group)) {
			LIST_REMOVE(group, active_link);
			group->is_active = false;
		}
	}
	atomic_store_explicit(&runtime.has_active, !LIST_EMPTY(&runtime.active),
			      memory_order_relaxed);
	return moved;
}

bool runtime_poll(void)
{
	bool moved;

	if (pthread_mutex_trylock(&runtime.lock))
		return false;
	moved = runtime_progress() > 0;
	runtime_unlock();
	return moved;
}

static void runtime_yield(void)
{
	static _Thread_local int64_t busy_until_ns, busy_ns;
	int64_t before_ns = coll_now_ns(), after_ns;

	if (before_ns < busy_until_ns) {
		nanosleep(&(struct timespec){ .tv_nsec = SLEEP_NS_MIN }, NULL);
		return;
	}
	sched_yield();
	after_ns = coll_now_ns();
	if (after_ns - before_ns < BUSY_YIELD_NS) {
		busy_ns = 0;
		return;
	}
	busy_until_ns = after_ns + busy_ns;
	busy_ns = !busy_ns ? BUSY_NS_MIN : busy_ns < BUSY_NS_MAX ? 2 * busy_ns : BUSY_NS_MAX;
}

/* idle_ns: time since the last progress. */
static void runtime_pause(int64_t idle_ns)
{
	if (idle_ns < SPIN_NS)
		return;
	if (idle_ns < YIELD_NS) {
		runtime_yield();
		return;
	}
	idle_ns /= 64;
	if (idle_ns < SLEEP_NS_MIN)
		idle_ns = SLEEP_NS_MIN;
	if (idle_ns > SLEEP_NS_MAX)
		idle_ns = SLEEP_NS_MAX;
	nanosleep(&(struct timespec){ .tv_nsec = idle_ns }, NULL);
}

static bool runtime_has_work(void)
{
	return atomic_load_explicit(&runtime.has_active, memory_order_relaxed);
}

void runtime_wait(const atomic_int *result, int64_t deadline_ns)
{
	int64_t moved_ns = 0;

	atomic_fetch_add(&runtime.waiters, 1);
	while (atomic_load_explicit(result, memory_order_acquire) == 1) {
		int64_t now_ns;

		if (runtime_poll()) {
			moved_ns = 0;
			continue;
		}
		now_ns = coll_now_ns();
		if (!moved_ns)
			moved_ns = now_ns;
		if (deadline_ns && now_ns >= deadline_ns)
			break;
		runtime_pause(now_ns - moved_ns);
	}
	atomic_fetch_sub(&runtime.waiters, 1);
	/* The operation's last messages may still wait for a connection, or for space. */
	if (runtime_has_work())
		runtime_kick();
}

/* ---- the background thread ------------------------------------------------------------------- */

/* Returns when there is work or the thread must stop. */
static void background_sleep(void)
{
	pthread_mutex_lock(&background.lock);
	atomic_store(&background.asleep, true);
	while (!background.stop && !background.kicked && !runtime_has_work())
		pthread_cond_wait(&background.wake, &background.lock);
	background.kicked = false;
	atomic_store(&background.asleep, false);
	pthread_mutex_unlock(&background.lock);
}

static bool background_should_stop(void)
{
	bool stop;

	pthread_mutex_lock(&background.lock);
	stop = background.stop;
	pthread_mutex_unlock(&background.lock);
	return stop;
}

static void *background_main(void *unused)
{
	int64_t worked_ns = coll_now_ns(), moved_ns = worked_ns;

	(void)unused;
	while (!background_should_stop()) {
		int64_t now_ns = coll_now_ns();

		if (!runtime_has_work() && now_ns - worked_ns > LINGER_NS) {
			background_sleep();
			worked_ns = moved_ns = coll_now_ns();
			nanosleep(&(struct timespec){ .tv_nsec = GRACE_NS }, NULL);
			continue;
		}
		if (atomic_load(&runtime.waiters) > 0 || !runtime_has_work()) {
			nanosleep(&(struct timespec){ .tv_nsec = COLL_NSEC_PER_MSEC }, NULL);
			moved_ns = coll_now_ns();
			if (runtime_has_work())
				worked_ns = moved_ns;
			continue;
		}
		worked_ns = now_ns;
		if (runtime_poll())
			moved_ns = now_ns;
		else
			runtime_pause(now_ns - moved_ns);
	}
	return NULL;
}

void runtime_kick(void)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load(&background.asleep))
		return;
	pthread_mutex_lock(&background.lock);
	background.kicked = true;
	pthread_cond_signal(&background.wake);
	pthread_mutex_unlock(&background.lock);
}

int runtime_thread_start(void)
{
	sigset_t all, old;
	int rc;

	if (background.is_running)
		return 0;
	background.stop = background.kicked = false;
	sigfillset(&all); /* the application's threads handle signals */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&background.id, NULL, background_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return -rc;
	pthread_setname_np(background.id, "harp-coll");
	background.is_running = true;
	return 0;
}

void runtime_thread_stop(void)
{
	if (!background.is_running)
		return;
	pthread_mutex_lock(&background.lock);
	background.stop = true;
	pthread_cond_signal(&background.wake);
	pthread_mutex_unlock(&background.lock);
	pthread_join(background.id, NULL);
	background.is_running = false;
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* Other threads of the parent may have held the locks. */
static void fork_child(void)
{
	pthread_mutex_init(&runtime.lock, NULL);
	pthread_mutex_init(&runtime.process_lock, NULL);
	pthread_mutex_init(&background.lock, NULL);
	if (atomic_load(&runtime.groups_count))
		atomic_store(&runtime.is_child, true);
}

__attribute__((constructor)) static void runtime_load(void)
{
	pthread_atfork(NULL, NULL, fork_child);
}
