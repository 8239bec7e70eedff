/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk_xstats.h - what a port's driver counts by names of its own, brought to a stack's statistics page once a second
 * by a thread: asking a card takes its firmware's time, which no poll of packets has.
 */
#ifndef HARP_HOST_DPDK_XSTATS_H
#define HARP_HOST_DPDK_XSTATS_H

#include "host/dpdk_port.h"

struct dpdk_xstats;

/* The stack publishes already. *count: counters that the driver has; with 0 there is no thread and *out is NULL. The
 * first HARP_PAGE_XSTATS_MAX are published. -ENOMEM, or -errno of the thread. */
int dpdk_xstats_start(struct dpdk_xstats **out, const struct dpdk_port *port,
		      struct harp_stack *stack, unsigned *count);
/* When it is asked again: once a second; a driver that takes long over an answer rests for as long, since its port can't be
 * opened or closed meanwhile. */
uint64_t dpdk_xstats_next_ns(uint64_t asked_ns, uint64_t answered_ns);
/* Before the stack ends. NULL is accepted. */
void dpdk_xstats_stop(struct dpdk_xstats *xstats);

#endif
