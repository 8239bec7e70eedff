/* SPDX-License-Identifier: Apache-2.0 */
/* test_flood.c - a line that drivers say for each packet is said once, and counted; others are said as they come. */
#include "dpdk/flood.h"

#include <stdio.h>
#include <string.h>

#include "check.h"

#define SECOND_NS 1000000000u

static char said[FLOOD_TEXT_BYTES];

static bool says(struct flood *flood, const char *line, uint64_t now_ns)
{
	said[0] = '\0';
	return flood_line(flood, line, now_ns, said);
}

static bool tells(struct flood *flood)
{
	unsigned place = 0;

	said[0] = '\0';
	return flood_rest(flood, &place, said);
}

/* Two by turns, a hundred thousand in a second: each is said once, then its number once in ten seconds. */
static void test_two_by_turns(void)
{
	static struct flood flood;
	unsigned times = 0;

	for (uint64_t i = 0; i < 100000; i++) {
		times += says(&flood, "no mbuf", SECOND_NS + i * 10000);
		times += says(&flood, "no copy", SECOND_NS + i * 10000);
	}
	CHECK_EQ(times, 2);
	CHECK(says(&flood, "no mbuf", SECOND_NS + FLOOD_QUIET_NS));
	CHECK(strcmp(said, "no mbuf (and 99999 times before)") == 0);
	CHECK(!says(&flood, "no mbuf", SECOND_NS + FLOOD_QUIET_NS + 1));
	CHECK(tells(&flood));
	CHECK(strcmp(said, "no mbuf (1 times more)") == 0);
	CHECK(tells(&flood));
	CHECK(strcmp(said, "no copy (99999 times more)") == 0);
	CHECK(!tells(&flood));
	/* One that comes seldom is said each time, as it is. */
	for (uint64_t i = 2; i < 20; i++) {
		CHECK(says(&flood, "no mbuf", SECOND_NS + i * FLOOD_QUIET_NS + 1));
		CHECK(strcmp(said, "no mbuf") == 0);
	}
	CHECK(!tells(&flood));
}

/* Lines that differ each time: as many as there are places for, then a number. */
static void test_all_different(void)
{
	static struct flood flood;
	char line[64];
	unsigned times = 0;

	for (unsigned i = 0; i < 1000; i++) {
		snprintf(line, sizeof(line), "packet %u is bad", i);
		times += says(&flood, line, SECOND_NS + i);
	}
	CHECK_EQ(times, FLOOD_LINES);
	CHECK(tells(&flood));
	CHECK(strcmp(said, "936 other lines of DPDK's were not passed on") == 0);
	CHECK(!tells(&flood));
	/* Those that have been quiet make place, at last the one with a number to tell. */
	CHECK(!says(&flood, "packet 0 is bad", SECOND_NS + 1));
	times = 0;
	for (unsigned i = 0; i < 1000; i++) {
		snprintf(line, sizeof(line), "queue %u is bad", i);
		times += says(&flood, line, SECOND_NS + 1000 + FLOOD_QUIET_NS);
	}
	CHECK_EQ(times, FLOOD_LINES);
	CHECK(tells(&flood));
	CHECK(strcmp(said, "937 other lines of DPDK's were not passed on") == 0);
	CHECK(!tells(&flood));
}

/* All places have a number to tell: once they have been quiet a new line is said nevertheless. */
static void test_none_is_for_ever(void)
{
	static struct flood flood;
	char line[64];

	for (unsigned i = 0; i < 2 * FLOOD_LINES; i++) {
		snprintf(line, sizeof(line), "queue %u is bad", i % FLOOD_LINES);
		CHECK_EQ(says(&flood, line, SECOND_NS + i), i < FLOOD_LINES);
	}
	CHECK(!says(&flood, "the link is down", SECOND_NS + FLOOD_QUIET_NS - 1));
	CHECK(says(&flood, "the link is down", SECOND_NS + FLOOD_QUIET_NS));
	CHECK(!says(&flood, "the link is down", SECOND_NS + FLOOD_QUIET_NS));
}

/* One that goes on being said while the numbers are told: each has its turn, once. */
static void test_rest_has_an_end(void)
{
	static struct flood flood;
	unsigned place = 0, told = 0;

	for (unsigned i = 0; i < 2; i++) {
		(void)says(&flood, "no mbuf", SECOND_NS);
		(void)says(&flood, "no copy", SECOND_NS);
	}
	while (told < 100 && flood_rest(&flood, &place, said)) {
		(void)flood_line(&flood, "no mbuf", SECOND_NS + 1, said);
		told++;
	}
	CHECK_EQ(told, 2);
	CHECK(!flood_rest(&flood, &place, said));
	CHECK(tells(&flood));
	CHECK(strcmp(said, "no mbuf (2 times more)") == 0);
}

/* The longest there can be, with a number behind it. */
static void test_long_lines(void)
{
	static struct flood flood;
	char line[512];

	memset(line, 'x', sizeof(line) - 1);
	line[sizeof(line) - 1] = '\0';
	CHECK(says(&flood, line, SECOND_NS));
	CHECK(strcmp(said, line) == 0);
	CHECK(!says(&flood, line, SECOND_NS + 1));
	CHECK(says(&flood, line, SECOND_NS + FLOOD_QUIET_NS));
	CHECK(strcmp(said + strlen(line), " (and 1 times before)") == 0);
}

int main(void)
{
	test_two_by_turns();
	test_all_different();
	test_none_is_for_ever();
	test_rest_has_an_end();
	test_long_lines();
	return check_done();
}
