/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_ends.c - lanes of a comm that end at the same time, on two threads: what another one does between a lane's finding that
 * it has ended and its leaving is done by the test, at just that time. */

#include "comm/comm_impl.h"
#include "comm_rig.h"

/* Once, when a lane is about to leave, or memory for an early chunk has been made. */
static struct {
	struct talk *t;
	void (*dies)(struct talk *t);
	void (*makes)(struct talk *t);
} meanwhile;

bool __real_comm_lane_die(struct comm_lane *l, int error, enum comm_death how);
bool __wrap_comm_lane_die(struct comm_lane *l, int error, enum comm_death how);
void __real_comm_wake(struct comm *comm, int index);
void __wrap_comm_wake(struct comm *comm, int index);
struct comm_early *__real_comm_early_new(const struct comm_in *in);
struct comm_early *__wrap_comm_early_new(const struct comm_in *in);

static void meanwhile_happens(void (**what)(struct talk *t))
{
	void (*happens)(struct talk * t) = *what;

	*what = NULL;
	if (happens)
		happens(meanwhile.t);
}

bool __wrap_comm_lane_die(struct comm_lane *l, int error, enum comm_death how)
{
	meanwhile_happens(&meanwhile.dies);
	return __real_comm_lane_die(l, error, how);
}

/* Whose index is no index has gone, and its memory was given back. */
void __wrap_comm_wake(struct comm *comm, int index)
{
	CHECK(index < (int)COMM_LANES_MAX);
	if (index < (int)COMM_LANES_MAX)
		__real_comm_wake(comm, index);
}

struct comm_early *__wrap_comm_early_new(const struct comm_in *in)
{
	struct comm_early *early = __real_comm_early_new(in);

	meanwhile_happens(&meanwhile.makes);
	return early;
}

static void lane_turns(struct talk *t, unsigned index)
{
	for (unsigned i = 0; i < 50; i++)
		(void)fake_pair_turn(&t->pairs[index]);
}

static void other_turns(struct talk *t)
{
	lane_turns(t, 1);
}

static void lane_fin(struct talk *t, unsigned index)
{
	t->pairs[index].lanes[1].in->closed = true;
	t->pairs[index].lanes[1].event = true;
}

/* ---- the last of them ------------------------------------------------------------------------------ */

/* Two end at once, each of which sees the other live. What came early is here, and is not lost with them. */
static void test_both_end(void)
{
	uint8_t first[64], second[64];
	struct request *request;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	request = rig_post(t.recv, first, sizeof(first));
	rig_feed(&t.pairs[0].lanes[1], 1, 64, 0, 64, 2); /* message 1, which has no receive */
	rig_turns(&t, 30);
	rig_feed(&t.pairs[1].lanes[1], 0, 64, 0, 64, 1);
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	rig_turns(&t, 30);
	meanwhile.t = &t;
	meanwhile.dies = other_turns;
	lane_fin(&t, 0);
	lane_fin(&t, 1);
	lane_turns(&t, 0);
	CHECK(!meanwhile.dies && t.pairs[1].lanes[1].closed);
	CHECK(!t.pairs[0].lanes[1].closed);
	request = rig_post(t.recv, second, sizeof(second));
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	CHECK(rig_fed(second, sizeof(second), 2));
	rig_turns(&t, 30);
	CHECK(t.pairs[0].lanes[1].closed);
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

static void other_breaks(struct talk *t)
{
	fake_break(&t->pairs[1]);
	lane_turns(t, 1);
}

/* One is given up, as others get on: there are none any more. It is the path that is silent then, and TCP's patience decides. */
static void test_the_others_have_gone(void)
{
	uint64_t until_ns = driver_clock_ns() + WAIT_NS;
	uint8_t tx[1000] = { 7 }, rx[sizeof(tx)] = { 0 };
	struct comm_lane_view views[COMM_LANES_MAX];
	struct request *send, *recv;
	struct talk t;

	env_config.lane_timeout_ns = 60000000;
	rig_open(&t, 2, 16384, 100000);
	t.pairs[0].frozen = true;
	meanwhile.t = &t;
	meanwhile.dies = other_breaks;
	while (meanwhile.dies && driver_clock_ns() < until_ns && !check_failures) {
		int sent = 0, received = 0;

		recv = rig_post(t.recv, rx, sizeof(rx));
		send = rig_post(t.send, tx, sizeof(tx));
		while (meanwhile.dies && (!sent || !received) && driver_clock_ns() < until_ns) {
			(void)talk_turn(&t);
			if (!sent)
				CHECK_EQ(comm_test(send, &sent, NULL), 0);
			if (!received)
				CHECK_EQ(comm_test(recv, &received, NULL), 0);
		}
	}
	CHECK(!meanwhile.dies);
	CHECK(!t.pairs[0].lanes[0].closed);
	CHECK_EQ(comm_lane_views(t.send, views), 1);
	t.pairs[0].frozen = false;
	t.pairs[0].lanes[0].event = t.pairs[0].lanes[1].event = true;
	rig_turns(&t, 500);
	recv = rig_post(t.recv, rx, sizeof(rx));
	send = rig_post(t.send, tx, sizeof(tx));
	rig_both(&t, send, recv);
	CHECK_MEM(rx, tx, sizeof(rx));
	CHECK_EQ(env_warns, 0);
	env_config.lane_timeout_ns = 500000000;
	rig_free(&t);
}

/* ---- what a lane leaves unread ---------------------------------------------------------------------- */

static struct comm_lane *writer; /* of another lane's */

/* It has written, and the peer takes nothing more. */
static ssize_t unread_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	struct comm *comm = writer->comm;

	(void)lane;
	(void)iov;
	(void)iov_count;
	comm_lock(comm);
	comm_unuse(writer);
	comm_unlock(comm);
	return -EPIPE;
}

/* A lane can't read on, as another one writes there, and what it sends breaks; by then the other one has written. What came by it
 * may come by no other: it is read. */
static void test_unread(void)
{
	uint8_t room[2][64];
	struct request *requests[2];
	struct lane_ops ops;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	ops = *t.pairs[0].lanes[1].lane.ops;
	for (unsigned i = 0; i < 2; i++)
		requests[i] = rig_post(t.recv, room[i], sizeof(room[i]));
	rig_turns(&t, 30);
	CHECK_EQ(t.recv->several->control, 0);
	ops.send = unread_send;
	t.pairs[0].lanes[1].lane.ops = &ops;
	writer = t.recv->several->lanes[1];
	comm_lock(t.recv);
	comm_use(writer, COMM_USES_REQUEST, 1, 0, 64);
	comm_unlock(t.recv);
	rig_feed(&t.pairs[0].lanes[1], 0, 64, 0, 64, 1);
	rig_feed(&t.pairs[0].lanes[1], 1, 64, 0, 64, 2);
	for (unsigned i = 0; i < 2; i++)
		CHECK_EQ(rig_wait(&t, requests[i], NULL), 0);
	CHECK(rig_fed(room[1], sizeof(room[1]), 2));
	rig_turns(&t, 30);
	CHECK(t.pairs[0].lanes[1].closed);
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

/* Each of two chunks without receive would fit, and both come at the same time. */
static void test_both_early(void)
{
	uint8_t first[64];
	struct request *request;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	request = rig_post(t.recv, first, sizeof(first));
	rig_turns(&t, 30);
	meanwhile.t = &t;
	meanwhile.makes = other_turns;
	rig_feed(&t.pairs[0].lanes[1], 1, 6000, 0, 6000, 2);
	rig_feed(&t.pairs[1].lanes[1], 2, 6000, 0, 6000, 3);
	lane_turns(&t, 0);
	CHECK(!meanwhile.makes);
	CHECK_EQ(rig_wait(&t, request, NULL), -EPROTO);
	CHECK(strstr(env_warn, "credits") != NULL);
	rig_free(&t);
}

/* ---- no room for a driver ---------------------------------------------------------------------------- */

/* A lane that can't be taken replaces none. */
static void test_no_room_for_another(void)
{
	struct comm_lane_options again = { .index = 1 };
	struct fake_pair fresh;
	struct request *request;
	uint8_t room[64];
	struct talk t;

	rig_open_fed(&t, COMM_LANES_MAX, 8192);
	fake_pair_init(&fresh, 5, 1000);
	CHECK_EQ(comm_attach(t.recv, &fresh.lanes[1].lane, &again), -ENOMEM);
	rig_turns(&t, 30);
	CHECK(!t.pairs[1].lanes[1].closed && comm_has_lane(t.recv, 1));
	request = rig_post(t.recv, room, sizeof(room));
	rig_feed(&t.pairs[1].lanes[1], 0, 64, 0, 64, 1);
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	rig_free(&t);
	fake_pair_free(&fresh);
}

int main(void)
{
	static void (*const rules[])(void) = {
		test_both_end,   test_the_others_have_gone, test_unread,
		test_both_early, test_no_room_for_another,
	};

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]) && !check_failures; i++)
		rules[i]();
	return check_done();
}
