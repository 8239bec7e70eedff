/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbors.h - next hops resolved by the kernel, for a stack that shares its NIC.
 *
 * The stack's hooks record requests; neighbors_work() sends them, neighbors_event() processes
 * results.
 */
#ifndef HARP_HOST_NEIGHBORS_H
#define HARP_HOST_NEIGHBORS_H

#include "host/netlink_worker.h"
#include "host/netwatch.h"

#define NEIGHBORS_MAX 256u

struct host_neighbor {
	struct harp_addr addr;
	uint64_t used; /* call of neighbors_work() at the last request or confirmation */
	bool requested, confirm;
};

struct neighbors {
	struct harp_stack *stack;
	uint32_t ifindex;
	unsigned count;
	bool pending; /* a request is recorded */
	bool confirm; /* a confirmation is recorded */
	bool unsent;  /* harpd did not accept a message; neighbors_work() retries */
	/* The connection to harpd; NULL: uses the kernel of this network namespace. */
	struct netwatch *netwatch;
	/* UDP sockets bound to the NIC; -1: none. privileged: resolves by rtnetlink instead. */
	int probe_v4_fd, probe_v6_fd;
	bool privileged;
	uint64_t confirm_ns; /* harpd: time of the next confirmations */
	uint64_t turn;
	struct host_neighbor all[NEIGHBORS_MAX];
};

/* Uses the kernel of this namespace. privileged: with CAP_NET_ADMIN. 0 or -errno. */
int neighbors_open(struct neighbors *n, const char *ifname, uint32_t ifindex, bool privileged);
/* Uses harpd instead of the kernel. */
void neighbors_remote(struct neighbors *n, struct netwatch *netwatch);
void neighbors_close(struct neighbors *n);
/* In a forked child. Async-signal-safe. */
void neighbors_fork_child(const struct neighbors *n);
/* Record the stack's requests and confirmations. */
void neighbors_requested(struct neighbors *n, const struct harp_addr *next_hop);
void neighbors_confirmed(struct neighbors *n, const struct harp_addr *next_hop);
/* Sends recorded requests to the kernel or harpd, and confirms neighbors with progress. */
void neighbors_work(struct neighbors *n, struct netlink_worker *worker, uint64_t now_ns);
/* Applies an RTM_NEWNEIGH or RTM_DELNEIGH. */
void neighbors_event(struct neighbors *n, const struct nlmsghdr *message);
/* Applies a NEIGHBORS message of harpd. */
void neighbors_message(struct neighbors *n, const struct harp_lease_neighbors *message);
/* After lost events: reads every known neighbor again. */
void neighbors_resync(struct neighbors *n);

#endif
