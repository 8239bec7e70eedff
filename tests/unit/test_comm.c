/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm.c - two comms over joined fake lanes: thousands of random conversations, then liars. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "check.h"
#include "comm.h"
#include "double_env.h"
#include "fake_lane.h"

#define DEPTH_MAX PLUGIN_REQUESTS_MAX
#define TURNS_IDLE_MAX 64 /* nothing owed and nothing done for so long: a deadlock */

static uint64_t seed; /* of the present conversation, for messages */

struct talk {
	struct fake_pair pair;
	struct comm *send, *recv;
	uint64_t count;
	size_t *sizes; /* of each message */
	unsigned send_depth, recv_depth;
	struct request *sends[DEPTH_MAX], *recvs[DEPTH_MAX];
	uint8_t *tx[DEPTH_MAX], *rx[DEPTH_MAX];
	uint64_t sent, send_done, posted, received;
};

static uint8_t pattern(uint64_t message, size_t i)
{
	return (uint8_t)(seed + message * 131 + i * 7 + (i >> 8) * 3);
}

static void comms_open(struct talk *t, uint32_t eager_bytes, bool no_credit)
{
	struct comm_options opt = { .eager_bytes = eager_bytes, .no_credit = no_credit };

	opt.side = COMM_SEND;
	CHECK_EQ(comm_create(&t->send, &t->pair.lanes[0].lane, &opt), 0);
	opt.side = COMM_RECV;
	CHECK_EQ(comm_create(&t->recv, &t->pair.lanes[1].lane, &opt), 0);
}

static size_t size_any(struct rng *rng)
{
	switch (rng_below(rng, 8)) {
	case 0:
		return 0;
	case 1:
	case 2:
		return 1 + rng_below(rng, 64);
	case 3:
	case 4:
		return rng_below(rng, 5000);
	case 5:
		return 32760 + rng_below(rng, 16);
	case 6:
		return rng_below(rng, 100000);
	default:
		return rng_below(rng, 16) ? 8 : rng_below(rng, 700000);
	}
}

static void talk_open(struct talk *t, uint64_t count)
{
	static const uint32_t eager[] = { 4096, 5000, 16384, 262144 };
	struct rng *rng = &t->pair.rng;
	size_t largest = 0;
	size_t capacity;
	bool small;

	memset(t, 0, sizeof(*t));
	/* A unit of 8 bytes must fit, or nothing could ever be placed. */
	rng_seed(rng, seed);
	capacity = rng_below(rng, 3) ? 2000 + rng_below(rng, 200000) : 8 + rng_below(rng, 300);
	small = capacity < 308;
	fake_pair_init(&t->pair, seed * 7919 + 1, capacity);
	t->count = count;
	t->sizes = calloc(count, sizeof(*t->sizes));
	for (uint64_t m = 0; m < count; m++) {
		t->sizes[m] = size_any(rng);
		if (small)
			t->sizes[m] %= 6000;
		if (t->sizes[m] > largest)
			largest = t->sizes[m];
	}
	t->send_depth = 1 + rng_below(rng, DEPTH_MAX);
	t->recv_depth = 1 + rng_below(rng, DEPTH_MAX);
	for (unsigned i = 0; i < DEPTH_MAX; i++) {
		t->tx[i] = malloc(largest + 1);
		t->rx[i] = malloc(largest + 16);
	}
	comms_open(t, eager[rng_below(rng, 4)], rng_below(rng, 4) == 0);
}

static void talk_free(struct talk *t)
{
	for (unsigned i = 0; i < DEPTH_MAX; i++) {
		free(t->tx[i]);
		free(t->rx[i]);
	}
	free(t->sizes);
	fake_pair_free(&t->pair);
}

static void talk_send(struct talk *t)
{
	struct request *request;
	uint8_t *data = t->tx[t->sent % DEPTH_MAX];
	size_t size;

	if (t->sent == t->count || t->sent - t->send_done == t->send_depth)
		return;
	size = t->sizes[t->sent];
	for (size_t i = 0; i < size; i++)
		data[i] = pattern(t->sent, i);
	CHECK_EQ(comm_post(t->send, size ? data : NULL, size, 7, &request), 0);
	CHECK(request != NULL);
	t->sends[t->sent++ % DEPTH_MAX] = request;
}

static void talk_post(struct talk *t)
{
	struct request *request;
	size_t size;

	if (t->posted == t->count || t->posted - t->received == t->recv_depth)
		return;
	/* Often larger than the message, as NCCL's. */
	size = t->sizes[t->posted] + (rng_below(&t->pair.rng, 2) ? 15 : 0);
	memset(t->rx[t->posted % DEPTH_MAX], 0xee, size);
	CHECK_EQ(comm_post(t->recv, t->rx[t->posted % DEPTH_MAX], size, 7, &request), 0);
	CHECK(request != NULL);
	t->recvs[t->posted++ % DEPTH_MAX] = request;
}

static bool talk_test_send(struct talk *t)
{
	int done = 2;

	if (t->send_done == t->sent)
		return false;
	CHECK_EQ(comm_test(t->sends[t->send_done % DEPTH_MAX], &done, NULL), 0);
	if (done != 1)
		return false;
	/* Done means that the memory is the application's again. */
	memset(t->tx[t->send_done % DEPTH_MAX], 0xdd, t->sizes[t->send_done]);
	t->send_done++;
	return true;
}

static bool talk_test_recv(struct talk *t)
{
	const uint8_t *data = t->rx[t->received % DEPTH_MAX];
	size_t size = 99, wrong = 0;
	int done = 2;

	if (t->received == t->posted)
		return false;
	CHECK_EQ(comm_test(t->recvs[t->received % DEPTH_MAX], &done, &size), 0);
	if (done != 1)
		return false;
	CHECK_EQ(size, t->sizes[t->received]);
	for (size_t i = 0; i < size; i++)
		wrong += data[i] != pattern(t->received, i);
	CHECK_EQ(wrong, 0);
	t->received++;
	return true;
}

/* A conversation in a random order of steps, until all is done on both sides. */
static void talk_run(struct talk *t)
{
	struct rng *rng = &t->pair.rng;
	unsigned idle = 0;
	/* Phases in which one side sleeps, so that queues run full and empty. */
	unsigned bias = 0;

	while ((t->received < t->count || t->send_done < t->count) && !check_failures) {
		uint64_t before = t->sent + t->send_done + t->posted + t->received;
		bool owed;

		if (!rng_below(rng, 200))
			bias = rng_below(rng, 3);
		if (bias != 1 && rng_below(rng, 2))
			talk_send(t);
		if (bias != 2 && rng_below(rng, 2))
			talk_post(t);
		if (bias != 1)
			talk_test_send(t);
		if (bias != 2)
			talk_test_recv(t);
		owed = fake_pair_turn(&t->pair);
		if (owed || before != t->sent + t->send_done + t->posted + t->received)
			idle = 0;
		else if (++idle > TURNS_IDLE_MAX && bias)
			bias = idle = 0;
		if (idle > TURNS_IDLE_MAX) {
			fprintf(stderr,
				"seed %" PRIu64 ": deadlock: sent %" PRIu64 "/%" PRIu64
				" posted %" PRIu64 "/%" PRIu64 " of %" PRIu64 "\n",
				seed, t->send_done, t->sent, t->received, t->posted, t->count);
			check_failures++;
		}
	}
}

static void test_conversations(uint64_t seeds)
{
	for (uint64_t i = 0; i < seeds && !check_failures; i++) {
		struct talk t;

		seed = i;
		talk_open(&t, 120);
		talk_run(&t);
		CHECK(t.pair.lanes[0].watches > 0);
		comm_close(t.send, false);
		comm_close(t.recv, false);
		CHECK(!t.pair.lanes[0].aborted);
		CHECK(t.pair.lanes[0].closed && t.pair.lanes[1].closed);
		talk_free(&t);
		if (check_failures)
			fprintf(stderr, "seed %" PRIu64 "\n", seed);
	}
	CHECK_EQ(env_warns, 0);
}

/* A ping-pong of small messages costs no CREDIT packet each. */
static void test_small_messages_go_without_credit(void)
{
	struct talk t;
	uint64_t base;

	seed = 1;
	talk_open(&t, 1000);
	for (uint64_t m = 0; m < t.count; m++)
		t.sizes[m] = 8;
	t.send_depth = t.recv_depth = 1;
	t.send->no_credit = t.recv->no_credit = false;
	t.send->eager_bytes = t.recv->eager_bytes = 262144;
	base = t.pair.pipes[1].written;
	talk_run(&t);
	/* One for each 64 messages, with a size at most. */
	CHECK((t.pair.pipes[1].written - base) / (RECORD_HEADER_BYTES + 8) <= 1000 / 64 + 1);
	CHECK(t.pair.pipes[1].written > base);
	comm_close(t.send, false);
	comm_close(t.recv, false);
	talk_free(&t);
}

/* Without receives a sender stops at the eager limit; its bytes wait in the lane. */
static void test_eager_is_bounded(void)
{
	struct request *request;
	struct talk t;
	uint8_t *data = calloc(1, 100000);

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pair, 5, 1000000);
	comms_open(&t, 8192, false);
	CHECK_EQ(comm_post(t.send, data, 100000, 0, &request), 0);
	for (int i = 0; i < 1000; i++)
		fake_pair_turn(&t.pair);
	CHECK(t.pair.pipes[0].written <= 8192);
	CHECK(t.pair.pipes[0].written >= 8192 - 2 * RECORD_OFFSET_ALIGN);
	CHECK(t.pair.lanes[0].watching);
	comm_close(t.send, false);
	CHECK(t.pair.lanes[0].aborted); /* a request was in flight */
	comm_close(t.recv, false);
	fake_pair_free(&t.pair);
	free(data);
}

static void test_request_slots(void)
{
	struct request *requests[PLUGIN_REQUESTS_MAX], *more;
	struct talk t;
	uint8_t byte[PLUGIN_REQUESTS_MAX];
	int done;

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pair, 6, 1000000);
	comms_open(&t, 8192, false);
	for (unsigned i = 0; i < PLUGIN_REQUESTS_MAX; i++) {
		CHECK_EQ(comm_post(t.recv, &byte[i], 1, 0, &requests[i]), 0);
		CHECK(requests[i] != NULL);
	}
	CHECK_EQ(comm_post(t.recv, byte, 1, 0, &more), 0);
	CHECK(more == NULL);
	for (unsigned i = 0; i < PLUGIN_REQUESTS_MAX; i++) {
		CHECK_EQ(comm_post(t.send, &byte[0], 1, 0, &more), 0);
		CHECK(more != NULL);
	}
	for (int i = 0; i < 1000; i++)
		fake_pair_turn(&t.pair);
	/* Any order will do. */
	for (unsigned i = PLUGIN_REQUESTS_MAX; i-- > 0;) {
		CHECK_EQ(comm_test(requests[i], &done, NULL), 0);
		CHECK_EQ(done, 1);
		CHECK_EQ(comm_test(requests[i], &done, NULL), -EINVAL); /* not twice */
		CHECK_EQ(done, 0);
	}
	comm_close(t.send, false);
	comm_close(t.recv, false);
	fake_pair_free(&t.pair);
}

static void test_truncation(void)
{
	struct request *send, *recv;
	struct talk t;
	uint8_t data[64] = { 0 }, room[64];
	int done;

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pair, 7, 1000);
	comms_open(&t, 8192, false);
	memset(room, 0xee, sizeof(room));
	env_warns = 0;
	CHECK_EQ(comm_post(t.recv, room, 10, 0, &recv), 0);
	CHECK_EQ(comm_post(t.send, data, 11, 0, &send), 0);
	for (int i = 0; i < 1000; i++)
		fake_pair_turn(&t.pair);
	CHECK_EQ(comm_test(recv, &done, NULL), -EMSGSIZE);
	CHECK_EQ(done, 0);
	CHECK_EQ(env_warns, 1);
	CHECK(strstr(env_warn, "truncated") != NULL);
	CHECK(room[0] == 0xee);
	/* Sticky; and the sender hears of it. */
	CHECK_EQ(comm_test(recv, &done, NULL), -EMSGSIZE);
	CHECK_EQ(comm_post(t.recv, room, 10, 0, &recv), -EMSGSIZE);
	CHECK_EQ(env_warns, 1);
	(void)comm_post(t.send, data, 11, 0, &send);
	for (int i = 0; i < 100; i++)
		fake_pair_turn(&t.pair);
	CHECK_EQ(comm_post(t.send, data, 11, 0, &send), -EMSGSIZE);
	CHECK(strstr(env_warn, "truncated") != NULL);
	comm_close(t.send, false);
	comm_close(t.recv, false);
	fake_pair_free(&t.pair);
}

/* A peer that dies after all its bytes arrived: they count; what is missing is an error. */
static void test_death(void)
{
	struct request *send, *recv[2];
	struct talk t;
	uint8_t data[64] = { 1, 2, 3 }, room[64];
	size_t size;
	int done;

	memset(&t, 0, sizeof(t));
	fake_pair_init(&t.pair, 8, 1000);
	comms_open(&t, 8192, false);
	env_warns = 0;
	CHECK_EQ(comm_post(t.send, data, 64, 0, &send), 0);
	for (int i = 0; i < 1000; i++)
		fake_pair_turn(&t.pair);
	fake_reset(&t.pair.lanes[1]);
	for (int i = 0; i < 10; i++)
		fake_pair_turn(&t.pair);
	CHECK_EQ(env_warns, 0); /* nobody wanted anything */
	CHECK_EQ(comm_post(t.recv, room, 64, 0, &recv[0]), 0);
	CHECK_EQ(comm_post(t.recv, room, 64, 0, &recv[1]), 0);
	for (int i = 0; i < 10; i++)
		fake_pair_turn(&t.pair);
	CHECK_EQ(comm_test(recv[0], &done, &size), 0);
	CHECK_EQ(done, 1);
	CHECK_EQ(size, 64);
	CHECK_MEM(room, data, 64);
	CHECK_EQ(comm_test(recv[1], &done, &size), -ECONNRESET);
	CHECK_EQ(done, 0);
	CHECK_EQ(env_warns, 1);
	comm_close(t.send, false);
	comm_close(t.recv, false);
	fake_pair_free(&t.pair);
}

/* ---- threads: one driver, as an engine's, a thread for each end and a guardian --------------- */

enum { THREAD_MESSAGES = 2000 };

struct threads {
	struct talk t;
	atomic_bool stop;
};

static void *thread_guardian(void *arg)
{
	struct threads *all = arg;

	while (!atomic_load(&all->stop)) {
		driver_turn(&all->t.pair.driver, driver_clock_ns());
		sched_yield();
	}
	return NULL;
}

static void *thread_sender(void *arg)
{
	struct talk *t = &((struct threads *)arg)->t;

	while (t->send_done < THREAD_MESSAGES && !check_failures) {
		talk_send(t);
		if (!talk_test_send(t))
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

		CHECK_EQ(comm_post(t->recv, data, t->sizes[m] + 8, 0, &request), 0);
		while (!done && !check_failures) {
			CHECK_EQ(comm_test(request, &done, &size), 0);
			if (!done)
				sched_yield();
		}
		CHECK_EQ(size, t->sizes[m]);
		for (size_t i = 0; i < size; i++)
			wrong += data[i] != pattern(m, i);
		CHECK_EQ(wrong, 0);
	}
	return NULL;
}

static void test_threads(void)
{
	static struct threads all;
	pthread_t guardian, sender, receiver;

	seed = 3;
	talk_open(&all.t, THREAD_MESSAGES);
	for (uint64_t m = 0; m < THREAD_MESSAGES; m++)
		all.t.sizes[m] %= 40000;
	pthread_create(&guardian, NULL, thread_guardian, &all);
	pthread_create(&sender, NULL, thread_sender, &all);
	pthread_create(&receiver, NULL, thread_receiver, &all);
	pthread_join(sender, NULL);
	pthread_join(receiver, NULL);
	atomic_store(&all.stop, true);
	pthread_join(guardian, NULL);
	comm_close(all.t.send, false);
	comm_close(all.t.recv, false);
	talk_free(&all.t);
}

/* ---- liars ------------------------------------------------------------------------------------ */

static void lie(enum comm_side side, const struct record *record, const char *word)
{
	struct comm_options opt = { .side = side, .eager_bytes = 8192 };
	uint8_t header[RECORD_HEADER_BYTES], room[128] = { 0 };
	struct request *request;
	struct fake_pair pair;
	struct comm *comm;
	int done, rc = 0;

	fake_pair_init(&pair, 9, 4096);
	CHECK_EQ(comm_create(&comm, &pair.lanes[0].lane, &opt), 0);
	env_warns = 0;
	CHECK_EQ(comm_post(comm, room, 128, 0, &request), 0);
	record_encode(header, record);
	CHECK_EQ(fake_inject(&pair.lanes[0], header, sizeof(header)), sizeof(header));
	fake_inject(&pair.lanes[0], room, 8);
	for (int i = 0; i < 200 && !rc; i++) {
		fake_pair_turn(&pair);
		rc = comm_test(request, &done, NULL);
	}
	CHECK_EQ(rc, -EPROTO);
	CHECK_EQ(env_warns, 1);
	if (!strstr(env_warn, word)) {
		fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", env_warn, word);
		check_failures++;
	}

	comm_close(comm, false);
	fake_pair_free(&pair);
}

static void test_liars(void)
{
	lie(COMM_RECV, &(struct record){ .type = 0 }, "unknown type");
	lie(COMM_RECV, &(struct record){ .type = 5 }, "unknown type");
	lie(COMM_RECV, &(struct record){ .type = RECORD_DATA, .length = 64, .total = 63 },
	    "ends behind");
	lie(COMM_RECV,
	    &(struct record){
		    .type = RECORD_DATA, .length = UINT32_MAX, .total = RECORD_TOTAL_MAX },
	    "impossible length");
	lie(COMM_RECV, &(struct record){ .type = RECORD_DATA, .total = UINT64_MAX }, "size");
	lie(COMM_RECV,
	    &(struct record){
		    .type = RECORD_DATA, .length = 8, .total = 128, .offset = UINT64_MAX - 63 },
	    "ends behind");
	lie(COMM_RECV,
	    &(struct record){ .type = RECORD_DATA, .length = 8, .total = 128, .offset = 8 },
	    "unaligned offset");
	lie(COMM_RECV, &(struct record){ .type = RECORD_DATA, .length = 8, .total = 128 },
	    "unaligned length");
	lie(COMM_RECV, &(struct record){ .type = RECORD_DATA, .total = 128 }, "empty");
	lie(COMM_RECV,
	    &(struct record){ .type = RECORD_DATA, .length = 64, .total = 128, .offset = 64 },
	    "out of order");
	lie(COMM_RECV,
	    &(struct record){ .type = RECORD_DATA, .message = 1, .length = 64, .total = 64 },
	    "out of order");
	lie(COMM_RECV, &(struct record){ .type = RECORD_CREDIT, .length = 8, .total = 1 },
	    "only a receiver");
	lie(COMM_RECV, &(struct record){ .type = RECORD_CLOSE, .length = 8 }, "payload");
	lie(COMM_SEND, &(struct record){ .type = RECORD_DATA, .length = 64, .total = 64 },
	    "only a sender");
	lie(COMM_SEND, &(struct record){ .type = RECORD_CREDIT, .length = 12, .total = 1 },
	    "impossible length");
	lie(COMM_SEND, &(struct record){ .type = RECORD_CREDIT, .length = 0, .total = 0 },
	    "out of order");
	lie(COMM_SEND, &(struct record){ .type = RECORD_CREDIT, .message = 9, .total = 9 },
	    "out of order");
	lie(COMM_SEND, &(struct record){ .type = RECORD_CREDIT, .length = 8, .total = 7 },
	    "disagree");
	lie(COMM_SEND,
	    &(struct record){
		    .type = RECORD_CREDIT, .length = 8, .message = UINT64_MAX, .total = 0 },
	    "disagree");
	lie(COMM_SEND, &(struct record){ .type = RECORD_CREDIT, .length = 8 * 65, .total = 65 },
	    "impossible length");
}

/* Noise and half-truths: never a crash (ASan, UBSan), never done without its bytes. */
static void test_noise(uint64_t seeds)
{
	for (uint64_t i = 0; i < seeds && !check_failures; i++) {
		struct comm_options opt = { .side = i & 1 ? COMM_SEND : COMM_RECV,
					    .eager_bytes = 8192 };
		struct request *requests[4];
		struct fake_pair pair;
		struct comm *comm;
		uint8_t *room = malloc(4096);

		fake_pair_init(&pair, i, 4096);
		CHECK_EQ(comm_create(&comm, &pair.lanes[0].lane, &opt), 0);
		for (int r = 0; r < 4; r++)
			CHECK_EQ(comm_post(comm, room, 1000, 0, &requests[r]), 0);
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

int main(int argc, char **argv)
{
	uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 0) : 400;

	test_conversations(seeds);
	test_small_messages_go_without_credit();
	test_eager_is_bounded();
	test_request_slots();
	test_truncation();
	test_death();
	test_threads();
	test_liars();
	test_noise(seeds * 5);
	return check_done();
}
