/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wheel.c - a hierarchical timing wheel (Varghese, Lauck 1987, scheme 7).
 *
 * A tick number is read in groups of six bits. A timer's level is the highest group in which its
 * tick differs from now_tick; its slot is that group's value. Therefore all timers of level L are
 * due before those of level L + 1. On a level above 0, all timers are in slots after now_tick's. A
 * slot of level 0 has one tick; now_tick's own slot has the timers that are due at once.
 *
 * So the earliest timers are in the first occupied slot of the lowest occupied level: one
 * count-trailing-zeros per level, and empty time costs nothing. When time reaches a slot of a
 * higher level, its timers move to lower levels: at most WHEEL_LEVELS moves each.
 *
 * Timers beyond the range of the top level (2^30 ticks, 4.9 hours) wait in its slot 0. Within an
 * era of 2^30 ticks no other timer belongs there, so slot 0 means "when the next era begins".
 */
#include "base/wheel.h"

#include <assert.h>
#include <stddef.h>

#define WHEEL_BITS 6u
#define WHEEL_MASK (WHEEL_SLOTS - 1u)
#define WHEEL_TICK_SHIFT 14u
#define WHEEL_ERA_BITS (WHEEL_BITS * WHEEL_LEVELS)
#define WHEEL_TOP (WHEEL_LEVELS - 1u)
#define WHEEL_NO_SLOT UINT32_MAX /* in a list of due timers, in no slot */

static_assert(WHEEL_TICK_NS == 1u << WHEEL_TICK_SHIFT, "ticks are shifts");
static_assert(WHEEL_SLOTS == 1u << WHEEL_BITS && WHEEL_SLOTS == 64, "one bit of a word per slot");

void wheel_init(struct wheel *wheel, uint64_t now_ns)
{
	*wheel = (struct wheel){ .now_tick = now_ns >> WHEEL_TICK_SHIFT };
}

static void wheel_unlink(struct timer *timer)
{
	LIST_REMOVE(timer, link);
	timer->link.le_prev = NULL;
}

static void wheel_place(struct wheel *wheel, struct timer *timer)
{
	uint64_t tick = (timer->deadline_ns >> WHEEL_TICK_SHIFT) +
			((timer->deadline_ns & (WHEEL_TICK_NS - 1)) != 0);
	unsigned level = 0, slot;

	if (tick < wheel->now_tick)
		tick = wheel->now_tick;
	uint64_t differs = tick ^ wheel->now_tick;

	if (differs >> WHEEL_ERA_BITS) {
		level = WHEEL_TOP;
		slot = 0;
	} else {
		if (differs)
			level = (63u - (unsigned)__builtin_clzll(differs)) / WHEEL_BITS;
		slot = (unsigned)(tick >> (WHEEL_BITS * level)) & WHEEL_MASK;
	}
	timer->slot = level * WHEEL_SLOTS + slot;
	LIST_INSERT_HEAD(&wheel->slots[level][slot], timer, link);
	wheel->occupied[level] |= UINT64_C(1) << slot;
}

void wheel_cancel(struct wheel *wheel, struct timer *timer)
{
	unsigned level = timer->slot / WHEEL_SLOTS, slot = timer->slot & WHEEL_MASK;

	if (!timer_is_set(timer))
		return;
	wheel_unlink(timer);
	wheel->count--;
	if (timer->slot != WHEEL_NO_SLOT && LIST_EMPTY(&wheel->slots[level][slot]))
		wheel->occupied[level] &= ~(UINT64_C(1) << slot);
}

void wheel_set(struct wheel *wheel, struct timer *timer, uint64_t deadline_ns)
{
	wheel_cancel(wheel, timer);
	timer->deadline_ns = deadline_ns;
	wheel_place(wheel, timer);
	wheel->count++;
}

/* The tick and position of the first occupied slot. UINT64_MAX: none. */
static uint64_t wheel_first(const struct wheel *wheel, unsigned *level, unsigned *slot)
{
	for (unsigned l = 0; l < WHEEL_LEVELS; l++) {
		unsigned shift = WHEEL_BITS * l;
		uint64_t bits = wheel->occupied[l];
		uint64_t base = wheel->now_tick >> shift >> WHEEL_BITS;

		if (!bits)
			continue;
		*level = l;
		if (l == WHEEL_TOP && bits == 1) { /* only timers beyond the wheel's range */
			*slot = 0;
			return (base + 1) << WHEEL_ERA_BITS;
		}
		if (l == WHEEL_TOP)
			bits &= ~UINT64_C(1);
		*slot = (unsigned)__builtin_ctzll(bits);
		return (base << WHEEL_BITS | *slot) << shift;
	}
	return UINT64_MAX;
}

/* Moves a slot's timers to lower levels, or those of level 0 to the list of due timers. */
static void wheel_drain(struct wheel *wheel, unsigned level, unsigned slot, struct timer_list *due,
			struct timer **last)
{
	struct timer *timer, *next;

	wheel->occupied[level] &= ~(UINT64_C(1) << slot);
	/* A timer that stays in the top level returns to the head of the same slot. */
	for (timer = LIST_FIRST(&wheel->slots[level][slot]); timer; timer = next) {
		next = LIST_NEXT(timer, link);
		LIST_REMOVE(timer, link);
		if (level > 0) {
			wheel_place(wheel, timer);
			continue;
		}
		timer->slot = WHEEL_NO_SLOT;
		if (*last)
			LIST_INSERT_AFTER(*last, timer, link);
		else
			LIST_INSERT_HEAD(due, timer, link);
		*last = timer;
	}
}

unsigned wheel_advance(struct wheel *wheel, uint64_t now_ns, wheel_fire_fn fire, void *ctx)
{
	uint64_t target = now_ns >> WHEEL_TICK_SHIFT;
	struct timer_list due = LIST_HEAD_INITIALIZER(due);
	struct timer *timer, *last = NULL;
	unsigned level = 0, slot = 0, fired = 0;

	/* Most calls are within the tick of the previous one, where only its own slot can be
	 * due. */
	if (target <= wheel->now_tick &&
	    !(wheel->occupied[0] >> (wheel->now_tick & WHEEL_MASK) & 1))
		return 0;
	if (target < wheel->now_tick)
		target = wheel->now_tick; /* time never moves backwards */
	for (;;) {
		uint64_t tick = wheel->count ? wheel_first(wheel, &level, &slot) : UINT64_MAX;

		if (tick > target)
			break;
		wheel->now_tick = tick;
		wheel_drain(wheel, level, slot, &due, &last);
	}
	wheel->now_tick = target;
	/* Collects timers before it fires them. A timer that a handler sets in the past fires in
	 * the next call, so this loop ends. */
	while ((timer = LIST_FIRST(&due))) {
		wheel_unlink(timer);
		wheel->count--;
		fired++;
		fire(ctx, timer, now_ns);
	}
	return fired;
}

uint64_t wheel_next_ns(const struct wheel *wheel)
{
	unsigned level = 0, slot = 0;
	uint64_t tick = wheel->count ? wheel_first(wheel, &level, &slot) : UINT64_MAX;

	return tick > UINT64_MAX >> WHEEL_TICK_SHIFT ? UINT64_MAX : tick << WHEEL_TICK_SHIFT;
}
