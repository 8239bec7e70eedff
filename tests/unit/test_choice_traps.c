/* SPDX-License-Identifier: Apache-2.0 */
/* test_choice_traps.c - patterns of costs that were measured, and by which the learner once was led astray. */

#include "check.h"
#include "choice_world.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)

/*
 * Streams of 1 MiB over veth at MTU 9000 on two cores with other work: HARP's ends one by one each 250 us, one in a hundred
 * with a pause of milliseconds; the kernel's several at once, as one ACK covers what the receiver has read meanwhile.
 */
static struct world in_bursts(double kernel_us)
{
	struct world world = textbook;

	world.way[0] = (struct way_cost){ 0, 250.0 / 1024, 0 };
	world.way[1] = (struct way_cost){ 0, kernel_us / 1024, 0 };
	world.noise = 0.1;
	world.spike_share = 0.01;
	world.turn_us[1] = 4 * kernel_us;
	return world;
}

struct aim {
	uint64_t size;
	unsigned settle, count, best;
};

/* Nearly all but probes go by the best after so many messages. */
static bool settles(struct run *run, uint64_t seed, const void *arg)
{
	const struct aim *aim = arg;

	(void)seed;
	for (unsigned i = 0; i < aim->settle; i++)
		send_one(run, aim->size, 0);
	return share(run, aim->size, aim->count, aim->best) > 0.9;
}

/* Most of the bursts' ends take no time at all: a median of them is nothing, whatever the way costs. */
static void test_bursts_are_not_fast(void)
{
	const struct world slower = in_bursts(350), faster = in_bursts(160);
	const struct aim stays = { MIB, 400, 400, LANE_HARP },
			 goes = { MIB, 400, 400, LANE_KERNEL };
	unsigned kept = seeds_where(&slower, 8, settles, &stays);
	unsigned left = seeds_where(&faster, 8, settles, &goes);

	printf("ends in bursts: HARP kept in %u of %u where it is faster, left in %u where not\n",
	       kept, SEEDS, left);
	CHECK(kept >= SEEDS * 90 / 100);
	CHECK(left >= SEEDS * 90 / 100);
}

/*
 * 64 KiB on two cores with a load of 27: the receiver is let run every few milliseconds, takes all eight, and acknowledges them at once; then the
 * next eight are posted. The first of eight has nothing else in flight, and takes all the time there is.
 */
static bool eights_go_by_kernel(struct run *run, uint64_t seed, const void *arg)
{
	unsigned good = 0;

	(void)seed;
	(void)arg;
	for (unsigned i = 0; i < 400; i++) {
		unsigned kinds = send_one(run, 65536, 0);

		if (i % 8 == 7)
			finish(run);
		good += i >= 200 && kinds == LANE_KERNEL;
	}
	return good > 150;
}

static void test_all_end_at_once(void)
{
	struct world world = textbook;
	unsigned right;

	world.spike_share = 0;
	world.way[0] = (struct way_cost){ 0, 600.0 / 64, 0 };
	world.way[1] = (struct way_cost){ 0, 300.0 / 64, 0 };
	world.turn_us[0] = 6000; /* nearly always one such turn for eight, or two */
	world.turn_us[1] = 3000;
	right = seeds_where(&world, 8, eights_go_by_kernel, NULL);
	printf("eight end at once: %u of %u by the kernel after 200\n", right, SEEDS);
	CHECK(right >= SEEDS * 90 / 100);
}

/* 16 MiB at MTU 1500: the kernel's is three times as fast, and a bench of the driver sends 32. */
static struct world slow_bulk(void)
{
	struct world world = textbook;

	world.way[0] = (struct way_cost){ 3, 0.63, 0 };
	world.way[1] = (struct way_cost){ 6, 0.2, 0 };
	return world;
}

static bool few_go_by_kernel(struct run *run, uint64_t seed, const void *arg)
{
	unsigned good = 0;

	(void)seed;
	(void)arg;
	for (unsigned i = 0; i < 20; i++)
		send_one(run, 16 * MIB, 0);
	for (unsigned i = 0; i < 12; i++)
		good += send_one(run, 16 * MIB, 0) & LANE_KERNEL ? 1 : 0;
	return good >= 10;
}

static void test_long_messages_are_few(void)
{
	const struct world world = slow_bulk();
	unsigned right = seeds_where(&world, 8, few_go_by_kernel, NULL);

	printf("16 MiB alone: %u of %u by the kernel after 20\n", right, SEEDS);
	CHECK(right >= SEEDS * 90 / 100);
}

static bool bulk_goes_on(struct run *run, uint64_t seed, const void *arg)
{
	bool same = true;

	(void)seed;
	(void)arg;
	for (unsigned i = 0; i < 512 || run->choice->probe.active; i++)
		send_one(run, MIB, 0);
	finish(run);
	send_one(run, 16 * MIB, 0); /* one at a time: its own kind of traffic */
	for (unsigned i = 0; i < 32; i++)
		same &= send_one(run, 16 * MIB, 0) == LANE_KERNEL;
	return same;
}

/* What 1 MiB has shown is not tried again at 16 MiB while there is no hurry; that all takes longer here is none. */
static void test_bulk_is_bulk(void)
{
	const struct world world = slow_bulk();
	struct world slower = world;

	for (unsigned way = 0; way < 2; way++)
		slower.way[way].per_kib_us *= 4.5;
	CHECK_EQ(seeds_where(&world, 8, bulk_goes_on, NULL), SEEDS);
	CHECK_EQ(seeds_where(&slower, 8, bulk_goes_on, NULL), SEEDS);
}

/*
 * Single messages on a machine that has other things to do, or that its host moves about: for some time all takes 2.5 times as long. Two
 * runs of six messages, one behind the other, compare times of day. Such a bench warms up with `settle` messages, and counts as
 * right when most of the others go by the best.
 */
static bool single_is_right(struct run *run, uint64_t seed, const void *arg)
{
	const struct aim *aim = arg;
	unsigned good = 0;

	/* The tide stands anywhere. */
	run->now_us = run->world->tide_us * 2 * (double)seed / SEEDS;
	for (unsigned i = 0; i < aim->settle; i++)
		send_one(run, aim->size, 0);
	for (unsigned i = 0; i < aim->count; i++)
		good += send_one(run, aim->size, 0) == aim->best;
	return good > aim->count / 2;
}

static void test_tides(void)
{
	static const struct {
		uint64_t size;
		double harp_us, kernel_us, tide_ms;
		unsigned settle, count, least;
	} cases[] = {
		{ 64 * KIB, 18.3, 14.8, 1, 0, 1012, 99 },
		{ 64 * KIB, 18.3, 10, 1, 0, 1012, 99 },
		{ MIB, 372, 199, 10, 64, 32, 90 },
		{ MIB, 372, 199, 100, 64, 32, 90 },
		{ MIB, 174, 110, 10, 64, 32, 90 },
		{ MIB, 174, 110, 100, 64, 32, 90 },
		{ 16 * MIB, 6283, 3423, 100, 8, 16, 90 },
		{ 16 * MIB, 2811, 1952, 100, 8, 16, 90 },
		{ 16 * MIB, 6283, 3423, 1000, 8, 16, 90 },
		{ 16 * MIB, 2811, 1952, 1000, 8, 16, 90 },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct aim aim = { cases[i].size, cases[i].settle, cases[i].count,
					 LANE_KERNEL };
		struct world world = textbook;
		unsigned right;

		world.noise = 0.1;
		world.spike_share = 0.01;
		world.way[0] =
			(struct way_cost){ 0, cases[i].harp_us * 1024 / (double)cases[i].size, 0 };
		world.way[1] =
			(struct way_cost){ 0, cases[i].kernel_us * 1024 / (double)cases[i].size,
					   0 };
		world.tide = 2.5;
		world.tide_us = cases[i].tide_ms * 1000;
		right = seeds_where(&world, 1, single_is_right, &aim);
		printf("tides of %.0f ms, %" PRIu64
		       " KiB, HARP %.0f us, kernel %.0f: right in %u\n",
		       cases[i].tide_ms, cases[i].size / KIB, cases[i].harp_us, cases[i].kernel_us,
		       right);
		CHECK(right >= cases[i].least);
	}
}

/* A third of all messages meets a pause of milliseconds. */
static void test_pauses(void)
{
	const struct aim few = { MIB, 64, 32, LANE_KERNEL };
	const struct aim many = { 64 * KIB, 0, 1012, LANE_KERNEL };
	struct world world = textbook;
	unsigned right;

	world.noise = 0.1;
	world.spike_share = 0.3;
	world.way[0] = (struct way_cost){ 0, 372.0 / 1024, 0 };
	world.way[1] = (struct way_cost){ 0, 199.0 / 1024, 0 };
	right = seeds_where(&world, 1, single_is_right, &few);
	printf("pauses, 1 MiB: right in %u\n", right);
	CHECK(right >= SEEDS * 80 / 100);
	world.noise = 0.3;
	right = seeds_where(&world, 1, single_is_right, &many);
	printf("pauses, 64 KiB: right in %u\n", right);
	CHECK(right >= SEEDS * 95 / 100);
}

static bool short_ones_are_learnt(struct run *run, uint64_t seed, const void *arg)
{
	unsigned *trials = *(unsigned *const *)arg;

	for (unsigned i = 0; i < seed; i++)
		send_one(run, MIB, 0);
	finish(run);
	*trials += run->choice->probe.left > 0;
	for (unsigned i = 0; i < 500; i++)
		send_one(run, 8, 0);
	return share(run, 8, 300, LANE_KERNEL) > 0.9;
}

/* Long messages that end wherever a trial of theirs has come to: the short ones behind them are learnt all the same. */
static void test_sizes_that_end_in_a_trial(void)
{
	struct world world = textbook;
	unsigned right, trials = 0, *count = &trials;

	world.way[WAY_KERNEL] = (struct way_cost){ 1, 0.05, 0 };
	right = seeds_where(&world, 1, short_ones_are_learnt, &count);
	printf("sizes that end: %u of %u in a trial, right behind %u\n", trials, SEEDS, right);
	CHECK(trials > 0);
	CHECK(right == SEEDS);
}

int main(void)
{
	test_bursts_are_not_fast();
	test_all_end_at_once();
	test_long_messages_are_few();
	test_bulk_is_bulk();
	test_tides();
	test_pauses();
	test_sizes_that_end_in_a_trial();
	return check_done();
}
