/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.c - ring collectives, sends and receives as sequences of primitives.
 *
 * A ring collective over n ranks loops over parts of the buffers. Each loop is a fixed list of
 * primitives. A primitive receives from the previous rank of the ring and sends to the next one;
 * the first primitive only sends, and the last only receives. `step` counts them:
 *
 *   all-reduce, 2n - 1   reduces chunk (index - 1 - step) mod n while step < n, which completes
 *                        chunk `index`; then forwards the complete chunks
 *   all-gather, n        sends this rank's block, then forwards those of the previous ranks
 *   reduce-scatter, n    reduces the blocks in turn; this rank's block is last, and is stored
 *   broadcast, reduce, 1 the root and the last rank of the chain are the ends
 */
#include <stdlib.h>
#include <string.h>

#include "device.h"

enum { TASK_LL_GRAIN_BYTES = 16, TASK_SIMPLE_GRAIN_BYTES = 512, TASK_PACK_BYTES = 16 };

static size_t task_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

static size_t element_bytes(int type)
{
	static const size_t bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8 };

	if (type < 0 || (size_t)type >= sizeof(bytes) / sizeof(bytes[0]))
		emulation_fail("collectives of data type %d are not emulated", type);
	return bytes[type];
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* Channels low to high share the work; the first and last channel have different sizes. */
static void ring_part(struct ring_work *ring, const struct channel *channel, const void *work,
		      size_t grain)
{
	int low = field_int(work, layout.coll_channel_low);
	int high = field_int(work, layout.coll_channel_high);
	size_t count_low = field_value(work, layout.coll_count_low);
	size_t count_mid = field_value(work, layout.coll_count_mid);
	size_t count_high = field_value(work, layout.coll_count_high);
	size_t mid_channels = high > low + 1 ? (size_t)(high - low - 1) : 0;
	size_t mid_index = channel->id > low ? (size_t)(channel->id - low - 1) : 0;

	ring->count = count_low + mid_channels * count_mid + count_high;
	if (channel->id == low) {
		ring->length = count_low;
		ring->chunk = field_value(work, layout.coll_grains_low) * grain;
		return;
	}
	ring->first = count_low + mid_index * count_mid;
	ring->length = channel->id == high ? count_high : count_mid;
	ring->chunk = field_value(work, channel->id == high ? layout.coll_grains_high
							    : layout.coll_grains_mid) *
		      grain;
}

static int ring_steps(const struct ring_work *ring)
{
	switch (ring->collective) {
	case COLLECTIVE_ALLREDUCE:
		return 2 * ring->nranks - 1;
	case COLLECTIVE_ALLGATHER:
	case COLLECTIVE_REDUCESCATTER:
		return ring->nranks;
	case COLLECTIVE_BROADCAST:
	case COLLECTIVE_REDUCE:
	case COLLECTIVE_NONE:
		break;
	}
	return 1;
}

/* Number of elements in one loop. */
static size_t ring_loop(const struct ring_work *ring)
{
	return ring->collective == COLLECTIVE_ALLREDUCE ? (size_t)ring->nranks * ring->chunk
							: ring->chunk;
}

static void ring_allreduce(const struct ring_work *ring, size_t bytes, struct primitive *primitive)
{
	int nranks = ring->nranks, last = 2 * nranks - 2;
	size_t left = ring->length - ring->loop, chunk = ring->chunk,
	       pack = TASK_PACK_BYTES / bytes;
	size_t slice = (size_t)((ring->index + 2 * nranks - 1 - ring->step) % nranks), at;

	if (left < ring_loop(ring)) {
		chunk = (left + (size_t)nranks - 1) / (size_t)nranks;
		chunk = (chunk + pack - 1) / pack * pack;
	}
	at = (ring->first + ring->loop + slice * chunk) * bytes;
	*primitive = (struct primitive){
		.source = ring->step < nranks ? ring->source + at : NULL,
		.target = ring->step >= nranks - 1 ? ring->target + at : NULL,
		.is_receiving = ring->step > 0,
		.is_sending = ring->step < last,
		.count = slice * chunk < left ? task_min(chunk, left - slice * chunk) : 0,
	};
}

static void ring_allgather(const struct ring_work *ring, size_t bytes, struct primitive *primitive)
{
	int last = ring->nranks - 1,
	    owner = ring->ranks[(ring->nranks - ring->step) % ring->nranks];
	size_t at = (ring->first + ring->loop) * bytes;
	size_t block = (size_t)owner * ring->count * bytes;

	*primitive = (struct primitive){
		.source = ring->step ? NULL : ring->source + at,
		.target = ring->target + block + at,
		.is_receiving = ring->step > 0,
		.is_sending = ring->step < last,
		.count = task_min(ring->chunk, ring->length - ring->loop),
	};
	if (primitive->source == primitive->target) /* in place */
		primitive->target = NULL;
}

static void ring_reducescatter(const struct ring_work *ring, size_t bytes,
			       struct primitive *primitive)
{
	int last = ring->nranks - 1, owner = ring->ranks[last - ring->step];
	size_t at = (ring->first + ring->loop) * bytes;
	size_t block = (size_t)owner * ring->count * bytes;

	*primitive = (struct primitive){
		.source = ring->source + block + at,
		.target = ring->step == last ? ring->target + at : NULL,
		.is_receiving = ring->step > 0,
		.is_sending = ring->step < last,
		.count = task_min(ring->chunk, ring->length - ring->loop),
	};
}

static void ring_broadcast(const struct ring_work *ring, size_t bytes, struct primitive *primitive)
{
	bool is_root = ring->ranks[0] == ring->root, is_last = ring->ranks[1] == ring->root;
	size_t at = (ring->first + ring->loop) * bytes;

	*primitive = (struct primitive){
		.source = is_root ? ring->source + at : NULL,
		.target = is_root && ring->source == ring->target ? NULL : ring->target + at,
		.is_receiving = !is_root,
		.is_sending = !is_last,
		.count = task_min(ring->chunk, ring->length - ring->loop),
	};
}

static void ring_reduce(const struct ring_work *ring, size_t bytes, struct primitive *primitive)
{
	bool is_root = ring->ranks[0] == ring->root;
	bool is_first = ring->ranks[ring->nranks - 1] == ring->root;
	size_t at = (ring->first + ring->loop) * bytes;

	*primitive = (struct primitive){
		.source = ring->source + at,
		.target = is_root ? ring->target + at : NULL,
		.is_receiving = !is_first,
		.is_sending = !is_root,
		.count = task_min(ring->chunk, ring->length - ring->loop),
	};
}

static bool ring_next(struct ring_work *ring, size_t bytes, struct primitive *primitive)
{
	if (ring->step == ring_steps(ring)) {
		ring->step = 0;
		ring->loop += ring_loop(ring);
	}
	if (ring->loop >= ring->length)
		return false;
	switch (ring->collective) {
	case COLLECTIVE_ALLREDUCE:
		ring_allreduce(ring, bytes, primitive);
		break;
	case COLLECTIVE_ALLGATHER:
		ring_allgather(ring, bytes, primitive);
		break;
	case COLLECTIVE_REDUCESCATTER:
		ring_reducescatter(ring, bytes, primitive);
		break;
	case COLLECTIVE_BROADCAST:
		ring_broadcast(ring, bytes, primitive);
		break;
	case COLLECTIVE_REDUCE:
		ring_reduce(ring, bytes, primitive);
		break;
	case COLLECTIVE_NONE:
		return false;
	}
	ring->step++;
	return true;
}

static void ring_check(const void *work, const struct function *function)
{
	enum { ALGORITHM_RING = 1 }; /* NCCL_ALGO_RING */

	if (function->algorithm != ALGORITHM_RING || function->protocol == PROTOCOL_LL128)
		emulation_fail("algorithm %d with protocol %d is not emulated; set NCCL_ALGO=Ring "
			       "and NCCL_PROTO=Simple or LL",
			       function->algorithm, (int)function->protocol);
	if ((function->collective == COLLECTIVE_ALLREDUCE ||
	     function->collective == COLLECTIVE_REDUCE ||
	     function->collective == COLLECTIVE_REDUCESCATTER) &&
	    function->reduction != layout.reduction_sum)
		emulation_fail("reduction %d is not emulated, only sums are", function->reduction);
	if ((field_exists(layout.coll_registered) && field_int(work, layout.coll_registered)) ||
	    (field_exists(layout.coll_net_registered) &&
	     field_int(work, layout.coll_net_registered)))
		emulation_fail("registered user buffers are not emulated");
}

struct task *task_ring(const struct channel *channel, const void *work,
		       const struct function *function)
{
	struct task *task = emulation_alloc(sizeof(*task));
	struct transfer *transfer = &task->transfer;
	bool is_simple = function->protocol == PROTOCOL_SIMPLE;
	bool is_chain = function->collective == COLLECTIVE_BROADCAST ||
			function->collective == COLLECTIVE_REDUCE;
	int slices = is_simple && !is_chain ? 2 : 1; /* also the number of steps per slice */
	int prev = field_int(channel->info, layout.channel_ring_prev);
	int next = field_int(channel->info, layout.channel_ring_next);
	size_t grain = is_simple ? TASK_SIMPLE_GRAIN_BYTES : TASK_LL_GRAIN_BYTES;

	ring_check(work, function);
	task->is_ring = true;
	transfer->protocol = function->protocol;
	transfer->type = (enum element_type)function->type;
	transfer->element_bytes = element_bytes(function->type);
	transfer->slices = transfer->slice_steps = slices;
	connection_open(&transfer->recv, channel, prev, false, 0, transfer->protocol,
			slices * slices);
	connection_open(&transfer->send, channel, next, true, 0, transfer->protocol,
			slices * slices);
	transfer->step_elements = transfer->send.step_bytes / transfer->element_bytes;
	task->ring = (struct ring_work){
		.collective = function->collective,
		.index = field_int(channel->info, layout.channel_ring_index),
		.nranks = channel->nranks,
		.root = field_int(work, layout.coll_root),
		.ranks = memory_view(field_pointer(channel->info, layout.channel_ring_ranks)),
		.source = memory_view(field_pointer(work, layout.coll_source)),
		.target = memory_view(field_pointer(work, layout.coll_target)),
	};
	ring_part(&task->ring, channel, work, grain / transfer->element_bytes);
	return task;
}

/* ---- send and receive ------------------------------------------------------------------------ */

struct task *task_p2p(const struct channel *channel, int peer, bool is_send, void *address,
		      size_t bytes, size_t chunk, bool is_ll)
{
	struct task *task = emulation_alloc(sizeof(*task));
	struct transfer *transfer = &task->transfer;

	transfer->protocol = is_ll ? PROTOCOL_LL : PROTOCOL_SIMPLE;
	transfer->type = ELEMENT_UINT8;
	transfer->element_bytes = 1;
	transfer->slices = transfer->slice_steps = 1;
	connection_open(is_send ? &transfer->send : &transfer->recv, channel, peer, is_send, 1,
			transfer->protocol, 1);
	transfer->step_elements =
		field_exists(layout.comm_p2p_chunk_bytes)
			? field_value(channel->comm, layout.comm_p2p_chunk_bytes)
			: (is_send ? &transfer->send : &transfer->recv)->step_bytes;
	task->p2p = (struct p2p_work){
		.address = memory_view(address),
		.bytes = bytes,
		.chunk = chunk,
		.is_send = is_send,
		.is_first = true,
	};
	return task;
}

/* A message of 0 bytes is one empty chunk. */
static bool p2p_next(struct p2p_work *p2p, struct primitive *primitive)
{
	size_t count = task_min(p2p->chunk, p2p->bytes - p2p->done);
	char *at = p2p->address + p2p->done;

	if (!count && !p2p->is_first)
		return false;
	*primitive = (struct primitive){
		.source = p2p->is_send ? at : NULL,
		.target = p2p->is_send ? NULL : at,
		.is_receiving = !p2p->is_send,
		.is_sending = p2p->is_send,
		.count = count,
	};
	p2p->is_first = false;
	p2p->done += count;
	return true;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

enum progress task_poll(struct task *task)
{
	enum progress progress = PROGRESS_NONE;

	for (;;) {
		if (!task->has_primitive) {
			task->has_primitive =
				task->is_ring ? ring_next(&task->ring, task->transfer.element_bytes,
							  &task->primitive)
					      : p2p_next(&task->p2p, &task->primitive);
			if (!task->has_primitive)
				return PROGRESS_DONE;
		}
		switch (primitive_poll(&task->transfer, &task->primitive)) {
		case PROGRESS_NONE:
			return progress;
		case PROGRESS_SOME:
			return PROGRESS_SOME;
		case PROGRESS_DONE:
			task->has_primitive = false;
			progress = PROGRESS_SOME;
			break;
		}
	}
}

void task_close(struct task *task)
{
	connection_close(&task->transfer.recv);
	connection_close(&task->transfer.send);
	free(task);
}
