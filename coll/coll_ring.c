/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_ring.c - ring all-reduce and all-gather, in pieces.
 *
 * Theory of operation. The array is divided into one chunk for each rank. The first half is a
 * reduce-scatter of world - 1 steps. In step s, a rank sends chunk me - s to the next rank,
 * receives chunk me - s - 1, and adds its input. After it, this rank has the complete chunk me + 1.
 * The second half is an all-gather: the ranks pass the complete chunks on. A chunk's additions
 * follow the ring from the chunk's rank, so their order does not depend on timing.
 *
 * Chunks are sent in pieces. The next step's send of a piece waits for that piece only, so
 * receiving, adding and sending overlap. The first half receives pieces into slots of scratch
 * memory, which stay in the processor's cache; the second half receives into the caller's memory.
 *
 * With a float16 or bfloat16 wire format, pieces are encoded into slots. The rank that completes a
 * chunk decodes the bytes that it sends, so that all ranks have the same result.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll_ring.h"

#define RING_SLOTS 8u
#define CHUNK_ELEMENTS 16u /* chunks start at multiples of this: cache lines of float32 */

static int ring_rank(const struct ring *ring, int index)
{
	index = (index + 2 * ring->count) % ring->count;
	return ring->ranks ? ring->ranks[index * ring->stride] : index;
}

struct cut {
	size_t chunk;  /* elements of a chunk, except the last */
	size_t piece;  /* elements of a piece, except a chunk's last */
	size_t pieces; /* of a chunk, except the last */
	size_t total;  /* elements */
};

static void ring_cut(const struct ring *ring, struct cut *cut)
{
	size_t element = harp_coll_dtype_bytes(ring->op->call.dtype);
	size_t count = (size_t)ring->count;

	cut->total = ring->elements;
	cut->chunk = (ring->elements + count - 1) / count;
	cut->chunk = (cut->chunk + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS * CHUNK_ELEMENTS;
	cut->piece = algo_piece_bytes(cut->chunk * element) / element;
	cut->pieces = (cut->chunk + cut->piece - 1) / cut->piece;
}

/* Piece p of chunk c; false: the chunk has no such piece. */
static bool ring_piece(const struct ring *ring, const struct cut *cut, int c, size_t p,
		       struct ring_piece *piece)
{
	size_t start = (size_t)((c + 2 * ring->count) % ring->count) * cut->chunk, end;

	end = start + cut->chunk < cut->total ? start + cut->chunk : cut->total;
	start += p * cut->piece;
	if (start >= end)
		return false;
	piece->offset = start;
	piece->count = end - start < cut->piece ? end - start : cut->piece;
	return true;
}

int ring_layout(struct ring *ring)
{
	struct cut cut;
	struct ring_piece piece = { .act = -1 };

	ring_cut(ring, &cut);
	ring->pieces_count = 0;
	ring->pieces = malloc(((size_t)ring->count * cut.pieces + 1) * sizeof(*ring->pieces));
	if (!ring->pieces)
		return -ENOMEM;
	for (int s = 0; s < ring->count; s++)
		for (size_t p = 0; p < cut.pieces; p++)
			if (ring_piece(ring, &cut, ring->me + 1 - s, p, &piece))
				ring->pieces[ring->pieces_count++] = piece;
	return 0;
}

/* Receiving into a slot never waits for a send; otherwise a ring of ranks would deadlock. */
struct half_state {
	char *slots;
	size_t slot_bytes, slots_used, sends_used;
	int users[RING_SLOTS];   /* act that must be done before the slot receives again */
	int senders[RING_SLOTS]; /* wire formats: act that must be done before encoding again */
	int *sends;              /* [step * pieces + piece]: act that reads the caller's memory */
};

static char *ring_slot(struct half_state *state, unsigned *slot)
{
	*slot = (unsigned)(state->slots_used++ % RING_SLOTS);
	return state->slots + *slot * state->slot_bytes;
}

/* Receives a piece in step s, adds the input, and sends the sum, which belongs to step s + 1. */
static int ring_add(struct ring *ring, const struct cut *cut, struct half_state *state, int s,
		    size_t p, const struct ring_piece *piece)
{
	struct harp_coll_request *op = ring->op;
	size_t element = harp_coll_dtype_bytes(op->call.dtype), bytes = piece->count * element;
	size_t at = piece->offset * element;
	bool is_last = s == ring->count - 2;
	const void *value;
	unsigned slot;
	char *buffer = ring_slot(state, &slot);
	int rc = sched_recv(op, ring_rank(ring, ring->me - 1), buffer, bytes, state->users[slot],
			    &value);

	if (rc < 0)
		return rc;
	rc = sched_local(op, ring->lane, ACT_REDUCE, ring->out + at, value, ring->in + at,
			 piece->count, rc, ring->ready);
	state->users[slot] = rc;
	if (is_last && op->call.reduce == HARP_COLL_AVG && rc >= 0)
		rc = sched_local(op, ring->lane, ACT_DIVIDE, ring->out + at, NULL, NULL,
				 piece->count, rc, -1);
	if (rc < 0)
		return rc;
	if (is_last)
		ring->pieces[ring->pieces_count++] =
			(struct ring_piece){ piece->offset, piece->count, rc };
	rc = sched_send(op, ring_rank(ring, ring->me + 1), ring->out + at, bytes, rc);
	if (!is_last)
		state->sends[(size_t)(s + 1) * cut->pieces + p] = rc;
	return rc;
}

/* Receives a complete piece and passes it on. The receive waits until the first half has sent that
 * memory. */
static int ring_pass(struct ring *ring, const struct cut *cut, struct half_state *state, int s,
		     size_t p, const struct ring_piece *piece)
{
	struct harp_coll_request *op = ring->op;
	size_t element = harp_coll_dtype_bytes(op->call.dtype);
	char *out = ring->out + piece->offset * element;
	int rc = sched_recv(op, ring_rank(ring, ring->me - 1), out, piece->count * element,
			    state->sends[(size_t)s * cut->pieces + p], NULL);

	if (rc < 0)
		return rc;
	ring->pieces[ring->pieces_count++] = (struct ring_piece){ piece->offset, piece->count, rc };
	if (s < ring->count - 2)
		rc = sched_send(op, ring_rank(ring, ring->me + 1), out, piece->count * element, rc);
	return rc;
}

static int ring_halves(struct ring *ring, const struct cut *cut, struct half_state *state)
{
	struct harp_coll_request *op = ring->op;
	size_t element = harp_coll_dtype_bytes(op->call.dtype);
	struct ring_piece piece;
	int rc = 0;

	for (size_t p = 0; p < cut->pieces && ring_piece(ring, cut, ring->me, p, &piece); p++) {
		rc = sched_send(op, ring_rank(ring, ring->me + 1),
				ring->in + piece.offset * element, piece.count * element,
				ring->ready);
		if (rc < 0)
			return rc;
		state->sends[p] = rc;
	}
	for (int s = 0; s < ring->count - 1; s++)
		for (size_t p = 0; p < cut->pieces && rc >= 0; p++)
			if (ring_piece(ring, cut, ring->me - s - 1, p, &piece))
				rc = ring_add(ring, cut, state, s, p, &piece);
	for (int s = 0; s < ring->count - 1; s++)
		for (size_t p = 0; p < cut->pieces && rc >= 0; p++)
			if (ring_piece(ring, cut, ring->me - s, p, &piece))
				rc = ring_pass(ring, cut, state, s, p, &piece);
	return rc;
}

/* Encodes a piece into a slot and sends it. decoded: NULL, or memory for the receiver's values. */
static int wire_send(struct ring *ring, struct half_state *state, const char *from, char *decoded,
		     size_t count, int dep)
{
	struct harp_coll_request *op = ring->op;
	unsigned slot = (unsigned)(state->sends_used++ % RING_SLOTS), lane = ring->lane + 1;
	char *buffer = state->slots + (RING_SLOTS + slot) * state->slot_bytes;
	int rc = sched_local(op, lane, ACT_ENCODE, buffer, from, NULL, count, dep,
			     state->senders[slot]);

	if (decoded && rc >= 0)
		rc = sched_local(op, lane, ACT_DECODE, decoded, buffer, NULL, count, rc, -1);
	if (rc >= 0)
		rc = sched_send(op, ring_rank(ring, ring->me + 1), buffer, count * 2, rc);
	state->senders[slot] = rc;
	return rc;
}

static int wire_add(struct ring *ring, const struct cut *cut, struct half_state *state, int s,
		    size_t p, const struct ring_piece *piece)
{
	struct harp_coll_request *op = ring->op;
	char *out = ring->out + piece->offset * sizeof(float);
	bool is_last = s == ring->count - 2;
	const void *value;
	unsigned slot;
	char *buffer = ring_slot(state, &slot);
	int rc = sched_recv(op, ring_rank(ring, ring->me - 1), buffer, piece->count * 2,
			    state->users[slot], &value);

	if (rc >= 0)
		rc = sched_local(op, ring->lane, ACT_DECODE_ADD, out,
				 ring->in + piece->offset * sizeof(float), value, piece->count, rc,
				 ring->ready);
	state->users[slot] = rc;
	if (is_last && op->call.reduce == HARP_COLL_AVG && rc >= 0)
		rc = sched_local(op, ring->lane, ACT_DIVIDE, out, NULL, NULL, piece->count, rc, -1);
	if (rc >= 0)
		rc = wire_send(ring, state, out, is_last ? out : NULL, piece->count, rc);
	if (is_last && rc >= 0) /* complete when decoded, also before it is sent */
		ring->pieces[ring->pieces_count++] =
			(struct ring_piece){ piece->offset, piece->count,
					     op->lanes[ring->lane + 1].last };
	if (!is_last)
		state->sends[(size_t)(s + 1) * cut->pieces + p] = rc;
	return rc;
}

/* Encoding a decoded piece gives the same bits, so the slot is free after decoding. */
static int wire_pass(struct ring *ring, const struct cut *cut, struct half_state *state, int s,
		     size_t p, const struct ring_piece *piece)
{
	struct harp_coll_request *op = ring->op;
	char *out = ring->out + piece->offset * sizeof(float);
	const void *value;
	unsigned slot;
	char *buffer = ring_slot(state, &slot);
	int rc = sched_recv(op, ring_rank(ring, ring->me - 1), buffer, piece->count * 2,
			    state->users[slot], &value);

	if (rc >= 0)
		rc = sched_local(op, ring->lane, ACT_DECODE, out, value, NULL, piece->count, rc,
				 state->sends[(size_t)s * cut->pieces + p]);
	state->users[slot] = rc;
	ring->pieces[ring->pieces_count++] = (struct ring_piece){ piece->offset, piece->count, rc };
	if (s < ring->count - 2 && rc >= 0)
		rc = wire_send(ring, state, out, NULL, piece->count, rc);
	return rc;
}

static int wire_halves(struct ring *ring, const struct cut *cut, struct half_state *state)
{
	struct ring_piece piece;
	int rc = 0;

	for (size_t p = 0; p < cut->pieces && rc >= 0; p++)
		if (ring_piece(ring, cut, ring->me, p, &piece))
			rc = state->sends[p] =
				wire_send(ring, state, ring->in + piece.offset * sizeof(float),
					  NULL, piece.count, ring->ready);
	for (int s = 0; s < ring->count - 1; s++)
		for (size_t p = 0; p < cut->pieces && rc >= 0; p++)
			if (ring_piece(ring, cut, ring->me - s - 1, p, &piece))
				rc = wire_add(ring, cut, state, s, p, &piece);
	for (int s = 0; s < ring->count - 1; s++)
		for (size_t p = 0; p < cut->pieces && rc >= 0; p++)
			if (ring_piece(ring, cut, ring->me - s, p, &piece))
				rc = wire_pass(ring, cut, state, s, p, &piece);
	return rc;
}

int ring_build(struct ring *ring)
{
	struct harp_coll_request *op = ring->op;
	size_t element = harp_coll_dtype_bytes(op->call.dtype);
	/* On one host, 16-bit formats save no time. */
	bool is_wire = op->call.wire > HARP_COLL_WIRE_NATIVE && op->group->hosts_count > 1;
	struct half_state state;
	struct cut cut;
	int rc;

	ring_cut(ring, &cut);
	ring->pieces_count = 0;
	ring->pieces = malloc(((size_t)ring->count * cut.pieces + 1) * sizeof(*ring->pieces));
	state.sends = malloc(((size_t)ring->count * cut.pieces + 1) * sizeof(int));
	state.slot_bytes = is_wire ? cut.piece * 2 : cut.piece * element;
	state.slots_used = state.sends_used = 0;
	state.slots = sched_scratch(op, (is_wire ? 2 : 1) * RING_SLOTS * state.slot_bytes);
	for (unsigned i = 0; i < RING_SLOTS; i++)
		state.users[i] = state.senders[i] = -1;
	if (!ring->pieces || !state.sends || !state.slots)
		rc = -ENOMEM;
	else
		rc = is_wire ? wire_halves(ring, &cut, &state) : ring_halves(ring, &cut, &state);
	free(state.sends);
	return rc < 0 ? rc : 0;
}

int ring_allreduce(struct harp_coll_request *op)
{
	struct ring ring = { .op = op,
			     .count = op->group->world,
			     .me = op->group->rank,
			     .in = op->call.in,
			     .out = op->call.out,
			     .elements = op->call.count,
			     .ready = -1 };
	int rc = ring_build(&ring);

	free(ring.pieces);
	return rc;
}

int relay_block(struct harp_coll_request *op, int source, char *out, const char *in, size_t bytes,
		const int *ranks, int count)
{
	size_t piece = algo_piece_bytes(bytes), at = 0;
	int rc = 0, dep = -1;

	do {
		size_t part = bytes - at < piece ? bytes - at : piece;

		if (source >= 0)
			rc = dep = sched_recv(op, source, out + at, part, -1, NULL);
		for (int i = 0; i < count && rc >= 0; i++)
			rc = sched_send(op, ranks[i], in + at, part, dep);
		at += part;
	} while (at < bytes && rc >= 0);
	return rc;
}

int ring_allgather(struct harp_coll_request *op)
{
	int world = op->group->world, me = op->group->rank, rc;
	int next = (me + 1) % world, previous = (me + world - 1) % world;
	size_t element = harp_coll_dtype_bytes(op->call.dtype), count;
	const char *in = algo_in_block(op, me, &count);
	char *out = algo_out_block(op, me, &count);

	rc = sched_local(op, 0, ACT_COPY, out, in, NULL, count * element, -1, -1);
	if (rc >= 0)
		rc = relay_block(op, -1, NULL, in, count * element, &next, 1);
	for (int s = 0; s < world - 1 && rc >= 0; s++) {
		out = algo_out_block(op, (me + world - s - 1) % world, &count);
		rc = relay_block(op, previous, out, out, count * element, &next, s < world - 2);
	}
	return rc < 0 ? rc : 0;
}
