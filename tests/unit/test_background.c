/* SPDX-License-Identifier: Apache-2.0 */
/* test_background.c - comms that nobody polls are looked after at the same times, so that the control wakes once for all, and not at
 * all while nothing is on their way. */
#include <string.h>

#include "check.h"
#include "comm/comm.h"
#include "comm/background.h"

#define COMMS 8u
#define TURNS_A_SECOND 50u
#define SECOND_NS 1000000000ull

static struct comm comms[COMMS];
static struct comm_background backgrounds[COMMS];
static struct poller control;
static unsigned tended, read_too;
static bool receives; /* over kernel lanes */
static bool busy;     /* something is on its way */
static struct work *rouse[COMMS];
static bool never[COMMS];

struct poller *control_poller(void)
{
	return &control;
}

void control_post(struct work *work)
{
	poller_post(&control, work);
}

void control_call(struct work *work)
{
	work->run(work, clock_now_ns());
}

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	timer->at_ns = at_ns;
}

bool comm_run_background(struct comm *comm, uint64_t now_ns, bool reads)
{
	tended++;
	read_too += reads;
	return busy;
}

/* None is closed here. */
bool comm_has_undelivered(struct comm *comm)
{
	return comm == NULL;
}

bool comm_is_read(const struct comm *comm)
{
	return receives;
}

bool comm_sleep(struct comm *comm, struct poller *poller, struct work *work)
{
	CHECK(poller == &control && !busy);
	CHECK(!rouse[comm - comms]);
	if (!never[comm - comms])
		rouse[comm - comms] = work;
	return !never[comm - comms];
}

void comm_stay_awake(struct comm *comm)
{
	never[comm - comms] = true;
	rouse[comm - comms] = NULL;
}

static void control_turn(struct poller *poller, uint64_t now_ns)
{
	(void)poller_run_ready(poller, now_ns);
}

/* Runs the timers that are due first; when that was. */
static uint64_t control_wakes(void)
{
	uint64_t now_ns = UINT64_MAX;

	for (unsigned i = 0; i < COMMS; i++)
		if (backgrounds[i].timer.at_ns < now_ns)
			now_ns = backgrounds[i].timer.at_ns;
	for (unsigned i = 0; i < COMMS; i++)
		if (backgrounds[i].timer.at_ns <= now_ns && now_ns != UINT64_MAX) {
			backgrounds[i].timer.at_ns = UINT64_MAX; /* it has stopped when it runs */
			backgrounds[i].timer.run(&backgrounds[i].timer, now_ns);
		}
	return now_ns;
}

static void begin(uint64_t now_ns)
{
	poller_init(&control, control_turn); /* with the test's clock: end() has the machine's */
	memset(backgrounds, 0, sizeof(backgrounds));
	memset(rouse, 0, sizeof(rouse));
	memset(never, 0, sizeof(never));
	for (unsigned i = 0; i < COMMS; i++) {
		background_begin(&backgrounds[i], &comms[i]);
		CHECK(poller_run(&control, now_ns));
		now_ns += 2345678;
	}
}

static void end(void)
{
	for (unsigned i = 0; i < COMMS; i++) {
		background_end(&backgrounds[i]);
		CHECK(never[i]);
		CHECK_EQ(backgrounds[i].timer.at_ns, UINT64_MAX);
	}
}

/* Comms that began at different times, and have something on its way. */
TEST(together)
{
	uint64_t now_ns = 7777777;
	unsigned wakes = 0;

	busy = true;
	begin(now_ns);
	now_ns += COMMS * 2345678 + SECOND_NS;
	while (control_wakes() < now_ns)
		wakes++;
	CHECK(wakes >= TURNS_A_SECOND);
	CHECK(wakes <= TURNS_A_SECOND + 2);
	CHECK(tended >= COMMS * TURNS_A_SECOND);
	end();
}

/* When nothing has been for a fifth of a second the control isn't woken any more, until one is roused: that one is looked after
 * then, and the others are not. */
TEST(at_rest)
{
	uint64_t now_ns = 7777777;
	unsigned wakes = 0;

	busy = false;
	begin(now_ns);
	while (control_wakes() != UINT64_MAX)
		wakes++;
	CHECK(wakes >= 10 && wakes <= 12);
	for (unsigned i = 0; i < COMMS; i++)
		CHECK(rouse[i] != NULL);
	now_ns += 60 * SECOND_NS;
	poller_post(&control, rouse[3]);
	rouse[3] = NULL;
	CHECK(poller_run(&control, now_ns));
	for (unsigned i = 0; i < COMMS; i++)
		CHECK_EQ(backgrounds[i].timer.at_ns != UINT64_MAX, i == 3);
	CHECK_EQ(backgrounds[3].timer.at_ns, control_tick_ns(now_ns));
	/* It rests again only as long behind the last that it found. */
	busy = true;
	for (wakes = 0; wakes < 100; wakes++)
		CHECK(control_wakes() != UINT64_MAX);
	busy = false;
	for (wakes = 0; control_wakes() != UINT64_MAX; wakes++)
		;
	CHECK_EQ(wakes, 10);
	end();
}

/* Receivers' kernel lanes are read ten times a second, and once while all rest: one wake for all of them. */
TEST(read)
{
	uint64_t now_ns = 0, end_ns;
	unsigned wakes = 0;

	receives = true;
	busy = true;
	begin(7777777);
	end_ns = control_wakes() + SECOND_NS;
	read_too = 0;
	while (control_wakes() < end_ns)
		;
	CHECK(read_too >= COMMS * 9 && read_too <= COMMS * 11);
	busy = false;
	for (unsigned i = 0; i < 20; i++)
		now_ns = control_wakes();
	read_too = 0;
	for (end_ns = now_ns + 60 * SECOND_NS; now_ns < end_ns; wakes++)
		now_ns = control_wakes();
	CHECK(wakes >= 60 && wakes <= 61);
	CHECK_EQ(read_too, COMMS * wakes);
	CHECK(rouse[5] != NULL);
	poller_post(&control, rouse[5]);
	rouse[5] = NULL;
	CHECK(poller_run(&control, now_ns));
	CHECK_EQ(backgrounds[5].timer.at_ns, control_tick_ns(now_ns));
	end();
	receives = false;
}

/* Who was roused at the last moment is looked at no more when background_end() has returned. */
TEST(roused_and_ended)
{
	busy = false;
	begin(7777777);
	while (control_wakes() != UINT64_MAX)
		;
	poller_post(&control, rouse[0]);
	end();
	CHECK(poller_run(&control, 8888888));
	CHECK_EQ(backgrounds[0].timer.at_ns, UINT64_MAX);
}
