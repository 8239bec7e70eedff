/* SPDX-License-Identifier: Apache-2.0 */
/* test_reconnect.c - a further lane that is replaced while its peer, or its successor, ends: it is never taken for one that is up. */
#include <errno.h>

#include "reconnect_rig.h"

/* It is dialled once more, now or at the time that the timer is set to. */
static void expect_dialled_again(void)
{
	unsigned before = begun;

	begin_rc = 0;
	CHECK(timer->at_ns != UINT64_MAX);
	if (timer->at_ns == UINT64_MAX)
		return;
	timer->run(timer, timer->at_ns);
	CHECK_EQ(begun, before + 1);
	here = true;
	ended(0, timer->at_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
}

/* The peer resets the old one as it lets the new one in. */
TEST(replaced)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	CHECK_EQ(begun, 2);
	CHECK(reconnect_lost(&comm, LANE, COMM_LOSS_BY_PEER));
	ended(0, now_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	CHECK_EQ(unreplaced, 0);
	end();
}

TEST(the_old_one_ends_and_there_is_no_new_one)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	here = false;
	CHECK(reconnect_lost(&comm, LANE, COMM_LOSS_BY_PEER));
	ended(-ETIMEDOUT, now_ns);
	CHECK_EQ(unreplaced, 1);
	expect_dialled_again();
	end();
}

/* The comm has it, and the peer ends it before the keeper has looked at how the dial went. */
TEST(the_new_one_ends_at_once)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	here = false;
	CHECK(reconnect_lost(&comm, LANE, COMM_LOSS_BY_PEER));
	ended(0, now_ns);
	CHECK_EQ(unreplaced, 1);
	expect_dialled_again();
	end();
}

/* It ends while there is nobody to dial. */
TEST(the_old_one_ends_before_a_dial)
{
	uint64_t now_ns = begin();

	begin_rc = -ENETUNREACH;
	turn(now_ns);
	CHECK_EQ(begun, 2);
	CHECK(swallowed);
	CHECK_EQ(unreplaced, 1);
	expect_dialled_again();
	end();
}

TEST(no_such_lane)
{
	uint64_t now_ns = begin();

	turn(now_ns);
	CHECK(!reconnect_lost(&comm, COMM_LANES_MAX, COMM_LOSS_BY_PEER));
	ended(0, now_ns);
	CHECK_EQ(timer->at_ns, UINT64_MAX);
	end();
}
