/* SPDX-License-Identifier: Apache-2.0 */
/* test_upkeep_when.c - when further lanes are dialled, and what is said of NICs that have none. */
#include <errno.h>

#include "reconnect_rig.h"

#define MS UINT64_C(1000000)

/* The lane is lost; when it is dialled again. */
static uint64_t lost(unsigned index, enum comm_loss loss, uint64_t now_ns)
{
	CHECK(!reconnect_lost(&comm, index, loss));
	here = index != LANE && here;
	turn(now_ns);
	return timer->at_ns;
}

/* The keeper's timer is due. */
static uint64_t due(void)
{
	uint64_t now_ns = timer->at_ns;

	timer->run(timer, now_ns);
	return now_ns;
}

/* ---- when --------------------------------------------------------------------------------------------- */

/* 100 ms, twice that, and so on up to 5 s; each time the next candidate. */
TEST(pauses)
{
	uint64_t now_ns = begin_dial(), pause_ns = 100 * MS;

	for (unsigned i = 1; i < 10; i++) {
		ended(-ECONNREFUSED, now_ns);
		CHECK_EQ(timer->at_ns, now_ns + pause_ns);
		timer->run(timer, timer->at_ns - 1);
		CHECK_EQ(begun, i);
		now_ns = due();
		CHECK_EQ(begun, i + 1);
		CHECK_EQ(failures, i);
		CHECK_EQ(failed, i);
		CHECK_EQ(freed, i);
		pause_ns = 2 * pause_ns < 5000 * MS ? 2 * pause_ns : 5000 * MS;
	}
	here = true;
	ended(0, now_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	/* It comes, and goes at once. */
	CHECK_EQ(lost(LANE, COMM_LOSS, now_ns + 1000 * MS - 1), now_ns + 6000 * MS - 1);
	CHECK_EQ(lost(LANE, COMM_LOSS, now_ns + 1000 * MS),
		 now_ns + 6000 * MS - 1); /* told once more */
	now_ns = due();
	CHECK_EQ(failures, 0);
	here = true;
	ended(0, now_ns);
	/* It lived for a while. */
	CHECK_EQ(lost(LANE, COMM_LOSS, now_ns + 1000 * MS), UINT64_MAX);
	CHECK_EQ(begun, 12);
	now_ns += 1000 * MS;
	ended(-ECONNREFUSED, now_ns);
	CHECK_EQ(timer->at_ns, now_ns + 100 * MS);
	end();
}

TEST(replaced_every_5_s_at_most)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	CHECK_EQ(begun, 2);
	ended(0, now_ns);
	for (unsigned i = 0; i < 5; i++) {
		CHECK(!reconnect_lost(&comm, LANE, COMM_LOSS_SLOW));
		turn(now_ns + i * 1000 * MS + 999 * MS);
		CHECK_EQ(begun, 2);
	}
	CHECK(!reconnect_lost(&comm, LANE, COMM_LOSS_SLOW));
	turn(now_ns + 5000 * MS);
	CHECK_EQ(begun, 3);
	/* It goes on if that fails, and is not dialled again for it. */
	ended(-ECONNREFUSED, now_ns + 5000 * MS);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	/* Nobody is told of it any more: it dies as others do. */
	CHECK_EQ(lost(LANE, COMM_LOSS_BY_PEER, now_ns + 5001 * MS), UINT64_MAX);
	CHECK_EQ(begun, 4);
	end();
}

/* What the peer ended before, in a re-roll or not, is no news in the next. */
TEST(ended_long_ago)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	CHECK(reconnect_lost(&comm, LANE, COMM_LOSS_BY_PEER));
	ended(0, now_ns);
	now_ns += 6000 * MS;
	CHECK_EQ(lost(LANE, COMM_LOSS_BY_PEER, now_ns), UINT64_MAX);
	here = true;
	ended(0, now_ns);
	CHECK(!reconnect_lost(&comm, LANE, COMM_LOSS_SLOW));
	turn(now_ns);
	CHECK_EQ(begun, 4);
	ended(-ETIMEDOUT, now_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	end();
}

TEST(lost_and_slow)
{
	uint64_t now_ns = begin();

	CHECK_EQ(lost(LANE, COMM_LOSS, now_ns), now_ns + 100 * MS);
	CHECK_EQ(begun, 1);
	end();
}

/* Silence is no reset by the peer, who lets another in. */
TEST(silent_while_it_is_replaced)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	CHECK(!reconnect_lost(&comm, LANE, COMM_LOSS));
	end();
}

/* The keeper hears of both at once. */
TEST(dialled_and_lost)
{
	uint64_t now_ns = begin_dial();

	CHECK(!reconnect_lost(&comm, LANE, COMM_LOSS));
	ended(0, now_ns);
	CHECK_EQ(timer->at_ns, now_ns + 100 * MS);
	end();
}

TEST(lost_behind_its_end)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	ended(0, now_ns);
	reconnect_stop(reconnect);
	CHECK(!reconnect_lost(&comm, LANE, COMM_LOSS));
	turn(now_ns + 9000 * MS);
	CHECK_EQ(begun, 2);
	reconnect_free(reconnect);
	turn(now_ns + 9000 * MS);
	comm.reconnect = NULL;
}

/* ---- NICs --------------------------------------------------------------------------------------------- */

TEST(a_nic_without_lanes)
{
	uint64_t now_ns;

	rails = 2;
	now_ns = begin_dial();
	CHECK_EQ(rails_said, 0); /* it never had one */
	here = true;
	ended(0, now_ns);
	CHECK_EQ(rails_said, 0);
	(void)lost(LANE, COMM_LOSS, now_ns);
	CHECK_EQ(rails_down, 1u << 1);
	now_ns = due();
	here = true;
	ended(0, now_ns);
	CHECK_EQ(rails_down, 0);
	end_said(2);
	rails = 1;
}

/* A line each 5 s at most. */
TEST(a_nic_that_comes_and_goes)
{
	uint64_t now_ns;

	rails = 2;
	now_ns = begin_dial();
	for (unsigned i = 0; i < 4; i++) {
		here = true;
		ended(0, now_ns);
		(void)lost(LANE, COMM_LOSS, now_ns + i / 3 * 5000 * MS);
		CHECK_EQ(rails_down, 1u << 1);
		CHECK_EQ(warned, 1 + i / 3);
		now_ns = due();
	}
	CHECK_EQ(rails_down, 1u << 1);
	end_said(7);
	CHECK_EQ(rails_down, 0); /* the comm that said so is no more */
	rails = 1;
}

/* Both lose all, and one comes back. */
TEST(a_nic_that_does_not_come_back)
{
	uint64_t now_ns;

	rails = 2;
	now_ns = begin_dial();
	here = true;
	ended(0, now_ns);
	CHECK(!reconnect_lost(&comm, 0, COMM_LOSS));
	(void)lost(LANE, COMM_LOSS, now_ns + 2000 * MS);
	CHECK_EQ(begun, 3);      /* at once, both */
	CHECK_EQ(rails_said, 1); /* of no lane at all the comm speaks */
	attempts[0].result = 0;
	poller_post(&control, &reconnect->work);
	turn(now_ns + 2000 * MS);
	CHECK_EQ(rails_down, 1u << 1);
	here = true;
	ended(0, now_ns + 3000 * MS);
	CHECK_EQ(rails_down, 0);
	end_said(4);
	rails = 1;
}
