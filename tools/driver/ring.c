/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - ring all-reduce of float32 with NCCL's schedule, including the GPU's work.
 *
 * Theory of operation. The array is divided into one part per channel, a part into rounds of at
 * most `ranks` chunks, a chunk into slices. A slice is one message. Each rank executes 2 * ranks -
 * 1 steps per round:
 *
 *	step 0                 send a chunk of the source
 *	step 1 .. n-2          receive, add the source, send
 *	step n-1               receive, add the source, which completes the sum; store and send it
 *	step n .. 2n-3         receive a sum, store and send it
 *	step 2n-2              receive and store the last sum
 *
 * A step that receives waits for its slice, and a step that sends for a free slot, as the GPU's
 * kernel does in NCCL while the proxy thread moves the slots. Chunks of an array shorter than the
 * ring are empty: their messages have 0 bytes, as in NCCL.
 *
 * A slice has at most 1 MiB, two of NCCL's slots, so 4 are outstanding.
 */
#include <stdio.h>
#include <string.h>

#include "ring.h"

#define RING_SLICE (2u * PLAY_SLOT_BYTES / sizeof(float))
#define RING_SLICES 2u
#define RING_SMALL (65536u / sizeof(float)) /* largest chunk that is sent as one message */
#define RING_ALIGN 4u                       /* elements: slices are aligned to 16 bytes */

static size_t ring_align(size_t n)
{
	return (n + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
}

static void ring_round(struct ring_op *ring, struct ring_part *part)
{
	size_t ranks = (size_t)ring->play->options.ranks;
	size_t max = RING_SLICE * RING_SLICES;
	size_t chunk = ring_align((part->count - part->base + ranks - 1) / ranks);

	part->chunk = chunk < max ? chunk : max;
	part->slices = part->chunk <= RING_SMALL ? 1 : RING_SLICES;
	part->step = 0;
	part->slice = 0;
}

/* Number of messages of one channel in one all-reduce. */
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
		part->done = n == 0;
		if (n)
			ring_round(ring, part);
		part->recv->limit += ring_messages(ring, *part);
		at += n;
	}
}

/* The chunk of the round that a step handles. */
static unsigned ring_chunk(unsigned step, unsigned rank, unsigned ranks)
{
	return (rank + 2 * ranks - 1 - step) % ranks;
}

/* dst and out may be NULL. */
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
		part->done = true;
	else
		ring_round(ring, part);
}

/* The GPU's work for one slice of the current step. Returns 1, 0 if it must wait, or -1. */
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
	if (part->step >= 1 && part->step <= ranks - 1 && out) /* each step that adds also sends */
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

/* At the end of an iteration, records the time and starts the next one. */
static bool ring_iterate(struct ring_op *ring)
{
	unsigned iteration = ring->iteration;

	for (int c = 0; c < ring->play->options.channels; c++)
		if (!ring->parts[c].done)
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

static bool ring_is_drained(struct ring_op *ring)
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
	struct ring_op *ring = (struct ring_op *)(void *)op; /* op is its first member */
	int moved = 0, rc;

	if (!ring->start_ns)
		ring->start_ns = play_now_ns();
	for (int c = 0; c < ring->play->options.channels; c++) {
		struct ring_part *part = &ring->parts[c];

		rc = conn_recv_pass(part->recv);
		if (rc < 0)
			return rc;
		moved |= rc;
		while (!part->done && (rc = ring_step(ring, part)) != 0) {
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
	op->finished = ring_is_drained(ring);
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
