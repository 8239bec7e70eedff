/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_polls.c - how often a comm of HARP and kernel lanes looks at either: turns of drivers and info() are counted, over
 * the rig's time, in which each poll takes a microsecond. */
#include "comm_rig.h"

static void polls_open(struct talk *t)
{
	rig_open_kept(t, 1);
	talk_attach(t, 1, LANE_KERNEL, 100000);
	CHECK_EQ(t->recv->kernel_count, 1);
}

/* From here on all messages prefer lanes of that kind. */
static void polls_send_by(struct talk *t, enum lane_kind kind)
{
	t->send->several->harp_bytes_max = kind == LANE_HARP ? UINT64_MAX : 0;
}

static uint64_t polls_turns(const struct driver *driver)
{
	return atomic_load(&driver->runs);
}

static void polls_message(struct talk *t)
{
	uint8_t tx[8] = { 7 }, rx[8];
	struct request *recv = rig_post(t->recv, rx, sizeof(rx));

	rig_both(t, rig_post(t->send, tx, sizeof(tx)), recv);
}

/* Turns of the receiver's kernel lanes while it waits for so long. */
static uint64_t polls_while(struct talk *t, struct request *recv, uint64_t us)
{
	const struct driver *kernel = &t->recv->kernels[0].kd.driver;
	uint64_t before = polls_turns(kernel);
	int done = 0;

	for (uint64_t i = 0; i < us; i++)
		CHECK_EQ(comm_test(recv, &done, NULL), 0);
	CHECK_EQ(done, 0);
	return polls_turns(kernel) - before;
}

/* Each 20 us at first; each 200 us while all goes by HARP's; at each poll for 200 us behind one that came, and each 20 then. Lanes are
 * looked at each 2 ms in any case. */
static void test_kernel_lanes_that_rest(void)
{
	struct request *recv;
	uint8_t rx[8], tx[8] = { 1 };
	struct talk t;
	uint64_t turns;

	polls_open(&t);
	polls_send_by(&t, LANE_HARP);
	recv = rig_post(t.recv, rx, sizeof(rx));
	turns = polls_while(&t, recv, 2000);
	CHECK(turns >= 95 && turns <= 105);
	rig_both(&t, rig_post(t.send, tx, sizeof(tx)), recv);
	for (unsigned m = 0; m < 300; m++)
		polls_message(&t);
	recv = rig_post(t.recv, rx, sizeof(rx));
	turns = polls_while(&t, recv, 20000);
	CHECK(turns >= 95 && turns <= 115);
	rig_both(&t, rig_post(t.send, tx, sizeof(tx)), recv);
	polls_send_by(&t, LANE_KERNEL);
	polls_message(&t);
	recv = rig_post(t.recv, rx, sizeof(rx));
	turns = polls_while(&t, recv, 100);
	CHECK(turns >= 99);
	(void)polls_while(&t, recv, 200);
	turns = polls_while(&t, recv, 2000);
	CHECK(turns >= 95 && turns <= 105);
	rig_both(&t, rig_post(t.send, tx, sizeof(tx)), recv);
	CHECK_EQ(t.send->several->lanes[1]->counts.chunks_out, 2);
	rig_free(&t);
}

/* To post is to drive the lanes that are given something, and the engines: they have ACKs to send. */
static void test_post_drives_what_has_work(void)
{
	static const enum lane_kind kinds[] = { LANE_HARP, LANE_KERNEL };
	uint8_t tx[8] = { 1 }, rx[8];
	struct talk t;

	polls_open(&t);
	for (unsigned i = 0; i < 20; i++) {
		const struct driver *kernel = &t.send->kernels[0].kd.driver;
		const struct driver *harp = &t.pairs[0].driver;
		uint64_t kernel_turns, harp_turns;
		struct request *send, *recv;

		polls_send_by(&t, kinds[i % 2]);
		rig_turns(&t, 10); /* what is left to do is done */
		(void)driver_turn(&t.send->kernels[0].kd.driver, driver_clock_ns());
		kernel_turns = polls_turns(kernel);
		harp_turns = polls_turns(harp);
		send = rig_post(t.send, tx, sizeof(tx));
		if (i % 2)
			CHECK_EQ(polls_turns(kernel) - kernel_turns, 1);
		CHECK_EQ(polls_turns(harp) - harp_turns, 1);
		recv = rig_post(t.recv, rx, sizeof(rx));
		rig_both(&t, send, recv);
	}
	rig_free(&t);
}

/* What an engine's lane has brought is acknowledged in its next turn, so that an answer takes the ACK along: not by who hears of the
 * message, nor by who posts the next receive. */
static void test_ack_goes_with_the_answer(void)
{
	static uint8_t tx[COMM_KEPT_BYTES_MAX + 64], rx[2][COMM_KEPT_BYTES_MAX + 64];
	struct talk t;

	polls_open(&t);
	polls_send_by(&t, LANE_HARP);
	for (unsigned i = 0; i < 20 && !check_failures; i++) {
		const struct fake_pipe *back = t.pairs[0].lanes[1].out;
		struct request *recv = rig_post(t.recv, rx[0], sizeof(rx[0])), *next, *send;
		uint64_t before;
		int done = 0;

		rig_turns(&t, 10);
		before = back->written;
		send = rig_post(t.send, tx, sizeof(tx));
		for (unsigned polls = 0; !done && polls < 100000; polls++)
			CHECK_EQ(comm_test(recv, &done, NULL), 0);
		next = rig_post(t.recv, rx[1], sizeof(rx[1]));
		CHECK_EQ(back->written, before);
		(void)driver_turn(&t.pairs[0].driver, driver_clock_ns());
		CHECK(back->written >= before + RECORD_HEADER_BYTES);
		CHECK_EQ(rig_wait(&t, send, NULL), 0);
		rig_both(&t, rig_post(t.send, tx, sizeof(tx)), next);
	}
	rig_free(&t);
}

/* And nobody is asked what has come: that is for who waits. */
static void test_posts_ask_nobody(void)
{
	const struct kernel_driver *sends, *receives;
	uint8_t tx[8] = { 1 }, rx[8];
	unsigned looks[2];
	struct request *send, *recv;
	struct talk t;

	polls_open(&t);
	polls_send_by(&t, LANE_KERNEL);
	t.pairs[1].lanes[0].taken_is_done = true;
	sends = &t.send->kernels[0].kd;
	receives = &t.recv->kernels[0].kd;
	for (unsigned m = 0; m < 40; m++) {
		looks[0] = sends->looks;
		looks[1] = receives->looks;
		recv = rig_post(t.recv, rx, sizeof(rx));
		send = rig_post(t.send, tx, sizeof(tx));
		CHECK_EQ(sends->looks, looks[0]);
		CHECK_EQ(receives->looks, looks[1]);
		rig_both(&t, send, recv);
		CHECK(receives->looks > looks[1]);
	}
	rig_free(&t);
}

/* A kernel lane that small messages go by has no rate, and none is needed: it is asked each millisecond. */
static void test_small_messages_ask_for_no_rate(void)
{
	struct fake_lane *lane;
	uint64_t begin_ns;
	struct talk t;

	polls_open(&t);
	polls_send_by(&t, LANE_KERNEL);
	lane = &t.pairs[1].lanes[0];
	begin_ns = driver_clock_ns();
	for (unsigned m = 0; m < 2000; m++)
		polls_message(&t);
	CHECK_EQ(t.send->several->stripe.lane[1].rate, 0);
	CHECK(lane->asked <= 2 + (driver_clock_ns() - begin_ns) / 1000000);
	CHECK(lane->asked >= 2);
	rig_free(&t);
}

/* A receiver that has all it asked for polls no more. What is left to do by a kernel lane that comes then, or dies, is done all the
 * same: the sender may wait for an ACK that goes by it. */
static void test_tended_while_nobody_polls(void)
{
	const struct driver *kernel;
	struct talk t;

	polls_open(&t);
	kernel = &t.recv->kernels[0].kd.driver;
	CHECK(atomic_load(&kernel->ready) != NULL);
	comm_tend(t.recv, driver_clock_ns(), false);
	CHECK(atomic_load(&kernel->ready) == NULL);
	CHECK(t.recv->kernels[0].polled != NULL);
	fake_break(&t.pairs[1]);
	(void)driver_turn(&t.recv->kernels[0].kd.driver, driver_clock_ns());
	comm_tend(t.recv, driver_clock_ns(), false);
	CHECK(t.recv->kernels[0].polled == NULL);
	rig_free(&t);
}

static unsigned roused;

static void rouse_run(struct work *work, uint64_t now_ns)
{
	(void)work;
	(void)now_ns;
	roused++;
}

/* All that was posted. */
static unsigned rouse_count(struct driver *keeper)
{
	unsigned before = roused;

	(void)driver_run_ready(keeper, 0);
	return roused - before;
}

/* Where the peer acknowledges, and nobody polls. */
static void rest_settle(struct talk *t, struct comm *comm)
{
	for (unsigned i = 0; i < 1000 && comm_tend(comm, driver_clock_ns(), false); i++)
		(void)talk_turn(t);
	CHECK(!comm_tend(comm, driver_clock_ns(), false));
}

/* Whoever looks after comms sleeps while nothing is on its way, and is told once when something is: of a message, of its ACK, of a
 * lane that comes or dies. An application that waits and polls disturbs nobody. */
static void test_rest(void)
{
	uint8_t tx[8] = { 1 }, rx[8];
	struct work work = { .run = rouse_run };
	struct request *recv, *send;
	struct driver keeper;
	struct talk t;

	driver_init(&keeper, NULL);
	polls_open(&t);
	rest_settle(&t, t.recv);
	rest_settle(&t, t.send);
	CHECK(comm_rest(t.recv, &keeper, &work));
	recv = rig_post(t.recv, rx, sizeof(rx));
	(void)rouse_count(&keeper); /* CREDIT */
	rest_settle(&t, t.recv);
	CHECK(comm_rest(t.recv, &keeper, &work));
	(void)polls_while(&t, recv, 10000);
	CHECK_EQ(rouse_count(&keeper), 0);
	comm_rest_never(t.recv);
	CHECK(!comm_rest(t.recv, &keeper, &work));
	/* What was given to a lane is under way, and is no time to rest. */
	CHECK(comm_rest(t.send, &keeper, &work));
	send = rig_post(t.send, tx, sizeof(tx));
	CHECK_EQ(rouse_count(&keeper), 1);
	CHECK(!comm_rest(t.send, &keeper, &work));
	rig_both(&t, send, recv);
	CHECK_EQ(rouse_count(&keeper), 0);
	rest_settle(&t, t.send);
	/* Lanes that come, and die. */
	CHECK(comm_rest(t.send, &keeper, &work));
	talk_attach(&t, 2, LANE_KERNEL, 100000);
	CHECK_EQ(rouse_count(&keeper), 1);
	rest_settle(&t, t.send);
	CHECK(comm_rest(t.send, &keeper, &work));
	fake_break(&t.pairs[2]);
	(void)driver_turn(&t.send->kernels[0].kd.driver, driver_clock_ns() + 10000000);
	CHECK_EQ(rouse_count(&keeper), 1);
	rest_settle(&t, t.send);
	CHECK_EQ(rouse_count(&keeper), 0);
	rig_free(&t);
}

/* What comes to a receiver's kernel lanes that nobody polls any more is read now and then: the peer may send again what it has no
 * ACK for. */
static void test_read_while_nobody_polls(void)
{
	const struct driver *recv, *send;
	uint64_t turns, left_ns;
	struct talk t;

	polls_open(&t);
	rest_settle(&t, t.recv);
	rest_settle(&t, t.send);
	recv = &t.recv->kernels[0].kd.driver;
	send = &t.send->kernels[0].kd.driver;
	left_ns = atomic_load(&recv->polled_ns) + 100000000u;
	turns = polls_turns(recv);
	CHECK(!comm_tend(t.recv, left_ns - 1, true));
	CHECK(!comm_tend(t.recv, left_ns, false));
	CHECK_EQ(polls_turns(recv), turns);
	CHECK(!comm_tend(t.recv, left_ns, true));
	CHECK_EQ(polls_turns(recv), turns + 1);
	CHECK(comm_is_read(t.recv) && !comm_is_read(t.send));
	turns = polls_turns(send);
	CHECK(!comm_tend(t.send, left_ns + left_ns, true));
	CHECK_EQ(polls_turns(send), turns);
	rig_free(&t);
}

int main(void)
{
	test_tended_while_nobody_polls();
	test_kernel_lanes_that_rest();
	test_post_drives_what_has_work();
	test_ack_goes_with_the_answer();
	test_posts_ask_nobody();
	test_small_messages_ask_for_no_rate();
	test_rest();
	test_read_while_nobody_polls();
	return check_done();
}
