/* SPDX-License-Identifier: Apache-2.0 */
/* test_background.c - how the control thread polls comms that the application does not poll, and
 * ends closed ones. The comms and the control thread are doubles. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "check.h"
#include "comm/comm.h"

#define COMMS 8u
#define SECOND_NS UINT64_C(1000000000)

static struct comm comms[COMMS];
static unsigned polls;         /* of all comms */
static bool busy;              /* a poll finds work */
static int undelivered[COMMS]; /* calls of comm_has_undelivered() that return true; below 0: all */
static char end_order[8];      /* the numbers of ended comms */
static struct comm *next;      /* to be closed while another one ends */

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
	polls++;
	return busy;
}

bool comm_has_undelivered(struct comm *comm)
{
	int *left = &undelivered[comm - comms];

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
			timers[i]->at_ns = UINT64_MAX; /* a timer that runs is stopped */
			timers[i]->run(timers[i], at_ns);
		}
	return true;
}

static void end_comm(struct comm *comm)
{
	struct comm *other = next;

	next = NULL;
	end_order[strlen(end_order)] = (char)('0' + (comm - comms));
	if (other)
		closing_take(other, end_comm);
}

/* ---- comms that are not polled --------------------------------------------------------------- */

/* Runs the control thread for a second. Returns its number of turns. */
static unsigned run_for_a_second(void)
{
	uint64_t until_ns = now_ns + SECOND_NS;
	unsigned turns = 0;

	for (polls = 0; now_ns < until_ns; turns++)
		CHECK(control_turn());
	return turns;
}

TEST(comms_that_began_at_different_times_are_polled_together)
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
		(void)run_for_a_second();
		CHECK_EQ(run_for_a_second(), rows[i].turns);
		CHECK_EQ(polls, COMMS * rows[i].turns);
	}
	for (unsigned i = 0; i < COMMS; i++)
		background_end(&comms[i]);
	CHECK(!control_turn());
}

TEST(a_comm_that_ends_before_it_has_begun_is_not_polled)
{
	background_begin(&comms[0]);
	background_end(&comms[0]);
	CHECK(!control_turn());
}

/* ---- comms that are closed ------------------------------------------------------------------- */

/* Closes the comms with these numbers. undelivered_0, _1: of comms 0 and 1. */
static void close_comms(const char *numbers, int undelivered_0, int undelivered_1)
{
	memset(end_order, 0, sizeof(end_order));
	memset(undelivered, 0, sizeof(undelivered));
	for (unsigned i = 0; i < COMMS; i++)
		comms[i].background.deadline_ns = 0;
	undelivered[0] = undelivered_0;
	undelivered[1] = undelivered_1;
	for (; *numbers; numbers++)
		closing_take(&comms[*numbers - '0'], end_comm);
	CHECK_STR(end_order, "");
}

TEST(comms_without_undelivered_messages_end_in_the_order_of_closing)
{
	close_comms("201", 0, 0);
	CHECK(control_turn());
	CHECK_STR(end_order, "201");
	CHECK(!control_turn());
}

TEST(each_comm_ends_when_its_messages_are_delivered)
{
	uint64_t begin_ns = now_ns;

	close_comms("012", -1, 2);
	CHECK(control_turn());
	CHECK_STR(end_order, "2");
	CHECK(control_turn());
	CHECK(control_turn());
	CHECK_STR(end_order, "21");
	while (control_turn())
		;
	CHECK_STR(end_order, "210"); /* its peer acknowledges nothing */
	CHECK(now_ns >= begin_ns + 2 * SECOND_NS &&
	      now_ns < begin_ns + 2 * SECOND_NS + CONTROL_TICK_NS);
}

TEST(a_comm_that_is_closed_while_another_one_ends_ends_too)
{
	close_comms("01", 1, 0);
	next = &comms[2];
	while (control_turn())
		;
	CHECK_EQ(strlen(end_order), 3);
	CHECK(!strncmp(end_order, "12", 2));
}

static void *finish(void *done)
{
	closing_finish();
	atomic_store((atomic_bool *)done, true);
	return NULL;
}

TEST(the_last_finalize_waits_two_seconds_for_undelivered_messages)
{
	uint64_t begin_ns = now_ns;
	atomic_bool done = false;
	pthread_t thread;

	closing_finish(); /* nothing to do */
	close_comms("012", 20, -1);
	CHECK(control_turn());
	CHECK_EQ(pthread_create(&thread, NULL, finish, &done), 0);
	while (control_turn())
		;
	pthread_join(thread, NULL);
	CHECK(atomic_load(&done));
	CHECK_STR(end_order, "201");
	CHECK(now_ns >= begin_ns + 2 * SECOND_NS &&
	      now_ns < begin_ns + 2 * SECOND_NS + CONTROL_TICK_NS);
}
