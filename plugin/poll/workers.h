/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - threads that advance kernel drivers beside NCCL's own: per NIC and process, so many as
 * parallel.h says.
 */
#ifndef HARP_PLUGIN_WORKERS_H
#define HARP_PLUGIN_WORKERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct kernel_driver;
struct workers;

enum worker_seat_state { SEAT_IDLE, SEAT_QUEUED, SEAT_RUNNING };

/* What the workers know of a driver; embedded in it. Under workers->lock, but for `kicked`. */
struct worker_seat {
	struct workers *workers; /* NULL: nobody helps. Never changes */
	struct kernel_driver *queue_next;
	enum worker_seat_state state;
	uint64_t busy_ns; /* when it was last kicked, or a worker's turn last moved something */
	/* Somebody has asked for help since a worker last took it up. Relaxed: it saves taking the lock,
	 * and orders nothing. */
	atomic_bool kicked;
};

/* Before the first use of kd, and after the last. workers_leave returns when no worker is in a turn of it. */
void workers_enter(struct kernel_driver *kd, int dev);
void workers_leave(struct kernel_driver *kd);
/* There is much to move: any thread, cheap when it has been said already. */
void workers_kick(struct kernel_driver *kd);
/* The last context is gone, and with it every driver: joins all threads. */
void workers_stop(void);

#endif
