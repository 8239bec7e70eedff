/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route_cache.c - copies an interface's addresses and routes into a stack: reads them, compares,
 * and changes only the differences, so connections never see a gap.
 *
 * The stack has all addresses that the kernel answers for, including deprecated and temporary ones.
 * The kernel chooses the source address of each connection (harp_host_route()). Routes that the
 * stack cannot represent exactly are not copied, so no packet is misrouted.
 */
#include "host/route_cache.h"

#include <errno.h>
#include <string.h>

#include "base/addr.h"
#include "host/netlink_get.h"

#define ROUTE_CACHE_DUMP_TRIES 4

struct route_cache_dump {
	uint32_t ifindex;
	struct harp_lease_tables tables;
};

static int dump_address(void *ctx, const struct nlmsghdr *message)
{
	struct route_cache_dump *dump = ctx;
	struct harp_lease_tables *tables = &dump->tables;
	const struct ifaddrmsg *body = NLMSG_DATA(message);
	struct harp_addr addr;
	int state;

	/* A tentative address cannot be used yet; an event follows. */
	if (!netlink_own_address(message, &addr, &state) || state < HARP_ADDRESS_DEPRECATED ||
	    body->ifa_index != dump->ifindex || body->ifa_scope > RT_SCOPE_LINK)
		return 0;
	if (tables->address_count < HARP_LEASE_ADDRESSES_MAX)
		tables->addresses[tables->address_count++] = addr;
	else
		tables->skipped++;
	return 0;
}

static bool is_same_prefix(const struct harp_lease_route *a, const struct harp_lease_route *b)
{
	return a->prefix_len == b->prefix_len && addr_equal(&a->prefix, &b->prefix) &&
	       netlink_family(&a->prefix) == netlink_family(&b->prefix);
}

/* False for routes that are not copied: through another interface, encapsulated, source-specific,
 * or cached for one destination (RTM_F_CLONED: its path MTU, which expires without notice). */
static bool route_is_copied(const struct rtmsg *body, const struct rtattr *const *attributes)
{
	return body->rtm_type == RTN_UNICAST && !(body->rtm_flags & RTM_F_CLONED) &&
	       !body->rtm_src_len && !attributes[RTA_ENCAP_TYPE] &&
	       netlink_u32(attributes[RTA_TABLE], body->rtm_table) == RT_TABLE_MAIN &&
	       (body->rtm_family == AF_INET || body->rtm_family == AF_INET6);
}

/* True if the route uses our interface and the stack can represent it. For a multipath route,
 * attributes become those of the next hop on our interface. */
static bool route_next_hop(struct harp_lease_route *route, const struct rtmsg *body,
			   const struct rtattr **attributes, uint32_t ifindex)
{
	if (attributes[RTA_MULTIPATH]) {
		const struct rtnexthop *hop = netlink_hop(attributes[RTA_MULTIPATH], ifindex);

		if (!hop)
			return false;
		netlink_attributes_in((const struct rtattr *)(hop + 1),
				      hop->rtnh_len - sizeof(*hop), attributes, RTA_MAX);
	} else if (netlink_u32(attributes[RTA_OIF], 0) != ifindex) {
		return false;
	}
	route->has_gateway = netlink_gateway(attributes, body->rtm_family, &route->gateway);
	return !attributes[RTA_ENCAP_TYPE] &&
	       (!route->has_gateway || netlink_family(&route->gateway) == body->rtm_family);
}

/* RFC 4191 section 2.1: 1 high, 0 medium, 3 low. */
static uint8_t route_preference(const struct rtattr *attribute)
{
	if (!attribute || !RTA_PAYLOAD(attribute))
		return 1;
	switch (*(const uint8_t *)RTA_DATA(attribute)) {
	case 1:
		return 2;
	case 3:
		return 0;
	default:
		return 1;
	}
}

static int dump_route(void *ctx, const struct nlmsghdr *message)
{
	struct route_cache_dump *dump = ctx;
	struct harp_lease_tables *tables = &dump->tables;
	const struct rtmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[RTA_MAX + 1];
	struct harp_lease_route route = { .prefix_len = body->rtm_dst_len };

	if (message->nlmsg_type != RTM_NEWROUTE)
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, RTA_MAX);
	if (!route_is_copied(body, attributes))
		return 0;
	if (!netlink_addr(attributes[RTA_DST], body->rtm_family, &route.prefix) &&
	    body->rtm_family == AF_INET)
		route.prefix = harp_addr_v4(0, 0, 0, 0);
	route.metric = netlink_u32(attributes[RTA_PRIORITY], 0);
	route.mtu_bytes = netlink_route_mtu(attributes[RTA_METRICS]);
	route.preference = route_preference(attributes[RTA_PREF]);
	if (!route_next_hop(&route, body, attributes, dump->ifindex))
		return 0;
	/* The kernel dumps the better metric of a prefix first. */
	for (unsigned i = 0; i < tables->route_count; i++) {
		struct harp_lease_route *other = &tables->routes[i];

		if (!is_same_prefix(other, &route))
			continue;
		if (route.metric == other->metric && route.preference > other->preference)
			*other = route;
		return 0;
	}
	if (tables->route_count < HARP_LEASE_ROUTES_MAX)
		tables->routes[tables->route_count++] = route;
	else
		tables->skipped++;
	return 0;
}

static int route_cache_dump(struct netlink *nl, uint16_t type, size_t body_bytes, netlink_fn fn,
			    struct route_cache_dump *dump)
{
	struct harp_lease_tables before = dump->tables;
	int rc = -EINTR;

	for (int tries = 0; rc == -EINTR && tries < ROUTE_CACHE_DUMP_TRIES; tries++) {
		struct netlink_message message;

		dump->tables = before;
		netlink_begin(&message, type, NLM_F_DUMP, body_bytes);
		rc = netlink_call(nl, &message, fn, dump);
	}
	return rc;
}

/* ---- applying ------------------------------------------------------------------------------- */

bool route_cache_has_address(const struct harp_lease_tables *tables, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < tables->address_count; i++)
		if (addr_equal(&tables->addresses[i], addr))
			return true;
	return false;
}

static bool has_route(const struct harp_lease_tables *tables, const struct harp_lease_route *route)
{
	for (unsigned i = 0; i < tables->route_count; i++) {
		const struct harp_lease_route *r = &tables->routes[i];

		if (is_same_prefix(r, route) && r->mtu_bytes == route->mtu_bytes &&
		    r->has_gateway == route->has_gateway &&
		    addr_equal(&r->gateway, &route->gateway))
			return true;
	}
	return false;
}

/*
 * Keeps a removed address in the XDP program's map. When the address returns, the kernel has it
 * before this process gets the event, and would answer a peer's retransmission with an RST. Until
 * then the stack drops packets to it; this affects only ports that this process holds.
 */
static void route_cache_keep_missing(struct route_cache *m, const struct harp_addr *addr)
{
	if (!m->xdp)
		return;
	if (m->missed_count == ROUTE_CACHE_MISSED_MAX) {
		m->api->address_set(m->xdp, m->missed[0].bytes, false);
		memmove(m->missed, m->missed + 1, --m->missed_count * sizeof(*m->missed));
	}
	m->missed[m->missed_count++] = *addr;
}

/* Forgets that an address was removed. */
static void route_cache_restore(struct route_cache *m, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < m->missed_count; i++) {
		if (!addr_equal(&m->missed[i], addr))
			continue;
		memmove(m->missed + i, m->missed + i + 1,
			(--m->missed_count - i) * sizeof(*m->missed));
		return;
	}
}

/* Removes entries that the kernel no longer has. */
static void route_cache_remove(struct route_cache *m, const struct harp_lease_tables *tables)
{
	for (unsigned i = m->now.route_count; i-- > 0;) {
		if (has_route(tables, &m->now.routes[i]))
			continue;
		harp_stack_route_remove(m->stack, &m->now.routes[i].prefix,
					m->now.routes[i].prefix_len);
		m->now.routes[i] = m->now.routes[--m->now.route_count];
	}
	for (unsigned i = m->now.address_count; i-- > 0;) {
		if (route_cache_has_address(tables, &m->now.addresses[i]))
			continue;
		route_cache_keep_missing(m, &m->now.addresses[i]);
		harp_stack_address_remove(m->stack, &m->now.addresses[i]);
		m->now.addresses[i] = m->now.addresses[--m->now.address_count];
	}
}

/* Adds new entries. Skips those that the stack refuses (IPv6 with a small MTU). */
static void route_cache_add(struct route_cache *m, const struct harp_lease_tables *tables)
{
	for (unsigned i = 0; i < tables->address_count; i++) {
		const struct harp_addr *addr = &tables->addresses[i];
		unsigned bits = harp_addr_is_v4(addr) ? 32 : 128;

		/* Full prefix length: the on-link prefix is a separate route in the kernel's
		 * table. */
		if (route_cache_has_address(&m->now, addr) ||
		    harp_stack_address_add(m->stack, addr, bits))
			continue;
		if (m->xdp && m->api->address_set(m->xdp, addr->bytes, true)) {
			harp_stack_address_remove(m->stack, addr);
			continue;
		}
		route_cache_restore(m, addr);
		m->now.addresses[m->now.address_count++] = *addr;
	}
	for (unsigned i = 0; i < tables->route_count; i++) {
		const struct harp_lease_route *r = &tables->routes[i];

		if (has_route(&m->now, r) ||
		    harp_stack_route_add(m->stack, &r->prefix, r->prefix_len,
					 r->has_gateway ? &r->gateway : NULL, r->mtu_bytes))
			continue;
		m->now.routes[m->now.route_count++] = *r;
	}
}

int route_cache_read(uint32_t ifindex, struct netlink *nl, struct harp_lease_tables *tables)
{
	struct route_cache_dump dump = { .ifindex = ifindex };
	int rc = route_cache_dump(nl, RTM_GETADDR, sizeof(struct ifaddrmsg), dump_address, &dump);

	if (!rc)
		rc = route_cache_dump(nl, RTM_GETROUTE, sizeof(struct rtmsg), dump_route, &dump);
	*tables = dump.tables;
	return rc;
}

int route_cache_network(uint32_t ifindex, struct harp_lease_network *out)
{
	struct netlink_get_link link;
	struct netlink nl;
	int rc = netlink_open(&nl, 0);

	memset(out, 0, sizeof(*out));
	if (rc)
		return rc;
	rc = netlink_get_link(&nl, ifindex, &link);
	if (!rc) {
		out->link = link.up ? HARP_LEASE_LINK_UP : HARP_LEASE_LINK_DOWN;
		out->mtu_bytes = link.mtu_bytes;
		memcpy(out->mac, link.mac, sizeof(out->mac));
		rc = route_cache_read(ifindex, &nl, &out->tables);
	} else if (rc == -ENODEV) {
		out->link = HARP_LEASE_LINK_GONE;
		rc = 0;
	}
	netlink_close(&nl);
	return rc;
}

void route_cache_apply(struct route_cache *cache, const struct harp_lease_tables *tables)
{
	route_cache_remove(cache, tables);
	route_cache_add(cache, tables);
	cache->now.skipped = tables->skipped;
}
