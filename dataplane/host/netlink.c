/* SPDX-License-Identifier: Apache-2.0 */
/* netlink.c - a small rtnetlink client on libc alone, because the plugin may link nothing else. */
#include "host/netlink.h"

#include <assert.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define NETLINK_BUFFER_BYTES 32768 /* the kernel's largest dump message */

int netlink_open(struct netlink *nl, uint32_t groups)
{
	struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = groups };
	struct timeval limit = { .tv_sec = 1 };
	int type = SOCK_RAW | SOCK_CLOEXEC | (groups ? SOCK_NONBLOCK : 0);
	int rc;

	nl->sequence = 0;
	nl->fd = socket(AF_NETLINK, type, NETLINK_ROUTE);
	if (nl->fd < 0)
		return -errno;
	if (bind(nl->fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	    setsockopt(nl->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0)
		return 0;
	rc = -errno;
	netlink_close(nl);
	return rc;
}

void netlink_close(struct netlink *nl)
{
	if (nl->fd >= 0)
		close(nl->fd);
	nl->fd = -1;
}

/* ---- writing -------------------------------------------------------------------------------- */

void *netlink_begin(struct netlink_message *message, uint16_t type, uint16_t flags,
		    size_t body_bytes)
{
	memset(message, 0, sizeof(*message));
	assert(NLMSG_ALIGN(body_bytes) <= sizeof(message->rest));
	message->head.nlmsg_len = (uint32_t)NLMSG_LENGTH(body_bytes);
	message->head.nlmsg_type = type;
	message->head.nlmsg_flags = NLM_F_REQUEST | flags;
	return NLMSG_DATA(&message->head);
}

void netlink_put(struct netlink_message *message, uint16_t type, const void *data, size_t len)
{
	size_t at = NLMSG_ALIGN(message->head.nlmsg_len);
	struct rtattr *attribute = (struct rtattr *)((uint8_t *)message + at);

	assert(at + RTA_SPACE(len) <= sizeof(*message));
	attribute->rta_type = type;
	attribute->rta_len = (uint16_t)RTA_LENGTH(len);
	memcpy(RTA_DATA(attribute), data, len);
	message->head.nlmsg_len = (uint32_t)(at + RTA_LENGTH(len));
}

int netlink_family(const struct harp_addr *addr)
{
	return harp_addr_is_v4(addr) ? AF_INET : AF_INET6;
}

void netlink_put_addr(struct netlink_message *message, uint16_t type, const struct harp_addr *addr)
{
	if (harp_addr_is_v4(addr))
		netlink_put(message, type, addr->bytes + 12, 4);
	else
		netlink_put(message, type, addr->bytes, 16);
}

/* ---- reading -------------------------------------------------------------------------------- */

void netlink_attributes_in(const struct rtattr *first, size_t bytes, const struct rtattr **table,
			   unsigned max)
{
	memset(table, 0, (max + 1) * sizeof(*table));
	while (bytes >= sizeof(*first) && first->rta_len >= sizeof(*first) &&
	       first->rta_len <= bytes) {
		size_t step = RTA_ALIGN(first->rta_len);
		unsigned type = first->rta_type & (unsigned)NLA_TYPE_MASK;

		if (type <= max)
			table[type] = first;
		if (step >= bytes)
			break;
		bytes -= step;
		first = (const struct rtattr *)((const uint8_t *)first + step);
	}
}

void netlink_attributes(const struct nlmsghdr *message, size_t body_bytes,
			const struct rtattr **table, unsigned max)
{
	size_t at = NLMSG_SPACE(body_bytes);

	netlink_attributes_in((const struct rtattr *)((const uint8_t *)message + at),
			      message->nlmsg_len > at ? message->nlmsg_len - at : 0, table, max);
}

const struct rtnexthop *netlink_hop(const struct rtattr *multipath, uint32_t ifindex)
{
	const uint8_t *at = RTA_DATA(multipath);
	size_t left = RTA_PAYLOAD(multipath);

	while (left >= sizeof(struct rtnexthop)) {
		const struct rtnexthop *hop = (const struct rtnexthop *)at;
		size_t step = ((size_t)hop->rtnh_len + 3) & ~(size_t)3;

		if (hop->rtnh_len < sizeof(*hop) || hop->rtnh_len > left)
			break;
		if ((uint32_t)hop->rtnh_ifindex == ifindex)
			return hop;
		if (step >= left)
			break;
		at += step;
		left -= step;
	}
	return NULL;
}

uint32_t netlink_u32(const struct rtattr *attribute, uint32_t absent)
{
	uint32_t value = absent;

	if (attribute && RTA_PAYLOAD(attribute) >= sizeof(value))
		memcpy(&value, RTA_DATA(attribute), sizeof(value));
	return value;
}

bool netlink_addr(const struct rtattr *attribute, int family, struct harp_addr *out)
{
	const uint8_t *raw;

	if (!attribute || RTA_PAYLOAD(attribute) != (family == AF_INET ? 4 : 16))
		return false;
	raw = RTA_DATA(attribute);
	if (family == AF_INET)
		*out = harp_addr_v4(raw[0], raw[1], raw[2], raw[3]);
	else
		memcpy(out->bytes, raw, 16);
	return true;
}

bool netlink_gateway(const struct rtattr *const *attributes, int family, struct harp_addr *out)
{
	const struct rtattr *attribute = attributes[RTA_VIA];
	const struct rtvia *via;
	size_t len;

	if (netlink_addr(attributes[RTA_GATEWAY], family, out))
		return true;
	if (!attribute || RTA_PAYLOAD(attribute) < sizeof(*via))
		return false;
	via = RTA_DATA(attribute);
	len = RTA_PAYLOAD(attribute) - sizeof(*via);
	if (via->rtvia_family == AF_INET6 && len == 16)
		memcpy(out->bytes, via->rtvia_addr, 16);
	else if (via->rtvia_family == AF_INET && len == 4)
		*out = harp_addr_v4(via->rtvia_addr[0], via->rtvia_addr[1], via->rtvia_addr[2],
				    via->rtvia_addr[3]);
	else
		return false;
	return true;
}

bool netlink_link_is_up(const struct ifinfomsg *link)
{
	/* IFF_LOWER_UP of linux/if.h, which conflicts with net/if.h: the carrier, without delay. */
	const unsigned lower_up = 0x10000;

	return (link->ifi_flags & IFF_UP) && (link->ifi_flags & lower_up);
}

static int address_state(int family, uint32_t flags)
{
	if (flags & IFA_F_DADFAILED)
		return HARP_ADDRESS_DUPLICATE;
	/* An optimistic address can be used while it is being verified (RFC 4429). */
	if ((flags & IFA_F_TENTATIVE) && !(flags & IFA_F_OPTIMISTIC))
		return HARP_ADDRESS_TENTATIVE;
	if (flags & IFA_F_DEPRECATED)
		return HARP_ADDRESS_DEPRECATED;
	if (family == AF_INET6 && (flags & IFA_F_TEMPORARY)) /* IPv4's IFA_F_SECONDARY */
		return HARP_ADDRESS_TEMPORARY;
	return HARP_ADDRESS_PREFERRED;
}

bool netlink_own_address(const struct nlmsghdr *message, struct harp_addr *addr, int *state)
{
	const struct ifaddrmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[IFA_MAX + 1];

	if (message->nlmsg_type != RTM_NEWADDR ||
	    (body->ifa_family != AF_INET && body->ifa_family != AF_INET6))
		return false;
	netlink_attributes(message, sizeof(*body), attributes, IFA_MAX);
	*state = address_state(body->ifa_family,
			       netlink_u32(attributes[IFA_FLAGS], body->ifa_flags));
	/* On a point-to-point link IFA_ADDRESS is the peer's address. On other links IPv6 has only
	 * IFA_ADDRESS. */
	return netlink_addr(attributes[IFA_LOCAL], body->ifa_family, addr) ||
	       netlink_addr(attributes[IFA_ADDRESS], body->ifa_family, addr);
}

/*
 * Processes one datagram. sequence: of the request; 0: the socket is a monitor. 1: the answer is
 * complete; 0: more follows; or -errno.
 */
static int netlink_walk(const void *buffer, size_t bytes, uint32_t sequence, netlink_fn fn,
			void *ctx)
{
	const struct nlmsghdr *message = buffer;
	bool interrupted = false;
	int rc;

	for (; NLMSG_OK(message, bytes); message = NLMSG_NEXT(message, bytes)) {
		if (sequence && message->nlmsg_seq != sequence)
			continue; /* the answer to a call that timed out */
		interrupted |= !!(message->nlmsg_flags & NLM_F_DUMP_INTR);
		if (!sequence && message->nlmsg_type == NLMSG_ERROR)
			continue; /* answers a request of the netlink worker (netlink_worker.h) */
		if (message->nlmsg_type == NLMSG_ERROR) {
			const struct nlmsgerr *error = NLMSG_DATA(message);

			if (message->nlmsg_len < NLMSG_LENGTH(sizeof(*error)))
				return -EPROTO;
			return error->error ? error->error : 1;
		}
		if (message->nlmsg_type == NLMSG_DONE)
			return interrupted ? -EINTR : 1;
		rc = fn ? fn(ctx, message) : 0;
		if (rc < 0)
			return rc;
	}
	return interrupted ? -EINTR : 0;
}

/*
 * Receives the kernel's next datagram; -1 and errno as recv(). Processes with CAP_NET_ADMIN can
 * send malformed messages to this socket.
 */
static ssize_t netlink_receive(const struct netlink *nl, void *buffer, int flags)
{
	for (;;) {
		struct sockaddr_nl from = { 0 };
		socklen_t len = sizeof(from);
		ssize_t got = recvfrom(nl->fd, buffer, NETLINK_BUFFER_BYTES, flags,
				       (struct sockaddr *)&from, &len);

		if (got < 0 || (len >= sizeof(from) && !from.nl_pid))
			return got;
	}
}

int netlink_call(struct netlink *nl, struct netlink_message *message, netlink_fn fn, void *ctx)
{
	_Alignas(struct nlmsghdr) char buffer[NETLINK_BUFFER_BYTES];
	int rc = 0;

	if (!++nl->sequence)
		++nl->sequence;
	message->head.nlmsg_seq = nl->sequence;
	if (!(message->head.nlmsg_flags & NLM_F_DUMP))
		message->head.nlmsg_flags |= NLM_F_ACK;
	if (send(nl->fd, message, message->head.nlmsg_len, 0) < 0)
		return -errno;
	while (rc == 0) {
		ssize_t got = netlink_receive(nl, buffer, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		rc = netlink_walk(buffer, (size_t)got, nl->sequence, fn, ctx);
	}
	return rc < 0 ? rc : 0;
}

int netlink_events(struct netlink *nl, netlink_fn fn, void *ctx)
{
	_Alignas(struct nlmsghdr) char buffer[NETLINK_BUFFER_BYTES];

	for (;;) {
		ssize_t got = netlink_receive(nl, buffer, MSG_DONTWAIT);
		int rc;

		if (got < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		rc = netlink_walk(buffer, (size_t)got, 0, fn, ctx);
		if (rc < 0)
			return rc;
	}
}

uint32_t netlink_route_mtu(const struct rtattr *attribute)
{
	const struct rtattr *metrics[RTAX_MAX + 1];

	if (!attribute)
		return 0;
	netlink_attributes_in(RTA_DATA(attribute), RTA_PAYLOAD(attribute), metrics, RTAX_MAX);
	return netlink_u32(metrics[RTAX_MTU], 0);
}
