/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wheel.h - timers: a hierarchical timing wheel, O(1) to set and cancel.
 *
 * Resolution is WHEEL_TICK_NS. A timer fires at the first wheel_advance() whose time has reached
 * its deadline, rounded up to a tick, never earlier. Setting a timer again moves it.
 */
#ifndef HARP_BASE_WHEEL_H
#define HARP_BASE_WHEEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define WHEEL_TICK_NS 16384u /* 16.4 us */

struct wheel;
struct timer {
	LIST_ENTRY(timer) link; /* le_prev NULL: not set */
	uint64_t deadline_ns;
	uint32_t kind; /* set by the owner */
	uint32_t slot; /* set by the wheel */
};

LIST_HEAD(timer_list, timer);

/* The size of struct wheel is public so that it can be embedded; layout: see wheel.c. */
#define WHEEL_LEVELS 5u
#define WHEEL_SLOTS 64u
struct wheel {
	uint64_t now_tick;
	uint64_t occupied[WHEEL_LEVELS]; /* a bit per non-empty slot */
	struct timer_list slots[WHEEL_LEVELS][WHEEL_SLOTS];
	uint32_t count;
};

typedef void (*wheel_fire_fn)(void *ctx, struct timer *timer, uint64_t now_ns);

void wheel_init(struct wheel *wheel, uint64_t now_ns);
void wheel_set(struct wheel *wheel, struct timer *timer, uint64_t deadline_ns);
void wheel_cancel(struct wheel *wheel, struct timer *timer);
static inline bool timer_is_set(const struct timer *timer)
{
	return timer->link.le_prev != 0;
}
/* Fires due timers. Each is unset before its call, and a handler may set or cancel any timer.
 * Returns the number of fired timers. Cheap if none is due. */
unsigned wheel_advance(struct wheel *wheel, uint64_t now_ns, wheel_fire_fn fire, void *ctx);
/* A lower bound of the earliest deadline, exact within the lowest level. UINT64_MAX: no timer. */
uint64_t wheel_next_ns(const struct wheel *wheel);

#endif
