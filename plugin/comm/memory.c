/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - memory that NCCL registers (regMr), and the stacks that send from it in place.
 *
 * Theory of operation
 *
 * NCCL's handle of a registration is the address of its struct memory; handles that are not on the
 * list are rejected. A sender's registration is announced to every engine whose NIC reads the
 * application's memory (DPDK), now or when the engine opens. lane_harp.c offers each piece to the
 * stack, and copies pieces that the stack does not know. Stacks count registrations, because NCCL
 * registers a pool again for each comm.
 *
 * deregMr returns when the memory is no longer accessed, usually at once. When NCCL aborts, it
 * deregisters with requests in flight, frees the memory, and then closes the comm (contract section
 * 3.8). So the comm first cancels the requests that were posted with this registration
 * (comm_cancel_memory()). Data that connections have queued is copied into frames, data queued for
 * the NIC is dropped, and the NIC is waited for, or stopped if it does not complete (harp_nic.h).
 * Closing a comm does the same for its registrations.
 *
 * memory_lock protects everything. It is released during waits; memory_waiting counts them, and no
 * engine closes before they end.
 */
#include "comm/memory.h"
#include "base/util.h"
#include "device/device.h"
#include "process/log.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

/* A NIC that does not complete is stopped earlier than this; only a broken driver takes so long. */
#define MEMORY_WAIT_NS UINT64_C(10000000000)

struct memory_piece {
	const void *base;
	size_t bytes;
};

struct memory {
	LIST_ENTRY(memory) link;
	struct memory_piece piece;
	struct comm *comm; /* NULL: closed */
	bool sent_from;    /* announced to NICs */
};

static LIST_HEAD(, memory) memories;
static struct engine
	*engines[PLUGIN_DEVICES_MAX * ENGINES_MAX]; /* that send from memory in place */
static unsigned engine_count, memory_waiting;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t memory_waited = PTHREAD_COND_INITIALIZER;

/* ---- the stacks ----------------------------------------------------------------------------- */

/* One call of a stack, with its engine's poller held. */
struct memory_call {
	struct engine *engine;
	struct memory_piece piece;
	bool add;
	int rc;
};

static void memory_run(void *arg)
{
	struct memory_call *call = arg;
	struct harp_stack *stack = call->engine->stack;
	const struct memory_piece *piece = &call->piece;

	if (call->add) {
		call->rc = harp_stack_memory_add(stack, piece->base, piece->bytes);
		return;
	}
	call->rc = harp_stack_memory_remove(stack, piece->base, piece->bytes);
	if (call->rc == -EBUSY) {
		(void)harp_stack_memory_evict(stack, piece->base, piece->bytes);
		call->rc = harp_stack_memory_remove(stack, piece->base, piece->bytes);
	}
}

static int memory_call(struct engine *engine, const struct memory_piece *piece, bool add)
{
	struct memory_call call = { .engine = engine, .piece = *piece, .add = add };

	poller_call(&engine->poller, memory_run, &call);
	return call.rc;
}

static void memory_announce(struct engine *engine, const struct memory_piece *piece)
{
	int rc = memory_call(engine, piece, true);

	if (rc)
		INFO("%s: %zu bytes at %p can't be sent in place (%s): they are copied",
		     harp_instance_describe(engine->instance), piece->bytes, piece->base,
		     strerror(-rc));
}

/* The caller has incremented memory_waiting. */
static int memory_take_back(struct engine *engine, const struct memory_piece *piece)
{
	uint64_t until_ns = clock_now_ns() + MEMORY_WAIT_NS;
	int rc;

	while ((rc = memory_call(engine, piece, false)) == -EBUSY && clock_now_ns() < until_ns)
		sched_yield(); /* each call polls the NIC */
	if (rc == -EBUSY)
		WARN("%s: deregMr: the device still reads %zu bytes at %p after %u s and can't be "
		     "stopped: don't use them again, and end the process",
		     harp_instance_describe(engine->instance), piece->bytes, piece->base,
		     (unsigned)(MEMORY_WAIT_NS / 1000000000u));
	return rc == -ENOENT ? 0 : rc; /* it was never announced */
}

/* memory_lock is held, and released during waits. Engines that open meanwhile don't get the
 * piece. */
static int memory_take_back_all(const struct memory_piece *piece)
{
	int result = 0;

	memory_waiting++;
	for (unsigned i = 0, count = engine_count; i < count; i++) {
		struct engine *engine = engines[i];
		int rc;

		pthread_mutex_unlock(&memory_lock);
		rc = memory_take_back(engine, piece);
		pthread_mutex_lock(&memory_lock);
		result = rc ? rc : result;
	}
	if (--memory_waiting == 0)
		pthread_cond_broadcast(&memory_waited);
	return result;
}

void plugin_memory_engine_open(struct engine *engine)
{
	if (!harp_stack_memory_supported(engine->stack))
		return;
	pthread_mutex_lock(&memory_lock);
	for (struct memory *m = LIST_FIRST(&memories); m; m = LIST_NEXT(m, link))
		if (m->sent_from)
			memory_announce(engine, &m->piece);
	engines[engine_count++] = engine;
	pthread_mutex_unlock(&memory_lock);
}

void plugin_memory_engine_close(struct engine *engine)
{
	pthread_mutex_lock(&memory_lock);
	while (memory_waiting > 0)
		pthread_cond_wait(&memory_waited, &memory_lock);
	for (unsigned i = 0; i < engine_count; i++)
		if (engines[i] == engine)
			engines[i] = engines[--engine_count];
	pthread_mutex_unlock(&memory_lock);
}

/* ---- registrations -------------------------------------------------------------------------- */

int plugin_memory_add(struct comm *comm, const void *base, size_t bytes, void **out)
{
	struct memory *m = malloc(sizeof(*m));

	if (!m) {
		WARN("regMr: out of memory for %zu bytes at %p", bytes, base);
		return -ENOMEM;
	}
	*m = (struct memory){
		.comm = comm,
		.piece = { base, bytes },
		/* Receive buffers are written by the CPU, not by the NIC. */
		.sent_from = comm->side == COMM_SEND && bytes > 0,
	};
	pthread_mutex_lock(&memory_lock);
	LIST_INSERT_HEAD(&memories, m, link);
	comm->registered++;
	for (unsigned i = 0; m->sent_from && i < engine_count; i++)
		memory_announce(engines[i], &m->piece);
	pthread_mutex_unlock(&memory_lock);
	*out = m;
	return 0;
}

int plugin_memory_remove(void *handle)
{
	struct comm *comm = NULL;
	struct memory *m;
	int rc = 0;

	pthread_mutex_lock(&memory_lock);
	for (m = LIST_FIRST(&memories); m && m != handle;)
		m = LIST_NEXT(m, link);
	if (m) {
		LIST_REMOVE(m, link);
		comm = m->comm;
	}
	if (comm)
		comm->registered--;
	pthread_mutex_unlock(&memory_lock);
	if (!m)
		return -ENOENT;
	if (comm)
		comm_cancel_memory(comm, handle, m->piece.base, m->piece.bytes);
	pthread_mutex_lock(&memory_lock);
	if (m->sent_from)
		rc = memory_take_back_all(&m->piece);
	pthread_mutex_unlock(&memory_lock);
	free(m);
	return rc;
}

void plugin_memory_comm_closes(struct comm *comm)
{
	struct memory *m;

	pthread_mutex_lock(&memory_lock);
	for (m = LIST_FIRST(&memories); m && comm->registered > 0;) {
		struct memory_piece piece = m->piece;

		if (m->comm != comm) {
			m = LIST_NEXT(m, link);
			continue;
		}
		comm->registered--;
		m->comm = NULL;
		if (m->sent_from) {
			m->sent_from = false;
			(void)memory_take_back_all(&piece); /* the list may change meanwhile */
		}
		m = LIST_FIRST(&memories);
	}
	pthread_mutex_unlock(&memory_lock);
}

void plugin_memory_forget(void)
{
	struct memory *m;

	pthread_mutex_lock(&memory_lock);
	while ((m = LIST_FIRST(&memories))) {
		LIST_REMOVE(m, link);
		free(m);
	}
	pthread_mutex_unlock(&memory_lock);
}
