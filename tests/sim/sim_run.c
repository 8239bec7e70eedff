/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_run.c - runs scenarios of stacks on wires. Commands: those of runner.h, and
 *
 *	--verbose (before these)     prints every segment when it is sent or received
 */
#include "runner.h"
#include "sim.h"

#include <string.h>

static struct sim sim;
static struct scenario scenario;

static struct runner sim_runner;

/* The planted bug: the check treats the byte at this offset of every stream as wrong. */
#define PLANT_OFFSET 2000u

static void make(uint64_t seed)
{
	scenario_make(&scenario, seed);
	scenario.world.plant_bytes = sim_runner.plant ? 1 + PLANT_OFFSET : 0;
}

static bool run(const void *s, bool dump, struct runner_result *result)
{
	bool good = sim_run(&sim, s, dump);

	*result = (struct runner_result){ sim.bytes, sim.polls, sim.now_ns };
	return good;
}

/* The bug needs two stacks, a listener and one connection that transfers that many bytes. */
static bool is_small(void)
{
	return scenario.stack_count == 2 && scenario.listen_count == 1 &&
	       scenario.conn_count == 1 && scenario.event_count == 0 &&
	       scenario.conns[0].side[0].bytes + scenario.conns[0].side[1].bytes <=
		       2 * PLANT_OFFSET + 4;
}

static struct runner sim_runner = {
	.name = "sim_run",
	.prefix = "sim",
	.usage = "; before these: --verbose",
	.layout = &scenario_layout,
	.scenario = &scenario,
	.plants = 1,
	.make = make,
	.run = run,
	.is_small = is_small,
};

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--verbose") == 0) {
		sim.verbose = true;
		argc--;
		argv++;
	}
	runner_begin(&sim_runner);
	return runner_command(argc, argv);
}
