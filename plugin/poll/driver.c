/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - the baton and the ready list; see driver.h. */
#include "poll/driver.h"

#include <sched.h>
#include <stddef.h>
#include <time.h>

uint64_t driver_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void driver_init(struct driver *driver, void (*advance)(struct driver *, uint64_t))
{
	atomic_init(&driver->baton, false);
	atomic_init(&driver->runs, 0);
	atomic_init(&driver->ready, NULL);
	atomic_init(&driver->polled_ns, 0);
	driver->now_ns = 0;
	driver->advance = advance;
	driver->wake = NULL;
}

void driver_post(struct driver *driver, struct work *work)
{
	struct work *head;

	/* Read-modify-write on both sides (see driver_run_ready): whoever finds it queued knows that a
	 * run which sees everything written before this line is still to come. */
	if (atomic_exchange_explicit(&work->queued, true, memory_order_acq_rel))
		return;
	head = atomic_load_explicit(&driver->ready, memory_order_relaxed);
	do {
		work->next = head;
	} while (!atomic_compare_exchange_weak_explicit(&driver->ready, &head, work,
							memory_order_release,
							memory_order_relaxed));
	if (driver->wake)
		driver->wake(driver);
}

unsigned driver_run_ready(struct driver *driver, uint64_t now_ns)
{
	struct work *taken = NULL, *fifo = NULL;
	uint64_t runs = atomic_load_explicit(&driver->runs, memory_order_relaxed);
	unsigned count = 0;

	if (atomic_load_explicit(&driver->ready, memory_order_relaxed))
		taken = atomic_exchange_explicit(&driver->ready, NULL, memory_order_acquire);
	while (taken) { /* newest first, as pushed: turn it round */
		struct work *next = taken->next;

		taken->next = fifo;
		fifo = taken;
		taken = next;
	}
	while (fifo) {
		struct work *work = fifo;

		/* From the exchange on it may be posted again, or its run may free it. */
		fifo = work->next;
		atomic_exchange_explicit(&work->queued, false, memory_order_acq_rel);
		work->run(work, now_ns);
		count++;
	}
	/* No work frees the driver that it runs on. */
	atomic_store_explicit(&driver->runs, runs + 1, memory_order_release);
	return count;
}

bool driver_take(struct driver *driver)
{
	/* Look before taking: a failed exchange would steal the holder's cache line. */
	return !atomic_load_explicit(&driver->baton, memory_order_relaxed) &&
	       !atomic_exchange_explicit(&driver->baton, true, memory_order_acquire);
}

void driver_give(struct driver *driver)
{
	atomic_store_explicit(&driver->baton, false, memory_order_release);
}

uint64_t driver_turn_clock(struct driver *driver, uint64_t now_ns)
{
	if (now_ns > driver->now_ns)
		driver->now_ns = now_ns;
	return driver->now_ns;
}

bool driver_turn(struct driver *driver, uint64_t now_ns)
{
	if (!driver_take(driver))
		return false;
	driver->advance(driver, driver_turn_clock(driver, now_ns));
	driver_give(driver);
	return true;
}

bool driver_poll_at(struct driver *driver, uint64_t now_ns)
{
	/* Only the guardian reads it, to stay away; it orders nothing. */
	atomic_store_explicit(&driver->polled_ns, now_ns, memory_order_relaxed);
	return driver_turn(driver, now_ns);
}

bool driver_poll(struct driver *driver)
{
	return driver_poll_at(driver, driver_clock_ns());
}

void driver_call(struct driver *driver, struct work *work)
{
	uint64_t runs = 0;
	bool taken = false;

	driver_post(driver, work);
	for (;;) {
		/* A turn of our own that ends with the work off the list: it ran in this turn, or in an
		 * earlier one that has ended. */
		if (driver_poll(driver) &&
		    !atomic_load_explicit(&work->queued, memory_order_acquire))
			return;
		/* Or who has the baton, and may keep it, has taken the work and since then ended a run. He
		 * is in his turn still: not for a driver that may go when this returns. */
		if (!driver->wake) {
			sched_yield();
			continue;
		}
		if (taken && atomic_load_explicit(&driver->runs, memory_order_acquire) != runs)
			return;
		if (!taken && !atomic_load_explicit(&work->queued, memory_order_acquire)) {
			taken = true;
			runs = atomic_load_explicit(&driver->runs, memory_order_acquire);
		}
		sched_yield();
	}
}
