/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_run.c - runs scenarios.
 *
 *	sim_run --seeds FROM COUNT   many; stops at the first that fails, and says how to replay it
 *	sim_run --seed N             one, with its trace; a failure says where everyone stood
 *	sim_run --twice FROM COUNT   is the same seed the same run?
 *	sim_run --print N            the scenario of a seed, as text
 *	sim_run --file PATH          a scenario from text
 *	sim_run --shrink N           a failing seed's scenario, reduced while it fails the same way:
 *	                             printed, and written to sim-N.scenario for --file
 *	sim_run --check-shrink FROM  with a planted bug: is it found, reduced to next to nothing, and
 *	                             does it fail the same way when it is read from its text?
 *	--verbose (before these)     prints every segment as it is sent and taken
 *	--plant BYTES (likewise)     damages the harness: the byte at this offset of every stream is
 *	                             taken for wrong, so that there is something to find and to shrink
 * Exit 0 when all is well.
 */
#include "sim.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_SHRINK_TRIES 4000u

static struct sim sim;
static struct scenario scenario;
static uint64_t plant_bytes; /* 1 + the offset */

/* An assertion failed, or worse: which seed was it? Written before, a handler may do little. */
static char last_words[96];
static size_t last_words_len;

static void died(int sig)
{
	if (write(STDOUT_FILENO, last_words, last_words_len) != (ssize_t)last_words_len)
		_exit(3);
	signal(sig, SIG_DFL);
	raise(sig);
}

static void prepare_last_words(uint64_t seed)
{
	last_words_len = (size_t)snprintf(last_words, sizeof(last_words),
					  "died in seed %llu\nreplay it: sim_run --seed %llu\n",
					  (unsigned long long)seed, (unsigned long long)seed);
}

static void make(uint64_t seed)
{
	prepare_last_words(seed);
	scenario_make(&scenario, seed);
	scenario.world.plant_bytes = plant_bytes;
}

static int report(bool good)
{
	printf("%s%s; %u stacks, %u connections, %u events, %llu bytes, %.6f s, %llu polls, trace "
	       "%016llx\n",
	       good ? "good" : "FAILED: ", sim.reason, scenario.stack_count, scenario.conn_count,
	       scenario.event_count, (unsigned long long)sim.bytes, (double)sim.now_ns / 1e9,
	       (unsigned long long)sim.polls, (unsigned long long)sim.trace);
	return good ? 0 : 1;
}

static int run_seed(uint64_t seed)
{
	make(seed);
	printf("seed %llu: ", (unsigned long long)seed);
	fflush(stdout);
	return report(sim_run(&sim, &scenario, true));
}

static int run_print(uint64_t seed)
{
	make(seed);
	scenario_print(&scenario, stdout);
	return 0;
}

static int run_many(uint64_t from, uint64_t count)
{
	uint64_t bytes = 0, polls = 0;

	for (uint64_t seed = from; seed < from + count; seed++) {
		make(seed);
		if (!sim_run(&sim, &scenario, false)) {
			printf("seed %llu FAILED: %s\nreplay it: sim_run --seed %llu\nreduce it: sim_run "
			       "--shrink %llu\n",
			       (unsigned long long)seed, sim.reason, (unsigned long long)seed,
			       (unsigned long long)seed);
			return 1;
		}
		bytes += sim.bytes;
		polls += sim.polls;
	}
	printf("%llu seeds from %llu: good; %llu bytes, %llu polls\n", (unsigned long long)count,
	       (unsigned long long)from, (unsigned long long)bytes, (unsigned long long)polls);
	return 0;
}

static int run_twice(uint64_t from, uint64_t count)
{
	uint64_t last = 0;

	for (uint64_t seed = from; seed < from + count; seed++) {
		uint64_t trace, polls;

		make(seed);
		if (!sim_run(&sim, &scenario, false))
			return run_seed(seed);
		trace = sim.trace;
		polls = sim.polls;
		if (!sim_run(&sim, &scenario, false) || sim.trace != trace || sim.polls != polls) {
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

static int run_file(const char *path)
{
	char why[128];
	FILE *file = fopen(path, "r");
	bool good;

	if (!file) {
		perror(path);
		return 2;
	}
	good = scenario_read(&scenario, file, why, sizeof(why));
	fclose(file);
	if (!good) {
		printf("%s: %s\n", path, why);
		return 2;
	}
	prepare_last_words(scenario.world.seed);
	return report(sim_run(&sim, &scenario, true));
}

/* ---- shrinking --------------------------------------------------------------------------------- */

/* What kind of failure: the reason without its numbers, or the signal. Shared with the child. */
struct outcome {
	char kind[SIM_REASON_MAX];
};
static struct outcome *outcome;
static char wanted[SIM_REASON_MAX];

static void kind_of(const char *reason, char *kind)
{
	for (; *reason; reason++) {
		if (*reason < '0' || *reason > '9')
			*kind++ = *reason;
	}
	*kind = 0;
}

/* In a process of its own: it may end in an assertion. */
static bool fails_as_wanted(const struct scenario *s, void *ctx)
{
	int status;
	pid_t child;

	(void)ctx;
	memset(outcome, 0, sizeof(*outcome));
	fflush(stdout);
	child = fork();
	if (child == 0) {
		signal(SIGABRT, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		alarm(20);
		if (!freopen("/dev/null", "w", stderr) || sim_run(&sim, s, false))
			_exit(0);
		kind_of(sim.reason, outcome->kind);
		_exit(1);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		perror("sim_run: fork");
		exit(2);
	}
	if (WIFSIGNALED(status))
		snprintf(outcome->kind, sizeof(outcome->kind), "signal %d", WTERMSIG(status));
	return outcome->kind[0] && (!wanted[0] || strcmp(outcome->kind, wanted) == 0);
}

/* The scenario of a failing seed, reduced: in how many runs? 0: it does not fail. */
static unsigned shrink(uint64_t seed)
{
	outcome = mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	make(seed);
	wanted[0] = 0;
	if (outcome == MAP_FAILED || !fails_as_wanted(&scenario, NULL))
		return 0;
	memcpy(wanted, outcome->kind, sizeof(wanted));
	return scenario_shrink(&scenario, fails_as_wanted, NULL, RUN_SHRINK_TRIES);
}

static int run_shrink(uint64_t seed)
{
	unsigned tries = shrink(seed);
	char path[64];
	FILE *file;

	if (tries == 0) {
		printf("seed %llu does not fail\n", (unsigned long long)seed);
		return 2;
	}
	printf("# seed %llu, reduced in %u runs; fails by:%s\n", (unsigned long long)seed, tries,
	       wanted);
	scenario_print(&scenario, stdout);
	snprintf(path, sizeof(path), "sim-%llu.scenario", (unsigned long long)seed);
	file = fopen(path, "w");
	if (!file) {
		perror(path);
		return 2;
	}
	scenario_print(&scenario, file);
	fclose(file);
	printf("# run it again: sim_run --file %s\n", path);
	return 1;
}

/* A byte that is taken for wrong needs two stacks, a listener and one connection that gets so far. */
static int run_check_shrink(uint64_t from)
{
	char why[128] = "", kind[SIM_REASON_MAX];
	uint64_t seed = from, planted = 2000;
	FILE *text = tmpfile();
	unsigned tries = 0;
	struct scenario reduced;

	plant_bytes = planted + 1;
	while (tries == 0 && seed < from + 20)
		tries = shrink(seed++);
	reduced = scenario;
	if (tries == 0 || reduced.stack_count != 2 || reduced.listen_count != 1 ||
	    reduced.conn_count != 1 || reduced.event_count != 0 ||
	    reduced.conns[0].c_bytes + reduced.conns[0].s_bytes > 2 * planted + 4) {
		printf("not reduced to one connection and no event, after %u runs:\n", tries);
		scenario_print(&reduced, stdout);
		return 1;
	}
	if (!text) {
		perror("tmpfile");
		return 2;
	}
	scenario_print(&reduced, text);
	rewind(text);
	if (!scenario_read(&scenario, text, why, sizeof(why)) ||
	    memcmp(&scenario, &reduced, sizeof(scenario)) != 0) {
		printf("read from its text it is not the same: %s\n", why);
		return 1;
	}
	fclose(text);
	if (sim_run(&sim, &scenario, false)) {
		printf("read from its text it does not fail\n");
		return 1;
	}
	kind_of(sim.reason, kind);
	printf("seed %llu, reduced in %u runs, fails by: %s\n", (unsigned long long)seed - 1, tries,
	       sim.reason);
	scenario_print(&scenario, stdout);
	return strcmp(kind, wanted) != 0;
}

int main(int argc, char **argv)
{
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
	uint64_t from = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
	uint64_t count = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;

	signal(SIGABRT, died);
	signal(SIGSEGV, died);
	if (argc == 4 && strcmp(argv[1], "--seeds") == 0)
		return run_many(from, count);
	if (argc == 4 && strcmp(argv[1], "--twice") == 0)
		return run_twice(from, count);
	if (argc == 3 && strcmp(argv[1], "--seed") == 0)
		return run_seed(from);
	if (argc == 3 && strcmp(argv[1], "--print") == 0)
		return run_print(from);
	if (argc == 3 && strcmp(argv[1], "--file") == 0)
		return run_file(argv[2]);
	if (argc == 3 && strcmp(argv[1], "--shrink") == 0)
		return run_shrink(from);
	if (argc == 3 && strcmp(argv[1], "--check-shrink") == 0)
		return run_check_shrink(from);
	fprintf(stderr,
		"usage: sim_run [--verbose] [--plant BYTES] --seeds FROM COUNT | --seed N | "
		"--twice FROM COUNT | --print N | --file PATH | --shrink N | "
		"--check-shrink FROM\n");
	return 2;
}
