/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk_events.h - events that the stacks of a DPDK port share: neighbor information and ICMP
 * errors.
 *
 * ARP and neighbor discovery packets arrive at one queue, and all stacks need them. An ICMP error
 * may arrive at any queue, but only the stack that sent the quoted packet can process it. Each
 * instance publishes the events that it receives, and readers validate them as they validate
 * packets.
 */
#ifndef HARP_HOST_DPDK_EVENTS_H
#define HARP_HOST_DPDK_EVENTS_H

#include <stdatomic.h>

#include "harp.h"

struct dpdk_events;

struct dpdk_reader {
	struct dpdk_reader *next;
	int fd;        /* eventfd: readable if an event is pending; -1: none */
	uint64_t seen; /* events read or missed so far */
	atomic_bool pending;
};
struct dpdk_event {
	const struct dpdk_reader *from;
	bool is_error;
	union {
		struct { /* arguments of harp_stack_neighbor_learned() */
			struct harp_addr addr;
			uint32_t flags;
			uint8_t mac[6];
			bool has_mac;
		};
		struct harp_icmp_error error; /* argument of harp_stack_icmp_error() */
	};
};

/* NULL: out of memory. */
struct dpdk_events *dpdk_events_create(void);
void dpdk_events_destroy(struct dpdk_events *events);
void dpdk_events_join(struct dpdk_events *events, struct dpdk_reader *reader);
void dpdk_events_leave(struct dpdk_events *events, struct dpdk_reader *reader);
void dpdk_events_publish(struct dpdk_events *events, const struct dpdk_event *event);
/* Reads the next event of another instance; false: none. A slow reader loses events. It then
 * solicits the neighbor again, or gets another error for a packet that is still too big. */
bool dpdk_events_next(struct dpdk_events *events, struct dpdk_reader *reader,
		      struct dpdk_event *out);

#endif
