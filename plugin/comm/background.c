/* SPDX-License-Identifier: Apache-2.0 */
/* background.c - see background.h. */
#include "comm/background.h"

#include <pthread.h>
#include <stddef.h>

#include "base/util.h"
#include "comm/comm.h"
#include "poll/control.h"

#define BACKGROUND_QUIET_NS 100000000ull /* between two turns while nothing is under way */

static void background_due(struct control_timer *timer, uint64_t now_ns)
{
	struct comm_background *b = container_of(timer, struct comm_background, timer);
	bool busy = comm_run_background(b->comm, now_ns);

	control_timer_set(timer,
			  control_tick_ns(now_ns, busy ? CONTROL_TICK_NS : BACKGROUND_QUIET_NS));
}

static void background_begin_run(struct work *work, uint64_t now_ns)
{
	struct comm_background *b = container_of(work, struct comm_background, begin_work);

	if (b->comm)
		control_timer_set(&b->timer, control_tick_ns(now_ns, CONTROL_TICK_NS));
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
	control_call(&b->end_work);
}

/* ---- closed comms ---------------------------------------------------------------------------- */

/*
 * Theory of operation
 *
 * At each tick, the control thread ends the comms without undelivered messages: most after a round
 * trip, or after the 40 ms for which the peer's kernel may delay its ACK. After CLOSING_NS, a comm
 * is ended in any case; the kernel then delivers its messages or not.
 */

#define CLOSING_NS 2000000000ull

static void closing_work_run(struct work *work, uint64_t now_ns);
static void closing_due(struct control_timer *timer, uint64_t now_ns);

static pthread_mutex_t closing_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t closing_ended = PTHREAD_COND_INITIALIZER;
/* Under closing_lock. */
static struct comm *closing_comms; /* in the order of closing */
static void (*closing_end)(struct comm *comm);
static unsigned closing_count; /* on the list, or being ended */
static struct work closing_work = { .run = closing_work_run };
static struct control_timer closing_timer = {
	.run = closing_due
}; /* owned by the control thread */

static bool closing_stays(struct comm *comm, uint64_t now_ns)
{
	if (now_ns >= comm->close_deadline_ns || !comm_has_undelivered(comm))
		return false;
	(void)comm_run_background(comm, now_ns);
	return true;
}

/* closing_lock is held, but not while a comm is ended: closing_take() never waits. */
static void closing_run(uint64_t now_ns)
{
	void (*end)(struct comm *) = closing_end;
	struct comm **at = &closing_comms, *comm;

	while ((comm = *at)) {
		if (closing_stays(comm, now_ns)) {
			at = &comm->next;
			continue;
		}
		*at = comm->next;
		pthread_mutex_unlock(&closing_lock);
		end(comm);
		pthread_mutex_lock(&closing_lock);
		closing_count--;
	}
}

static void closing_due(struct control_timer *timer, uint64_t now_ns)
{
	pthread_mutex_lock(&closing_lock);
	closing_run(now_ns);
	/* Leave no timer set after the last comm: the control thread may end then. */
	control_timer_set(timer,
			  closing_comms ? control_tick_ns(now_ns, CONTROL_TICK_NS) : UINT64_MAX);
	if (!closing_count)
		pthread_cond_broadcast(&closing_ended);
	pthread_mutex_unlock(&closing_lock);
}

static void closing_work_run(struct work *work, uint64_t now_ns)
{
	(void)work;
	closing_due(&closing_timer, now_ns);
}

void closing_take(struct comm *comm, void (*end)(struct comm *comm))
{
	struct comm **tail = &closing_comms;

	pthread_mutex_lock(&closing_lock);
	closing_end = end;
	comm->close_deadline_ns = clock_now_ns() + CLOSING_NS;
	comm->next = NULL;
	while (*tail)
		tail = &(*tail)->next;
	*tail = comm;
	closing_count++;
	pthread_mutex_unlock(&closing_lock);
	control_post(&closing_work);
}

void closing_finish(void)
{
	pthread_mutex_lock(&closing_lock);
	while (closing_count)
		pthread_cond_wait(&closing_ended, &closing_lock);
	pthread_mutex_unlock(&closing_lock);
}
