/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.h - what a process has once for all its instances, under a lock that a fork cannot break.
 *
 * A forked child has nothing of it: fork() copies the contents, and perhaps a lock that a thread held who is not
 * there any more. No atfork handler may wait for that lock (the thread that holds it may itself wait for one
 * that the forking thread holds), so each call looks whether it is in the process that the registry was made
 * in, and a child makes it anew, empty.
 */
#ifndef HARP_HOST_REGISTRY_H
#define HARP_HOST_REGISTRY_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* Statically zero at first. */
struct registry {
	/* In whose process lock and first are good; 0: in none; -pid: a thread of that one makes them. */
	_Atomic pid_t pid;
	pthread_mutex_t lock;
	void *first; /* of a list of the owner's; under the lock */
};

void registry_enter(struct registry *registry);
void registry_leave(struct registry *registry);

#endif
