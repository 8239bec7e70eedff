/* SPDX-License-Identifier: Apache-2.0 */
/* test_choice_memory.c - what comms to one host have of each other's learning, and what people are told of it. */
#include "check.h"
#include "choice_world.h"

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
		CHECK_EQ(choice_take(&next, 0, 1 << 20, false), LANE_HARP);
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
	/* A comm to a host that was forgotten looks for it once, not for each message until somebody learns something. */
	choice.heard = 0;
	choice_hear(&choice, UINT64_C(64) << 20, 0, &here, OLD_NS);
	CHECK(choice.heard != 0);
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
	test_memory();
	test_short_comms();
	test_comms_at_once();
	test_told_once();
	test_words();
	return check_done();
}
