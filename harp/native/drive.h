/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive.h - polls stacks for a program whose threads call and block (Python).
 *
 * A *drive* owns the right to touch its stacks: one lock, taken for every call. A thread that has to wait
 * polls the stacks itself meanwhile; while no thread waits, a background poller does, the guard.
 */
#ifndef HARP_NATIVE_DRIVE_H
#define HARP_NATIVE_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "harp_host.h"

#define DRIVE_MEMBERS_MAX 16u
#define DRIVE_FOREVER UINT64_MAX

struct drive;

struct drive_member {
	struct harp_stack *stack;
	struct harp_nic *nic;
	struct harp_instance *instance; /* whose stack it is; NULL: a stack by itself */
};

struct drive_options {
	uint64_t
		spin_ns; /* a waiting thread polls for this long after the last work, then it sleeps */
	/* Asked now and then by waiting threads, without the lock: not 0 ends the wait with -EINTR. */
	int (*interrupted)(void *ctx);
	void *ctx;
};

/* The members stay the caller's and must outlive the drive. -EINVAL, -ENOMEM, -EAGAIN no thread. */
int drive_create(struct drive **out, const struct drive_member *members, unsigned count,
		 const struct drive_options *opt);
/* Ends every wait with -ECANCELED, waits for those threads to leave and for the guard to end. From here the
 * stacks are the caller's alone. Not by a thread that holds the lock. Safe twice. */
void drive_stop(struct drive *d);
bool drive_stopped(const struct drive *d); /* inside, or after drive_stop() */
/* After drive_stop(), by the last user. NULL is accepted. */
void drive_free(struct drive *d);

/* For calls on the stacks that don't wait; may be nested. Leaving sends what the calls left to be sent. */
void drive_enter(struct drive *d);
void drive_leave(struct drive *d);
/* Is this thread inside? */
bool drive_inside(const struct drive *d);
/* Inside: polls every stack once, whatever their clocks say. */
void drive_advance(struct drive *d);
/* False in a forked child: nothing of the drive may be touched there. */
bool drive_ours(const struct drive *d);

/* Tries something under the lock: 1 done, 0 not yet, -errno. */
typedef int (*drive_try_fn)(void *ctx);
/*
 * Calls attempt until it does not answer 0, and advances the stacks in between. Returns what attempt
 * answered; -ETIMEDOUT at deadline_ns (CLOCK_MONOTONIC), -EINTR, -ECANCELED the drive was stopped, -EDEADLK
 * this thread is inside, -ENODEV an instance's interface is gone.
 */
int drive_wait(struct drive *d, drive_try_fn attempt, void *ctx, uint64_t deadline_ns);

uint64_t drive_now_ns(void);

#endif
