/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_run.c - runs scenarios of stacks on wires. runner.h has its commands; and
 *
 *	sim_run --check-shrink FROM  with a planted bug: is it found, reduced to next to nothing, and
 *	                             does it fail the same way when it is read from its text?
 *	--verbose (before these)     prints every segment as it is sent and taken
 *	--plant BYTES (likewise)     damages the harness: the byte at this offset of every stream is
 *	                             taken for wrong, so that there is something to find and to shrink
 */
#include "runner.h"
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static struct sim sim;
static struct scenario scenario;
static uint64_t plant_bytes; /* 1 + the offset */

static void make(uint64_t seed)
{
	scenario_make(&scenario, seed);
	scenario.world.plant_bytes = plant_bytes;
}

static bool run(const void *s, bool dump, struct runner_result *result)
{
	bool good = sim_run(&sim, s, dump);

	*result = (struct runner_result){ sim.reason, sim.trace, sim.bytes, sim.polls, sim.now_ns };
	return good;
}

static const struct runner sim_runner = {
	.name = "sim_run",
	.prefix = "sim",
	.layout = &scenario_layout,
	.scenario = &scenario,
	.make = make,
	.run = run,
};

/* A byte that is taken for wrong needs two stacks, a listener and one connection that gets so far. */
static int run_check_shrink(uint64_t from)
{
	uint64_t seed = from, planted = 2000;
	unsigned tries = 0;

	plant_bytes = planted + 1;
	while (tries == 0 && seed < from + 20)
		tries = runner_shrink(seed++);
	if (tries == 0 || scenario.stack_count != 2 || scenario.listen_count != 1 ||
	    scenario.conn_count != 1 || scenario.event_count != 0 ||
	    scenario.conns[0].c_bytes + scenario.conns[0].s_bytes > 2 * planted + 4) {
		printf("not reduced to one connection and no event, after %u runs:\n", tries);
		elements_print(&scenario_layout, &scenario, stdout);
		return 1;
	}
	printf("seed %llu, reduced in %u runs, ", (unsigned long long)seed - 1, tries);
	return !runner_check_text();
}

int main(int argc, char **argv)
{
	int rc;

	if (argc > 1 && strcmp(argv[1], "--verbose") == 0) {
		sim.verbose = true;
		argc--;
		argv++;
	}
	if (argc > 2 && strcmp(argv[1], "--plant") == 0) {
		plant_bytes = 1 + strtoull(argv[2], NULL, 0);
		argc -= 2;
		argv += 2;
	}
	runner_begin(&sim_runner);
	if (argc == 3 && strcmp(argv[1], "--check-shrink") == 0)
		return run_check_shrink(strtoull(argv[2], NULL, 0));
	rc = runner_command(argc, argv);
	if (rc < 0)
		fprintf(stderr,
			"usage: sim_run [--verbose] [--plant BYTES] --seeds FROM COUNT | --seed N | "
			"--twice FROM COUNT | --print N | --file PATH | --shrink N | "
			"--check-shrink FROM\n");
	return rc < 0 ? 2 : rc;
}
