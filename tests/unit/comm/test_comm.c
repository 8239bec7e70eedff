/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_comm.c - a sending and a receiving comm over fake lanes: credits, deregistered memory, the
 * end of a peer, and hostile records. tests/sim runs random conversations.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "check.h"
#include "comm/comm_impl.h"
#include "double_env.h"
#include "fake_lane.h"

#define LANES_MAX 3u

/* A sending and a receiving comm, of one or several lanes. */
struct ends {
	struct fake_pair pairs[LANES_MAX];
	unsigned lanes;
	struct comm *send, *recv;
};

static void ends_open(struct ends *e, unsigned lanes, size_t capacity, uint32_t eager_bytes)
{
	struct comm_options opt = { .multi_lane = lanes > 1, .eager_bytes = eager_bytes };

	memset(e, 0, sizeof(*e));
	for (e->lanes = 0; e->lanes < lanes; e->lanes++) {
		struct fake_pair *pair = &e->pairs[e->lanes];

		fake_pair_init(pair, e->lanes + 5, capacity);
		opt.lane.index = (uint8_t)e->lanes;
		if (e->lanes) {
			CHECK_EQ(comm_attach(e->send, &pair->lanes[0].lane, &opt.lane), 0);
			CHECK_EQ(comm_attach(e->recv, &pair->lanes[1].lane, &opt.lane), 0);
			continue;
		}
		opt.side = COMM_SEND;
		CHECK_EQ(comm_create(&e->send, &pair->lanes[0].lane, &opt), 0);
		opt.side = COMM_RECV;
		CHECK_EQ(comm_create(&e->recv, &pair->lanes[1].lane, &opt), 0);
	}
}

static void ends_turn(struct ends *e, unsigned turns)
{
	for (unsigned i = 0; i < turns; i++)
		for (unsigned lane = 0; lane < e->lanes; lane++)
			fake_pair_turn(&e->pairs[lane]);
}

static void ends_close(struct ends *e)
{
	comm_close(e->send, false);
	comm_close(e->recv, false);
	for (unsigned i = 0; i < e->lanes; i++)
		fake_pair_free(&e->pairs[i]);
}

/* Posts one message on both sides and waits until both requests are done. */
static void ends_pass(struct ends *e, uint8_t *tx, uint8_t *rx, size_t size)
{
	struct request *send, *recv;
	int sent = 0, received = 0;

	CHECK_EQ(comm_post(e->recv, rx, size, 0, NULL, &recv), 0);
	CHECK_EQ(comm_post(e->send, tx, size, 0, NULL, &send), 0);
	for (unsigned i = 0; i < 10000 && (!sent || !received); i++) {
		ends_turn(e, 1);
		if (!received)
			CHECK_EQ(comm_test(recv, &received, NULL), 0);
		if (!sent)
			CHECK_EQ(comm_test(send, &sent, NULL), 0);
	}
	CHECK(sent && received);
	CHECK_MEM(rx, tx, size);
}

/* ---- credits --------------------------------------------------------------------------------- */

TEST(a_ping_pong_of_128_small_messages_costs_one_credit)
{
	uint8_t tx[8] = { 1, 2, 3 }, rx[8];
	struct ends e;

	ends_open(&e, 1, 4096, 262144);
	for (unsigned m = 0; m < 1000 && !check_failures; m++)
		ends_pass(&e, tx, rx, sizeof(tx));
	/* Each CREDIT has at most one size. */
	CHECK(e.pairs[0].pipes[1].written / (RECORD_HEADER_BYTES + 8) <= 1000 / 128 + 1);
	CHECK(e.pairs[0].pipes[1].written > 0);
	ends_close(&e);
}

TEST(without_receives_a_sender_stops_at_the_eager_limit)
{
	uint8_t *data = calloc(1, 100000);
	struct request *request;
	struct ends e;

	ends_open(&e, 1, 1000000, 8192);
	CHECK_EQ(comm_post(e.send, data, 100000, 0, NULL, &request), 0);
	ends_turn(&e, 1000);
	CHECK(e.pairs[0].pipes[0].written <= 8192);
	CHECK(e.pairs[0].pipes[0].written >= 8192 - 2 * RECORD_OFFSET_ALIGN);
	CHECK(atomic_load(e.pairs[0].lanes[0].lane.awaited));
	ends_close(&e);
	CHECK(e.pairs[0].lanes[0].aborted); /* a request was in flight */
	free(data);
}

/* ---- completion of sends --------------------------------------------------------------------- */

TEST(a_small_send_is_done_when_it_is_copied_and_a_large_one_when_it_is_acknowledged)
{
	static uint8_t tx[4097], rx[4097];
	static const struct {
		size_t bytes;
		bool waits;
	} rows[] = { { 0, false }, { 8, false }, { 4096, false }, { 4097, true } };
	struct comm_options opt = { .eager_bytes = 65536 };
	struct request *send, *recv;
	struct ends e = { .lanes = 1 };
	struct fake_lane *from = &e.pairs[0].lanes[0], *to = &e.pairs[0].lanes[1];

	fake_pair_init(&e.pairs[0], 5, 65536);
	opt.side = COMM_SEND;
	CHECK_EQ(comm_create(&e.send, &from->lane, &opt), 0);
	opt.side = COMM_RECV;
	CHECK_EQ(comm_create(&e.recv, &to->lane, &opt), 0);
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		unsigned acknowledged = to->acknowledged;
		int sent = 0, received = 0;

		from->unanswered = true;
		CHECK_EQ(comm_post(e.send, tx, rows[i].bytes, 0, NULL, &send), 0);
		CHECK_EQ(comm_post(e.recv, rx, sizeof(rx), 0, NULL, &recv), 0);
		for (unsigned turn = 0; turn < 1000 && !received; turn++) {
			ends_turn(&e, 1);
			CHECK_EQ(comm_test(recv, &received, NULL), 0);
		}
		CHECK(received);
		CHECK_EQ(to->acknowledged - acknowledged, rows[i].waits);
		CHECK_EQ(comm_test(send, &sent, NULL), 0);
		CHECK_EQ(sent, !rows[i].waits);
		from->unanswered = false;
		while (!sent) {
			ends_turn(&e, 1);
			CHECK_EQ(comm_test(send, &sent, NULL), 0);
		}
	}
	ends_close(&e);
}

TEST(an_uncopied_send_is_not_done_before_the_preamble_is_acknowledged)
{
	struct comm_options opt = {
		.side = COMM_SEND, .no_credit = true, .eager_bytes = 65536, .lane.sent_bytes = 100
	};
	struct ends e = { .lanes = 1 };
	struct request *send;
	uint8_t data[8] = { 0 };
	int sent = 1;

	fake_pair_init(&e.pairs[0], 5, 4096);
	e.pairs[0].lanes[0].in_place = true;
	CHECK_EQ(comm_create(&e.send, &e.pairs[0].lanes[0].lane, &opt), 0);
	CHECK_EQ(comm_post(e.send, data, sizeof(data), 0, NULL, &send), 0);
	CHECK_EQ(comm_test(send, &sent, NULL), 0);
	CHECK_EQ(sent, 0);
	comm_close(e.send, true);
	fake_pair_free(&e.pairs[0]);
}

/* ---- lanes that lose a credit ---------------------------------------------------------------- */

static void inject_message(struct fake_lane *lane, uint64_t message)
{
	enum { BYTES = 1024 };
	struct record record = {
		.type = RECORD_DATA, .message = message, .total = BYTES, .length = BYTES
	};
	uint8_t bytes[RECORD_HEADER_BYTES + BYTES] = { 0 };

	record_encode(bytes, &record);
	CHECK_EQ(fake_inject(lane, bytes, sizeof(bytes)), sizeof(bytes));
}

static void run_turns(struct fake_pair *pair)
{
	for (unsigned turn = 0; turn < 200; turn++)
		fake_pair_turn(pair);
}

/* The receiver answers a duplicate on its lane, which may lose the answer. A sender that has used
 * its eager bytes must therefore get the CREDIT on the control lane too. */
TEST(a_credit_that_answers_a_duplicate_is_sent_on_the_control_lane_too)
{
	enum { ADVERTISED = 4, POSTED = 12, SENT = 7 };
	struct comm_options opt = { .side = COMM_RECV, .multi_lane = true, .eager_bytes = 4096 };
	static uint8_t rx[1024];
	struct request *request;
	struct fake_pair control, other;
	uint64_t control_bytes;
	struct comm *comm;

	fake_pair_init(&control, 3, 16384);
	fake_pair_init(&other, 4, 16384);
	CHECK_EQ(comm_create(&comm, &control.lanes[1].lane, &opt), 0);
	opt.lane.index = 1;
	CHECK_EQ(comm_attach(comm, &other.lanes[1].lane, &opt.lane), 0);
	for (unsigned i = 0; i < ADVERTISED; i++)
		CHECK_EQ(comm_post(comm, rx, sizeof(rx), 0, NULL, &request), 0);
	inject_message(&control.lanes[1], 0);
	inject_message(&control.lanes[1], 1);
	run_turns(&control);
	control_bytes = control.pipes[1].written;
	CHECK(control_bytes > 0); /* a CREDIT for ADVERTISED receives */
	for (unsigned i = ADVERTISED; i < POSTED; i++)
		CHECK_EQ(comm_post(comm, rx, sizeof(rx), 0, NULL, &request), 0);
	inject_message(&other.lanes[1], 0);
	run_turns(&other);
	CHECK(other.pipes[1].written > RECORD_HEADER_BYTES); /* the answer, which gets lost */
	CHECK_EQ(control.pipes[1].written, control_bytes);
	for (unsigned message = 2; message < SENT; message++)
		inject_message(&control.lanes[1], message);
	run_turns(&control);
	CHECK(control.pipes[1].written > control_bytes);
	comm_close(comm, true);
	fake_pair_free(&control);
	fake_pair_free(&other);
}

/* ---- deregistered memory --------------------------------------------------------------------- */

/* A request next to the memory continues. One that overlaps it ends the comm without a WARN, and
 * no more bytes are transferred. */
static void cancel_unregistered(unsigned lanes, bool sender)
{
	static uint8_t memory[131072], peer_data[65536];
	uint8_t *data = memory + 4096;
	unsigned warns = env_warns;
	struct request *request;
	struct comm *comm;
	struct ends e;
	int done = 1;

	ends_open(&e, lanes, 20000, 16384);
	comm = sender ? e.send : e.recv;
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
	CHECK_EQ(comm_post(sender ? e.recv : e.send, peer_data, 65536, 0, NULL, &request), 0);
	ends_turn(&e, 1000);
	for (size_t i = 0; i < sizeof(memory); i++)
		CHECK(memory[i] == 7);
	ends_close(&e);
}

/* Only its own registration cancels a request, and none cancels a request without bytes. */
static void cancel_registered(unsigned lanes, bool sender)
{
	static uint8_t data[65536];
	static const char one, other, none;
	struct request *request;
	struct comm *comm;
	struct ends e;

	ends_open(&e, lanes, 20000, 16384);
	comm = sender ? e.send : e.recv;
	CHECK_EQ(comm_post(comm, data, sizeof(data), 0, &one, &request), 0);
	CHECK_EQ(comm_post(comm, data + 100, 0, 0, &none, &request), 0);
	CHECK_EQ(comm_post(comm, data + 100, 0, 0, NULL, &request), 0);
	comm_cancel_memory(comm, &other, data, sizeof(data));
	comm_cancel_memory(comm, &none, data, 4096);
	CHECK_EQ(comm->error, 0);
	comm_cancel_memory(comm, &one, data, sizeof(data));
	CHECK_EQ(comm->error, -ECANCELED);
	ends_close(&e);
}

TEST(deregistered_memory_ends_the_requests_in_it)
{
	for (unsigned lanes = 1; lanes <= LANES_MAX; lanes++)
		for (unsigned side = 0; side < 2; side++) {
			cancel_unregistered(lanes, side);
			cancel_registered(lanes, side);
		}
}

/* ---- the end of a peer ----------------------------------------------------------------------- */

TEST(messages_from_before_the_peers_death_are_received_and_the_next_is_an_error)
{
	uint8_t data[64] = { 1, 2, 3 }, rx[64];
	struct request *send, *recv[2];
	struct ends e;
	size_t size;
	int done;

	ends_open(&e, 1, 1000, 8192);
	env_warns = 0;
	CHECK_EQ(comm_post(e.send, data, 64, 0, NULL, &send), 0);
	ends_turn(&e, 1000);
	fake_reset(&e.pairs[0].lanes[1]);
	ends_turn(&e, 10);
	CHECK_EQ(env_warns, 0); /* no request is outstanding */
	CHECK_EQ(comm_post(e.recv, rx, 64, 0, NULL, &recv[0]), 0);
	CHECK_EQ(comm_post(e.recv, rx, 64, 0, NULL, &recv[1]), 0);
	ends_turn(&e, 10);
	CHECK_EQ(comm_test(recv[0], &done, &size), 0);
	CHECK_EQ(done, 1);
	CHECK_EQ(size, 64);
	CHECK_MEM(rx, data, 64);
	CHECK_EQ(comm_test(recv[1], &done, &size), -ECONNRESET);
	CHECK_EQ(done, 0);
	CHECK_EQ(env_warns, 1);
	ends_close(&e);
}

TEST(the_longest_reason_for_an_end_is_not_truncated)
{
	static const char tail[] = "the peer's process or host died, or the path is cut";
	struct ends e;

	ends_open(&e, 1, 1000, 8192);
	comm_end_by_error(e.recv, NULL, -EHOSTUNREACH);
	CHECK(strstr(e.recv->end_text, tail) != NULL);
	ends_close(&e);
}

/* ---- hostile records ------------------------------------------------------------------------- */

/* Injects a record and eight bytes. The comm ends with this result and a warning with the word. */
static void check_end_by_record(enum comm_side side, const struct record *record, int result,
				const char *word)
{
	struct comm_options opt = { .side = side, .eager_bytes = 8192 };
	uint8_t header[RECORD_HEADER_BYTES], buffer[16384] = { 0 };
	struct request *request;
	struct fake_pair pair;
	struct comm *comm;
	int done, rc = 0;

	fake_pair_init(&pair, 9, 4096);
	CHECK_EQ(comm_create(&comm, &pair.lanes[0].lane, &opt), 0);
	env_warns = 0;
	CHECK_EQ(comm_post(comm, buffer, sizeof(buffer), 0, NULL, &request), 0);
	record_encode(header, record);
	CHECK_EQ(fake_inject(&pair.lanes[0], header, sizeof(header)), sizeof(header));
	fake_inject(&pair.lanes[0], buffer, 8);
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
		check_end_by_record(rows[i].side, &rows[i].record, -EPROTO, rows[i].word);
}

TEST(the_reason_in_the_peers_CLOSE_decides_the_result_and_is_logged)
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
		{ CLOSE_LOCAL, -ECONNRESET, "the peer had a local error" },
		{ UINT32_MAX, -ECONNRESET, "for an unknown reason" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		for (int side = 0; side < 2; side++)
			check_end_by_record(side ? COMM_RECV : COMM_SEND,
					    &(struct record){ .type = RECORD_CLOSE,
							      .tag = cases[i].reason },
					    cases[i].result, cases[i].word);
}
