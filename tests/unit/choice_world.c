/* SPDX-License-Identifier: Apache-2.0 */
/* choice_world.c - see choice_world.h. */
#include "choice_world.h"

#include <stdlib.h>

#include "check.h"

const struct world textbook = {
	{ { 3, 0.5, 0 }, { 6, 0.2, 0 } }, true, 0.3, 0.002, { 0, 0 }, 1, 0, 0
};

static double rnd(struct world *world)
{
	world->random = world->random * 6364136223846793005u + 1442695040888963407u;
	return (double)(world->random >> 11) / (double)(UINT64_C(1) << 53);
}

static double occupy(struct world *world, unsigned way, double bytes, double at_us)
{
	const struct way_cost *cost = &world->way[way];
	double us = cost->fixed_us + cost->per_kib_us * bytes / 1024;

	if (world->tide > 0 && (uint64_t)(at_us / world->tide_us) % 2)
		us *= world->tide;
	us *= 1 + world->noise * (2 * rnd(world) - 1);
	if (rnd(world) < world->spike_share)
		us += 1000 + 4000 * rnd(world);
	return us;
}

/* Sends a message at `at_us` by the mask's ways; when it arrives. */
static double send_by(struct run *run, unsigned kinds, uint64_t size, double at_us)
{
	struct world *world = run->world;
	bool both = kinds == (LANE_HARP | LANE_KERNEL);
	double end_us = 0;

	for (unsigned way = 0; way < 2; way++) {
		double us, start_us = at_us > run->free_us[way] ? at_us : run->free_us[way];

		if (!(kinds & 1u << way))
			continue;
		/* One core: who comes second waits for the first. */
		if (world->one_core && start_us < run->free_us[!way])
			start_us = run->free_us[!way];
		us = occupy(world, way, (double)size / (both ? 2 : 1), start_us);
		run->free_us[way] = start_us + us;
		us = run->free_us[way] + world->way[way].latency_us;
		if (world->turn_us[way] > 0)
			us = ((double)(uint64_t)(us / world->turn_us[way]) + 1) *
			     world->turn_us[way];
		end_us = us > end_us ? us : end_us;
	}
	return end_us;
}

static void end_one(struct run *run)
{
	unsigned slot = run->ended % PLUGIN_REQUESTS_MAX;
	double last_us = run->ended ? run->done_us[(run->ended - 1) % PLUGIN_REQUESTS_MAX] : 0;
	double from_us = run->posted_us[slot] > last_us ? run->posted_us[slot] : last_us;
	double us;

	if (run->done_us[slot] < last_us) /* in order */
		run->done_us[slot] = last_us;
	us = run->done_us[slot] - from_us;
	run->spent_us += us;
	if (run->choice)
		choice_done(run->choice, run->ended, run->sizes[slot], run->kinds[slot],
			    (uint64_t)(us * 1e3), false);
	run->ended++;
	if (run->now_us < run->done_us[slot])
		run->now_us = run->done_us[slot];
}

unsigned send_one(struct run *run, uint64_t size, unsigned fixed)
{
	unsigned slot = run->message % PLUGIN_REQUESTS_MAX, kinds = fixed;

	while (run->message - run->ended >= run->depth)
		end_one(run);
	if (!kinds)
		kinds = choice_take(run->choice, run->message, size, false);
	run->posted_us[slot] = run->now_us;
	run->kinds[slot] = kinds;
	run->sizes[slot] = size;
	run->done_us[slot] = send_by(run, kinds, size, run->now_us);
	run->by[kinds - 1]++;
	run->message++;
	return kinds;
}

void finish(struct run *run)
{
	while (run->ended < run->message)
		end_one(run);
}

struct run begin(struct choice *choice, struct world *world, unsigned depth, uint64_t seed)
{
	struct run run = { .choice = choice, .world = world, .depth = depth };

	world->random = seed;
	if (choice) {
		choice_init(choice, PATH_AUTO, seed);
		choice_kinds_alive(choice, LANE_HARP | LANE_KERNEL);
	}
	return run;
}

unsigned seeds_where(const struct world *like, unsigned depth,
		     bool (*right)(struct run *run, uint64_t seed, const void *arg),
		     const void *arg)
{
	struct choice *choice = malloc(sizeof(*choice));
	unsigned count = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct world world = *like;
		struct run run = begin(choice, &world, depth, seed);

		count += right(&run, seed, arg);
	}
	free(choice);
	return count;
}

/* Mean us of `count` messages, all of them that way. */
static double alone(const struct world *like, unsigned depth, uint64_t size, unsigned kinds)
{
	struct world world = *like;
	struct run run = begin(NULL, &world, depth, 99);

	world.spike_share = 0;
	for (unsigned i = 0; i < 4000; i++)
		send_one(&run, size, kinds);
	finish(&run);
	return run.now_us / 4000;
}

struct verdict truth(const struct world *world, unsigned depth, uint64_t size)
{
	struct verdict v = { 0, 1e18, true };
	double us[4] = { 0 };

	for (unsigned kinds = 1; kinds <= 3; kinds++) {
		if (kinds == 3 && size <= CHOICE_BOTH_BYTES)
			continue;
		us[kinds] = alone(world, depth, size, kinds);
		if (us[kinds] < v.best_us) {
			v.best = kinds;
			v.best_us = us[kinds];
		}
	}
	for (unsigned kinds = 1; kinds <= 3; kinds++)
		if (us[kinds] > 0 && kinds != v.best && us[kinds] < 1.3 * v.best_us)
			v.clear = false;
	return v;
}

double share(struct run *run, uint64_t size, unsigned count, unsigned best)
{
	unsigned good = 0, all = 0;

	for (unsigned i = 0; i < count; i++) {
		unsigned kinds = send_one(run, size, 0);

		if (run->choice->probe.left)
			continue;
		all++;
		good += kinds == best;
	}
	return all ? (double)good / all : 0;
}

struct learning {
	const struct world *like;
	uint64_t size;
	unsigned settle, best;
	struct outcome *out;
};

static bool learn_seed(struct run *run, uint64_t seed, const void *arg)
{
	const struct learning *l = arg;
	struct world again = *l->like;
	struct run ideal = begin(NULL, &again, run->depth, seed);
	double us, ideal_us;
	bool right;

	for (unsigned i = 0; i < l->settle; i++)
		send_one(run, l->size, 0);
	right = share(run, l->size, 400, l->best) > 0.95;
	for (unsigned i = l->settle + 400; i < 3000; i++)
		send_one(run, l->size, 0);
	for (unsigned i = 0; i < 3000; i++)
		send_one(&ideal, l->size, l->best);
	us = run->now_us;
	ideal_us = ideal.now_us;
	l->out->regret += (us / ideal_us - 1) / SEEDS;
	for (unsigned i = 0; i < 20000; i++) {
		send_one(run, l->size, 0);
		send_one(&ideal, l->size, l->best);
	}
	l->out->later += ((run->now_us - us) / (ideal.now_us - ideal_us) - 1) / SEEDS;
	return right;
}

struct outcome learn(const struct world *like, unsigned depth, uint64_t size, unsigned settle,
		     unsigned best)
{
	struct outcome out = { 0, 0, 0 };
	const struct learning learning = { like, size, settle, best, &out };

	out.right = seeds_where(like, depth, learn_seed, &learning);
	return out;
}

void check_world(const char *name, const struct world *world)
{
	for (unsigned depth = 1; depth <= 8; depth += 7) {
		for (uint64_t size = 8; size <= 64 << 20; size *= 8) {
			struct verdict v = truth(world, depth, size);
			struct outcome out =
				learn(world, depth, size, depth == 1 ? 60 : 250, v.best);

			printf("%s: depth %u, %8" PRIu64 " B: best %u (%9.1f us)%s: right in %u "
			       "of %u, regret %.1f %%, later %.1f %%\n",
			       name, depth, size, v.best, v.best_us, v.clear ? "" : ", not clear",
			       out.right, SEEDS, out.regret * 100, out.later * 100);
			if (v.clear)
				CHECK(out.right >= SEEDS * 90 / 100);
			CHECK(out.regret < 0.10);
			CHECK(out.later < 0.03);
		}
	}
}
