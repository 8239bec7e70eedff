/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.h - the control thread: it lets peers in, opens lanes and interfaces, and ends comms. One
 * in a process.
 *
 * It sleeps in epoll until a descriptor, a timer, posted work or a task is ready. Descriptors,
 * timers and work belong to one driver, and a thread of the application may take its turns
 * (driver_poll), which is quicker than waking the control thread. Slow timers and tasks may ask the
 * kernel or harpd, and wait for the answer: the control thread alone runs them.
 */
#ifndef HARP_PLUGIN_KEEPER_H
#define HARP_PLUGIN_KEEPER_H

#include <stddef.h>

#include "poll/driver.h"

/* By the first init. Repeated calls are free. -errno, logged by WARN. Under ctx_lock. */
int keeper_start(void);
/* Joins it. No source, timer, work or task is left. Accepted when it does not run. Under
 * ctx_lock. */
void keeper_stop(void);
/* Closes its descriptors in a forked child; async-signal-safe. */
void keeper_fork_child(void);

/* NULL while it does not run. */
struct driver *keeper_driver(void);

/*
 * A function that may wait: it opens an interface, asks for a route, or calls drivers. The control
 * thread runs tasks one after the other, in the order of posting, with no lock and no baton held.
 * Embedded, zeroed but for run.
 */
struct keeper_task {
	struct keeper_task *next;
	bool queued;
	uint64_t at_ns; /* not before; 0: as soon as possible */
	void (*run)(struct keeper_task *task);
};
/* Never waits. A task that is queued already keeps its place, and the earlier of both times. Its
 * run may post or free it. */
void keeper_task_post(struct keeper_task *task, uint64_t at_ns);
/* Returns when the tasks that were posted before this call, and are due, have run. Not by a
 * task. */
void keeper_tasks_wait(void);

/* A descriptor. Embedded. */
struct keeper_source {
	int fd;
	bool watched;
	void (*ready)(struct keeper_source *source, uint64_t now_ns);
};
/* events: EPOLLIN, EPOLLOUT; ready() is called in each turn in which one of them, or an error, is there. With EPOLLET: in one when more of
 * it has come. */
int keeper_watch(struct keeper_source *source, int fd, uint32_t events);
void keeper_rewatch(struct keeper_source *source, uint32_t events);
/* Before the descriptor is closed or given away; harmless on one that is not watched (zeroed). */
void keeper_unwatch(struct keeper_source *source);

/* Is this the control thread? No other may wait for the kernel or for harpd. */
bool keeper_may_wait(void);

/* Embedded, zeroed but for run and is_slow. */
struct keeper_timer {
	struct keeper_timer *next, **pprev;
	uint64_t at_ns;
	bool is_slow; /* its run may wait: on the control thread only */
	void (*run)(struct keeper_timer *timer, uint64_t now_ns);
};
/* Off the keeper's list, if it is there. For who keeps one. */
static inline void keeper_timer_unlink(struct keeper_timer *timer)
{
	if (!timer->pprev)
		return;
	*timer->pprev = timer->next;
	if (timer->next)
		timer->next->pprev = timer->pprev;
	timer->pprev = NULL;
}

/* The next of the times at which all is done that is done regularly, so that one wake is for all of it. */
#define KEEPER_BEAT_NS 20000000ull

static inline uint64_t keeper_beat_ns(uint64_t now_ns)
{
	return (now_ns / KEEPER_BEAT_NS + 1) * KEEPER_BEAT_NS;
}
/* UINT64_MAX: stops it. It has stopped when it runs. */
void keeper_timer_set(struct keeper_timer *timer, uint64_t at_ns);

#endif
