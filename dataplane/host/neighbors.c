/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbors.c - next hops resolved by the kernel: HARP never sends ARP on a NIC that it shares.
 *
 * NTF_USE tells the kernel that a packet is about to be sent: it resolves or re-verifies the
 * neighbor, and the monitor receives the result. Our traffic bypasses the kernel, which would
 * consider a busy neighbor idle and probe it. So this code reports progress of a connection to the
 * kernel as a confirmation (RFC 4861 section 7.3.1). It has no MAC address, so it cannot overwrite
 * a changed one.
 *
 * NTF_USE requires CAP_NET_ADMIN. Without it, this code sends a packet: an empty datagram to the
 * discard port (RFC 863) with a hop limit of 1. Confirming needs no privilege: the same call with
 * MSG_CONFIRM and MSG_PROBE sends nothing. The rtnetlink alternative, NUD_REACHABLE, would turn an
 * operator's permanent entry into one that expires. tests/netns/test_network_monitor.py verifies
 * this behavior.
 *
 * A job in another network namespace asks harpd (host/netwatch.h), which does the same.
 */
#include "host/neighbors.h"

#include <errno.h>
#include <linux/neighbour.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/sockaddr.h"

#define NUD_USABLE (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP)

#define DISCARD_PORT 9
/* Interval of confirmations to harpd. The kernel's are valid for half a minute
 * (base_reachable_time). */
#define CONFIRM_EVERY_NS UINT64_C(1000000000)

/* include/linux/socket.h, missing in the C library: "do not send, only probe the path". */
#ifndef MSG_PROBE
#define MSG_PROBE 0x10
#endif

/* The socket has no port before it sends and is never read: the kernel drops packets beyond the
 * receive buffer. */
static int neighbors_probe(int family, const char *ifname)
{
	const int hops = 1, none = 0, level = family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;

	if (fd < 0)
		return -errno;
	if (!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, ifname, (socklen_t)strlen(ifname) + 1) &&
	    !setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &none, sizeof(none)) &&
	    !setsockopt(fd, level, family == AF_INET ? IP_TTL : IPV6_UNICAST_HOPS, &hops,
			sizeof(hops)))
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

int neighbors_open(struct neighbors *n, const char *ifname, uint32_t ifindex, bool privileged)
{
	n->ifindex = ifindex;
	n->privileged = privileged;
	n->probe_v6_fd = neighbors_probe(AF_INET6, ifname);
	/* A host without IPv6 has no IPv6 neighbors. */
	if (n->probe_v6_fd < 0 && n->probe_v6_fd != -EAFNOSUPPORT)
		return n->probe_v6_fd;
	n->probe_v4_fd = neighbors_probe(AF_INET, ifname);
	return n->probe_v4_fd < 0 ? n->probe_v4_fd : 0;
}

void neighbors_remote(struct neighbors *n, struct netwatch *netwatch)
{
	n->netwatch = netwatch;
}

void neighbors_close(struct neighbors *n)
{
	neighbors_fork_child(n);
	n->probe_v4_fd = n->probe_v6_fd = -1;
}

void neighbors_fork_child(const struct neighbors *n)
{
	if (n->probe_v4_fd >= 0)
		close(n->probe_v4_fd);
	if (n->probe_v6_fd >= 0)
		close(n->probe_v6_fd);
}

static struct host_neighbor *neighbors_find(struct neighbors *n, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < n->count; i++)
		if (addr_equal(&n->all[i].addr, addr))
			return &n->all[i];
	return NULL;
}

/* Returns the entry of a next hop. Replaces the least recently used entry if all are in use. */
static struct host_neighbor *neighbors_entry(struct neighbors *n, const struct harp_addr *addr)
{
	struct host_neighbor *entry = neighbors_find(n, addr);

	if (!entry && n->count < NEIGHBORS_MAX) {
		entry = &n->all[n->count++];
	} else if (!entry) {
		entry = &n->all[0];
		for (unsigned i = 1; i < n->count; i++)
			if (n->all[i].used < entry->used)
				entry = &n->all[i];
	} else {
		entry->used = n->turn;
		return entry;
	}
	*entry = (struct host_neighbor){ .addr = *addr, .used = n->turn };
	return entry;
}

void neighbors_requested(struct neighbors *n, const struct harp_addr *next_hop)
{
	neighbors_entry(n, next_hop)->requested = true;
	n->pending = true;
}

void neighbors_confirmed(struct neighbors *n, const struct harp_addr *next_hop)
{
	neighbors_entry(n, next_hop)->confirm = true;
	n->confirm = true;
}

void neighbors_message(struct neighbors *n, const struct harp_lease_neighbors *message)
{
	for (unsigned i = 0; i < message->count; i++) {
		const struct harp_lease_neighbor *neighbor = &message->all[i];

		if (neighbors_find(n, &neighbor->addr))
			harp_stack_neighbor_set(n->stack, &neighbor->addr,
						neighbor->flags & HARP_LEASE_NEIGHBOR_KNOWN
							? neighbor->mac
							: NULL);
	}
}

void neighbors_event(struct neighbors *n, const struct nlmsghdr *message)
{
	const struct ndmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[NDA_MAX + 1];
	const struct rtattr *mac;
	struct harp_addr addr;

	if ((message->nlmsg_type != RTM_NEWNEIGH && message->nlmsg_type != RTM_DELNEIGH) ||
	    message->nlmsg_len < NLMSG_LENGTH(sizeof(*body)) ||
	    (uint32_t)body->ndm_ifindex != n->ifindex ||
	    (body->ndm_family != AF_INET && body->ndm_family != AF_INET6))
		return;
	netlink_attributes(message, sizeof(*body), attributes, NDA_MAX);
	if (!netlink_addr(attributes[NDA_DST], body->ndm_family, &addr) ||
	    !neighbors_find(n, &addr))
		return; /* the stack has not requested it */
	mac = attributes[NDA_LLADDR];
	if (message->nlmsg_type == RTM_NEWNEIGH && (body->ndm_state & NUD_USABLE)) {
		if (mac && RTA_PAYLOAD(mac) == 6)
			harp_stack_neighbor_set(n->stack, &addr, RTA_DATA(mac));
	} else if (message->nlmsg_type == RTM_DELNEIGH || (body->ndm_state & NUD_FAILED)) {
		/* The stack requests it again if necessary. */
		harp_stack_neighbor_set(n->stack, &addr, NULL);
	}
}

static struct ndmsg *neighbors_begin(const struct neighbors *n, struct netlink_message *message,
				     uint16_t type, uint16_t flags, const struct harp_addr *addr)
{
	struct ndmsg *body = netlink_begin(message, type, flags, sizeof(*body));

	body->ndm_family = (uint8_t)netlink_family(addr);
	body->ndm_ifindex = (int)n->ifindex;
	netlink_put_addr(message, NDA_DST, addr);
	return body;
}

/* Sends an empty datagram to a next hop, or with MSG_PROBE no packet at all. Ignores errors: the
 * stack repeats the request and eventually gives up. */
static void neighbors_send(const struct neighbors *n, const struct harp_addr *addr, int flags)
{
	const struct harp_endpoint there = {
		.addr = *addr,
		.port = DISCARD_PORT,
		.scope_id = harp_addr_is_link_local(addr) ? n->ifindex : 0,
	};
	struct sockaddr_storage sa;
	socklen_t len = sockaddr_from_endpoint(&sa, &there);
	int fd = harp_addr_is_v4(addr) ? n->probe_v4_fd : n->probe_v6_fd;

	flags |= MSG_DONTWAIT | MSG_DONTROUTE | MSG_NOSIGNAL;
	(void)!sendto(fd, NULL, 0, flags, (struct sockaddr *)&sa, len);
}

/* Requests a neighbor. The monitor receives its current state and the result. */
static void neighbors_request(struct neighbors *n, struct netlink_worker *worker,
			      const struct harp_addr *addr)
{
	struct netlink_message message;

	neighbors_begin(n, &message, RTM_GETNEIGH, 0, addr);
	netlink_worker_post(worker, &message);
	if (!n->privileged) {
		neighbors_send(n, addr, 0);
		return;
	}
	neighbors_begin(n, &message, RTM_NEWNEIGH, NLM_F_CREATE, addr)->ndm_flags = NTF_USE;
	netlink_worker_post(worker, &message);
}

static void neighbors_local(struct neighbors *n, struct netlink_worker *worker)
{
	for (unsigned i = 0; i < n->count; i++) {
		struct host_neighbor *neighbor = &n->all[i];

		if (neighbor->requested)
			neighbors_request(n, worker, &neighbor->addr);
		if (neighbor->confirm)
			neighbors_send(n, &neighbor->addr, MSG_CONFIRM | MSG_PROBE);
		neighbor->requested = neighbor->confirm = false;
	}
}

/* Builds the next message, starting at entry *at. entries: receives the included entries. */
static void neighbors_collect(struct neighbors *n, unsigned *at,
			      struct harp_lease_neighbors *message,
			      struct host_neighbor *entries[HARP_LEASE_NEIGHBORS_MAX])
{
	message->count = 0;
	for (; *at < n->count && message->count < HARP_LEASE_NEIGHBORS_MAX; ++*at) {
		struct host_neighbor *neighbor = &n->all[*at];

		if (!neighbor->requested && !neighbor->confirm)
			continue;
		entries[message->count] = neighbor;
		message->all[message->count++] = (struct harp_lease_neighbor){
			.addr = neighbor->addr,
			.flags = (neighbor->requested ? HARP_LEASE_NEIGHBOR_WANTED : 0u) |
				 (neighbor->confirm ? HARP_LEASE_NEIGHBOR_CONFIRMED : 0u),
		};
	}
}

/* Sends recorded requests to harpd. Those that its socket does not accept now stay recorded. */
static void neighbors_report(struct neighbors *n)
{
	struct host_neighbor *entries[HARP_LEASE_NEIGHBORS_MAX];
	struct harp_lease_neighbors message = { 0 };
	unsigned at = 0;

	for (;;) {
		neighbors_collect(n, &at, &message, entries);
		if (!message.count)
			return;
		if (netwatch_neighbors(n->netwatch, &message)) {
			n->unsent = true;
			return;
		}
		for (unsigned i = 0; i < message.count; i++)
			entries[i]->requested = entries[i]->confirm = false;
	}
}

void neighbors_work(struct neighbors *n, struct netlink_worker *worker, uint64_t now_ns)
{
	bool confirm = n->confirm && (!n->netwatch || now_ns >= n->confirm_ns);

	n->turn++;
	if (!n->pending && !n->unsent && !confirm)
		return;
	n->pending = n->unsent = n->confirm = false;
	n->confirm_ns = now_ns + CONFIRM_EVERY_NS;
	if (n->netwatch)
		neighbors_report(n);
	else
		neighbors_local(n, worker);
}

void neighbors_resync(struct neighbors *n)
{
	for (unsigned i = 0; i < n->count; i++)
		n->all[i].requested = true;
	n->pending = n->count;
}
