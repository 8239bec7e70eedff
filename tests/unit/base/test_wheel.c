/* SPDX-License-Identifier: Apache-2.0 */
/* test_wheel.c - timers against a plain list that is searched for what is due. */
#include "base/wheel.h"

#include <stdlib.h>

#include "base/rng.h"
#include "check.h"

#define TIMERS 200u

struct world {
	struct wheel wheel;
	struct timer timers[TIMERS];
	uint64_t want_ns[TIMERS]; /* the model: UINT64_MAX when not set */
	uint64_t last_tick;
	unsigned fired;
	struct rng rng;
	bool rearm;
};

static uint64_t tick_up(uint64_t ns)
{
	return ns / WHEEL_TICK_NS + (ns % WHEEL_TICK_NS != 0);
}

static void fire(void *ctx, struct timer *timer, uint64_t now_ns)
{
	struct world *w = ctx;
	size_t i = (size_t)(timer - w->timers);

	CHECK(!timer_is_set(timer));
	CHECK(w->want_ns[i] != UINT64_MAX);
	CHECK_EQ(timer->deadline_ns, w->want_ns[i]);
	CHECK(tick_up(timer->deadline_ns) <= now_ns / WHEEL_TICK_NS); /* never early */
	w->want_ns[i] = UINT64_MAX;
	w->fired++;
	if (!w->rearm)
		return;
	/* Handlers do as they please: set anything, in the past as well, and cancel others. */
	uint32_t other = rng_below(&w->rng, TIMERS);

	if (rng_below(&w->rng, 3) == 0) {
		wheel_cancel(&w->wheel, &w->timers[other]);
		w->want_ns[other] = UINT64_MAX;
	} else if (rng_below(&w->rng, 2)) {
		w->want_ns[other] = now_ns - rng_below(&w->rng, 3) + rng_below(&w->rng, 100000);
		wheel_set(&w->wheel, &w->timers[other], w->want_ns[other]);
	}
}

static uint64_t random_delay(struct rng *rng)
{
	return rng_u64(rng) >> (14 + rng_below(rng, 50)); /* up to 2^50 ns: 13 days */
}

static void check_model(struct world *w, uint64_t now_ns, const bool *was_due)
{
	uint64_t earliest = UINT64_MAX;
	unsigned set = 0;

	for (unsigned i = 0; i < TIMERS; i++) {
		CHECK_EQ(timer_is_set(&w->timers[i]), w->want_ns[i] != UINT64_MAX);
		CHECK(!was_due[i] || w->rearm || w->want_ns[i] == UINT64_MAX); /* never late */
		if (w->want_ns[i] == UINT64_MAX)
			continue;
		set++;
		if (tick_up(w->want_ns[i]) * WHEEL_TICK_NS < earliest)
			earliest = tick_up(w->want_ns[i]) * WHEEL_TICK_NS;
	}
	CHECK_EQ(w->wheel.count, set);
	uint64_t next = wheel_next_ns(&w->wheel);

	CHECK_EQ(next == UINT64_MAX, set == 0);
	CHECK(next <= earliest || next <= now_ns);
	/* A due slot is reported as the present tick, and so are handlers' timers in the past. */
	CHECK(earliest <= now_ns || next > now_ns - WHEEL_TICK_NS);
}

static void test_against_model(uint64_t seed, bool rearm)
{
	struct world *w = calloc(1, sizeof(*w));
	uint64_t now_ns;

	rng_seed(&w->rng, seed);
	w->rearm = rearm;
	now_ns = (uint64_t)WHEEL_TICK_NS + (rng_u64(&w->rng) >> rng_below(&w->rng, 30) >> 8);
	wheel_init(&w->wheel, now_ns);
	for (unsigned i = 0; i < TIMERS; i++)
		w->want_ns[i] = UINT64_MAX;
	for (unsigned step = 0; step < 300; step++) {
		bool due[TIMERS];

		for (unsigned n = rng_below(&w->rng, 20); n > 0; n--) {
			uint32_t i = rng_below(&w->rng, TIMERS);

			if (rng_below(&w->rng, 4) == 0) {
				wheel_cancel(&w->wheel, &w->timers[i]);
				w->want_ns[i] = UINT64_MAX;
			} else {
				w->want_ns[i] = now_ns + random_delay(&w->rng);
				wheel_set(&w->wheel, &w->timers[i], w->want_ns[i]);
			}
		}
		uint64_t next = wheel_next_ns(&w->wheel);

		if (rng_below(&w->rng, 2) && next != UINT64_MAX && next > now_ns)
			now_ns = next; /* exactly when it asks for it */
		else
			now_ns += random_delay(&w->rng);
		for (unsigned i = 0; i < TIMERS; i++)
			due[i] = w->want_ns[i] != UINT64_MAX &&
				 tick_up(w->want_ns[i]) <= now_ns / WHEEL_TICK_NS;
		unsigned before = w->fired;

		CHECK_EQ(wheel_advance(&w->wheel, now_ns, fire, w), w->fired - before);
		check_model(w, now_ns, due);
		if (check_failures) {
			fprintf(stderr, "seed %" PRIu64 " step %u\n", seed, step);
			break;
		}
	}
	CHECK(w->fired > 0);
	free(w);
}

static unsigned order[8], order_count;
static void note_kind(void *ctx, struct timer *timer, uint64_t now_ns)
{
	order[order_count++] = timer->kind;
}

TEST(timers_fire_in_order)
{
	struct wheel wheel;
	struct timer t[4] = { { .kind = 0 }, { .kind = 1 }, { .kind = 2 }, { .kind = 3 } };

	wheel_init(&wheel, 0);
	CHECK(wheel_next_ns(&wheel) == UINT64_MAX);
	wheel_set(&wheel, &t[0], 5000000000);
	wheel_set(&wheel, &t[1], 200 * (uint64_t)WHEEL_TICK_NS);
	wheel_set(&wheel, &t[2], 3 * (uint64_t)WHEEL_TICK_NS - 1);
	wheel_set(&wheel, &t[3], 3 * (uint64_t)WHEEL_TICK_NS + 1);
	CHECK_EQ(wheel_next_ns(&wheel), 3 * (uint64_t)WHEEL_TICK_NS);
	CHECK_EQ(wheel_advance(&wheel, 3 * (uint64_t)WHEEL_TICK_NS - 1, note_kind, NULL), 0);
	CHECK_EQ(wheel_advance(&wheel, 3 * (uint64_t)WHEEL_TICK_NS, note_kind, NULL), 1);
	CHECK_EQ(wheel_advance(&wheel, 6000000000, note_kind, NULL), 3);
	CHECK_EQ(order[0], 2);
	CHECK_EQ(order[1], 3);
	CHECK_EQ(order[2], 1);
	CHECK_EQ(order[3], 0);
	/* Time that runs backwards fires nothing early and breaks nothing. */
	wheel_set(&wheel, &t[0], 6000000001);
	CHECK_EQ(wheel_advance(&wheel, 1000, note_kind, NULL), 0);
	CHECK_EQ(wheel_advance(&wheel, 6000000001 + WHEEL_TICK_NS, note_kind, NULL), 1);
}

TEST(a_distant_timer_fires_in_time)
{
	struct wheel wheel;
	struct timer t = { .kind = 7 }, never = { .kind = 8 };
	uint64_t day_ns = UINT64_C(86400000000000), now_ns = 12345, calls = 0;

	order_count = 0;
	wheel_init(&wheel, now_ns);
	wheel_set(&wheel, &t, now_ns + 30 * day_ns);
	wheel_set(&wheel, &never, UINT64_MAX);
	while (order_count == 0 && calls++ < 1000) {
		now_ns = wheel_next_ns(&wheel);
		wheel_advance(&wheel, now_ns, note_kind, NULL);
	}
	CHECK_EQ(order[0], 7);
	CHECK_EQ(now_ns, tick_up(12345 + 30 * day_ns) * WHEEL_TICK_NS);
	CHECK_EQ(wheel.count, 1);
	wheel_cancel(&wheel, &never);
	wheel_cancel(&wheel, &never);
	CHECK_EQ(wheel.count, 0);
}

TEST(timers_fire_as_a_plain_list_says)
{
	for (uint64_t seed = 1; seed <= 200 && !check_failures; seed++)
		test_against_model(seed, seed & 1);
}
