/* SPDX-License-Identifier: Apache-2.0 */
/* test_wheel.c - compares the timer wheel with an array that is searched for due timers. */
#include "base/wheel.h"

#include <stdlib.h>

#include "base/rng.h"
#include "check.h"

#define TIMERS 200u

struct model {
	struct wheel wheel;
	struct timer timers[TIMERS];
	uint64_t deadline_ns[TIMERS]; /* UINT64_MAX: not set */
	uint64_t last_tick;
	unsigned fire_count;
	struct rng rng;
	bool rearm;
};

static uint64_t tick_up(uint64_t ns)
{
	return ns / WHEEL_TICK_NS + (ns % WHEEL_TICK_NS != 0);
}

static void fire(void *ctx, struct timer *timer, uint64_t now_ns)
{
	struct model *m = ctx;
	size_t i = (size_t)(timer - m->timers);

	CHECK(!timer_is_set(timer));
	CHECK(m->deadline_ns[i] != UINT64_MAX);
	CHECK_EQ(timer->deadline_ns, m->deadline_ns[i]);
	CHECK(tick_up(timer->deadline_ns) <= now_ns / WHEEL_TICK_NS); /* never early */
	m->deadline_ns[i] = UINT64_MAX;
	m->fire_count++;
	if (!m->rearm)
		return;
	/* Handlers may set any timer, also in the past, and cancel others. */
	uint32_t other = rng_below(&m->rng, TIMERS);

	if (rng_below(&m->rng, 3) == 0) {
		wheel_cancel(&m->wheel, &m->timers[other]);
		m->deadline_ns[other] = UINT64_MAX;
	} else if (rng_below(&m->rng, 2)) {
		m->deadline_ns[other] = now_ns - rng_below(&m->rng, 3) + rng_below(&m->rng, 100000);
		wheel_set(&m->wheel, &m->timers[other], m->deadline_ns[other]);
	}
}

static uint64_t random_delay(struct rng *rng)
{
	return rng_u64(rng) >> (14 + rng_below(rng, 50)); /* up to 2^50 ns: 13 days */
}

static void check_model(struct model *m, uint64_t now_ns, const bool *was_due)
{
	uint64_t earliest = UINT64_MAX;
	unsigned set = 0;

	for (unsigned i = 0; i < TIMERS; i++) {
		CHECK_EQ(timer_is_set(&m->timers[i]), m->deadline_ns[i] != UINT64_MAX);
		/* never late */
		CHECK(!was_due[i] || m->rearm || m->deadline_ns[i] == UINT64_MAX);
		if (m->deadline_ns[i] == UINT64_MAX)
			continue;
		set++;
		if (tick_up(m->deadline_ns[i]) * WHEEL_TICK_NS < earliest)
			earliest = tick_up(m->deadline_ns[i]) * WHEEL_TICK_NS;
	}
	CHECK_EQ(m->wheel.count, set);
	uint64_t next = wheel_next_ns(&m->wheel);

	CHECK_EQ(next == UINT64_MAX, set == 0);
	CHECK(next <= earliest || next <= now_ns);
	/* For due timers, also those that handlers set in the past, it is the current tick. */
	CHECK(earliest <= now_ns || next > now_ns - WHEEL_TICK_NS);
}

static void test_against_model(uint64_t seed, bool rearm)
{
	struct model *m = calloc(1, sizeof(*m));
	uint64_t now_ns;

	rng_seed(&m->rng, seed);
	m->rearm = rearm;
	now_ns = (uint64_t)WHEEL_TICK_NS + (rng_u64(&m->rng) >> rng_below(&m->rng, 30) >> 8);
	wheel_init(&m->wheel, now_ns);
	for (unsigned i = 0; i < TIMERS; i++)
		m->deadline_ns[i] = UINT64_MAX;
	for (unsigned step = 0; step < 300; step++) {
		bool due[TIMERS];

		for (unsigned n = rng_below(&m->rng, 20); n > 0; n--) {
			uint32_t i = rng_below(&m->rng, TIMERS);

			if (rng_below(&m->rng, 4) == 0) {
				wheel_cancel(&m->wheel, &m->timers[i]);
				m->deadline_ns[i] = UINT64_MAX;
			} else {
				m->deadline_ns[i] = now_ns + random_delay(&m->rng);
				wheel_set(&m->wheel, &m->timers[i], m->deadline_ns[i]);
			}
		}
		uint64_t next = wheel_next_ns(&m->wheel);

		if (rng_below(&m->rng, 2) && next != UINT64_MAX && next > now_ns)
			now_ns = next; /* exactly the next deadline */
		else
			now_ns += random_delay(&m->rng);
		for (unsigned i = 0; i < TIMERS; i++)
			due[i] = m->deadline_ns[i] != UINT64_MAX &&
				 tick_up(m->deadline_ns[i]) <= now_ns / WHEEL_TICK_NS;
		unsigned before = m->fire_count;

		CHECK_EQ(wheel_advance(&m->wheel, now_ns, fire, m), m->fire_count - before);
		check_model(m, now_ns, due);
		if (check_failures) {
			fprintf(stderr, "seed %" PRIu64 " step %u\n", seed, step);
			break;
		}
	}
	CHECK(m->fire_count > 0);
	free(m);
}

static unsigned order[8], order_count;
static void record_kind(void *ctx, struct timer *timer, uint64_t now_ns)
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
	CHECK_EQ(wheel_advance(&wheel, 3 * (uint64_t)WHEEL_TICK_NS - 1, record_kind, NULL), 0);
	CHECK_EQ(wheel_advance(&wheel, 3 * (uint64_t)WHEEL_TICK_NS, record_kind, NULL), 1);
	CHECK_EQ(wheel_advance(&wheel, 6000000000, record_kind, NULL), 3);
	CHECK_EQ(order[0], 2);
	CHECK_EQ(order[1], 3);
	CHECK_EQ(order[2], 1);
	CHECK_EQ(order[3], 0);
	/* A clock that runs backwards fires no timer early. */
	wheel_set(&wheel, &t[0], 6000000001);
	CHECK_EQ(wheel_advance(&wheel, 1000, record_kind, NULL), 0);
	CHECK_EQ(wheel_advance(&wheel, 6000000001 + WHEEL_TICK_NS, record_kind, NULL), 1);
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
		wheel_advance(&wheel, now_ns, record_kind, NULL);
	}
	CHECK_EQ(order[0], 7);
	CHECK_EQ(now_ns, tick_up(12345 + 30 * day_ns) * WHEEL_TICK_NS);
	CHECK_EQ(wheel.count, 1);
	wheel_cancel(&wheel, &never);
	wheel_cancel(&wheel, &never);
	CHECK_EQ(wheel.count, 0);
}

TEST(the_wheel_agrees_with_the_model)
{
	for (uint64_t seed = 1; seed <= 200 && !check_failures; seed++)
		test_against_model(seed, seed & 1);
}
