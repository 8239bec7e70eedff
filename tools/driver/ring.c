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
 * Simple: slices of up to 1 MiB, two of NCCL's slots, so 4 outstanding. LL: 64 KiB slots of 16-byte
 * lines {data, flag, data, flag}; the receiver does not wait for the completion but reads the
 * buffer while the plugin fills it and takes a line when both flags have the message's number. For
 * that the GPU's part has a thread of its own: a plugin that lets a flag be seen before its data
 * gives wrong sums here, as it would on a GPU.
 */
#include <stdio.h>
#include <string.h>

#include "ring.h"

#define RING_SIMPLE_SLICE (2u * PLAY_SLOT_BYTES / sizeof(float))
#define RING_SIMPLE_SLICES 2u
#define RING_SMALL (65536u / sizeof(float)) /* chunks up to here travel as one message */
#define RING_LL_SLICE (PLAY_LL_SLOT_BYTES / 2 / sizeof(float))
#define RING_ALIGN 4u /* elements: slices start at 16 bytes */

struct ll_line {
	uint64_t word[2]; /* each: data below, flag above */
};

static size_t ring_align(size_t n)
{
	return (n + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
}

static void ring_round(struct ring_op *ring, struct ring_part *part)
{
	size_t ranks = (size_t)ring->play->options.ranks;
	bool ll = ring->play->options.ll;
	size_t most = ll ? RING_LL_SLICE : RING_SIMPLE_SLICE * RING_SIMPLE_SLICES;
	size_t chunk = ring_align((part->count - part->base + ranks - 1) / ranks);

	part->chunk = chunk < most ? chunk : most;
	part->slices = ll || part->chunk <= RING_SMALL ? 1 : RING_SIMPLE_SLICES;
	part->step = 0;
	part->slice = 0;
	part->line = 0;
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
		count_add(&part->recv->limit, ring_messages(ring, *part));
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

static uint64_t ll_load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* Reads lines while they are there, from *line on; true when the slice is complete. in: up to n. */
static bool ll_take(const struct ll_line *lines, uint32_t flag, float *in, size_t n, size_t *line)
{
	for (; *line < n; *line += 2) {
		uint64_t a = ll_load(&lines[*line / 2].word[0]);
		uint64_t b = ll_load(&lines[*line / 2].word[1]);
		uint32_t words[2] = { (uint32_t)a, (uint32_t)b };

		if ((uint32_t)(a >> 32) != flag || (uint32_t)(b >> 32) != flag)
			return false;
		memcpy(in + *line, words, (n - *line < 2 ? 1 : 2) * sizeof(float));
	}
	return true;
}

static void ll_put(struct ll_line *lines, uint32_t flag, const float *out, size_t n)
{
	for (size_t i = 0; i < n; i += 2) {
		uint32_t words[2] = { 0, 0 };

		memcpy(words, out + i, (n - i < 2 ? 1 : 2) * sizeof(float));
		lines[i / 2].word[0] = (uint64_t)flag << 32 | words[0];
		lines[i / 2].word[1] = (uint64_t)flag << 32 | words[1];
	}
}

static size_t ring_wire_bytes(const struct ring_op *ring, size_t n)
{
	return ring->play->options.ll ? (n + 1) / 2 * sizeof(struct ll_line) : n * sizeof(float);
}

/* The slice of n elements that came in, or NULL when it hasn't yet. */
static const float *ring_arrived(struct ring_op *ring, struct ring_part *part, size_t n)
{
	struct conn *recv = part->recv;
	const void *slot = conn_consume_slot(recv);
	uint64_t consumed = count_get(&recv->consumed);

	if (!ring->play->options.ll)
		return count_get(&recv->received) > consumed ? slot : NULL;
	/* Posted is enough: NCCL's GPU looks at the slot, not at the completion. */
	if (count_get(&recv->posted) == consumed ||
	    (n == 0 && count_get(&recv->received) == consumed) ||
	    !ll_take(slot, recv->flag + 1, part->ll_in, n, &part->line))
		return NULL;
	return part->ll_in;
}

static void ring_advance(struct ring_op *ring, struct ring_part *part)
{
	unsigned ranks = (unsigned)ring->play->options.ranks;

	part->line = 0;
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
	struct ncclplay *play = ring->play;
	unsigned ranks = (unsigned)play->options.ranks;
	bool receives = part->step > 0, sends = part->step < 2 * ranks - 2;
	size_t per_slice = ring_align((part->chunk + part->slices - 1) / part->slices);
	size_t from = ring_chunk(part->step, (unsigned)play->options.rank, ranks) * part->chunk;
	size_t end = from + part->chunk, n;
	const float *in = NULL, *mine;
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
	if (receives) {
		in = ring_arrived(ring, part, n);
		if (!in)
			return 0;
	} else {
		in = mine;
	}
	if (sends)
		out = play->options.ll ? part->ll_out : (float *)(void *)conn_fill_slot(part->send);
	if (part->step >= ranks - 1 && n)
		dst = part->dst + from;
	if (part->step >= 1 && part->step <= ranks - 1 && out) /* what adds also sends */
		ring_add(dst, out, in, mine, n);
	else
		ring_copy(dst, out, in, n);
	if (receives) {
		conn_consume(part->recv, ring_wire_bytes(ring, n));
		part->recv->flag++;
	}
	if (sends) {
		part->send->flag++;
		if (play->options.ll)
			ll_put((struct ll_line *)(void *)conn_fill_slot(part->send),
			       part->send->flag, out, n);
		conn_fill(part->send, ring_wire_bytes(ring, n));
	}
	ring_advance(ring, part);
	return 1;
}

/* GPU's part: at the end of an iteration notes the time and begins the next. */
static bool ring_iterate(struct ring_op *ring)
{
	uint64_t iteration = count_get(&ring->iteration);

	for (int c = 0; c < ring->play->options.channels; c++)
		if (!ring->parts[c].over)
			return false;
	if (iteration == ring->iterations)
		return false;
	if (ring->iteration_ns)
		ring->iteration_ns[iteration] = play_now_ns();
	if (iteration + 1 < ring->iterations)
		ring_restart(ring);
	count_put(&ring->iteration, iteration + 1);
	return true;
}

static int ring_gpu(struct op *op)
{
	struct ring_op *ring = (struct ring_op *)(void *)op;
	int moved = 0;

	for (int c = 0; c < ring->play->options.channels; c++)
		while (!ring->parts[c].over && ring_step(ring, &ring->parts[c]))
			moved = 1;
	if (ring_iterate(ring))
		moved = 1;
	return count_get(&ring->iteration) == ring->iterations ? -1 : moved;
}

static bool ring_drained(struct ring_op *ring)
{
	if (count_get(&ring->iteration) < ring->iterations)
		return false;
	for (int c = 0; c < ring->play->options.channels; c++) {
		struct ring_part *part = &ring->parts[c];

		if (count_get(&part->send->done) < count_get(&part->send->filled) ||
		    count_get(&part->recv->received) < count_get(&part->recv->limit))
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
		while (!op->gpu && !part->over && ring_step(ring, part))
			moved = 1;
		rc = conn_send_pass(part->send);
		if (rc < 0)
			return rc;
		moved |= rc;
	}
	if (!op->gpu && ring_iterate(ring))
		moved = 1;
	if (ring_drained(ring)) {
		for (int c = 0; c < ring->play->options.channels; c++)
			if (conn_check(ring->parts[c].recv))
				return -1;
		op->finished = true;
	}
	return moved;
}

static void ring_describe(struct op *op, char *text, size_t len)
{
	struct ring_op *ring = (struct ring_op *)(void *)op;
	char one[256];
	size_t at = 0;

	snprintf(text, len, "iteration %u of %u, %zu elements",
		 (unsigned)count_get(&ring->iteration) + 1, ring->iterations, ring->count);
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

/* One rank: no message, as in NCCL. */
static int ring_alone(struct op *op)
{
	struct ring_op *ring = (struct ring_op *)(void *)op;

	ring->start_ns = play_now_ns();
	for (uint64_t i = 0; i < ring->iterations; i++) {
		if (ring->dst != ring->src)
			memcpy(ring->dst, ring->src, ring->count * sizeof(float));
		if (ring->iteration_ns)
			ring->iteration_ns[i] = play_now_ns();
	}
	op->finished = true;
	return 1;
}

void ring_prepare(struct ring_op *ring, struct ncclplay *play, const float *src, float *dst,
		  size_t count, unsigned iterations, uint64_t *iteration_ns)
{
	bool ll = play->options.ll;

	memset(ring, 0, sizeof(*ring));
	ring->op.name = "all-reduce";
	ring->op.pass = play->options.ranks == 1 ? ring_alone : ring_pass;
	ring->op.describe = ring_describe;
	ring->op.gpu = ll && play->options.ranks > 1 ? ring_gpu : NULL;
	ring->play = play;
	ring->src = src;
	ring->dst = dst;
	ring->count = count;
	ring->iterations = iterations;
	ring->iteration_ns = iteration_ns;
	for (int c = 0; c < play->options.channels; c++) {
		struct channel *ch = &play->channels[c];
		size_t bytes = ll ? PLAY_LL_SLOT_BYTES : 2 * PLAY_SLOT_BYTES;
		unsigned depth = ll ? PLAY_SLOTS : PLAY_SLOTS / 2;

		ring->parts[c] = (struct ring_part){ .send = &ch->send,
						     .recv = &ch->recv,
						     .ll_in = ch->ll_in,
						     .ll_out = ch->ll_out };
		conn_shape(&ch->send, bytes, bytes, depth, false);
		conn_shape(&ch->recv, bytes, bytes, depth, ll);
	}
	ring_restart(ring);
}
