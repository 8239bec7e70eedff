/* SPDX-License-Identifier: Apache-2.0 */
/* test_choice.c - what the learner makes of ways whose costs are known: simulated ones. */
#include <stdlib.h>

#include "check.h"
#include "choice_world.h"

static void test_textbook(void)
{
	check_world("textbook", &textbook);
}

/* Two cores: both ways at once add up for long messages. */
static void test_two_cores(void)
{
	struct world world = textbook;

	world.one_core = false;
	world.way[1].per_kib_us = 0.4;
	check_world("two cores", &world);
}

static void test_harp_wins_all(void)
{
	struct world world = textbook;

	world.way[0].per_kib_us = 0.08;
	check_world("zero-copy", &world);
}

/* A latency that pipelines hide, and a rate that counts in streams: not the same answer. */
static void test_latency_hidden(void)
{
	struct world world = {
		{ { 3, 0.5, 0 }, { 1, 0.2, 8 } }, true, 0.3, 0.002, { 0, 0 }, 1, 0, 0
	};
	struct verdict one = truth(&world, 1, 256), stream = truth(&world, 8, 256);

	CHECK_EQ(one.best, LANE_HARP);
	CHECK_EQ(stream.best, LANE_KERNEL);
	check_world("latency hidden", &world);
}

/* Hardly more than 30 % apart, the ends seen late and several at once. */
static void test_close_call(void)
{
	struct world world = {
		{ { 4.2, 0.11, 0 }, { 3, 0.15, 0 } }, true, 0.3, 0.002, { 0, 0 }, 1, 0, 0
	};

	check_world("close call", &world);
	world.turn_us[0] = world.turn_us[1] = 20;
	check_world("seen late", &world);
}

/* ---- changes ---------------------------------------------------------------------------------- */

struct change {
	const char *name;
	unsigned depth;
	uint64_t size;
	struct way_cost harp, kernel; /* after 20000 messages in the textbook's world */
	unsigned limit, best;
	const struct world *begins; /* NULL: the textbook's */
};

static bool change_turned(struct run *run, uint64_t seed, const void *arg)
{
	const struct change *change = arg;

	(void)seed;
	for (unsigned i = 0; i < 20000; i++)
		send_one(run, change->size, 0);
	run->world->way[0] = change->harp;
	run->world->way[1] = change->kernel;
	for (unsigned i = 0; i < change->limit; i++)
		send_one(run, change->size, 0);
	return share(run, change->size, 400, change->best) > 0.95;
}

/* The better way gets worse, or the worse one better: messages until nine in ten go by the new best one. */
static void test_changes(void)
{
	const struct way_cost harp = textbook.way[0], kernel = textbook.way[1];
	const struct way_cost slow = { 30, 5, 0 }, fast = { 1, 0.05, 0 };
	struct world quick = textbook; /* the kernel's is best for all, and looked at less */
	/* The way in use gets slow: soon. The other one gets fast: nobody sees it before the next probe. */
	const struct change changes[] = {
		{ "HARP gets slow", 1, 64, slow, kernel, 200, LANE_KERNEL, NULL },
		{ "kernel gets slow", 1, 1 << 20, harp, slow, 200, LANE_HARP, NULL },
		{ "kernel gets fast", 1, 64, harp, fast, 12000, LANE_KERNEL, NULL },
		{ "HARP gets slow", 8, 64, slow, kernel, 1000, LANE_KERNEL, NULL },
		{ "kernel gets slow", 8, 1 << 20, harp, slow, 1000, LANE_HARP, NULL },
		{ "HARP gets fast", 8, 1 << 20, fast, kernel, 12000, LANE_HARP, NULL },
		{ "kernel gets slow", 1, 64, harp, slow, 500, LANE_HARP, &quick },
	};

	quick.way[1] = fast;
	for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		const struct change *c = &changes[i];
		const struct world *world = c->begins ? c->begins : &textbook;
		unsigned right = seeds_where(world, c->depth, change_turned, c);

		printf("%s: depth %u, %" PRIu64 " B: %u of %u turned within %u messages\n", c->name,
		       c->depth, c->size, right, SEEDS, c->limit);
		CHECK(right >= SEEDS * 95 / 100);
	}
}

/* A way a hundred times slower, from the start or from some time on, is not worth a dozen messages each time. */
static bool crawl_is_cut_short(struct run *run, uint64_t seed, const void *arg)
{
	const struct way_cost crawl = { 30, 20, 0 };
	uint64_t by;

	(void)arg;
	run->world->way[seed % 2] = crawl;
	for (unsigned i = 0; i < 3000; i++)
		send_one(run, 1 << 20, 0);
	by = run->by[seed % 2 ? WAY_KERNEL : WAY_HARP] + run->by[WAY_BOTH];
	return by <= (seed % 2 ? 40 : 80);
}

static void test_a_crawl_is_cut_short(void)
{
	struct world world = textbook;
	unsigned good;

	world.one_core = false;
	good = seeds_where(&world, 8, crawl_is_cut_short, NULL);
	printf("a crawl is cut short: in %u of %u\n", good, SEEDS);
	CHECK(good >= SEEDS * 95 / 100);
}

/* ---- mixtures --------------------------------------------------------------------------------- */

static bool mixed_is_right(struct run *run, uint64_t seed, const void *arg)
{
	const uint64_t sizes[] = { 64, 256 << 10 };
	unsigned good = 0;

	(void)seed;
	(void)arg;
	for (unsigned i = 0; i < 3000; i++)
		send_one(run, sizes[i % 2], 0);
	for (unsigned i = 0; i < 400; i++)
		good += send_one(run, sizes[i % 2], 0) == (i % 2 ? LANE_KERNEL : LANE_HARP);
	return good >= 360;
}

/* Sizes that alternate in one stream: each goes its best way though they are always mixed. */
static void test_mixed_stream(void)
{
	unsigned right = seeds_where(&textbook, 8, mixed_is_right, NULL);

	printf("mixed stream: %u of %u right\n", right, SEEDS);
	CHECK(right >= SEEDS * 95 / 100);
}

static bool neighbours_are_right(struct run *run, uint64_t seed, const void *arg)
{
	(void)seed;
	(void)arg;
	for (unsigned i = 0; i < 200; i++) {
		send_one(run, 64, 0);
		send_one(run, 512 << 10, 0);
	}
	return send_one(run, 256, 0) == LANE_HARP && send_one(run, 1 << 20, 0) == LANE_KERNEL &&
	       send_one(run, 16 << 20, 0) == LANE_KERNEL;
}

/* A size never seen before begins where its neighbours are. */
static void test_neighbours(void)
{
	unsigned right = seeds_where(&textbook, 1, neighbours_are_right, NULL);

	printf("neighbours: %u of %u right\n", right, SEEDS);
	CHECK(right >= SEEDS * 95 / 100);
}

/* ---- kinds ------------------------------------------------------------------------------------ */

static void test_kinds(void)
{
	struct choice *choice = malloc(sizeof(*choice));
	struct world world = textbook;
	struct run run = begin(choice, &world, 4, 7);

	for (unsigned i = 0; i < 2000; i++)
		send_one(&run, 1 << 20, 0);
	CHECK_EQ(send_one(&run, 1 << 20, 0), LANE_KERNEL);
	choice_kinds_alive(choice, LANE_HARP);
	for (unsigned i = 0; i < 100; i++)
		CHECK_EQ(send_one(&run, 1 << 20, 0), LANE_HARP);
	choice_kinds_alive(choice, LANE_HARP | LANE_KERNEL);
	CHECK_EQ(send_one(&run, 1 << 20, 0),
		 LANE_KERNEL); /* what was best, until it is measured again */
	choice_kinds_alive(choice, 0);
	CHECK_EQ(choice_take(choice, run.message, 64, false), 0);
	choice_done(choice, run.message, 64, 0, 1000, false);
	free(choice);
}

static void test_forced(void)
{
	static const struct {
		enum plugin_path path;
		unsigned kinds;
	} cases[] = { { PATH_XDP, LANE_HARP },
		      { PATH_DPDK, LANE_HARP },
		      { PATH_KERNEL, LANE_KERNEL } };

	for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		struct choice *choice = malloc(sizeof(*choice));
		struct world world = textbook;
		struct run run = begin(choice, &world, 1, 3);
		char text[512];

		choice_init(choice, cases[c].path, 3);
		choice_kinds_alive(choice, LANE_HARP | LANE_KERNEL);
		for (unsigned i = 0; i < 3000; i++)
			CHECK_EQ(send_one(&run, 64u << i % 16, 0), cases[c].kinds);
		CHECK(!choice_announce(choice, 0, text, sizeof(text)));
		/* The only kind that is allowed is not there. */
		choice_kinds_alive(choice, 3 ^ cases[c].kinds);
		finish(&run);
		CHECK_EQ(choice_take(choice, run.message, 64, false), 0);
		free(choice);
	}
}

/* The preambles' round trips decide the first message. */
static void test_round_trips(void)
{
	struct choice *choice = malloc(sizeof(*choice));

	choice_init(choice, PATH_AUTO, 1);
	choice_rtt(choice, LANE_HARP, 200000);
	choice_rtt(choice, LANE_KERNEL, 90000);
	choice_rtt(choice, LANE_KERNEL, 95000); /* the best counts */
	choice_kinds_alive(choice, LANE_HARP | LANE_KERNEL);
	CHECK_EQ(choice_take(choice, 0, 64, false), LANE_KERNEL);
	choice_init(choice, PATH_AUTO, 1);
	choice_rtt(choice, LANE_HARP, 30000);
	choice_rtt(choice, LANE_KERNEL, 90000);
	choice_kinds_alive(choice, LANE_HARP | LANE_KERNEL);
	CHECK_EQ(choice_take(choice, 0, 64, false), LANE_HARP);
	free(choice);
}

/* Behind a stream the first single message is taken for one of it. What it turns out to be is what says whether it is looked at. */
static void test_single_behind_stream(void)
{
	struct choice *choice = malloc(sizeof(*choice));
	struct world world = textbook;
	struct run run = begin(choice, &world, 8, 5);

	while (run.message < 400 || !choice->cells[CHOICE_CLASSES].rest || choice->probe.active)
		send_one(&run, 64, 0);
	finish(&run);
	CHECK(choice->cells[CHOICE_CLASSES].rest > 0);
	CHECK(!choice->cells[0].rest);
	(void)choice_take(choice, run.message, 64, false);
	CHECK(choice_is_exact(choice, run.message));
	choice_done(choice, run.message, 64, LANE_HARP, 3000, false);
	choice->cells[0].rest =
		2; /* and one that is not to be looked at is not, whatever begins meanwhile */
	(void)choice_take(choice, run.message + 1, 64, false);
	CHECK(!choice_is_exact(choice, run.message + 1));
	choice->cells[0].rest = 0;
	choice_done(choice, run.message + 1, 64, LANE_HARP, 0, false);
	for (unsigned i = 0; i < choice->cells[0].cost[WAY_HARP].count; i++)
		CHECK(choice->cells[0].cost[WAY_HARP].ns[i] > 0);
	free(choice);
}

/* Same calls, same answers; other seeds probe at other times. */
static void test_replay(void)
{
	static struct choice a, b;
	struct world world_a = textbook, world_b = textbook;
	struct run run_a = begin(&a, &world_a, 3, 42), run_b = begin(&b, &world_b, 3, 42);

	for (unsigned i = 0; i < 5000; i++)
		CHECK_EQ(send_one(&run_a, 8u << i % 18, 0), send_one(&run_b, 8u << i % 18, 0));
	CHECK_MEM(&a, &b, sizeof(a));
}

/* Impossible times must not break anything: zero, and years. */
static void test_odd_times(void)
{
	static struct choice choice;
	uint64_t m = 0;

	choice_init(&choice, PATH_AUTO, 5);
	choice_kinds_alive(&choice, LANE_HARP | LANE_KERNEL);
	for (unsigned round = 0; round < 6; round++) {
		const uint64_t service_ns = round % 3 == 0 ? 0 : round % 3 == 1 ? UINT64_MAX : 1000;

		for (unsigned i = 0; i < 4000; i++, m++) {
			uint64_t size = UINT64_C(1) << i % 41;
			unsigned kinds = choice_take(&choice, m, i % 7 ? size : 0, false);

			CHECK(kinds >= 1 && kinds <= 3);
			choice_done(&choice, m, i % 7 ? size : 0, kinds, service_ns, false);
		}
	}
}

static void test_classes(void)
{
	CHECK_EQ(choice_class(0), 0);
	CHECK_EQ(choice_class(64), 0);
	CHECK_EQ(choice_class(65), 1);
	CHECK_EQ(choice_class(128), 1);
	CHECK_EQ(choice_class(129), 2);
	CHECK_EQ(choice_class(64 << 20), CHOICE_CLASSES - 1);
	CHECK_EQ(choice_class((64 << 20) + 1), CHOICE_CLASSES - 1);
	CHECK_EQ(choice_class(UINT64_MAX), CHOICE_CLASSES - 1);
}

int main(void)
{
	test_classes();
	test_textbook();
	test_two_cores();
	test_harp_wins_all();
	test_latency_hidden();
	test_close_call();
	test_changes();
	test_a_crawl_is_cut_short();
	test_mixed_stream();
	test_neighbours();
	test_kinds();
	test_forced();
	test_round_trips();
	test_single_behind_stream();
	test_replay();
	test_odd_times();
	return check_done();
}
