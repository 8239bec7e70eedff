/* SPDX-License-Identifier: Apache-2.0 */
/* mirror.h - the interface's addresses and routes, as the kernel has them, kept in a stack. */
#ifndef HARP_HOST_MIRROR_H
#define HARP_HOST_MIRROR_H

#include "host/netlink.h"
#include "xdp/harp_xdp.h"

/* The map has room for as many as are there, these, and those of the process's other instances. */
#define MIRROR_MISSED_MAX 16u

struct mirror {
	struct harp_stack *stack;
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp; /* NULL: the steering map is harpd's, which sees to it */
	uint32_t ifindex;
	struct harp_lease_tables now; /* what the stack has */
	/* Addresses in the steering map, and not the interface's for now; the longest missed first. */
	unsigned missed_count;
	struct harp_addr missed[MIRROR_MISSED_MAX];
};

/* What the kernel has of the interface. 0, or the -errno of the question. Any thread. */
int mirror_read(uint32_t ifindex, struct netlink *nl, struct harp_lease_tables *found);
/* Makes the stack and the steering map agree with it. */
void mirror_apply(struct mirror *mirror, const struct harp_lease_tables *found);

/* Reads the fields of NETWORK that describe an interface; the others are zeroed. 0, or -errno. Any thread. */
int mirror_network(uint32_t ifindex, struct harp_lease_network *out);

bool mirror_has_address(const struct harp_lease_tables *tables, const struct harp_addr *addr);

#endif
