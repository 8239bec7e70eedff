/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbours.c - next hops, resolved by the kernel: we never speak ARP on a NIC that we share.
 *
 * NTF_USE tells the kernel "a packet is about to go there": it resolves or re-verifies by itself, and
 * the monitor hears the result. Our own traffic does not pass the kernel, so it would take a busy
 * neighbour for idle and probe it; progress of a connection is passed on as NUD_REACHABLE (RFC 4861
 * section 7.3.1), without a MAC address, so that it can't overwrite one that has changed.
 *
 * Both take CAP_NET_ADMIN. Who has none has two UDP sockets instead, bound to the NIC by harpd: a real
 * packet is on its way when an empty datagram is sent (to the discard port, RFC 863, and no further than
 * the next hop), and the same call with MSG_CONFIRM and MSG_PROBE sends nothing at all and confirms.
 * tests/assumptions/neighbour_facts.c shows that the kernel does so.
 */
#include "host/neighbours.h"

#include <errno.h>
#include <linux/neighbour.h>
#include <netinet/in.h>
#include <string.h>

#include "base/sockaddr.h"

#define NUD_USABLE (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP)

#define DISCARD_PORT 9

/* include/linux/socket.h, not in the C library: "do not send, only probe the path". */
#ifndef MSG_PROBE
#define MSG_PROBE 0x10
#endif

void neighbours_init(struct neighbours *n, uint32_t ifindex, int probe_v4_fd, int probe_v6_fd)
{
	static const int hops = 1;

	n->ifindex = ifindex;
	n->probe_v4_fd = probe_v4_fd;
	n->probe_v6_fd = probe_v6_fd;
	if (probe_v4_fd >= 0)
		setsockopt(probe_v4_fd, IPPROTO_IP, IP_TTL, &hops, sizeof(hops));
	if (probe_v6_fd >= 0)
		setsockopt(probe_v6_fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &hops, sizeof(hops));
}

static struct host_neighbour *neighbours_find(struct neighbours *n, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < n->count; i++)
		if (memcmp(n->all[i].addr.bytes, addr->bytes, sizeof(addr->bytes)) == 0)
			return &n->all[i];
	return NULL;
}

/* The record of a next hop; when all are used the one unused for longest makes room. */
static struct host_neighbour *neighbours_note(struct neighbours *n, const struct harp_addr *addr)
{
	struct host_neighbour *found = neighbours_find(n, addr);

	if (!found && n->count < NEIGHBOURS_MAX) {
		found = &n->all[n->count++];
	} else if (!found) {
		found = &n->all[0];
		for (unsigned i = 1; i < n->count; i++)
			if (n->all[i].used < found->used)
				found = &n->all[i];
	} else {
		found->used = n->turn;
		return found;
	}
	*found = (struct host_neighbour){ .addr = *addr, .used = n->turn };
	return found;
}

void neighbours_wanted(struct neighbours *n, const struct harp_addr *next_hop)
{
	neighbours_note(n, next_hop)->wanted = true;
	n->pending = true;
}

void neighbours_confirmed(struct neighbours *n, const struct harp_addr *next_hop)
{
	neighbours_note(n, next_hop)->confirm = true;
	n->confirm = true;
}

void neighbours_event(struct neighbours *n, const struct nlmsghdr *message)
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
	    !neighbours_find(n, &addr))
		return; /* none of ours: the stack's table is not for the whole subnet */
	mac = attributes[NDA_LLADDR];
	if (message->nlmsg_type == RTM_NEWNEIGH && (body->ndm_state & NUD_USABLE)) {
		if (mac && RTA_PAYLOAD(mac) == 6)
			harp_stack_neighbour_set(n->stack, &addr, RTA_DATA(mac));
	} else if (message->nlmsg_type == RTM_DELNEIGH || (body->ndm_state & NUD_FAILED)) {
		harp_stack_neighbour_set(n->stack, &addr, NULL); /* it asks again if it needs to */
	}
}

static struct ndmsg *neighbours_begin(const struct neighbours *n, struct netlink_message *message,
				      uint16_t type, uint16_t flags, const struct harp_addr *addr)
{
	struct ndmsg *body = netlink_begin(message, type, flags, sizeof(*body));

	body->ndm_family = (uint8_t)netlink_family(addr);
	body->ndm_ifindex = (int)n->ifindex;
	netlink_put_addr(message, NDA_DST, addr);
	return body;
}

/* An empty datagram to a next hop, or with MSG_PROBE no packet at all. A failure shows in the silence
 * that follows: the stack asks again, and gives up in its own time. */
static void neighbours_send(const struct neighbours *n, const struct harp_addr *addr, int flags)
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

/* The monitor hears what the kernel knows, and what it does not and then finds out. */
static void neighbours_ask(struct neighbours *n, struct asker *asker, const struct harp_addr *addr)
{
	struct netlink_message message;

	neighbours_begin(n, &message, RTM_GETNEIGH, 0, addr);
	asker_post(asker, &message);
	if (n->probe_v4_fd >= 0) {
		neighbours_send(n, addr, 0);
		return;
	}
	neighbours_begin(n, &message, RTM_NEWNEIGH, NLM_F_CREATE, addr)->ndm_flags = NTF_USE;
	asker_post(asker, &message);
}

static void neighbours_confirm(const struct neighbours *n, struct asker *asker,
			       const struct harp_addr *addr)
{
	struct netlink_message message;

	if (n->probe_v4_fd >= 0) {
		neighbours_send(n, addr, MSG_CONFIRM | MSG_PROBE);
		return;
	}
	neighbours_begin(n, &message, RTM_NEWNEIGH, 0, addr)->ndm_state = NUD_REACHABLE;
	asker_post(asker, &message);
}

void neighbours_work(struct neighbours *n, struct asker *asker)
{
	n->turn++;
	if (!n->pending && !n->confirm)
		return;
	n->pending = n->confirm = false;
	for (unsigned i = 0; i < n->count; i++) {
		struct host_neighbour *one = &n->all[i];
		struct harp_addr addr = one->addr;
		bool wanted = one->wanted, confirm = one->confirm;

		one->wanted = one->confirm = false;
		if (wanted)
			neighbours_ask(n, asker, &addr);
		if (confirm)
			neighbours_confirm(n, asker, &addr);
	}
}

void neighbours_resync(struct neighbours *n)
{
	for (unsigned i = 0; i < n->count; i++)
		n->all[i].wanted = true;
	n->pending = n->count;
}
