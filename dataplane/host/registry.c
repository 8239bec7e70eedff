/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c - per-process state of all instances, under a lock that survives fork(). */
#include "host/registry.h"

#include <sched.h>
#include <stddef.h>
#include <unistd.h>

void registry_enter(struct registry *registry)
{
	const pid_t self = getpid();
	pid_t owner = atomic_load_explicit(&registry->pid, memory_order_acquire);

	while (owner != self) {
		if (owner == -self) {
			sched_yield();
			owner = atomic_load_explicit(&registry->pid, memory_order_acquire);
		} else if (atomic_compare_exchange_strong(&registry->pid, &owner, -self)) {
			pthread_mutex_init(&registry->lock, NULL);
			registry->first = NULL;
			atomic_store_explicit(&registry->pid, self, memory_order_release);
			owner = self;
		}
	}
	pthread_mutex_lock(&registry->lock);
}

void registry_leave(struct registry *registry)
{
	pthread_mutex_unlock(&registry->lock);
}
