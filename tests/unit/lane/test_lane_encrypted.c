/* SPDX-License-Identifier: Apache-2.0 */
/* test_lane_encrypted.c - encrypted lanes over fake lanes deliver what was sent, however it is
 * fragmented, and nothing else. */
#include <errno.h>
#include <stdlib.h>

#include "wire/blake2s.h"
#include "check.h"
#include "double_env.h"
#include "fake_lane.h"
#include "lane/lane.h"
#include "wire/record.h"

#define PREAMBLE_SENT 96u /* a preamble's bytes */
#define GUARD 0xa5

static uint8_t key_a[CRYPTO_KEY_BYTES], key_b[CRYPTO_KEY_BYTES];

struct rig {
	bool open;
	struct fake_pair pair;
	struct lane *lanes[2];
	unsigned events[2];
};

static void count_event(struct lane *lane, uint64_t now_ns)
{
	(void)now_ns;
	(*(unsigned *)lane->owner)++;
}

static struct rig rig; /* of the test that runs */

static void rig_close(struct rig *r)
{
	if (!r->open)
		return;
	for (int i = 0; i < 2; i++)
		r->lanes[i]->ops->close(r->lanes[i], true);
	fake_pair_free(&r->pair);
	r->open = false;
}
AFTER_EACH(rig_close(&rig))

/* Closes the previous rig. */
static void rig_open(struct rig *r, uint64_t seed, size_t capacity)
{
	rig_close(r);
	memset(r, 0, sizeof(*r));
	r->open = true;
	fake_pair_init(&r->pair, seed, capacity);
	for (int i = 0; i < 2; i++) {
		struct fake_lane *fake = &r->pair.lanes[i];

		fake->acked = fake->out->written = PREAMBLE_SENT;
		r->lanes[i] = &fake->lane;
		CHECK_EQ(lane_encrypt(&r->lanes[i], PREAMBLE_SENT, i ? key_b : key_a,
				      i ? key_a : key_b),
			 0);
		r->lanes[i]->owner = &r->events[i];
		r->lanes[i]->notify = count_event;
	}
}

static ssize_t send_bytes(struct lane *lane, const void *bytes, size_t len)
{
	struct iovec iov = { (void *)(uintptr_t)bytes, len };

	return lane->ops->send(lane, &iov, 1);
}

/* Sends all bytes as one segment. */
static void send_segment(struct rig *r, int from, const void *bytes, size_t len)
{
	CHECK_EQ(send_bytes(r->lanes[from], bytes, len), len);
	for (int i = 0; i < 1000 && r->pair.lanes[from].acked < r->pair.pipes[from].written; i++)
		fake_pair_turn(&r->pair);
	(void)r->lanes[from]->ops->done_bytes(r->lanes[from]); /* sends the rest */
}

/* ---- round trips ----------------------------------------------------------------------------- */

static uint8_t pattern(uint64_t at)
{
	return (uint8_t)(at * 131 + (at >> 7) * 17 + (at >> 13));
}

struct flow {
	uint64_t sent, received, total, done;
};

/* Sends some bytes from two pieces of memory, which it then overwrites. */
static void flow_send(struct rig *r, int from, struct flow *flow, uint32_t max)
{
	static uint8_t data[100000];
	struct rng *rng = &r->pair.rng;
	size_t left = (size_t)(flow->total - flow->sent), len = 1 + rng_below(rng, max);
	struct iovec iov[3];
	size_t first;
	ssize_t n;

	if (!left)
		return;
	if (len > left)
		len = left;
	for (size_t i = 0; i < len; i++)
		data[i] = pattern(flow->sent + i);
	first = rng_below(rng, (uint32_t)len + 1);
	iov[0] = (struct iovec){ data, first };
	iov[1] = (struct iovec){ data, 0 };
	iov[2] = (struct iovec){ data + first, len - first };
	n = r->lanes[from]->ops->send(r->lanes[from], iov, 3);
	memset(data, 0, len);
	CHECK(n == -EAGAIN || (n > 0 && (size_t)n <= len));
	if (n > 0)
		flow->sent += (uint64_t)n;
}

/* Receives control bytes or payload: whole units, the right bytes, and none outside. */
static void flow_receive(struct rig *r, int to, struct flow *flow, uint32_t max)
{
	static uint8_t memory[100064] __attribute__((aligned(64)));
	struct rng *rng = &r->pair.rng;
	uint8_t *dst = memory + 16 + rng_below(rng, 9);
	unsigned unit = rng_below(rng, 3) ? 8 : 1;
	size_t want = 1 + rng_below(rng, max), got = 0, errors = 0;

	if (want > flow->total - flow->received)
		want = (size_t)(flow->total - flow->received);
	if (!want)
		return;
	memset(memory, GUARD, sizeof(memory));
	for (int i = 0; got < want && i < 400; i++) {
		ssize_t n = r->lanes[to]->ops->recv(r->lanes[to], dst + got, want - got, unit);

		CHECK(n == -EAGAIN || (n > 0 && (size_t)n <= want - got));
		if (n > 0)
			got += (size_t)n;
		if (unit == 8 && got < want && got) /* an incomplete unit is not written */
			CHECK_EQ((uintptr_t)(dst + got) % 8, 0);
		errors += dst[got] != GUARD;
		if (n < 0) {
			fake_pair_turn(&r->pair);
			flow_send(r, 1 - to, flow, max);
		}
	}
	for (size_t i = 0; i < got; i++)
		errors += dst[i] != pattern(flow->received + i);
	errors += dst[-1] != GUARD || dst[got] != GUARD;
	CHECK_EQ(errors, 0);
	flow->received += got;
}

static void flow_done(struct rig *r, int from, struct flow *flow)
{
	struct lane *lane = r->lanes[from];
	uint64_t done = lane->ops->done_bytes(lane) - PREAMBLE_SENT;

	CHECK(done >= flow->done && done <= flow->sent);
	CHECK(lane->ops->copied_bytes(lane) - PREAMBLE_SENT >= done);
	flow->done = done;
}

static void round_trip(uint64_t seed, size_t capacity, uint32_t max, uint64_t total)
{
	struct flow flows[2] = { { .total = total }, { .total = total / 2 } };

	rig_open(&rig, seed, capacity);
	for (int turn = 0; turn < 400000 && !check_failures; turn++) {
		bool is_done = true;

		for (int i = 0; i < 2; i++) {
			flow_send(&rig, i, &flows[i], max);
			flow_receive(&rig, 1 - i, &flows[i], max);
			flow_done(&rig, i, &flows[i]);
			is_done = is_done && flows[i].received == flows[i].total &&
				  flows[i].done == flows[i].total;
		}
		fake_pair_turn(&rig.pair);
		if (is_done)
			break;
	}
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(flows[i].received, flows[i].total);
		CHECK_EQ(flows[i].done, flows[i].total);
		CHECK(rig.events[i] > 0);
	}
}

TEST(sent_bytes_are_delivered_however_they_are_fragmented)
{
	for (uint64_t seed = 0; seed < 60; seed++) {
		round_trip(seed, 64 + seed, 50, 3000);
		round_trip(seed, 5000, 3000, 100000);
		round_trip(seed, 100000, 60000, 600000);
	}
}

/* ---- hostile streams ------------------------------------------------------------------------- */

static const size_t segments[] = { 1, 40, 7, 300, 8 };
#define SEGMENTS (sizeof(segments) / sizeof(segments[0]))

/* Segment i consists of bytes i + 1. */
static void send_segments(struct rig *r)
{
	uint8_t data[512];

	for (size_t i = 0; i < SEGMENTS; i++) {
		memset(data, (int)i + 1, segments[i]);
		send_segment(r, 0, data, segments[i]);
	}
}

/* Reads to the end, and returns the number of segments, which are unaltered. *end: last result. */
static size_t receive_segments(struct rig *r, ssize_t *end)
{
	struct lane *lane = r->lanes[1];
	uint8_t data[1024];
	size_t got = 0, at = 0, whole = 0;
	ssize_t n;

	while ((n = lane->ops->recv(lane, data + got, sizeof(data) - got, 1)) > 0)
		got += (size_t)n;
	*end = n;
	for (; whole < SEGMENTS && at + segments[whole] <= got; whole++)
		for (size_t i = 0; i < segments[whole]; i++, at++)
			CHECK_EQ(data[at], whole + 1);
	CHECK_EQ(at, got); /* no part of a segment */
	return whole;
}

static uint64_t stream_bytes(void)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < SEGMENTS; i++)
		sum += segments[i] + SEGMENT_EXTRA_BYTES;
	return sum;
}

TEST(an_altered_byte_ends_the_lane_before_its_segment)
{
	static const uint8_t flips[] = { 0x01, 0x80, 0xff };

	for (uint64_t at = 0; at < stream_bytes(); at++) {
		uint64_t begin = 0;
		size_t intact = 0;

		while (begin + segments[intact] + SEGMENT_EXTRA_BYTES <= at)
			begin += segments[intact++] + SEGMENT_EXTRA_BYTES;
		for (size_t f = 0; f < sizeof(flips); f++) {
			ssize_t end;

			rig_open(&rig, at, 4096);
			rig.pair.pipes[0].flip_at = PREAMBLE_SENT + at;
			rig.pair.pipes[0].flip = flips[f];
			send_segments(&rig);
			fake_pair_turn(&rig.pair);
			rig.pair.pipes[0].closed = true;
			env_warns = 0;
			CHECK_EQ(receive_segments(&rig, &end), intact);
			/* If the length grew, the lane waits for bytes that do not arrive. */
			CHECK(end == -EBADMSG || (end == -ECONNRESET && at - begin < 4));
			CHECK_EQ(env_warns, end == -EBADMSG);
			CHECK_EQ(rig.lanes[1]->error, end);
			CHECK_EQ(rig.lanes[1]->ops->state(rig.lanes[1]), LANE_DEAD);
			CHECK_EQ(send_bytes(rig.lanes[1], "x", 1), end);
		}
	}
	CHECK(strstr(env_warn, "failed authentication") != NULL);
}

/* Copies encrypted segments from the pipe. */
static size_t copy_segments(uint8_t *bytes, size_t len)
{
	size_t count;

	rig_open(&rig, 1, 4096);
	send_segments(&rig);
	count = rig.pair.pipes[0].count;
	CHECK(count <= len && count == stream_bytes());
	memcpy(bytes, rig.pair.pipes[0].bytes, count);
	return count;
}

/* Injects the segments of `order` and a FIN. */
static void check_order(const size_t *order, size_t count, int to, size_t whole, ssize_t want)
{
	uint8_t segment[1024];
	ssize_t end = 0;

	copy_segments(segment, sizeof(segment));
	rig_open(&rig, 2, 4096);
	for (size_t i = 0; i < count; i++) {
		size_t at = 0;

		for (size_t k = 0; k < order[i]; k++)
			at += segments[k] + SEGMENT_EXTRA_BYTES;
		fake_inject(&rig.pair.lanes[to], segment + at,
			    segments[order[i]] + SEGMENT_EXTRA_BYTES);
	}
	rig.pair.lanes[to].in->closed = true;
	if (to == 1) {
		CHECK_EQ(receive_segments(&rig, &end), whole);
	} else {
		uint8_t data[1024];

		end = rig.lanes[0]->ops->recv(rig.lanes[0], data, sizeof(data), 1);
	}
	CHECK_EQ(end, want);
}

TEST(repeated_swapped_or_omitted_segments_end_the_lane)
{
	static const size_t in_order[] = { 0, 1, 2 }, repeated[] = { 0, 1, 1 },
			    swapped[] = { 0, 2, 1 }, omitted[] = { 0, 2 }, first_omitted[] = { 1 };

	check_order(in_order, 3, 1, 3, 0);
	check_order(repeated, 3, 1, 2, -EBADMSG);
	check_order(swapped, 3, 1, 1, -EBADMSG);
	check_order(omitted, 2, 1, 1, -EBADMSG);
	check_order(first_omitted, 1, 1, 0, -EBADMSG);
	check_order(in_order, 3, 0, 0, -EBADMSG); /* reflected to the sender */
}

TEST(an_impossible_length_ends_the_lane_at_once)
{
	static const uint32_t lengths[] = { 0, SEGMENT_PLAIN_BYTES_MAX + 1, UINT32_MAX };

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint8_t head[SEGMENT_HEAD_BYTES], data[8];

		rig_open(&rig, 3, 4096);
		wire_put32(head, lengths[i]);
		fake_inject(&rig.pair.lanes[1], head, sizeof(head));
		CHECK_EQ(rig.lanes[1]->ops->recv(rig.lanes[1], data, 8, 8), -EBADMSG);
	}
}

TEST(a_stream_may_end_between_two_segments_only)
{
	uint8_t segment[1024];
	size_t count = copy_segments(segment, sizeof(segment)), boundary = 0, whole = 0;

	for (size_t at = 0; at <= count; at++) {
		ssize_t end;

		if (whole < SEGMENTS && at == boundary + segments[whole] + SEGMENT_EXTRA_BYTES) {
			boundary = at;
			whole++;
		}
		rig_open(&rig, 4, 4096);
		fake_inject(&rig.pair.lanes[1], segment, at);
		rig.pair.pipes[0].closed = true;
		CHECK_EQ(receive_segments(&rig, &end), whole);
		CHECK_EQ(end, at == boundary ? 0 : -ECONNRESET);
	}
}

TEST(data_before_a_reset_is_delivered)
{
	ssize_t end;

	rig_open(&rig, 5, 4096);
	send_segments(&rig);
	fake_reset(&rig.pair.lanes[1]);
	CHECK_EQ(receive_segments(&rig, &end), SEGMENTS);
	CHECK_EQ(end, -ECONNRESET);
}

/* ---- segment numbers and byte counts --------------------------------------------------------- */

TEST(a_lane_ends_before_its_segment_numbers_wrap)
{
	uint64_t before;
	uint8_t got[8];

	rig_open(&rig, 6, 4096);
	lane_encrypted_renumber(rig.lanes[0], UINT64_MAX - 1, 0);
	lane_encrypted_renumber(rig.lanes[1], 0, UINT64_MAX - 1);
	send_segment(&rig, 0, "last", 4);
	before = rig.pair.pipes[0].written;
	CHECK_EQ(send_bytes(rig.lanes[0], "more", 4), -ECONNABORTED);
	CHECK_EQ(rig.pair.pipes[0].written, before);
	CHECK_EQ(rig.lanes[0]->error, -ECONNABORTED);
	CHECK_EQ(rig.lanes[1]->ops->recv(rig.lanes[1], got, 4, 8), 4);
	CHECK_MEM(got, "last", 4);
}

TEST(the_next_key_is_the_hash_of_the_last_one_on_both_sides)
{
	uint8_t next[CRYPTO_KEY_BYTES], segment[64], got[16];
	struct segment_flow flow;

	rig_open(&rig, 7, 4096);
	lane_encrypted_renumber(rig.lanes[0], KEY_SEGMENTS - 1, 0);
	lane_encrypted_renumber(rig.lanes[1], 0, KEY_SEGMENTS - 1);
	send_segment(&rig, 0, "old", 3);
	send_segment(&rig, 0, "newer", 5);
	send_segment(&rig, 0, "newest", 6);
	memcpy(segment, rig.pair.pipes[0].bytes + 3 + 5 + 2 * SEGMENT_EXTRA_BYTES,
	       6 + SEGMENT_EXTRA_BYTES);
	CHECK_EQ(rig.lanes[1]->ops->recv(rig.lanes[1], got, 14, 1), 14);
	CHECK_MEM(got, "oldnewernewest", 14);
	blake2s(next, 32, key_a, 32, "HARP1 next key  ", 16);
	CHECK_EQ(segment_flow_begin(&flow, next, false), 0);
	flow.segment = KEY_SEGMENTS + 1;
	CHECK_EQ(segment_decrypt(&flow, segment, 6), 0);
	CHECK_MEM(segment + SEGMENT_HEAD_BYTES, "newest", 6);
	segment_flow_end(&flow);
}

TEST(with_many_segments_in_flight_bytes_are_done_late_but_never_early)
{
	uint64_t done;

	rig_open(&rig, 8, 65536);
	for (int i = 0; i < 500; i++)
		CHECK_EQ(send_bytes(rig.lanes[0], "abc", 3), 3);
	for (int i = 0; i < 500; i++) {
		rig.pair.lanes[0].acked =
			PREAMBLE_SENT + (uint64_t)(3 + SEGMENT_EXTRA_BYTES) * (unsigned)i;
		done = rig.lanes[0]->ops->done_bytes(rig.lanes[0]) - PREAMBLE_SENT;
		CHECK(done <= 3 * (unsigned)i);
		CHECK(i >= 64 || done == 3 * (unsigned)i);
	}
	rig.pair.lanes[0].acked = rig.pair.pipes[0].written;
	CHECK_EQ(rig.lanes[0]->ops->done_bytes(rig.lanes[0]), PREAMBLE_SENT + 1500);
}

TEST(bytes_are_copied_when_the_lane_beneath_has_accepted_their_segments)
{
	static const uint8_t bytes[80];
	struct lane *lane;

	rig_open(&rig, 9, 100);
	lane = rig.lanes[0];
	CHECK_EQ(send_bytes(lane, "abc", 3), 3);
	CHECK_EQ(lane->ops->copied_bytes(lane), PREAMBLE_SENT + 3);
	CHECK_EQ(lane->ops->done_bytes(lane), PREAMBLE_SENT);
	CHECK_EQ(send_bytes(lane, bytes, 80), 80); /* exceeds the space of the lane beneath */
	CHECK_EQ(lane->ops->copied_bytes(lane), PREAMBLE_SENT);
	rig.pair.lanes[0].acked = PREAMBLE_SENT + 3 + SEGMENT_EXTRA_BYTES;
	CHECK_EQ(lane->ops->copied_bytes(lane), PREAMBLE_SENT + 3);
}

TEST(acknowledged_plaintext_never_decreases_and_never_exceeds_the_sent_bytes)
{
	uint64_t acked = PREAMBLE_SENT;
	struct lane_info info;

	rig_open(&rig, 11, 1000);
	rig.lanes[0]->ops->info(rig.lanes[0], &info);
	CHECK_EQ(info.acked_bytes, PREAMBLE_SENT);
	for (uint64_t sent = PREAMBLE_SENT; sent < PREAMBLE_SENT + 5000;) {
		uint8_t data[700] = { 0 };
		ssize_t n = send_bytes(rig.lanes[0], data, sizeof(data));

		sent += n > 0 ? (uint64_t)n : 0;
		rig.lanes[0]->ops->info(rig.lanes[0], &info);
		CHECK(info.acked_bytes >= acked && info.acked_bytes <= sent);
		CHECK(info.unsent_bytes + info.in_flight_bytes + info.acked_bytes >= sent);
		acked = info.acked_bytes;
		fake_pair_turn(&rig.pair);
		while (rig.lanes[1]->ops->recv(rig.lanes[1], data, sizeof(data), 1) > 0)
			;
	}
	for (int i = 0; i < 1000; i++) {
		uint8_t data[700];

		fake_pair_turn(&rig.pair);
		(void)rig.lanes[1]->ops->recv(rig.lanes[1], data, sizeof(data), 1);
	}
	rig.lanes[0]->ops->info(rig.lanes[0], &info);
	CHECK_EQ(info.acked_bytes, rig.lanes[0]->ops->done_bytes(rig.lanes[0]));
	CHECK_EQ(info.unsent_bytes, 0);
}

TEST(an_encrypted_lane_is_described_by_the_lane_beneath)
{
	char text[64];

	rig_open(&rig, 10, 4096);
	rig.lanes[0]->ops->describe(rig.lanes[0], text, sizeof(text));
	CHECK_STR(text, "encrypted fake");
	rig_close(&rig);
	CHECK(rig.pair.lanes[0].closed && rig.pair.lanes[0].aborted);
}

int main(void)
{
	char why[256] = "";

	if (crypto_load(why, sizeof(why)))
		return check_skip(why);
	for (uint8_t i = 0; i < CRYPTO_KEY_BYTES; i++) {
		key_a[i] = i;
		key_b[i] = (uint8_t)(100 + i);
	}
	check_run();
	return check_done();
}
