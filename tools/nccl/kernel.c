/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.c - emulates NCCL's device kernels: runs the works of a launch as tasks.
 *
 * Theory of operation. A kernel has one block per channel. Since NCCL 2.22, batches follow its
 * arguments. A batch has the offsets of its works in the arguments or in a buffer, and the function
 * that runs them. A channel runs its batches one after the other. Works of a batch of sends and
 * receives run concurrently, works of a collective one after the other. Up to 2.21 there are lists
 * of struct ncclWork instead, and only sends and receives are emulated.
 *
 * The stream's thread polls the tasks of all channels: more threads would compete with NCCL's proxy
 * threads for the CPUs.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

enum { KERNEL_CHANNELS_MAX = 64, KERNEL_TASKS_MAX = 128 };

/* A channel of a running kernel. */
struct block {
	struct channel channel;
	bool is_done;
	int next; /* next batch or work; -1: none */
	bool is_parallel;
	struct task *tasks[KERNEL_TASKS_MAX]; /* tasks of the current batch; NULL: done */
	unsigned task_count;
};

struct kernel {
	const void *args;
	const char *works; /* up to 2.21 */
	struct block *blocks;
	unsigned count;
};

static void block_add(struct block *block, struct task *task)
{
	if (block->task_count == KERNEL_TASKS_MAX)
		emulation_fail("more than %d tasks in a batch", KERNEL_TASKS_MAX);
	block->tasks[block->task_count++] = task;
}

/* Executes a send of this rank to itself. */
static void kernel_copy(void *target, const void *source, size_t bytes)
{
	memmove(memory_view(target), memory_view(source), bytes);
}

/* ---- function ids ---------------------------------------------------------------------------- */

/*
 * ncclDevFuncRowToId maps rows to ids. A row is a combination of collective, reduction, type,
 * algorithm and protocol, in the order that NCCL's src/device/generate.py enumerates them.
 */
static struct function function_of_row(int row)
{
	enum { PROTOCOLS = 3, REDUCE_ALGORITHMS = 6, ALGORITHM_RING = 1, ALGORITHM_OTHER = 99 };
	const int types = (int)layout.type_count, reductions = (int)layout.reduction_count;
	/* all-gather and reduce-scatter: ring, CollNet, NVLS; PAT since 2.23 */
	const int algorithms = library_version() >= 22300 ? 4 : 3;
	struct function function = { .algorithm = ALGORITHM_RING, .type = ELEMENT_UINT8 };
	int at = row;

	if (at == 0)
		return function;
	at -= 1;
	function.protocol = (enum protocol)(at % PROTOCOLS);
	if (at < algorithms * PROTOCOLS) {
		function.collective = COLLECTIVE_ALLGATHER;
		function.algorithm = at / PROTOCOLS ? ALGORITHM_OTHER : ALGORITHM_RING;
		return function;
	}
	at -= algorithms * PROTOCOLS;
	if (at < PROTOCOLS) {
		function.collective = COLLECTIVE_BROADCAST;
		return function;
	}
	at -= PROTOCOLS;
	if (layout.function_allgatherv != LAYOUT_ABSENT) {
		if (at < PROTOCOLS)
			emulation_fail("all-gather of varying sizes is not emulated");
		at -= PROTOCOLS;
	}
	if (at < reductions * types * REDUCE_ALGORITHMS * PROTOCOLS) {
		function.collective = COLLECTIVE_ALLREDUCE;
		function.algorithm = at / PROTOCOLS % REDUCE_ALGORITHMS;
		at /= PROTOCOLS * REDUCE_ALGORITHMS;
	} else if ((at -= reductions * types * REDUCE_ALGORITHMS * PROTOCOLS) <
		   reductions * types * PROTOCOLS) {
		function.collective = COLLECTIVE_REDUCE;
		at /= PROTOCOLS;
	} else if ((at -= reductions * types * PROTOCOLS) <
		   reductions * types * algorithms * PROTOCOLS) {
		function.collective = COLLECTIVE_REDUCESCATTER;
		function.algorithm = at / PROTOCOLS % algorithms ? ALGORITHM_OTHER : ALGORITHM_RING;
		at /= PROTOCOLS * algorithms;
	} else {
		emulation_fail("NCCL %d: row %d of ncclDevFuncRowToId is unknown",
			       library_version(), row);
	}
	function.reduction = at / types;
	function.type = at % types;
	return function;
}

static struct function function_of_id(int id)
{
	const struct symbol *rows = library_symbol("ncclDevFuncRowToId");
	const int *ids = rows ? rows->address : NULL;
	int count = rows ? (int)(rows->bytes / sizeof(*ids)) : 0;

	for (int row = 0; row < count; row++)
		if (ids[row] == id)
			return function_of_row(row);
	emulation_fail("NCCL %d: device function %d is not in ncclDevFuncRowToId",
		       library_version(), id);
}

/* ---- works since 2.22 ------------------------------------------------------------------------ */

/* u32fp8: 5 bits of exponent, 3 of mantissa, as in NCCL's src/include/bitops.h */
static size_t p2p_chunk(uint64_t code)
{
	uint64_t exponent = code >> 3, mantissa = (code & 7) | (exponent ? 8 : 0);

	return (size_t)(mantissa << (exponent ? exponent - 1 : 0));
}

/* The part of a message that a channel moves. */
struct p2p_part {
	size_t first, bytes;
	bool is_ours; /* false: only other channels have parts */
};

static struct p2p_part p2p_part(const struct channel *channel, const void *work, size_t bytes,
				int parts)
{
	enum { PAGE_BYTES = 4096 };
	int base = field_int(work, layout.p2p_channel_base);
	int mask = field_int(work, layout.p2p_channels) - 1;
	int part = (channel->id - base) & mask;
	size_t part_bytes, first, end;

	if (part >= parts)
		return (struct p2p_part){ .is_ours = false };
	part_bytes = (bytes + (size_t)parts - 1) / (size_t)parts;
	part_bytes = (part_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	end = (size_t)(part + 1) * part_bytes;
	end = end < bytes ? end : bytes;
	first = (size_t)part * part_bytes;
	first = first < bytes ? first : bytes;
	return (struct p2p_part){ .first = first, .bytes = end - first, .is_ours = true };
}

static void block_add_p2p(struct block *block, const void *work)
{
	const struct channel *channel = &block->channel;
	int to = field_int(work, layout.p2p_send_rank),
	    from = field_int(work, layout.p2p_recv_rank);
	char *source = field_pointer(work, layout.p2p_send_address);
	char *target = field_pointer(work, layout.p2p_recv_address);
	struct p2p_part part;

	if ((field_exists(layout.p2p_send_registered) &&
	     field_int(work, layout.p2p_send_registered)) ||
	    (field_exists(layout.p2p_recv_registered) &&
	     field_int(work, layout.p2p_recv_registered)))
		emulation_fail("registered user buffers are not emulated");
	part = p2p_part(channel, work, field_value(work, layout.p2p_send_bytes),
			field_int(work, layout.p2p_send_channels));
	if (to == channel->rank) {
		if (part.is_ours)
			kernel_copy(target + part.first, source + part.first, part.bytes);
		return;
	}
	if (part.is_ours)
		block_add(block, task_p2p(channel, to, true, source + part.first, part.bytes,
					  p2p_chunk(field_value(work, layout.p2p_send_chunk)),
					  field_int(work, layout.p2p_send_ll)));
	part = p2p_part(channel, work, field_value(work, layout.p2p_recv_bytes),
			field_int(work, layout.p2p_recv_channels));
	if (part.is_ours)
		block_add(block, task_p2p(channel, from, false, target + part.first, part.bytes,
					  p2p_chunk(field_value(work, layout.p2p_recv_chunk)),
					  field_int(work, layout.p2p_recv_ll)));
}

/* Adds the works of a batch. */
static void block_add_batch(const struct kernel *kernel, struct block *block, const char *batch)
{
	const void *args = kernel->args;
	int type = field_int(batch, layout.batch_work_type);
	int storage = field_int(args, layout.args_storage);
	uint64_t bits = field_value(batch, layout.batch_offset_bits);
	uint64_t offset = field_value(batch, layout.batch_offset_base);
	uint64_t mask = field_value(args, layout.args_work_mask);
	const char *buffer = storage == layout.storage_args
				     ? args
				     : field_pointer(args, layout.args_work_buffer);
	struct function function = function_of_id(field_int(batch, layout.batch_function));
	size_t bytes;

	if (type != layout.work_is_p2p && type != layout.work_is_coll)
		emulation_fail("works of type %d are not emulated", type);
	block->is_parallel = type == layout.work_is_p2p;
	bytes = (size_t)(block->is_parallel ? layout.p2p_bytes : layout.coll_bytes);
	for (; bits; bits >>= 1, offset += bytes) {
		uint64_t at = storage == layout.storage_args ? offset : offset & mask;

		if (!(bits & 1))
			continue;
		if (block->is_parallel)
			block_add_p2p(block, buffer + at);
		else
			block_add(block, task_ring(&block->channel, buffer + at, &function));
	}
	/* NCCL 2.22: the host waits for this before it reuses the buffer. */
	if (field_exists(layout.comm_work_consumed) && storage == layout.storage_fifo) {
		uint32_t *consumed =
			memory_view(field_pointer(block->channel.comm, layout.comm_work_consumed));

		__atomic_store_n(&consumed[block->channel.id], (uint32_t)offset, __ATOMIC_RELEASE);
	}
}

static void block_next_batch(const struct kernel *kernel, struct block *block)
{
	const char *batches = (const char *)kernel->args + layout.args_bytes;
	const char *batch;
	int jump;

	do {
		batch = batches + (size_t)block->next * (size_t)layout.batch_bytes;
		jump = field_int(batch, layout.batch_next_jump);
		block_add_batch(kernel, block, batch);
		block->next = jump ? block->next + jump : -1;
	} while (field_int(batch, layout.batch_next_extends));
}

/* ---- works up to 2.21 ------------------------------------------------------------------------ */

enum { OLD_WORK_P2P = 2, OLD_RECV, OLD_SEND }; /* ncclWorkTypeP2p; order of the elements */

/* Elements are pairs of a receive and a send. */
static void block_add_old_pair(struct block *block, const char *recv)
{
	const char *send = recv + layout.elem_bytes;
	const struct channel *channel = &block->channel;

	for (int kind = OLD_RECV; kind <= OLD_SEND; kind++) {
		const char *elem = kind == OLD_SEND ? send : recv;
		/* a signed integer of 30 bits; -1: none */
		int peer = (int)((uint32_t)field_value(elem, layout.elem_peer) << 2) >> 2;
		bool is_ll = field_int(elem, layout.elem_protocol) == PROTOCOL_LL;
		char *address =
			(char *)(uintptr_t)(field_value(elem, layout.elem_buffer_high) << 32 |
					    field_value(elem, layout.elem_buffer_low));
		size_t bytes = field_value(elem, layout.elem_count_high) << 32 |
			       field_value(elem, layout.elem_count_low);
		size_t chunk = field_value(elem, layout.elem_chunk) / (is_ll ? 2 : 1);

		if (!field_int(elem, layout.elem_type) || peer == -1)
			continue;
		if (peer != channel->rank)
			block_add(block, task_p2p(channel, peer, kind == OLD_SEND, address, bytes,
						  chunk, is_ll));
		else if (kind == OLD_SEND)
			kernel_copy((char *)(uintptr_t)(field_value(recv, layout.elem_buffer_high)
								<< 32 |
							field_value(recv, layout.elem_buffer_low)),
				    address, bytes);
	}
}

static void block_next_work(const struct kernel *kernel, struct block *block)
{
	const char *work = kernel->works + (size_t)block->next * (size_t)layout.work_bytes;
	bool is_last = field_int(work, layout.work_is_last);
	bool is_in_fifo = field_int(work, layout.work_in_fifo);
	uint64_t done_acks = field_value(work, layout.work_done_acks);
	const char *elem = field_at(work, layout.work_p2p);
	int groups;

	if (field_int(work, layout.work_type) != OLD_WORK_P2P)
		emulation_fail("NCCL %d: collectives are not emulated before 2.22, only sends and "
			       "receives",
			       library_version());
	block->is_parallel = true;
	groups = field_int(elem, layout.elem_groups);
	for (int group = 0; group < groups; group += 2)
		block_add_old_pair(block, elem + (size_t)group * (size_t)layout.elem_bytes);
	block->next = is_last ? -1 : field_int(work, layout.work_next);
	/* All entries have been read, so the host may reuse them. */
	if (is_last && is_in_fifo)
		__atomic_store_n((uint32_t *)memory_view(field_pointer(block->channel.info,
								       layout.channel_fifo_done)),
				 (uint32_t)done_acks, __ATOMIC_RELEASE);
}

/* ---- running --------------------------------------------------------------------------------- */

static bool block_poll(const struct kernel *kernel, struct block *block)
{
	bool is_idle = true, is_moving = false;

	for (unsigned i = 0; i < block->task_count; i++) {
		enum progress progress;

		if (!block->tasks[i])
			continue;
		progress = task_poll(block->tasks[i]);
		is_moving |= progress != PROGRESS_NONE;
		if (progress == PROGRESS_DONE) {
			task_close(block->tasks[i]);
			block->tasks[i] = NULL;
			continue;
		}
		is_idle = false;
		if (!block->is_parallel)
			return is_moving;
	}
	if (!is_idle)
		return is_moving;
	block->task_count = 0;
	if (block->next < 0)
		block->is_done = true;
	else if (kernel->works)
		block_next_work(kernel, block);
	else
		block_next_batch(kernel, block);
	return true;
}

static bool kernel_is_aborted(const struct kernel *kernel)
{
	const void *flag = field_pointer(kernel->blocks[0].channel.comm, layout.comm_abort_flag);

	return flag && __atomic_load_n((const uint32_t *)memory_view(flag), __ATOMIC_ACQUIRE);
}

static void kernel_open(struct kernel *kernel, const void *args, size_t bytes, unsigned blocks)
{
	const void *comm;
	uint64_t mask;

	*kernel = (struct kernel){ .args = args, .count = blocks };
	if (field_exists(layout.args_comm)) {
		comm = field_pointer(args, layout.args_comm);
		mask = field_value(args, layout.args_channel_mask);
	} else {
		const uint64_t *words = args; /* comm, channelMask, workHead */

		if (bytes != 3 * sizeof(*words))
			emulation_fail("a kernel of NCCL %d has %zu bytes of arguments",
				       library_version(), bytes);
		comm = (const void *)(uintptr_t)words[0];
		mask = words[1];
		kernel->works = (const char *)(uintptr_t)words[2];
	}
	if (blocks > KERNEL_CHANNELS_MAX || (unsigned)__builtin_popcountll(mask) < blocks)
		emulation_fail("a kernel with %u blocks and channels %#llx", blocks,
			       (unsigned long long)mask);
	kernel->blocks = emulation_alloc(blocks * sizeof(*kernel->blocks));
	for (unsigned i = 0; i < blocks; i++, mask &= mask - 1) {
		channel_open(&kernel->blocks[i].channel, comm, __builtin_ctzll(mask));
		kernel->blocks[i].next = (int)i;
	}
}

static void kernel_close(struct kernel *kernel)
{
	for (unsigned i = 0; i < kernel->count; i++)
		for (unsigned k = 0; k < kernel->blocks[i].task_count; k++)
			if (kernel->blocks[i].tasks[k])
				task_close(kernel->blocks[i].tasks[k]);
	free(kernel->blocks);
}

void kernel_run(const char *name, const void *args, size_t bytes, unsigned blocks)
{
	struct kernel kernel;
	bool is_live, is_moving;

	/* Mangled names. Kernels for symmetric memory have other names. */
	if (!strstr(name, "ncclDevKernel_") && !strstr(name, "ncclKernel_"))
		emulation_fail("NCCL %d launched %s(), which is not emulated", library_version(),
			       name);
	kernel_open(&kernel, args, bytes, blocks);
	do {
		is_live = is_moving = false;
		for (unsigned i = 0; i < blocks; i++) {
			struct block *block = &kernel.blocks[i];

			if (block->is_done)
				continue;
			is_live = true;
			is_moving |= block_poll(&kernel, block);
		}
		if (is_live && !is_moving) {
			if (kernel_is_aborted(&kernel))
				break;
			sched_yield();
		}
	} while (is_live);
	kernel_close(&kernel);
}
