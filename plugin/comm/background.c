/* SPDX-License-Identifier: Apache-2.0 */
/* background.c - the control thread's work for comms: those that are not polled, and closed
 * ones. */
#include "comm/comm.h"

#include <pthread.h>
#include <stddef.h>

#include "base/util.h"

/*
 * Theory of operation
 *
 * The control thread advances each multi-lane comm even if its application does not poll: 50 times
 * a second while data is in flight, so that a lane's death is noticed and other lanes take over,
 * and 10 times a second otherwise. It also reads the kernel lanes of a receiver whose application
 * has stopped polling, because no event wakes a thread for them.
 *
 * It also ends closed comms, so that the application's close call does not wait. Most end at once.
 * A buffered send (comm_send.c) is done when a kernel lane's socket has accepted it. If that lane
 * is reset before the message is delivered, only the comm can resend it. So a comm with undelivered
 * messages lives on for a while.
 *
 * Each comm has a timer of the control thread. Posted work sets it when the comm is made, and when
 * it is closed. A closed comm ends at the first check that finds no undelivered message: usually
 * after a round trip, or after the 40 ms for which the peer's kernel may delay its ACK. After
 * CLOSING_NS, it ends in any case; the kernel then delivers its messages or not.
 */

#define BACKGROUND_QUIET_NS 100000000ull /* between two turns while nothing is in flight */
#define CLOSING_NS 2000000000ull
#define CLOSING_CHECK_NS 2000000u /* between two checks of a closed comm */

static pthread_mutex_t closing_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t closing_ended = PTHREAD_COND_INITIALIZER;
static unsigned closing_count; /* closed comms; under closing_lock */

static void closing_end(struct comm *comm)
{
	/* Leave no timer set: end() frees the comm. */
	control_timer_set(&comm->background.timer, UINT64_MAX);
	comm->background.end(comm);
	pthread_mutex_lock(&closing_lock);
	if (!--closing_count)
		pthread_cond_broadcast(&closing_ended);
	pthread_mutex_unlock(&closing_lock);
}

static void background_due(struct control_timer *timer, uint64_t now_ns)
{
	struct comm *comm = container_of(timer, struct comm, background.timer);
	uint64_t deadline_ns = comm->background.deadline_ns;
	bool busy;

	if (deadline_ns && (now_ns >= deadline_ns || !comm_has_undelivered(comm))) {
		closing_end(comm);
		return;
	}
	busy = comm_run_background(comm, now_ns);
	control_timer_set(timer, deadline_ns ? now_ns + CLOSING_CHECK_NS
					     : control_tick_ns(now_ns, busy ? CONTROL_TICK_NS
									    : BACKGROUND_QUIET_NS));
}

static void background_begin_run(struct work *work, uint64_t now_ns)
{
	struct comm *comm = container_of(work, struct comm, background.begin_work);

	control_timer_set(&comm->background.timer, control_tick_ns(now_ns, CONTROL_TICK_NS));
}

void background_begin(struct comm *comm)
{
	comm->background.timer.run = background_due;
	comm->background.begin_work.run = background_begin_run;
	control_post(&comm->background.begin_work);
}

static void background_end_run(void *timer)
{
	control_timer_set(timer, UINT64_MAX);
}

/* background_begin()'s work has run by then: it was posted before this call, or before the
 * close. */
void background_end(struct comm *comm)
{
	control_call(background_end_run, &comm->background.timer);
}

/* ---- closed comms --------------------------------------------------------------------------- */

static void closing_begin_run(struct work *work, uint64_t now_ns)
{
	struct comm *comm = container_of(work, struct comm, background.close_work);

	comm->background.deadline_ns = now_ns + CLOSING_NS;
	comm->background.timer.run = background_due;
	background_due(&comm->background.timer, now_ns);
}

void closing_take(struct comm *comm, void (*end)(struct comm *comm))
{
	pthread_mutex_lock(&closing_lock);
	closing_count++;
	pthread_mutex_unlock(&closing_lock);
	comm->background.end = end;
	comm->background.close_work.run = closing_begin_run;
	control_post(&comm->background.close_work);
}

void closing_finish(void)
{
	pthread_mutex_lock(&closing_lock);
	while (closing_count)
		pthread_cond_wait(&closing_ended, &closing_lock);
	pthread_mutex_unlock(&closing_lock);
}
