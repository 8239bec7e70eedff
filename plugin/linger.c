/* SPDX-License-Identifier: Apache-2.0 */
/* linger.c - comms that are closed and owe something; see linger.h. */
#include "linger.h"

#include <pthread.h>
#include <time.h>

#include "base/thread.h"
#include "comm.h"

/*
 * Theory of operation
 *
 * One thread in the process looks after all of them, from the first to the last finalize; asleep while there is none. It has
 * no baton, so it ends a comm as the application would. Most owe nothing after a round trip, or after the 40 ms for which the
 * peer's kernel may delay its acknowledgement. One whose peer takes nothing is not waited for longer than LINGER_NS: its
 * kernel goes on alone then.
 *
 * Hundreds are looked at less often, so that they never take more than a fifth of a core.
 *
 * The last finalize waits for the thread: for all comms together, and not long.
 */

#define LINGER_NS 2000000000ull
#define LINGER_LOOK_NS                                                                             \
	1000000ull /* between two looks, or four times as long as the last one took: a fifth of a core */
#define LINGER_LOOK_NS_MAX 20000000ull

static pthread_mutex_t linger_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t linger_news = PTHREAD_COND_INITIALIZER; /* a comm, or the end */
/* All under linger_lock. */
static struct comm *linger_comms;
static void (*linger_close)(struct comm *comm);
static pthread_t linger_thread;
static bool linger_started, linger_stop;
static uint64_t linger_until_ns; /* of all, when it is to stop */

/* Those that need not stay leave the list. */
static struct comm *linger_look(uint64_t now_ns)
{
	struct comm **at = &linger_comms, *comm, *over = NULL;

	while ((comm = *at)) {
		(void)comm_tend(comm, now_ns, false);
		if (comm_owes(comm) && now_ns < comm->linger_until_ns &&
		    (!linger_stop || now_ns < linger_until_ns)) {
			at = &comm->next;
			continue;
		}
		*at = comm->next;
		comm->next = over;
		over = comm;
	}
	return over;
}

static void linger_end_all(struct comm *over)
{
	struct comm *comm;

	while ((comm = over)) {
		over = comm->next;
		linger_close(comm);
	}
}

/* Hundreds of comms take a while to look at. */
static void linger_nap(uint64_t took_ns)
{
	uint64_t nap_ns = 4 * took_ns > LINGER_LOOK_NS ? 4 * took_ns : LINGER_LOOK_NS;
	struct timespec nap = {
		.tv_nsec = (long)(nap_ns < LINGER_LOOK_NS_MAX ? nap_ns : LINGER_LOOK_NS_MAX)
	};

	nanosleep(&nap, NULL);
}

static void *linger_main(void *arg)
{
	struct comm *over;
	uint64_t begin_ns, took_ns;
	bool more;

	(void)arg;
	pthread_mutex_lock(&linger_lock);
	while (linger_comms || !linger_stop) {
		if (!linger_comms) {
			pthread_cond_wait(&linger_news, &linger_lock);
			continue;
		}
		begin_ns = driver_clock_ns();
		over = linger_look(begin_ns);
		took_ns = driver_clock_ns() - begin_ns;
		more = linger_comms;
		pthread_mutex_unlock(&linger_lock);
		linger_end_all(over);
		if (more)
			linger_nap(took_ns);
		pthread_mutex_lock(&linger_lock);
	}
	pthread_mutex_unlock(&linger_lock);
	return NULL;
}

bool linger_take(struct comm *comm, void (*close)(struct comm *comm))
{
	bool taken;

	if (!comm_owes(comm))
		return false;
	pthread_mutex_lock(&linger_lock);
	if (!linger_started)
		linger_started = !thread_start(&linger_thread, linger_main, NULL, "harp-linger");
	taken = linger_started && !linger_stop;
	if (taken) {
		linger_close = close;
		comm->linger_until_ns = driver_clock_ns() + LINGER_NS;
		comm->next = linger_comms;
		linger_comms = comm;
		pthread_cond_signal(&linger_news);
	}
	pthread_mutex_unlock(&linger_lock);
	return taken;
}

bool linger_is_used(void)
{
	bool used;

	pthread_mutex_lock(&linger_lock);
	used = linger_started;
	pthread_mutex_unlock(&linger_lock);
	return used;
}

void linger_finish(uint64_t patience_ns)
{
	bool started;

	pthread_mutex_lock(&linger_lock);
	started = linger_started;
	linger_stop = true;
	linger_until_ns = driver_clock_ns() + patience_ns;
	pthread_cond_signal(&linger_news);
	pthread_mutex_unlock(&linger_lock);
	if (started)
		pthread_join(linger_thread, NULL);
	pthread_mutex_lock(&linger_lock);
	linger_started = linger_stop = false;
	pthread_mutex_unlock(&linger_lock);
}
