/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operation.c - the operations that a rank can run, and their expected results.
 *
 * The source of a rank is a pattern that depends on rank, position and seed. Floats are multiples
 * of 1/8 below 32, so that sums are exact in any order. The target is filled with
 * OPERATION_UNTOUCHED, and has a margin at the end that must not change.
 */
#include "operation.h"

#include <string.h>

enum { OPERATION_MARGIN_BYTES = 4096, OPERATION_UNTOUCHED = 0xee };

struct operation_kind {
	const char *name;
	bool is_sum;          /* sums floats; otherwise moves bytes */
	bool is_source_block; /* the source is one block (bytes / nranks) */
	bool is_target_block;
	int (*start)(const struct operation *, const struct nccl *, nccl_comm, void *);
	/* The rank whose pattern is at offset `at` of the target, and the offset in its source. */
	int (*origin)(const struct operation *, size_t at, size_t *source_at);
};

static size_t operation_block(const struct operation *operation)
{
	return operation->bytes / (size_t)operation->nranks;
}

/* ---- patterns -------------------------------------------------------------------------------- */

static unsigned char pattern_byte(int rank, size_t at, unsigned seed)
{
	uint32_t mixed = (uint32_t)at * 2654435761u + (uint32_t)(at >> 32);

	return (unsigned char)((mixed >> 13) + (unsigned)rank * 57 + seed * 101 +
			       (unsigned)(at >> 16));
}

static float pattern_float(int rank, size_t index, unsigned seed)
{
	return (float)pattern_byte(rank, index, seed) / 8;
}

/* ---- starting -------------------------------------------------------------------------------- */

static int start_sendrecv(const struct operation *op, const struct nccl *nccl, nccl_comm comm,
			  void *stream)
{
	int next = (op->rank + 1) % op->nranks, prev = (op->rank + op->nranks - 1) % op->nranks;
	int first = nccl->GroupStart(), second, last;

	first = first ? first : nccl->Send(op->source, op->bytes, NCCL_UINT8, next, comm, stream);
	second = nccl->Recv(op->target, op->bytes, NCCL_UINT8, prev, comm, stream);
	last = nccl->GroupEnd();
	return first ? first : second ? second : last;
}

static int start_alltoall(const struct operation *op, const struct nccl *nccl, nccl_comm comm,
			  void *stream)
{
	size_t block = operation_block(op);
	int result = nccl->GroupStart(), last;

	for (int peer = 0; peer < op->nranks && !result; peer++) {
		size_t at = (size_t)peer * block;

		result = nccl->Send(op->source + at, block, NCCL_UINT8, peer, comm, stream);
		if (!result)
			result = nccl->Recv(op->target + at, block, NCCL_UINT8, peer, comm, stream);
	}
	last = nccl->GroupEnd();
	return result ? result : last;
}

static int start_allreduce(const struct operation *op, const struct nccl *nccl, nccl_comm comm,
			   void *stream)
{
	return nccl->AllReduce(op->source, op->target, op->bytes / sizeof(float), NCCL_FLOAT32,
			       NCCL_SUM, comm, stream);
}

static int start_reduce(const struct operation *op, const struct nccl *nccl, nccl_comm comm,
			void *stream)
{
	return nccl->Reduce(op->source, op->target, op->bytes / sizeof(float), NCCL_FLOAT32,
			    NCCL_SUM, OPERATION_ROOT, comm, stream);
}

static int start_reducescatter(const struct operation *op, const struct nccl *nccl, nccl_comm comm,
			       void *stream)
{
	return nccl->ReduceScatter(op->source, op->target, operation_block(op) / sizeof(float),
				   NCCL_FLOAT32, NCCL_SUM, comm, stream);
}

static int start_allgather(const struct operation *op, const struct nccl *nccl, nccl_comm comm,
			   void *stream)
{
	return nccl->AllGather(op->source, op->target, operation_block(op), NCCL_UINT8, comm,
			       stream);
}

static int start_broadcast(const struct operation *op, const struct nccl *nccl, nccl_comm comm,
			   void *stream)
{
	return nccl->Broadcast(op->source, op->target, op->bytes, NCCL_UINT8, OPERATION_ROOT, comm,
			       stream);
}

/* ---- expected results ------------------------------------------------------------------------ */

static int origin_sendrecv(const struct operation *op, size_t at, size_t *source_at)
{
	*source_at = at;
	return (op->rank + op->nranks - 1) % op->nranks;
}

static int origin_alltoall(const struct operation *op, size_t at, size_t *source_at)
{
	size_t block = operation_block(op);

	*source_at = (size_t)op->rank * block + at % block;
	return (int)(at / block);
}

static int origin_allgather(const struct operation *op, size_t at, size_t *source_at)
{
	size_t block = operation_block(op);

	*source_at = at % block;
	return (int)(at / block);
}

static int origin_broadcast(const struct operation *op, size_t at, size_t *source_at)
{
	(void)op;
	*source_at = at;
	return OPERATION_ROOT;
}

/* For sums, only the offset matters. */
static int origin_same(const struct operation *op, size_t at, size_t *source_at)
{
	*source_at = at;
	return op->rank;
}

static int origin_own_block(const struct operation *op, size_t at, size_t *source_at)
{
	*source_at = (size_t)op->rank * operation_block(op) + at;
	return op->rank;
}

static const struct operation_kind operation_kinds[] = {
	{ "sendrecv", false, false, false, start_sendrecv, origin_sendrecv },
	{ "alltoall", false, false, false, start_alltoall, origin_alltoall },
	{ "allreduce", true, false, false, start_allreduce, origin_same },
	{ "reduce", true, false, false, start_reduce, origin_same },
	{ "reducescatter", true, false, true, start_reducescatter, origin_own_block },
	{ "allgather", false, true, false, start_allgather, origin_allgather },
	{ "broadcast", false, false, false, start_broadcast, origin_broadcast },
};

/* ---- operations ------------------------------------------------------------------------------ */

bool operation_open(struct operation *operation, const char *name, size_t bytes, int rank,
		    int nranks)
{
	size_t count = sizeof(operation_kinds) / sizeof(operation_kinds[0]);
	/* Round to whole floats for every rank, like nccl-tests. */
	size_t unit = sizeof(float) * (size_t)nranks;

	*operation = (struct operation){ .rank = rank, .nranks = nranks };
	for (size_t i = 0; i < count; i++)
		if (!strcmp(operation_kinds[i].name, name))
			operation->kind = &operation_kinds[i];
	if (!operation->kind)
		return false;
	operation->bytes = bytes > unit ? bytes / unit * unit : unit;
	operation->source_bytes =
		operation->kind->is_source_block ? operation_block(operation) : operation->bytes;
	operation->target_bytes =
		operation->kind->is_target_block ? operation_block(operation) : operation->bytes;
	operation->buffer_bytes = operation->bytes + OPERATION_MARGIN_BYTES;
	operation->source = memory_alloc(MEMORY_DEVICE, operation->buffer_bytes);
	operation->target = memory_alloc(MEMORY_DEVICE, operation->buffer_bytes);
	if (!operation->source || !operation->target)
		emulation_fail("out of device memory: two buffers of %zu bytes",
			       operation->buffer_bytes);
	return true;
}

void operation_close(struct operation *operation)
{
	memory_free(MEMORY_DEVICE, operation->source);
	memory_free(MEMORY_DEVICE, operation->target);
}

void operation_fill(struct operation *operation, unsigned seed)
{
	unsigned char *bytes = memory_view(operation->source);
	float *floats = memory_view(operation->source);

	memset(memory_view(operation->target), OPERATION_UNTOUCHED, operation->buffer_bytes);
	if (operation->kind->is_sum)
		for (size_t i = 0; i < operation->source_bytes / sizeof(float); i++)
			floats[i] = pattern_float(operation->rank, i, seed);
	else
		for (size_t i = 0; i < operation->source_bytes; i++)
			bytes[i] = pattern_byte(operation->rank, i, seed);
}

int operation_start(const struct operation *operation, const struct nccl *nccl, nccl_comm comm,
		    struct stream *stream)
{
	return operation->kind->start(operation, nccl, comm, stream);
}

static size_t count_wrong_floats(const struct operation *operation, unsigned seed)
{
	const float *target = memory_view(operation->target);
	size_t wrong = 0;

	for (size_t i = 0; i < operation->target_bytes / sizeof(float); i++) {
		size_t at;
		float expected = 0;

		operation->kind->origin(operation, i * sizeof(float), &at);
		for (int rank = 0; rank < operation->nranks; rank++)
			expected += pattern_float(rank, at / sizeof(float), seed);
		wrong += target[i] != expected ? sizeof(float) : 0;
	}
	return wrong;
}

static size_t count_wrong_bytes(const struct operation *operation, unsigned seed)
{
	const unsigned char *target = memory_view(operation->target);
	size_t wrong = 0;

	for (size_t i = 0; i < operation->target_bytes; i++) {
		size_t at;
		int rank = operation->kind->origin(operation, i, &at);

		wrong += target[i] != pattern_byte(rank, at, seed);
	}
	return wrong;
}

size_t operation_count_wrong(const struct operation *operation, unsigned seed)
{
	const unsigned char *target = memory_view(operation->target);
	bool is_result =
		operation->kind->start != start_reduce || operation->rank == OPERATION_ROOT;
	size_t wrong = 0, end = is_result ? operation->target_bytes : 0;

	if (is_result)
		wrong = operation->kind->is_sum ? count_wrong_floats(operation, seed)
						: count_wrong_bytes(operation, seed);
	for (size_t i = end; i < operation->buffer_bytes; i++)
		wrong += target[i] != OPERATION_UNTOUCHED;
	return wrong;
}
