/* SPDX-License-Identifier: Apache-2.0 */
/* netlink_get.h - queries links, routes and addresses over an rtnetlink socket of the caller. */
#ifndef HARP_HOST_NETLINK_GET_H
#define HARP_HOST_NETLINK_GET_H

#include "host/netlink.h"

struct netlink_get_link {
	char ifname[16];
	uint32_t mtu_bytes;
	uint8_t mac[6];
	bool up; /* with carrier */
};

/* -ENODEV no such interface; other -errno. */
int netlink_get_link(struct netlink *nl, uint32_t ifindex, struct netlink_get_link *out);
/* As harp_instance_route() of an instance on this interface. */
int netlink_get_route_from(struct netlink *nl, uint32_t ifindex, const struct harp_addr *dst,
			   struct harp_host_route *out);
/* The same over a new socket; fills in ROUTED except for the header. */
void netlink_get_routed(uint32_t ifindex, const struct harp_addr *dst,
			struct harp_lease_routed *out);

#endif
