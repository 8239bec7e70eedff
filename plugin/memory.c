/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - memory that NCCL registers (regMr), made known to the stacks that can send from it in place.
 *
 * Theory of operation
 *
 * A registration of a sender is told to every engine that is open and whose NIC reads the application's memory
 * (harp_stack_memory_supported(): DPDK); others, engines that open later, and receivers need none, as who sends asks
 * for each piece whether its stack knows it, and copies what it does not (lane_harp.c). Stacks count how often
 * memory was added: NCCL registers one pool again for each comm.
 *
 * deregMr returns when nobody reads the memory any more. What a connection still has queued of it, which is only so when
 * requests were given up, or when another lane of the comm has delivered it, is copied into frames; then the NIC is
 * waited for, which takes microseconds, and MEMORY_WAIT_NS at most.
 *
 * mrs is under memory_lock, held for list work only.
 */
#include "memory.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "ctx.h"

#define MEMORY_WAIT_NS UINT64_C(1000000000)

struct plugin_mr {
	struct plugin_mr *next, **prev;
	const void *base;
	size_t bytes;
	unsigned count;
	struct engine *engines[]; /* count: those that know it */
};

static struct plugin_mr *mrs;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

/* One call of a stack, by whoever has its engine's baton. */
struct memory_call {
	struct work work; /* first */
	struct engine *engine;
	const void *base;
	size_t bytes;
	bool add;
	int rc;
};

static void memory_run(struct work *work, uint64_t now_ns)
{
	struct memory_call *call = (struct memory_call *)work;
	struct harp_stack *stack = engine_stack(call->engine);

	(void)now_ns;
	if (call->add) {
		call->rc = harp_stack_memory_add(stack, call->base, call->bytes);
		return;
	}
	call->rc = harp_stack_memory_remove(stack, call->base, call->bytes);
	if (call->rc == -EBUSY) {
		(void)harp_stack_memory_evict(stack, call->base, call->bytes);
		call->rc = harp_stack_memory_remove(stack, call->base, call->bytes);
	}
}

static int memory_call(struct engine *engine, const struct plugin_mr *mr, bool add)
{
	struct memory_call call = { .work.run = memory_run,
				    .engine = engine,
				    .base = mr->base,
				    .bytes = mr->bytes,
				    .add = add };

	driver_call(engine_driver(engine), &call.work);
	return call.rc;
}

/* The engines that are open and may be told; at most max. */
static unsigned memory_engines(struct engine **out, unsigned max)
{
	unsigned count = 0;

	for (int dev = 0; dev < plugin_device_count(); dev++) {
		const struct engine_set *set = ctx_open_engines(dev);

		for (unsigned i = 0; set && i < engine_set_count(set) && count < max; i++) {
			struct engine *engine = engine_set_at(set, i);

			if (harp_stack_memory_supported(engine_stack(engine)))
				out[count++] = engine;
		}
	}
	return count;
}

int plugin_memory_add(const void *base, size_t bytes, struct plugin_mr **out)
{
	struct engine *engines[ENGINES_MAX];
	unsigned count = bytes > 0 ? memory_engines(engines, ENGINES_MAX) : 0;
	struct plugin_mr *mr;

	*out = NULL;
	if (count == 0)
		return 0;
	mr = calloc(1, sizeof(*mr) + count * sizeof(mr->engines[0]));
	if (!mr)
		return -ENOMEM;
	mr->base = base;
	mr->bytes = bytes;
	for (unsigned i = 0; i < count; i++) {
		int rc = memory_call(engines[i], mr, true);

		if (rc == 0)
			mr->engines[mr->count++] = engines[i];
		else
			INFO("%s: %zu bytes at %p can't be sent in place (%s): they are copied",
			     engine_describe(engines[i]), bytes, base, strerror(-rc));
	}
	if (mr->count == 0) {
		free(mr);
		return 0;
	}
	pthread_mutex_lock(&memory_lock);
	mr->next = mrs;
	mr->prev = &mrs;
	if (mrs)
		mrs->prev = &mr->next;
	mrs = mr;
	pthread_mutex_unlock(&memory_lock);
	*out = mr;
	return 0;
}

int plugin_memory_remove(struct plugin_mr *mr)
{
	uint64_t until_ns = driver_clock_ns() + MEMORY_WAIT_NS;
	int result = 0;

	pthread_mutex_lock(&memory_lock);
	*mr->prev = mr->next;
	if (mr->next)
		mr->next->prev = mr->prev;
	pthread_mutex_unlock(&memory_lock);
	for (unsigned i = 0; i < mr->count; i++) {
		int rc;

		while ((rc = memory_call(mr->engines[i], mr, false)) == -EBUSY &&
		       driver_clock_ns() < until_ns)
			sched_yield(); /* each call polls the NIC */
		if (rc) {
			WARN("%s: deregMr: the NIC still reads %zu bytes at %p after %llu ms (%s): don't "
			     "reuse them; is the link up?",
			     engine_describe(mr->engines[i]), mr->bytes, mr->base,
			     (unsigned long long)(MEMORY_WAIT_NS / 1000000), strerror(-rc));
			result = rc;
		}
	}
	free(mr);
	return result;
}

void plugin_memory_forget(void)
{
	pthread_mutex_lock(&memory_lock);
	for (struct plugin_mr *mr = mrs; mr; mr = mr->next)
		mr->count = 0;
	pthread_mutex_unlock(&memory_lock);
}
