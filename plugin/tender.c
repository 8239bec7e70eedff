/* SPDX-License-Identifier: Apache-2.0 */
/* tender.c - comms are looked after though their application is away; see tender.h. */
#include "tender.h"

#include <stddef.h>

#include "comm.h"

static void tender_due(struct keeper_timer *timer, uint64_t now_ns)
{
	struct tender *tender = (struct tender *)((char *)timer - offsetof(struct tender, timer));

	comm_tend(tender->comm, now_ns);
	keeper_timer_set(timer, keeper_beat_ns(now_ns));
}

static void tender_begin_run(struct work *work, uint64_t now_ns)
{
	struct tender *tender =
		(struct tender *)((char *)work - offsetof(struct tender, begin_work));

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
	driver_call(keeper_driver(), &tender->end_work);
}
