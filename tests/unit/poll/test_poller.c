/* SPDX-License-Identifier: Apache-2.0 */
/* test_poller.c - poller_call() runs the work once, and the clock of turns never decreases. */
#include "poll/poller.h"

#include <pthread.h>

#include "check.h"

enum { CALLERS = 4, CALLS = 2000 };

struct call {
	unsigned runs;    /* poller held */
	unsigned returns; /* after the run */
};

static struct poller poller;

static void count_run(void *call)
{
	((struct call *)call)->runs++;
}

static void advance(struct poller *p, uint64_t now_ns)
{
	poller_run_ready(p, now_ns);
}

static void *call_often(void *arg)
{
	struct call *call = arg;

	for (unsigned i = 0; i < CALLS; i++) {
		poller_call(&poller, count_run, call);
		/* The caller sees what the run wrote; TSan would report a race. */
		if (call->runs != i + 1)
			break;
		call->returns++;
	}
	return NULL;
}

TEST(poller_call_from_many_threads_runs_the_work_once_before_it_returns)
{
	static struct call calls[CALLERS];
	pthread_t threads[CALLERS];

	poller_init(&poller, advance);
	for (int i = 0; i < CALLERS; i++) {
		CHECK_EQ(pthread_create(&threads[i], NULL, call_often, &calls[i]), 0);
	}
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(calls[i].runs, CALLS);
		CHECK_EQ(calls[i].returns, CALLS);
	}
}

static uint64_t turn_ns;

static void record_turn(struct poller *p, uint64_t now_ns)
{
	turn_ns = now_ns;
}

/* A thread may read the clock before another thread, and take its turn after it. */
TEST(the_clock_of_a_turn_does_not_go_back)
{
	poller_init(&poller, record_turn);
	CHECK(poller_run(&poller, 2000));
	CHECK_EQ(turn_ns, 2000);
	CHECK(poller_poll_at(&poller, 1999));
	CHECK_EQ(turn_ns, 2000);
	CHECK(poller_run(&poller, 2001));
	CHECK_EQ(turn_ns, 2001);
}
