/* SPDX-License-Identifier: Apache-2.0 */
/* question.h - questions about links, routes and addresses over an rtnetlink socket of the caller's. */
#ifndef HARP_HOST_QUESTION_H
#define HARP_HOST_QUESTION_H

#include "host/netlink.h"

struct question_link {
	char ifname[16];
	uint32_t mtu_bytes;
	uint8_t mac[6];
	bool up; /* with carrier */
};

/* -ENODEV no such interface, other -errno. */
int question_link(struct netlink *nl, uint32_t ifindex, struct question_link *out);
/* As harp_host_route_on(). */
int question_route(struct netlink *nl, const struct harp_addr *dst, uint32_t ifindex,
		   struct harp_host_route *out);
/* As harp_instance_route() of an instance on this interface. */
int question_route_from(struct netlink *nl, uint32_t ifindex, const struct harp_addr *dst,
			struct harp_host_route *out);
/* The same over a socket of its own, as ROUTED says it, but for the header. */
void question_routed(uint32_t ifindex, const struct harp_addr *dst, struct harp_lease_routed *out);
/* As harp_host_address_state(). */
int question_address_state(struct netlink *nl, uint32_t ifindex, const struct harp_addr *addr);

#endif
