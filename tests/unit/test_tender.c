/* SPDX-License-Identifier: Apache-2.0 */
/* test_tender.c - comms that nobody polls are looked after at the same times, so that the keeper wakes once for all. */
#include "check.h"
#include "comm.h"
#include "tender.h"

#define COMMS 8u
#define TURNS_A_SECOND 50u
#define SECOND_NS 1000000000ull

static struct comm comms[COMMS];
static struct tender tenders[COMMS];
static struct driver keeper;
static unsigned tended;

struct driver *keeper_driver(void)
{
	return &keeper;
}

void keeper_timer_set(struct keeper_timer *timer, uint64_t at_ns)
{
	timer->at_ns = at_ns;
}

void comm_tend(struct comm *comm, uint64_t now_ns)
{
	(void)comm;
	(void)now_ns;
	tended++;
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
		if (tenders[i].timer.at_ns <= now_ns)
			tenders[i].timer.run(&tenders[i].timer, now_ns);
	return now_ns;
}

/* Comms that began at different times. */
static void test_together(void)
{
	uint64_t now_ns = 7777777;
	unsigned wakes = 0;

	for (unsigned i = 0; i < COMMS; i++) {
		tender_begin(&tenders[i], &comms[i]);
		CHECK(driver_turn(&keeper, now_ns));
		now_ns += 2345678;
	}
	now_ns += SECOND_NS;
	while (keeper_wakes() < now_ns)
		wakes++;
	CHECK(wakes >= TURNS_A_SECOND);
	CHECK(wakes <= TURNS_A_SECOND + 2);
	CHECK(tended >= COMMS * TURNS_A_SECOND);
	for (unsigned i = 0; i < COMMS; i++) {
		tender_end(&tenders[i]);
		CHECK_EQ(tenders[i].timer.at_ns, UINT64_MAX);
	}
}

int main(void)
{
	driver_init(&keeper, keeper_turn);
	test_together();
	return check_done();
}
