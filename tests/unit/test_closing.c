/* SPDX-License-Identifier: Apache-2.0 */
/* test_closing.c - closed comms are ended in order, and those that owe something no later than
 * they may. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "check.h"
#include "comm/comm.h"
#include "poll/control.h"
#include "comm/background.h"

#define SECOND_NS 1000000000ull
#define MS_NS 1000000ull

/* ---- comms that do what the test says, and a control thread whose clock is the test's --------------- */

static struct comm comms[3];
static int owed[3];                 /* looks until nothing is owed; below 0: for ever */
static char ended[8];               /* their numbers, in order */
static uint64_t tend_ns;            /* the time that one look at a comm takes */
static struct comm *closes_another; /* while a comm is being ended */
static _Atomic(struct work *) posted;
static struct control_timer *timer; /* set; the control thread's */
static atomic_uint_fast64_t now_ns = SECOND_NS;
static atomic_bool armed, finishes; /* closing_finish() has posted */

static void end_comm(struct comm *comm)
{
	size_t count = strlen(ended);
	struct comm *another = closes_another;

	closes_another = NULL;
	ended[count] = (char)('0' + (comm - comms));
	if (another)
		closing_take(another, end_comm);
}

uint64_t clock_now_ns(void)
{
	return atomic_load(&now_ns);
}

bool comm_has_undelivered(struct comm *comm)
{
	return owed[comm - comms] != 0;
}

/* Of comms that are not polled, which none is here. */
bool comm_is_read(const struct comm *comm)
{
	return comm == NULL;
}

bool comm_sleep(struct comm *comm, struct poller *poller, struct work *work)
{
	return comm && poller && work;
}

void comm_stay_awake(struct comm *comm)
{
	CHECK(!comm);
}

struct poller *control_poller(void)
{
	return NULL;
}

void control_call(struct work *work)
{
	CHECK(!work);
}

bool comm_run_background(struct comm *comm, uint64_t at_ns, bool reads)
{
	(void)at_ns;
	CHECK(!reads);
	atomic_fetch_add(&now_ns, tend_ns);
	if (owed[comm - comms] > 0)
		owed[comm - comms]--;
	return true;
}

void control_post(struct work *work)
{
	atomic_store(&finishes, atomic_load(&armed));
	atomic_store(&posted, work);
}

void control_timer_set(struct control_timer *set, uint64_t at_ns)
{
	timer = set;
	timer->at_ns = at_ns;
}

static bool is_idle(void)
{
	return !atomic_load(&posted) && !timer;
}

/* The control thread runs what was posted, else the timer at its time. Returns how long it waited for that. */
static uint64_t run_task(void)
{
	struct work *work = atomic_exchange(&posted, NULL);
	struct control_timer *due = timer;
	uint64_t before_ns = atomic_load(&now_ns), wait_ns;

	CHECK(work || due);
	if (work) {
		work->run(work, before_ns);
		return 0;
	}
	wait_ns = due->at_ns > before_ns ? due->at_ns - before_ns : 0;
	timer = NULL; /* it has stopped when it runs, which may set it again */
	atomic_fetch_add(&now_ns, wait_ns);
	due->run(due, before_ns + wait_ns);
	return wait_ns;
}

static void begin(int first, int second, int third)
{
	const int owes[] = { first, second, third };

	memcpy(owed, owes, sizeof(owed));
	memset(ended, 0, sizeof(ended));
}

static void take(unsigned number)
{
	closing_take(&comms[number], end_comm);
	CHECK(closing_is_used());
}

/* ---- the rules ----------------------------------------------------------------------------------- */

/* Closing does nothing itself; the next task ends all, in the order of closing. */
static void test_nothing_owed(void)
{
	begin(0, 0, 0);
	CHECK(!closing_is_used());
	take(2);
	take(0);
	take(1);
	CHECK_STR(ended, "");
	CHECK_EQ(run_task(), 0);
	CHECK_STR(ended, "201");
	CHECK(!closing_is_used() && is_idle());
}

/* Each ends when it owes nothing, whatever the others do. */
static void test_seen_through(void)
{
	begin(-1, 2, 0);
	for (unsigned i = 0; i < 3; i++)
		take(i);
	run_task();
	CHECK_STR(ended, "2");
	CHECK_EQ(run_task(), MS_NS);
	CHECK_STR(ended, "21");
	for (unsigned i = 0; i < 100; i++)
		CHECK_EQ(run_task(), MS_NS);
	CHECK_STR(ended, "21");
	owed[0] = 0;
	run_task();
	CHECK_STR(ended, "210");
	CHECK(!closing_is_used() && is_idle());
}

/* One that is closed while others are being ended is not lost, nor does it wait for those that
 * stay. */
static void test_closed_meanwhile(void)
{
	begin(-1, 0, 0);
	closes_another = &comms[2];
	take(0);
	take(1);
	run_task();
	CHECK_STR(ended, "1");
	CHECK_EQ(run_task(), 0);
	CHECK_STR(ended, "12");
	owed[0] = 0;
	run_task();
	CHECK_STR(ended, "120");
}

/* Looks take a fifth of a core at most, until they would be too rare. */
static void test_many_to_look_at(void)
{
	const struct {
		uint64_t tend_ns, pause_ns;
	} costs[] = { { 0, MS_NS }, { MS_NS / 2, 2 * MS_NS }, { 9 * MS_NS, 20 * MS_NS } };

	for (unsigned i = 0; i < 3; i++) {
		tend_ns = costs[i].tend_ns;
		begin(2, 0, 0);
		take(0);
		run_task();
		CHECK_EQ(run_task(), costs[i].pause_ns);
		CHECK_STR(ended, "0");
	}
	tend_ns = 0;
}

/* One whose peer takes nothing is left to its kernel. */
static void test_timeout(void)
{
	uint64_t begin_ns = atomic_load(&now_ns);

	begin(-1, 0, 0);
	take(0);
	while (!ended[0])
		run_task();
	CHECK_EQ(atomic_load(&now_ns), begin_ns + 2 * SECOND_NS);
	CHECK(!closing_is_used());
}

/* From closing_finish() on. */
static void *control_thread(void *stop)
{
	while (!atomic_load(&finishes))
		sched_yield();
	while (!atomic_load((atomic_bool *)stop)) {
		if (!is_idle())
			run_task();
		sched_yield();
	}
	return NULL;
}

/* The last finalize waits for those that get on, and for none longer than it may. */
static void test_finish(void)
{
	uint64_t begin_ns = atomic_load(&now_ns);
	atomic_bool stop = false;
	pthread_t thread;

	closing_finish(0); /* nothing to do */
	begin(20, -1, 3);
	for (unsigned i = 0; i < 3; i++)
		take(i);
	atomic_store(&armed, true);
	CHECK_EQ(pthread_create(&thread, NULL, control_thread, &stop), 0);
	closing_finish(SECOND_NS);
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	CHECK_STR(ended, "201");
	CHECK_EQ(atomic_load(&now_ns), begin_ns + SECOND_NS);
	CHECK(!closing_is_used());
	timer = NULL;
	atomic_store(&posted, NULL);
}

int main(void)
{
	test_nothing_owed();
	test_seen_through();
	test_closed_meanwhile();
	test_many_to_look_at();
	test_timeout();
	test_finish();
	test_nothing_owed(); /* closing_finish() leaves no trace */
	return check_done();
}
