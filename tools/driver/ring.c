/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - ring all-reduce of float32: NCCL's schedule, and the GPU's part of it.
 *
 * Theory of operation. The array is cut in one part per channel, a part in rounds of at most
 * `ranks` chunks, a chunk in slices; a slice is one message. Each rank takes 2 * ranks - 1 steps
 * per round:
 *
 *	step 0                 send the own chunk before mine
 *	step 1 .. n-2          receive, add mine, send on
 *	step n-1               receive, add mine: the sum is complete; keep it and send it on
 *	step n .. 2n-3         receive a sum, keep it, send it on
 *	step 2n-2              receive the last sum
 *
 * A step waits until its slice has arrived (if it receives) and a slot is free (if it sends): this
 * is what the GPU's kernel does in NCCL while the proxy thread moves the slots. Chunks of an array
 * shorter than the ring are empty: their messages have 0 bytes, as NCCL's have.
 *
 * Slices have up to 1 MiB, two of NCCL's slots, so 4 are outstanding.
 */
#include <stdio.h>
#include <string.h>

#include "ring.h"

#define RING_SLICE (2u * PLAY_SLOT_BYTES / sizeof(float))
#define RING_SLICES 2u
#define RING_SMALL (65536u / sizeof(float)) /* chunks up to here travel as one message */
#define RING_ALIGN 4u                       /* elements: slices start at 16 bytes */

static size_t ring_align(size_t n)
{
	return (n + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
}

static void ring_round(struct ring_op *ring, struct ring_part *part)
{
	size_t ranks = (size_t)ring->play->options.ranks;
	size_t most = RING_SLICE * RING_SLICES;
	size_t chunk = ring_align((part->count - part->base + ranks - 1) / ranks);

	part->chunk = chunk < most ? chunk : most;
	part->slices = part->chunk <= RING_SMALL ? 1 : RING_SLICES;
	part->step = 0;
	part->slice = 0;
}

/* Messages that one channel's connection carries in one all-reduce. */
static uint64_t ring_messages(struct ring_op *ring, struct ring_part part)
{
	uint64_t messages = 0;
	unsigned ranks = (unsigned)ring->play->options.ranks;

	for (part.base = 0; part.base < part.count; part.base += part.chunk * ranks) {
		ring_round(ring, &part);
		messages += 2ull * (ranks - 1) * part.slices;
	}
	return messages;
}

static void ring_restart(struct ring_op *ring)
{
	int channels = ring->play->options.channels;
	size_t share = (ring->count + (size_t)channels - 1) / (size_t)channels;
	size_t at = 0;

	/* Short arrays use fewer channels, as in NCCL. */
	share = (share + 1023) / 1024 * 1024;
	for (int c = 0; c < channels; c++) {
		struct ring_part *part = &ring->parts[c];
		size_t n = ring->count - at < share ? ring->count - at : share;

		part->src = ring->src + at;
		part->dst = ring->dst + at;
		part->count = n;
		part->base = 0;
		part->over = n == 0;
		if (n)
			ring_round(ring, part);
		part->recv->limit += ring_messages(ring, *part);
		at += n;
	}
}

/* Which chunk of the round this step is about. */
static unsigned ring_chunk(unsigned step, unsigned rank, unsigned ranks)
{
	return (rank + 2 * ranks - 1 - step) % ranks;
}

/* dst, out: may be NULL. */
static void ring_copy(float *dst, float *out, const float *in, size_t n)
{
	if (dst)
		memcpy(dst, in, n * sizeof(float));
	if (out)
		memcpy(out, in, n * sizeof(float));
}

static void ring_add(float *restrict dst, float *restrict out, const float *in, const float *mine,
		     size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = in[i] + mine[i];
	if (dst)
		memcpy(dst, out, n * sizeof(float));
}

static void ring_advance(struct ring_op *ring, struct ring_part *part)
{
	unsigned ranks = (unsigned)ring->play->options.ranks;

	if (++part->slice < part->slices)
		return;
	part->slice = 0;
	if (++part->step < 2 * ranks - 1)
		return;
	part->base += part->chunk * ranks;
	if (part->base >= part->count)
		part->over = true;
	else
		ring_round(ring, part);
}

/* The GPU's part: one slice of the current step, if all it needs is there. 1, 0 or -1. */
static int ring_step(struct ring_op *ring, struct ring_part *part)
{
	struct play *play = ring->play;
	unsigned ranks = (unsigned)play->options.ranks;
	bool receives = part->step > 0, sends = part->step < 2 * ranks - 2;
	size_t per_slice = ring_align((part->chunk + part->slices - 1) / part->slices);
	size_t from = ring_chunk(part->step, (unsigned)play->options.rank, ranks) * part->chunk;
	size_t end = from + part->chunk, n, bytes;
	const float *in, *mine;
	float *out = NULL, *dst = NULL;

	from += part->base + part->slice * per_slice;
	end += part->base;
	if (from + per_slice < end)
		end = from + per_slice;
	if (end > part->count)
		end = part->count;
	n = from < end ? end - from : 0;
	mine = part->src + (n ? from : 0);
	if (sends && !conn_can_fill(part->send))
		return 0;
	in = receives ? (const float *)(const void *)conn_take_slot(part->recv, &bytes) : mine;
	if (!in)
		return 0;
	if (sends)
		out = (float *)(void *)conn_fill_slot(part->send);
	if (part->step >= ranks - 1 && n)
		dst = part->dst + from;
	if (part->step >= 1 && part->step <= ranks - 1 && out) /* what adds also sends */
		ring_add(dst, out, in, mine, n);
	else
		ring_copy(dst, out, in, n);
	if (receives && conn_consume(part->recv, n * sizeof(float)))
		return -1;
	if (sends)
		conn_fill(part->send, n * sizeof(float));
	ring_advance(ring, part);
	return 1;
}

/* At the end of an iteration notes the time and begins the next. */
static bool ring_iterate(struct ring_op *ring)
{
	unsigned iteration = ring->iteration;

	for (int c = 0; c < ring->play->options.channels; c++)
		if (!ring->parts[c].over)
			return false;
	if (iteration == ring->iterations)
		return false;
	if (ring->iteration_ns)
		ring->iteration_ns[iteration] = play_now_ns();
	if (iteration + 1 < ring->iterations)
		ring_restart(ring);
	ring->iteration = iteration + 1;
	return true;
}

static bool ring_drained(struct ring_op *ring)
{
	if (ring->iteration < ring->iterations)
		return false;
	for (int c = 0; c < ring->play->options.channels; c++) {
		struct ring_part *part = &ring->parts[c];

		if (part->send->done < part->send->filled ||
		    part->recv->received < part->recv->limit)
			return false;
	}
	return true;
}

static int ring_pass(struct op *op)
{
	struct ring_op *ring = (struct ring_op *)(void *)op; /* its first member */
	int moved = 0, rc;

	if (!ring->start_ns)
		ring->start_ns = play_now_ns();
	for (int c = 0; c < ring->play->options.channels; c++) {
		struct ring_part *part = &ring->parts[c];

		rc = conn_recv_pass(part->recv);
		if (rc < 0)
			return rc;
		moved |= rc;
		while (!part->over && (rc = ring_step(ring, part)) != 0) {
			if (rc < 0)
				return rc;
			moved = 1;
		}
		rc = conn_send_pass(part->send);
		if (rc < 0)
			return rc;
		moved |= rc;
	}
	if (ring_iterate(ring))
		moved = 1;
	op->finished = ring_drained(ring);
	return moved;
}

static void ring_describe(struct op *op, char *text, size_t len)
{
	struct ring_op *ring = (struct ring_op *)(void *)op;
	char one[256];
	size_t at = 0;

	snprintf(text, len, "iteration %u of %u, %zu elements", (unsigned)ring->iteration + 1,
		 ring->iterations, ring->count);
	for (int c = 0; c < ring->play->options.channels; c++) {
		struct ring_part *part = &ring->parts[c];

		at = strlen(text);
		conn_describe(part->recv, one, sizeof(one));
		snprintf(text + at, len - at, "; %s", one);
		at = strlen(text);
		conn_describe(part->send, one, sizeof(one));
		snprintf(text + at, len - at, "; %s", one);
	}
}

void ring_prepare(struct ring_op *ring, struct play *play, const float *src, float *dst,
		  size_t count, unsigned iterations, uint64_t *iteration_ns)
{
	memset(ring, 0, sizeof(*ring));
	ring->op.name = "all-reduce";
	ring->op.pass = ring_pass;
	ring->op.describe = ring_describe;
	ring->play = play;
	ring->src = src;
	ring->dst = dst;
	ring->count = count;
	ring->iterations = iterations;
	ring->iteration_ns = iteration_ns;
	for (int c = 0; c < play->options.channels; c++) {
		struct channel *ch = &play->channels[c];

		ring->parts[c] = (struct ring_part){ .send = &ch->send, .recv = &ch->recv };
		conn_shape(&ch->send, 2 * PLAY_SLOT_BYTES, PLAY_SLOTS / 2);
		conn_shape(&ch->recv, 2 * PLAY_SLOT_BYTES, PLAY_SLOTS / 2);
	}
	ring_restart(ring);
}
