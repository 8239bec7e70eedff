/* SPDX-License-Identifier: Apache-2.0 */
/* netlink_get.c - queries links, routes and addresses by rtnetlink, without privileges. */
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/addr.h"
#include "host/netlink_get.h"

static int link_answer(void *ctx, const struct nlmsghdr *message)
{
	struct netlink_get_link *out = ctx;
	const struct ifinfomsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[IFLA_MAX + 1], *name, *mac;

	if (message->nlmsg_type != RTM_NEWLINK)
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, IFLA_MAX);
	out->up = netlink_link_is_up(body);
	out->mtu_bytes = netlink_u32(attributes[IFLA_MTU], 0);
	name = attributes[IFLA_IFNAME];
	if (name && RTA_PAYLOAD(name) <= sizeof(out->ifname))
		memcpy(out->ifname, RTA_DATA(name), RTA_PAYLOAD(name));
	mac = attributes[IFLA_ADDRESS];
	if (mac && RTA_PAYLOAD(mac) == sizeof(out->mac))
		memcpy(out->mac, RTA_DATA(mac), sizeof(out->mac));
	return 0;
}

int netlink_get_link(struct netlink *nl, uint32_t ifindex, struct netlink_get_link *out)
{
	struct netlink_message message;
	struct ifinfomsg *body;

	memset(out, 0, sizeof(*out));
	body = netlink_begin(&message, RTM_GETLINK, 0, sizeof(*body));
	body->ifi_index = (int)ifindex;
	return netlink_call(nl, &message, link_answer, out);
}

struct route_answer {
	int family;
	bool has_route, is_unreachable;
	struct harp_host_route *out;
};

static int route_answer(void *ctx, const struct nlmsghdr *message)
{
	struct route_answer *answer = ctx;
	struct harp_host_route *out = answer->out;
	const struct rtmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[RTA_MAX + 1];

	if (message->nlmsg_type != RTM_NEWROUTE)
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, RTA_MAX);
	answer->has_route = true;
	answer->is_unreachable = body->rtm_type != RTN_UNICAST && body->rtm_type != RTN_LOCAL;
	out->is_local = body->rtm_type == RTN_LOCAL;
	out->ifindex = netlink_u32(attributes[RTA_OIF], 0);
	netlink_addr(attributes[RTA_PREFSRC], answer->family, &out->source);
	out->has_gateway = netlink_gateway(attributes, answer->family, &out->next_hop);
	out->mtu_bytes = netlink_route_mtu(attributes[RTA_METRICS]);
	return 0;
}

/*
 * Reads the interface's name and MTU. RTM_GETLINK waits for the RTNL lock, which a process that
 * creates interfaces or namespaces holds for tens of milliseconds. Every connect looks up a route,
 * so this uses two ioctls, which take no lock.
 */
static int route_interface(struct netlink *nl, struct harp_host_route *out)
{
	struct ifreq request = { .ifr_ifindex = (int)out->ifindex };

	if (ioctl(nl->fd, SIOCGIFNAME, &request))
		return -errno;
	memcpy(out->ifname, request.ifr_name, sizeof(out->ifname));
	if (out->mtu_bytes)
		return 0;
	if (ioctl(nl->fd, SIOCGIFMTU, &request))
		return -errno;
	out->mtu_bytes = (uint32_t)request.ifr_mtu;
	return 0;
}

/* As harp_host_route(). ifindex: for a link-local destination; 0: any interface. */
static int get_route(struct netlink *nl, const struct harp_addr *dst, uint32_t ifindex,
		     struct harp_host_route *out)
{
	struct route_answer answer = { .family = netlink_family(dst), .out = out };
	struct netlink_message message;
	struct rtmsg *body;
	int rc;

	memset(out, 0, sizeof(*out));
	out->next_hop = *dst;
	body = netlink_begin(&message, RTM_GETROUTE, 0, sizeof(*body));
	body->rtm_family = (uint8_t)answer.family;
	body->rtm_dst_len = answer.family == AF_INET ? 32 : 128;
	netlink_put_addr(&message, RTA_DST, dst);
	if (ifindex)
		netlink_put(&message, RTA_OIF, &ifindex, sizeof(ifindex));
	rc = netlink_call(nl, &message, route_answer, &answer);
	if (rc)
		return rc;
	if (!answer.has_route || answer.is_unreachable)
		return -ENETUNREACH;
	return route_interface(nl, out);
}

int harp_host_route(const struct harp_addr *dst, struct harp_host_route *out)
{
	struct netlink nl;
	int rc = netlink_open(&nl, 0);

	memset(out, 0, sizeof(*out));
	if (rc)
		return rc;
	rc = get_route(&nl, dst, 0, out);
	netlink_close(&nl);
	return rc;
}

struct address_request {
	uint32_t ifindex;
	const struct harp_addr *addr;
	int state;
};

static int address_answer(void *ctx, const struct nlmsghdr *message)
{
	struct address_request *request = ctx;
	const struct ifaddrmsg *body = NLMSG_DATA(message);
	struct harp_addr addr;
	int state;

	if (netlink_own_address(message, &addr, &state) && body->ifa_index == request->ifindex &&
	    addr_equal(&addr, request->addr))
		request->state = state;
	return 0;
}

/* As harp_host_address_state(). */
static int get_address_state(struct netlink *nl, uint32_t ifindex, const struct harp_addr *addr)
{
	struct address_request request = { .ifindex = ifindex, .addr = addr };
	struct netlink_message message;
	struct ifaddrmsg *body;
	int rc;

	do {
		request.state = -EADDRNOTAVAIL;
		body = netlink_begin(&message, RTM_GETADDR, NLM_F_DUMP, sizeof(*body));
		body->ifa_family = (uint8_t)netlink_family(addr);
		rc = netlink_call(nl, &message, address_answer, &request);
	} while (rc == -EINTR);
	return rc ? rc : request.state;
}

int netlink_get_route_from(struct netlink *nl, uint32_t ifindex, const struct harp_addr *dst,
			   struct harp_host_route *out)
{
	int rc = get_route(nl, dst, harp_addr_is_link_local(dst) ? ifindex : 0, out);

	/* The stack does not have an address of another interface (such as a loopback address). */
	if (!rc && (out->ifindex != ifindex || get_address_state(nl, ifindex, &out->source) < 0))
		memset(&out->source, 0, sizeof(out->source));
	return rc;
}

void netlink_get_routed(uint32_t ifindex, const struct harp_addr *dst,
			struct harp_lease_routed *out)
{
	struct netlink nl;
	int rc = netlink_open(&nl, 0);

	*out = (struct harp_lease_routed){ 0 };
	if (!rc) {
		rc = netlink_get_route_from(&nl, ifindex, dst, &out->route);
		netlink_close(&nl);
	}
	out->error = -rc;
}

int harp_host_address_state(const char *ifname, const struct harp_addr *addr)
{
	uint32_t ifindex = if_nametoindex(ifname);
	struct netlink nl;
	int rc;

	if (!ifindex)
		return -ENODEV;
	rc = netlink_open(&nl, 0);
	if (rc)
		return rc;
	rc = get_address_state(&nl, ifindex, addr);
	netlink_close(&nl);
	return rc;
}

struct default_route_request {
	uint32_t ifindex;
	bool is_default;
};

static int default_answer(void *ctx, const struct nlmsghdr *message)
{
	struct default_route_request *request = ctx;
	const struct rtmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[RTA_MAX + 1];

	if (message->nlmsg_type != RTM_NEWROUTE || body->rtm_dst_len ||
	    body->rtm_type != RTN_UNICAST)
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, RTA_MAX);
	if (netlink_u32(attributes[RTA_OIF], 0) == request->ifindex ||
	    (attributes[RTA_MULTIPATH] && netlink_hop(attributes[RTA_MULTIPATH], request->ifindex)))
		request->is_default = true;
	return 0;
}

int harp_host_has_default_route(const char *ifname)
{
	struct default_route_request request = { .ifindex = if_nametoindex(ifname) };
	struct netlink_message message;
	struct netlink nl;
	int rc;

	if (!request.ifindex)
		return -ENODEV;
	rc = netlink_open(&nl, 0);
	if (rc)
		return rc;
	do {
		netlink_begin(&message, RTM_GETROUTE, NLM_F_DUMP, sizeof(struct rtmsg));
		rc = netlink_call(&nl, &message, default_answer, &request);
	} while (rc == -EINTR && !request.is_default);
	netlink_close(&nl);
	return rc ? rc : request.is_default;
}
