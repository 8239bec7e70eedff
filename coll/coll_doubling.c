/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_doubling.c - recursive doubling: all-reduce of short arrays, and the barrier.
 *
 * Theory of operation. In step k, ranks whose numbers differ in bit k exchange their sums; after
 * log2(world) steps all ranks have the result. Both ranks add the lower rank's sum first, so all
 * ranks compute the same result. If the world is not a power of two, the first 2 * rest ranks form
 * pairs: the even rank first sends its input to the odd one, and receives the result at the end.
 */
#include "coll_impl.h"

struct doubling {
	struct harp_coll_request *op;
	const void *sum; /* the input before the first addition, then the output */
	size_t bytes;
};

static int doubling_exchange(struct doubling *doubling, int peer)
{
	struct harp_coll_request *op = doubling->op;
	const struct harp_coll_call *call = &op->call;
	bool is_lower = op->group->rank < peer;
	const void *theirs;
	int dep = op->lanes[0].last, rc;

	rc = sched_send(op, peer, doubling->sum, doubling->bytes, dep);
	if (rc >= 0)
		rc = sched_local(op, 0, ACT_NOTHING, NULL, NULL, NULL, 0, rc, -1);
	if (rc >= 0)
		rc = sched_recv(op, peer, NULL, doubling->bytes, -1, &theirs);
	if (rc >= 0)
		rc = sched_local(op, 0, ACT_REDUCE, call->out, is_lower ? doubling->sum : theirs,
				 is_lower ? theirs : doubling->sum, call->count, rc, -1);
	doubling->sum = call->out;
	return rc;
}

int doubling_allreduce(struct harp_coll_request *op)
{
	const struct harp_coll_call *call = &op->call;
	int world = op->group->world, me = op->group->rank, power = 1, rest, number, rc = 0;
	struct doubling doubling = { op, call->in,
				     call->count * harp_coll_dtype_bytes(call->dtype) };
	const void *theirs;

	while (2 * power <= world)
		power *= 2;
	rest = world - power;
	if (me < 2 * rest && me % 2 == 0) {
		rc = sched_send(op, me + 1, call->in, doubling.bytes, -1);
		if (rc >= 0)
			rc = sched_recv(op, me + 1, call->out, doubling.bytes, rc, NULL);
		return rc < 0 ? rc : 0;
	}
	if (me < 2 * rest) {
		rc = sched_recv(op, me - 1, NULL, doubling.bytes, -1, &theirs);
		if (rc >= 0)
			rc = sched_local(op, 0, ACT_REDUCE, call->out, theirs, call->in,
					 call->count, rc, -1);
		doubling.sum = call->out;
	}
	number = me < 2 * rest ? me / 2 : me - rest;
	for (int bit = 1; bit < power && rc >= 0; bit *= 2) {
		int other = number ^ bit;

		rc = doubling_exchange(&doubling, other < rest ? 2 * other + 1 : other + rest);
	}
	if (rc >= 0 && call->op == HARP_COLL_ALLREDUCE && call->reduce == HARP_COLL_AVG)
		rc = sched_local(op, 0, ACT_DIVIDE, call->out, NULL, NULL, call->count, -1, -1);
	if (me < 2 * rest && rc >= 0)
		rc = sched_send(op, me - 1, call->out, doubling.bytes, op->lanes[0].last);
	return rc < 0 ? rc : 0;
}
