/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mirror.c - the interface's addresses and routes, kept in a stack: dumped, compared, and only what
 * differs is changed, so that connections never see a gap.
 *
 * All addresses that the kernel answers for are the stack's, deprecated and temporary ones too: which of
 * them to call from is the kernel's choice, asked for with each connection (harp_host_route()). Routes
 * that the stack can't follow as the kernel would are left out, so that it sends nothing astray.
 */
#include "host/mirror.h"

#include <errno.h>
#include <string.h>

#include "host/question.h"

#define MIRROR_DUMP_TRIES 4

struct mirror_dump {
	uint32_t ifindex;
	struct harp_lease_tables found;
};

static bool addr_equal(const struct harp_addr *a, const struct harp_addr *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

static int dump_address(void *ctx, const struct nlmsghdr *message)
{
	struct mirror_dump *dump = ctx;
	struct harp_lease_tables *found = &dump->found;
	const struct ifaddrmsg *body = NLMSG_DATA(message);
	struct harp_addr addr;
	int state;

	/* A tentative one is not ours yet: a notification follows when it is. */
	if (!netlink_own_address(message, &addr, &state) || state < HARP_ADDRESS_DEPRECATED ||
	    body->ifa_index != dump->ifindex || body->ifa_scope > RT_SCOPE_LINK)
		return 0;
	if (found->address_count < HARP_LEASE_ADDRESSES_MAX)
		found->addresses[found->address_count++] = addr;
	else
		found->skipped++;
	return 0;
}

static bool route_same_prefix(const struct harp_lease_route *a, const struct harp_lease_route *b)
{
	return a->prefix_len == b->prefix_len && addr_equal(&a->prefix, &b->prefix) &&
	       netlink_family(&a->prefix) == netlink_family(&b->prefix);
}

/* Through another interface, encapsulated, for some sources only, or learned by the kernel of one
 * destination (RTM_F_CLONED: its path MTU, which expires unannounced): not to be copied. */
static bool route_fits(const struct rtmsg *body, const struct rtattr *const *attributes)
{
	return body->rtm_type == RTN_UNICAST && !(body->rtm_flags & RTM_F_CLONED) &&
	       !body->rtm_src_len && !attributes[RTA_ENCAP_TYPE] &&
	       netlink_u32(attributes[RTA_TABLE], body->rtm_table) == RT_TABLE_MAIN &&
	       (body->rtm_family == AF_INET || body->rtm_family == AF_INET6);
}

/* Does the route leave by our interface, and can the stack follow it? attributes become that way's. */
static bool route_way(struct harp_lease_route *route, const struct rtmsg *body,
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

static uint32_t route_mtu(const struct rtattr *attribute)
{
	const struct rtattr *metrics[RTAX_MAX + 1];

	if (!attribute)
		return 0;
	netlink_attributes_in(RTA_DATA(attribute), RTA_PAYLOAD(attribute), metrics, RTAX_MAX);
	return netlink_u32(metrics[RTAX_MTU], 0);
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
	struct mirror_dump *dump = ctx;
	struct harp_lease_tables *found = &dump->found;
	const struct rtmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[RTA_MAX + 1];
	struct harp_lease_route route = { .prefix_len = body->rtm_dst_len };

	if (message->nlmsg_type != RTM_NEWROUTE)
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, RTA_MAX);
	if (!route_fits(body, attributes))
		return 0;
	if (!netlink_addr(attributes[RTA_DST], body->rtm_family, &route.prefix) &&
	    body->rtm_family == AF_INET)
		route.prefix = harp_addr_v4(0, 0, 0, 0);
	route.metric = netlink_u32(attributes[RTA_PRIORITY], 0);
	route.mtu_bytes = route_mtu(attributes[RTA_METRICS]);
	route.preference = route_preference(attributes[RTA_PREF]);
	if (!route_way(&route, body, attributes, dump->ifindex))
		return 0;
	/* The kernel dumps the better metric of one prefix first. */
	for (unsigned i = 0; i < found->route_count; i++) {
		struct harp_lease_route *other = &found->routes[i];

		if (!route_same_prefix(other, &route))
			continue;
		if (route.metric == other->metric && route.preference > other->preference)
			*other = route;
		return 0;
	}
	if (found->route_count < HARP_LEASE_ROUTES_MAX)
		found->routes[found->route_count++] = route;
	else
		found->skipped++;
	return 0;
}

static int mirror_dump(struct netlink *nl, uint16_t type, size_t body_bytes, netlink_fn fn,
		       struct mirror_dump *dump)
{
	struct harp_lease_tables before = dump->found;
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

bool mirror_has_address(const struct harp_lease_tables *tables, const struct harp_addr *addr)
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

		if (route_same_prefix(r, route) && r->mtu_bytes == route->mtu_bytes &&
		    r->has_gateway == route->has_gateway &&
		    addr_equal(&r->gateway, &route->gateway))
			return true;
	}
	return false;
}

/*
 * An address that goes stays in the steering map: when it comes back the kernel owns it before we hear of it,
 * and would answer a peer that retransmits with an RST. Meanwhile the stack drops what comes for it; only
 * ports that our process holds are concerned.
 */
static void mirror_miss(struct mirror *m, const struct harp_addr *addr)
{
	if (!m->xdp)
		return;
	if (m->missed_count == MIRROR_MISSED_MAX) {
		m->api->address_set(m->xdp, m->missed[0].bytes, false);
		memmove(m->missed, m->missed + 1, --m->missed_count * sizeof(*m->missed));
	}
	m->missed[m->missed_count++] = *addr;
}

/* It is back, or was never missed. */
static void mirror_found(struct mirror *m, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < m->missed_count; i++) {
		if (!addr_equal(&m->missed[i], addr))
			continue;
		memmove(m->missed + i, m->missed + i + 1,
			(--m->missed_count - i) * sizeof(*m->missed));
		return;
	}
}

/* What the stack has and the kernel no longer. */
static void mirror_remove(struct mirror *m, const struct harp_lease_tables *found)
{
	for (unsigned i = m->now.route_count; i-- > 0;) {
		if (has_route(found, &m->now.routes[i]))
			continue;
		harp_stack_route_remove(m->stack, &m->now.routes[i].prefix,
					m->now.routes[i].prefix_len);
		m->now.routes[i] = m->now.routes[--m->now.route_count];
	}
	for (unsigned i = m->now.address_count; i-- > 0;) {
		if (mirror_has_address(found, &m->now.addresses[i]))
			continue;
		mirror_miss(m, &m->now.addresses[i]);
		harp_stack_address_remove(m->stack, &m->now.addresses[i]);
		m->now.addresses[i] = m->now.addresses[--m->now.address_count];
	}
}

/* What is new. What the stack refuses (IPv6 where the MTU is too small) stays the kernel's alone. */
static void mirror_add(struct mirror *m, const struct harp_lease_tables *found)
{
	for (unsigned i = 0; i < found->address_count; i++) {
		const struct harp_addr *addr = &found->addresses[i];
		unsigned bits = harp_addr_is_v4(addr) ? 32 : 128;

		/* Full length: the on-link prefix is a route of its own in the kernel's table. */
		if (mirror_has_address(&m->now, addr) ||
		    harp_stack_address_add(m->stack, addr, bits))
			continue;
		if (m->xdp && m->api->address_set(m->xdp, addr->bytes, true)) {
			harp_stack_address_remove(m->stack, addr);
			continue;
		}
		mirror_found(m, addr);
		m->now.addresses[m->now.address_count++] = *addr;
	}
	for (unsigned i = 0; i < found->route_count; i++) {
		const struct harp_lease_route *r = &found->routes[i];

		if (has_route(&m->now, r) ||
		    harp_stack_route_add(m->stack, &r->prefix, r->prefix_len,
					 r->has_gateway ? &r->gateway : NULL, r->mtu_bytes))
			continue;
		m->now.routes[m->now.route_count++] = *r;
	}
}

int mirror_read(uint32_t ifindex, struct netlink *nl, struct harp_lease_tables *found)
{
	struct mirror_dump dump = { .ifindex = ifindex };
	int rc = mirror_dump(nl, RTM_GETADDR, sizeof(struct ifaddrmsg), dump_address, &dump);

	if (!rc)
		rc = mirror_dump(nl, RTM_GETROUTE, sizeof(struct rtmsg), dump_route, &dump);
	*found = dump.found;
	return rc;
}

int mirror_network(uint32_t ifindex, struct harp_lease_network *out)
{
	struct question_link link;
	struct netlink nl;
	int rc = netlink_open(&nl, 0);

	memset(out, 0, sizeof(*out));
	if (rc)
		return rc;
	rc = question_link(&nl, ifindex, &link);
	if (!rc) {
		out->link = link.up ? HARP_LEASE_LINK_UP : HARP_LEASE_LINK_DOWN;
		out->mtu_bytes = link.mtu_bytes;
		memcpy(out->mac, link.mac, sizeof(out->mac));
		rc = mirror_read(ifindex, &nl, &out->tables);
	} else if (rc == -ENODEV) {
		out->link = HARP_LEASE_LINK_GONE;
		rc = 0;
	}
	netlink_close(&nl);
	return rc;
}

void mirror_apply(struct mirror *mirror, const struct harp_lease_tables *found)
{
	mirror_remove(mirror, found);
	mirror_add(mirror, found);
	mirror->now.skipped = found->skipped;
}
