/* SPDX-License-Identifier: Apache-2.0 */
/* test_registry.c - a registry is made once, by the first thread, and again in a forked child,
 * whatever another thread of the parent was doing. */
#include "host/registry.h"

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define THREADS 8u
#define CHILD_S 20u

static pthread_barrier_t all_here;
static struct registry registry;
static unsigned inside, most_inside;

static void *enter(void *unused)
{
	pthread_barrier_wait(&all_here);
	registry_enter(&registry);
	if (++inside > most_inside)
		most_inside = inside;
	inside--;
	registry_leave(&registry);
	return NULL;
}

TEST(concurrent_threads_make_one_registry)
{
	pthread_t threads[THREADS];

	pthread_barrier_init(&all_here, NULL, THREADS);
	for (unsigned i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, enter, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&all_here);
	CHECK_EQ(most_inside, 1);
	CHECK_EQ(atomic_load(&registry.pid), getpid());
}

/* A child in which the registry is as a thread of the parent's left it. */
static void child_enters(pid_t maker, bool locked)
{
	pid_t before = atomic_load(&registry.pid), child;
	int status = -1;

	registry.first = &inside;
	atomic_store(&registry.pid, maker);
	if (locked)
		pthread_mutex_lock(&registry.lock);
	child = fork();
	if (!child) {
		alarm(CHILD_S); /* it must not wait for a thread that is not there */
		registry_enter(&registry);
		status = registry.first ? 1 : atomic_load(&registry.pid) != getpid();
		registry_leave(&registry);
		_exit(status);
	}
	if (locked)
		pthread_mutex_unlock(&registry.lock);
	atomic_store(&registry.pid, before);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

int main(void)
{
	check_run();
	child_enters(getpid(), false);
	child_enters(getpid(), true);
	child_enters(-getpid(), false); /* one was making it */
	return check_done();
}
