/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive.c - polls stacks from threads that wait, or else from the background poller.
 *
 * Theory of operation
 *
 * The lock guards the stacks and everything in struct drive that has no other comment. A thread
 * releases it before it sleeps.
 *
 * One of the threads in drive_wait() is the leader: it polls, and sleeps on the descriptors of the
 * NICs. The others, the followers, sleep on the condition variable. The leader signals that after
 * each poll with work, and when it stops leading.
 *
 * The background poller polls when there is no leader and none has polled for BACKGROUND_TICK_NS.
 * While there is a leader, it sleeps on a timer only, for longer each time. A leader that stops
 * without followers wakes it from a long sleep.
 *
 * No wake-up is lost. A sleeper writes `until_ns` under the lock before it releases that. A thread
 * that changes the time of a stack's next poll (drive_leave()) compares it with `until_ns`, and
 * writes to the sleeper's eventfd if the sleeper must wake earlier.
 */
#include "drive.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

#define BACKGROUND_TICK_NS UINT64_C(1000000)
#define BACKGROUND_LONG_NS UINT64_C(200000000)
#define CONTROL_NS UINT64_C(250000000)    /* longest interval of harp_instance_control() */
#define SLICE_NS UINT64_C(100000000)      /* interval of checks for signals */
#define SLEEP_MAX_NS UINT64_C(1000000000) /* of the background poller */

/* A thread that sleeps in ppoll(). until_ns is 0 while it is awake. */
struct sleeper {
	int event_fd;
	uint64_t until_ns;
};

struct drive {
	pthread_mutex_t lock;
	pthread_cond_t work_done;
	pthread_t owner; /* of the lock; valid while depth > 0, and only for the owner itself */
	atomic_uint depth;
	atomic_uint waiters; /* threads that wait for the lock: the leader yields to them */
	struct drive_member members[DRIVE_MEMBERS_MAX];
	uint64_t control_due_ns[DRIVE_MEMBERS_MAX];
	unsigned count;
	struct drive_options opt;
	pid_t pid;
	bool has_background; /* background_thread runs */
	bool stopping, leading;
	unsigned waiting, following;
	int fatal; /* -ENODEV after the removal of an interface */
	uint64_t lead_ns, work_ns;
	struct sleeper leader, background;
	pthread_t background_thread;
};

uint64_t drive_now_ns(void)
{
	return clock_ns();
}

bool drive_ours(const struct drive *d)
{
	return d->pid == getpid();
}

/* ---- the lock ------------------------------------------------------------------------------- */

bool drive_inside(const struct drive *d)
{
	/* Only this thread writes its own id to owner, and only while it holds the lock. */
	return atomic_load_explicit(&d->depth, memory_order_relaxed) > 0 &&
	       pthread_equal(__atomic_load_n(&d->owner, __ATOMIC_RELAXED), pthread_self());
}

static void lock_set_owner(struct drive *d)
{
	__atomic_store_n(&d->owner, pthread_self(), __ATOMIC_RELAXED);
	atomic_store_explicit(&d->depth, 1, memory_order_relaxed);
}

static void lock_take(struct drive *d)
{
	atomic_fetch_add_explicit(&d->waiters, 1, memory_order_relaxed);
	pthread_mutex_lock(&d->lock);
	atomic_fetch_sub_explicit(&d->waiters, 1, memory_order_relaxed);
	lock_set_owner(d);
}

static void lock_release(struct drive *d)
{
	atomic_store_explicit(&d->depth, 0, memory_order_relaxed);
	pthread_mutex_unlock(&d->lock);
}

/* A mutex is not fair: a thread that locks it again at once starves the others. */
static void lock_yield(struct drive *d)
{
	lock_release(d);
	for (unsigned i = 0; i < 100 && atomic_load_explicit(&d->waiters, memory_order_relaxed);
	     i++)
		sched_yield();
	lock_take(d);
}

static void wake(struct sleeper *sleeper)
{
	static const uint64_t one = 1;
	ssize_t written;

	if (!sleeper->until_ns)
		return;
	sleeper->until_ns = 0;
	written = write(sleeper->event_fd, &one, sizeof(one));
	(void)written; /* it fails only if the counter is full, and then the sleeper wakes anyway */
}

/* ---- advancing ------------------------------------------------------------------------------ */

static void advance_control(struct drive *d, unsigned i, uint64_t now_ns)
{
	struct harp_instance *instance = d->members[i].instance;

	if (now_ns < d->control_due_ns[i] && !harp_instance_control_pending(instance))
		return;
	d->control_due_ns[i] = now_ns + CONTROL_NS;
	if (harp_instance_control(instance, now_ns) == -ENODEV)
		d->fatal = -ENODEV;
}

/* Polls every stack once; wakes the followers if there was work. */
static bool advance(struct drive *d, uint64_t now_ns)
{
	int work = 0;

	for (unsigned i = 0; i < d->count; i++) {
		work += harp_stack_poll(d->members[i].stack, now_ns);
		if (d->members[i].instance)
			advance_control(d, i, now_ns);
	}
	if (work) {
		d->work_ns = now_ns;
		if (d->following)
			pthread_cond_broadcast(&d->work_done);
	}
	return work != 0;
}

static uint64_t next_ns(const struct drive *d)
{
	uint64_t next = DRIVE_FOREVER, at;

	for (unsigned i = 0; i < d->count; i++) {
		const struct drive_member *member = &d->members[i];

		at = harp_stack_next_deadline_ns(member->stack);
		if (at < next)
			next = at;
		if (member->nic->ops->next_ns) {
			at = member->nic->ops->next_ns(member->nic);
			if (at < next)
				next = at;
		}
		if (member->instance && d->control_due_ns[i] < next)
			next = d->control_due_ns[i];
	}
	return next;
}

#define POLL_INTERVAL_NS_MIN UINT64_C(50000)
#define POLL_INTERVAL_NS_MAX UINT64_C(1000000)
#define POLL_INTERVAL_DIVISOR 8u

/* The descriptors that wake a sleeper: its eventfd, and each member's NIC and netlink worker. */
struct wait_set {
	struct pollfd fds[1 + 2 * DRIVE_MEMBERS_MAX];
	unsigned control_of[1 + 2 * DRIVE_MEMBERS_MAX]; /* member + 1; 0: no control descriptor */
	nfds_t count;
};

/*
 * A DPDK device has no descriptor to wait on. A waiting thread polls it again after an eighth of
 * the idle time so far, the background poller after the longest interval.
 */
static uint64_t poll_interval_ns(const struct drive *d, const struct sleeper *sleeper,
				 uint64_t now_ns)
{
	uint64_t interval_ns = (now_ns - d->work_ns) / POLL_INTERVAL_DIVISOR;

	if (interval_ns < POLL_INTERVAL_NS_MIN)
		interval_ns = POLL_INTERVAL_NS_MIN;
	if (interval_ns > POLL_INTERVAL_NS_MAX || sleeper == &d->background)
		interval_ns = POLL_INTERVAL_NS_MAX;
	for (unsigned i = 0; i < d->count; i++) {
		const struct drive_member *member = &d->members[i];

		if (member->instance && harp_instance_fd(member->instance) < 0)
			return interval_ns;
	}
	return DRIVE_FOREVER;
}

static void wait_set_add(struct wait_set *set, int fd, unsigned control_of)
{
	set->fds[set->count] = (struct pollfd){ .fd = fd, .events = POLLIN };
	set->control_of[set->count++] = control_of;
}

/*
 * Releases the lock and sleeps until until_ns or wake(). nics: a packet, or a change of the
 * kernel's tables, wakes it, too.
 */
static void sleep_until(struct drive *d, struct sleeper *sleeper, uint64_t until_ns, bool nics)
{
	uint64_t now_ns = drive_now_ns(), drained, left_ns;
	struct wait_set set = { .count = 0 };
	struct timespec left;

	if (until_ns <= now_ns)
		return;
	if (nics && until_ns - now_ns > poll_interval_ns(d, sleeper, now_ns))
		until_ns = now_ns + poll_interval_ns(d, sleeper, now_ns);
	wait_set_add(&set, sleeper->event_fd, 0);
	for (unsigned i = 0; nics && i < d->count; i++) {
		const struct drive_member *member = &d->members[i];

		if (member->nic->ops->fd)
			wait_set_add(&set, member->nic->ops->fd(member->nic), 0);
		if (member->instance)
			wait_set_add(&set, harp_instance_control_fd(member->instance), i + 1);
	}
	sleeper->until_ns = until_ns;
	lock_release(d);
	left_ns = until_ns - now_ns;
	left = clock_timespec(left_ns);
	if (ppoll(set.fds, set.count, &left, NULL) <= 0)
		set.count = 0; /* nothing is readable; after a signal revents are not set */
	else if (set.fds[0].revents && read(sleeper->event_fd, &drained, sizeof(drained)) < 0)
		drained = 0; /* the eventfd is not readable */
	lock_take(d);
	sleeper->until_ns = 0;
	for (nfds_t i = 1; i < set.count; i++)
		if (set.fds[i].revents && set.control_of[i])
			d->control_due_ns[set.control_of[i] - 1] = 0;
}

void drive_enter(struct drive *d)
{
	if (drive_inside(d))
		atomic_fetch_add_explicit(&d->depth, 1, memory_order_relaxed);
	else
		lock_take(d);
}

/* Sends data that a call has queued, and wakes sleepers if the next poll is earlier now. */
static void update_polls(struct drive *d)
{
	uint64_t now_ns = drive_now_ns(), at = next_ns(d);

	if (d->stopping)
		return;
	if (at <= now_ns) {
		if (advance(d, now_ns))
			wake(&d->leader);
		at = next_ns(d);
	}
	if (at < d->leader.until_ns)
		wake(&d->leader);
	/* While there is a leader, the background poller's sleep does not depend on the stacks. */
	if (!d->leading && at < d->background.until_ns)
		wake(&d->background);
}

void drive_advance(struct drive *d)
{
	if (!d->stopping && advance(d, drive_now_ns()))
		wake(&d->leader);
}

void drive_leave(struct drive *d)
{
	if (atomic_load_explicit(&d->depth, memory_order_relaxed) > 1) {
		atomic_fetch_sub_explicit(&d->depth, 1, memory_order_relaxed);
		return;
	}
	update_polls(d);
	lock_release(d);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static void follow(struct drive *d, uint64_t until_ns)
{
	struct timespec until = clock_timespec(until_ns);

	d->following++;
	atomic_store_explicit(&d->depth, 0, memory_order_relaxed);
	pthread_cond_timedwait(&d->work_done, &d->lock, &until);
	lock_set_owner(d);
	d->following--;
}

/* One round of the leader: poll, and sleep after spin_ns without work. */
static void lead(struct drive *d, uint64_t now_ns, uint64_t until_ns)
{
	uint64_t at;

	d->lead_ns = now_ns;
	if (advance(d, now_ns) || now_ns - d->work_ns < d->opt.spin_ns) {
		lock_yield(d);
		return;
	}
	at = next_ns(d);
	sleep_until(d, &d->leader, at < until_ns ? at : until_ns, true);
}

static void stop_leading(struct drive *d, bool *leader)
{
	if (!*leader)
		return;
	d->leading = *leader = false;
	if (d->following)
		pthread_cond_broadcast(&d->work_done);
	else if (d->background.until_ns > d->lead_ns + 2 * BACKGROUND_TICK_NS)
		wake(&d->background);
}

static bool wait_interrupted(struct drive *d, bool *leader)
{
	bool stop;

	if (!d->opt.interrupted)
		return false;
	stop_leading(d, leader); /* the callback may take long */
	lock_release(d);
	stop = d->opt.interrupted(d->opt.ctx);
	lock_take(d);
	return stop;
}

static int wait_round(struct drive *d, uint64_t deadline_ns, uint64_t *slice_ns, bool *leader)
{
	uint64_t now_ns = drive_now_ns(), until_ns;

	if (d->fatal)
		return d->fatal;
	if (now_ns >= deadline_ns)
		return -ETIMEDOUT;
	if (now_ns >= *slice_ns) {
		*slice_ns = now_ns + SLICE_NS;
		if (wait_interrupted(d, leader))
			return -EINTR;
	}
	until_ns = *slice_ns < deadline_ns ? *slice_ns : deadline_ns;
	if (!d->leading)
		d->leading = *leader = true;
	if (*leader)
		lead(d, now_ns, until_ns);
	else
		follow(d, until_ns);
	return 0;
}

int drive_wait(struct drive *d, drive_try_fn attempt, void *ctx, uint64_t deadline_ns)
{
	uint64_t slice_ns = drive_now_ns() + SLICE_NS;
	bool leader = false;
	int rc;

	if (drive_inside(d))
		return -EDEADLK;
	lock_take(d);
	d->waiting++;
	do {
		rc = d->stopping ? -ECANCELED : attempt(ctx);
		if (!rc)
			rc = wait_round(d, deadline_ns, &slice_ns, &leader);
	} while (!rc);
	stop_leading(d, &leader);
	update_polls(d);
	d->waiting--;
	if (d->stopping)
		pthread_cond_broadcast(&d->work_done);
	lock_release(d);
	return rc;
}

/* ---- the background poller ------------------------------------------------------------------ */

/* When the background poller checks again; 0: no other thread polls, so it polls now. */
static uint64_t background_later_ns(const struct drive *d, uint64_t now_ns, uint64_t *tick_ns)
{
	if (d->fatal)
		return now_ns + BACKGROUND_LONG_NS; /* descriptors may stay readable */
	if (d->leading) {
		*tick_ns = *tick_ns < BACKGROUND_LONG_NS ? 2 * *tick_ns : *tick_ns;
		return now_ns + *tick_ns;
	}
	*tick_ns = BACKGROUND_TICK_NS;
	return now_ns - d->lead_ns < BACKGROUND_TICK_NS ? d->lead_ns + BACKGROUND_TICK_NS : 0;
}

static void *background_main(void *arg)
{
	struct drive *d = arg;
	uint64_t now_ns, at, tick_ns = BACKGROUND_TICK_NS;

	lock_take(d);
	while (!d->stopping) {
		now_ns = drive_now_ns();
		at = background_later_ns(d, now_ns, &tick_ns);
		if (at) {
			sleep_until(d, &d->background, at, false);
			continue;
		}
		if (advance(d, now_ns))
			wake(&d->leader);
		at = next_ns(d);
		if (at <= now_ns)
			lock_yield(d);
		else
			sleep_until(d, &d->background,
				    at < now_ns + SLEEP_MAX_NS ? at : now_ns + SLEEP_MAX_NS, true);
	}
	lock_release(d);
	return NULL;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static void drive_close_fds(struct drive *d)
{
	if (d->leader.event_fd >= 0)
		close(d->leader.event_fd);
	if (d->background.event_fd >= 0)
		close(d->background.event_fd);
	d->leader.event_fd = d->background.event_fd = -1;
}

static int drive_start(struct drive *d)
{
	pthread_condattr_t clock;
	int rc;

	d->leader.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	d->background.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->leader.event_fd < 0 || d->background.event_fd < 0)
		return -errno;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	rc = -pthread_cond_init(&d->work_done, &clock);
	pthread_condattr_destroy(&clock);
	if (!rc) {
		rc = thread_start(&d->background_thread, background_main, d, "harp-poll");
		d->has_background = rc == 0;
	}
	return rc;
}

int drive_create(struct drive **out, const struct drive_member *members, unsigned count,
		 const struct drive_options *opt)
{
	struct drive *d;
	int rc;

	*out = NULL;
	if (count < 1 || count > DRIVE_MEMBERS_MAX)
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	for (unsigned i = 0; i < count; i++)
		d->members[i] = members[i];
	d->count = count;
	d->opt = *opt;
	d->pid = getpid();
	d->leader.event_fd = d->background.event_fd = -1;
	pthread_mutex_init(&d->lock, NULL);
	rc = drive_start(d);
	if (rc) {
		drive_free(d);
		return rc;
	}
	*out = d;
	return 0;
}

bool drive_stopped(const struct drive *d)
{
	return d->stopping;
}

void drive_stop(struct drive *d)
{
	bool join;

	lock_take(d);
	d->stopping = true;
	pthread_cond_broadcast(&d->work_done);
	while (d->waiting) {
		wake(&d->leader);
		follow(d, drive_now_ns() + SLICE_NS);
	}
	wake(&d->background);
	join = d->has_background;
	d->has_background = false;
	lock_release(d);
	if (join)
		pthread_join(d->background_thread, NULL);
	drive_close_fds(d); /* no other thread uses them now */
}

void drive_free(struct drive *d)
{
	if (!d)
		return;
	drive_close_fds(d);
	pthread_mutex_destroy(&d->lock);
	free(d);
}
