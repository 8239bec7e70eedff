/* SPDX-License-Identifier: Apache-2.0 */
/* tender.c - comms are looked after though their application is away; see tender.h. */
#include "comm/tender.h"

#include <stddef.h>

#include "comm/comm.h"

/* Beats without anything to see through before it rests. To be roused costs who gives a lane something a system call, which
 * a comm that is used all the time never pays. */
#define TENDER_QUIET_BEATS 10u
#define TENDER_READ_BEATS 5u /* while it doesn't rest, and while it does: */
#define TENDER_READ_NS 1000000000ull

static uint64_t tender_read_ns(uint64_t now_ns)
{
	return (now_ns / TENDER_READ_NS + 1) * TENDER_READ_NS;
}

/* Those that rest are looked at together, too. One that was roused has a beat of its own to come, or the work for it on the
 * list behind us. */
static void tender_due(struct keeper_timer *timer, uint64_t now_ns)
{
	struct tender *tender = (struct tender *)((char *)timer - offsetof(struct tender, timer));
	bool reads = tender->rests || ++tender->beats % TENDER_READ_BEATS == 0;

	tender->quiet_beats = comm_tend(tender->comm, now_ns, reads) ? 0 : tender->quiet_beats + 1;
	if (!tender->rests && tender->quiet_beats >= TENDER_QUIET_BEATS)
		tender->rests = comm_rest(tender->comm, keeper_driver(), &tender->begin_work);
	if (!tender->rests)
		keeper_timer_set(timer, keeper_beat_ns(now_ns));
	else if (comm_is_read(tender->comm))
		keeper_timer_set(timer, tender_read_ns(now_ns));
}

static void tender_begin_run(struct work *work, uint64_t now_ns)
{
	struct tender *tender =
		(struct tender *)((char *)work - offsetof(struct tender, begin_work));

	tender->rests = false;
	tender->quiet_beats = 0;
	keeper_timer_set(&tender->timer, keeper_beat_ns(now_ns));
}

static void tender_end_run(struct work *work, uint64_t now_ns)
{
	struct tender *tender = (struct tender *)((char *)work - offsetof(struct tender, end_work));

	(void)now_ns;
	keeper_timer_set(&tender->timer, UINT64_MAX);
}

void tender_begin(struct tender *tender, struct comm *comm)
{
	tender->comm = comm;
	tender->timer.run = tender_due;
	tender->begin_work.run = tender_begin_run;
	tender->end_work.run = tender_end_run;
	driver_post(keeper_driver(), &tender->begin_work);
}

void tender_end(struct tender *tender)
{
	comm_rest_never(tender->comm); /* begin_work, if it is posted, runs before */
	driver_call(keeper_driver(), &tender->end_work);
}
