/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_lanes.c - comms of several lanes over joined fake ones: random conversations while lanes die and join, in one
 * thread and in several. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "check.h"
#include "double_env.h"
#include "talk.h"

static unsigned talk_live(struct talk *t, uint32_t *live)
{
	*live = 0;
	for (unsigned i = 0; i < t->lanes; i++) {
		const struct fake_pair *pair = &t->pairs[i];

		if (!pair->lanes[0].closed && !pair->lanes[1].closed &&
		    !pair->lanes[0].lane.error && !pair->lanes[1].lane.error && !pair->frozen)
			*live |= 1u << i;
	}
	return (unsigned)__builtin_popcount(*live);
}

/* A lane breaks in the middle of anything, another one comes; one at least goes on. */
static void lanes_come_and_go(struct talk *t)
{
	struct rng *rng = &t->pairs[0].rng;
	uint32_t live;
	unsigned count = talk_live(t, &live), victim;

	if (rng_below(rng, 60))
		return;
	if (count > 1 && (t->lanes == COMM_LANES_MAX || rng_below(rng, 2))) {
		do {
			victim = rng_below(rng, t->lanes);
		} while (!(live & (1u << victim)));
		if (rng_below(rng, 2))
			fake_break(&t->pairs[victim]);
		else
			fake_reset(&t->pairs[victim].lanes[rng_below(rng, 2)]);
	} else if (t->lanes < COMM_LANES_MAX) {
		talk_attach(t, t->lanes, rng_below(rng, 3) ? LANE_HARP : LANE_KERNEL,
			    8 + rng_below(rng, rng_below(rng, 2) ? 300 : 100000));
	}
}

static void conversations(uint64_t seeds, void (*happens)(struct talk *t))
{
	/* From a quick machine to one that has been away for longer than lanes are given. */
	static const uint64_t look_ns[] = { 50, 1000, 20000, 300000 };
	uint64_t lanes_used = 0;

	env_warns = 0;
	for (uint64_t i = 0; i < seeds && !check_failures; i++) {
		struct comm_lane_view views[COMM_LANES_MAX];
		struct talk t;

		talk_seed = i;
		talk_look_ns = look_ns[i % 4];
		talk_open(&t, 120, 2 + (unsigned)(i % 5));
		t.happens = happens;
		talk_run(&t);
		if (check_failures) { /* and what is left of it is of no use */
			fprintf(stderr, "seed %" PRIu64 "\n", talk_seed);
			exit(check_done());
		}
		for (unsigned n = comm_lane_views(t.send, views); n-- > 0;)
			lanes_used += views[n].counts.chunks_out > 0;
		talk_close(&t);
		for (unsigned n = 0; n < t.lanes; n++)
			CHECK(t.pairs[n].lanes[0].closed && t.pairs[n].lanes[1].closed);
		talk_free(&t);
		if (check_failures)
			fprintf(stderr, "seed %" PRIu64 "\n", talk_seed);
	}
	CHECK_EQ(env_warns, 0);
	CHECK(lanes_used > seeds * 2);
	talk_look_ns = 1000;
}

/* ---- threads: a driver for each lane, threads that turn them, a thread for each end ------------- */

enum { THREAD_MESSAGES = 600, THREAD_LANES = 4 };

struct threads {
	struct talk t;
	atomic_bool stop;
};

static void *thread_turns(void *arg)
{
	struct threads *all = arg;

	while (!atomic_load(&all->stop)) {
		for (unsigned i = 0; i < THREAD_LANES; i++)
			driver_turn(&all->t.pairs[i].driver, driver_clock_ns());
		sched_yield();
	}
	return NULL;
}

static void *thread_receiver(void *arg)
{
	struct talk *t = &((struct threads *)arg)->t;
	struct request *requests[2];

	/* Two posted at a time. */
	for (uint64_t m = 0; m <= THREAD_MESSAGES && !check_failures; m++) {
		uint64_t before = m - 1;
		unsigned wrong = 0;
		size_t size = 0;
		int done = 0;

		if (m < THREAD_MESSAGES)
			CHECK_EQ(comm_post(t->recv, t->rx[m % 2], t->sizes[m] + 8, 0, NULL,
					   &requests[m % 2]),
				 0);
		while (m && !done && !check_failures) {
			CHECK_EQ(comm_test(requests[before % 2], &done, &size), 0);
			if (!done)
				sched_yield();
		}
		if (!m)
			continue;
		CHECK_EQ(size, t->sizes[before]);
		for (size_t i = 0; i < size; i++)
			wrong += t->rx[before % 2][i] != talk_pattern(before, i);
		CHECK_EQ(wrong, 0);
	}
	return NULL;
}

static void test_threads(void)
{
	static struct threads all;
	pthread_t turns[2], sender, receiver;

	talk_seed = 3;
	talk_look_ns = 0;
	talk_open(&all.t, THREAD_MESSAGES, 1);
	comm_close(all.t.send, true);
	comm_close(all.t.recv, true);
	fake_pair_free(&all.t.pairs[0]);
	fake_pair_init(&all.t.pairs[0], 1, 100000);
	env_warns = 0;
	talk_comms(&all.t, &(struct comm_options){ .several = true, .eager_bytes = 65536 });
	for (unsigned i = 1; i < THREAD_LANES; i++)
		talk_attach(&all.t, i, LANE_HARP, 100000);
	for (int i = 0; i < 2; i++)
		pthread_create(&turns[i], NULL, thread_turns, &all);
	pthread_create(&sender, NULL, talk_sender, &all.t);
	pthread_create(&receiver, NULL, thread_receiver, &all);
	pthread_join(sender, NULL);
	pthread_join(receiver, NULL);
	comm_close(all.t.send, false);
	comm_close(all.t.recv, false);
	atomic_store(&all.stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(turns[i], NULL);
	talk_free(&all.t);
	CHECK_EQ(env_warns, 0);
}

int main(int argc, char **argv)
{
	uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 0) : 200;

	conversations(seeds, NULL);
	conversations(seeds, lanes_come_and_go);
	test_threads();
	return check_done();
}
