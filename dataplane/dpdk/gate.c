/* SPDX-License-Identifier: Apache-2.0 */
/* gate.c - the waiting side of the gate between a port's NICs and its driver. */
#include "dpdk/gate.h"

#include <sched.h>
#include <time.h>

#define GATE_WAIT_NS 1000000000

static uint64_t gate_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool gate_inside(const struct dpdk_port *port)
{
	for (uint16_t q = 0; port->nics && q < port->queues; q++) {
		const struct pool *pool = port->nics[q].pool;
		pthread_t owner = pool ? __atomic_load_n(&pool->owner, __ATOMIC_ACQUIRE) : 0;

		if (owner && owner != pthread_self())
			return true;
	}
	return false;
}

bool gate_shut(struct dpdk_port *port)
{
	uint64_t until_ns = gate_now_ns() + GATE_WAIT_NS;

	__atomic_add_fetch(&port->shut, 1, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	while (gate_inside(port)) {
		if (gate_now_ns() > until_ns)
			return false;
		sched_yield(); /* a burst takes microseconds, unless its thread is not running */
	}
	return true;
}

void gate_open(struct dpdk_port *port)
{
	__atomic_sub_fetch(&port->shut, 1, __ATOMIC_RELEASE);
}
