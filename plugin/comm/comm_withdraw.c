/* SPDX-License-Identifier: Apache-2.0 */
/* comm_withdraw.c - memory that is taken back while requests lie in it: they are given up. */
#include <errno.h>
#include <sched.h>

#include "comm/comm_impl.h"

struct comm_withdrawal {
	struct work work; /* first */
	struct comm *comm;
	const void *memory;
	uintptr_t begin, end;
};

/* Of a request that was posted without its registration the address has to tell. */
static bool comm_request_is_hit(const struct request *request, const struct comm_withdrawal *w)
{
	uintptr_t begin = (uintptr_t)request->data;

	if (request->size == 0)
		return false;
	if (request->memory)
		return request->memory == w->memory;
	return begin < w->end && w->begin < begin + request->size;
}

/* Baton or lock held. Is a request that is not done to be given up? */
static bool comm_is_hit(struct comm *comm, const struct comm_withdrawal *w)
{
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_acquire);

	for (uint64_t m = comm->completed; m < posted; m++)
		if (comm_request_is_hit(comm_request(comm, m), w))
			return true;
	return false;
}

/* No WARN: it is the application that gives up, and has said why. */
static void comm_say_withdrawn(const struct comm *comm)
{
	char peer[HARP_ENDPOINT_TEXT_MAX];

	INFO("%s peer %s: deregMr of memory that requests in flight lie in: they are given up",
	     comm->side == COMM_SEND ? "sending to" : "receiving from",
	     harp_endpoint_format(&comm->remote, peer));
}

static void comm_withdraw_run(struct work *work, uint64_t now_ns)
{
	struct comm_withdrawal *w = (struct comm_withdrawal *)work;
	struct comm *comm = w->comm;

	(void)now_ns;
	if (comm->error || !comm_is_hit(comm, w))
		return;
	comm_say_withdrawn(comm);
	atomic_store_explicit(&comm->error, -ECANCELED, memory_order_release);
}

static void comm_withdraw_several(struct comm_withdrawal *w)
{
	struct comm *comm = w->comm;
	struct record close = { .type = RECORD_CLOSE, .tag = CLOSE_ABORTED };
	bool hit;

	comm_lock(comm);
	hit = comm_is_hit(comm, w);
	comm_unlock(comm);
	if (!hit)
		return;
	if (comm_fail_first(comm, -ECANCELED, &close)) {
		comm_say_withdrawn(comm);
		comm_fail_publish(comm, -ECANCELED);
	}
	/* Published when the last lane that moves bytes has done so. */
	while (!atomic_load_explicit(&comm->error, memory_order_acquire))
		sched_yield();
}

void comm_withdraw(struct comm *comm, const void *memory, const void *base, size_t bytes)
{
	struct comm_withdrawal w = { .work.run = comm_withdraw_run,
				     .comm = comm,
				     .memory = memory,
				     .begin = (uintptr_t)base,
				     .end = (uintptr_t)base + bytes };

	if (bytes == 0)
		return;
	if (comm->several)
		comm_withdraw_several(&w);
	else
		driver_call(comm->only->lane->driver, &w.work);
}
