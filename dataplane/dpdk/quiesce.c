/* SPDX-License-Identifier: Apache-2.0 */
/* quiesce.c - waits until no NIC of a port is inside its driver. */
#include "dpdk/quiesce.h"

#include <sched.h>

#include "base/clock.h"

#define QUIESCE_TIMEOUT_NS 1000000000

static bool quiesce_is_busy(const struct dpdk_port *port)
{
	for (uint16_t q = 0; port->nics && q < port->queues; q++) {
		const struct pool *pool = port->nics[q].pool;
		pthread_t owner = pool ? __atomic_load_n(&pool->owner, __ATOMIC_ACQUIRE) : 0;

		if (owner && owner != pthread_self())
			return true;
	}
	return false;
}

bool quiesce_begin(struct dpdk_port *port)
{
	uint64_t until_ns = clock_ns() + QUIESCE_TIMEOUT_NS;

	__atomic_add_fetch(&port->quiesces, 1, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	while (quiesce_is_busy(port)) {
		if (clock_ns() > until_ns)
			return false;
		sched_yield(); /* a burst takes microseconds, unless its thread is not running */
	}
	return true;
}

void quiesce_end(struct dpdk_port *port)
{
	__atomic_sub_fetch(&port->quiesces, 1, __ATOMIC_RELEASE);
}
