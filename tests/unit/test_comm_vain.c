/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_vain.c - turns of lanes: a peer that sends without end what brings nothing new has its own, and no more; so has a long message. */
#include "comm/comm_impl.h"
#include "comm_rig.h"

#define CHUNK_BYTES 300000u
#define FLOOD_BYTES 1048576u

/* One lane is read from this: the same record again and again, and then what is in its pipe. */
static struct flood {
	const struct lane_ops *ops; /* of the lane that it is before */
	uint8_t header[RECORD_HEADER_BYTES];
	uint64_t record_bytes, read_bytes, left_bytes;
} flood;

static ssize_t flood_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	uint8_t *to = dst;

	if (!flood.left_bytes)
		return flood.ops->recv(lane, dst, len, unit);
	if (len > flood.left_bytes)
		len = flood.left_bytes;
	for (size_t i = 0; i < len; i++) {
		uint64_t at = (flood.read_bytes + i) % flood.record_bytes;

		to[i] = at < sizeof(flood.header) ? flood.header[at] : 0;
	}
	flood.read_bytes += len;
	flood.left_bytes -= len;
	return (ssize_t)len;
}

static ssize_t flood_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	(void)lane;
	(void)iov;
	(void)iov_count;
	return -EPIPE;
}

static void flood_open(struct lane *lane, const struct record *record, uint64_t bytes, bool broken)
{
	static struct lane_ops ops;

	flood.ops = lane->ops;
	ops = *lane->ops;
	ops.recv = flood_recv;
	if (broken)
		ops.send = flood_send;
	lane->ops = &ops;
	record_encode(flood.header, record);
	flood.record_bytes =
		sizeof(flood.header) + (record->type == RECORD_DATA ? record->length : 0);
	flood.read_bytes = 0;
	flood.left_bytes = bytes / flood.record_bytes * flood.record_bytes;
}

static struct comm_lane *rig_lane(struct comm *comm)
{
	return comm->several->lanes[0];
}

/* Its event comes, once. */
static void rig_event(struct comm *comm)
{
	comm_lock(comm);
	comm_wake(comm, 0);
	comm_unlock(comm);
}

/* What is posted runs, and no event is told. */
static void rig_run(struct driver *driver)
{
	CHECK(driver_take(driver));
	(void)driver_run_ready(driver, driver_clock_ns());
	driver_give(driver);
}

/* Turns until the flood is over, each with its share of it. */
static void rig_turns_of_flood(struct comm *comm, uint64_t share_bytes)
{
	const struct comm_lane *l = rig_lane(comm);

	rig_event(comm);
	while (flood.left_bytes && !check_failures) {
		uint64_t before = flood.read_bytes;

		CHECK(atomic_load(&l->work.queued));
		rig_run(l->lane->driver);
		CHECK(flood.read_bytes > before && flood.read_bytes <= before + share_bytes);
	}
}

static void feed_message(struct talk *t, uint64_t message, uint8_t byte)
{
	struct record record = { .type = RECORD_DATA, .message = message, .total = 1, .length = 1 };
	uint8_t bytes[RECORD_HEADER_BYTES + 1];

	record_encode(bytes, &record);
	bytes[RECORD_HEADER_BYTES] = byte;
	CHECK_EQ(fake_inject(&t->pairs[0].lanes[1], bytes, sizeof(bytes)), sizeof(bytes));
}

/* A receiver that has had message 0, and waits for message 1. */
static struct request *rig_open_receiver(struct talk *t, enum lane_kind kind, uint8_t *rx)
{
	struct request *first;

	env_config.kernel_lanes = kind == LANE_KERNEL;
	rig_open_fed(t, 0, 8192);
	fake_pair_init(&t->pairs[0], 78, 100000);
	t->lanes = 1;
	t->pairs[0].lanes[1].lane.kind_bit = kind;
	CHECK_EQ(comm_create(&t->recv, &t->pairs[0].lanes[1].lane,
			     &(struct comm_options){
				     .side = COMM_RECV, .several = true, .eager_bytes = 8192 }),
		 0);
	first = rig_post(t->recv, rx, 1);
	feed_message(t, 0, 7);
	CHECK_EQ(rig_wait(t, first, NULL), 0);
	CHECK_EQ(*rx, 7);
	return rig_post(t->recv, rx, 1);
}

/* A record again and again, of which a turn takes so much, and then message 1 by the same lane. */
static void check_receiver(const struct record *record, uint64_t share_bytes)
{
	struct request *next;
	struct talk t;
	uint8_t rx;

	next = rig_open_receiver(&t, LANE_HARP, &rx);
	flood_open(&t.pairs[0].lanes[1].lane, record, 64 * share_bytes, false);
	feed_message(&t, 1, 8);
	t.pairs[0].lanes[1].event = false;
	rig_turns_of_flood(t.recv, share_bytes);
	CHECK_EQ(rig_wait(&t, next, NULL), 0);
	CHECK_EQ(rx, 8);
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

static void test_duplicates(void)
{
	check_receiver(&(struct record){ .type = RECORD_DATA,
					 .total = CHUNK_BYTES,
					 .length = CHUNK_BYTES },
		       COMM_TURN_BYTES_MAX + 65536);
}

static void test_small_duplicates(void)
{
	check_receiver(&(struct record){ .type = RECORD_DATA, .total = 1, .length = 1 },
		       COMM_VAIN_RECORDS_MAX * (RECORD_HEADER_BYTES + 1ull));
}

/* Its answer finds that the lane takes nothing more. What stands behind is read all the same. */
static void test_broken_receiver(void)
{
	struct request *next;
	struct talk t;
	uint8_t rx;

	next = rig_open_receiver(&t, LANE_HARP, &rx);
	flood_open(&t.pairs[0].lanes[1].lane,
		   &(struct record){ .type = RECORD_DATA, .total = 1, .length = 1 },
		   4 * FLOOD_BYTES, true);
	feed_message(&t, 1, 8);
	CHECK_EQ(rig_wait(&t, next, NULL), 0);
	CHECK_EQ(rx, 8);
	rig_free(&t);
}

/* To answer on a kernel lane before all of it is read may reset the lane. */
static void test_answer_by_a_kernel_lane(void)
{
	struct request *next;
	struct talk t;
	uint64_t written;
	uint8_t rx;

	next = rig_open_receiver(&t, LANE_KERNEL, &rx);
	flood_open(&t.pairs[0].lanes[1].lane,
		   &(struct record){ .type = RECORD_DATA, .total = 1, .length = 1 },
		   4 * FLOOD_BYTES, false);
	written = t.pairs[0].lanes[1].out->written;
	rig_event(t.recv);
	while (flood.left_bytes && !check_failures) {
		CHECK_EQ(t.pairs[0].lanes[1].out->written, written);
		rig_run(rig_lane(t.recv)->lane->driver);
	}
	feed_message(&t, 1, 8);
	CHECK_EQ(rig_wait(&t, next, NULL), 0);
	CHECK(t.pairs[0].lanes[1].out->written > written);
	rig_free(&t);
	env_config.kernel_lanes = 1;
}

/* ---- a sender ------------------------------------------------------------------------------------- */

static void rig_open_sender(struct talk *t, enum lane_kind kind)
{
	struct comm_options opt = { .side = COMM_SEND, .several = true, .eager_bytes = 8192 };

	memset(t, 0, sizeof(*t));
	env_warns = 0;
	fake_pair_init(&t->pairs[0], 78, 100000);
	t->lanes = 1;
	t->pairs[0].lanes[0].lane.kind_bit = kind;
	CHECK_EQ(comm_create(&t->send, &t->pairs[0].lanes[0].lane, &opt), 0);
}

static void feed_ack(struct talk *t, uint64_t message)
{
	struct record record = { .type = RECORD_ACK, .message = message };
	uint8_t bytes[RECORD_HEADER_BYTES];

	record_encode(bytes, &record);
	CHECK_EQ(fake_inject(&t->pairs[0].lanes[0], bytes, sizeof(bytes)), sizeof(bytes));
}

/* An ACK of nothing, again and again, and then one of the message. */
static void test_acks(void)
{
	static uint8_t tx[64];
	const uint64_t share_bytes = COMM_VAIN_RECORDS_MAX * (uint64_t)RECORD_HEADER_BYTES;
	struct request *send;
	struct talk t;

	rig_open_sender(&t, LANE_HARP);
	send = rig_post(t.send, tx, sizeof(tx));
	rig_turns(&t, 100);
	flood_open(&t.pairs[0].lanes[0].lane, &(struct record){ .type = RECORD_ACK },
		   64 * share_bytes, false);
	feed_ack(&t, 1);
	t.pairs[0].lanes[0].event = false;
	rig_turns_of_flood(t.send, share_bytes);
	CHECK_EQ(rig_wait(&t, send, NULL), 0);
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

/* It takes nothing more: it is read to the end, and what is acknowledged there is done, before it is given up. */
static void test_broken_sender(void)
{
	static uint8_t tx[64];
	struct request *send, *next;
	struct talk t;

	rig_open_sender(&t, LANE_HARP);
	send = rig_post(t.send, tx, sizeof(tx));
	rig_turns(&t, 100);
	flood_open(&t.pairs[0].lanes[0].lane, &(struct record){ .type = RECORD_ACK }, FLOOD_BYTES,
		   true);
	next = rig_post(t.send, tx, sizeof(tx));
	feed_ack(&t, 1);
	CHECK_EQ(rig_wait(&t, send, NULL), 0);
	CHECK_EQ(rig_wait(&t, next, NULL), -ECONNRESET);
	CHECK_EQ(env_warns, 1);
	rig_free(&t);
}

static struct {
	unsigned lanes;
	enum comm_loss loss;
} lost;

static bool rig_lane_lost(struct comm *comm, unsigned index, enum comm_loss loss)
{
	(void)comm;
	(void)index;
	lost.lanes++;
	lost.loss = loss;
	return false;
}

static bool unreachable; /* a send has said so */

static ssize_t unreachable_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	(void)lane;
	(void)iov;
	(void)iov_count;
	unreachable = true;
	return -EHOSTUNREACH;
}

static ssize_t unreachable_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	return unreachable ? flood.ops->recv(lane, dst, len, unit) : -EAGAIN;
}

/* What broke it is what it ends of, though an ACK was read behind that: not the peer has ended it. */
static void test_how_a_sender_broke(void)
{
	static uint8_t tx[64];
	static struct lane_ops ops;
	struct request *send, *next;
	struct talk t;

	rig_open_sender(&t, LANE_HARP);
	memset(&lost, 0, sizeof(lost));
	t.send->several->lane_lost = rig_lane_lost;
	send = rig_post(t.send, tx, sizeof(tx));
	rig_turns(&t, 100);
	flood.ops = t.pairs[0].lanes[0].lane.ops;
	ops = *flood.ops;
	ops.send = unreachable_send;
	ops.recv = unreachable_recv;
	t.pairs[0].lanes[0].lane.ops = &ops;
	feed_ack(&t, 1);
	next = rig_post(t.send, tx, sizeof(tx));
	CHECK_EQ(rig_wait(&t, send, NULL), 0);
	CHECK(rig_wait(&t, next, NULL) < 0);
	CHECK_EQ(lost.lanes, 1);
	CHECK_EQ(lost.loss, COMM_LOSS);
	rig_free(&t);
}

/* By a kernel lane that nobody waits for anything of, which is read now and then. */
static void test_acks_of_a_kernel_lane(void)
{
	const uint64_t share_bytes = COMM_VAIN_RECORDS_MAX * (uint64_t)RECORD_HEADER_BYTES;
	struct talk t;

	rig_open_sender(&t, LANE_KERNEL);
	flood_open(&t.pairs[0].lanes[0].lane, &(struct record){ .type = RECORD_ACK },
		   64 * share_bytes, false);
	rig_turns_of_flood(t.send, share_bytes);
	rig_free(&t);
}

/* ---- what is wanted ------------------------------------------------------------------------------- */

#define LONG_BYTES (16 * COMM_TURN_BYTES_MAX)

/* A long message, either way, has its turns too, each with its share; and nobody has to say that there is more. */
static void test_a_long_message(void)
{
	struct comm_options opt = { .several = true, .eager_bytes = 2 * LONG_BYTES };
	uint8_t *tx = malloc(LONG_BYTES), *rx = malloc(LONG_BYTES);
	const uint64_t share_bytes = COMM_TURN_BYTES_MAX + RECORD_HEADER_BYTES;
	struct request *send, *recv;
	struct talk t;

	memset(&t, 0, sizeof(t));
	memset(tx, 7, LONG_BYTES);
	fake_pair_init(&t.pairs[0], 78, 2 * LONG_BYTES);
	t.lanes = 1;
	talk_comms(&t, &opt);
	send = rig_post(t.send, tx, LONG_BYTES);
	for (unsigned side = 0; side < 2; side++) {
		struct comm_lane *l = rig_lane(side ? t.recv : t.send);
		const struct fake_pipe *pipe = t.pairs[0].lanes[0].out;
		uint64_t moved_bytes, before;

		recv = side ? rig_post(t.recv, rx, LONG_BYTES) : NULL;
		moved_bytes = pipe->written - (side ? pipe->count : 0);
		CHECK(moved_bytes <= 4 * share_bytes); /* who posts takes some turns */
		rig_event(l->comm);
		while (atomic_load(&l->work.queued) && !check_failures) {
			before = moved_bytes;
			rig_run(l->lane->driver);
			moved_bytes = pipe->written - (side ? pipe->count : 0);
			CHECK(moved_bytes - before <= share_bytes);
		}
		CHECK(moved_bytes >= LONG_BYTES);
	}
	CHECK_EQ(rig_wait(&t, recv, NULL), 0);
	CHECK_EQ(rig_wait(&t, send, NULL), 0);
	CHECK_EQ(memcmp(tx, rx, LONG_BYTES), 0);
	rig_free(&t);
	free(tx);
	free(rx);
}

/* Between two turns in the middle of a chunk nobody touches the message: a failure, or who takes its memory back, would wait for
 * a lane that may never have another. */
static void test_withdrawn_between_turns(void)
{
	struct comm_options opt = { .side = COMM_RECV, .several = true, .eager_bytes = 8192 };
	struct record record = { .type = RECORD_DATA, .total = LONG_BYTES, .length = LONG_BYTES };
	uint8_t header[RECORD_HEADER_BYTES], *rx = calloc(1, LONG_BYTES);
	struct request *recv;
	struct talk t;

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pairs[0], 78, 2 * LONG_BYTES);
	t.lanes = 1;
	CHECK_EQ(comm_create(&t.recv, &t.pairs[0].lanes[1].lane, &opt), 0);
	recv = rig_post(t.recv, rx, LONG_BYTES);
	record_encode(header, &record);
	CHECK_EQ(fake_inject(&t.pairs[0].lanes[1], header, sizeof(header)), sizeof(header));
	CHECK_EQ(fake_inject(&t.pairs[0].lanes[1], rx, LONG_BYTES / 2), LONG_BYTES / 2);
	rig_event(t.recv);
	rig_run(rig_lane(t.recv)->lane->driver);
	CHECK(atomic_load(&rig_lane(t.recv)->work.queued));
	CHECK_EQ(rig_lane(t.recv)->in.done, LONG_BYTES / 2);
	CHECK_EQ(t.recv->several->users, 0);
	if (!t.recv->several->users) /* else it waits */
		comm_withdraw(t.recv, NULL, rx, LONG_BYTES);
	CHECK_EQ(rig_wait(&t, recv, NULL), -ECANCELED);
	rig_free(&t);
	free(rx);
}

/* ---- a sender of one lane ------------------------------------------------------------------------- */

/* CREDITs without end, each of one receive more; so many were read. */
static uint64_t credits_read;
static bool credits_in_payload;

static ssize_t credits_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	uint64_t message =
		credits_read + 1 > RECORD_CREDITS_MAX ? credits_read + 1 - RECORD_CREDITS_MAX : 0;
	struct record record = { .type = RECORD_CREDIT,
				 .message = message,
				 .total = credits_read + 1,
				 .length = (uint32_t)(8 * (credits_read + 1 - message)) };

	(void)lane;
	(void)unit;
	memset(dst, 0, len);
	if (!credits_in_payload)
		record_encode(dst, &record);
	credits_read += credits_in_payload;
	credits_in_payload = !credits_in_payload;
	return (ssize_t)len;
}

static void check_credits(bool no_credit, uint64_t messages, uint64_t accepted)
{
	struct comm_options opt = { .side = COMM_SEND,
				    .no_credit = no_credit,
				    .eager_bytes = 262144 };
	static struct lane_ops ops;
	struct request *next;
	struct talk t;
	uint8_t tx = 0;

	memset(&t, 0, sizeof(t));
	env_warns = 0;
	fake_pair_init(&t.pairs[0], 78, 100000);
	t.lanes = 1;
	CHECK_EQ(comm_create(&t.send, &t.pairs[0].lanes[0].lane, &opt), 0);
	for (uint64_t m = 0; m < messages && !check_failures; m++)
		CHECK_EQ(rig_wait(&t, rig_post(t.send, &tx, 1), NULL), 0);
	ops = *t.pairs[0].lanes[0].lane.ops;
	ops.recv = credits_recv;
	t.pairs[0].lanes[0].lane.ops = &ops;
	credits_read = 0;
	next = rig_post(t.send, &tx, 1);
	CHECK_EQ(rig_wait(&t, next, NULL), -EPROTO);
	CHECK_EQ(credits_read, accepted + 1);
	CHECK_EQ(env_warns, 1);
	CHECK(strstr(env_warn, "CREDIT") != NULL);
	rig_free(&t);
}

static void test_credits(void)
{
	check_credits(false, 0, RECORD_CREDITS_MAX + 1);
	check_credits(false, COMM_EAGER_MESSAGES - 1, COMM_EAGER_MESSAGES + RECORD_CREDITS_MAX);
	check_credits(true, 2000, 0);
}

int main(void)
{
	test_credits();
	test_duplicates();
	test_small_duplicates();
	test_broken_receiver();
	test_answer_by_a_kernel_lane();
	test_acks();
	test_acks_of_a_kernel_lane();
	test_broken_sender();
	test_how_a_sender_broke();
	test_a_long_message();
	test_withdrawn_between_turns();
	return check_done();
}
