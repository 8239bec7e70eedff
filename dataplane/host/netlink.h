/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netlink.h - a small rtnetlink client: a request and its answers, and a monitor's events. Blocking
 * calls fail after a second without an answer.
 */
#ifndef HARP_HOST_NETLINK_H
#define HARP_HOST_NETLINK_H

#include <linux/rtnetlink.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "harp_host.h"

struct netlink {
	int fd;
	uint32_t sequence;
};

struct netlink_message {
	_Alignas(NLMSG_ALIGNTO) struct nlmsghdr head;
	uint8_t rest[256];
};

/* Handles one message. A negative result ends the call and becomes its result. */
typedef int (*netlink_fn)(void *ctx, const struct nlmsghdr *message);

/* groups: RTMGRP_* to watch; with any group, reads never block. */
int netlink_open(struct netlink *nl, uint32_t groups);
void netlink_close(struct netlink *nl);

/* Begins a request and returns its zeroed body (struct rtmsg, ndmsg, ...). */
void *netlink_begin(struct netlink_message *message, uint16_t type, uint16_t flags,
		    size_t body_bytes);
void netlink_put(struct netlink_message *message, uint16_t type, const void *data, size_t len);
/* Adds an address in the form of its family (4 or 16 bytes). */
void netlink_put_addr(struct netlink_message *message, uint16_t type, const struct harp_addr *addr);

/* Sends a request and passes every answer to fn (NULL: success is the only answer). 0, the kernel's
 * -errno, fn's result, or -EINTR: a dump raced with a change; repeat the call. */
int netlink_call(struct netlink *nl, struct netlink_message *message, netlink_fn fn, void *ctx);
/* Reads a monitor's pending events. 0, or -ENOBUFS: events were lost; read everything again. */
int netlink_events(struct netlink *nl, netlink_fn fn, void *ctx);

/* Fills table[0..max] with the attributes of a message whose body has body_bytes. */
void netlink_attributes(const struct nlmsghdr *message, size_t body_bytes,
			const struct rtattr **table, unsigned max);
/* The same for attributes of a next hop, or nested ones: `bytes` of attributes at `first`. */
void netlink_attributes_in(const struct rtattr *first, size_t bytes, const struct rtattr **table,
			   unsigned max);
/* The next hop of a multipath route (RTA_MULTIPATH) on an interface; NULL: none. */
const struct rtnexthop *netlink_hop(const struct rtattr *multipath, uint32_t ifindex);
uint32_t netlink_u32(const struct rtattr *attribute, uint32_t absent);
/* Reads an address attribute; false: absent or of the wrong length. */
bool netlink_addr(const struct rtattr *attribute, int family, struct harp_addr *out);

/* The gateway of a route or next hop: RTA_GATEWAY, or RTA_VIA, which has a family. False:
 * on-link. */
bool netlink_gateway(const struct rtattr *const *attributes, int family, struct harp_addr *out);

/* Reads an RTM_NEWADDR: the interface's own address and its enum harp_address_state. */
bool netlink_own_address(const struct nlmsghdr *message, struct harp_addr *addr, int *state);
/* True if an RTM_NEWLINK reports an interface that is up and has a carrier. */
bool netlink_link_is_up(const struct ifinfomsg *link);
int netlink_family(const struct harp_addr *addr); /* AF_INET or AF_INET6 */
/* The MTU of a route's RTA_METRICS; 0: none. attribute may be NULL. */
uint32_t netlink_route_mtu(const struct rtattr *attribute);

#endif
