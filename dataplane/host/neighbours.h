/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbours.h - next hops, resolved by the kernel for a stack that shares its NIC with it.
 *
 * The stack's hooks only note what is wanted; neighbours_work() asks, neighbours_event() hears.
 */
#ifndef HARP_HOST_NEIGHBOURS_H
#define HARP_HOST_NEIGHBOURS_H

#include "host/asker.h"

#define NEIGHBOURS_MAX 256u

struct host_neighbour {
	struct harp_addr addr;
	uint64_t used; /* when it was last wanted or confirmed, in calls of neighbours_work() */
	bool wanted, confirm;
};

struct neighbours {
	struct harp_stack *stack;
	uint32_t ifindex;
	unsigned count;
	bool pending; /* something is wanted */
	bool confirm;
	/* How the kernel is made to look: sockets of harpd's that are bound to the NIC, or -1 and -1, by
	 * rtnetlink, which takes CAP_NET_ADMIN. */
	int probe_v4_fd, probe_v6_fd;
	uint64_t turn;
	struct host_neighbour all[NEIGHBOURS_MAX];
};

/* probe_*_fd: UDP sockets bound to the interface, the caller's; -1: none, and privileges instead. */
void neighbours_init(struct neighbours *n, uint32_t ifindex, int probe_v4_fd, int probe_v6_fd);
void neighbours_wanted(struct neighbours *n, const struct harp_addr *next_hop);
void neighbours_confirmed(struct neighbours *n, const struct harp_addr *next_hop);
/* Has the kernel asked about all that is wanted, and what made progress confirmed. */
void neighbours_work(struct neighbours *n, struct asker *asker);
/* An RTM_NEWNEIGH or RTM_DELNEIGH. */
void neighbours_event(struct neighbours *n, const struct nlmsghdr *message);
/* Events were lost: look at every known neighbour again. */
void neighbours_resync(struct neighbours *n);

#endif
