/* SPDX-License-Identifier: Apache-2.0 */
/* mirror.h - the interface's addresses and routes, as the kernel has them, kept in a stack. */
#ifndef HARP_HOST_MIRROR_H
#define HARP_HOST_MIRROR_H

#include "host/netlink.h"
#include "xdp/harp_xdp.h"

#define MIRROR_ADDRESSES_MAX 16u
#define MIRROR_ROUTES_MAX 64u
/* The map has room for as many as are there, these, and those of the process's other instances. */
#define MIRROR_MISSED_MAX 16u

struct mirror_route {
	struct harp_addr prefix, gateway;
	uint32_t mtu_bytes, metric;
	uint8_t prefix_len, has_gateway;
	uint8_t preference; /* among equals of the kernel's: RFC 4191, larger is better */
};

struct mirror_tables {
	unsigned address_count, route_count;
	uint32_t skipped; /* found, but more than we or the stack can hold */
	struct harp_addr addresses[MIRROR_ADDRESSES_MAX];
	struct mirror_route routes[MIRROR_ROUTES_MAX];
};

struct mirror {
	struct harp_stack *stack;
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp; /* NULL: the steering map is harpd's, which sees to it */
	uint32_t ifindex;
	struct mirror_tables now; /* what the stack has */
	/* Addresses in the steering map, and not the interface's for now; the longest missed first. */
	unsigned missed_count;
	struct harp_addr missed[MIRROR_MISSED_MAX];
};

/* What the kernel has of the interface. 0, or the -errno of the question. Any thread. */
int mirror_read(uint32_t ifindex, struct netlink *nl, struct mirror_tables *found);
/* Makes the stack and the steering map agree with it. */
void mirror_apply(struct mirror *mirror, const struct mirror_tables *found);

bool mirror_has_address(const struct mirror_tables *tables, const struct harp_addr *addr);

#endif
