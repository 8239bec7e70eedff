/* SPDX-License-Identifier: Apache-2.0 */
/* test_registry.c - the first thread initializes a registry. A forked child initializes it again,
 * whatever state another thread of the parent left it in. */
#include "host/registry.h"

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define THREADS 8u
#define CHILD_S 20u

static pthread_barrier_t start_barrier;
static struct registry registry;
static unsigned inside, most_inside;

static void *enter(void *unused)
{
	pthread_barrier_wait(&start_barrier);
	registry_enter(&registry);
	if (++inside > most_inside)
		most_inside = inside;
	inside--;
	registry_leave(&registry);
	return NULL;
}

TEST(concurrent_threads_initialize_one_registry)
{
	pthread_t threads[THREADS];

	pthread_barrier_init(&start_barrier, NULL, THREADS);
	for (unsigned i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, enter, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&start_barrier);
	CHECK_EQ(most_inside, 1);
	CHECK_EQ(atomic_load(&registry.pid), getpid());
}

/* A child enters a registry whose state and lock it inherited. */
static void check_child(pid_t pid, bool locked)
{
	pid_t saved_pid = atomic_load(&registry.pid), child;
	int status = -1;

	registry.first = &inside;
	atomic_store(&registry.pid, pid);
	if (locked)
		pthread_mutex_lock(&registry.lock);
	child = fork();
	if (!child) {
		alarm(CHILD_S); /* ends a child that waits for a thread of the parent */
		registry_enter(&registry);
		status = registry.first ? 1 : atomic_load(&registry.pid) != getpid();
		registry_leave(&registry);
		_exit(status);
	}
	if (locked)
		pthread_mutex_unlock(&registry.lock);
	atomic_store(&registry.pid, saved_pid);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

int main(void)
{
	check_run();
	check_child(getpid(), false);
	check_child(getpid(), true);
	check_child(-getpid(), false); /* another thread is initializing it */
	return check_done();
}
