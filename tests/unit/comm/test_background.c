/* SPDX-License-Identifier: Apache-2.0 */
/* test_background.c - what the control thread does for comms that are not polled, and for closed
 * ones. The comms and the control thread are the test's. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "check.h"
#include "comm/comm.h"

#define COMMS 8u
#define SECOND_NS UINT64_C(1000000000)

static struct comm comms[COMMS];
static unsigned looks;    /* of all comms */
static bool busy;         /* something is on its way */
static int owed[COMMS];   /* looks until nothing is owed; below 0: never */
static char ended[8];     /* the numbers of closed comms, in order */
static struct comm *next; /* closed while another one is ended */

/* The control thread: posted work and timers. */
static struct poller control;
static struct control_timer *timers[COMMS];
static unsigned timer_count;
static uint64_t now_ns = SECOND_NS;

void control_post(struct work *work)
{
	poller_post(&control, work);
}

void control_call(void (*run)(void *arg), void *arg)
{
	(void)poller_run_ready(&control, now_ns);
	run(arg);
}

void control_timer_set(struct control_timer *timer, uint64_t at_ns)
{
	unsigned i = 0;

	while (i < timer_count && timers[i] != timer)
		i++;
	if (i == timer_count)
		timers[timer_count++] = timer;
	timer->at_ns = at_ns;
}

bool comm_run_background(struct comm *comm, uint64_t at_ns)
{
	CHECK(comm >= comms && at_ns == now_ns);
	looks++;
	return busy;
}

bool comm_has_undelivered(struct comm *comm)
{
	int *left = &owed[comm - comms];

	return *left < 0 || (*left > 0 && (*left)-- > 0);
}

/* Runs posted work, else the timers that are due next. False: there is neither. */
static bool control_turn(void)
{
	uint64_t at_ns = UINT64_MAX;

	if (poller_run_ready(&control, now_ns))
		return true;
	for (unsigned i = 0; i < timer_count; i++)
		at_ns = timers[i]->at_ns < at_ns ? timers[i]->at_ns : at_ns;
	if (at_ns == UINT64_MAX)
		return false;
	if (at_ns > now_ns)
		now_ns = at_ns;
	for (unsigned i = 0; i < timer_count; i++)
		if (timers[i]->at_ns == at_ns) {
			timers[i]->at_ns = UINT64_MAX; /* it has stopped when it runs */
			timers[i]->run(timers[i], at_ns);
		}
	return true;
}

static void end_comm(struct comm *comm)
{
	struct comm *other = next;

	next = NULL;
	ended[strlen(ended)] = (char)('0' + (comm - comms));
	if (other)
		closing_take(other, end_comm);
}

/* ---- comms that are not polled --------------------------------------------------------------- */

/* Turns of the control thread in a second. */
static unsigned turns_of_a_second(void)
{
	uint64_t until_ns = now_ns + SECOND_NS;
	unsigned turns = 0;

	for (looks = 0; now_ns < until_ns; turns++)
		CHECK(control_turn());
	return turns;
}

TEST(comms_that_began_at_different_times_are_looked_at_together)
{
	static const struct {
		bool busy;
		unsigned turns;
	} rows[] = { { true, 50 }, { false, 10 }, { true, 50 } };

	for (unsigned i = 0; i < COMMS; i++, now_ns += 2345678) {
		background_begin(&comms[i]);
		CHECK(control_turn());
	}
	for (unsigned i = 0; i < 3; i++) {
		busy = rows[i].busy;
		(void)turns_of_a_second();
		CHECK_EQ(turns_of_a_second(), rows[i].turns);
		CHECK_EQ(looks, COMMS * rows[i].turns);
	}
	for (unsigned i = 0; i < COMMS; i++)
		background_end(&comms[i]);
	CHECK(!control_turn());
}

TEST(a_comm_that_ends_before_it_has_begun_is_not_looked_at)
{
	background_begin(&comms[0]);
	background_end(&comms[0]);
	CHECK(!control_turn());
}

/* ---- comms that are closed ------------------------------------------------------------------- */

static void take(const char *numbers, int first_owes, int second_owes)
{
	memset(ended, 0, sizeof(ended));
	memset(owed, 0, sizeof(owed));
	for (unsigned i = 0; i < COMMS; i++)
		comms[i].background.deadline_ns = 0;
	owed[0] = first_owes;
	owed[1] = second_owes;
	for (; *numbers; numbers++)
		closing_take(&comms[*numbers - '0'], end_comm);
	CHECK_STR(ended, "");
}

TEST(a_comm_that_owes_nothing_is_ended_in_the_order_of_closing)
{
	take("201", 0, 0);
	CHECK(control_turn());
	CHECK_STR(ended, "201");
	CHECK(!control_turn());
}

TEST(each_comm_ends_when_it_owes_nothing_whatever_the_others_do)
{
	uint64_t begun_ns = now_ns;

	take("012", -1, 2);
	CHECK(control_turn());
	CHECK_STR(ended, "2");
	CHECK(control_turn());
	CHECK(control_turn());
	CHECK_STR(ended, "21");
	while (control_turn())
		;
	CHECK_STR(ended, "210"); /* its peer takes nothing */
	CHECK(now_ns >= begun_ns + 2 * SECOND_NS &&
	      now_ns < begun_ns + 2 * SECOND_NS + CONTROL_TICK_NS);
}

TEST(a_comm_that_is_closed_while_another_one_is_ended_is_ended_too)
{
	take("01", 1, 0);
	next = &comms[2];
	while (control_turn())
		;
	CHECK_EQ(strlen(ended), 3);
	CHECK(!strncmp(ended, "12", 2));
}

static void *finish(void *done)
{
	closing_finish();
	atomic_store((atomic_bool *)done, true);
	return NULL;
}

TEST(the_last_finalize_waits_two_seconds_for_those_that_owe_something)
{
	uint64_t begun_ns = now_ns;
	atomic_bool done = false;
	pthread_t thread;

	closing_finish(); /* nothing to do */
	take("012", 20, -1);
	CHECK(control_turn());
	CHECK_EQ(pthread_create(&thread, NULL, finish, &done), 0);
	while (control_turn())
		;
	pthread_join(thread, NULL);
	CHECK(atomic_load(&done));
	CHECK_STR(ended, "201");
	CHECK(now_ns >= begun_ns + 2 * SECOND_NS &&
	      now_ns < begun_ns + 2 * SECOND_NS + CONTROL_TICK_NS);
}
