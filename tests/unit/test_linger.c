/* SPDX-License-Identifier: Apache-2.0 */
/* test_linger.c - closed comms are looked after as long as they owe something, and no longer than they may. */
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "check.h"
#include "comm.h"
#include "linger.h"

#define SECOND_NS 1000000000ull

/* ---- comms that do what the test says ------------------------------------------------------------ */

static struct comm comms[3];
static atomic_int owed[3]; /* looks until nothing is owed; below 0: for ever */
static atomic_uint closed; /* a bit for each */
static atomic_uint_fast64_t now_ns = SECOND_NS;
static sem_t looked, gone;
static uint64_t tend_ns;        /* what one look at a comm takes */
static atomic_long longest_nap; /* ns */

static unsigned number(const struct comm *comm)
{
	return (unsigned)(comm - comms);
}

uint64_t driver_clock_ns(void)
{
	return atomic_load(&now_ns);
}

bool comm_owes(struct comm *comm)
{
	return atomic_load(&owed[number(comm)]) != 0;
}

bool comm_tend(struct comm *comm, uint64_t at_ns, bool reads)
{
	(void)at_ns;
	CHECK(!reads);
	atomic_fetch_add(&now_ns, tend_ns);
	if (atomic_load(&owed[number(comm)]) > 0)
		atomic_fetch_sub(&owed[number(comm)], 1);
	sem_post(&looked);
	return true;
}

int __wrap_nanosleep(const struct timespec *nap, struct timespec *rest);
int __wrap_nanosleep(const struct timespec *nap, struct timespec *rest)
{
	if (nap->tv_nsec > atomic_load(&longest_nap))
		atomic_store(&longest_nap, nap->tv_nsec);
	return clock_nanosleep(CLOCK_MONOTONIC, 0, nap, rest);
}

static void close_it(struct comm *comm)
{
	atomic_fetch_or(&closed, 1u << number(comm));
	sem_post(&gone);
}

static void begin(int first, int second, int third)
{
	const int owes[] = { first, second, third };

	for (unsigned i = 0; i < 3; i++)
		atomic_store(&owed[i], owes[i]);
	atomic_store(&closed, 0);
}

/* ---- the rules ----------------------------------------------------------------------------------- */

static void test_nothing_owed(void)
{
	begin(0, 0, 0);
	CHECK(!linger_take(&comms[0], close_it));
	CHECK(!linger_is_used());
	linger_finish(0); /* no thread: nothing to do */
	CHECK_EQ(atomic_load(&closed), 0);
}

/* Each ends when it owes nothing, whatever the others do; then the thread waits for the next. */
static void test_seen_through(void)
{
	begin(-1, 5, 2);
	for (unsigned i = 0; i < 3; i++)
		CHECK(linger_take(&comms[i], close_it));
	CHECK(linger_is_used());
	sem_wait(&gone);
	sem_wait(&gone);
	CHECK_EQ(atomic_load(&closed), 6);
	atomic_store(&owed[0], 3);
	sem_wait(&gone);
	CHECK_EQ(atomic_load(&closed), 7);
	begin(0, 1, 0);
	CHECK(linger_take(&comms[1], close_it));
	sem_wait(&gone);
	CHECK_EQ(atomic_load(&closed), 2);
	linger_finish(0);
	CHECK(!linger_is_used());
}

/* Looks take a fifth of a core at most, until they would be too rare. */
static void test_many_to_look_at(void)
{
	const struct {
		uint64_t tend_ns;
		long nap_ns;
	} costs[] = { { 0, 1000000 }, { 500000, 2000000 }, { 9000000, 20000000 } };

	for (unsigned i = 0; i < 3; i++) {
		tend_ns = costs[i].tend_ns;
		atomic_store(&longest_nap, 0);
		begin(5, 0, 0);
		CHECK(linger_take(&comms[0], close_it));
		sem_wait(&gone);
		linger_finish(0);
		CHECK_EQ(atomic_load(&longest_nap), costs[i].nap_ns);
	}
	tend_ns = 0;
}

/* One whose peer takes nothing is left to its kernel. */
static void test_patience(void)
{
	begin(-1, 0, 0);
	CHECK(linger_take(&comms[0], close_it));
	atomic_fetch_add(&now_ns, SECOND_NS);
	while (sem_trywait(&looked) == 0)
		;
	sem_wait(&looked);
	sem_wait(&looked); /* a whole look has been taken since */
	CHECK_EQ(atomic_load(&closed), 0);
	atomic_fetch_add(&now_ns, 2 * SECOND_NS);
	sem_wait(&gone);
	CHECK_EQ(atomic_load(&closed), 1);
	linger_finish(0);
}

/* The last finalize waits for those that get on (the clock stands still), */
static void test_finish(void)
{
	begin(50, -1, 3);
	CHECK(linger_take(&comms[0], close_it) && linger_take(&comms[2], close_it));
	linger_finish(SECOND_NS);
	CHECK_EQ(atomic_load(&closed), 5);
	CHECK(!comm_owes(&comms[0]) && !comm_owes(&comms[2]));
	CHECK(!linger_is_used());
}

/* and for none longer than it may. */
static void test_finish_in_time(void)
{
	begin(-1, -1, -1);
	for (unsigned i = 0; i < 3; i++)
		CHECK(linger_take(&comms[i], close_it));
	linger_finish(0);
	CHECK_EQ(atomic_load(&closed), 7);
	CHECK(!linger_is_used());
}

int main(void)
{
	sem_init(&looked, 0, 0);
	sem_init(&gone, 0, 0);
	test_nothing_owed();
	test_seen_through();
	test_many_to_look_at();
	test_patience();
	test_finish();
	test_finish_in_time();
	test_nothing_owed(); /* another life begins anew */
	return check_done();
}
