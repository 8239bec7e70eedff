/* SPDX-License-Identifier: Apache-2.0 */
/* choice_world.h - two simulated ways of known costs, for who learns which is better. */
#ifndef HARP_TESTS_CHOICE_WORLD_H
#define HARP_TESTS_CHOICE_WORLD_H

#include "choice.h"

#define SEEDS 100u

/*
 * The simulation: a way takes a message when its predecessor on that way is through, for
 * fixed + per_kib * size, and hands it over latency later. Both at once: half each; on one core they
 * take turns. Messages are posted `depth` deep and are done in order. Noise is uniform of so many per cent
 * either way; now and then the scheduler takes a millisecond or some; and there are tides, in which all takes longer.
 */
struct way_cost {
	double fixed_us, per_kib_us, latency_us;
};

struct world {
	struct way_cost way[2];
	bool one_core;
	double noise;       /* 0.3: 30 % */
	double spike_share; /* of messages */
	double turn_us[2];  /* ends by that way are seen at multiples of this only; 0: at once */
	uint64_t random;
	double tide,
		tide_us; /* so many times as long, every other stretch of so long; 0: there are none */
};

struct run {
	struct choice *choice;
	struct world *world;
	unsigned depth;
	uint64_t message;
	double now_us, free_us[2];
	double done_us[PLUGIN_REQUESTS_MAX]; /* of the last messages */
	double spent_us;                     /* sum of services */
	uint64_t by[CHOICE_WAYS];
	unsigned kinds[PLUGIN_REQUESTS_MAX];
	double posted_us[PLUGIN_REQUESTS_MAX];
	uint64_t sizes[PLUGIN_REQUESTS_MAX];
	uint64_t ended; /* messages done */
};

/* Means over the seeds. */
struct outcome {
	unsigned right; /* seeds in which the best way is in use after so many messages */
	double regret;  /* time of the first 3000 against the best way's, less one */
	double later;   /* of 20000 after those */
};

struct verdict {
	unsigned best; /* mask */
	double best_us;
	bool clear; /* by more than 30 % over each other one */
};

extern const struct world textbook;

/* choice NULL: a run that says itself by what its messages go. */
struct run begin(struct choice *choice, struct world *world, unsigned depth, uint64_t seed);
/* In how many of SEEDS seeds `right` says so: of a run just begun, with a learner and a world of its own. */
unsigned seeds_where(const struct world *like, unsigned depth,
		     bool (*right)(struct run *run, uint64_t seed, const void *arg),
		     const void *arg);
/* A message, when fewer than `depth` are under way. fixed: the mask to use, 0: as the learner says. */
unsigned send_one(struct run *run, uint64_t size, unsigned fixed);
void finish(struct run *run);
/* What is best where all goes one way. */
struct verdict truth(const struct world *world, unsigned depth, uint64_t size);
/* Sends `count` messages; the share of those that are no probe which went by `best`. */
double share(struct run *run, uint64_t size, unsigned count, unsigned best);
struct outcome learn(const struct world *like, unsigned depth, uint64_t size, unsigned settle,
		     unsigned best);
/* Sizes of 8 B to 16 MiB, one at a time and in streams: what it learns, and what looking costs. */
void check_world(const char *name, const struct world *world);

#endif
