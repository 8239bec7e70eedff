/* SPDX-License-Identifier: Apache-2.0 */
/* test_poller.c - work that is called runs once and has run on return, and turns have one clock. */
#include "poll/poller.h"

#include <pthread.h>

#include "check.h"

enum { CALLERS = 4, CALLS = 2000 };

struct call {
	unsigned runs; /* poller held */
	unsigned returned;
};

static struct poller poller;

static void call_run(void *call)
{
	((struct call *)call)->runs++;
}

static void advance(struct poller *d, uint64_t now_ns)
{
	poller_run_ready(d, now_ns);
}

static void *caller(void *arg)
{
	struct call *call = arg;

	for (unsigned i = 0; i < CALLS; i++) {
		poller_call(&poller, call_run, call);
		/* What the run wrote is seen here: TSan watches. */
		if (call->runs != i + 1)
			break;
		call->returned++;
	}
	return NULL;
}

TEST(work_that_is_called_from_many_threads_has_run_once_on_return)
{
	static struct call calls[CALLERS];
	pthread_t threads[CALLERS];

	poller_init(&poller, advance);
	for (int i = 0; i < CALLERS; i++) {
		CHECK_EQ(pthread_create(&threads[i], NULL, caller, &calls[i]), 0);
	}
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(calls[i].runs, CALLS);
		CHECK_EQ(calls[i].returned, CALLS);
	}
}

static uint64_t seen_ns;

static void sees(struct poller *d, uint64_t now_ns)
{
	seen_ns = now_ns;
}

/* Of two threads that have read the clock, the second took its turn first. */
TEST(the_clock_of_a_turn_does_not_go_back)
{
	poller_init(&poller, sees);
	CHECK(poller_run(&poller, 2000));
	CHECK_EQ(seen_ns, 2000);
	CHECK(poller_poll_at(&poller, 1999));
	CHECK_EQ(seen_ns, 2000);
	CHECK(poller_run(&poller, 2001));
	CHECK_EQ(seen_ns, 2001);
}
