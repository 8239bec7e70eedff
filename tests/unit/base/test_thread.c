/* SPDX-License-Identifier: Apache-2.0 */
/* test_thread.c - threads of the library in an application's process. */
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

struct seen {
	sigset_t mask;
	cpu_set_t cores;
};

static void *task(void *arg)
{
	struct seen *seen = arg;

	pthread_sigmask(SIG_SETMASK, NULL, &seen->mask);
	sched_getaffinity(0, sizeof(seen->cores), &seen->cores);
	return arg;
}

/* Signals that can't be blocked, and the two that glibc keeps for itself, are none of ours to block. */
static bool blocks_all(const sigset_t *mask)
{
	for (int signal = 1; signal <= SIGRTMAX; signal++)
		if (signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN) &&
		    sigismember(mask, signal) != 1)
			return false;
	return true;
}

TEST(a_thread_takes_no_signals)
{
	struct seen seen = { 0 };
	sigset_t before, after;
	pthread_t id;
	void *result;

	sigemptyset(&before);
	sigaddset(&before, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	CHECK_EQ(thread_start(&id, task, &seen, "harp-test"), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	pthread_join(id, &result);
	CHECK(result == &seen);
	CHECK(blocks_all(&seen.mask));
	CHECK_EQ(sigismember(&after, SIGUSR1), 1);
	CHECK_EQ(sigismember(&after, SIGUSR2), 0);
}

static void *wait_to_be_cancelled(void *arg)
{
	for (;;)
		pause();
	return arg;
}

TEST(a_thread_has_a_name)
{
	char name[16];
	pthread_t id;

	CHECK_EQ(thread_start(&id, wait_to_be_cancelled, NULL, "harp-name"), 0);
	CHECK_EQ(pthread_getname_np(id, name, sizeof(name)), 0);
	CHECK(strcmp(name, "harp-name") == 0);
	pthread_cancel(id);
	pthread_join(id, NULL);
}
