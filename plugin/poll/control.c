/* SPDX-License-Identifier: Apache-2.0 */
/* control.c - the control thread; see control.h. */
#include "poll/control.h"
#include "base/util.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "poll/engine.h"
#include "process/log.h"

/*
 * Theory of operation
 *
 * A turn runs posted work, some epoll events, and expired timers; turns of engines follow
 * (engine_background.c).
 *
 * Timers are in an unsorted list, which a turn searches only when the earliest may have expired:
 * there is one for each listener and each comm, and few of them are set.
 *
 * A thread that posts work writes the eventfd only if `woken` is clear. The control thread clears
 * `woken` before it takes the list of posted work, so work posted later writes the eventfd again
 * and ends the next sleep.
 */

#define EVENTS_PER_TURN 64u
#define SLEEP_NS_MAX 1000000000ull

struct control {
	struct poller poller; /* first: aligned */
	int epoll_fd, wake_fd;
	pthread_t id;
	atomic_bool stop, woken;
	/* Owned by the control thread. */
	struct control_timers timers;
	uint64_t earliest_ns;                         /* no timer expires before */
	struct pollfd fds[2 + 2 * ENGINES_TOTAL_MAX]; /* of a sleep */
	/* For control_call(). */
	pthread_mutex_t call_lock; /* protects `done` of calls; held until `id` is set */
	pthread_cond_t call_done;
};

static struct control *control;

struct poller *control_poller(void)
{
	return control ? &control->poller : NULL;
}

/* ---- sources -------------------------------------------------------------------------------- */

static int source_control(struct control_source *source, int op, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };

	return epoll_ctl(control->epoll_fd, op, source->fd, &event) ? -errno : 0;
}

int control_watch(struct control_source *source, int fd, uint32_t events)
{
	int rc;

	source->fd = fd;
	rc = source_control(source, EPOLL_CTL_ADD, events);
	source->watched = !rc;
	return rc;
}

void control_rewatch(struct control_source *source, uint32_t events)
{
	if (source->watched)
		(void)source_control(source, EPOLL_CTL_MOD, events);
}

void control_unwatch(struct control_source *source)
{
	if (!source->watched)
		return;
	(void)source_control(source, EPOLL_CTL_DEL, 0);
	source->watched = false;
}

static void control_events(uint64_t now_ns)
{
	struct epoll_event event;

	/* One by one: a function may unwatch any source. */
	for (unsigned i = 0; i < EVENTS_PER_TURN; i++) {
		struct control_source *source;

		if (epoll_wait(control->epoll_fd, &event, 1, 0) <= 0)
			return;
		source = event.data.ptr;
		source->ready(source, now_ns);
	}
}

/* ---- timers --------------------------------------------------------------------------------- */

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	if (at_ns == UINT64_MAX) {
		control_timer_unlink(timer);
		return;
	}
	timer->at_ns = at_ns;
	if (!timer->link.le_prev)
		LIST_INSERT_HEAD(&control->timers, timer, link);
	if (at_ns < control->earliest_ns)
		control->earliest_ns = at_ns;
}

/* Moves expired timers to a list of their own and runs them: each may set or stop any other. */
static void control_run_timers(uint64_t now_ns)
{
	struct control_timers due = LIST_HEAD_INITIALIZER(due);
	struct control_timer *timer, *next;

	if (now_ns < control->earliest_ns)
		return;
	control->earliest_ns = UINT64_MAX;
	for (timer = LIST_FIRST(&control->timers); timer; timer = next) {
		next = LIST_NEXT(timer, link);
		if (timer->at_ns > now_ns) {
			if (timer->at_ns < control->earliest_ns)
				control->earliest_ns = timer->at_ns;
			continue;
		}
		control_timer_unlink(timer);
		LIST_INSERT_HEAD(&due, timer, link);
	}
	while ((timer = LIST_FIRST(&due))) {
		control_timer_unlink(timer);
		timer->run(timer, now_ns);
	}
}

/* ---- posted work ---------------------------------------------------------------------------- */

void control_wake(void)
{
	uint64_t one = 1;

	if (!atomic_exchange(&control->woken, true))
		(void)!write(control->wake_fd, &one, sizeof(one));
}

static void control_poller_wake(struct poller *poller)
{
	(void)poller;
	control_wake();
}

void control_post(struct work *work)
{
	poller_post(&control->poller, work);
}

/* On the caller's stack. */
struct control_call {
	struct work work;
	void (*run)(void *arg);
	void *arg;
	bool done;
};

static void control_call_run(struct work *work, uint64_t now_ns)
{
	struct control_call *call = container_of(work, struct control_call, work);

	(void)now_ns;
	call->run(call->arg);
	pthread_mutex_lock(&control->call_lock);
	call->done = true;
	pthread_cond_broadcast(&control->call_done);
	pthread_mutex_unlock(&control->call_lock);
}

void control_call(void (*run)(void *arg), void *arg)
{
	struct control_call call = { .work.run = control_call_run, .run = run, .arg = arg };

	if (pthread_equal(pthread_self(), control->id)) {
		run(arg);
		return;
	}
	control_post(&call.work);
	pthread_mutex_lock(&control->call_lock);
	while (!call.done)
		pthread_cond_wait(&control->call_done, &control->call_lock);
	pthread_mutex_unlock(&control->call_lock);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void control_turn(struct poller *poller, uint64_t now_ns)
{
	poller_run_ready(poller, now_ns);
	control_events(now_ns);
	control_run_timers(now_ns);
}

/* Sleeps until the earliest timer, an event, posted work, or something to do for an engine. */
static void control_sleep(void)
{
	struct pollfd *fds = control->fds;
	uint64_t now_ns = clock_now_ns(), until_ns = now_ns + SLEEP_NS_MAX, wait_ns, count;
	struct timespec ts;
	unsigned watched;

	if (control->earliest_ns < until_ns)
		until_ns = control->earliest_ns;
	fds[0] = (struct pollfd){ .fd = control->epoll_fd, .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = control->wake_fd, .events = POLLIN };
	watched = background_sleep(fds + 2, now_ns, &until_ns);
	now_ns = clock_now_ns();
	wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	ts = clock_timespec(wait_ns);
	if (ppoll(fds, 2 + watched, &ts, NULL) <= 0)
		watched = 0;
	else if (fds[1].revents) {
		(void)!read(control->wake_fd, &count, sizeof(count));
		/* Not a store: work of a thread that saw `woken` set must be visible afterwards. */
		atomic_exchange(&control->woken, false);
	}
	background_awake(fds + 2, watched);
}

static void *control_main(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&control->call_lock); /* waits until `id` is set */
	pthread_mutex_unlock(&control->call_lock);
	while (!atomic_load_explicit(&control->stop, memory_order_acquire)) {
		(void)poller_run(&control->poller, clock_now_ns());
		if (!background_turn())
			control_sleep();
	}
	while (poller_run_ready(&control->poller, clock_now_ns()))
		;
	return NULL;
}

/* ---- starting and stopping ------------------------------------------------------------------ */

static void control_free(struct control *c)
{
	if (c->epoll_fd >= 0)
		close(c->epoll_fd);
	if (c->wake_fd >= 0)
		close(c->wake_fd);
	pthread_cond_destroy(&c->call_done);
	pthread_mutex_destroy(&c->call_lock);
	free(c);
}

int control_start(void)
{
	struct control *c;
	int rc = 0;

	if (control)
		return 0;
	if (posix_memalign((void **)&c, 64, sizeof(*c))) {
		WARN("cannot start the control thread: out of memory");
		return -ENOMEM;
	}
	memset(c, 0, sizeof(*c));
	poller_init(&c->poller, control_turn);
	c->poller.wake = control_poller_wake;
	c->earliest_ns = UINT64_MAX;
	pthread_mutex_init(&c->call_lock, NULL);
	pthread_cond_init(&c->call_done, NULL);
	c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->epoll_fd < 0 || c->wake_fd < 0)
		rc = -errno;
	control = c;
	pthread_mutex_lock(&c->call_lock);
	if (!rc)
		rc = thread_start(&c->id, control_main, NULL, "harp-control");
	pthread_mutex_unlock(&c->call_lock);
	if (rc) {
		WARN("cannot start the control thread: %s; raise the limits on open "
		     "files (ulimit -n) and processes (ulimit -u)",
		     strerror(-rc));
		control = NULL;
		control_free(c);
	}
	return rc;
}

void control_stop(void)
{
	struct control *c = control;

	if (!c)
		return;
	atomic_store_explicit(&c->stop, true, memory_order_release);
	control_wake();
	pthread_join(c->id, NULL);
	/* Before the descriptors are closed: a child forked now must not close them again. */
	control = NULL;
	control_free(c);
}

void control_fork_child(void)
{
	if (!control)
		return;
	close(control->epoll_fd);
	close(control->wake_fd);
}
