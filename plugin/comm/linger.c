/* SPDX-License-Identifier: Apache-2.0 */
/* linger.c - comms that are closed: ended, or seen through first; see linger.h. */
#include "comm/linger.h"

#include <pthread.h>

#include "comm/comm.h"
#include "poll/keeper.h"

/*
 * Theory of operation
 *
 * One task of the control thread looks at all of them. It ends those that owe nothing. While some
 * owe something it looks again after LINGER_LOOK_NS. Most owe nothing after a round trip, or after
 * the 40 ms for which the peer's kernel may delay its ACK. A comm whose peer reads nothing is ended
 * after LINGER_NS: its kernel goes on alone then.
 *
 * With hundreds of comms it looks less often, so that it never takes more than a fifth of a core.
 */

#define LINGER_NS 2000000000ull
/* Between two looks, or four times as long as the last look took: a fifth of a core. */
#define LINGER_LOOK_NS 1000000ull
#define LINGER_LOOK_NS_MAX 20000000ull

static void linger_run(struct keeper_task *task);

static pthread_mutex_t linger_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t linger_ended = PTHREAD_COND_INITIALIZER;
/* All under linger_lock. */
static struct comm *linger_comms; /* in the order of closing */
static void (*linger_end)(struct comm *comm);
static unsigned linger_count;                 /* those on the list, and those being ended */
static uint64_t linger_until_ns = UINT64_MAX; /* of all: linger_finish() waits */
static struct keeper_task linger_task = { .run = linger_run };

static struct comm **linger_tail(struct comm **list)
{
	while (*list)
		list = &(*list)->next;
	return list;
}

static bool linger_stays(struct comm *comm, uint64_t now_ns, uint64_t until_ns)
{
	if (!comm_owes(comm))
		return false;
	(void)comm_tend(comm, now_ns, false);
	return comm_owes(comm) && now_ns < comm->linger_until_ns && now_ns < until_ns;
}

/* Takes those that need not stay off the list. */
static struct comm *linger_look(struct comm **at, uint64_t now_ns, uint64_t until_ns)
{
	struct comm *comm, *over = NULL, **end = &over;

	while ((comm = *at)) {
		if (linger_stays(comm, now_ns, until_ns)) {
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

static uint64_t linger_pause_ns(uint64_t look_ns)
{
	uint64_t pause_ns = 4 * look_ns > LINGER_LOOK_NS ? 4 * look_ns : LINGER_LOOK_NS;

	return pause_ns < LINGER_LOOK_NS_MAX ? pause_ns : LINGER_LOOK_NS_MAX;
}

/* The lock is not held while it looks and ends: linger_take() never waits. */
static void linger_run(struct keeper_task *task)
{
	uint64_t begin_ns = driver_clock_ns(), until_ns, end_ns;
	struct comm *stay, *over, *comm;
	void (*end)(struct comm * comm);
	unsigned count = 0;

	pthread_mutex_lock(&linger_lock);
	stay = linger_comms;
	linger_comms = NULL;
	until_ns = linger_until_ns;
	end = linger_end;
	pthread_mutex_unlock(&linger_lock);
	over = linger_look(&stay, begin_ns, until_ns);
	end_ns = driver_clock_ns();
	while ((comm = over)) {
		over = comm->next;
		end(comm);
		count++;
	}
	pthread_mutex_lock(&linger_lock);
	*linger_tail(&stay) = linger_comms; /* those that were closed meanwhile */
	linger_comms = stay;
	linger_count -= count;
	if (linger_comms)
		keeper_task_post(task, end_ns + linger_pause_ns(end_ns - begin_ns));
	if (!linger_count)
		pthread_cond_broadcast(&linger_ended);
	pthread_mutex_unlock(&linger_lock);
}

void linger_take(struct comm *comm, void (*end)(struct comm *comm))
{
	pthread_mutex_lock(&linger_lock);
	linger_end = end;
	comm->linger_until_ns = driver_clock_ns() + LINGER_NS;
	comm->next = NULL;
	*linger_tail(&linger_comms) = comm;
	linger_count++;
	pthread_mutex_unlock(&linger_lock);
	keeper_task_post(&linger_task, 0);
}

bool linger_is_used(void)
{
	bool used;

	pthread_mutex_lock(&linger_lock);
	used = linger_count > 0;
	pthread_mutex_unlock(&linger_lock);
	return used;
}

void linger_finish(uint64_t timeout_ns)
{
	pthread_mutex_lock(&linger_lock);
	linger_until_ns = driver_clock_ns() + timeout_ns;
	if (linger_comms)
		keeper_task_post(&linger_task, 0);
	while (linger_count)
		pthread_cond_wait(&linger_ended, &linger_lock);
	linger_until_ns = UINT64_MAX;
	pthread_mutex_unlock(&linger_lock);
}
