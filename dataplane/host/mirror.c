/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror.c - the interface's addresses and routes, kept in a stack: dumped, compared, and only what
 * differs is changed, so that connections never see a gap.
 */
#include "host/mirror.h"

#include <errno.h>
#include <linux/if_addr.h>
#include <string.h>

#define MIRROR_DUMP_TRIES 4

struct mirror_dump {
	uint32_t ifindex;
	struct mirror_tables found;
};

static bool addr_equal(const struct harp_addr *a, const struct harp_addr *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

static int dump_address(void *ctx, const struct nlmsghdr *message)
{
	struct mirror_dump *dump = ctx;
	struct mirror_tables *found = &dump->found;
	const struct ifaddrmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[IFA_MAX + 1];
	struct harp_addr addr;

	if (message->nlmsg_type != RTM_NEWADDR || body->ifa_index != dump->ifindex ||
	    (body->ifa_family != AF_INET && body->ifa_family != AF_INET6))
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, IFA_MAX);
	/* Link-local addresses need a scope with each use; a tentative one is not ours yet: a
	 * notification follows when it is. */
	if (body->ifa_scope >= RT_SCOPE_LINK ||
	    (netlink_u32(attributes[IFA_FLAGS], body->ifa_flags) &
	     (IFA_F_TENTATIVE | IFA_F_DADFAILED)))
		return 0;
	if (!netlink_addr(attributes[IFA_LOCAL], body->ifa_family, &addr) &&
	    !netlink_addr(attributes[IFA_ADDRESS], body->ifa_family, &addr))
		return 0;
	if (found->address_count < MIRROR_ADDRESSES_MAX)
		found->addresses[found->address_count++] = addr;
	else
		found->skipped++;
	return 0;
}

static bool route_same_prefix(const struct mirror_route *a, const struct mirror_route *b)
{
	return a->prefix_len == b->prefix_len && addr_equal(&a->prefix, &b->prefix) &&
	       netlink_family(&a->prefix) == netlink_family(&b->prefix);
}

static int dump_route(void *ctx, const struct nlmsghdr *message)
{
	struct mirror_dump *dump = ctx;
	struct mirror_tables *found = &dump->found;
	const struct rtmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[RTA_MAX + 1];
	const struct rtattr *metrics[RTAX_MAX + 1];
	const struct rtnexthop *hop;
	struct mirror_route route = { .prefix_len = body->rtm_dst_len };

	if (message->nlmsg_type != RTM_NEWROUTE || body->rtm_type != RTN_UNICAST ||
	    (body->rtm_family != AF_INET && body->rtm_family != AF_INET6))
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, RTA_MAX);
	if (netlink_u32(attributes[RTA_TABLE], body->rtm_table) != RT_TABLE_MAIN)
		return 0;
	if (!netlink_addr(attributes[RTA_DST], body->rtm_family, &route.prefix) &&
	    body->rtm_family == AF_INET)
		route.prefix = harp_addr_v4(0, 0, 0, 0);
	if (body->rtm_family == AF_INET6 && route.prefix.bytes[0] == 0xfe)
		return 0; /* link-local */
	if (attributes[RTA_METRICS]) {
		netlink_attributes_in(RTA_DATA(attributes[RTA_METRICS]),
				      RTA_PAYLOAD(attributes[RTA_METRICS]), metrics, RTAX_MAX);
		route.mtu_bytes = netlink_u32(metrics[RTAX_MTU], 0);
	}
	if (attributes[RTA_MULTIPATH]) {
		hop = netlink_hop(attributes[RTA_MULTIPATH], dump->ifindex);
		if (!hop)
			return 0;
		netlink_attributes_in((const struct rtattr *)(hop + 1),
				      hop->rtnh_len - sizeof(*hop), attributes, RTA_MAX);
	} else if (netlink_u32(attributes[RTA_OIF], 0) != dump->ifindex) {
		return 0;
	}
	route.has_gateway = netlink_addr(attributes[RTA_GATEWAY], body->rtm_family, &route.gateway);
	/* The kernel dumps the better metric of one prefix first. */
	for (unsigned i = 0; i < found->route_count; i++)
		if (route_same_prefix(&found->routes[i], &route))
			return 0;
	if (found->route_count < MIRROR_ROUTES_MAX)
		found->routes[found->route_count++] = route;
	else
		found->skipped++;
	return 0;
}

static int mirror_dump(struct netlink *nl, uint16_t type, size_t body_bytes, netlink_fn fn,
		       struct mirror_dump *dump)
{
	struct mirror_tables before = dump->found;
	int rc = -EINTR;

	for (int tries = 0; rc == -EINTR && tries < MIRROR_DUMP_TRIES; tries++) {
		struct netlink_message message;

		dump->found = before;
		netlink_begin(&message, type, NLM_F_DUMP, body_bytes);
		rc = netlink_call(nl, &message, fn, dump);
	}
	return rc;
}

/* ---- applying ------------------------------------------------------------------------------- */

static bool has_address(const struct mirror_tables *tables, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < tables->address_count; i++)
		if (addr_equal(&tables->addresses[i], addr))
			return true;
	return false;
}

static bool has_route(const struct mirror_tables *tables, const struct mirror_route *route)
{
	for (unsigned i = 0; i < tables->route_count; i++) {
		const struct mirror_route *r = &tables->routes[i];

		if (route_same_prefix(r, route) && r->mtu_bytes == route->mtu_bytes &&
		    r->has_gateway == route->has_gateway &&
		    addr_equal(&r->gateway, &route->gateway))
			return true;
	}
	return false;
}

/* What the stack has and the kernel no longer: out of the steering map before out of the stack. */
static void mirror_remove(struct mirror *m, const struct mirror_tables *found)
{
	for (unsigned i = m->now.route_count; i-- > 0;) {
		if (has_route(found, &m->now.routes[i]))
			continue;
		harp_stack_route_remove(m->stack, &m->now.routes[i].prefix,
					m->now.routes[i].prefix_len);
		m->now.routes[i] = m->now.routes[--m->now.route_count];
	}
	for (unsigned i = m->now.address_count; i-- > 0;) {
		if (has_address(found, &m->now.addresses[i]))
			continue;
		m->api->address_set(m->xdp, m->now.addresses[i].bytes, false);
		harp_stack_address_remove(m->stack, &m->now.addresses[i]);
		m->now.addresses[i] = m->now.addresses[--m->now.address_count];
	}
}

/* What is new. What the stack refuses (IPv6, while it has none) stays the kernel's alone. */
static void mirror_add(struct mirror *m, const struct mirror_tables *found)
{
	for (unsigned i = 0; i < found->address_count; i++) {
		const struct harp_addr *addr = &found->addresses[i];
		unsigned bits = harp_addr_is_v4(addr) ? 32 : 128;

		/* Full length: the on-link prefix is a route of its own in the kernel's table. */
		if (has_address(&m->now, addr) || harp_stack_address_add(m->stack, addr, bits))
			continue;
		if (m->api->address_set(m->xdp, addr->bytes, true)) {
			harp_stack_address_remove(m->stack, addr);
			continue;
		}
		m->now.addresses[m->now.address_count++] = *addr;
	}
	for (unsigned i = 0; i < found->route_count; i++) {
		const struct mirror_route *r = &found->routes[i];

		if (has_route(&m->now, r) ||
		    harp_stack_route_add(m->stack, &r->prefix, r->prefix_len,
					 r->has_gateway ? &r->gateway : NULL, r->mtu_bytes))
			continue;
		m->now.routes[m->now.route_count++] = *r;
	}
}

int mirror_sync(struct mirror *mirror, struct netlink *nl)
{
	struct mirror_dump dump = { .ifindex = mirror->ifindex };
	int rc = mirror_dump(nl, RTM_GETADDR, sizeof(struct ifaddrmsg), dump_address, &dump);

	if (!rc)
		rc = mirror_dump(nl, RTM_GETROUTE, sizeof(struct rtmsg), dump_route, &dump);
	if (rc)
		return rc;
	mirror_remove(mirror, &dump.found);
	mirror_add(mirror, &dump.found);
	mirror->now.skipped = dump.found.skipped;
	return 0;
}
