/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.h - the process's thread for what must go on though nobody calls: letting peers in, opening lanes.
 *
 * It sleeps in epoll until a descriptor, a timer or posted work wants it. All it does is done with the baton of
 * one driver held, so that a thread that waits for a connection anyhow may take its turns (driver_poll), which is
 * quicker than waking it up. Sources and timers belong to the baton's holder.
 */
#ifndef HARP_PLUGIN_KEEPER_H
#define HARP_PLUGIN_KEEPER_H

#include <stddef.h>

#include "driver.h"

/* Once it is needed; repeated calls are free. -errno, said by WARN. Under ctx_lock. */
int keeper_start(void);
/* Joins it. No source, timer or work is left. Accepted when it does not run. Under ctx_lock. */
void keeper_stop(void);
/* Closes its descriptors in a forked child; async-signal-safe. */
void keeper_fork_child(void);

/* NULL while it does not run. */
struct driver *keeper_driver(void);

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

/* Embedded, zeroed but for run. */
struct keeper_timer {
	struct keeper_timer *next, **pprev;
	uint64_t at_ns;
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
