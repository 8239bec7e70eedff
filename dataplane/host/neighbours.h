/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbours.h - next hops, resolved by the kernel for a stack that shares its NIC with it.
 *
 * The stack's hooks only note what is wanted; neighbours_work() asks, neighbours_event() hears.
 */
#ifndef HARP_HOST_NEIGHBOURS_H
#define HARP_HOST_NEIGHBOURS_H

#include "host/asker.h"
#include "host/netwatch.h"

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
	bool unsent; /* harpd did not take a message: again when harp_instance_control() comes round */
	/* The connection to harpd; NULL: the kernel of this network namespace is asked. */
	struct netwatch *netwatch;
	/* UDP sockets bound to the NIC; -1: none. privileged: the kernel resolves by rtnetlink instead. */
	int probe_v4_fd, probe_v6_fd;
	bool privileged;
	uint64_t confirm_ns; /* harpd: when neighbors are confirmed next */
	uint64_t turn;
	struct host_neighbour all[NEIGHBOURS_MAX];
};

/* Asks the kernel of this namespace about neighbors of an interface. privileged: with CAP_NET_ADMIN. 0 or -errno. */
int neighbours_open(struct neighbours *n, const char *ifname, uint32_t ifindex, bool privileged);
/* Asks harpd. */
void neighbours_remote(struct neighbours *n, struct netwatch *netwatch);
void neighbours_close(struct neighbours *n);
/* In a forked child. Async-signal-safe. */
void neighbours_fork_child(const struct neighbours *n);
void neighbours_wanted(struct neighbours *n, const struct harp_addr *next_hop);
void neighbours_confirmed(struct neighbours *n, const struct harp_addr *next_hop);
/* Asks the kernel or harpd about the wanted neighbors, and confirms those that made progress. */
void neighbours_work(struct neighbours *n, struct asker *asker, uint64_t now_ns);
/* An RTM_NEWNEIGH or RTM_DELNEIGH. */
void neighbours_event(struct neighbours *n, const struct nlmsghdr *message);
/* Applies a NEIGHBORS message of harpd. */
void neighbours_message(struct neighbours *n, const struct harp_lease_neighbors *message);
/* Events were lost: look at every known neighbour again. */
void neighbours_resync(struct neighbours *n);

#endif
