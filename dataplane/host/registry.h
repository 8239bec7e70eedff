/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.h - per-process state of all instances, under a lock that survives fork().
 *
 * A forked child must not use the parent's state: fork() copies it, perhaps with a lock whose
 * holder does not exist in the child. An atfork handler cannot wait for that lock (its holder may
 * wait for a lock of the forking thread). So each call checks the process id, and a child starts
 * with an empty registry.
 */
#ifndef HARP_HOST_REGISTRY_H
#define HARP_HOST_REGISTRY_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/util.h"

/* Zero-initialized. */
struct registry {
	/* Process in which lock and first are valid; 0: none; -pid: a thread of that process is
	 * initializing them. */
	_Atomic pid_t pid;
	pthread_mutex_t lock;
	void *first; /* the list's first item; under the lock */
};

void registry_enter(struct registry *registry);
void registry_leave(struct registry *registry);
/* Removes an item of a list linked by the member `next`. */
#define REGISTRY_UNLINK(registry, item)                                                            \
	do {                                                                                       \
		__typeof__(item) registry_first = (registry)->first;                               \
		LIST_UNLINK(registry_first, item, next);                                           \
		(registry)->first = registry_first;                                                \
	} while (0)

#endif
