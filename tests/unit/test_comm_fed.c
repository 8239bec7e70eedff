/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_fed.c - records that the test writes itself, over several lanes: out of order, twice, by halves, at a bad
 * moment, and those that a peer must not send. */
#include <sys/mman.h>

#include "comm/comm_impl.h"
#include "comm_rig.h"

/* A message that nobody asked for stands before one that is wanted: neither is lost. */
static void test_early(void)
{
	uint8_t first[128] = { 0 }, second[1000] = { 0 };
	struct request *one, *two;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	one = rig_post(t.recv, first, sizeof(first));
	rig_feed(&t.pairs[0].lanes[1], 1, 1000, 64, 936, 2); /* message 1, which has no receive */
	rig_feed(&t.pairs[0].lanes[1], 0, 128, 0, 64, 1);    /* behind it */
	rig_feed(&t.pairs[1].lanes[1], 0, 128, 64, 64, 1);
	CHECK_EQ(rig_wait(&t, one, NULL), 0);
	CHECK(rig_fed(first, 128, 1));
	two = rig_post(t.recv, second, sizeof(second));
	rig_feed(&t.pairs[1].lanes[1], 1, 1000, 0, 64, 2);
	CHECK_EQ(rig_wait(&t, two, NULL), 0);
	CHECK(rig_fed(second, 1000, 2));
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

/* Two that nobody asked for lie half across each other: they break the comm as others do, when they go to their places. */
static void test_early_overlap(void)
{
	uint8_t first[64], second[128];
	struct request *two;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	(void)rig_post(t.recv, first, sizeof(first));
	rig_feed(&t.pairs[1].lanes[1], 1, 128, 0, 128, 2);
	rig_turns(&t, 30);
	rig_feed(&t.pairs[0].lanes[1], 1, 128, 64, 64, 2); /* the last to come is the first to go */
	rig_turns(&t, 30);
	two = rig_post(t.recv, second, sizeof(second));
	CHECK_EQ(rig_wait(&t, two, NULL), -EPROTO);
	CHECK_EQ(env_warns, 1);
	CHECK(strstr(env_warn, "overlaps") != NULL);
	rig_free(&t);
}

/* The first of them to go is the whole message: the other one does not touch memory that is the application's again. */
static void test_early_is_here(void)
{
	uint8_t first[64], second[128];
	struct request *one, *two;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	one = rig_post(t.recv, first, sizeof(first));
	rig_feed(&t.pairs[0].lanes[1], 1, 128, 64, 64, 9);
	rig_turns(&t, 30);
	rig_feed(&t.pairs[1].lanes[1], 1, 128, 0, 128, 2);
	rig_turns(&t, 30);
	rig_feed(&t.pairs[0].lanes[1], 0, 64, 0, 64, 1);
	CHECK_EQ(rig_wait(&t, one, NULL), 0);
	two = rig_post(t.recv, second, sizeof(second));
	CHECK_EQ(rig_wait(&t, two, NULL), 0);
	rig_turns(&t, 30);
	CHECK(rig_fed(second, sizeof(second), 2));
	one = rig_post(t.recv, first, sizeof(first));
	rig_feed(&t.pairs[1].lanes[1], 2, 64, 0, 64, 3);
	CHECK_EQ(rig_wait(&t, one, NULL), 0);
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

/* All that may come unasked has begun to come when its lane dies. Another brings the same again: it has room, whether or not
 * it is asked for by then. */
static void early_again(bool asked)
{
	uint8_t first[64], second[8192 - RECORD_HEADER_BYTES];
	struct request *one, *two = NULL;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	one = rig_post(t.recv, first, sizeof(first));
	rig_feed(&t.pairs[0].lanes[1], 1, sizeof(second), 0, sizeof(second), 2);
	t.pairs[0].lanes[1].in->count -= 1000; /* the rest is still on its way */
	rig_turns(&t, 30);
	CHECK(t.recv->several->early != NULL);
	fake_break(&t.pairs[0]);
	rig_turns(&t, 30);
	if (asked)
		two = rig_post(t.recv, second, sizeof(second));
	rig_feed(&t.pairs[1].lanes[1], 1, sizeof(second), 0, sizeof(second), 2);
	rig_feed(&t.pairs[1].lanes[1], 0, 64, 0, 64, 1);
	CHECK_EQ(rig_wait(&t, one, NULL), 0);
	if (!asked)
		two = rig_post(t.recv, second, sizeof(second));
	CHECK_EQ(rig_wait(&t, two, NULL), 0);
	CHECK(rig_fed(second, sizeof(second), 2));
	CHECK(!t.recv->several->early);
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

static void test_early_again(void)
{
	early_again(false);
	early_again(true);
}

/* As many chunks that nobody asked for as no sender has under way break the comm, however small: each is looked for among the others. */
static void test_early_crowd(void)
{
	uint8_t first[64];
	struct request *request;
	struct talk t;

	rig_open_fed(&t, 1, 16777216);
	request = rig_post(t.recv, first, sizeof(first));
	for (unsigned i = 0; i < COMM_EARLY_MAX; i++) {
		rig_feed(&t.pairs[0].lanes[1], 1, 1 << 20, i * 64, 64, 2);
		while (t.pairs[0].lanes[1].in->count > 50000)
			rig_turns(&t, 1);
	}
	rig_turns(&t, 100);
	CHECK_EQ(t.pairs[0].lanes[1].in->count, 0);
	CHECK_EQ(env_warns, 0);
	rig_feed(&t.pairs[0].lanes[1], 1, 1 << 20, COMM_EARLY_MAX * 64, 64, 2);
	CHECK_EQ(rig_wait(&t, request, NULL), -EPROTO);
	CHECK(strstr(env_warn, "credits") != NULL);
	rig_free(&t);
}

/* Nor does anything follow CLOSE on the last lane, which stays for the sake of what came early. */
static void test_early_before_close(void)
{
	struct record close = { .type = RECORD_CLOSE, .tag = CLOSE_ORDERLY, .message = 3 };
	uint8_t header[RECORD_HEADER_BYTES], room[64];
	struct request *request;
	struct talk t;

	rig_open_fed(&t, 1, 8192);
	request = rig_post(t.recv, room, sizeof(room));
	rig_feed(&t.pairs[0].lanes[1], 1, 64, 0, 64, 2); /* message 1, which has no receive */
	rig_feed(&t.pairs[0].lanes[1], 0, 64, 0, 64, 1);
	record_encode(header, &close);
	CHECK_EQ(fake_inject(&t.pairs[0].lanes[1], header, sizeof(header)), sizeof(header));
	rig_feed(&t.pairs[0].lanes[1], 2, 64, 0, 64, 3);
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	rig_turns(&t, 30);
	request = rig_post(t.recv, room, sizeof(room));
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	CHECK(rig_fed(room, sizeof(room), 2));
	request = rig_post(t.recv, room, sizeof(room));
	CHECK_EQ(rig_wait(&t, request, NULL), -ECONNRESET);
	rig_free(&t);
}

static struct late {
	struct talk *t;
	uint8_t room[64];
	struct request *request;
} late;

/* Another thread posts a receive just now. */
static ssize_t late_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	(void)lane;
	(void)iov;
	(void)iov_count;
	if (!late.request)
		late.request = rig_post(late.t->recv, late.room, sizeof(late.room));
	return -EPIPE;
}

/* What came early by the last lane is not lost where its receive is posted as the lane ends. */
static void test_early_at_the_end(void)
{
	struct request *request;
	struct lane_ops ops;
	struct talk t;
	uint8_t room[64];

	rig_open_fed(&t, 1, 8192);
	late = (struct late){ .t = &t };
	ops = *t.pairs[0].lanes[1].lane.ops;
	request = rig_post(t.recv, room, sizeof(room));
	rig_turns(&t, 30);
	ops.send = late_send;
	t.pairs[0].lanes[1].lane.ops = &ops;
	rig_feed(&t.pairs[0].lanes[1], 1, 64, 0, 64, 2); /* message 1, which has no receive */
	rig_feed(&t.pairs[0].lanes[1], 0, 64, 0, 64, 1);
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	rig_turns(&t, 30);
	CHECK(late.request != NULL);
	CHECK_EQ(rig_wait(&t, late.request, NULL), 0);
	CHECK(rig_fed(late.room, sizeof(late.room), 2));
	rig_free(&t);
}

/* Half of a message is begun before it is asked for, and the whole of it comes by another lane, again and again: the peer does
 * not fill our memory with halves. */
static void test_early_is_left(void)
{
	uint8_t room[128];
	struct comm_several *s;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	s = t.recv->several;
	for (uint64_t m = 0; m < 20 && !check_failures; m += 2) {
		struct request *request = rig_post(t.recv, room, sizeof(room));

		rig_feed(&t.pairs[0].lanes[1], m + 1, 128, 64, 64, 9);
		t.pairs[0].lanes[1].in->count -= 10;
		rig_turns(&t, 30);
		CHECK(s->early && s->early->message == m + 1 && !s->early->next);
		rig_feed(&t.pairs[1].lanes[1], m, 128, 0, 128, 1);
		CHECK_EQ(rig_wait(&t, request, NULL), 0);
		request = rig_post(t.recv, room, sizeof(room));
		rig_feed(&t.pairs[1].lanes[1], m + 1, 128, 0, 128, 2);
		CHECK_EQ(rig_wait(&t, request, NULL), 0);
		CHECK(rig_fed(room, sizeof(room), 2));
		t.pairs[0].lanes[1].in->count += 10;
		t.pairs[0].lanes[1].event = true;
		rig_turns(&t, 30);
		CHECK(!s->early);
	}
	CHECK_EQ(env_warns, 0);
	rig_free(&t);
}

/* While a lane is at an empty message, which has nothing to lie across, no other brings it as well. */
static void test_empty_is_used(void)
{
	struct comm_several *s;
	struct talk t;

	rig_open_fed(&t, 2, 8192);
	s = t.recv->several;
	comm_lock(t.recv);
	comm_use(s->lanes[0], COMM_USES_EARLY, 5, 0, 0);
	CHECK(comm_is_used(s->lanes[1], 5, 0, 0));
	CHECK(!comm_is_used(s->lanes[1], 6, 0, 0));
	CHECK(!comm_is_used(s->lanes[0], 5, 0, 0));
	comm_unuse(s->lanes[0]);
	CHECK(!comm_is_used(s->lanes[1], 5, 0, 0));
	comm_unlock(t.recv);
	rig_free(&t);
}

/* An ACK waits for the engine's next turn once, not again for one that a later turn makes due. */
static void test_put_off_once(void)
{
	for (unsigned i = 0; i < 40 && !check_failures; i++) {
		struct driver *engine;
		const struct fake_pipe *back;
		struct talk t;
		uint8_t rx[8];

		rig_open_fed(&t, 1, 16384);
		engine = &t.pairs[0].driver;
		back = t.pairs[0].lanes[1].out;
		for (unsigned m = 0; m < 8; m++)
			(void)rig_post(t.recv, rx + m, 1);
		rig_turns(&t, i);
		rig_feed(&t.pairs[0].lanes[1], 0, 1, 0, 1, 1);
		for (unsigned n = 0; !t.recv->completed && n < 1000; n++)
			(void)driver_turn(engine, driver_clock_ns());
		CHECK_EQ(back->written, 0);
		rig_feed(&t.pairs[0].lanes[1], 1, 1, 0, 1, 1);
		for (unsigned n = 0; t.recv->completed < 2 && n < 1000; n++)
			(void)driver_turn(engine, driver_clock_ns());
		CHECK(back->written >= RECORD_HEADER_BYTES);
		rig_free(&t);
	}
}

/* A message comes whose receive has been posted; the turn in which it is done is the last one. True: its ACK has been sent. */
static bool ack_goes_at_once(struct talk *t, uint64_t message)
{
	const struct fake_pipe *back = t->pairs[0].lanes[1].out;
	uint64_t before = back->written;

	rig_feed(&t->pairs[0].lanes[1], message, 1, 0, 1, 1);
	for (unsigned n = 0; t->recv->completed <= message && n < 1000; n++)
		(void)driver_turn(&t->pairs[0].driver, driver_clock_ns());
	CHECK_EQ(t->recv->completed, message + 1);
	return back->written > before;
}

static void application_rests(uint64_t rest_ns)
{
	uint64_t until_ns = driver_clock_ns() + rest_ns;

	while (driver_clock_ns() < until_ns)
		;
}

/* Who has everything and pauses takes no turn for its ACK, which its sender may wait for: it goes at once, where the application has paused
 * the last time that it had everything. Where it has not, or waits for more, an answer takes it along. */
static void test_who_pauses_puts_nothing_off(void)
{
	struct request *request = NULL;
	uint8_t rx[8];
	struct talk t;

	rig_open_fed(&t, 1, 16384);
	for (uint64_t m = 0; m < 8; m++) {
		bool paused = m % 4 == 1;

		if (paused)
			application_rests(1000000);
		request = rig_post(t.recv, rx + m, 1);
		CHECK_EQ(ack_goes_at_once(&t, m), paused);
		CHECK_EQ(rig_wait(&t, request, NULL), 0);
	}
	application_rests(1000000);
	for (uint64_t m = 8; m < 11; m++)
		request = rig_post(t.recv, rx + m % 8, 1);
	CHECK(!ack_goes_at_once(&t, 8));
	rig_turns(&t, 10);
	CHECK(!ack_goes_at_once(&t, 9));
	rig_turns(&t, 10);
	CHECK(ack_goes_at_once(&t, 10));
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
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
	rig_feed(&t.pairs[0].lanes[1], 0, 100, 0, 100, 1);
	CHECK_EQ(rig_wait(&t, recv[0], NULL), 0);
	rig_feed(kernel, 0, 100, 0, 100, 1);
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
	rig_feed(&t.pairs[0].lanes[1], 0, 4096, 0, 4096, 1);
	t.pairs[0].lanes[1].in->count -= 1000; /* the rest is still on its way */
	rig_turns(&t, 30);
	rig_feed(&t.pairs[1].lanes[1], 0, 4096, 0, 4096, 1);
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	CHECK(rig_fed(room, 4096, 1));
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
	rig_feed(&t.pairs[0].lanes[1], 1, 4096, 0, 4096, 9);
	CHECK_EQ(rig_wait(&t, request, NULL), 0);
	CHECK(rig_fed(room, 4096, 9));
	rig_free(&t);
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

/* Truncation is said, once by each side, and told to the sender. */
static void test_truncation(void)
{
	uint8_t tx[64] = { 0 }, rx[64];
	struct request *send, *recv;
	struct talk t;

	rig_open(&t, 2, 8192, 10000);
	recv = rig_post(t.recv, rx, 10);
	send = rig_post(t.send, tx, 11);
	CHECK_EQ(rig_wait(&t, recv, NULL), -EMSGSIZE);
	CHECK(strstr(env_warn, "truncated") != NULL);
	CHECK_EQ(rig_wait(&t, send, NULL), -EMSGSIZE);
	CHECK(strstr(env_warn, "truncated") != NULL);
	CHECK_EQ(env_warns, 2); /* by each side */
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

int main(void)
{
	static void (*const rules[])(void) = {
		test_early,
		test_early_overlap,
		test_early_is_here,
		test_early_again,
		test_early_crowd,
		test_early_before_close,
		test_early_at_the_end,
		test_early_is_left,
		test_empty_is_used,
		test_put_off_once,
		test_who_pauses_puts_nothing_off,
		test_answer_waits,
		test_half_a_chunk,
		test_fails_in_a_record,
		test_liars,
		test_truncation,
		test_drop,
	};

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]) && !check_failures; i++)
		rules[i]();
	return check_done();
}
