/* SPDX-License-Identifier: Apache-2.0 */
/* runner.c - see runner.h. */
#include "runner.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_SHRINK_TRIES 4000u
#define RUN_SHRINK_S 20u /* timeout of one run */

static struct runner *runner;

/* Names the seed that crashes. Written in advance, because a signal handler may do little. */
static char crash_text[160];
static size_t crash_text_len;

static void handle_crash(int sig)
{
	if (write(STDOUT_FILENO, crash_text, crash_text_len) != (ssize_t)crash_text_len)
		_exit(3);
	signal(sig, SIG_DFL);
	raise(sig);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static char reason[RUNNER_REASON_MAX];
static uint64_t trace;

void runner_reset(void)
{
	reason[0] = '\0';
	trace = 0xcbf29ce484222325ull;
}

bool runner_fail_args(const char *format, va_list args)
{
	if (!reason[0])
		vsnprintf(reason, sizeof(reason), format, args);
	return false;
}

bool runner_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)runner_fail_args(format, args);
	va_end(args);
	return false;
}

bool runner_has_failed(void)
{
	return reason[0] != '\0';
}

const char *runner_reason(void)
{
	return reason;
}

void runner_trace(uint64_t value)
{
	trace = (trace ^ value) * 0x100000001b3ull;
	trace ^= trace >> 29;
}

static bool run(const void *scenario, bool dump, struct runner_result *result)
{
	runner_reset();
	return runner->run(scenario, dump, result) && !runner_has_failed();
}

/* ---- commands -------------------------------------------------------------------------------- */

void runner_begin(struct runner *r)
{
	runner = r;
	signal(SIGABRT, handle_crash);
	signal(SIGSEGV, handle_crash);
}

static void make(uint64_t seed)
{
	crash_text_len =
		(size_t)snprintf(crash_text, sizeof(crash_text),
				 "crashed in seed %llu\nreplay it: %s --seed %llu\n",
				 (unsigned long long)seed, runner->name, (unsigned long long)seed);
	runner->make(seed);
}

/* Runs runner->scenario and prints the result. */
static int run_report(const char *what)
{
	struct runner_result result = { 0 };
	const struct scn_layout *layout = runner->layout;
	bool good;

	printf("%s: ", what);
	fflush(stdout);
	good = run(runner->scenario, true, &result);
	printf("%s%s; ", good ? "good" : "FAILED: ", reason);
	for (unsigned k = 0; k < layout->kind_count; k++) {
		if (layout->kinds[k].count_at)
			printf("%u %ss, ", *scn_count(runner->scenario, &layout->kinds[k]),
			       layout->kinds[k].name);
	}
	printf("%llu bytes, %.6f s, %llu polls, trace %016llx\n", (unsigned long long)result.bytes,
	       (double)result.at_ns / 1e9, (unsigned long long)result.polls,
	       (unsigned long long)trace);
	return good ? 0 : 1;
}

static int run_seed(uint64_t seed)
{
	char what[32];

	make(seed);
	snprintf(what, sizeof(what), "seed %llu", (unsigned long long)seed);
	return run_report(what);
}

static int run_print(uint64_t seed)
{
	make(seed);
	elements_print(runner->layout, runner->scenario, stdout);
	return 0;
}

static int run_many(uint64_t from, uint64_t count)
{
	uint64_t bytes = 0, polls = 0;

	for (uint64_t seed = from; seed < from + count; seed++) {
		struct runner_result result = { 0 };

		make(seed);
		if (!run(runner->scenario, false, &result)) {
			printf("seed %llu FAILED: %s\nreplay it: %s --seed %llu\nreduce it: %s "
			       "--shrink %llu\n",
			       (unsigned long long)seed, reason, runner->name,
			       (unsigned long long)seed, runner->name, (unsigned long long)seed);
			return 1;
		}
		bytes += result.bytes;
		polls += result.polls;
	}
	printf("%llu seeds from %llu: good; %llu bytes, %llu polls\n", (unsigned long long)count,
	       (unsigned long long)from, (unsigned long long)bytes, (unsigned long long)polls);
	return 0;
}

static int run_twice(uint64_t from, uint64_t count)
{
	uint64_t last = 0;

	for (uint64_t seed = from; seed < from + count; seed++) {
		struct runner_result first = { 0 }, second = { 0 };
		uint64_t first_trace;

		make(seed);
		if (!run(runner->scenario, false, &first))
			return run_seed(seed);
		first_trace = trace;
		if (!run(runner->scenario, false, &second) || trace != first_trace ||
		    second.polls != first.polls) {
			printf("seed %llu ran differently the second time: trace %016llx, %llu "
			       "polls, then %016llx, %llu polls %s\n",
			       (unsigned long long)seed, (unsigned long long)first_trace,
			       (unsigned long long)first.polls, (unsigned long long)trace,
			       (unsigned long long)second.polls, reason);
			return 1;
		}
		if (trace == last) {
			printf("seeds %llu and %llu have the same trace\n",
			       (unsigned long long)seed - 1, (unsigned long long)seed);
			return 1;
		}
		last = trace;
	}
	printf("%llu seeds from %llu: two runs of each have the same trace\n",
	       (unsigned long long)count, (unsigned long long)from);
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
	good = elements_read(runner->layout, runner->scenario, file, why, sizeof(why));
	fclose(file);
	if (!good) {
		printf("%s: %s\n", path, why);
		return 2;
	}
	return run_report(path);
}

/* ---- shrinking ------------------------------------------------------------------------------- */

/* The reason of a failure without its numbers, or the signal. Shared with the child. */
struct outcome {
	char kind[RUNNER_REASON_MAX];
};
static struct outcome *outcome;
static char failure_kind[RUNNER_REASON_MAX];

static void write_kind(char *kind)
{
	for (const char *at = reason; *at; at++) {
		if (*at < '0' || *at > '9')
			*kind++ = *at;
	}
	*kind = 0;
}

/* Runs in a child process, because the run may end in an assertion. */
static bool fails_alike(const void *s)
{
	int status;
	pid_t child;

	memset(outcome, 0, sizeof(*outcome));
	fflush(stdout);
	child = fork();
	if (child == 0) {
		struct runner_result result = { 0 };

		signal(SIGABRT, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		alarm(RUN_SHRINK_S);
		if (!freopen("/dev/null", "w", stderr) || run(s, false, &result))
			_exit(0);
		write_kind(outcome->kind);
		_exit(1);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		perror("fork");
		exit(2);
	}
	if (WIFSIGNALED(status))
		snprintf(outcome->kind, sizeof(outcome->kind), "signal %d", WTERMSIG(status));
	return outcome->kind[0] && (!failure_kind[0] || strcmp(outcome->kind, failure_kind) == 0);
}

/* Shrinks the scenario of a failing seed. Returns the number of runs; 0: it does not fail. */
static unsigned shrink(uint64_t seed)
{
	outcome = mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	make(seed);
	failure_kind[0] = 0;
	if (outcome == MAP_FAILED || !fails_alike(runner->scenario))
		return 0;
	memcpy(failure_kind, outcome->kind, sizeof(failure_kind));
	return elements_shrink(runner->layout, runner->scenario, fails_alike, RUN_SHRINK_TRIES);
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
	printf("# seed %llu, reduced in %u runs; fails with:%s\n", (unsigned long long)seed, tries,
	       failure_kind);
	elements_print(runner->layout, runner->scenario, stdout);
	snprintf(path, sizeof(path), "%s-%llu.scenario", runner->prefix, (unsigned long long)seed);
	file = fopen(path, "w");
	if (!file) {
		perror(path);
		return 2;
	}
	elements_print(runner->layout, runner->scenario, file);
	fclose(file);
	printf("# replay it: %s --file %s\n", runner->name, path);
	return 1;
}

/* Checks that the scenario, parsed from its text, fails the same way. */
static bool check_text(void)
{
	struct runner_result result = { 0 };
	char why[128] = "", kind[RUNNER_REASON_MAX];
	size_t size = runner->layout->size;
	void *reduced = malloc(size);
	FILE *text = tmpfile();
	bool same;

	if (!text || !reduced)
		abort();
	memcpy(reduced, runner->scenario, size);
	elements_print(runner->layout, reduced, text);
	rewind(text);
	same = elements_read(runner->layout, runner->scenario, text, why, sizeof(why)) &&
	       memcmp(runner->scenario, reduced, size) == 0;
	fclose(text);
	free(reduced);
	if (!same) {
		printf("the scenario parsed from its text differs: %s\n", why);
		return false;
	}
	if (run(runner->scenario, false, &result)) {
		printf("the scenario parsed from its text does not fail\n");
		return false;
	}
	write_kind(kind);
	printf("fails with: %s\n", reason);
	elements_print(runner->layout, runner->scenario, stdout);
	return strcmp(kind, failure_kind) == 0;
}

/* Checks that one of several seeds finds the bug and is reduced to a small scenario. */
static bool check_plant(uint64_t from)
{
	for (uint64_t seed = from; seed < from + 50; seed++) {
		unsigned tries = shrink(seed);

		if (!tries)
			continue; /* this seed does not find it */
		printf("bug %llu, seed %llu, reduced in %u runs, ",
		       (unsigned long long)runner->plant, (unsigned long long)seed, tries);
		if (!check_text())
			return false;
		if (runner->is_small())
			return true;
	}
	printf("no seed finds bug %llu, or the scenario stays too large\n",
	       (unsigned long long)runner->plant);
	return false;
}

static int run_check_plant(uint64_t from)
{
	for (runner->plant = 1; runner->plant <= runner->plants; runner->plant++)
		if (!check_plant(from))
			return 1;
	return 0;
}

int runner_command(int argc, char **argv)
{
	uint64_t from = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
	uint64_t count = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;

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
	if (argc == 3 && strcmp(argv[1], "--check-plant") == 0)
		return run_check_plant(from);
	fprintf(stderr,
		"usage: %s --seeds FROM COUNT | --seed N | --twice FROM COUNT | --print N | --file PATH | "
		"--shrink N | --check-plant FROM%s\n",
		runner->name, runner->usage);
	return 2;
}
