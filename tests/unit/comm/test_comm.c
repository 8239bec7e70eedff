/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm.c - two comms over joined fake lanes: random conversations, threads, and hostile records. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/util.h"
#include "check.h"
#include "comm/comm.h"
#include "double_env.h"
#include "fake_lane.h"
#include "talk.h"

#define SEEDS 400u

TEST(random_conversations_of_one_lane_arrive_and_warn_of_nothing)
{
	for (uint64_t i = 0; i < SEEDS && !check_failures; i++) {
		struct talk t;

		talk_seed = i;
		talk_open(&t, 120, 1);
		talk_run(&t);
		talk_close(&t);
		CHECK(!t.pairs[0].lanes[0].aborted);
		CHECK(t.pairs[0].lanes[0].closed && t.pairs[0].lanes[1].closed);
		talk_free(&t);
		if (check_failures)
			fprintf(stderr, "seed %" PRIu64 "\n", talk_seed);
	}
	CHECK_EQ(env_warns, 0);
}

TEST(a_ping_pong_of_small_messages_costs_a_credit_for_64)
{
	struct talk t;
	uint64_t base;

	talk_seed = 1;
	talk_open(&t, 1000, 1);
	for (uint64_t m = 0; m < t.count; m++)
		t.sizes[m] = 8;
	t.send_depth = t.recv_depth = 1;
	t.send->no_credit = t.recv->no_credit = false;
	t.send->eager_bytes = t.recv->eager_bytes = 262144;
	base = t.pairs[0].pipes[1].written;
	talk_run(&t);
	/* One for each 64 messages, with a size at most. */
	CHECK((t.pairs[0].pipes[1].written - base) / (RECORD_HEADER_BYTES + 8) <= 1000 / 64 + 1);
	CHECK(t.pairs[0].pipes[1].written > base);
	talk_close(&t);
	talk_free(&t);
}

TEST(without_receives_a_sender_stops_at_the_eager_limit)
{
	struct request *request;
	struct talk t;
	uint8_t *data = calloc(1, 100000);

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pairs[0], 5, 1000000);
	talk_comms(&t, &(struct comm_options){ .eager_bytes = 8192 });
	CHECK_EQ(comm_post(t.send, data, 100000, 0, NULL, &request), 0);
	for (int i = 0; i < 1000; i++)
		fake_pair_turn(&t.pairs[0]);
	CHECK(t.pairs[0].pipes[0].written <= 8192);
	CHECK(t.pairs[0].pipes[0].written >= 8192 - 2 * RECORD_OFFSET_ALIGN);
	CHECK(atomic_load(t.pairs[0].lanes[0].lane.awaited));
	comm_close(t.send, false);
	CHECK(t.pairs[0].lanes[0].aborted); /* a request was in flight */
	comm_close(t.recv, false);
	fake_pair_free(&t.pairs[0]);
	free(data);
}

TEST(all_request_slots_can_be_posted_and_tested_in_any_order_once)
{
	struct request *requests[PLUGIN_REQUESTS_MAX], *more;
	struct talk t;
	uint8_t byte[PLUGIN_REQUESTS_MAX];
	int done;

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pairs[0], 6, 1000000);
	talk_comms(&t, &(struct comm_options){ .eager_bytes = 8192 });
	for (unsigned i = 0; i < PLUGIN_REQUESTS_MAX; i++) {
		CHECK_EQ(comm_post(t.recv, &byte[i], 1, 0, NULL, &requests[i]), 0);
		CHECK(requests[i] != NULL);
	}
	CHECK_EQ(comm_post(t.recv, byte, 1, 0, NULL, &more), 0);
	CHECK(more == NULL);
	for (unsigned i = 0; i < PLUGIN_REQUESTS_MAX; i++) {
		CHECK_EQ(comm_post(t.send, &byte[0], 1, 0, NULL, &more), 0);
		CHECK(more != NULL);
	}
	for (int i = 0; i < 1000; i++)
		fake_pair_turn(&t.pairs[0]);
	/* Any order will do. */
	for (unsigned i = PLUGIN_REQUESTS_MAX; i-- > 0;) {
		CHECK_EQ(comm_test(requests[i], &done, NULL), 0);
		CHECK_EQ(done, 1);
		CHECK_EQ(comm_test(requests[i], &done, NULL), -EINVAL); /* not twice */
		CHECK_EQ(done, 0);
	}
	talk_close(&t);
	fake_pair_free(&t.pairs[0]);
}

/* A request next to the memory continues, one that overlaps it ends the comm without a WARN, and no byte moves any more. */
static void cancel_unregistered(unsigned lanes, bool sender)
{
	static uint8_t memory[131072], theirs[65536];
	uint8_t *data = memory + 4096;
	unsigned warns = env_warns;
	struct request *request;
	struct comm *comm;
	struct talk t;
	int done = 1;

	talk_open(&t, 1, lanes);
	comm = sender ? t.send : t.recv;
	memset(memory, 7, sizeof(memory));
	CHECK_EQ(comm_post(comm, data, 65536, 0, NULL, &request), 0);
	comm_cancel_memory(comm, memory, memory, 4096);
	comm_cancel_memory(comm, memory, data + 65536, 4096);
	comm_cancel_memory(comm, memory, data + 5000, 0);
	CHECK_EQ(comm->error, 0);
	comm_cancel_memory(comm, memory, sender ? data + 65535 : memory, sender ? 100 : 4097);
	CHECK_EQ(comm->error, -ECANCELED);
	CHECK_EQ(comm_test(request, &done, NULL), -ECANCELED);
	CHECK_EQ(done, 0);
	CHECK_EQ(comm_post(comm, data, 1, 0, NULL, &request), -ECANCELED);
	CHECK_EQ(env_warns, warns);
	CHECK_EQ(comm_post(sender ? t.recv : t.send, theirs, 65536, 0, NULL, &request), 0);
	for (int i = 0; i < 1000; i++)
		(void)talk_turn(&t);
	for (size_t i = 0; i < sizeof(memory); i++)
		CHECK(memory[i] == 7);
	talk_close(&t);
	talk_free(&t);
}

/* A request that was posted with a registration ends with that one only, and one without bytes with none. */
static void cancel_registered(unsigned lanes, bool sender)
{
	static uint8_t data[65536];
	static const char one, other, none;
	struct request *request;
	struct comm *comm;
	struct talk t;

	talk_open(&t, 1, lanes);
	comm = sender ? t.send : t.recv;
	CHECK_EQ(comm_post(comm, data, sizeof(data), 0, &one, &request), 0);
	CHECK_EQ(comm_post(comm, data + 100, 0, 0, &none, &request), 0);
	CHECK_EQ(comm_post(comm, data + 100, 0, 0, NULL, &request), 0);
	comm_cancel_memory(comm, &other, data, sizeof(data));
	comm_cancel_memory(comm, &none, data, 4096);
	CHECK_EQ(comm->error, 0);
	comm_cancel_memory(comm, &one, data, sizeof(data));
	CHECK_EQ(comm->error, -ECANCELED);
	talk_close(&t);
	talk_free(&t);
}

TEST(memory_that_is_taken_back_ends_the_requests_in_it)
{
	for (unsigned lanes = 1; lanes < 4; lanes++)
		for (unsigned side = 0; side < 2; side++) {
			cancel_unregistered(lanes, side);
			cancel_registered(lanes, side);
		}
}

TEST(a_message_longer_than_its_receive_is_an_error_of_both_sides)
{
	struct request *send, *recv;
	struct talk t;
	uint8_t data[64] = { 0 }, room[64];
	int done;

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pairs[0], 7, 1000);
	talk_comms(&t, &(struct comm_options){ .eager_bytes = 8192 });
	memset(room, 0xee, sizeof(room));
	env_warns = 0;
	CHECK_EQ(comm_post(t.recv, room, 10, 0, NULL, &recv), 0);
	CHECK_EQ(comm_post(t.send, data, 11, 0, NULL, &send), 0);
	for (int i = 0; i < 1000; i++)
		fake_pair_turn(&t.pairs[0]);
	CHECK_EQ(comm_test(recv, &done, NULL), -EMSGSIZE);
	CHECK_EQ(done, 0);
	CHECK_EQ(env_warns, 1);
	CHECK(strstr(env_warn, "truncated") != NULL);
	CHECK(room[0] == 0xee);
	/* Sticky; and the sender hears of it. */
	CHECK_EQ(comm_test(recv, &done, NULL), -EMSGSIZE);
	CHECK_EQ(comm_post(t.recv, room, 10, 0, NULL, &recv), -EMSGSIZE);
	CHECK_EQ(env_warns, 1);
	(void)comm_post(t.send, data, 11, 0, NULL, &send);
	for (int i = 0; i < 100; i++)
		fake_pair_turn(&t.pairs[0]);
	CHECK_EQ(comm_post(t.send, data, 11, 0, NULL, &send), -EMSGSIZE);
	CHECK(strstr(env_warn, "truncated") != NULL);
	talk_close(&t);
	fake_pair_free(&t.pairs[0]);
}

TEST(messages_that_arrived_before_the_peer_died_are_received_and_the_next_is_an_error)
{
	struct request *send, *recv[2];
	struct talk t;
	uint8_t data[64] = { 1, 2, 3 }, room[64];
	size_t size;
	int done;

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pairs[0], 8, 1000);
	talk_comms(&t, &(struct comm_options){ .eager_bytes = 8192 });
	env_warns = 0;
	CHECK_EQ(comm_post(t.send, data, 64, 0, NULL, &send), 0);
	for (int i = 0; i < 1000; i++)
		fake_pair_turn(&t.pairs[0]);
	fake_reset(&t.pairs[0].lanes[1]);
	for (int i = 0; i < 10; i++)
		fake_pair_turn(&t.pairs[0]);
	CHECK_EQ(env_warns, 0); /* no request is outstanding */
	CHECK_EQ(comm_post(t.recv, room, 64, 0, NULL, &recv[0]), 0);
	CHECK_EQ(comm_post(t.recv, room, 64, 0, NULL, &recv[1]), 0);
	for (int i = 0; i < 10; i++)
		fake_pair_turn(&t.pairs[0]);
	CHECK_EQ(comm_test(recv[0], &done, &size), 0);
	CHECK_EQ(done, 1);
	CHECK_EQ(size, 64);
	CHECK_MEM(room, data, 64);
	CHECK_EQ(comm_test(recv[1], &done, &size), -ECONNRESET);
	CHECK_EQ(done, 0);
	CHECK_EQ(env_warns, 1);
	talk_close(&t);
	fake_pair_free(&t.pairs[0]);
}

/* ---- threads: one poller, as an engine's, a thread for each end and a background --------------- */

enum { THREAD_MESSAGES = 2000 };

struct threads {
	struct talk t;
	atomic_bool stop;
};

static void *thread_background(void *arg)
{
	struct threads *all = arg;

	while (!atomic_load(&all->stop)) {
		poller_run(&all->t.pairs[0].poller, clock_now_ns());
		sched_yield();
	}
	return NULL;
}

static void *thread_receiver(void *arg)
{
	struct talk *t = &((struct threads *)arg)->t;
	struct request *request;
	unsigned wrong = 0;

	for (uint64_t m = 0; m < THREAD_MESSAGES && !check_failures; m++) {
		uint8_t *data = t->rx[0];
		size_t size = 0;
		int done = 0;

		CHECK_EQ(comm_post(t->recv, data, t->sizes[m] + 8, 0, NULL, &request), 0);
		while (!done && !check_failures) {
			CHECK_EQ(comm_test(request, &done, &size), 0);
			if (!done)
				sched_yield();
		}
		CHECK_EQ(size, t->sizes[m]);
		for (size_t i = 0; i < size; i++)
			wrong += data[i] != talk_pattern(m, i);
		CHECK_EQ(wrong, 0);
	}
	return NULL;
}

TEST(each_end_is_used_by_a_thread_while_another_one_polls)
{
	static struct threads all;
	pthread_t background, sender, receiver;

	talk_seed = 3;
	talk_open(&all.t, THREAD_MESSAGES, 1);
	for (uint64_t m = 0; m < THREAD_MESSAGES; m++)
		all.t.sizes[m] %= 40000;
	pthread_create(&background, NULL, thread_background, &all);
	pthread_create(&sender, NULL, talk_sender, &all.t);
	pthread_create(&receiver, NULL, thread_receiver, &all);
	pthread_join(sender, NULL);
	pthread_join(receiver, NULL);
	atomic_store(&all.stop, true);
	pthread_join(background, NULL);
	talk_close(&all.t);
	talk_free(&all.t);
}

/* ---- hostile records ------------------------------------------------------------------------------------ */

/* A record and eight bytes behind it: the comm ends with this result, and with a warning that contains the word. */
static void fed(enum comm_side side, const struct record *record, int result, const char *word)
{
	struct comm_options opt = { .side = side, .eager_bytes = 8192 };
	uint8_t header[RECORD_HEADER_BYTES], room[16384] = { 0 };
	struct request *request;
	struct fake_pair pair;
	struct comm *comm;
	int done, rc = 0;

	fake_pair_init(&pair, 9, 4096);
	CHECK_EQ(comm_create(&comm, &pair.lanes[0].lane, &opt), 0);
	env_warns = 0;
	CHECK_EQ(comm_post(comm, room, sizeof(room), 0, NULL, &request), 0);
	record_encode(header, record);
	CHECK_EQ(fake_inject(&pair.lanes[0], header, sizeof(header)), sizeof(header));
	fake_inject(&pair.lanes[0], room, 8);
	for (int i = 0; i < 200 && !rc; i++) {
		fake_pair_turn(&pair);
		rc = comm_test(request, &done, NULL);
	}
	CHECK_EQ(rc, result);
	CHECK_EQ(env_warns, 1);
	if (!strstr(env_warn, word)) {
		fprintf(stderr, "\"%s\" does not contain \"%s\"\n", env_warn, word);
		check_failed();
	}

	comm_close(comm, false);
	fake_pair_free(&pair);
}

TEST(an_impossible_record_is_a_protocol_error)
{
	static const struct {
		enum comm_side side;
		struct record record;
		const char *word;
	} rows[] = {
		{ COMM_RECV, { .type = 0 }, "unknown type" },
		{ COMM_RECV, { .type = 5 }, "unknown type" },
		{ COMM_RECV, { RECORD_DATA, .length = 64, .total = 63 }, "ends behind" },
		{ COMM_RECV,
		  { RECORD_DATA, .length = UINT32_MAX, .total = RECORD_TOTAL_MAX },
		  "impossible length" },
		{ COMM_RECV, { RECORD_DATA, .total = UINT64_MAX }, "size" },
		{ COMM_RECV,
		  { RECORD_DATA, .length = 8, .total = 128, .offset = UINT64_MAX - 63 },
		  "ends behind" },
		{ COMM_RECV,
		  { RECORD_DATA, .length = 8, .total = 128, .offset = 8 },
		  "unaligned offset" },
		{ COMM_RECV, { RECORD_DATA, .length = 8, .total = 128 }, "unaligned length" },
		{ COMM_RECV, { RECORD_DATA, .total = 128 }, "empty" },
		{ COMM_RECV,
		  { RECORD_DATA, .length = 64, .total = 128, .offset = 64 },
		  "out of order" },
		{ COMM_RECV,
		  { RECORD_DATA, .message = 1, .length = 64, .total = 64 },
		  "out of order" },
		{ COMM_RECV, { RECORD_CREDIT, .length = 8, .total = 1 }, "only a receiver" },
		{ COMM_RECV, { RECORD_CLOSE, .length = 8 }, "payload" },
		{ COMM_SEND, { RECORD_DATA, .length = 64, .total = 64 }, "only a sender" },
		{ COMM_SEND, { RECORD_ACK, .message = 0 }, "a comm of one lane" },
		{ COMM_SEND, { RECORD_CREDIT, .length = 12, .total = 1 }, "impossible length" },
		{ COMM_SEND, { RECORD_CREDIT, .total = 0 }, "out of order" },
		{ COMM_SEND, { RECORD_CREDIT, .message = 9, .total = 9 }, "out of order" },
		{ COMM_SEND, { RECORD_CREDIT, .length = 8, .total = 7 }, "disagree" },
		{ COMM_SEND,
		  { RECORD_CREDIT, .length = 8, .message = UINT64_MAX, .total = 0 },
		  "disagree" },
		{ COMM_SEND,
		  { RECORD_CREDIT, .length = 8 * 65, .total = 65 },
		  "impossible length" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		fed(rows[i].side, &rows[i].record, -EPROTO, rows[i].word);
}

TEST(the_reason_in_the_peers_close_is_the_result_and_is_logged)
{
	static const struct {
		uint32_t reason;
		int result;
		const char *word;
	} cases[] = {
		{ CLOSE_ORDERLY, -ECONNRESET, "the peer closed the connection" },
		{ CLOSE_TRUNCATED, -EMSGSIZE, "a receive smaller than the message" },
		{ CLOSE_PROTOCOL, -EPROTO, "the peer saw a protocol error" },
		{ CLOSE_ABORTED, -ECONNRESET, "the peer aborted" },
		{ CLOSE_LOCAL, -ECONNRESET, "the peer had an error of its own" },
		{ UINT32_MAX, -ECONNRESET, "for an unknown reason" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		for (int side = 0; side < 2; side++)
			fed(side ? COMM_RECV : COMM_SEND,
			    &(struct record){ .type = RECORD_CLOSE, .tag = cases[i].reason },
			    cases[i].result, cases[i].word);
}

/* Never a crash (ASan, UBSan). */
TEST(random_and_damaged_records_are_survived)
{
	for (uint64_t i = 0; i < 5 * SEEDS && !check_failures; i++) {
		struct comm_options opt = { .side = i & 1 ? COMM_SEND : COMM_RECV,
					    .eager_bytes = 8192 };
		struct request *requests[4];
		struct fake_pair pair;
		struct comm *comm;
		uint8_t *room = malloc(4096);

		fake_pair_init(&pair, i, 4096);
		CHECK_EQ(comm_create(&comm, &pair.lanes[0].lane, &opt), 0);
		for (int r = 0; r < 4; r++)
			CHECK_EQ(comm_post(comm, room, 1000, 0, NULL, &requests[r]), 0);
		for (int turn = 0; turn < 40; turn++) {
			struct record record = {
				.type = (uint8_t)(rng_below(&pair.rng, 6)),
				.length = rng_below(&pair.rng, 3) ? 8 * rng_below(&pair.rng, 16)
								  : (uint32_t)rng_u64(&pair.rng),
				.message = rng_below(&pair.rng, 4),
				.total = rng_below(&pair.rng, 1100),
			};
			uint8_t bytes[RECORD_HEADER_BYTES + 128];

			memset(bytes, (int)turn, sizeof(bytes));
			record_encode(bytes, &record);
			if (!rng_below(&pair.rng, 4))
				bytes[rng_below(&pair.rng, sizeof(bytes))] ^=
					(uint8_t)(1u << rng_below(&pair.rng, 8));
			fake_inject(&pair.lanes[0], bytes, 1 + rng_below(&pair.rng, sizeof(bytes)));
			fake_pair_turn(&pair);
		}
		comm_close(comm, false);
		fake_pair_free(&pair);
		free(room);
	}
}
