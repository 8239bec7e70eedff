/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - see thread.h. */
#include "base/thread.h"

#include <sched.h>
#include <signal.h>

int thread_start_on(pthread_t *id, int core, void *(*run)(void *), void *arg, const char *name)
{
	pthread_attr_t attr;
	sigset_t all, old;
	cpu_set_t cores;
	int rc;

	pthread_attr_init(&attr);
	CPU_ZERO(&cores);
	if (core >= 0 && core < CPU_SETSIZE) {
		CPU_SET((size_t)core, &cores);
		pthread_attr_setaffinity_np(&attr, sizeof(cores), &cores);
	}
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(id, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (!rc)
		pthread_setname_np(*id, name);
	return -rc;
}

int thread_start(pthread_t *id, void *(*run)(void *), void *arg, const char *name)
{
	return thread_start_on(id, THREAD_ANY_CORE, run, arg, name);
}
