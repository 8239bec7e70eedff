/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk_xstats.h - copies the driver's extended statistics to a stack's statistics page once a
 * second, in a separate thread: a NIC's firmware may answer more slowly than a poll may block.
 */
#ifndef HARP_HOST_DPDK_XSTATS_H
#define HARP_HOST_DPDK_XSTATS_H

#include "host/dpdk_port.h"

struct dpdk_xstats;

/* Call after the stack has begun to publish. *count: number of counters; if 0, there is no
 * thread and *out is NULL. The first HARP_PAGE_XSTATS_MAX are published. -ENOMEM, or -errno of
 * the thread. */
int dpdk_xstats_start(struct dpdk_xstats **out, const struct dpdk_port *port,
		      struct harp_stack *stack, unsigned *count);
/* Time of the next query: a second after the last one. A query of more than half a second is
 * followed by a pause of its duration, so that other threads can open and close ports. */
uint64_t dpdk_xstats_next_ns(uint64_t queried_ns, uint64_t answered_ns);
/* Call before the stack is destroyed. NULL is accepted. */
void dpdk_xstats_stop(struct dpdk_xstats *xstats);

#endif
