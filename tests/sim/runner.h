/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner.h - what sim_run and sim_comm_run share: seeds in numbers, replay, text, reducing what fails.
 *
 *	--seeds FROM COUNT   many; stops at the first that fails, and says how to replay it
 *	--seed N             one, with its trace; a failure prints the state of all parts
 *	--twice FROM COUNT   is the same seed the same run?
 *	--print N            the scenario of a seed, as text
 *	--file PATH          a scenario from text
 *	--shrink N           a failing seed's scenario, reduced while it fails the same way: printed, and
 *	                     written to NAME-N.scenario for --file
 * Exit 0 when all is well.
 */
#ifndef HARP_TESTS_RUNNER_H
#define HARP_TESTS_RUNNER_H

#include "elements.h"

#define RUNNER_REASON_MAX 240

struct runner_result {
	const char *reason;           /* of a failure */
	uint64_t trace;               /* hash of everything that happened */
	uint64_t bytes, polls, at_ns; /* delivered, taken, when it ended */
};

struct runner {
	const char *name;   /* the program, as it is called */
	const char *prefix; /* of files that it writes */
	const struct scn_layout *layout;
	void *scenario; /* made, read and reduced here */
	void (*make)(uint64_t seed);
	/* dump: a failure prints the state of all parts, on stdout. */
	bool (*run)(const void *scenario, bool dump, struct runner_result *result);
};

/* Ends the process with 3 and the seed's number when it dies of a signal. */
void runner_begin(const struct runner *runner);
/* One of the commands above; -1: it is none. */
int runner_command(int argc, char **argv);
int runner_seed(uint64_t seed);
/* Runs the scenario as it lies in runner->scenario. `what` names it. */
int runner_report(const char *what);
/* The scenario of a failing seed, reduced: in how many runs? 0: it does not fail. */
unsigned runner_shrink(uint64_t seed);
/* Does the scenario, read again from its text, fail the same way? Says why not. */
bool runner_check_text(void);

#endif
