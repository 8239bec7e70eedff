/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner.h - the commands of sim_run, sim_comm_run and sim_coll_run.
 *
 *	--seeds FROM COUNT   many; stops at the first that fails, and says how to replay it
 *	--seed N             one, with its trace; a failure prints the state of all parts
 *	--twice FROM COUNT   is the same seed the same run?
 *	--print N            the scenario of a seed, as text
 *	--file PATH          a scenario from text
 *	--shrink N           a failing seed's scenario, reduced while it fails the same way: printed, and
 *	                     written to NAME-N.scenario for --file
 *	--check-plant FROM   planted bugs: is each found by a seed, reduced to what it needs, and found
 *	                     again when the scenario is read from its text?
 * Exit 0 when all is well.
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
	uint64_t bytes, polls, at_ns; /* delivered, taken, when it ended */
};

/* ---- for the code of a run ---- */
/* Forgets the run before. */
void runner_run_begins(void);
/* The run has failed; the first reason counts. False. */
bool runner_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool runner_fail_args(const char *format, va_list args);
bool runner_has_failed(void);
const char *runner_reason(void);
/* Into the hash of everything that happened. */
void runner_trace(uint64_t value);

/* ---- for main() ---- */

struct runner {
	const char *name;   /* the program, as it is called */
	const char *prefix; /* of files that it writes */
	const char *usage;  /* of its own commands */
	const struct scn_layout *layout;
	void *scenario; /* made, read and reduced here */
	uint64_t plant; /* the bug that make() plants; 0: none */
	uint64_t plants;
	void (*make)(uint64_t seed);
	/* dump: a failure prints the state of all parts on stdout. */
	bool (*run)(const void *scenario, bool dump, struct runner_result *result);
	/* A planted bug needs no more than this scenario has. */
	bool (*is_small)(void);
};

/* Before anything else: ends the process with 3 and the seed's number when it dies of a signal. */
void runner_begin(struct runner *runner);
/* One of the commands above; what main() returns. */
int runner_command(int argc, char **argv);

#endif
