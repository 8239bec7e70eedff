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
	/* The way in use gets slow: soon. The other one gets fast: nobody sees it before the next probe. */
	const struct change changes[] = {
		{ "HARP gets slow", 1, 64, slow, kernel, 200, LANE_KERNEL },
		{ "kernel gets slow", 1, 1 << 20, harp, slow, 200, LANE_HARP },
		{ "kernel gets fast", 1, 64, harp, fast, 12000, LANE_KERNEL },
		{ "HARP gets slow", 8, 64, slow, kernel, 1000, LANE_KERNEL },
		{ "kernel gets slow", 8, 1 << 20, harp, slow, 1000, LANE_HARP },
		{ "HARP gets fast", 8, 1 << 20, fast, kernel, 12000, LANE_HARP },
	};

	for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		const struct change *c = &changes[i];
		unsigned right = seeds_where(&textbook, c->depth, change_turned, c);

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
	CHECK_EQ(choice_take(choice, run.message, 64), 0);
	choice_done(choice, run.message, 64, 0, 1000);
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
		CHECK_EQ(choice_take(choice, run.message, 64), 0);
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
	CHECK_EQ(choice_take(choice, 0, 64), LANE_KERNEL);
	choice_init(choice, PATH_AUTO, 1);
	choice_rtt(choice, LANE_HARP, 30000);
	choice_rtt(choice, LANE_KERNEL, 90000);
	choice_kinds_alive(choice, LANE_HARP | LANE_KERNEL);
	CHECK_EQ(choice_take(choice, 0, 64), LANE_HARP);
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
	(void)choice_take(choice, run.message, 64);
	CHECK(choice_is_exact(choice, run.message));
	choice_done(choice, run.message, 64, LANE_HARP, 3000);
	choice->cells[0].rest =
		2; /* and one that is not to be looked at is not, whatever begins meanwhile */
	(void)choice_take(choice, run.message + 1, 64);
	CHECK(!choice_is_exact(choice, run.message + 1));
	choice->cells[0].rest = 0;
	choice_done(choice, run.message + 1, 64, LANE_HARP, 0);
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
			unsigned kinds = choice_take(&choice, m, i % 7 ? size : 0);

			CHECK(kinds >= 1 && kinds <= 3);
			choice_done(&choice, m, i % 7 ? size : 0, kinds, service_ns);
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

/* ---- memory and words ------------------------------------------------------------------------- */

#define OLD_NS UINT64_C(60000000000)

static void test_memory(void)
{
	const struct harp_addr here = { { 1 } }, there = { { 2 } };
	static struct choice choice, next;
	struct world world = textbook;
	struct run run = begin(&choice, &world, 1, 11);
	char text[512];

	for (unsigned i = 0; i < 400; i++) {
		send_one(&run, 64, 0);
		send_one(&run, 1 << 20, 0);
	}
	finish(&run);
	choice_save(&choice, 0, &here, 0);
	for (unsigned i = 0; i < 2; i++) { /* a stranger knows nothing: HARP first */
		choice_init(&next, PATH_AUTO, 12);
		choice_join(&next, (int)i, i ? &here : &there, OLD_NS);
		choice_kinds_alive(&next, LANE_HARP);
		choice_kinds_alive(&next, LANE_HARP | LANE_KERNEL);
		CHECK_EQ(choice_take(&next, 0, 1 << 20), LANE_HARP);
	}
	choice_init(&next, PATH_AUTO, 12);
	choice_join(&next, 0, &here, OLD_NS);
	choice_kinds_alive(&next, LANE_HARP); /* as comms come up: the second kind a little later */
	choice_kinds_alive(&next, LANE_HARP | LANE_KERNEL);
	run = (struct run){ .choice = &next, .world = &world, .depth = 1 };
	for (unsigned i = 0; i < 32; i++) {
		CHECK_EQ(send_one(&run, 64, 0), LANE_HARP);
		CHECK_EQ(send_one(&run, 1 << 20, 0), LANE_KERNEL);
	}
	choice_leave(&next, 0, &here, 0, text, sizeof(text));
	for (unsigned i = 3; i < 100; i++) { /* more hosts than there is room for: the oldest go */
		const struct harp_addr other = { { (uint8_t)i } };

		choice_save(&choice, 0, &other, 0);
	}
	choice_init(&next, PATH_AUTO, 12);
	choice_join(&next, 0, &here, OLD_NS);
	CHECK(!next.cells[0].own);
}

/* Comms to one host, one behind the other: so many messages each, and then it ends. */
struct comms {
	struct world world;
	struct harp_addr remote;
	unsigned depth, each;
	uint64_t size, seed, now_ns;
	struct run run;
	struct choice choice;
};

static void comms_begin(struct comms *c)
{
	c->run = begin(&c->choice, &c->world, c->depth, ++c->seed);
	choice_join(&c->choice, 0, &c->remote, c->now_ns);
}

static unsigned comms_send(struct comms *c)
{
	unsigned kinds;

	choice_hear(&c->choice, c->size, 0, &c->remote, c->now_ns);
	kinds = send_one(&c->run, c->size, 0);
	if (c->choice.learnt)
		choice_save(&c->choice, 0, &c->remote, c->now_ns);
	return kinds;
}

static void comms_end(struct comms *c)
{
	char text[512];

	finish(&c->run);
	c->now_ns += (uint64_t)(c->run.now_us * 1000);
	choice_leave(&c->choice, 0, &c->remote, c->now_ns, text, sizeof(text));
}

/* Of so many comms: the share of messages that went by `best`. */
static double comms_share(struct comms *c, unsigned count, unsigned best)
{
	unsigned good = 0;

	for (unsigned i = 0; i < count; i++) {
		comms_begin(c);
		for (unsigned m = 0; m < c->each; m++)
			good += comms_send(c) == best;
		comms_end(c);
	}
	return (double)good / (count * c->each);
}

/* Many comms, each too short to learn anything: together they do, and again when a way changes. */
static void test_short_comms(void)
{
	static const struct {
		unsigned depth, each;
		uint64_t size;
		unsigned best, first;
	} cases[] = {
		{ 1, 5, 8, LANE_HARP, 20 },         { 1, 20, 8, LANE_HARP, 5 },
		{ 1, 5, 1 << 20, LANE_KERNEL, 20 }, { 1, 20, 1 << 20, LANE_KERNEL, 5 },
		{ 1, 50, 65536, LANE_KERNEL, 5 },   { 8, 50, 1 << 20, LANE_KERNEL, 10 },
		{ 8, 200, 65536, LANE_KERNEL, 5 },
	};
	static struct comms c;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		double share, back;

		c = (struct comms){ .world = textbook,
				    .remote = { { 9, (uint8_t)i } },
				    .depth = cases[i].depth,
				    .each = cases[i].each,
				    .size = cases[i].size };
		(void)comms_share(&c, cases[i].first, cases[i].best);
		share = comms_share(&c, 1000, cases[i].best);
		/* The better way gets slow: so many comms later it is left. */
		c.world.way[cases[i].best - 1] = (struct way_cost){ 30, 5, 0 };
		(void)comms_share(&c, 1 + 2000 / c.each, cases[i].best);
		back = comms_share(&c, 100, 3 ^ cases[i].best);
		printf("comms of %u messages of %" PRIu64
		       " B, depth %u: %.3f by the best, %.3f when it got slow\n",
		       c.each, c.size, c.depth, share, back);
		CHECK(share > 0.9);
		CHECK(back > 0.9);
	}
}

/* Comms that are there together: what one has learnt those know that come to that size later, and do not try it anew. */
static void test_comms_at_once(void)
{
	static struct comms c[8];
	unsigned good = 0;

	for (unsigned i = 0; i < 8; i++) {
		c[i] = (struct comms){ .world = textbook,
				       .remote = { { 8 } },
				       .depth = 1,
				       .size = 1 << 20,
				       .seed = i };
		comms_begin(&c[i]);
	}
	for (unsigned m = 0; m < 100; m++)
		(void)comms_send(&c[0]);
	for (unsigned i = 1; i < 8; i++)
		for (unsigned m = 0; m < 16; m++)
			good += comms_send(&c[i]) == LANE_KERNEL;
	CHECK_EQ(good, 7 * 16);
	c[1].size = 2 << 20; /* one that nobody has met: begins as its neighbour */
	CHECK_EQ(comms_send(&c[1]), LANE_KERNEL);
}

/* People hear of a host once, whichever comm has found it, then of what changes, and at the end of what all comms sent. */
static void test_told_once(void)
{
	const struct harp_addr host = { { 7 } };
	static struct choice comms[2];
	struct world world = textbook;
	uint64_t now_ns = 1000000000;
	char text[512];

	world.noise = world.spike_share = 0;
	for (unsigned i = 0; i < 2; i++) {
		struct run run = begin(&comms[i], &world, 1, i + 1);

		choice_join(&comms[i], 0, &host, now_ns);
		for (unsigned m = 0; m < 60; m++)
			send_one(&run, 64, 0);
		finish(&run);
	}
	CHECK(choice_tell(&comms[1], 0, &host, now_ns, text, sizeof(text)));
	CHECK_STR(text, "messages one at a time: all by HARP (64 B: 3.0 us, kernel 6.0)");
	CHECK(!choice_tell(&comms[0], 0, &host, now_ns, text, sizeof(text)));
	CHECK(!choice_has_news(&comms[0], now_ns) && comms[0].news); /* not so soon */
	now_ns += UINT64_C(1000000000);
	CHECK(choice_has_news(&comms[0], now_ns));
	CHECK(!choice_tell(&comms[0], 0, &host, now_ns, text, sizeof(text)));
	CHECK(!comms[0].news); /* nothing new */
	comms[0].cells[0].way = comms[0].cells[0].home = WAY_KERNEL;
	CHECK(choice_tell(&comms[0], 0, &host, now_ns, text, sizeof(text)));
	CHECK_STR(text, "messages one at a time: all by kernel (64 B: 6.0 us, HARP 3.0); "
			"changed: 64 B from HARP to kernel (6.0 us, HARP 3.0)");
	choice_leave(&comms[0], 0, &host, now_ns, text, sizeof(text));
	CHECK_STR(text, "");
	choice_leave(&comms[1], 0, &host, now_ns, text, sizeof(text));
	CHECK_STR(text, "messages sent, by size: 64 B: 92 HARP, 28 kernel");
	choice_leave(&comms[1], 0, &host, now_ns, text,
		     sizeof(text)); /* of a host that was forgotten */
	CHECK_STR(text, "messages sent, by size: 64 B: 46 HARP, 14 kernel");
}

static void test_words(void)
{
	static struct choice choice;
	struct world world = textbook;
	struct run run;
	char text[512], tiny[24];

	world.noise = world.spike_share = 0;
	run = begin(&choice, &world, 1, 17);
	choice_rtt(&choice, LANE_HARP, 20000);
	choice_rtt(&choice, LANE_KERNEL, 60000);
	CHECK(choice_has_news(&choice, 0));
	CHECK(choice_announce(&choice, 0, text, sizeof(text)));
	CHECK_STR(text,
		  "HARP TCP (round trip 20.0 us) and kernel TCP (round trip 60.0 us): which is "
		  "faster for which size is found in use");
	CHECK(!choice_has_news(&choice, 0));
	for (unsigned i = 0; i < 100; i++)
		for (unsigned c = 0; c < CHOICE_CLASSES; c += 5)
			send_one(&run, UINT64_C(64) << c, 0);
	finish(&run);
	CHECK(!choice_has_news(&choice, 50000000)); /* not so soon */
	CHECK(choice_has_news(&choice, 100000000));
	CHECK(choice_announce(&choice, 100000000, text, sizeof(text)));
	CHECK_STR(
		text,
		"messages one at a time: up to 2 KiB by HARP (64 B: 3.0 us, kernel 6.0), larger by "
		"kernel (64 MiB: 40.9 Gbit/s, HARP 16.4, both 23.4)");
	choice.news = true;
	CHECK(!choice_announce(&choice, 9000000000, text, sizeof(text))); /* the same again */
	choice.announced = 0;
	choice_announce(&choice, 9000000000, tiny, sizeof(tiny));
	CHECK_STR(tiny, "messages one at a time:");
	choice_report(&choice, text, sizeof(text));
	CHECK(!strncmp(text, "messages sent, by size: 64 B: ", 30) && strstr(text, " HARP, ") &&
	      strstr(text, "; 64 MiB: "));
	choice_report(&choice, tiny, sizeof(tiny));
	CHECK_EQ(strlen(tiny), sizeof(tiny) - 1);
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
	test_memory();
	test_short_comms();
	test_comms_at_once();
	test_told_once();
	test_words();
	return check_done();
}
