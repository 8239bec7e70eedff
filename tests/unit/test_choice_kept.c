/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_choice_kept.c - small messages that the sender keeps: by the kernel they are done when the socket has taken them, by HARP
 * when they are acknowledged, and both ways when the receiver has them where that is asked for. So what a stream looks like
 * depends on the way it goes.
 */
#include <stdlib.h>

#include "check.h"
#include "choice.h"

#define SEEDS 100u
#define SIZE 64u

/* Of one way: what a post takes, of the sender's time; until it is acknowledged, and until an answer is here. us. */
struct kept_way {
	double post_us, acked_us, answer_us;
};

/* As comm_choice.c does it, with a clock of the test's. */
struct kept_run {
	struct choice choice;
	struct kept_way way[2];
	uint64_t seed;
	double now_us, last_us;
	double posted_us[PLUGIN_REQUESTS_MAX], done_us[PLUGIN_REQUESTS_MAX];
	unsigned kinds[PLUGIN_REQUESTS_MAX];
	uint64_t posted, done;
	uint64_t by_harp, by_kernel;
	bool at_post; /* HARP's acknowledgement of a single one comes just before the next post, which is who sees it */
};

static double kept_random(struct kept_run *run)
{
	run->seed = run->seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(run->seed >> 11) / (double)(UINT64_C(1) << 53);
}

static unsigned kept_slot(uint64_t message)
{
	return (unsigned)(message % PLUGIN_REQUESTS_MAX);
}

/* What is done by now. just: so far nobody has looked, and the last was posted only now. */
static void kept_look(struct kept_run *run, bool just)
{
	while (run->done < run->posted && run->done_us[kept_slot(run->done)] <= run->now_us) {
		unsigned slot = kept_slot(run->done);
		double from_us =
			run->posted_us[slot] > run->last_us ? run->posted_us[slot] : run->last_us;

		run->last_us = run->now_us;
		choice_done(&run->choice, run->done, SIZE, run->kinds[slot],
			    (uint64_t)((run->now_us - from_us) * 1e3),
			    just && run->done + 2 == run->posted);
		run->done++;
	}
}

/* The first in flight need not be waited for to the end once it is seen to be one of a stream. */
static void kept_unask(struct kept_run *run)
{
	unsigned slot = kept_slot(run->done);

	if (run->done < run->posted && run->kinds[slot] == LANE_KERNEL &&
	    run->done_us[slot] > run->now_us && !choice_is_exact(&run->choice, run->done))
		run->done_us[slot] = run->now_us;
}

/* A message; the time until its answer is here. */
static double kept_post(struct kept_run *run, double late_us)
{
	unsigned slot = kept_slot(run->posted);
	const struct kept_way *way;
	double answer_us;
	bool exact;

	run->kinds[slot] = choice_take(&run->choice, run->posted, SIZE, true);
	exact = choice_is_exact(&run->choice, run->posted);
	way = &run->way[run->kinds[slot] == LANE_KERNEL];
	run->posted_us[slot] = run->now_us;
	run->posted++;
	kept_unask(run);
	run->done_us[slot] = 1e18;
	kept_look(run, true);
	answer_us = way->answer_us * (0.9 + 0.2 * kept_random(run));
	run->done_us[slot] = run->now_us + (exact ? answer_us : way->acked_us) + late_us;
	run->now_us += way->post_us * (0.7 + 0.6 * kept_random(run));
	if (run->kinds[slot] == LANE_KERNEL && !exact)
		run->done_us[slot] = run->now_us;
	run->by_harp += run->kinds[slot] == LANE_HARP;
	run->by_kernel += run->kinds[slot] == LANE_KERNEL;
	kept_look(run, false);
	return run->posted_us[slot] + answer_us;
}

/* `count` of a stream, eight in flight; now and then who sends is not let run. The share of HARP's. */
static double kept_stream(struct kept_run *run, unsigned count)
{
	run->by_harp = run->by_kernel = 0;
	for (unsigned i = 0; i < count; i++) {
		while (run->posted - run->done >= 8) {
			run->now_us += 0.1;
			kept_look(run, false);
		}
		if (kept_random(run) < 0.01)
			run->now_us += 20;
		kept_look(run, false);
		kept_post(run, 0);
	}
	return (double)run->by_harp / count;
}

/* `count`, each of which answers the other side's answer. What acknowledges the last comes by then, or is seen when the next
 * is posted, or later. */
static double kept_pings(struct kept_run *run, unsigned count)
{
	run->by_harp = run->by_kernel = 0;
	for (unsigned i = 0; i < count; i++) {
		double answer_us = kept_post(run, 0.6 * kept_random(run) - 0.3);
		unsigned last = kept_slot(run->posted - 1);

		if (run->at_post && run->kinds[last] == LANE_HARP)
			run->done_us[last] = answer_us - 0.1;
		while (run->now_us < answer_us) {
			run->now_us += 0.1;
			if (run->now_us < answer_us - 0.2)
				kept_look(run, false);
		}
	}
	return (double)run->by_harp / count;
}

/* In how many of SEEDS seeds `right` says so. */
static unsigned kept_seeds(struct kept_way harp, struct kept_way kernel,
			   bool (*right)(struct kept_run *run))
{
	struct kept_run *run = malloc(sizeof(*run));
	unsigned count = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		memset(run, 0, sizeof(*run));
		run->way[0] = harp;
		run->way[1] = kernel;
		run->seed = seed;
		choice_init(&run->choice, PATH_AUTO, seed);
		choice_rtt(&run->choice, LANE_HARP, 100000);
		choice_rtt(&run->choice, LANE_KERNEL, 170000);
		choice_kinds_alive(&run->choice, LANE_HARP | LANE_KERNEL);
		count += right(run);
	}
	free(run);
	return count;
}

static bool stream_by_harp(struct kept_run *run)
{
	kept_stream(run, 1000);
	return kept_stream(run, 5000) > 0.9;
}

static bool stream_by_kernel(struct kept_run *run)
{
	kept_stream(run, 1000);
	return kept_stream(run, 5000) < 0.1;
}

static bool pings_by_harp(struct kept_run *run)
{
	kept_pings(run, 500);
	return kept_pings(run, 2000) > 0.9;
}

static bool pings_by_kernel(struct kept_run *run)
{
	kept_pings(run, 500);
	return kept_pings(run, 2000) < 0.1;
}

/* Six times a stream and single messages, from the third on known again. As shares of HARP's. */
static bool by_turns(struct kept_run *run, bool streams_by_harp)
{
	bool right = true;

	for (unsigned i = 0; i < 6; i++) {
		double streams = kept_stream(run, 2000), pings = kept_pings(run, 1000);

		right &= i < 2 || (streams_by_harp ? streams > 0.85 && pings < 0.15
						   : streams < 0.15 && pings > 0.85);
	}
	return right;
}

static bool streams_by_harp(struct kept_run *run)
{
	return by_turns(run, true);
}

static bool streams_by_harp_at_post(struct kept_run *run)
{
	run->at_post = true;
	return by_turns(run, true);
}

static bool streams_by_kernel(struct kept_run *run)
{
	return by_turns(run, false);
}

/* What a socket takes is no message's cost: neither while nothing else is alive, nor where the peer answers nobody. */
static bool kernel_is_not_measured(struct kept_run *run)
{
	const struct choice_cost *cost = &run->choice.cells[0].cost[WAY_KERNEL];
	bool right;

	kept_pings(run, 500);
	choice_kinds_alive(&run->choice, LANE_KERNEL);
	kept_pings(run, 100);
	right = cost->count && choice_low(cost) > 4000;
	choice_kinds_alive(&run->choice, LANE_HARP | LANE_KERNEL);
	memset(&run->choice.cells, 0, sizeof(run->choice.cells));
	run->choice.mute = true;
	kept_pings(run, 500);
	return right && !cost->count;
}

static const struct {
	const char *what;
	struct kept_way harp, kernel;
	bool (*right)(struct kept_run *run);
} cases[] = {
	{ "stream, HARP is faster", { 1.1, 4, 4 }, { 2.3, 8, 9 }, stream_by_harp },
	{ "stream, the kernel is faster", { 3.0, 6, 6 }, { 1.2, 8, 9 }, stream_by_kernel },
	{ "single, HARP is faster", { 1.0, 3.4, 3.4 }, { 2.0, 2.2, 5 }, pings_by_harp },
	{ "single, the kernel is faster", { 1.0, 9, 9 }, { 2.0, 2.2, 5 }, pings_by_kernel },
	{ "single, not asked for", { 1.0, 3.4, 3.4 }, { 2.0, 2.2, 5 }, kernel_is_not_measured },
	{ "streams by HARP, single ones not", { 1.1, 9, 9 }, { 2.3, 2.6, 5 }, streams_by_harp },
	{ "the same, each seen by the next",
	  { 1.1, 9, 9 },
	  { 2.3, 2.6, 5 },
	  streams_by_harp_at_post },
	{ "streams by the kernel, single ones not", { 3, 4, 4 }, { 1.2, 8, 9 }, streams_by_kernel },
};

int main(void)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		unsigned right = kept_seeds(cases[i].harp, cases[i].kernel, cases[i].right);

		printf("%s: right in %u of %u\n", cases[i].what, right, SEEDS);
		CHECK(right >= SEEDS * 95 / 100);
	}
	return check_done();
}
