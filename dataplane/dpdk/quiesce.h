/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quiesce.h - keeps a port's NICs out of its driver while the device is being changed.
 *
 * Entering the driver costs one fence per burst. The thread that changes the device waits until the
 * other threads have left.
 */
#ifndef HARP_DPDK_QUIESCE_H
#define HARP_DPDK_QUIESCE_H

#include "dpdk/port.h"

/* Enters the driver; false while the port is quiesced. Called by the NIC's thread after
 * pool_enter(). */
static inline bool quiesce_enter(const struct dpdk_nic *nic)
{
	/* Pairs with the fence of quiesce_begin(): either this thread sees the count, or the other
	 * thread sees this one inside. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __builtin_expect(__atomic_load_n(&nic->port->quiesces, __ATOMIC_RELAXED) == 0, 1);
}

/* Increments the quiesce count and waits, at most a second, until no other thread is inside. False:
 * one still is. */
bool quiesce_begin(struct dpdk_port *port);
void quiesce_end(struct dpdk_port *port);

#endif
