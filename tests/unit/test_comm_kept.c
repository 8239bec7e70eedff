/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_kept.c - when a send is done: acknowledged by the peer, or, where the receiver keeps messages, delivered by a
 * lane; what is owed then, and what becomes of it when lanes or the sender go. */
#include "comm/comm_impl.h"
#include "comm_rig.h"

/* Done means acknowledged by the peer, unless the message is kept: a lane's TCP alone does not do. */
static void test_done_is_acked(void)
{
	struct request *send, *recv;
	uint8_t tx[100] = { 1, 2, 3 }, rx[100];
	struct talk t;
	int done = 0;

	rig_open(&t, 2, 16384, 100000);
	send = rig_post(t.send, tx, sizeof(tx));
	for (int i = 0; i < 500; i++) {
		(void)talk_turn(&t);
		CHECK_EQ(comm_test(send, &done, NULL), 0);
		CHECK_EQ(done, 0); /* nobody has received it */
	}
	recv = rig_post(t.recv, rx, sizeof(rx));
	rig_both(&t, send, recv);
	CHECK_MEM(rx, tx, sizeof(rx));
	rig_free(&t);
}

/* Kept messages are done when a lane has delivered them, as many as there are places for; what the sender had
 * in its memory then may go, and the lanes too but one. */
static void test_kept(void)
{
	enum { EXTRA = 8 };
	struct request *send[COMM_KEPT_MAX + EXTRA], *recv;
	uint64_t more = COMM_KEPT_MAX;
	uint8_t tx[100], rx[100];
	struct talk t;
	int done = 0;

	rig_open_kept(&t, 3);
	for (unsigned m = 0; m < COMM_KEPT_MAX; m++) {
		memset(tx, (int)m, sizeof(tx));
		send[m] = rig_post(t.send, tx, sizeof(tx));
		CHECK_EQ(rig_wait(&t, send[m], NULL), 0); /* no receive is posted */
	}
	memset(tx, (int)more, sizeof(tx));
	for (unsigned m = 0; m < EXTRA; m++)
		send[more + m] = rig_post(t.send, tx, sizeof(tx));
	rig_turns(&t, 500);
	CHECK_EQ(comm_test(send[more], &done, NULL), 0);
	CHECK_EQ(done, 0); /* no place */
	fake_break(&t.pairs[0]);
	fake_break(&t.pairs[2]);
	for (unsigned m = 0; m < more + EXTRA && !check_failures; m++) {
		memset(rx, 0xee, sizeof(rx));
		recv = rig_post(t.recv, rx, sizeof(rx));
		CHECK_EQ(rig_wait(&t, recv, NULL), 0);
		CHECK_EQ(rx[0], m < more ? m : more);
		CHECK_EQ(rx[99], m < more ? m : more);
	}
	for (unsigned m = 0; m < EXTRA; m++)
		CHECK_EQ(rig_wait(&t, send[more + m], NULL), 0);
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

/* Small messages one by one cost an ACK for each sixteenth of them, and nothing else comes back. */
static void test_kept_acks(void)
{
	struct request *send, *recv;
	uint64_t before, back = 0;
	uint8_t tx = 5, rx = 0;
	struct talk t;

	rig_open_kept(&t, 2);
	for (unsigned m = 0; m < 63; m++) { /* a CREDIT goes with the 64th */
		before = t.pairs[0].pipes[0].written + t.pairs[1].pipes[0].written;
		recv = rig_post(t.recv, &rx, 1);
		send = rig_post(t.send, &tx, 1);
		rig_both(&t, send, recv);
		CHECK_EQ(t.pairs[0].pipes[0].written + t.pairs[1].pipes[0].written - before, 41);
	}
	for (unsigned i = 0; i < 2; i++)
		back += t.pairs[i].pipes[1].written;
	CHECK_EQ(back, 3 * RECORD_HEADER_BYTES);
	rig_free(&t);
}

/* Messages first to end-1, each of one byte, its number; all are done. */
static void rig_send_some(struct talk *t, unsigned first, unsigned end)
{
	for (unsigned m = first; m < end; m++) {
		uint8_t tx = (uint8_t)m;

		CHECK_EQ(rig_wait(t, rig_post(t->send, &tx, 1), NULL), 0);
	}
}

/* Messages 0 to count-1, likewise; then the sender's end. */
static void rig_receive_all(struct talk *t, unsigned count)
{
	struct request *recv;
	uint8_t rx = 0;

	for (unsigned m = 0; m < count && !check_failures; m++) {
		recv = rig_post(t->recv, &rx, 1);
		CHECK_EQ(rig_wait(t, recv, NULL), 0);
		CHECK_EQ(rx, m);
	}
	CHECK_EQ(env_warns, 0);
	recv = NULL;
	if (comm_post(t->recv, &rx, 1, 0, NULL, &recv) == 0)
		CHECK_EQ(rig_wait(t, recv, NULL), -ECONNRESET);
	rig_free(t);
}

/* The sender closes when all is done, before any of it is received: what its CLOSE counts is received still, by
 * whichever lane it comes. */
static void test_kept_and_closed(void)
{
	enum { COUNT = 20 };
	struct talk t;

	rig_open_kept(&t, 4);
	rig_send_some(&t, 0, 6);
	fake_break(&t.pairs[1]); /* some may have been there */
	rig_send_some(&t, 6, COUNT);
	comm_close(t.send, false);
	t.send = NULL;
	rig_turns(&t, 100);
	rig_receive_all(&t, COUNT);
}

/* The lane that had it all is dead and its sender, which closes, has not heard of it yet. The next takes `room` bytes. */
static void kept_and_lost(size_t room)
{
	enum { COUNT = 20 };
	struct talk t;

	rig_open_kept(&t, 1);
	rig_send_some(&t, 0, COUNT);
	talk_attach(&t, 1, LANE_HARP, room);
	talk_attach(&t, 2, LANE_HARP, 100000);
	fake_break(&t.pairs[0]);
	comm_close(t.send, false);
	t.send = NULL;
	rig_receive_all(&t, COUNT);
}

static void test_kept_and_lost(void)
{
	kept_and_lost(100000);
	kept_and_lost(60); /* a record and a half */
}

/* What a kernel lane has taken is done, and its lane's death would take it along. Its comm says so until the network has
 * delivered it, and sends it by another lane meanwhile, though nobody asks any more. */
static void test_owes(void)
{
	enum { COUNT = 20 };
	struct comm_options opt = { .several = true, .kept = true, .eager_bytes = 262144 };
	uint64_t until_ns = driver_clock_ns() + WAIT_NS;
	struct talk t;

	memset(&t, 0, sizeof(t));
	env_warns = 0;
	fake_pair_init(&t.pairs[0], 83, 100000);
	for (int i = 0; i < 2; i++)
		t.pairs[0].lanes[i].lane.kind_bit = LANE_KERNEL;
	t.pairs[0].lanes[0].taken_is_done = true;
	t.pairs[0].frozen = true;
	t.lanes = 1;
	talk_comms(&t, &opt);
	CHECK(!comm_owes(t.send) && !comm_owes(t.recv));
	rig_send_some(&t, 0, COUNT);
	CHECK(comm_owes(t.send) && !comm_owes(t.recv));
	talk_attach(&t, 1, LANE_KERNEL, 100000);
	t.pairs[1].lanes[0].taken_is_done = true;
	fake_break(&t.pairs[0]);
	CHECK(comm_owes(t.send));
	while (comm_owes(t.send) && driver_clock_ns() < until_ns) {
		comm_tend(t.send, driver_clock_ns(), false);
		(void)talk_turn(&t);
	}
	CHECK(!comm_owes(t.send));
	CHECK(t.pairs[1].pipes[0].written > 0);
	comm_close(t.send, false);
	t.send = NULL;
	rig_receive_all(&t, COUNT);
}

/* What a kernel lane has under way, after an ACK for all of it; how: what is so of the only chunk. */
static uint64_t left_under_way(bool resent, bool again)
{
	struct comm_lane_view views[COMM_LANES_MAX];
	static uint8_t tx[100];
	struct lane_ops mute; /* its TCP's own word comes too late */
	struct comm_several *s;
	struct talk t;
	uint64_t left;

	rig_open_kept(&t, 1);
	mute = *t.pairs[0].lanes[0].lane.ops;
	mute.info = NULL;
	t.pairs[0].lanes[0].lane.ops = &mute;
	s = t.send->several;
	s->stripe.lane[0].kind = LANE_KERNEL;
	(void)rig_post(t.send, tx, sizeof(tx));
	rig_turns(&t, 2);
	CHECK(s->lanes[0]->under_way.head >= 0);
	CHECK_EQ(comm_lane_views(t.send, views), 1);
	CHECK_EQ(views[0].under_way_bytes, RECORD_HEADER_BYTES + sizeof(tx));
	s->chunks[s->lanes[0]->under_way.head].resent = resent;
	s->chunks[s->lanes[0]->under_way.head].again = again;
	CHECK_EQ(comm_tx_ack(t.send, 1, 0), 0);
	(void)comm_lane_views(t.send, views);
	left = views[0].under_way_bytes;
	rig_free(&t);
	return left;
}

/* The peer has it: so its lane has delivered it, unless another lane may have. */
static void test_an_ack_tells_of_a_kernel_lane(void)
{
	CHECK_EQ(left_under_way(false, false), 0);
	CHECK(left_under_way(true, false) > 0);
	CHECK(left_under_way(false, true) > 0);
}

/* The sender has used and closed a lane that the receiver had proved and not yet taken. */
static void test_late_lane(void)
{
	enum { COUNT = 16, BYTES = 4096 }; /* more than one lane is given in a row */
	struct comm_lane_options late = { .index = 1 };
	struct request *send[COUNT], *recv[COUNT];
	static uint8_t tx[COUNT][BYTES], rx[COUNT][BYTES];
	struct talk t;

	rig_open_kept(&t, 1);
	t.recv->several->revive_ns = 3 * WAIT_NS;
	fake_pair_init(&t.pairs[1], 81, 100000);
	t.lanes = 2;
	CHECK_EQ(comm_attach(t.send, &t.pairs[1].lanes[0].lane, &late), 0);
	for (unsigned m = 0; m < COUNT; m++) {
		memset(tx[m], (int)m + 1, BYTES);
		send[m] = rig_post(t.send, tx[m], BYTES);
	}
	for (unsigned m = 0; m < COUNT; m++)
		CHECK_EQ(rig_wait(&t, send[m], NULL), 0);
	CHECK(t.pairs[1].pipes[0].written > 0);
	comm_close(t.send, false);
	t.send = NULL;
	for (unsigned m = 0; m < COUNT; m++)
		recv[m] = rig_post(t.recv, rx[m], BYTES);
	rig_turns(&t, 500);
	CHECK(t.pairs[0].lanes[1].closed);
	CHECK_EQ(comm_attach(t.recv, &t.pairs[1].lanes[1].lane, &late), 0);
	for (unsigned m = 0; m < COUNT; m++)
		CHECK_EQ(rig_wait(&t, recv[m], NULL), 0);
	CHECK_MEM(rx, tx, sizeof(rx));
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

int main(void)
{
	static void (*const rules[])(void) = {
		test_done_is_acked,
		test_kept,
		test_kept_acks,
		test_kept_and_closed,
		test_kept_and_lost,
		test_owes,
		test_an_ack_tells_of_a_kernel_lane,
		test_late_lane,
	};

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]) && !check_failures; i++)
		rules[i]();
	return check_done();
}
