/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the control thread. There is one in a process: it accepts, opens lanes, reconnects, and closes comms that
 * linger.
 *
 * It sleeps until a descriptor is ready, a timer is due, or work was posted, and runs their functions one after the
 * other. What belongs to the control thread is touched by no other thread and needs no lock. Its functions must not wait
 * for another process: an interface is opened by the opener thread (connect/interfaces.c), which posts its result.
 */
#ifndef HARP_PLUGIN_CONTROL_H
#define HARP_PLUGIN_CONTROL_H

#include <stddef.h>
#include <sys/queue.h>

#include "base/util.h"
#include "poll/poller.h"

/* By the first init. Repeated calls are free. -errno, logged by WARN. */
int control_start(void);
/* Runs the work that was posted, then joins the thread. No source and no timer is left. Accepted when it does not
 * run. */
void control_stop(void);
/* Closes its descriptors in a forked child; async-signal-safe. */
void control_fork_child(void);

/* The poller of kernel lanes that belong to no comm yet; only the control thread takes its turns. NULL: the thread does
 * not run. */
struct poller *control_poller(void);
/* Any thread; never waits: the control thread runs the work, in the order of posting. Its run may free it. */
void control_post(struct work *work);
/* Returns when the work has run, after all that was posted before it. The control thread itself runs it at once. The
 * caller holds no poller and no lock that the control thread's functions take. */
void control_call(struct work *work);

/* A descriptor. Embedded; the control thread's. */
struct control_source {
	int fd;
	bool watched;
	void (*ready)(struct control_source *source, uint64_t now_ns);
};
/* events: EPOLLIN, EPOLLOUT. ready() is called again and again while one of them, or an error, is there; with EPOLLET
 * once when more of it has come. -errno. */
int control_watch(struct control_source *source, int fd, uint32_t events);
void control_rewatch(struct control_source *source, uint32_t events);
/* Before the descriptor is closed or given away; harmless on one that is not watched (zeroed). */
void control_unwatch(struct control_source *source);

/* Embedded, zeroed but for run; the control thread's. */
struct control_timer {
	LIST_ENTRY(control_timer) link; /* le_prev NULL: not set */
	uint64_t at_ns;
	void (*run)(struct control_timer *timer, uint64_t now_ns);
};
LIST_HEAD(control_timers, control_timer);
/* UINT64_MAX: stops it. It has stopped when it runs. */
void control_timer_set(struct control_timer *timer, uint64_t at_ns);
/* Takes a timer off the list that it is on, if any. */
static inline void control_timer_unlink(struct control_timer *timer)
{
	if (timer->link.le_prev)
		LIST_REMOVE(timer, link);
	timer->link.le_prev = NULL;
}

/* Regular work is done at common times, so that one wake-up serves all of it. */
#define CONTROL_TICK_NS 20000000ull

/* period_ns: a multiple of CONTROL_TICK_NS. */
static inline uint64_t control_tick_ns(uint64_t now_ns, uint64_t period_ns)
{
	return (now_ns / period_ns + 1) * period_ns;
}

#endif
