/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h - TEST(name) { ... } defines a test. A program runs all of its tests, or only those named
 * on its command line, and exits 0 (passed), 1 (failed) or 77 (skipped, meson's convention). A
 * failed check prints its location and both values; the test continues, so one run shows all
 * failures.
 */
#ifndef HARP_TESTS_CHECK_H
#define HARP_TESTS_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Test doubles have the parameters of the functions that they replace. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define CHECK_SKIP 77

#ifndef CHECK_FAILURES_MAX
#define CHECK_FAILURES_MAX 50u
#endif

/* Shared by all files of a program. */
__attribute__((weak)) unsigned check_failures;

/* Aborts a test that would otherwise loop forever after a failure. */
static inline void check_failed(void)
{
	if (++check_failures < CHECK_FAILURES_MAX)
		return;
	fprintf(stderr, "%u checks failed: too many\n", check_failures);
	abort();
}

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			check_failed();                                                            \
		}                                                                                  \
	} while (0)

/* Compares integers of up to 64 bits: the actual value, then the expected one. */
#define CHECK_EQ(got, want)                                                                        \
	do {                                                                                       \
		int64_t check_got = (int64_t)(got), check_want = (int64_t)(want);                  \
		if (check_got != check_want) {                                                     \
			fprintf(stderr,                                                            \
				"%s:%d: %s is %" PRId64 " (0x%" PRIx64 "), not %s = %" PRId64      \
				" (0x%" PRIx64 ")\n",                                              \
				__FILE__, __LINE__, #got, check_got, (uint64_t)check_got, #want,   \
				check_want, (uint64_t)check_want);                                 \
			check_failed();                                                            \
		}                                                                                  \
	} while (0)

#define CHECK_STR(got, want)                                                                       \
	do {                                                                                       \
		const char *check_got = (got), *check_want = (want);                               \
		if (strcmp(check_got, check_want) != 0) {                                          \
			fprintf(stderr, "%s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__,   \
				#got, check_got, check_want);                                      \
			check_failed();                                                            \
		}                                                                                  \
	} while (0)

#define CHECK_MEM(got, want, len)                                                                  \
	do {                                                                                       \
		if (memcmp((got), (want), (len)) != 0) {                                           \
			fprintf(stderr, "%s:%d: %s differs from %s\n", __FILE__, __LINE__, #got,   \
				#want);                                                            \
			check_failed();                                                            \
		}                                                                                  \
	} while (0)

/* Returns the exit status of a program that cannot run on this host. */
static inline int check_skip(const char *why)
{
	fprintf(stderr, "skipped: %s\n", why);
	fflush(stderr);
	return CHECK_SKIP;
}

struct check_test {
	const char *name;
	void (*run)(void);
	struct check_test *next;
};

/* All tests of a program, in the order of definition. */
__attribute__((weak)) struct check_test *check_tests, **check_last;

static inline void check_add(struct check_test *test)
{
	*(check_last ? check_last : &check_tests) = test;
	check_last = &test->next;
}

#define TEST(test)                                                                                 \
	static void test_##test(void);                                                             \
	__attribute__((constructor)) static void check_add_##test(void)                            \
	{                                                                                          \
		static struct check_test entry = { #test, test_##test, NULL };                     \
                                                                                                   \
		check_add(&entry);                                                                 \
	}                                                                                          \
	static void test_##test(void)

/* Called before and after each test. */
__attribute__((weak)) void check_before_each(void);
__attribute__((weak)) void check_after_each(void);
#define BEFORE_EACH(statement)                                                                     \
	void check_before_each(void)                                                               \
	{                                                                                          \
		statement;                                                                         \
	}
#define AFTER_EACH(statement)                                                                      \
	void check_after_each(void)                                                                \
	{                                                                                          \
		statement;                                                                         \
	}

/* Runs the test with this name; NULL: all tests. */
static inline void check_run_named(const char *name)
{
	unsigned count = 0;

	for (const struct check_test *test = check_tests; test; test = test->next) {
		unsigned before = check_failures;

		if (name && strcmp(name, test->name) != 0)
			continue;
		count++;
		if (check_before_each)
			check_before_each();
		test->run();
		if (check_after_each)
			check_after_each();
		if (check_failures != before)
			fprintf(stderr, "failed: %s\n", test->name);
	}
	if (count == 0) {
		fprintf(stderr, "no test: %s\n", name ? name : "the program defines none");
		check_failed();
	}
}

static inline void check_run(void)
{
	check_run_named(NULL);
}

/* Returns the program's exit status. */
static inline int check_done(void)
{
	if (check_failures)
		fprintf(stderr, "%u checks failed\n", check_failures);
	return check_failures ? 1 : 0;
}

#endif
