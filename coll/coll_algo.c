/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_algo.c - chooses an operation's algorithm, and locates its blocks.
 *
 * The choice depends only on values that are equal on all ranks: operation, size, world and hosts.
 * Headers contain it, so ranks detect a difference.
 *
 *	operation       up to                      algorithm
 *	allreduce       32 KiB, two ranks          direct exchange
 *	                1 KiB, up to 4 ranks       direct exchange
 *	                32 KiB                     recursive doubling
 *	                more, grid                 2D
 *	                more                       ring
 *	broadcast       64 KiB                     binomial tree
 *	and reduce      more                       chain of pieces
 *	allgather       any size, grid             2D
 *	                64 KiB a rank, 32 ranks    direct exchange
 *	                more                       ring
 *	reduce-scatter  any size, grid             2D
 *	barrier                                    recursive doubling
 *	others                                     direct exchange
 *
 * Grid: several hosts, each with the same number of ranks and more than one.
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
#define SLOTS_BYTES (16u << 20)

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

size_t algo_largest(const size_t *counts, size_t count, int world)
{
	if (!counts)
		return count;
	for (int r = 0; r < world; r++)
		if (r == 0 || counts[r] > count)
			count = counts[r];
	return count;
}

static bool algo_has_grid(const struct harp_coll *group)
{
	return group->is_regular && group->hosts_count > 1 && group->local_count > 1;
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
		return algo_has_grid(group) ? ALGO_2D : ALGO_RING;
	case HARP_COLL_BARRIER:
		return ALGO_DOUBLING;
	case HARP_COLL_BROADCAST:
	case HARP_COLL_REDUCE:
		return bytes <= TREE_BYTES ? ALGO_TREE : ALGO_CHAIN;
	case HARP_COLL_REDUCE_SCATTER:
		return algo_has_grid(group) ? ALGO_2D : ALGO_DIRECT;
	case HARP_COLL_ALLGATHER:
		if (algo_has_grid(group))
			return ALGO_2D;
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
		switch (op->header.algorithm) {
		case ALGO_DIRECT:
			return direct_exchange(op);
		case ALGO_2D:
			return grid_allgather(op);
		default:
			return ring_allgather(op);
		}
	case HARP_COLL_REDUCE_SCATTER:
		return op->header.algorithm == ALGO_2D ? grid_reduce_scatter(op)
						       : direct_reduce_scatter(op);
	default:
		return direct_exchange(op);
	}
}

static size_t algo_limit_piece(size_t bytes)
{
	if (bytes < PIECE_BYTES_MIN)
		bytes = PIECE_BYTES_MIN;
	if (bytes > PIECE_BYTES_MAX)
		bytes = PIECE_BYTES_MAX;
	return bytes / 4096 * 4096;
}

/* Small enough that the transfers of pieces overlap, large enough that their number costs
 * little. */
size_t algo_piece_bytes(size_t total_bytes)
{
	return algo_limit_piece(total_bytes / 8);
}

size_t algo_slot_bytes(size_t slots)
{
	return algo_limit_piece(SLOTS_BYTES / slots);
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

/* True if the input has a block for each rank. */
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
		if (algo_has_out_blocks(call->op) && call->out_counts)
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
		if (algo_has_in_blocks(call->op) && call->in_counts)
			*count = call->in_counts[op->group->rank];
		return call->out_blocks ? call->out_blocks[0] : call->out;
	}
	if (call->out_counts)
		*count = call->out_counts[r];
	if (call->out_blocks)
		return call->out_blocks[r];
	return (char *)call->out + algo_offset(call->out_counts, call->count, r) * element;
}

bool algo_overwrites_input(const struct harp_coll_request *op, const char *out, size_t bytes)
{
	size_t element = harp_coll_dtype_bytes(op->call.dtype), count;

	for (int r = 0; r < op->group->world; r++) {
		const char *block = algo_in_block(op, r, &count);

		if (r == op->group->rank && block == out)
			continue; /* each element is read before it is written */
		if (block < out + bytes && out < block + count * element)
			return true;
	}
	return false;
}
