/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_attempt.c - the round trip that an attempt measures, over lanes in memory: from HELLO to CHALLENGE, and none where
 * the answer was there before the dial had come back from sending. And for how long it waits for which answer.
 */
#include <errno.h>
#include <stdlib.h>

#include "connect/handshake.h"
#include "check.h"
#include "connect/attempt.h"
#include "fake_lane.h"

#define LISTEN_ID 7u
#define MS UINT64_C(1000000)
#define BEGIN_NS (5000000 * MS) /* a clock since boot: far from 0 */

static const uint8_t secret[PREAMBLE_KEY_BYTES] = { 1, 2, 3 };

struct call {
	struct attempt dial;
	struct fake_pair pair;
	struct preamble peer;
	struct lane_ops ops; /* the dial's end: fake, or one whose peer is awake at once */
	const struct lane_ops *fake;
	int ended, error;
};

static bool lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	memcpy(key, secret, PREAMBLE_KEY_BYTES);
	return p->listen_id == LISTEN_ID;
}

static void ended(struct attempt *dial, int error, const char *text, uint64_t now_ns)
{
	struct call *call = dial->owner;

	call->error = error;
	call->ended++;
}

/* We are not let run until the peer has answered: to whoever sent, all of it is one call. */
static ssize_t send_and_be_late(struct lane *lane, const struct iovec *iov, int iov_count)
{
	struct call *call = container_of(lane, struct call, pair.lanes[0]);
	ssize_t n = call->fake->send(lane, iov, iov_count);

	CHECK(handshake_advance(&call->peer, &call->pair.lanes[1].lane) >= 0);
	return n;
}

static struct call call;
static uint64_t seed;

/* An attempt whose connection is open, as attempt_start() leaves it. */
static void call_begin(bool late)
{
	struct preamble_terms terms = { .eager_bytes = 262144, .lanes = 1 };
	struct fake_lane *end;

	memset(&call, 0, sizeof(call));
	fake_pair_init(&call.pair, seed, 4096);
	end = &call.pair.lanes[0];
	call.fake = end->lane.ops;
	call.ops = *call.fake;
	if (late)
		call.ops.send = send_and_be_late;
	end->lane.ops = &call.ops;
	end->lane.kind_bit = LANE_KERNEL;
	preamble_accept(&call.peer, &terms, lookup, NULL);
	call.dial = (struct attempt){
		.listen_id = LISTEN_ID,
		.own = { .lanes = 1 },
		.open_deadline_ns = UINT64_MAX,
		.deadline_ns = UINT64_MAX,
		.ended = ended,
		.owner = &call,
		.under_way = true,
		.lane = &end->lane,
	};
	memcpy(call.dial.key, secret, sizeof(secret));
}

static void call_end(int error)
{
	CHECK_EQ(call.ended, 1);
	CHECK_EQ(call.error, error);
	attempt_stop(&call.dial);
	fake_pair_free(&call.pair);
}

TEST(the_round_trip)
{
	uint64_t now_ns = BEGIN_NS;

	call_begin(false);
	while (call.dial.preamble.step != PREAMBLE_READ_CHALLENGE || !call.dial.opened)
		attempt_advance(&call.dial, now_ns); /* sends are cut anywhere */
	CHECK_EQ(call.dial.rtt_ns, 0);
	for (unsigned i = 0; i < 1000 && !call.ended; i++) {
		(void)handshake_advance(&call.peer, &call.pair.lanes[1].lane);
		now_ns += 3 * MS;
		attempt_advance(&call.dial, now_ns);
	}
	CHECK_EQ(call.dial.rtt_ns, 3 * MS);
	call_end(0);
}

/* Nothing was waited for, so nothing is known: not the time since the clock's beginning. */
TEST(an_answer_before_the_question_was_over)
{
	call_begin(true);
	attempt_advance(&call.dial, BEGIN_NS);
	CHECK_EQ(call.ended, 1);
	CHECK_EQ(call.dial.rtt_ns, 0);
	call_end(0);
}

/* CHALLENGE is missed after a while: the door may have reset us unheard. */
TEST(nobody_answers_hello)
{
	call_begin(false);
	call.dial.answer_ns = 10 * MS;
	while (call.dial.preamble.step != PREAMBLE_READ_CHALLENGE || !call.dial.opened)
		attempt_advance(&call.dial, BEGIN_NS);
	attempt_advance(&call.dial, BEGIN_NS + 10 * MS - 1);
	CHECK_EQ(call.ended, 0);
	attempt_advance(&call.dial, BEGIN_NS + 10 * MS);
	call_end(-ETIMEDOUT);
}

/* READY is waited for to the end: the peer may have made a comm already, of which there must be one. */
TEST(ready_is_late)
{
	call_begin(false);
	call.dial.answer_ns = 10 * MS;
	while (call.dial.preamble.step != PREAMBLE_READ_READY || !call.dial.opened) {
		attempt_advance(&call.dial, BEGIN_NS);
		if (call.peer.step != PREAMBLE_READ_PROOF)
			(void)handshake_advance(&call.peer, &call.pair.lanes[1].lane);
	}
	attempt_advance(&call.dial, BEGIN_NS + 1000 * MS);
	CHECK_EQ(call.ended, 0);
	for (unsigned i = 0; i < 1000 && !call.ended; i++) {
		(void)handshake_advance(&call.peer, &call.pair.lanes[1].lane);
		attempt_advance(&call.dial, BEGIN_NS + 1000 * MS);
	}
	call_end(0);
}

/* READY came, and behind it a reset: both sides have a comm. */
TEST(ready_before_the_end)
{
	call_begin(false);
	while (call.dial.preamble.step != PREAMBLE_READ_READY || !call.dial.opened) {
		attempt_advance(&call.dial, BEGIN_NS);
		if (call.dial.preamble.step != PREAMBLE_READ_READY)
			(void)handshake_advance(&call.peer, &call.pair.lanes[1].lane);
	}
	while (handshake_advance(&call.peer, &call.pair.lanes[1].lane) != 1)
		;
	fake_reset(&call.pair.lanes[0]);
	attempt_advance(&call.dial, BEGIN_NS);
	call_end(0);
}

int main(void)
{
	for (seed = 0; seed < 50; seed++)
		check_run();
	return check_done();
}
