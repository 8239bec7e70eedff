/* SPDX-License-Identifier: Apache-2.0 */
/* coll_call.c - checks a call, and describes and compares the calls of ranks. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "coll_impl.h"

static const char *const op_names[HARP_COLL_OPS] = {
	[HARP_COLL_ALLREDUCE] = "allreduce",
	[HARP_COLL_BROADCAST] = "broadcast",
	[HARP_COLL_REDUCE] = "reduce",
	[HARP_COLL_ALLGATHER] = "allgather",
	[HARP_COLL_REDUCE_SCATTER] = "reduce_scatter",
	[HARP_COLL_GATHER] = "gather",
	[HARP_COLL_SCATTER] = "scatter",
	[HARP_COLL_ALLTOALL] = "alltoall",
	[HARP_COLL_BARRIER] = "barrier",
	[HARP_COLL_SEND] = "send",
	[HARP_COLL_RECV] = "recv",
};
static const struct {
	const char *name;
	size_t bytes;
} dtypes[HARP_COLL_DTYPES] = {
	[HARP_COLL_INT8] = { "int8", 1 },           [HARP_COLL_UINT8] = { "uint8", 1 },
	[HARP_COLL_INT16] = { "int16", 2 },         [HARP_COLL_UINT16] = { "uint16", 2 },
	[HARP_COLL_INT32] = { "int32", 4 },         [HARP_COLL_UINT32] = { "uint32", 4 },
	[HARP_COLL_INT64] = { "int64", 8 },         [HARP_COLL_UINT64] = { "uint64", 8 },
	[HARP_COLL_FLOAT16] = { "float16", 2 },     [HARP_COLL_BFLOAT16] = { "bfloat16", 2 },
	[HARP_COLL_FLOAT32] = { "float32", 4 },     [HARP_COLL_FLOAT64] = { "float64", 8 },
	[HARP_COLL_COMPLEX64] = { "complex64", 8 }, [HARP_COLL_COMPLEX128] = { "complex128", 16 },
	[HARP_COLL_BOOL] = { "bool", 1 },
};
static const char *const reduce_names[HARP_COLL_REDUCES] = { "sum", "avg",  "prod", "min",
							     "max", "band", "bor",  "bxor" };
static const char *const wire_names[HARP_COLL_WIRES] = { "default", "native", "float16",
							 "bfloat16" };

__attribute__((visibility("default"))) size_t harp_coll_dtype_bytes(enum harp_coll_dtype dtype)
{
	return (unsigned)dtype < HARP_COLL_DTYPES ? dtypes[dtype].bytes : 0;
}

__attribute__((visibility("default"))) const char *harp_coll_op_name(enum harp_coll_op op)
{
	return (unsigned)op < HARP_COLL_OPS ? op_names[op] : "unknown operation";
}

const char *call_wire_name(unsigned wire)
{
	return wire < HARP_COLL_WIRES ? wire_names[wire] : "unknown";
}

int call_wire_parse(const char *text)
{
	for (int wire = HARP_COLL_WIRE_NATIVE; wire < HARP_COLL_WIRES; wire++)
		if (!strcmp(text, wire_names[wire]))
			return wire;
	return -EINVAL;
}

/* True if the call's values may be rounded to 16 bits between hosts. */
static bool call_can_round(const struct harp_coll_call *call)
{
	return call->op == HARP_COLL_ALLREDUCE && call->dtype == HARP_COLL_FLOAT32 &&
	       (call->reduce == HARP_COLL_SUM || call->reduce == HARP_COLL_AVG);
}

enum harp_coll_wire call_wire(const struct harp_coll *group, const struct harp_coll_call *call)
{
	if (call->wire != HARP_COLL_WIRE_DEFAULT)
		return call->wire;
	return call_can_round(call) ? group->wire : HARP_COLL_WIRE_NATIVE;
}

static bool call_has_reduce(unsigned op)
{
	return op == HARP_COLL_ALLREDUCE || op == HARP_COLL_REDUCE ||
	       op == HARP_COLL_REDUCE_SCATTER;
}

static bool call_has_root(unsigned op)
{
	return op == HARP_COLL_BROADCAST || op == HARP_COLL_REDUCE || op == HARP_COLL_GATHER ||
	       op == HARP_COLL_SCATTER;
}

/* A peer's header may contain values that are out of range. */
void call_describe(const struct call_header *call, char *text, size_t bytes)
{
	char root[32] = "";

	if (call->op == HARP_COLL_BARRIER) {
		snprintf(text, bytes, "barrier()");
		return;
	}
	if (call_has_root(call->op))
		snprintf(root, sizeof(root), ", root %d", (int)call->peer);
	snprintf(text, bytes, "%s(%s, %" PRIu64 " elements%s%s%s%s%s)", harp_coll_op_name(call->op),
		 call->dtype < HARP_COLL_DTYPES ? dtypes[call->dtype].name : "unknown type",
		 call->count, call_has_reduce(call->op) ? ", " : "",
		 call_has_reduce(call->op) && call->reduce < HARP_COLL_REDUCES
			 ? reduce_names[call->reduce]
			 : "",
		 root, call->wire > HARP_COLL_WIRE_NATIVE ? ", wire " : "",
		 call->wire > HARP_COLL_WIRE_NATIVE ? call_wire_name(call->wire) : "");
}

bool call_matches(const struct call_header *mine, const struct call_header *theirs)
{
	return theirs->op == mine->op && theirs->dtype == mine->dtype &&
	       theirs->reduce == mine->reduce && theirs->wire == mine->wire &&
	       theirs->algorithm == mine->algorithm && theirs->peer == mine->peer &&
	       theirs->count == mine->count && theirs->counts_hash == mine->counts_hash &&
	       theirs->seq == mine->seq;
}

static uint64_t call_hash(const size_t *counts, int world)
{
	uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a over words */

	for (int r = 0; r < world; r++)
		hash = (hash ^ counts[r]) * 0x100000001b3ull;
	return hash;
}

void call_fill(struct call_header *header, const struct harp_coll *group,
	       const struct harp_coll_call *call)
{
	*header = (struct call_header){
		.magic = CALL_MAGIC,
		.protocol = CALL_PROTOCOL,
		.kind = CALL_COLLECTIVE,
		.op = (uint8_t)call->op,
		.dtype = (uint8_t)call->dtype,
		.rank = (uint32_t)group->rank,
		.tag = call->tag,
	};
	if (call_has_reduce(call->op))
		header->reduce = (uint8_t)call->reduce;
	if (call_has_root(call->op))
		header->peer = call->peer;
	header->wire = (uint8_t)call->wire;
	/* The counts of gathers, scatters and all-to-alls are compared per pair, as link_bytes. */
	if (call->op == HARP_COLL_ALLGATHER && call->out_counts)
		header->counts_hash = call_hash(call->out_counts, group->world);
	else if (call->op == HARP_COLL_REDUCE_SCATTER && call->in_counts)
		header->counts_hash = call_hash(call->in_counts, group->world);
	else if (call->op != HARP_COLL_GATHER && call->op != HARP_COLL_SCATTER &&
		 call->op != HARP_COLL_ALLTOALL)
		header->count = call->count;
}

#define REFUSE(...)                                                                                \
	do {                                                                                       \
		snprintf(error, error_bytes, __VA_ARGS__);                                         \
		return -EINVAL;                                                                    \
	} while (0)

static bool call_sums_fit(const size_t *counts, int world, size_t element)
{
	size_t sum = 0;

	for (int r = 0; r < world; r++)
		if (counts[r] > (size_t)PTRDIFF_MAX / element ||
		    __builtin_add_overflow(sum, counts[r] * element, &sum) || sum > PTRDIFF_MAX)
			return false;
	return true;
}

static int call_check_memory(const struct harp_coll *group, const struct harp_coll_call *call,
			     char *error, size_t error_bytes)
{
	const char *name = op_names[call->op];
	bool is_root = call->peer == group->rank;
	size_t element = dtypes[call->dtype].bytes, world = (size_t)group->world;
	bool needs_in = true, needs_out = true;

	if (call->count > (size_t)PTRDIFF_MAX / element / world)
		REFUSE("%s: %zu elements exceed the limit", name, call->count);
	if ((call->in_counts && !call_sums_fit(call->in_counts, group->world, element)) ||
	    (call->out_counts && !call_sums_fit(call->out_counts, group->world, element)))
		REFUSE("%s: the counts add up to too many bytes", name);
	switch (call->op) {
	case HARP_COLL_BROADCAST:
		needs_in = false;
		break;
	case HARP_COLL_REDUCE:
	case HARP_COLL_GATHER:
		needs_out = is_root;
		break;
	case HARP_COLL_SCATTER:
		needs_in = is_root;
		break;
	case HARP_COLL_ALLTOALL:
		if (!call->in_counts != !call->out_counts)
			REFUSE("alltoall: set both in_counts and out_counts, or neither");
		if (call->in_counts &&
		    call->in_counts[group->rank] != call->out_counts[group->rank])
			REFUSE("alltoall: rank %d sends itself %zu elements and expects %zu",
			       group->rank, call->in_counts[group->rank],
			       call->out_counts[group->rank]);
		break;
	case HARP_COLL_SEND:
		needs_out = false;
		break;
	case HARP_COLL_RECV:
		needs_in = false;
		break;
	default:
		break;
	}
	if ((call->count || call->in_counts || call->out_counts) &&
	    ((needs_in && !call->in && !call->in_blocks) ||
	     (needs_out && !call->out && !call->out_blocks)))
		REFUSE("%s: %s is NULL", name,
		       needs_in && !call->in && !call->in_blocks ? "in" : "out");
	return 0;
}

int call_check(const struct harp_coll *group, const struct harp_coll_call *call, char *error,
	       size_t error_bytes)
{
	const char *name;

	if (call->size != sizeof(*call))
		REFUSE("the caller was built for another version of libharp-coll; rebuild it");
	if ((unsigned)call->op >= HARP_COLL_OPS)
		REFUSE("invalid operation %d", (int)call->op);
	name = op_names[call->op];
	if (call->op == HARP_COLL_BARRIER)
		return 0;
	if ((unsigned)call->dtype >= HARP_COLL_DTYPES)
		REFUSE("%s: invalid type %d", name, (int)call->dtype);
	if (call_has_reduce(call->op)) {
		if ((unsigned)call->reduce >= HARP_COLL_REDUCES)
			REFUSE("%s: invalid reduction %d", name, (int)call->reduce);
		if (!reduce_supported(call->dtype, call->reduce))
			REFUSE("%s: %s is not defined for %s", name, reduce_names[call->reduce],
			       dtypes[call->dtype].name);
	}
	if ((unsigned)call->wire >= HARP_COLL_WIRES)
		REFUSE("%s: invalid wire format %d", name, (int)call->wire);
	if (call->wire > HARP_COLL_WIRE_NATIVE && !call_can_round(call))
		REFUSE("%s: wire format %s requires an allreduce with sum or average of float32",
		       name, wire_names[call->wire]);
	if (call_has_root(call->op) && (call->peer < 0 || call->peer >= group->world))
		REFUSE("%s: root %d is not a rank (0 to %d)", name, call->peer, group->world - 1);
	if (call->op == HARP_COLL_SEND || call->op == HARP_COLL_RECV) {
		bool is_any = call->op == HARP_COLL_RECV && call->peer == HARP_COLL_ANY_RANK;

		if (!is_any &&
		    (call->peer < 0 || call->peer >= group->world || call->peer == group->rank))
			REFUSE("%s: peer %d is not another rank of the group (0 to %d)", name,
			       call->peer, group->world - 1);
		if (call->tag < 0)
			REFUSE("%s: tag %d is negative", name, call->tag);
	}
	return call_check_memory(group, call, error, error_bytes);
}
