/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drive.h - polls stacks for a program whose threads block in calls (Python).
 *
 * A *drive* has a lock for its stacks, which every call takes. A thread that waits polls the stacks
 * meanwhile. While no thread waits, the background poller polls them.
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
	struct harp_instance *instance; /* that owns the stack, or NULL */
};

struct drive_options {
	/* For this long after the last work a waiting thread polls; then it sleeps. */
	uint64_t spin_ns;
	/* Called by waiting threads, without the lock; not 0 ends the wait with -EINTR. */
	int (*interrupted)(void *ctx);
	void *ctx;
};

/* The members belong to the caller and must outlive the drive. -EINVAL, -ENOMEM, -EAGAIN. */
int drive_create(struct drive **out, const struct drive_member *members, unsigned count,
		 const struct drive_options *opt);
/*
 * Ends every wait with -ECANCELED, and waits until those threads have left and the background
 * poller has ended. After that only the caller uses the stacks. The caller must not hold the lock.
 * May be called twice.
 */
void drive_stop(struct drive *d);
bool drive_stopped(const struct drive *d); /* needs the lock, before drive_stop() has returned */
/* The last user calls it, after drive_stop(). NULL is accepted. */
void drive_free(struct drive *d);

/* Around calls on the stacks that do not wait; may be nested. Leaving sends queued data. */
void drive_enter(struct drive *d);
void drive_leave(struct drive *d);
/* Whether this thread holds the lock. */
bool drive_inside(const struct drive *d);
/* Polls every stack once, even if no stack's deadline has passed. Needs the lock. */
void drive_advance(struct drive *d);
/* False in a forked child, which must not use the drive. */
bool drive_ours(const struct drive *d);

/* Tries something under the lock: 1 done, 0 not yet, -errno. */
typedef int (*drive_try_fn)(void *ctx);
/*
 * Calls attempt until it does not return 0, and advances the stacks in between. Returns the result
 * of attempt. -ETIMEDOUT: deadline_ns (CLOCK_MONOTONIC) has passed. -EINTR. -ECANCELED: the drive
 * was stopped. -EDEADLK: this thread holds the lock. -ENODEV: an instance's interface was removed.
 */
int drive_wait(struct drive *d, drive_try_fn attempt, void *ctx, uint64_t deadline_ns);

uint64_t drive_now_ns(void);

#endif
