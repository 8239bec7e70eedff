/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner.h - the commands of sim_run, sim_comm_run and sim_coll_run.
 *
 *	--seeds FROM COUNT   runs many; stops at the first failure and prints how to replay it
 *	--seed N             runs one and prints its trace; a failure prints the state of all parts
 *	--twice FROM COUNT   runs each seed twice and compares the traces
 *	--print N            prints the scenario of a seed
 *	--file PATH          runs a scenario from its text
 *	--shrink N           shrinks a failing seed's scenario while it fails alike, prints it, and
 *	                     writes it to NAME-N.scenario for --file
 *	--check-plant FROM   plants each bug: a seed must find it, and its shrunk scenario must be
 *	                     small and must still fail when it is parsed from its text
 * Exit status 0: success.
 */
#ifndef HARP_TESTS_RUNNER_H
#define HARP_TESTS_RUNNER_H

#include <stdarg.h>

#include "elements.h"

#define RUNNER_REASON_MAX 240

static inline uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns < b_ns ? a_ns : b_ns;
}
static inline uint64_t later(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns > b_ns ? a_ns : b_ns;
}

struct runner_result {
	uint64_t bytes, polls, at_ns; /* delivered, polls made, end of the run */
};

/* ---- for the code of a run ---- */
/* Clears the result of the last run. */
void runner_reset(void);
/* Marks the run as failed. The first reason counts. Returns false. */
bool runner_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool runner_fail_args(const char *format, va_list args);
bool runner_has_failed(void);
const char *runner_reason(void);
/* Adds a value to the hash of everything that happened. */
void runner_trace(uint64_t value);

/* ---- for main() ---- */

struct runner {
	const char *name;   /* the program */
	const char *prefix; /* of the files that it writes */
	const char *usage;  /* of its further commands */
	const struct scn_layout *layout;
	void *scenario; /* generated, parsed and shrunk here */
	uint64_t plant; /* the bug that make() plants; 0: none */
	uint64_t plants;
	void (*make)(uint64_t seed);
	/* dump: print the state of all parts on a failure. */
	bool (*run)(const void *scenario, bool dump, struct runner_result *result);
	/* True if the scenario has no more than a planted bug needs. */
	bool (*is_small)(void);
};

/* Call first. Installs handlers that print the number of the seed that crashes. */
void runner_begin(struct runner *runner);
/* Runs a command above. Returns the exit status for main(). */
int runner_command(int argc, char **argv);

#endif
