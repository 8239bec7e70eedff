/* SPDX-License-Identifier: Apache-2.0 */
/* poller.c - the poller and the ready list; see poller.h. */
#include "poll/poller.h"

#include <sched.h>
#include <stddef.h>
#include <time.h>

uint64_t clock_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void poller_init(struct poller *poller, void (*advance)(struct poller *, uint64_t))
{
	*poller = (struct poller){ .advance = advance };
}

void poller_post(struct poller *poller, struct work *work)
{
	struct work *head;

	/* A read-modify-write here and in poller_run_ready(): if the work is queued already, its
	 * next run sees everything written before this line. */
	if (atomic_exchange_explicit(&work->queued, true, memory_order_acq_rel))
		return;
	head = atomic_load_explicit(&poller->ready, memory_order_relaxed);
	do {
		work->next = head;
	} while (!atomic_compare_exchange_weak_explicit(&poller->ready, &head, work,
							memory_order_release,
							memory_order_relaxed));
	if (poller->wake)
		poller->wake(poller);
}

unsigned poller_run_ready(struct poller *poller, uint64_t now_ns)
{
	struct work *taken = NULL, *fifo = NULL;
	unsigned count = 0;

	if (atomic_load_explicit(&poller->ready, memory_order_relaxed))
		taken = atomic_exchange_explicit(&poller->ready, NULL, memory_order_acquire);
	while (taken) { /* newest first: reverse it */
		struct work *next = taken->next;

		taken->next = fifo;
		fifo = taken;
		taken = next;
	}
	while (fifo) {
		struct work *work = fifo;

		/* After the exchange it may be posted again; its run may free it. */
		fifo = work->next;
		atomic_exchange_explicit(&work->queued, false, memory_order_acq_rel);
		work->run(work, now_ns);
		count++;
	}
	return count;
}

bool poller_try(struct poller *poller)
{
	/* Read first: a failed exchange would take the holder's cache line. */
	return !atomic_load_explicit(&poller->held, memory_order_relaxed) &&
	       !atomic_exchange_explicit(&poller->held, true, memory_order_acquire);
}

void poller_release(struct poller *poller)
{
	atomic_store_explicit(&poller->held, false, memory_order_release);
}

bool poller_run(struct poller *poller, uint64_t now_ns)
{
	if (!poller_try(poller))
		return false;
	/* The caller read its clock before it acquired the poller. Another thread may have polled
	 * since with a later timestamp, so the poller keeps the maximum. */
	if (now_ns > poller->now_ns)
		poller->now_ns = now_ns;
	poller->advance(poller, poller->now_ns);
	poller_release(poller);
	return true;
}

bool poller_poll_at(struct poller *poller, uint64_t now_ns)
{
	/* Relaxed: only a hint for the control thread. */
	atomic_store_explicit(&poller->polled_ns, now_ns, memory_order_relaxed);
	return poller_run(poller, now_ns);
}

bool poller_poll(struct poller *poller)
{
	return poller_poll_at(poller, clock_now_ns());
}

/* On the caller's stack. */
struct poller_call {
	struct work work; /* first */
	void (*run)(void *arg);
	void *arg;
};

static void poller_call_run(struct work *work, uint64_t now_ns)
{
	struct poller_call *call = (struct poller_call *)work;

	(void)now_ns;
	call->run(call->arg);
}

void poller_call(struct poller *poller, void (*run)(void *arg), void *arg)
{
	struct poller_call call = { .work.run = poller_call_run, .run = run, .arg = arg };

	poller_post(poller, &call.work);
	/* If the work is off the list after our own turn, it ran in this turn or in an earlier
	 * one. */
	while (!poller_poll(poller) ||
	       atomic_load_explicit(&call.work.queued, memory_order_acquire))
		sched_yield();
}
