/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver.c - work that is called runs once and has run on return, whoever has the baton; and turns have one clock. */
#include "poll/poller.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>

#include "base/util.h"
#include "check.h"

enum { CALLERS = 4, CALLS = 2000 };

struct call {
	struct work work;
	unsigned runs; /* baton */
	unsigned returned;
};

static struct poller poller;
static atomic_bool control_stop;
static atomic_uint keeper_turns;

static void call_run(struct work *work, uint64_t now_ns)
{
	(void)now_ns;
	container_of(work, struct call, work)->runs++;
}

static void advance(struct poller *d, uint64_t now_ns)
{
	poller_run_ready(d, now_ns);
}

static void wake(struct poller *d)
{
}

/* As a dedicated thread: the baton is nobody else's. */
static void *keeper(void *arg)
{
	while (!poller_try(&poller))
		sched_yield();
	while (!atomic_load(&control_stop)) {
		advance(&poller, clock_now_ns());
		atomic_fetch_add(&keeper_turns, 1);
	}
	poller_release(&poller);
	return NULL;
}

static void *caller(void *arg)
{
	struct call *call = arg;

	for (unsigned i = 0; i < CALLS; i++) {
		poller_call(&poller, &call->work);
		/* What the run wrote is seen here: TSan watches. */
		if (call->runs != i + 1)
			break;
		call->returned++;
	}
	return NULL;
}

static void call_from_threads(void)
{
	static struct call calls[CALLERS];
	pthread_t threads[CALLERS];

	memset(calls, 0, sizeof(calls));
	for (int i = 0; i < CALLERS; i++) {
		calls[i].work.run = call_run;
		CHECK_EQ(pthread_create(&threads[i], NULL, caller, &calls[i]), 0);
	}
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(calls[i].runs, CALLS);
		CHECK_EQ(calls[i].returned, CALLS);
	}
}

TEST(nobody_keeps_it)
{
	poller_init(&poller, advance);
	call_from_threads();
}

TEST(kept_for_ever)
{
	pthread_t thread;

	poller_init(&poller, advance);
	poller.wake = wake;
	CHECK_EQ(pthread_create(&thread, NULL, keeper, NULL), 0);
	while (!atomic_load(&keeper_turns))
		sched_yield();
	CHECK(!poller_try(&poller));
	call_from_threads();
	atomic_store(&control_stop, true);
	pthread_join(thread, NULL);
	CHECK(poller_try(&poller));
}

static uint64_t seen_ns;

static void sees(struct poller *d, uint64_t now_ns)
{
	seen_ns = now_ns;
}

/* Two have read the clock, and the second was here first: what it has noted is not later than now. */
TEST(the_clock_does_not_go_back)
{
	poller_init(&poller, sees);
	CHECK(poller_run(&poller, 2000));
	CHECK_EQ(seen_ns, 2000);
	CHECK(poller_poll_at(&poller, 1999));
	CHECK_EQ(seen_ns, 2000);
	CHECK(poller_run(&poller, 2001));
	CHECK_EQ(seen_ns, 2001);
}
