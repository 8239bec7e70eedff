/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h - keeps a port's NICs out of its driver while something is done to the device that bursts must not meet.
 *
 * The threads inside NICs pay a fence a burst; who shuts the gate waits until they have left.
 */
#ifndef HARP_DPDK_GATE_H
#define HARP_DPDK_GATE_H

#include "dpdk/port.h"

/* Into the driver, or not: false while the gate is shut. The NIC's thread, after pool_enter(). */
static inline bool gate_pass(const struct dpdk_nic *nic)
{
	/* Pairs with that of gate_shut(): either we see it shut, or it sees us inside. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __builtin_expect(__atomic_load_n(&nic->port->shut, __ATOMIC_RELAXED) == 0, 1);
}

/* Shuts a port's gate once more (it is a count) and waits until no thread but this one is inside, at most a second:
 * false if one still was. */
bool gate_shut(struct dpdk_port *port);
void gate_open(struct dpdk_port *port);

#endif
