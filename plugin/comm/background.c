/* SPDX-License-Identifier: Apache-2.0 */
/* background.c - see background.h. */
#include "comm/background.h"

#include <pthread.h>
#include <stddef.h>

#include "base/util.h"
#include "comm/comm.h"
#include "poll/control.h"

/* Ticks that find nothing before it sleeps. To wake it costs the thread that gives a lane something a system call, which
 * a comm in steady use never pays. */
#define QUIET_TICKS 10u
#define READ_TICKS                                                                                 \
	5u /* a receiver's kernel lanes are read so often while it is awake, and while it sleeps: */
#define READ_NS 1000000000ull

static void background_due(struct control_timer *timer, uint64_t now_ns)
{
	struct comm_background *b = container_of(timer, struct comm_background, timer);
	bool reads = b->sleeps || ++b->ticks % READ_TICKS == 0;

	b->quiet_ticks = comm_run_background(b->comm, now_ns, reads) ? 0 : b->quiet_ticks + 1;
	if (!b->sleeps && b->quiet_ticks >= QUIET_TICKS)
		b->sleeps = comm_sleep(b->comm, control_poller(), &b->begin_work);
	if (!b->sleeps)
		control_timer_set(timer, control_tick_ns(now_ns));
	else if (comm_is_read(b->comm))
		control_timer_set(timer, (now_ns / READ_NS + 1) * READ_NS);
}

static void background_begin_run(struct work *work, uint64_t now_ns)
{
	struct comm_background *b = container_of(work, struct comm_background, begin_work);

	if (!b->comm)
		return;
	b->sleeps = false;
	b->quiet_ticks = 0;
	control_timer_set(&b->timer, control_tick_ns(now_ns));
}

static void background_end_run(struct work *work, uint64_t now_ns)
{
	struct comm_background *b = container_of(work, struct comm_background, end_work);

	(void)now_ns;
	b->comm = NULL;
	control_timer_set(&b->timer, UINT64_MAX);
}

void background_begin(struct comm_background *b, struct comm *comm)
{
	b->comm = comm;
	b->timer.run = background_due;
	b->begin_work.run = background_begin_run;
	b->end_work.run = background_end_run;
	control_post(&b->begin_work);
}

void background_end(struct comm_background *b)
{
	comm_stay_awake(b->comm);
	control_call(&b->end_work);
}

/* ---- comms that are closed ------------------------------------------------------------------- */

/*
 * Theory of operation
 *
 * The control thread looks at all of them. It ends those that owe nothing. While some
 * owe something it looks again after CLOSING_LOOK_NS. Most owe nothing after a round trip, or after
 * the 40 ms for which the peer's kernel may delay its ACK. A comm whose peer reads nothing is ended
 * after CLOSING_NS: its kernel goes on alone then.
 *
 * With hundreds of comms it looks less often, so that it never takes more than a fifth of a core.
 */

#define CLOSING_NS 2000000000ull
/* Between two looks, or four times as long as the last look took: a fifth of a core. */
#define CLOSING_LOOK_NS 1000000ull
#define CLOSING_LOOK_NS_MAX 20000000ull

static void closing_work_run(struct work *work, uint64_t now_ns);
static void closing_due(struct control_timer *timer, uint64_t now_ns);

static pthread_mutex_t closing_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t closing_ended = PTHREAD_COND_INITIALIZER;
/* All under closing_lock. */
static struct comm *closing_comms; /* in the order of closing */
static void (*closing_end)(struct comm *comm);
static unsigned closing_count;                 /* those on the list, and those being ended */
static uint64_t closing_until_ns = UINT64_MAX; /* of all: closing_finish() waits */
static struct work closing_work = { .run = closing_work_run };
static struct control_timer closing_timer = { .run = closing_due }; /* the control thread's */

static struct comm **closing_tail(struct comm **list)
{
	while (*list)
		list = &(*list)->next;
	return list;
}

static bool closing_stays(struct comm *comm, uint64_t now_ns, uint64_t until_ns)
{
	if (!comm_has_undelivered(comm))
		return false;
	(void)comm_run_background(comm, now_ns, false);
	return comm_has_undelivered(comm) && now_ns < comm->close_deadline_ns && now_ns < until_ns;
}

/* Takes those that need not stay off the list. */
static struct comm *closing_look(struct comm **at, uint64_t now_ns, uint64_t until_ns)
{
	struct comm *comm, *over = NULL, **end = &over;

	while ((comm = *at)) {
		if (closing_stays(comm, now_ns, until_ns)) {
			at = &comm->next;
			continue;
		}
		*at = comm->next;
		comm->next = NULL;
		*end = comm;
		end = &comm->next;
	}
	return over;
}

static uint64_t closing_pause_ns(uint64_t look_ns)
{
	uint64_t pause_ns = 4 * look_ns > CLOSING_LOOK_NS ? 4 * look_ns : CLOSING_LOOK_NS;

	return pause_ns < CLOSING_LOOK_NS_MAX ? pause_ns : CLOSING_LOOK_NS_MAX;
}

/* The lock is not held while it looks and ends: closing_take() never waits. */
static void closing_run(void)
{
	uint64_t begin_ns = clock_now_ns(), until_ns, end_ns;
	struct comm *stay, *over, *comm;
	void (*end)(struct comm * comm);
	unsigned count = 0;

	pthread_mutex_lock(&closing_lock);
	stay = closing_comms;
	closing_comms = NULL;
	until_ns = closing_until_ns;
	end = closing_end;
	pthread_mutex_unlock(&closing_lock);
	over = closing_look(&stay, begin_ns, until_ns);
	end_ns = clock_now_ns();
	while ((comm = over)) {
		over = comm->next;
		end(comm);
		count++;
	}
	pthread_mutex_lock(&closing_lock);
	*closing_tail(&stay) = closing_comms; /* those that were closed meanwhile */
	closing_comms = stay;
	closing_count -= count;
	if (closing_comms)
		control_timer_set(&closing_timer, end_ns + closing_pause_ns(end_ns - begin_ns));
	if (!closing_count)
		pthread_cond_broadcast(&closing_ended);
	pthread_mutex_unlock(&closing_lock);
}

static void closing_work_run(struct work *work, uint64_t now_ns)
{
	(void)work;
	(void)now_ns;
	closing_run();
}

static void closing_due(struct control_timer *timer, uint64_t now_ns)
{
	(void)timer;
	(void)now_ns;
	closing_run();
}

void closing_take(struct comm *comm, void (*end)(struct comm *comm))
{
	pthread_mutex_lock(&closing_lock);
	closing_end = end;
	comm->close_deadline_ns = clock_now_ns() + CLOSING_NS;
	comm->next = NULL;
	*closing_tail(&closing_comms) = comm;
	closing_count++;
	pthread_mutex_unlock(&closing_lock);
	control_post(&closing_work);
}

bool closing_is_used(void)
{
	bool used;

	pthread_mutex_lock(&closing_lock);
	used = closing_count > 0;
	pthread_mutex_unlock(&closing_lock);
	return used;
}

void closing_finish(uint64_t timeout_ns)
{
	pthread_mutex_lock(&closing_lock);
	closing_until_ns = clock_now_ns() + timeout_ns;
	if (closing_comms)
		control_post(&closing_work);
	while (closing_count)
		pthread_cond_wait(&closing_ended, &closing_lock);
	closing_until_ns = UINT64_MAX;
	pthread_mutex_unlock(&closing_lock);
}
