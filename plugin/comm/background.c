/* SPDX-License-Identifier: Apache-2.0 */
/* background.c - see background.h. */
#include "comm/background.h"
#include "base/util.h"

#include <stddef.h>

#include "comm/comm.h"

/* Ticks that find nothing before it sleeps. To wake it costs the thread that gives a lane something a system call, which
 * a comm in steady use never pays. */
#define QUIET_TICKS 10u
#define READ_TICKS                                                                                 \
	5u /* a receiver's kernel lanes are read so often while it is awake, and while it sleeps: */
#define READ_NS 1000000000ull

static uint64_t background_read_ns(uint64_t now_ns)
{
	return (now_ns / READ_NS + 1) * READ_NS;
}

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
		control_timer_set(timer, background_read_ns(now_ns));
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
