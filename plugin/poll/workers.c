/* SPDX-License-Identifier: Apache-2.0 */
/* workers.c - threads beside NCCL's for kernel lanes; see workers.h. */
#include "poll/workers.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "process/cores.h"
#include "poll/kernel_driver.h"
#include "process/parallel.h"

/*
 * Theory of operation
 *
 * NCCL's socket transport starts its helper threads for each connection and each direction: a rank with two
 * peers, two channels and the shape 2x8 has 16, and most of them sleep. What they are for is that
 * one core does not copy fast enough; so here a NIC has as many for the whole process, and whichever
 * connection is busy gets them.
 *
 * A lane that has much to send or to receive kicks its driver: it is queued, a worker takes turns of it
 * as long as bytes move and SPIN_NS longer, and goes on to the next. With several in the queue each gets
 * TURNS_MAX turns at a time. A worker never waits for a baton: NCCL's thread takes turns of the same drivers. It
 * is NCCL's polling, too, that finds what comes while the workers sleep: there is nothing that they
 * would have to be woken for by a socket, and small messages never wake them.
 *
 * With one core for everything a helper can only take time from who polls: there are never more
 * workers than usable cores less one. Where every core has its thread, a worker that found nothing yields.
 */

#define SPIN_NS 50000u
#define TURNS_MAX 32u

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t wake; /* something is queued, or to be stopped */
	/* Under the lock. */
	struct kernel_driver *queue, **queue_tail;
	unsigned sleeping, threads;
	bool stop;
	pthread_t ids[PARALLEL_THREADS_MAX];
	/* Written before the first thread starts. */
	unsigned helpers; /* how many threads answer kicks: all or none */
	bool crowded;
	atomic_bool waiting; /* Relaxed, a hint: the queue is not empty */
};

/* Of each NIC, until the last context is gone. Under workers_lock. */
static struct workers *workers_of[PLUGIN_DEVICES_MAX];
static pthread_mutex_t workers_lock = PTHREAD_MUTEX_INITIALIZER;

static void workers_relax(const struct workers *workers)
{
	if (workers->crowded)
		sched_yield();
	else
		thread_relax();
}

/* ---- the queue; lock held ---------------------------------------------------------------------- */

static void workers_push(struct workers *workers, struct kernel_driver *kd)
{
	kd->seat.state = SEAT_QUEUED;
	kd->seat.queue_next = NULL;
	*workers->queue_tail = kd;
	workers->queue_tail = &kd->seat.queue_next;
	atomic_store_explicit(&workers->waiting, true, memory_order_relaxed);
	if (workers->sleeping)
		pthread_cond_signal(&workers->wake);
}

/* Takes the one at *at. */
static struct kernel_driver *workers_unqueue(struct workers *workers, struct kernel_driver **at)
{
	struct kernel_driver *kd = *at;

	*at = kd->seat.queue_next;
	if (!*at)
		workers->queue_tail = at;
	atomic_store_explicit(&workers->waiting, workers->queue != NULL, memory_order_relaxed);
	return kd;
}

/* ---- turns; lock not held ----------------------------------------------------------------------- */

/* 1: bytes moved, 0: none, -1: somebody else has the baton. */
static int workers_turn(struct kernel_driver *kd, uint64_t now_ns)
{
	struct driver *driver = &kd->driver;
	uint64_t moved_bytes;
	int moved;

	if (!driver_take(driver))
		return -1;
	moved_bytes = kd->moved_bytes;
	driver->advance(driver, driver_turn_clock(driver, now_ns));
	moved = kd->moved_bytes != moved_bytes;
	driver_give(driver);
	return moved;
}

/* Up to TURNS_MAX turns, fewer when others wait and this one has nothing to do. True: bytes moved. */
static bool workers_help(struct workers *workers, struct kernel_driver *kd)
{
	bool moved = false;

	for (unsigned i = 0; i < TURNS_MAX; i++) {
		if (workers_turn(kd, driver_clock_ns()) > 0) {
			moved = true;
			continue;
		}
		if (atomic_load_explicit(&workers->waiting, memory_order_relaxed))
			break;
		workers_relax(workers);
	}
	return moved;
}

/* ---- the threads --------------------------------------------------------------------------------- */

/* Lock held, and given meanwhile. */
static void workers_serve(struct workers *workers, struct kernel_driver *kd)
{
	struct worker_seat *seat = &kd->seat;
	uint64_t now_ns = driver_clock_ns();
	bool moved;

	seat->state = SEAT_RUNNING;
	if (atomic_exchange_explicit(&seat->kicked, false, memory_order_relaxed))
		seat->busy_ns = now_ns;
	pthread_mutex_unlock(&workers->lock);
	moved = workers_help(workers, kd);
	now_ns = driver_clock_ns();
	pthread_mutex_lock(&workers->lock);
	if (moved)
		seat->busy_ns = now_ns;
	seat->state = SEAT_IDLE;
	if (now_ns - seat->busy_ns < SPIN_NS ||
	    atomic_load_explicit(&seat->kicked, memory_order_relaxed))
		workers_push(workers, kd);
}

static void *workers_main(void *arg)
{
	struct workers *workers = arg;

	pthread_mutex_lock(&workers->lock);
	while (!workers->stop) {
		if (workers->queue) {
			workers_serve(workers, workers_unqueue(workers, &workers->queue));
			continue;
		}
		workers->sleeping++;
		pthread_cond_wait(&workers->wake, &workers->lock);
		workers->sleeping--;
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

/* ---- starting and stopping ----------------------------------------------------------------------- */

/* As many as there can be. */
static void workers_start(struct workers *workers, unsigned wanted)
{
	int rc = 0;

	while (workers->threads < wanted && !rc) {
		rc = thread_start(&workers->ids[workers->threads], workers_main, workers,
				  "harp-worker");
		if (!rc)
			workers->threads++;
	}
	if (rc)
		INFO("kernel lanes: %u of %u threads: %s", workers->threads, wanted, strerror(-rc));
}

static struct workers *workers_new(int dev)
{
	struct workers *workers = calloc(1, sizeof(*workers));
	unsigned cores = cores_usable(), wanted = parallel_of(dev).threads;

	if (!workers)
		return NULL;
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->wake, NULL);
	workers->queue_tail = &workers->queue;
	workers->helpers = wanted < cores ? wanted : cores - 1;
	workers->crowded = workers->helpers + 1 >= cores;
	workers_start(workers, workers->helpers);
	return workers;
}

void workers_stop(void)
{
	pthread_mutex_lock(&workers_lock);
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++) {
		struct workers *workers = workers_of[dev];

		if (!workers)
			continue;
		pthread_mutex_lock(&workers->lock);
		workers->stop = true;
		pthread_cond_broadcast(&workers->wake);
		pthread_mutex_unlock(&workers->lock);
		for (unsigned i = 0; i < workers->threads; i++)
			pthread_join(workers->ids[i], NULL);
		pthread_cond_destroy(&workers->wake);
		pthread_mutex_destroy(&workers->lock);
		free(workers);
		workers_of[dev] = NULL;
	}
	pthread_mutex_unlock(&workers_lock);
}

/* ---- for drivers --------------------------------------------------------------------------------- */

void workers_enter(struct kernel_driver *kd, int dev)
{
	struct workers *workers;

	memset(&kd->seat, 0, sizeof(kd->seat));
	atomic_init(&kd->seat.kicked, false);
	pthread_mutex_lock(&workers_lock);
	workers = workers_of[dev];
	if (!workers)
		workers = workers_of[dev] = workers_new(dev);
	pthread_mutex_unlock(&workers_lock);
	kd->seat.workers = workers;
}

void workers_leave(struct kernel_driver *kd)
{
	struct workers *workers = kd->seat.workers;
	struct kernel_driver **at;

	if (!workers)
		return;
	pthread_mutex_lock(&workers->lock);
	while (kd->seat.state == SEAT_RUNNING) { /* a few turns at most */
		pthread_mutex_unlock(&workers->lock);
		sched_yield();
		pthread_mutex_lock(&workers->lock);
	}
	if (kd->seat.state == SEAT_QUEUED) {
		for (at = &workers->queue; *at != kd; at = &(*at)->seat.queue_next)
			;
		workers_unqueue(workers, at);
	}
	pthread_mutex_unlock(&workers->lock);
	kd->seat.workers = NULL;
}

void workers_kick(struct kernel_driver *kd)
{
	struct worker_seat *seat = &kd->seat;
	struct workers *workers = seat->workers;

	if (!workers || !workers->helpers ||
	    atomic_load_explicit(&seat->kicked, memory_order_relaxed))
		return;
	atomic_store_explicit(&seat->kicked, true, memory_order_relaxed);
	pthread_mutex_lock(&workers->lock);
	if (seat->state == SEAT_IDLE)
		workers_push(workers, kd);
	pthread_mutex_unlock(&workers->lock);
}
