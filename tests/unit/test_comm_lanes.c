/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_lanes.c - comms of several lanes over joined fake ones: random conversations while lanes die, stall
 * and join; then the rules one by one. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "double_env.h"
#include "talk.h"

#define WAIT_NS 20000000000ull /* of the rig's time: whatever is waited for comes sooner */

/* ---- conversations ------------------------------------------------------------------------------ */

static unsigned talk_live(struct talk *t, uint32_t *live)
{
	*live = 0;
	for (unsigned i = 0; i < t->lanes; i++) {
		const struct fake_pair *pair = &t->pairs[i];

		if (!pair->lanes[0].closed && !pair->lanes[1].closed &&
		    !pair->lanes[0].lane.error && !pair->lanes[1].lane.error && !pair->frozen)
			*live |= 1u << i;
	}
	return (unsigned)__builtin_popcount(*live);
}

/* A lane breaks in the middle of anything, another one comes; one at least goes on. */
static void lanes_come_and_go(struct talk *t)
{
	struct rng *rng = &t->pairs[0].rng;
	uint32_t live;
	unsigned count = talk_live(t, &live), victim;

	if (rng_below(rng, 60))
		return;
	if (count > 1 && (t->lanes == COMM_LANES_MAX || rng_below(rng, 2))) {
		do {
			victim = rng_below(rng, t->lanes);
		} while (!(live & (1u << victim)));
		if (rng_below(rng, 2))
			fake_break(&t->pairs[victim]);
		else
			fake_reset(&t->pairs[victim].lanes[rng_below(rng, 2)]);
	} else if (t->lanes < COMM_LANES_MAX) {
		talk_attach(t, t->lanes, rng_below(rng, 3) ? LANE_HARP : LANE_KERNEL,
			    8 + rng_below(rng, rng_below(rng, 2) ? 300 : 100000));
	}
}

static void conversations(uint64_t seeds, void (*happens)(struct talk *t))
{
	/* From a quick machine to one that has been away for longer than lanes are given. */
	static const uint64_t look_ns[] = { 50, 1000, 20000, 300000 };
	uint64_t lanes_used = 0;

	env_warns = 0;
	for (uint64_t i = 0; i < seeds && !check_failures; i++) {
		struct comm_lane_view views[COMM_LANES_MAX];
		struct talk t;

		talk_seed = i;
		talk_look_ns = look_ns[i % 4];
		talk_open(&t, 120, 2 + (unsigned)(i % 5));
		t.happens = happens;
		talk_run(&t);
		if (check_failures) { /* and what is left of it is of no use */
			fprintf(stderr, "seed %" PRIu64 "\n", talk_seed);
			exit(check_done());
		}
		for (unsigned n = comm_lane_views(t.send, views); n-- > 0;)
			lanes_used += views[n].counts.chunks_out > 0;
		talk_close(&t);
		for (unsigned n = 0; n < t.lanes; n++)
			CHECK(t.pairs[n].lanes[0].closed && t.pairs[n].lanes[1].closed);
		talk_free(&t);
		if (check_failures)
			fprintf(stderr, "seed %" PRIu64 "\n", talk_seed);
	}
	CHECK_EQ(env_warns, 0);
	CHECK(lanes_used > seeds * 2);
	talk_look_ns = 1000;
}

/* ---- a rig for the rules: two comms, lanes as wished -------------------------------------------- */

static void rig_open(struct talk *t, unsigned lanes, uint32_t eager_bytes, size_t capacity)
{
	struct comm_options opt = { .several = true, .eager_bytes = eager_bytes };

	memset(t, 0, sizeof(*t));
	env_warns = 0;
	fake_pair_init(&t->pairs[0], 77, capacity);
	t->lanes = 1;
	talk_comms(t, &opt);
	for (unsigned i = 1; i < lanes; i++)
		talk_attach(t, i, LANE_HARP, capacity);
}

/* Only a receiver, to be fed by hand. */
static void rig_open_fed(struct talk *t, unsigned lanes, uint32_t eager_bytes)
{
	struct comm_options opt = { .side = COMM_RECV,
				    .several = true,
				    .eager_bytes = eager_bytes };

	memset(t, 0, sizeof(*t));
	env_warns = 0;
	for (t->lanes = 0; t->lanes < lanes; t->lanes++) {
		struct lane *lane = &t->pairs[t->lanes].lanes[1].lane;

		fake_pair_init(&t->pairs[t->lanes], 78, 100000);
		opt.lane.index = (uint8_t)t->lanes;
		if (t->lanes)
			CHECK_EQ(comm_attach(t->recv, lane, &opt.lane), 0);
		else
			CHECK_EQ(comm_create(&t->recv, lane, &opt), 0);
	}
}

static void rig_free(struct talk *t)
{
	if (t->send)
		comm_close(t->send, false);
	comm_close(t->recv, false);
	for (unsigned i = 0; i < t->lanes; i++)
		fake_pair_free(&t->pairs[i]);
}

/* Turns until the request is done, or the error. */
static int rig_wait(struct talk *t, struct request *request, size_t *size)
{
	uint64_t until_ns = driver_clock_ns() + WAIT_NS;
	int done = 0, rc = 0;

	while (!rc && !done && driver_clock_ns() < until_ns) {
		(void)talk_turn(t);
		rc = comm_test(request, &done, size);
	}
	if (!rc && !done)
		return -ETIME;
	return rc;
}

/* Both: a sender's lanes are looked at as long as its application asks. */
static void rig_both(struct talk *t, struct request *send, struct request *recv)
{
	uint64_t until_ns = driver_clock_ns() + WAIT_NS;
	int sent = 0, received = 0;

	while ((!sent || !received) && driver_clock_ns() < until_ns && !check_failures) {
		(void)talk_turn(t);
		if (!sent)
			CHECK_EQ(comm_test(send, &sent, NULL), 0);
		if (!received)
			CHECK_EQ(comm_test(recv, &received, NULL), 0);
	}
	CHECK(sent && received);
}

static struct request *rig_post(struct comm *comm, void *data, size_t size)
{
	struct request *request = NULL;

	CHECK_EQ(comm_post(comm, data, size, 0, NULL, &request), 0);
	CHECK(request != NULL);
	return request;
}

static void rig_turns(struct talk *t, unsigned turns)
{
	for (unsigned i = 0; i < turns; i++)
		(void)talk_turn(t);
}

/* ---- rules -------------------------------------------------------------------------------------- */

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

static void rig_open_kept(struct talk *t, unsigned lanes)
{
	struct comm_options opt = { .several = true, .kept = true, .eager_bytes = 262144 };

	memset(t, 0, sizeof(*t));
	env_warns = 0;
	for (unsigned i = 0; i < lanes; i++) {
		if (i) {
			talk_attach(t, i, LANE_HARP, 100000);
			continue;
		}
		fake_pair_init(&t->pairs[0], 79, 100000);
		t->lanes = 1;
		talk_comms(t, &opt);
	}
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
		comm_tend(t.send, driver_clock_ns());
		(void)talk_turn(&t);
	}
	CHECK(!comm_owes(t.send));
	CHECK(t.pairs[1].pipes[0].written > 0);
	comm_close(t.send, false);
	t.send = NULL;
	rig_receive_all(&t, COUNT);
}

/* The sender has used and closed a lane that the receiver had proved and not yet taken. */
static void test_late_lane(void)
{
	enum { COUNT = 8 };
	struct comm_lane_options late = { .index = 1 };
	struct request *send[COUNT], *recv[COUNT];
	uint8_t tx[COUNT], rx[COUNT] = { 0 };
	struct talk t;

	rig_open_kept(&t, 1);
	t.recv->several->revive_ns = 3 * WAIT_NS;
	fake_pair_init(&t.pairs[1], 81, 100000);
	t.lanes = 2;
	CHECK_EQ(comm_attach(t.send, &t.pairs[1].lanes[0].lane, &late), 0);
	for (unsigned m = 0; m < COUNT; m++) {
		tx[m] = (uint8_t)(m + 1);
		send[m] = rig_post(t.send, &tx[m], 1);
	}
	for (unsigned m = 0; m < COUNT; m++)
		CHECK_EQ(rig_wait(&t, send[m], NULL), 0);
	CHECK(t.pairs[1].pipes[0].written > 0);
	comm_close(t.send, false);
	t.send = NULL;
	for (unsigned m = 0; m < COUNT; m++)
		recv[m] = rig_post(t.recv, &rx[m], 1);
	rig_turns(&t, 500);
	CHECK(t.pairs[0].lanes[1].closed);
	CHECK_EQ(comm_attach(t.recv, &t.pairs[1].lanes[1].lane, &late), 0);
	for (unsigned m = 0; m < COUNT; m++)
		CHECK_EQ(rig_wait(&t, recv[m], NULL), 0);
	CHECK_MEM(rx, tx, COUNT);
	CHECK_EQ(env_warns, 0);
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

/* A message that nobody asked for stands before one that is wanted: neither is lost. The lanes are fed by hand. */
static void feed(struct fake_lane *lane, uint64_t message, uint64_t total, uint64_t offset,
		 uint32_t length, int seed)
{
	struct record record = { .type = RECORD_DATA,
				 .message = message,
				 .total = total,
				 .offset = offset,
				 .length = length };
	uint8_t header[RECORD_HEADER_BYTES];
	uint8_t *bytes = malloc(length + 1);

	for (uint32_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)((uint64_t)seed + offset + i);
	record_encode(header, &record);
	CHECK_EQ(fake_inject(lane, header, sizeof(header)), sizeof(header));
	CHECK_EQ(fake_inject(lane, bytes, length), length);
	free(bytes);
}

static bool fed(const uint8_t *bytes, size_t length, int seed)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != (uint8_t)((uint64_t)seed + i))
			return false;
	return true;
}

static void test_early(void)
{
	uint8_t first[128] = { 0 }, second[1000] = { 0 };
	struct request *one, *two;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	one = rig_post(t.recv, first, sizeof(first));
	feed(&t.pairs[0].lanes[1], 1, 1000, 64, 936, 2); /* message 1, which has no receive */
	feed(&t.pairs[0].lanes[1], 0, 128, 0, 64, 1);    /* behind it */
	feed(&t.pairs[1].lanes[1], 0, 128, 64, 64, 1);
	CHECK_EQ(rig_wait(&t, one, NULL), 0);
	CHECK(fed(first, 128, 1));
	two = rig_post(t.recv, second, sizeof(second));
	feed(&t.pairs[1].lanes[1], 1, 1000, 0, 64, 2);
	CHECK_EQ(rig_wait(&t, two, NULL), 0);
	CHECK(fed(second, 1000, 2));
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

/* A kernel lane that brings what had come is answered when nothing more of its sender's is seen to come: who has closed
 * its socket meanwhile answers RST. */
static void test_answer_waits(void)
{
	struct record second = { .type = RECORD_DATA, .message = 1, .total = 1, .length = 1 };
	uint8_t bytes[RECORD_HEADER_BYTES + 1] = { 0 }, rx[101];
	struct request *recv[2];
	struct fake_lane *kernel;
	struct talk t;

	rig_open_fed(&t, 1, 16384);
	kernel = &t.pairs[1].lanes[1];
	fake_pair_init(&t.pairs[1], 80, 100000);
	kernel->lane.kind_bit = LANE_KERNEL;
	CHECK_EQ(comm_attach(t.recv, &kernel->lane, &(struct comm_lane_options){ .index = 1 }), 0);
	t.lanes = 2;
	recv[0] = rig_post(t.recv, rx, 100);
	recv[1] = rig_post(t.recv, rx + 100, 1);
	feed(&t.pairs[0].lanes[1], 0, 100, 0, 100, 1);
	CHECK_EQ(rig_wait(&t, recv[0], NULL), 0);
	feed(kernel, 0, 100, 0, 100, 1);
	record_encode(bytes, &second);
	CHECK_EQ(fake_inject(kernel, bytes, 1), 1);
	rig_turns(&t, 200);
	CHECK_EQ(kernel->in->count, 0); /* all of it has been read */
	CHECK_EQ(kernel->out->written, 0);
	CHECK_EQ(fake_inject(kernel, bytes + 1, sizeof(bytes) - 1), sizeof(bytes) - 1);
	CHECK_EQ(rig_wait(&t, recv[1], NULL), 0);
	rig_turns(&t, 200);
	CHECK(kernel->out->written > 0);
	rig_free(&t);
}

/* The same chunk by two lanes, the first of which dies in the middle of it. */
static void test_half_a_chunk(void)
{
	struct comm_lane_view views[COMM_LANES_MAX];
	uint8_t room[4096] = { 0 };
	struct request *request;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	request = rig_post(t.recv, room, sizeof(room));
	feed(&t.pairs[0].lanes[1], 0, 4096, 0, 4096, 1);
	t.pairs[0].lanes[1].in->count -= 1000; /* the rest is still on its way */
	rig_turns(&t, 30);
	feed(&t.pairs[1].lanes[1], 0, 4096, 0, 4096, 1);
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	CHECK(fed(room, 4096, 1));
	/* The memory is the application's again; the rest of the first goes nowhere. */
	memset(room, 0xee, sizeof(room));
	request = rig_post(t.recv, room, sizeof(room));
	t.pairs[0].lanes[1].in->count += 1000;
	t.pairs[0].lanes[1].event = true;
	rig_turns(&t, 30);
	for (size_t i = 0; i < sizeof(room); i++)
		CHECK_EQ(room[i], 0xee);
	CHECK_EQ(comm_lane_views(t.recv, views), 2);
	CHECK_EQ(views[0].counts.duplicates, 1);
	CHECK_EQ(views[1].counts.duplicates, 0);
	feed(&t.pairs[0].lanes[1], 1, 4096, 0, 4096, 9);
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	CHECK(fed(room, 4096, 9));
	rig_free(&t);
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

/* What happens while the lane that has half of a record's payload reads: all of it is acknowledged by the other lane, the
 * application takes its memory back, and the network has taken what was sent. Then comes what the comm fails of. */
static struct {
	struct lane_ops ops;
	ssize_t (*recv)(struct lane *lane, void *dst, size_t len, unsigned unit);
	struct fake_lane *other;
	struct request *request;
	void *memory;
	size_t size;
} meanwhile;

static ssize_t meanwhile_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	struct fake_lane *mine = (struct fake_lane *)lane;
	struct record ack = { .type = RECORD_ACK, .message = 1 };
	uint8_t bytes[RECORD_HEADER_BYTES];
	int done = 0;

	if (!meanwhile.memory)
		return meanwhile.recv(lane, dst, len, unit);
	record_encode(bytes, &ack);
	CHECK_EQ(fake_inject(meanwhile.other, bytes, sizeof(bytes)), sizeof(bytes));
	for (unsigned i = 0; i < 100 && !done; i++) {
		(void)fake_pair_turn(meanwhile.other->pair);
		CHECK_EQ(comm_test(meanwhile.request, &done, NULL), 0);
	}
	CHECK_EQ(done, 1);
	CHECK_EQ(mprotect(meanwhile.memory, meanwhile.size, PROT_NONE), 0);
	meanwhile.memory = NULL;
	mine->out->count = 0;
	return meanwhile.recv(lane, dst, len, unit);
}

/* A failure is not told behind half of a record whose rest may be the application's again. */
static void test_fails_in_a_record(void)
{
	struct comm_options opt = { .side = COMM_SEND, .several = true, .eager_bytes = 65536 };
	struct record bad = { .type = RECORD_DATA, .length = 64, .total = 64 };
	uint8_t bytes[RECORD_HEADER_BYTES];
	struct fake_pair pairs[2];
	struct fake_lane *mine;
	struct comm *comm;
	uint64_t written;
	void *tx;
	int done;

	env_warns = 0;
	for (int i = 0; i < 2; i++)
		fake_pair_init(&pairs[i], 21, 3000);
	CHECK_EQ(comm_create(&comm, &pairs[0].lanes[0].lane, &opt), 0);
	CHECK_EQ(comm_attach(comm, &pairs[1].lanes[0].lane,
			     &(struct comm_lane_options){ .index = 1 }),
		 0);
	meanwhile.size = 8192;
	tx = mmap(NULL, meanwhile.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(tx != MAP_FAILED);
	meanwhile.memory = tx;
	meanwhile.request = rig_post(comm, tx, meanwhile.size);
	mine = &pairs[pairs[0].lanes[0].out->written ? 0 : 1].lanes[0];
	meanwhile.other = &pairs[mine == &pairs[0].lanes[0] ? 1 : 0].lanes[0];
	written = mine->out->written;
	CHECK_EQ(written, mine->out->capacity);
	meanwhile.ops = *mine->lane.ops;
	meanwhile.recv = meanwhile.ops.recv;
	meanwhile.ops.recv = meanwhile_recv;
	mine->lane.ops = &meanwhile.ops;
	record_encode(bytes, &bad);
	CHECK_EQ(fake_inject(mine, bytes, sizeof(bytes)), sizeof(bytes));
	for (unsigned i = 0; i < 100 && !env_warns; i++)
		(void)fake_pair_turn(mine->pair);
	CHECK_EQ(env_warns, 1);
	CHECK_EQ(comm->error, -EPROTO);
	CHECK_EQ(mine->out->written, written);
	CHECK_EQ(comm_test(meanwhile.request, &done, NULL), -EINVAL); /* it was done */
	comm_close(comm, false);
	CHECK(mine->aborted);
	CHECK_EQ(munmap(tx, meanwhile.size), 0);
	for (int i = 0; i < 2; i++)
		fake_pair_free(&pairs[i]);
}

/* ---- liars -------------------------------------------------------------------------------------- */

static void lie(enum comm_side side, const struct record *records, unsigned count, const char *word)
{
	struct comm_options opt = { .side = side, .several = true, .eager_bytes = 8192 };
	uint8_t *room = calloc(1, 70000);
	struct fake_pair pairs[2];
	struct request *request;
	struct comm *comm;
	int done, rc = 0;

	env_warns = 0;
	for (int i = 0; i < 2; i++)
		fake_pair_init(&pairs[i], 9, 70000);
	CHECK_EQ(comm_create(&comm, &pairs[0].lanes[0].lane, &opt), 0);
	CHECK_EQ(comm_attach(comm, &pairs[1].lanes[0].lane,
			     &(struct comm_lane_options){ .index = 1 }),
		 0);
	CHECK_EQ(comm_post(comm, room, 65536, 0, NULL, &request), 0);
	for (unsigned i = 0; i < count && !rc; i++) {
		uint8_t header[RECORD_HEADER_BYTES];

		record_encode(header, &records[i]);
		fake_inject(&pairs[i % 2].lanes[0], header, sizeof(header));
		if (records[i].type == RECORD_DATA || records[i].type == RECORD_CREDIT)
			fake_inject(&pairs[i % 2].lanes[0], room, records[i].length);
		for (int turn = 0; turn < 200 && !rc; turn++) {
			fake_pair_turn(&pairs[0]);
			fake_pair_turn(&pairs[1]);
			rc = comm_test(request, &done, NULL);
		}
	}
	CHECK_EQ(rc, -EPROTO);
	CHECK_EQ(env_warns, 1);
	if (!strstr(env_warn, word)) {
		fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", env_warn, word);
		check_failed();
	}
	comm_close(comm, false);
	for (int i = 0; i < 2; i++)
		fake_pair_free(&pairs[i]);
	free(room);
}

static void test_liars(void)
{
	struct record data = { .type = RECORD_DATA, .length = 128, .total = 65536 };
	struct record more = data, record = { .type = RECORD_ACK, .message = 1, .offset = 1 };
	static struct record holes[COMM_RANGES_MAX + 2];

	more.offset = 64;
	lie(COMM_RECV, (struct record[]){ data, more }, 2, "overlaps");
	more.offset = 0;
	more.length = 65536;
	lie(COMM_RECV, (struct record[]){ data, more }, 2, "overlaps");
	more = data;
	more.offset = 256;
	more.total = 65000;
	lie(COMM_RECV, (struct record[]){ data, more }, 2, "changes its size");
	more = data;
	more.message = 1 + COMM_EAGER_MESSAGES;
	lie(COMM_RECV, &more, 1, "out of order");
	more.message = 1; /* no receive for it; and one that is wanted could stand behind */
	more.length = 8192;
	lie(COMM_RECV, &more, 1, "credits");
	lie(COMM_RECV, &record, 1, "only a receiver");
	lie(COMM_SEND, &data, 1, "only a sender");
	lie(COMM_SEND, &record, 1, "were not sent");
	record = (struct record){ .type = RECORD_ACK, .offset = 65537 };
	lie(COMM_SEND, &record, 1, "were not sent");
	record = (struct record){ .type = RECORD_CREDIT, .message = 7, .total = 7 };
	lie(COMM_SEND, &record, 1, "were not sent");
	for (unsigned i = 0; i < COMM_RANGES_MAX + 2; i++) /* more than 64 KiB have room for */
		holes[i] = (struct record){ .type = RECORD_DATA,
					    .length = 64,
					    .total = 65536,
					    .offset = 128ull * i % 65536 };
	/* The same chunks again are no lie, only useless; these lie half across. */
	for (unsigned i = 512; i < COMM_RANGES_MAX + 2; i++)
		holes[i].length = 128;
	lie(COMM_RECV, holes, COMM_RANGES_MAX + 2, "overlaps");
}

/* Truncation is said, once, and told to the sender. */
static void test_truncation(void)
{
	uint8_t tx[64] = { 0 }, rx[64];
	struct request *send, *recv;
	struct talk t;

	rig_open(&t, 2, 8192, 10000);
	recv = rig_post(t.recv, rx, 10);
	send = rig_post(t.send, tx, 11);
	CHECK_EQ(rig_wait(&t, recv, NULL), -EMSGSIZE);
	CHECK_EQ(env_warns, 1);
	CHECK(strstr(env_warn, "truncated") != NULL);
	CHECK_EQ(rig_wait(&t, send, NULL), -EMSGSIZE);
	CHECK(strstr(env_warn, "truncated") != NULL);
	rig_free(&t);
}

/* ---- threads: a driver for each lane, threads that turn them, a thread for each end ------------- */

enum { THREAD_MESSAGES = 600, THREAD_LANES = 4 };

struct threads {
	struct talk t;
	atomic_bool stop;
};

static void *thread_turns(void *arg)
{
	struct threads *all = arg;

	while (!atomic_load(&all->stop)) {
		for (unsigned i = 0; i < THREAD_LANES; i++)
			driver_turn(&all->t.pairs[i].driver, driver_clock_ns());
		sched_yield();
	}
	return NULL;
}

static void *thread_receiver(void *arg)
{
	struct talk *t = &((struct threads *)arg)->t;
	struct request *requests[2];

	/* Two posted at a time. */
	for (uint64_t m = 0; m <= THREAD_MESSAGES && !check_failures; m++) {
		uint64_t before = m - 1;
		unsigned wrong = 0;
		size_t size = 0;
		int done = 0;

		if (m < THREAD_MESSAGES)
			CHECK_EQ(comm_post(t->recv, t->rx[m % 2], t->sizes[m] + 8, 0, NULL,
					   &requests[m % 2]),
				 0);
		while (m && !done && !check_failures) {
			CHECK_EQ(comm_test(requests[before % 2], &done, &size), 0);
			if (!done)
				sched_yield();
		}
		if (!m)
			continue;
		CHECK_EQ(size, t->sizes[before]);
		for (size_t i = 0; i < size; i++)
			wrong += t->rx[before % 2][i] != talk_pattern(before, i);
		CHECK_EQ(wrong, 0);
	}
	return NULL;
}

static void test_threads(void)
{
	static struct threads all;
	pthread_t turns[2], sender, receiver;

	talk_seed = 3;
	talk_look_ns = 0;
	talk_open(&all.t, THREAD_MESSAGES, 1);
	comm_close(all.t.send, true);
	comm_close(all.t.recv, true);
	fake_pair_free(&all.t.pairs[0]);
	fake_pair_init(&all.t.pairs[0], 1, 100000);
	env_warns = 0;
	talk_comms(&all.t, &(struct comm_options){ .several = true, .eager_bytes = 65536 });
	for (unsigned i = 1; i < THREAD_LANES; i++)
		talk_attach(&all.t, i, LANE_HARP, 100000);
	for (int i = 0; i < 2; i++)
		pthread_create(&turns[i], NULL, thread_turns, &all);
	pthread_create(&sender, NULL, talk_sender, &all.t);
	pthread_create(&receiver, NULL, thread_receiver, &all);
	pthread_join(sender, NULL);
	pthread_join(receiver, NULL);
	comm_close(all.t.send, false);
	comm_close(all.t.recv, false);
	atomic_store(&all.stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(turns[i], NULL);
	talk_free(&all.t);
	CHECK_EQ(env_warns, 0);
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

/* A lane is proved and nobody listens any more: nothing of the comm stays on the lane's driver. */
static void test_drop(void)
{
	struct comm_options opt = { .side = COMM_RECV, .several = true, .eager_bytes = 65536 };
	struct fake_pair pair;
	struct comm *comm;

	fake_pair_init(&pair, 79, 1000);
	CHECK_EQ(comm_create(&comm, &pair.lanes[1].lane, &opt), 0);
	comm_drop(comm);
	CHECK(!atomic_load(&pair.driver.ready));
	CHECK(pair.lanes[1].closed && pair.lanes[1].aborted);
	fake_pair_free(&pair);
}

int main(int argc, char **argv)
{
	uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 0) : 200;

	static void (*const rules[])(void) = {
		test_silence,
		test_closed_window,
		test_all_silent,
		test_done_is_acked,
		test_last_death,
		test_revival,
		test_replacement,
		test_early,
		test_half_a_chunk,
		test_filler,
		test_liars,
		test_truncation,
		test_threads,
		test_drop,
		test_older_clock,
		test_patience,
		test_kept,
		test_kept_acks,
		test_kept_and_closed,
		test_kept_and_lost,
		test_answer_waits,
		test_late_lane,
		test_fails_in_a_record,
		test_owes,
	};

	conversations(seeds, NULL);
	conversations(seeds, lanes_come_and_go);
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]) && !check_failures; i++)
		rules[i]();
	return check_done();
}
