/* SPDX-License-Identifier: Apache-2.0 */
/* route_cache.h - copies an interface's addresses and routes from the kernel into a stack. */
#ifndef HARP_HOST_ROUTE_CACHE_H
#define HARP_HOST_ROUTE_CACHE_H

#include "host/netlink.h"
#include "xdp/harp_xdp.h"

/* Low enough that the XDP program's map also has space for the current addresses and those of the
 * process's other instances. */
#define ROUTE_CACHE_MISSED_MAX 16u

struct route_cache {
	struct harp_stack *stack;
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp; /* NULL: harpd owns the XDP program's map */
	uint32_t ifindex;
	struct harp_lease_tables now; /* contents of the stack */
	/* Addresses in the map that the interface lacks at present; longest missing first. */
	unsigned missed_count;
	struct harp_addr missed[ROUTE_CACHE_MISSED_MAX];
};

/* Reads the kernel's tables of the interface. 0 or -errno. Any thread. */
int route_cache_read(uint32_t ifindex, struct netlink *nl, struct harp_lease_tables *tables);
/* Makes the stack and the XDP program's map equal to *tables. */
void route_cache_apply(struct route_cache *cache, const struct harp_lease_tables *tables);

/* Reads link, MTU, MAC address and tables of an interface for a NETWORK message. 0 or -errno. */
int route_cache_network(uint32_t ifindex, struct harp_lease_network *out);
bool route_cache_has_address(const struct harp_lease_tables *tables, const struct harp_addr *addr);

#endif
