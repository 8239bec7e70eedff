/* SPDX-License-Identifier: Apache-2.0 */
/* coll_direct.c - direct exchange: every rank sends to every other rank that needs its data. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll_impl.h"

#define EXCHANGE_PIECE_BYTES (1u << 20)
#define SCATTER_SLOTS 2u /* pieces of each rank in memory */

/* Each rank sends its input to all others, and sums all inputs in rank order. */
int direct_allreduce(struct harp_coll_request *op)
{
	const struct harp_coll_call *call = &op->call;
	int world = op->group->world, me = op->group->rank, rc = 0, recvs[8];
	size_t element = harp_coll_dtype_bytes(call->dtype), bytes = call->count * element;
	const void *values[8];

	assert(world <= 8);
	values[me] = call->in;
	recvs[me] = -1;
	if (me >= 2 && call->in == call->out) {
		/* The first sum overwrites the input before that is added. */
		void *own = sched_scratch(op, bytes);

		if (!own)
			return -ENOMEM;
		rc = sched_local(op, 0, ACT_COPY, own, call->in, NULL, bytes, -1, -1);
		values[me] = own;
	}
	for (int d = 1; d < world && rc >= 0; d++) {
		int to = (me + d) % world, from = (me + world - d) % world;

		rc = sched_send(op, to, call->in, bytes, -1);
		if (rc < 0)
			return rc;
		/* The output may overwrite the input, so the sums wait until it has been sent. */
		sched_local(op, 0, ACT_NOTHING, NULL, NULL, NULL, 0, rc, -1);
		rc = recvs[from] = sched_recv(op, from, NULL, bytes, -1, &values[from]);
	}
	for (int r = 1; r < world && rc >= 0; r++)
		rc = sched_local(op, 0, ACT_REDUCE, call->out, r == 1 ? values[0] : call->out,
				 values[r], call->count, recvs[r], r == 1 ? recvs[0] : -1);
	if (rc >= 0 && call->reduce == HARP_COLL_AVG)
		rc = sched_local(op, 0, ACT_DIVIDE, call->out, NULL, NULL, call->count, -1, -1);
	return rc < 0 ? rc : 0;
}

static int direct_send(struct harp_coll_request *op, int to, const char *data, size_t bytes,
		       size_t piece_bytes, int dep)
{
	int rc;

	do {
		size_t piece = bytes < piece_bytes ? bytes : piece_bytes;

		rc = sched_send(op, to, data, piece, dep);
		data += piece;
		bytes -= piece;
	} while (bytes && rc >= 0);
	return rc;
}

static int exchange_recv(struct harp_coll_request *op, int from, char *data, size_t bytes)
{
	int rc;

	do {
		size_t piece = bytes < EXCHANGE_PIECE_BYTES ? bytes : EXCHANGE_PIECE_BYTES;

		rc = sched_recv(op, from, data, piece, -1, NULL);
		data += piece;
		bytes -= piece;
	} while (bytes && rc >= 0);
	return rc;
}

static bool exchange_has_block(enum harp_coll_op op, int root, int from, int to)
{
	switch (op) {
	case HARP_COLL_GATHER:
		return to == root;
	case HARP_COLL_SCATTER:
		return from == root;
	default:
		return true;
	}
}

/* ALLGATHER, GATHER, SCATTER and ALLTOALL. */
int direct_exchange(struct harp_coll_request *op)
{
	struct harp_coll_call *call = &op->call;
	int world = op->group->world, me = op->group->rank, copied = -1, rc = 0;
	size_t element = harp_coll_dtype_bytes(call->dtype), in_count, out_count;

	if (call->op == HARP_COLL_ALLTOALL && call->in == call->out && call->in) {
		/* Received blocks may overwrite input that has not been sent. */
		size_t last, bytes;
		const char *end = algo_in_block(op, world - 1, &last);
		void *copy;

		bytes = (size_t)(end - (const char *)call->in) + last * element;
		copy = sched_scratch(op, bytes);
		if (!copy)
			return -ENOMEM;
		copied = rc = sched_local(op, 0, ACT_COPY, copy, call->in, NULL, bytes, -1, -1);
		call->in = copy;
	}
	if (exchange_has_block(call->op, call->peer, me, me) && rc >= 0) {
		const void *in = algo_in_block(op, me, &in_count);
		void *out = algo_out_block(op, me, &out_count);

		assert(in_count == out_count);
		rc = sched_local(op, 0, ACT_COPY, out, in, NULL, in_count * element, -1, -1);
	}
	for (int d = 1; d < world && rc >= 0; d++) {
		int to = (me + d) % world, from = (me + world - d) % world;

		if (exchange_has_block(call->op, call->peer, me, to)) {
			const void *in = algo_in_block(op, to, &in_count);

			rc = direct_send(op, to, in, in_count * element, EXCHANGE_PIECE_BYTES,
					 copied);
		}
		if (exchange_has_block(call->op, call->peer, from, me) && rc >= 0) {
			void *out = algo_out_block(op, from, &out_count);

			rc = exchange_recv(op, from, out, out_count * element);
		}
	}
	return rc < 0 ? rc : 0;
}

/* Adds to this rank's own block in rank order. No other rank computes the same sum. */
static int scatter_piece(struct harp_coll_request *op, const char *own, char *acc, size_t bytes,
			 char *slots, size_t piece_bytes, size_t number, int *reduces)
{
	const struct harp_coll_call *call = &op->call;
	int world = op->group->world, me = op->group->rank, rc = 0;
	size_t count = bytes / harp_coll_dtype_bytes(call->dtype);
	const void *a = own;

	for (int r = 0; r < world && rc >= 0; r++) {
		size_t slot = (size_t)r * SCATTER_SLOTS + number % SCATTER_SLOTS;
		const void *value;

		if (r == me)
			continue;
		rc = sched_recv(op, r, slots + slot * piece_bytes, bytes, reduces[slot], &value);
		if (rc < 0)
			return rc;
		rc = sched_local(op, 0, ACT_REDUCE, acc, a, value, count, rc, -1);
		reduces[slot] = rc;
		a = acc;
	}
	if (rc >= 0 && call->reduce == HARP_COLL_AVG)
		rc = sched_local(op, 0, ACT_DIVIDE, acc, NULL, NULL, count, -1, -1);
	return rc;
}

int direct_reduce_scatter(struct harp_coll_request *op)
{
	struct harp_coll *group = op->group;
	int world = group->world, me = group->rank, rc = 0, *reduces;
	size_t element = harp_coll_dtype_bytes(op->call.dtype), count;
	const char *own = algo_in_block(op, me, &count);
	size_t bytes = count * element, piece, number = 0, at = 0;
	char *out = algo_out_block(op, me, &count), *acc = out, *slots;

	piece = algo_slot_bytes((size_t)world * SCATTER_SLOTS);
	if (algo_overwrites_input(op, out, bytes)) {
		acc = sched_scratch(op, bytes);
		if (!acc)
			return -ENOMEM;
	}
	slots = sched_scratch(op, (size_t)world * SCATTER_SLOTS * (piece < bytes ? piece : bytes));
	reduces = malloc((size_t)world * SCATTER_SLOTS * sizeof(int));
	if (!slots || !reduces) {
		free(reduces);
		return -ENOMEM;
	}
	for (size_t i = 0; i < (size_t)world * SCATTER_SLOTS; i++)
		reduces[i] = -1;
	for (int d = 1; d < world && rc >= 0; d++) {
		int to = (me + d) % world;
		const char *block = algo_in_block(op, to, &count);

		rc = direct_send(op, to, block, count * element, piece, -1);
		if (acc != out && rc >= 0)
			rc = sched_local(op, 1, ACT_NOTHING, NULL, NULL, NULL, 0, rc, -1);
	}
	do {
		size_t part = bytes - at < piece ? bytes - at : piece;

		if (rc >= 0)
			rc = scatter_piece(op, own + at, acc + at, part, slots,
					   piece < bytes ? piece : bytes, number++, reduces);
		at += part;
	} while (at < bytes && rc >= 0);
	free(reduces);
	if (acc != out && rc >= 0)
		rc = sched_local(op, 1, ACT_COPY, out, acc, NULL, bytes, rc, -1);
	return rc < 0 ? rc : 0;
}
