/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_tree.c - broadcast and reduce: binomial trees for short arrays, chains for long ones.
 *
 * Ranks are numbered from the root. In a tree, a rank's parent has its number without the lowest
 * set bit. In a chain, every rank passes the array on in pieces, so all links transfer at the same
 * time.
 */
#include <errno.h>
#include <string.h>

#include "coll_impl.h"

#define CHAIN_SLOTS 8u

static int tree_number(const struct harp_coll_request *op)
{
	return (op->group->rank + op->group->world - op->call.peer) % op->group->world;
}

static int tree_rank(const struct harp_coll_request *op, int number)
{
	return (number + op->call.peer) % op->group->world;
}

int tree_broadcast(struct harp_coll_request *op)
{
	const struct harp_coll_call *call = &op->call;
	int world = op->group->world, me = tree_number(op), bit = 1, received = -1, rc = 0;
	size_t bytes = call->count * harp_coll_dtype_bytes(call->dtype);
	const void *data = me == 0 ? call->in : call->out;

	while (bit < world && !(me & bit))
		bit *= 2;
	if (me)
		rc = received = sched_recv(op, tree_rank(op, me - bit), call->out, bytes, -1, NULL);
	else if (call->in != call->out)
		rc = sched_local(op, 0, ACT_COPY, call->out, call->in, NULL, bytes, -1, -1);
	for (int child = bit / 2; child && rc >= 0; child /= 2)
		if (me + child < world)
			rc = sched_send(op, tree_rank(op, me + child), data, bytes, received);
	return rc < 0 ? rc : 0;
}

int tree_reduce(struct harp_coll_request *op)
{
	const struct harp_coll_call *call = &op->call;
	int world = op->group->world, me = tree_number(op), rc = 0;
	size_t bytes = call->count * harp_coll_dtype_bytes(call->dtype);
	const void *sum = call->in, *value;
	void *acc = me == 0 ? call->out : NULL;

	for (int bit = 1; bit < world && rc >= 0; bit *= 2) {
		void *slot = NULL;

		if (me & bit) {
			rc = sched_send(op, tree_rank(op, me - bit), sum, bytes, op->lanes[0].last);
			return rc < 0 ? rc : 0;
		}
		if (me + bit >= world)
			continue;
		if (!acc)
			acc = sched_scratch(op, bytes);
		if (bytes > COLL_INLINE_BYTES)
			slot = sched_scratch(op, bytes);
		if (!acc || (bytes > COLL_INLINE_BYTES && !slot))
			return -ENOMEM;
		rc = sched_recv(op, tree_rank(op, me + bit), slot, bytes, -1, &value);
		if (rc >= 0)
			rc = sched_local(op, 0, ACT_REDUCE, acc, sum, value, call->count, rc, -1);
		sum = acc;
	}
	if (rc >= 0 && call->reduce == HARP_COLL_AVG)
		rc = sched_local(op, 0, ACT_DIVIDE, acc, NULL, NULL, call->count, -1, -1);
	return rc < 0 ? rc : 0;
}

int chain_broadcast(struct harp_coll_request *op)
{
	const struct harp_coll_call *call = &op->call;
	int world = op->group->world, me = tree_number(op), rc = 0;
	size_t bytes = call->count * harp_coll_dtype_bytes(call->dtype);
	size_t piece = algo_piece_bytes(bytes);
	const char *in = me == 0 ? call->in : call->out;
	char *out = call->out;

	for (size_t at = 0; at < bytes && rc >= 0; at += piece) {
		size_t part = bytes - at < piece ? bytes - at : piece;
		int dep = -1;

		if (me)
			rc = dep = sched_recv(op, tree_rank(op, me - 1), out + at, part, -1, NULL);
		if (me < world - 1 && rc >= 0)
			rc = sched_send(op, tree_rank(op, me + 1), in + at, part, dep);
		if (me == 0 && in != out && rc >= 0)
			rc = sched_local(op, 0, ACT_COPY, out + at, in + at, NULL, part, -1, -1);
	}
	return rc < 0 ? rc : 0;
}

int chain_reduce(struct harp_coll_request *op)
{
	const struct harp_coll_call *call = &op->call;
	int world = op->group->world, me = tree_number(op), rc = 0;
	size_t element = harp_coll_dtype_bytes(call->dtype), bytes = call->count * element;
	size_t piece = algo_piece_bytes(bytes), number = 0;
	const char *in = call->in;
	char *slots = me < world - 1 ? sched_scratch(op, CHAIN_SLOTS * piece) : NULL;
	int users[CHAIN_SLOTS];

	if (me < world - 1 && !slots)
		return -ENOMEM;
	for (unsigned i = 0; i < CHAIN_SLOTS; i++)
		users[i] = -1;
	for (size_t at = 0; at < bytes && rc >= 0; at += piece, number++) {
		size_t part = bytes - at < piece ? bytes - at : piece, slot = number % CHAIN_SLOTS;
		const void *value, *from = in + at;
		char *sum;

		if (me < world - 1) {
			sum = me ? slots + slot * piece : (char *)call->out + at;
			rc = sched_recv(op, tree_rank(op, me + 1), slots + slot * piece, part,
					users[slot], &value);
			if (rc >= 0)
				rc = sched_local(op, 0, ACT_REDUCE, sum, value, in + at,
						 part / element, rc, -1);
			users[slot] = rc;
			if (me == 0 && call->reduce == HARP_COLL_AVG && rc >= 0)
				rc = sched_local(op, 0, ACT_DIVIDE, sum, NULL, NULL, part / element,
						 -1, -1);
			from = sum;
		}
		if (me && rc >= 0) {
			rc = sched_send(op, tree_rank(op, me - 1), from, part,
					me < world - 1 ? rc : -1);
			users[slot] = rc;
		}
	}
	return rc < 0 ? rc : 0;
}
