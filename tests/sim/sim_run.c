/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_run.c - runs seeds: sim_run --seed N (one, with its trace), --seeds FROM COUNT, --twice N (is the
 * same seed the same run?). Exit 0 when all is well; 1 names the first seed that failed.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sim_limits limits = { .loss_ppm_max = 50000 };
static struct sim sim;

static int run_one(uint64_t seed)
{
	bool good;

	limits.dump = true;
	good = sim_run(&sim, seed, &limits);

	printf("seed %llu: %s%s; %u connections, %llu bytes, %.6f s, %llu steps, trace %016llx\n",
	       (unsigned long long)seed, good ? "good" : "FAILED: ", sim.reason, sim.conns,
	       (unsigned long long)sim.bytes, (double)sim.now_ns / 1e9,
	       (unsigned long long)sim.steps, (unsigned long long)sim.trace);
	return good ? 0 : 1;
}

static int run_many(uint64_t from, uint64_t count)
{
	uint64_t bytes = 0, steps = 0;

	for (uint64_t seed = from; seed < from + count; seed++) {
		if (!sim_run(&sim, seed, &limits)) {
			printf("seed %llu FAILED: %s\nreplay it: sim_run --seed %llu\n",
			       (unsigned long long)seed, sim.reason, (unsigned long long)seed);
			return 1;
		}
		bytes += sim.bytes;
		steps += sim.steps;
	}
	printf("%llu seeds from %llu: good; %llu bytes, %llu steps\n", (unsigned long long)count,
	       (unsigned long long)from, (unsigned long long)bytes, (unsigned long long)steps);
	return 0;
}

static int run_twice(uint64_t from, uint64_t count)
{
	uint64_t last = 0;

	for (uint64_t seed = from; seed < from + count; seed++) {
		uint64_t trace, steps;

		if (!sim_run(&sim, seed, &limits))
			return run_one(seed);
		trace = sim.trace;
		steps = sim.steps;
		if (!sim_run(&sim, seed, &limits) || sim.trace != trace || sim.steps != steps) {
			printf("seed %llu ran differently the second time\n",
			       (unsigned long long)seed);
			return 1;
		}
		if (trace == last) {
			printf("seeds %llu and %llu left the same trace\n",
			       (unsigned long long)seed - 1, (unsigned long long)seed);
			return 1;
		}
		last = trace;
	}
	printf("%llu seeds from %llu: the same trace twice each\n", (unsigned long long)count,
	       (unsigned long long)from);
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t from = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
	uint64_t count = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;

	if (argc == 3 && strcmp(argv[1], "--seed") == 0)
		return run_one(from);
	if (argc == 4 && strcmp(argv[1], "--seeds") == 0)
		return run_many(from, count);
	if (argc == 4 && strcmp(argv[1], "--twice") == 0)
		return run_twice(from, count);
	fprintf(stderr, "usage: sim_run --seed N | --seeds FROM COUNT | --twice FROM COUNT\n");
	return 2;
}
