/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_driver.h - the driver of a comm's kernel lanes: which of its sockets are worth a system call,
 * and the threads that advance it beside NCCL's own (workers.h).
 *
 * A comm has one, or one more than its NIC has worker threads (parallel.h), and spreads its kernel lanes over
 * them: lane->ops->join(). Whoever polls takes a turn of each; a worker that holds one is no
 * hindrance, its baton is passed by. Everything but open, close and kick needs the baton.
 */
#ifndef HARP_PLUGIN_KERNEL_DRIVER_H
#define HARP_PLUGIN_KERNEL_DRIVER_H

#include "poll/driver.h"
#include "poll/workers.h"

struct kernel_driver;

/* A socket's place in its driver; embedded in the lane. */
struct kernel_member {
	struct kernel_driver *home; /* NULL: on its own, always worth a call */
	struct kernel_member *next;
	int fd;
	bool readable, writable; /* so far as is known: cleared by who was told EAGAIN, or got less
				  * than he asked for */
	bool ended;              /* FIN, RST or an error has come: stays readable */
};

struct kernel_driver {
	struct driver driver; /* first: a pointer to it is one to this */
	void (*turn)(struct kernel_driver *kd, uint64_t now_ns);
	struct kernel_member *members;
	struct kernel_member *hot; /* the newest that something was read from */
	unsigned count;
	unsigned looks, silent; /* all; those in a row of which epoll had nothing to say */
	int epoll_fd;           /* -1: fewer than two members, or none to be had */
	bool looked;            /* in this turn */
	bool rare;              /* no turn was before this one for a while */
	uint64_t turned_ns;     /* the last one's clock */
	uint64_t moved_bytes;   /* by its lanes, both ways: the workers' measure of progress */
	struct worker_seat seat;
};

/*
 * turn: one turn with the baton held; it runs driver_run_ready() too and may not free kd. dev: the NIC whose
 * workers help. Never fails: what is not to be had (a thread, a descriptor) is gone without.
 */
void kernel_driver_open(struct kernel_driver *kd, int dev,
			void (*turn)(struct kernel_driver *kd, uint64_t now_ns));
/* No lane is left, no work posted: when it returns no worker is in a turn, nor will be. Baton not held. */
void kernel_driver_close(struct kernel_driver *kd);
/* Runs the work that is ready, without a look at what has come. Baton not held: nothing if another has it. */
void kernel_driver_run(struct kernel_driver *kd, uint64_t now_ns);

/* ---- for lane_kernel.c -------------------------------------------------------------------------- */
void kernel_driver_add(struct kernel_driver *kd, struct kernel_member *member);
void kernel_driver_remove(struct kernel_member *member);
/* The first time in a turn that somebody asks for a member not known to be ready, or finds none that is: one
 * epoll_wait(), or a guess. Again in that turn is no harm. */
void kernel_driver_look(struct kernel_driver *kd);

static inline bool kernel_member_may_read(struct kernel_member *member)
{
	if (!member->home || member->readable)
		return true;
	if (!member->home->looked)
		kernel_driver_look(member->home);
	return member->readable;
}
static inline bool kernel_member_may_write(struct kernel_member *member)
{
	if (!member->home || member->writable)
		return true;
	if (!member->home->looked)
		kernel_driver_look(member->home);
	return member->writable;
}

#endif
