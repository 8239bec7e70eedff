/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - see thread.h. */
#include "base/thread.h"

#include <signal.h>

int thread_start(pthread_t *id, void *(*run)(void *), void *arg, const char *name)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(id, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!rc)
		pthread_setname_np(*id, name);
	return -rc;
}
