/* SPDX-License-Identifier: Apache-2.0 */
/* bulk_turns.c - one turn of the sender or the receiver: the calls that are measured, and what is done between. */
#include "bulk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TURN_NS 5000u /* of the virtual clock */

uint64_t bulk_clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

void bulk_die(const char *what, long long value)
{
	fprintf(stderr, "sim_bulk: %s: %lld\n", what, value);
	exit(1);
}

/* ------------------------------------------------------------------------------------------------
 * What is measured: the calls of one side. Each begins in sender() or receiver(), so that callgrind
 * finds them.
 */
void bulk_forget_events(struct side *side)
{
	uint32_t events;

	while (harp_stack_next_event(side->stack, &events))
		;
}

static void step_take_frames(struct bench *b)
{
	struct side *tx = &b->tx;
	unsigned each = (b->option[BURST] + b->option[CONNS] - 1) / b->option[CONNS];

	bulk_forget_events(tx);
	tx->frame_count = 0;
	for (unsigned i = 0; i < b->option[CONNS] && tx->frame_count < b->option[BURST]; i++) {
		struct flow *flow = &tx->flows[tx->next];

		for (unsigned n = 0; n < each && tx->frame_count < b->option[BURST]; n++) {
			if (harp_frame_alloc(flow->conn, &tx->frames[tx->frame_count]) != 0)
				break;
			tx->owners[tx->frame_count++] = flow;
		}
		tx->next = (tx->next + 1) % b->option[CONNS];
	}
}

static void step_send_frames(struct bench *b)
{
	struct side *tx = &b->tx;

	for (unsigned i = 0; i < tx->frame_count; i++) {
		if (harp_conn_send_frame(tx->owners[i]->conn, tx->frames[i]) != 0)
			bulk_die("harp_conn_send_frame", harp_conn_error(tx->owners[i]->conn));
	}
}

static void step_send_copy(struct bench *b)
{
	struct side *tx = &b->tx;
	size_t each = (size_t)b->option[BURST] * b->mss_bytes / b->option[CONNS];

	bulk_forget_events(tx);
	each = each < PIECE_BYTES ? each : PIECE_BYTES;
	for (unsigned i = 0; i < b->option[CONNS]; i++) {
		struct flow *flow = &tx->flows[i];
		struct iovec iov = { b->pattern + flow->at % PATTERN_BYTES, each };
		ssize_t n = harp_conn_send(flow->conn, &iov, 1);

		if (n < 0 && n != -EAGAIN)
			bulk_die("harp_conn_send", n);
		flow->at += n > 0 ? (uint64_t)n : 0;
		tx->bytes += n > 0 ? (uint64_t)n : 0;
	}
}

void bulk_poll_tx(struct bench *b)
{
	harp_stack_poll(b->tx.stack, b->tx.now_ns);
}

void bulk_poll_rx(struct bench *b)
{
	harp_stack_poll(b->rx.stack, b->rx.now_ns);
}

/* Until a turn's frames are there, or nothing is left. */
static void step_recv_frames(struct bench *b)
{
	struct side *rx = &b->rx;
	struct harp_conn *conn;
	uint32_t events;

	rx->frame_count = 0;
	while ((conn = harp_stack_next_event(rx->stack, &events)) != NULL) {
		while (rx->frame_count < BURST_MAX &&
		       harp_conn_recv_frame(conn, &rx->frames[rx->frame_count]) == 1)
			rx->owners[rx->frame_count++] = harp_conn_user(conn);
		if (rx->frame_count == BURST_MAX)
			break;
	}
}

static void step_release_frames(struct bench *b)
{
	struct side *rx = &b->rx;

	for (unsigned i = 0; i < rx->frame_count; i++)
		harp_frame_release(rx->owners[i]->conn, rx->frames[i]);
}

/* One flow's bytes to b->piece; owners[0] says whose. */
static void step_recv_copy(struct bench *b)
{
	struct side *rx = &b->rx;
	uint32_t events;
	struct harp_conn *conn =
		rx->frame_count ? rx->owners[0]->conn : harp_stack_next_event(rx->stack, &events);
	ssize_t n;

	rx->frame_count = 0;
	if (!conn)
		return;
	n = harp_conn_recv(conn, b->piece, PIECE_BYTES);
	rx->owners[0] = harp_conn_user(conn);
	rx->frame_count = n > 0 ? (unsigned)n : 0;
}

/* Their own functions, and never copies of them: what they do they read from memory. */
__attribute__((noinline)) static void sender(struct bench *b)
{
	b->tx.step(b);
	b->tx.steps++;
}

__attribute__((noinline)) static void receiver(struct bench *b)
{
	b->rx.step(b);
	b->rx.steps++;
}

/* ------------------------------------------------------------------------------------------------
 * Turns.
 */
static void timed(struct bench *b, struct side *side, step_fn step)
{
	uint64_t begin = pair_clock_cycles();

	side->step = step;
	if (!side->measuring)
		step(b);
	else if (side == &b->tx)
		sender(b);
	else
		receiver(b);
	side->cycles += pair_clock_cycles() - begin;
}

static void verify(struct bench *b, struct flow *flow, const uint8_t *data, uint32_t len)
{
	if (memcmp(data, b->pattern + flow->at % PATTERN_BYTES, len) != 0)
		bulk_die("wrong bytes after", (long long)flow->at);
	flow->at += len;
	b->rx.bytes += len;
}

void bulk_tick(struct bench *b, struct side *side)
{
	side->now_ns = b->option[THREADS] ? bulk_clock_ns() : side->now_ns + TURN_NS;
	side->polls++;
}

static void fill_frames(struct bench *b)
{
	for (unsigned i = 0; i < b->tx.frame_count; i++) {
		struct harp_frame *frame = b->tx.frames[i];
		struct flow *flow = b->tx.owners[i];

		frame->len = frame->capacity;
		memcpy(frame->data, b->pattern + flow->at % PATTERN_BYTES, frame->len);
		flow->at += frame->len;
		b->tx.bytes += frame->len;
	}
}

void bulk_turn_tx(struct bench *b)
{
	bulk_tick(b, &b->tx);
	if (b->option[COPY]) {
		timed(b, &b->tx, step_send_copy);
	} else {
		timed(b, &b->tx, step_take_frames);
		fill_frames(b);
		timed(b, &b->tx, step_send_frames);
	}
	timed(b, &b->tx, bulk_poll_tx);
}

void bulk_turn_rx(struct bench *b)
{
	struct side *rx = &b->rx;

	bulk_tick(b, rx);
	timed(b, rx, bulk_poll_rx);
	rx->frame_count = 0;
	do {
		timed(b, rx, b->option[COPY] ? step_recv_copy : step_recv_frames);
		if (b->option[COPY]) {
			if (rx->frame_count)
				verify(b, rx->owners[0], b->piece, rx->frame_count);
			continue;
		}
		for (unsigned i = 0; i < rx->frame_count; i++)
			verify(b, rx->owners[i], rx->frames[i]->data, rx->frames[i]->len);
		timed(b, rx, step_release_frames);
	} while (rx->frame_count == (b->option[COPY] ? PIECE_BYTES : BURST_MAX));
}
