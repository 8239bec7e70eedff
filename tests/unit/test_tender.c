/* SPDX-License-Identifier: Apache-2.0 */
/* test_tender.c - comms that nobody polls are looked after at the same times, so that the keeper wakes once for all, and not at
 * all while nothing is on their way. */
#include <string.h>

#include "check.h"
#include "comm/comm.h"
#include "comm/tender.h"

#define COMMS 8u
#define TURNS_A_SECOND 50u
#define SECOND_NS 1000000000ull

static struct comm comms[COMMS];
static struct tender tenders[COMMS];
static struct driver keeper;
static unsigned tended, read_too;
static bool receives; /* over kernel lanes */
static bool busy;     /* something is on its way */
static struct work *rouse[COMMS];
static bool never[COMMS];

struct driver *keeper_driver(void)
{
	return &keeper;
}

void keeper_timer_set(struct keeper_timer *timer, uint64_t at_ns)
{
	timer->at_ns = at_ns;
}

bool comm_tend(struct comm *comm, uint64_t now_ns, bool reads)
{
	(void)comm;
	(void)now_ns;
	tended++;
	read_too += reads;
	return busy;
}

bool comm_is_read(const struct comm *comm)
{
	(void)comm;
	return receives;
}

bool comm_rest(struct comm *comm, struct driver *driver, struct work *work)
{
	CHECK(driver == &keeper && !busy);
	CHECK(!rouse[comm - comms]);
	if (!never[comm - comms])
		rouse[comm - comms] = work;
	return !never[comm - comms];
}

void comm_rest_never(struct comm *comm)
{
	never[comm - comms] = true;
	rouse[comm - comms] = NULL;
}

static void keeper_turn(struct driver *driver, uint64_t now_ns)
{
	(void)driver_run_ready(driver, now_ns);
}

/* Runs the timers that are due first; when that was. */
static uint64_t keeper_wakes(void)
{
	uint64_t now_ns = UINT64_MAX;

	for (unsigned i = 0; i < COMMS; i++)
		if (tenders[i].timer.at_ns < now_ns)
			now_ns = tenders[i].timer.at_ns;
	for (unsigned i = 0; i < COMMS; i++)
		if (tenders[i].timer.at_ns <= now_ns && now_ns != UINT64_MAX) {
			tenders[i].timer.at_ns = UINT64_MAX; /* it has stopped when it runs */
			tenders[i].timer.run(&tenders[i].timer, now_ns);
		}
	return now_ns;
}

static void begin(uint64_t now_ns)
{
	driver_init(&keeper, keeper_turn); /* with the test's clock: end() has the machine's */
	memset(tenders, 0, sizeof(tenders));
	memset(rouse, 0, sizeof(rouse));
	memset(never, 0, sizeof(never));
	for (unsigned i = 0; i < COMMS; i++) {
		tender_begin(&tenders[i], &comms[i]);
		CHECK(driver_turn(&keeper, now_ns));
		now_ns += 2345678;
	}
}

static void end(void)
{
	for (unsigned i = 0; i < COMMS; i++) {
		tender_end(&tenders[i]);
		CHECK(never[i]);
		CHECK_EQ(tenders[i].timer.at_ns, UINT64_MAX);
	}
}

/* Comms that began at different times, and have something on its way. */
static void test_together(void)
{
	uint64_t now_ns = 7777777;
	unsigned wakes = 0;

	busy = true;
	begin(now_ns);
	now_ns += COMMS * 2345678 + SECOND_NS;
	while (keeper_wakes() < now_ns)
		wakes++;
	CHECK(wakes >= TURNS_A_SECOND);
	CHECK(wakes <= TURNS_A_SECOND + 2);
	CHECK(tended >= COMMS * TURNS_A_SECOND);
	end();
}

/* When nothing has been for a fifth of a second the keeper isn't woken any more, until one is roused: that one is looked after
 * then, and the others are not. */
static void test_at_rest(void)
{
	uint64_t now_ns = 7777777;
	unsigned wakes = 0;

	busy = false;
	begin(now_ns);
	while (keeper_wakes() != UINT64_MAX)
		wakes++;
	CHECK(wakes >= 10 && wakes <= 12);
	for (unsigned i = 0; i < COMMS; i++)
		CHECK(rouse[i] != NULL);
	now_ns += 60 * SECOND_NS;
	driver_post(&keeper, rouse[3]);
	rouse[3] = NULL;
	CHECK(driver_turn(&keeper, now_ns));
	for (unsigned i = 0; i < COMMS; i++)
		CHECK_EQ(tenders[i].timer.at_ns != UINT64_MAX, i == 3);
	CHECK_EQ(tenders[3].timer.at_ns, keeper_beat_ns(now_ns));
	/* It rests again only as long behind the last that it found. */
	busy = true;
	for (wakes = 0; wakes < 100; wakes++)
		CHECK(keeper_wakes() != UINT64_MAX);
	busy = false;
	for (wakes = 0; keeper_wakes() != UINT64_MAX; wakes++)
		;
	CHECK_EQ(wakes, 10);
	end();
}

/* Receivers' kernel lanes are read ten times a second, and once while all rest: one wake for all of them. */
static void test_read(void)
{
	uint64_t now_ns = 0, end_ns;
	unsigned wakes = 0;

	receives = true;
	busy = true;
	begin(7777777);
	end_ns = keeper_wakes() + SECOND_NS;
	read_too = 0;
	while (keeper_wakes() < end_ns)
		;
	CHECK(read_too >= COMMS * 9 && read_too <= COMMS * 11);
	busy = false;
	for (unsigned i = 0; i < 20; i++)
		now_ns = keeper_wakes();
	read_too = 0;
	for (end_ns = now_ns + 60 * SECOND_NS; now_ns < end_ns; wakes++)
		now_ns = keeper_wakes();
	CHECK(wakes >= 60 && wakes <= 61);
	CHECK_EQ(read_too, COMMS * wakes);
	CHECK(rouse[5] != NULL);
	driver_post(&keeper, rouse[5]);
	rouse[5] = NULL;
	CHECK(driver_turn(&keeper, now_ns));
	CHECK_EQ(tenders[5].timer.at_ns, keeper_beat_ns(now_ns));
	end();
	receives = false;
}

/* Who was roused at the last moment is looked at no more when tender_end() has returned. */
static void test_roused_and_ended(void)
{
	busy = false;
	begin(7777777);
	while (keeper_wakes() != UINT64_MAX)
		;
	driver_post(&keeper, rouse[0]);
	end();
	CHECK(!atomic_load(&keeper.ready));
}

int main(void)
{
	test_together();
	test_at_rest();
	test_read();
	test_roused_and_ended();
	return check_done();
}
