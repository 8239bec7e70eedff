/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_guest.c - strangers at a door: who has to go when it is full, and when everybody's time is up. By count and
 * by a clock that the test turns, over lanes in memory.
 */
#include <stdlib.h>

#include "check.h"
#include "ctx.h"
#include "fake_lane.h"
#include "guest.h"
#include "plugin.h"

#define SECOND_NS 1000000000ull
#define COMERS 300u

static struct guests *guests;
static struct fake_pair *pairs; /* COMERS: who came, and from where */
static unsigned comers;

static void door_open(struct rendezvous *rdv)
{
	static const struct placement_end one_queue = { .kind = PLACEMENT_ONE_QUEUE, .queues = 1 };

	guests = calloc(1, sizeof(*guests));
	pairs = calloc(COMERS, sizeof(*pairs));
	comers = 0;
	guests_init(guests, rdv, &one_queue);
}

static void door_close(void)
{
	guests_turn_away(guests);
	CHECK_EQ(guests->count, 0);
	for (unsigned i = 0; i < comers; i++)
		fake_pair_free(&pairs[i]);
	free(pairs);
	free(guests);
}

/* Somebody comes from 10.0.x.y and says nothing; the number to ask for him by. */
static unsigned come(unsigned address, uint64_t now_ns)
{
	struct fake_pair *pair = &pairs[comers];

	fake_pair_init(pair, comers, 64);
	pair->lanes[0].lane.remote.addr =
		harp_addr_v4(10, 0, (uint8_t)(address >> 8), (uint8_t)address);
	guests_come(guests, &pair->lanes[0].lane, -1, now_ns);
	return comers++;
}

static bool is_here(unsigned comer)
{
	return !pairs[comer].lanes[0].closed;
}

/* One host opens as many connections as it likes: it pushes out its own. */
static void test_one_attacker(struct rendezvous *rdv)
{
	unsigned honest[3], others = 0;

	door_open(rdv);
	for (unsigned i = 0; i < 3; i++)
		honest[i] = come(2 + i, SECOND_NS + i);
	for (unsigned i = 0; i < 200; i++)
		(void)come(1, SECOND_NS + 10 + i);
	for (unsigned i = 0; i < 3; i++)
		CHECK(is_here(honest[i]));
	for (unsigned i = 0; i < comers; i++)
		others += is_here(i);
	CHECK_EQ(others, GUESTS_MAX);
	CHECK_EQ(guests->count, GUESTS_MAX);
	CHECK_EQ(guests->pushed_out, 203 - GUESTS_MAX);
	/* Its oldest went first. */
	CHECK(!is_here(3));
	CHECK(is_here(comers - 1));
	/* Who comes now finds room, too, and stays. */
	honest[0] = come(9, 2 * SECOND_NS);
	for (unsigned i = 0; i < 64; i++)
		(void)come(1, 2 * SECOND_NS + i);
	CHECK(is_here(honest[0]));
	door_close();
}

/* Nobody has more than another: the oldest goes. */
static void test_many_attackers(struct rendezvous *rdv)
{
	door_open(rdv);
	for (unsigned i = 0; i < 100; i++)
		(void)come(i, SECOND_NS + i);
	for (unsigned i = 0; i < 100; i++)
		CHECK_EQ(is_here(i), i >= 100 - GUESTS_MAX);
	CHECK_EQ(guests->pushed_out, 100 - GUESTS_MAX);
	door_close();
}

static void test_time(struct rendezvous *rdv)
{
	unsigned first, late;

	door_open(rdv);
	first = come(1, SECOND_NS);
	late = come(1, 3 * SECOND_NS);
	guests_look(guests, 6 * SECOND_NS - 1);
	CHECK(is_here(first) && is_here(late));
	guests_look(guests, 6 * SECOND_NS);
	CHECK(!is_here(first) && is_here(late));
	guests_look(guests, 8 * SECOND_NS);
	CHECK(!is_here(late));
	CHECK_EQ(guests->count, 0);
	/* A crowd has less of it. */
	for (unsigned i = 0; i < GUESTS_MANY; i++)
		(void)come(1, 10 * SECOND_NS);
	guests_look(guests, 11 * SECOND_NS);
	CHECK_EQ(guests->count, GUESTS_MANY);
	late = come(2, 11 * SECOND_NS);
	CHECK_EQ(guests->count, 1); /* it was one too many for those who had had their second */
	CHECK(is_here(late));
	CHECK_EQ(guests->pushed_out, 0);
	door_close();
}

/* What is not a preamble costs its sender the place at once. */
static void test_babble(struct rendezvous *rdv)
{
	uint8_t babble[64] = "GET / HTTP/1.1";
	unsigned silent, babbling;

	door_open(rdv);
	silent = come(1, SECOND_NS);
	babbling = come(1, SECOND_NS);
	CHECK_EQ(fake_inject(&pairs[babbling].lanes[0], babble, sizeof(babble)), sizeof(babble));
	for (unsigned i = 0; i < 1000 && is_here(babbling); i++) /* read in pieces */
		pairs[babbling].lanes[0].lane.notify(&pairs[babbling].lanes[0].lane, SECOND_NS);
	CHECK(is_here(silent) && !is_here(babbling));
	CHECK_EQ(guests->turned_away, 1);
	door_close();
}

int main(void)
{
	struct rendezvous *rdv;
	struct plugin_ctx *ctx;

	CHECK_EQ(plugin_init(&ctx, 1, -1), 0);
	CHECK_EQ(ctx_rendezvous(0, &rdv), 0);
	test_one_attacker(rdv);
	test_many_attackers(rdv);
	test_time(rdv);
	test_babble(rdv);
	CHECK_EQ(plugin_finalize(ctx), 0);
	return check_done();
}
