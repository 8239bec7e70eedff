/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_deaths.c - lanes of a comm that are silent, stall, die, come again or are replaced: what moves to others, what
 * is waited for, when the comm fails. */
#include <sys/mman.h>

#include "comm_rig.h"

/* A lane is silent and nothing says so: others send its chunks again at once, and it is given up. */
static void test_silence(void)
{
	size_t size = 3 << 20;
	uint8_t *tx = malloc(size), *rx = calloc(1, size);
	struct request *send, *recv;
	struct comm_lane_view views[COMM_LANES_MAX];
	uint64_t until_ns;
	struct talk t;

	for (size_t i = 0; i < size; i++)
		tx[i] = talk_pattern(0, i);
	env_config.lane_timeout_ns = 60000000;
	rig_open(&t, 3, 16384, 100000);
	recv = rig_post(t.recv, rx, size);
	send = rig_post(t.send, tx, size);
	rig_turns(&t, 20);
	t.pairs[1].frozen = true;
	rig_both(&t, send, recv);
	CHECK_MEM(rx, tx, size);
	/* The timeout needs requests that wait: what is silent, with nothing wanted, is nobody's business. */
	until_ns = driver_clock_ns() + WAIT_NS;
	while (!t.pairs[1].lanes[0].closed && driver_clock_ns() < until_ns && !check_failures) {
		recv = rig_post(t.recv, rx, 100);
		send = rig_post(t.send, tx, 100);
		rig_both(&t, send, recv);
	}
	CHECK(t.pairs[1].lanes[0].closed);
	CHECK_EQ(comm_lane_views(t.send, views), 2);
	CHECK_EQ(env_warns, 0);
	env_config.lane_timeout_ns = 500000000;
	rig_free(&t);
	free(tx);
	free(rx);
}

/* A message by either lane. */
static void deaths_message(struct talk *t)
{
	uint8_t tx[1000] = { 7 }, rx[sizeof(tx)];
	struct request *recv = rig_post(t->recv, rx, sizeof(rx));

	rig_both(t, rig_post(t->send, tx, sizeof(tx)), recv);
}

static bool deaths_stalled(struct talk *t, unsigned index)
{
	struct comm_lane_view views[COMM_LANES_MAX];

	CHECK_EQ(comm_lane_views(t->send, views), 2);
	return views[index].stalled;
}

/* All that a lane owed comes right behind a look that found it stalled: the next one is for that alone, and it is used again. */
static void test_stalled_between_looks(void)
{
	uint64_t until_ns = driver_clock_ns() + WAIT_NS, carried;
	const struct fake_lane *end;
	struct talk t;
	unsigned asked;

	env_config.lane_timeout_ns = WAIT_NS;
	rig_open(&t, 2, 16384, 100000);
	end = &t.pairs[1].lanes[0];
	t.pairs[1].frozen = true;
	while (!deaths_stalled(&t, 1) && driver_clock_ns() < until_ns && !check_failures)
		deaths_message(&t);
	CHECK(end->acked < end->out->written);
	for (asked = end->asked; end->asked == asked && !check_failures;)
		deaths_message(&t);
	t.pairs[1].frozen = false;
	while (t.send->several->stripe.lane[1].acked_bytes !=
		       t.send->several->stripe.lane[1].given_bytes &&
	       driver_clock_ns() < until_ns)
		(void)talk_turn(&t);
	CHECK_EQ(end->asked, asked + 1);
	carried = end->out->written;
	while (deaths_stalled(&t, 1) && driver_clock_ns() < until_ns && !check_failures)
		deaths_message(&t);
	CHECK(!deaths_stalled(&t, 1));
	for (unsigned i = 0; i < 100 && !check_failures; i++)
		deaths_message(&t);
	CHECK(end->out->written > carried);
	CHECK_EQ(env_warns, 0);
	env_config.lane_timeout_ns = 500000000;
	rig_free(&t);
}

/* A lane whose TCP has not had the time to send again is not dead, however short the timeout. */
static void test_patience(void)
{
	uint64_t begin_ns, until_ns;
	struct request *send, *recv;
	uint8_t tx[100], rx[100];
	struct talk t;

	memset(tx, 7, sizeof(tx));
	env_config.lane_timeout_ns = 20000000;
	begin_ns = driver_clock_ns();
	rig_open(&t, 2, 16384, 100000);
	t.pairs[0].rto_ns = t.pairs[1].rto_ns = 150000000;
	t.pairs[1].frozen = true;
	until_ns = begin_ns + WAIT_NS;
	while (!t.pairs[1].lanes[0].closed && driver_clock_ns() < until_ns && !check_failures) {
		recv = rig_post(t.recv, rx, sizeof(rx));
		send = rig_post(t.send, tx, sizeof(tx));
		rig_both(&t, send, recv);
	}
	CHECK(t.pairs[1].lanes[0].closed);
	CHECK(driver_clock_ns() - begin_ns >= 2 * t.pairs[1].rto_ns);
	env_config.lane_timeout_ns = 500000000;
	rig_free(&t);
}

/* A peer that rests, its window closed, costs no lane. One that is cut off just then does: nothing is in flight. */
static void test_closed_window(void)
{
	size_t size = 200000; /* a chunk for each lane */
	uint8_t *tx = malloc(size), *rx = calloc(1, size);
	struct comm_lane_view views[COMM_LANES_MAX];
	struct request *send, *recv;
	uint64_t until_ns;
	struct talk t;
	int done;

	for (size_t i = 0; i < size; i++)
		tx[i] = talk_pattern(0, i);
	env_config.lane_timeout_ns = 60000000;
	rig_open(&t, 2, 262144, 3000);
	send = rig_post(t.send, tx, size);
	until_ns = driver_clock_ns() + 4 * env_config.lane_timeout_ns;
	while (driver_clock_ns() < until_ns && !check_failures) {
		(void)talk_turn(&t);
		CHECK_EQ(comm_test(send, &done, NULL), 0);
	}
	CHECK_EQ(comm_lane_views(t.send, views), 2);
	for (int i = 0; i < 2; i++) {
		const struct fake_lane *end = &t.pairs[i].lanes[0];

		CHECK(!views[i].stalled);
		CHECK(end->out->writer_waits && end->acked == end->out->written);
	}
	t.pairs[1].frozen = true;
	recv = rig_post(t.recv, rx, size);
	rig_both(&t, send, recv);
	CHECK_MEM(rx, tx, size);
	env_config.lane_timeout_ns = 500000000;
	rig_free(&t);
	free(tx);
	free(rx);
}

/* All lanes silent: that is the host or the path, and TCP's patience decides. */
static void test_all_silent(void)
{
	struct comm_lane_view views[COMM_LANES_MAX];
	struct request *send, *recv;
	uint8_t tx[1000], rx[1000];
	uint64_t until_ns;
	struct talk t;
	int done = 0;

	memset(tx, 7, sizeof(tx));
	env_config.lane_timeout_ns = 20000000;
	rig_open(&t, 2, 16384, 100000);
	t.pairs[0].frozen = t.pairs[1].frozen = true;
	recv = rig_post(t.recv, rx, sizeof(rx));
	send = rig_post(t.send, tx, sizeof(tx));
	until_ns = driver_clock_ns() + 200000000;
	while (driver_clock_ns() < until_ns) {
		(void)talk_turn(&t);
		CHECK_EQ(comm_test(send, &done, NULL), 0);
		CHECK_EQ(comm_test(recv, &done, NULL), 0);
		CHECK_EQ(done, 0);
	}
	CHECK_EQ(comm_lane_views(t.send, views), 2);
	t.pairs[0].frozen = t.pairs[1].frozen = false;
	for (int i = 0; i < 2; i++) /* they hear of each other again */
		for (int n = 0; n < 2; n++)
			t.pairs[i].lanes[n].event = true;
	rig_both(&t, send, recv);
	CHECK_MEM(rx, tx, sizeof(rx));
	env_config.lane_timeout_ns = 500000000;
	rig_free(&t);
}

/* The last lane's death is an error, with its one WARN, as soon as somebody wants something. */
static void test_last_death(void)
{
	struct request *send, *recv;
	uint8_t byte = 1, room = 0;
	struct talk t;

	rig_open(&t, 3, 16384, 100000);
	recv = rig_post(t.recv, &room, 1);
	send = rig_post(t.send, &byte, 1);
	rig_both(&t, send, recv);
	fake_break(&t.pairs[0]);
	fake_break(&t.pairs[2]);
	rig_turns(&t, 50);
	recv = rig_post(t.recv, &room, 1);
	send = rig_post(t.send, &byte, 1);
	rig_both(&t, send, recv);
	CHECK_EQ(env_warns, 0);
	fake_break(&t.pairs[1]);
	rig_turns(&t, 50);
	CHECK_EQ(env_warns, 0); /* nobody wants anything */
	send = rig_post(t.send, &byte, 1);
	CHECK_EQ(rig_wait(&t, send, NULL), -ECONNRESET);
	CHECK_EQ(env_warns, 1);
	recv = rig_post(t.recv, &room, 1);
	CHECK_EQ(rig_wait(&t, recv, NULL), -ECONNRESET);
	CHECK_EQ(env_warns, 2);
	CHECK_EQ(comm_post(t.recv, &room, 1, 0, NULL, &recv), -ECONNRESET);
	CHECK_EQ(comm_attach(t.recv, &t.pairs[1].lanes[1].lane,
			     &(struct comm_lane_options){ .index = 1 }),
		 -ENOTCONN);
	rig_free(&t);
}

/* The last lane has died and another one comes in time: nothing is lost. */
static void test_revival(void)
{
	struct comm_options opt = { .several = true,
				    .eager_bytes = 16384,
				    .revive_ns = 3 * WAIT_NS };
	size_t size = 1 << 20;
	uint8_t *tx = malloc(size), *rx = calloc(1, size);
	struct request *send, *recv;
	struct talk t;

	memset(&t, 0, sizeof(t));
	env_warns = 0;
	for (size_t i = 0; i < size; i++)
		tx[i] = talk_pattern(0, i);
	fake_pair_init(&t.pairs[0], 5, 50000);
	t.lanes = 1;
	talk_comms(&t, &opt);
	recv = rig_post(t.recv, rx, size);
	send = rig_post(t.send, tx, size);
	rig_turns(&t, 20);
	fake_break(&t.pairs[0]);
	rig_turns(&t, 100);
	talk_attach(&t, 1, LANE_HARP, 50000);
	rig_both(&t, send, recv);
	CHECK_MEM(rx, tx, size);
	/* And nobody comes. */
	t.send->several->revive_ns = t.recv->several->revive_ns = 30000000;
	fake_break(&t.pairs[1]);
	recv = rig_post(t.recv, rx, size);
	send = rig_post(t.send, tx, size);
	CHECK_EQ(rig_wait(&t, recv, NULL), -ECONNRESET);
	CHECK_EQ(rig_wait(&t, send, NULL), -ECONNRESET);
	CHECK_EQ(env_warns, 2);
	rig_free(&t);
	free(tx);
	free(rx);
}

/* A new lane of an index that there is: the old one goes, what it had moves. */
static void test_replacement(void)
{
	size_t size = 1 << 20;
	uint8_t *tx = malloc(size), *rx = calloc(1, size);
	struct request *send, *recv;
	struct fake_pair fresh;
	struct talk t;

	for (size_t i = 0; i < size; i++)
		tx[i] = talk_pattern(0, i);
	rig_open(&t, 1, 16384, 50000);
	recv = rig_post(t.recv, rx, size);
	send = rig_post(t.send, tx, size);
	rig_turns(&t, 20);
	fake_pair_init(&fresh, 3, 50000);
	CHECK_EQ(comm_attach(t.send, &fresh.lanes[0].lane, &(struct comm_lane_options){ 0 }), 0);
	CHECK_EQ(comm_attach(t.recv, &fresh.lanes[1].lane, &(struct comm_lane_options){ 0 }), 0);
	for (uint64_t until_ns = driver_clock_ns() + WAIT_NS;
	     (!t.pairs[0].lanes[0].closed || !t.pairs[0].lanes[1].closed) &&
	     driver_clock_ns() < until_ns;)
		(void)talk_turn(&t);
	CHECK(t.pairs[0].lanes[0].closed && t.pairs[0].lanes[1].closed);
	/* Its place in the rig is the new one's. */
	for (uint64_t until_ns = driver_clock_ns() + WAIT_NS; driver_clock_ns() < until_ns;) {
		int done;

		(void)fake_pair_turn(&fresh);
		CHECK_EQ(comm_test(recv, &done, NULL), 0);
		if (done)
			break;
	}
	CHECK_MEM(rx, tx, size);
	for (int done = 0; !done && !check_failures;) {
		(void)fake_pair_turn(&fresh);
		CHECK_EQ(comm_test(send, &done, NULL), 0);
	}
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
	fake_pair_free(&fresh);
	free(tx);
	free(rx);
}

/* A chunk that was under way on a lane when its message was done is finished with zeros. */
static void test_filler(void)
{
	size_t size = 60000;
	uint8_t *tx = malloc(size), *rx = calloc(1, size);
	struct request *send, *recv;
	struct talk t;

	memset(tx, 0x5a, size);
	env_config.lane_timeout_ns = WAIT_NS; /* it stalls, and lives */
	rig_open(&t, 2, 16384, 3000);
	recv = rig_post(t.recv, rx, size);
	t.pairs[0].frozen = true;
	send = rig_post(t.send, tx, size);
	rig_both(&t, send, recv);
	CHECK_MEM(rx, tx, size);
	CHECK(t.pairs[0].lanes[0].out->written > 0); /* it had begun there */
	free(tx);                                    /* ASan sees who reads it */
	memset(rx, 0xee, size);
	t.pairs[0].frozen = false;
	t.pairs[0].lanes[0].event = t.pairs[0].lanes[1].event = true;
	recv = rig_post(t.recv, rx, 64);
	send = rig_post(t.send, (uint8_t[64]){ 1 }, 64);
	rig_both(&t, send, recv);
	rig_turns(&t, 500);
	CHECK(rx[64] == 0xee && rx[size - 1] == 0xee);
	CHECK_EQ(env_warns, 0);
	env_config.lane_timeout_ns = 500000000;
	rig_free(&t);
	free(rx);
}

/* So it is when ACK and CLOSE come together, and the sender closes then: its memory has gone with the request. */
static void test_filler_and_closed(void)
{
	size_t size = 65536;
	uint8_t *tx = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *rx = malloc(size);
	uint64_t until_ns = driver_clock_ns() + WAIT_NS;
	struct fake_pipe *begun;
	struct request *send, *recv;
	struct talk t;
	int done;

	env_config.lane_timeout_ns = WAIT_NS;
	rig_open(&t, 2, 16384, 3000);
	begun = t.pairs[0].lanes[0].out;
	recv = rig_post(t.recv, rx, size);
	t.pairs[0].frozen = true;
	send = rig_post(t.send, tx, size);
	for (unsigned i = 0; !t.recv->completed && driver_clock_ns() < until_ns && !check_failures;
	     i++)
		CHECK_EQ(comm_test(i % 2 ? send : recv, &done, NULL), 0);
	CHECK_EQ(t.send->completed, 0); /* the ACK is on its way */
	comm_close(t.recv, false);
	t.recv = NULL;
	CHECK_EQ(rig_wait(&t, send, NULL), 0);
	CHECK(begun->written > 0 && t.send->end_error);
	munmap(tx, size);
	begun->count = 0; /* there is room again */
	comm_close(t.send, false);
	t.send = NULL;
	CHECK(begun->count > 0 && !begun->bytes[begun->begin]);
	CHECK_EQ(env_warns, 0);
	env_config.lane_timeout_ns = 500000000;
	rig_free(&t);
	free(rx);
}

/* A thread whose clock is older than the last one's: the lane has not been still for 2^64 ns. */
static void test_older_clock(void)
{
	static uint8_t data[4096];
	uint64_t later_ns = driver_clock_ns() + 1000000000u;
	struct lane *lane;
	struct talk t;

	rig_open(&t, 2, 65536, 100000);
	t.pairs[0].frozen = t.pairs[1].frozen = true;
	(void)rig_post(t.send, data, sizeof(data));
	for (unsigned i = 0; i < 2; i++) {
		lane = &t.pairs[i].lanes[0].lane;
		lane->notify(lane, later_ns);
		lane->notify(lane, later_ns - 500000000u);
	}
	CHECK_EQ(t.send->now_ns, later_ns);
	rig_free(&t);
}

int main(void)
{
	static void (*const rules[])(void) = {
		test_silence,     test_stalled_between_looks,
		test_patience,    test_closed_window,
		test_all_silent,  test_last_death,
		test_revival,     test_replacement,
		test_filler,      test_filler_and_closed,
		test_older_clock,
	};

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]) && !check_failures; i++)
		rules[i]();
	return check_done();
}
