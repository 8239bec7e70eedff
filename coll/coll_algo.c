/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_algo.c - chooses an operation's algorithm, and locates its blocks.
 *
 * The choice depends only on values that are equal on all ranks: operation, size, world, hosts. A
 * header contains it, so different choices are detected.
 *
 *	operation       up to                      algorithm
 *	allreduce       32 KiB, two ranks          direct exchange
 *	                1 KiB, up to 4 ranks       direct exchange
 *	                32 KiB                     recursive doubling
 *	                more, hosts of many ranks  2D
 *	                more                       ring
 *	broadcast       64 KiB                     binomial tree
 *	and reduce      more                       chain of pieces
 *	allgather       64 KiB a rank, 32 ranks    direct exchange
 *	                more                       ring
 *	barrier                                    recursive doubling
 *	others                                     direct exchange
 */
#include <stdlib.h>
#include <string.h>

#include "coll_impl.h"

#define DIRECT_BYTES 1024u
#define DIRECT_RANKS 4
#define TREE_BYTES 65536u
#define GATHER_DIRECT_BYTES 65536u
#define GATHER_DIRECT_RANKS 32
#define PIECE_BYTES_MIN (64u << 10)
#define PIECE_BYTES_MAX (512u << 10)

const char *algo_check_settings(void)
{
	const char *algo = getenv("HARP_COLL_ALGO");

	return algo && *algo && strcmp(algo, "ring") ? algo : NULL;
}

bool algo_is_flat(void)
{
	const char *algo = getenv("HARP_COLL_ALGO");

	return algo && !strcmp(algo, "ring");
}

uint64_t algo_settings_hash(void)
{
	return (uint64_t)COLL_INLINE_BYTES << 32 | PIECE_BYTES_MAX | algo_is_flat();
}

static size_t algo_largest(const size_t *counts, size_t count, int world)
{
	if (!counts)
		return count;
	for (int r = 0; r < world; r++)
		if (r == 0 || counts[r] > count)
			count = counts[r];
	return count;
}

enum algorithm algo_choose(const struct harp_coll *group, const struct harp_coll_call *call)
{
	size_t element = harp_coll_dtype_bytes(call->dtype), bytes = call->count * element;
	int world = group->world;

	switch (call->op) {
	case HARP_COLL_ALLREDUCE:
		if (bytes <= (world == 2 ? COLL_INLINE_BYTES : DIRECT_BYTES) &&
		    world <= DIRECT_RANKS)
			return ALGO_DIRECT;
		if (bytes <= COLL_INLINE_BYTES)
			return ALGO_DOUBLING;
		if (group->is_regular && group->hosts_count > 1 && group->local_count > 1)
			return ALGO_2D;
		return ALGO_RING;
	case HARP_COLL_BARRIER:
		return ALGO_DOUBLING;
	case HARP_COLL_BROADCAST:
	case HARP_COLL_REDUCE:
		return bytes <= TREE_BYTES ? ALGO_TREE : ALGO_CHAIN;
	case HARP_COLL_ALLGATHER:
		bytes = algo_largest(call->out_counts, call->count, world) * element;
		return bytes <= GATHER_DIRECT_BYTES && world <= GATHER_DIRECT_RANKS ? ALGO_DIRECT
										    : ALGO_RING;
	default:
		return ALGO_DIRECT;
	}
}

int algo_build(struct harp_coll_request *op)
{
	switch (op->call.op) {
	case HARP_COLL_ALLREDUCE:
		switch (op->header.algorithm) {
		case ALGO_DIRECT:
			return direct_allreduce(op);
		case ALGO_DOUBLING:
			return doubling_allreduce(op);
		case ALGO_2D:
			return hosts_allreduce(op);
		default:
			return ring_allreduce(op);
		}
	case HARP_COLL_BARRIER:
		return doubling_allreduce(op);
	case HARP_COLL_BROADCAST:
		return op->header.algorithm == ALGO_TREE ? tree_broadcast(op) : chain_broadcast(op);
	case HARP_COLL_REDUCE:
		return op->header.algorithm == ALGO_TREE ? tree_reduce(op) : chain_reduce(op);
	case HARP_COLL_ALLGATHER:
		return op->header.algorithm == ALGO_DIRECT ? direct_exchange(op)
							   : ring_allgather(op);
	case HARP_COLL_REDUCE_SCATTER:
		return direct_reduce_scatter(op);
	default:
		return direct_exchange(op);
	}
}

/* Small enough that pieces overlap, and large enough that each costs little. */
size_t algo_piece_bytes(const struct harp_coll *group, size_t total_bytes)
{
	size_t piece = total_bytes / 8;

	(void)group;
	if (piece < PIECE_BYTES_MIN)
		piece = PIECE_BYTES_MIN;
	if (piece > PIECE_BYTES_MAX)
		piece = PIECE_BYTES_MAX;
	return piece / 4096 * 4096;
}

static size_t algo_offset(const size_t *counts, size_t count, int r)
{
	size_t offset = 0;

	if (!counts)
		return (size_t)r * count;
	for (int i = 0; i < r; i++)
		offset += counts[i];
	return offset;
}

/* True if the operation has an input block for each rank; otherwise all ranks get the same
 * input. */
static bool algo_has_in_blocks(enum harp_coll_op op)
{
	return op == HARP_COLL_REDUCE_SCATTER || op == HARP_COLL_SCATTER ||
	       op == HARP_COLL_ALLTOALL;
}

static bool algo_has_out_blocks(enum harp_coll_op op)
{
	return op == HARP_COLL_ALLGATHER || op == HARP_COLL_GATHER || op == HARP_COLL_ALLTOALL;
}

const void *algo_in_block(const struct harp_coll_request *op, int r, size_t *count)
{
	const struct harp_coll_call *call = &op->call;
	size_t element = harp_coll_dtype_bytes(call->dtype);

	*count = call->count;
	if (!algo_has_in_blocks(call->op)) {
		/* The share of this rank in an output with variable counts. */
		if (call->op == HARP_COLL_ALLGATHER && call->out_counts && op->group)
			*count = call->out_counts[op->group->rank];
		if (call->op == HARP_COLL_GATHER && call->out_counts && op->group)
			*count = call->out_counts[op->group->rank];
		return call->in_blocks ? call->in_blocks[0] : call->in;
	}
	if (call->in_counts)
		*count = call->in_counts[r];
	if (call->in_blocks)
		return call->in_blocks[r];
	return (const char *)call->in + algo_offset(call->in_counts, call->count, r) * element;
}

void *algo_out_block(const struct harp_coll_request *op, int r, size_t *count)
{
	const struct harp_coll_call *call = &op->call;
	size_t element = harp_coll_dtype_bytes(call->dtype);

	*count = call->count;
	if (!algo_has_out_blocks(call->op)) {
		if ((call->op == HARP_COLL_REDUCE_SCATTER || call->op == HARP_COLL_SCATTER) &&
		    call->in_counts && op->group)
			*count = call->in_counts[op->group->rank];
		return call->out_blocks ? call->out_blocks[0] : call->out;
	}
	if (call->out_counts)
		*count = call->out_counts[r];
	if (call->out_blocks)
		return call->out_blocks[r];
	return (char *)call->out + algo_offset(call->out_counts, call->count, r) * element;
}
