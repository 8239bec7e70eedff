/* SPDX-License-Identifier: Apache-2.0 */
/* lane_owed.c - rows whose last numbers aren't on the page: the keeper copies them. */
#include <pthread.h>
#include <stddef.h>

#include "poll/keeper.h"
#include "stats/lane_rows.h"

/*
 * Theory of operation
 *
 * A comm that falls idle before the time of its next copy may never be called again, so its row is owed one. The keeper
 * looks through the rows at each of its beats while any was owed at the one before; then it is at rest until somebody
 * owes again (`roused`), which costs him a system call: with traffic there is one wake of the keeper for each beat, without
 * none.
 *
 * Both flags are set and cleared by read-modify-write. Who finds `owed` set knows that a look is to come which sees all
 * he has counted; who finds `roused` set, that a look at all rows is to come which sees what he owes.
 *
 * Order of locks: owed_lock, then a row's busy.
 */

static pthread_mutex_t owed_lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm_row *owed_rows; /* all; under the lock */
static atomic_bool owed_roused;

static void owed_begin_run(struct work *work, uint64_t now_ns);
static void owed_end_run(struct work *work, uint64_t now_ns);
static void owed_due(struct keeper_timer *timer, uint64_t now_ns);

static struct work owed_begin = { .run = owed_begin_run };
static struct work owed_end = { .run = owed_end_run };
static struct keeper_timer owed_timer = { .run = owed_due };

void row_list(struct comm_row *row)
{
	pthread_mutex_lock(&owed_lock);
	row->next = owed_rows;
	row->pprev = &owed_rows;
	if (row->next)
		row->next->pprev = &row->next;
	owed_rows = row;
	pthread_mutex_unlock(&owed_lock);
}

void row_unlist(struct comm_row *row)
{
	pthread_mutex_lock(&owed_lock);
	*row->pprev = row->next;
	if (row->next)
		row->next->pprev = row->pprev;
	pthread_mutex_unlock(&owed_lock);
}

bool row_owe(struct comm_row *row)
{
	struct driver *keeper = keeper_driver();

	if (!keeper)
		return false;
	if (!atomic_exchange_explicit(&row->owed, true, memory_order_acq_rel) &&
	    !atomic_exchange_explicit(&owed_roused, true, memory_order_acq_rel))
		driver_post(keeper, &owed_begin);
	return true;
}

/* False: none was owed. */
static bool owed_publish(uint64_t now_ns)
{
	bool any = false;

	pthread_mutex_lock(&owed_lock);
	for (struct comm_row *row = owed_rows; row; row = row->next) {
		if (!atomic_load_explicit(&row->owed, memory_order_relaxed))
			continue;
		any = true;
		atomic_exchange_explicit(&row->owed, false, memory_order_acq_rel);
		row_lock(row);
		row_publish(row, now_ns, true);
		row_unlock(row);
	}
	pthread_mutex_unlock(&owed_lock);
	return any;
}

static void owed_due(struct keeper_timer *timer, uint64_t now_ns)
{
	if (owed_publish(now_ns)) {
		keeper_timer_set(timer, keeper_beat_ns(now_ns));
		return;
	}
	atomic_exchange_explicit(&owed_roused, false, memory_order_acq_rel);
	(void)owed_publish(now_ns); /* of who has found it set since the look before */
}

static void owed_begin_run(struct work *work, uint64_t now_ns)
{
	(void)work;
	keeper_timer_set(&owed_timer, keeper_beat_ns(now_ns));
}

static void owed_end_run(struct work *work, uint64_t now_ns)
{
	(void)work;
	(void)now_ns;
	keeper_timer_set(&owed_timer, UINT64_MAX);
	atomic_store_explicit(&owed_roused, false, memory_order_relaxed);
}

void lane_page_rest(void)
{
	if (keeper_driver())
		driver_call(keeper_driver(), &owed_end);
}
