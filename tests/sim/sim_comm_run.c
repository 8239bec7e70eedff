/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_comm_run.c - runs scenarios of comms over lanes. Commands: those of runner.h, and
 *
 *	sim_comm_run --exhaustive STRIDE [N]
 *		small scenarios (or the Nth): every lane dies in every way at every STRIDEth step
 *	sim_comm_run --share --check PATH | --update PATH
 *		what a slow lane costs the others (comm_share.c)
 *	--verbose (before these)
 *		prints what happens to lanes and comms
 */
#include "comm_sim.h"

#include <stdlib.h>
#include <string.h>

static struct csim sim;
static struct comm_scenario scenario;
static uint64_t attempts, rehashes, death_count; /* of all runs */

static struct runner comm_runner;

static void make(uint64_t seed)
{
	comm_scenario_make(&scenario, seed);
	scenario.world.plant = comm_runner.plant;
}

static bool run(const void *s, bool dump, struct runner_result *result)
{
	bool good = csim_run(&sim, s, dump);

	attempts += sim.attempts;
	rehashes += sim.rehashes;
	death_count += sim.deaths;
	*result = (struct runner_result){ sim.bytes, sim.steps, sim.now_ns - sim.zero_ns };
	return good;
}

static bool is_small(void)
{
	return scenario.comm_count <= 2 && scenario.event_count == 0;
}

static struct runner comm_runner = {
	.name = "sim_comm_run",
	.prefix = "comm",
	.usage = " | --exhaustive STRIDE [N] | --share --check PATH | --share --update PATH; "
		 "before these: --verbose",
	.layout = &comm_scenario_layout,
	.scenario = &scenario,
	.plants = CSN_PLANT_KINDS - 1,
	.make = make,
	.run = run,
	.is_small = is_small,
};

/* ---- every death ----------------------------------------------------------------------------- */

static const struct {
	const char *name;
	struct csn_event event;
} deaths[] = {
	{ "reset", { .kind = CSN_RESET } },
	{ "reset, data kept", { .kind = CSN_RESET, .keep = 1 } },
	{ "closed", { .kind = CSN_FIN } },
	{ "closed, data kept", { .kind = CSN_FIN, .keep = 1 } },
	{ "silent", { .kind = CSN_SILENT } },
	{ "silent one way", { .kind = CSN_SILENT, .one_way = 1 } },
	{ "silent for a while", { .kind = CSN_SILENT, .duration_ns = 300 * CSIM_MS } },
};
#define DEATHS (sizeof(deaths) / sizeof(deaths[0]))

static bool run_death(unsigned which, unsigned lane, unsigned death, uint64_t step,
		      uint64_t backoff_ns)
{
	char path[64];
	FILE *file;

	comm_scenario_make_small(&scenario, which);
	scenario.events[0] = deaths[death].event;
	scenario.events[0].lane = lane;
	scenario.events[0].step = step;
	scenario.event_count = 1;
	scenario.comms[0].backoff_ns = backoff_ns;
	runner_reset();
	if (csim_run(&sim, &scenario, false))
		return true;
	printf("small scenario %u, lane %u %s at step %llu: FAILED: %s\n", which, lane,
	       deaths[death].name, (unsigned long long)step, runner_reason());
	snprintf(path, sizeof(path), "comm-small-%u.scenario", which);
	file = fopen(path, "w");
	if (file) {
		elements_print(&comm_scenario_layout, &scenario, file);
		fclose(file);
		printf("replay it: sim_comm_run --file %s\n", path);
	}
	return false;
}

static int run_exhaustive(uint64_t stride, unsigned first, unsigned last)
{
	for (unsigned which = first; which <= last; which++) {
		uint64_t steps, runs = 0;
		unsigned lanes;

		comm_scenario_make_small(&scenario, which);
		runner_reset();
		if (!csim_run(&sim, &scenario, true)) {
			printf("small scenario %u FAILED without any death: %s\n", which,
			       runner_reason());
			return 1;
		}
		steps = sim.steps;
		lanes = scenario.lane_count;
		for (unsigned lane = 0; lane < lanes; lane++) {
			for (unsigned death = 0; death < DEATHS; death++) {
				for (uint64_t step = 1 + (lane * DEATHS + death) % stride;
				     step <= steps; step += stride, runs++) {
					if (!run_death(which, lane, death, step,
						       runs % 2 ? 100 * CSIM_MS : CSIM_MS / 10))
						return 1;
				}
			}
		}
		printf("small scenario %u: %u lanes, %llu steps: %llu deaths: good\n", which, lanes,
		       (unsigned long long)steps, (unsigned long long)runs);
	}
	return 0;
}

int main(int argc, char **argv)
{
	int rc;

	if (argc > 1 && strcmp(argv[1], "--verbose") == 0) {
		sim.verbose = true;
		argc--;
		argv++;
	}
	runner_begin(&comm_runner);
	if ((argc == 3 || argc == 4) && strcmp(argv[1], "--exhaustive") == 0) {
		uint64_t stride = strtoull(argv[2], NULL, 0);
		unsigned only = argc == 4 ? (unsigned)strtoul(argv[3], NULL, 0) : 0;
		unsigned last = argc == 4 ? only : COMM_SCENARIO_SMALL - 1;

		if (stride && last < COMM_SCENARIO_SMALL)
			return run_exhaustive(stride, only, last);
	}
	if (argc == 4 && strcmp(argv[1], "--share") == 0 &&
	    (strcmp(argv[2], "--check") == 0 || strcmp(argv[2], "--update") == 0))
		return comm_share(argv[3], strcmp(argv[2], "--update") == 0);
	rc = runner_command(argc, argv);
	if (rc == 0 && strcmp(argv[1], "--seeds") == 0)
		printf("reconnect: %llu attempts, %llu of them rehashes; %llu lanes lost\n",
		       (unsigned long long)attempts, (unsigned long long)rehashes,
		       (unsigned long long)death_count);
	return rc;
}
