/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the control thread, one per process: accepts, connects and reconnects lanes, ends
 * closed comms, and polls engines while the application does not (engine_background.c).
 *
 * It sleeps until a descriptor is ready, a timer expires, or work is posted, and runs their
 * functions one after the other. Data owned by the control thread needs no lock. Its functions must
 * not wait for another process.
 */
#ifndef HARP_PLUGIN_CONTROL_H
#define HARP_PLUGIN_CONTROL_H

#include <stddef.h>
#include <sys/queue.h>

#include "base/util.h"
#include "poll/poller.h"

/* Starts the thread if it does not run; called by the first init. -errno, logged by WARN. */
int control_start(void);
/* Runs posted work, then joins the thread; a no-op if it does not run. All sources and timers have
 * been removed. */
void control_stop(void);
/* Closes its descriptors in a forked child; async-signal-safe. */
void control_fork_child(void);

/* The poller of kernel lanes that are in no comm yet; only the control thread takes its turns.
 * NULL: the thread does not run. */
struct poller *control_poller(void);
/* Ends its sleep. Any thread; never waits. */
void control_wake(void);
/* The control thread runs the work, in the order of posting; work->run() may free it. Any thread;
 * never waits. */
void control_post(struct work *work);
/* Runs the function on the control thread, after work posted before, and waits for it. On the
 * control thread itself, runs it at once. The caller holds no poller and no lock that the control
 * thread's functions take. */
void control_call(void (*run)(void *arg), void *arg);

/* engine_background.c; called by the control thread. Takes turns of engines. True: there may be
 * more to do. */
bool background_turn(void);
/* A sleep begins: writes what to watch to fds, two for each of at most ENGINES_TOTAL_MAX engines,
 * and lowers *until_ns to the end of the sleep. Returns the number of fds. */
struct pollfd;
unsigned background_sleep(struct pollfd *fds, uint64_t now_ns, uint64_t *until_ns);
/* It ended; the fds as poll() left them. */
void background_awake(const struct pollfd *fds, unsigned count);

/* A descriptor to watch. Embedded; owned by the control thread. */
struct control_source {
	int fd;
	bool watched;
	void (*ready)(struct control_source *source, uint64_t now_ns);
};
/* events: EPOLLIN, EPOLLOUT, level-triggered unless EPOLLET is added. Errors call ready(), too.
 * -errno. */
int control_watch(struct control_source *source, int fd, uint32_t events);
void control_rewatch(struct control_source *source, uint32_t events);
/* Called before the descriptor is closed or given away; a no-op if it is not watched (zeroed). */
void control_unwatch(struct control_source *source);

/* Embedded, zeroed except for run; owned by the control thread. */
struct control_timer {
	LIST_ENTRY(control_timer) link; /* le_prev NULL: not set */
	uint64_t at_ns;
	void (*run)(struct control_timer *timer, uint64_t now_ns);
};
LIST_HEAD(control_timers, control_timer);
/* One-shot. UINT64_MAX: stops it. */
void control_timer_set(struct control_timer *timer, uint64_t at_ns);
/* Removes a timer from its list, if any. */
static inline void control_timer_unlink(struct control_timer *timer)
{
	if (timer->link.le_prev)
		LIST_REMOVE(timer, link);
	timer->link.le_prev = NULL;
}

/* Periodic work is done at common times, so that one wake-up serves all of it. */
#define CONTROL_TICK_NS 20000000ull

/* period_ns: a multiple of CONTROL_TICK_NS. */
static inline uint64_t control_tick_ns(uint64_t now_ns, uint64_t period_ns)
{
	return (now_ns / period_ns + 1) * period_ns;
}

#endif
