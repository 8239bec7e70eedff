/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbor_facts.c - what a stack without privileges relies on to have neighbors resolved and confirmed,
 * asked of the kernel that runs the tests. Its sockets are its own:
 *   0. a socket that is bound to no device may be bound to one without privileges (Linux 5.7)
 *   1. a datagram of no bytes with TTL 1 makes the kernel resolve the next hop
 *   2. sendto() of no bytes with MSG_CONFIRM and MSG_PROBE keeps the entry REACHABLE ...
 *   3. ... and sends nothing
 *   4. left alone the same entry stops being REACHABLE: so 2 says something
 *   5. a netlink socket lets it ask (RTM_GETNEIGH) and change nothing (EPERM)
 * usage: neighbor_facts IFNAME ADDRESS REACHABLE_MS, as root; the interface's reachable time has been set
 * to the last. Exit 0, or 1 and the fact that does not hold.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "host/neighbors.h"

#ifndef MSG_PROBE
#define MSG_PROBE 0x10
#endif
#define RESOLVE_MS 3000
#define NOBODY 65534

static uint32_t ifindex;
static struct harp_addr peer;
static struct netlink monitor, questions;
static int probe_fd;

static void fact(int holds, const char *text)
{
	if (holds)
		return;
	fprintf(stderr, "does not hold: %s (errno: %s)\n", text, strerror(errno));
	exit(1);
}

static uint64_t clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* ---- the entry ------------------------------------------------------------------------------ */

static int entry_state(void *ctx, const struct nlmsghdr *message)
{
	const struct ndmsg *body = NLMSG_DATA(message);
	const struct rtattr *attributes[NDA_MAX + 1];
	struct harp_addr addr;

	if (message->nlmsg_type != RTM_NEWNEIGH || (uint32_t)body->ndm_ifindex != ifindex)
		return 0;
	netlink_attributes(message, sizeof(*body), attributes, NDA_MAX);
	if (netlink_addr(attributes[NDA_DST], body->ndm_family, &addr) &&
	    memcmp(&addr, &peer, sizeof(addr)) == 0)
		*(uint16_t *)ctx = body->ndm_state;
	return 0;
}

static int entry_call(uint16_t type, uint16_t flags, uint16_t set_state, uint16_t *state)
{
	struct netlink_message message;
	struct ndmsg *body = netlink_begin(&message, type, flags, sizeof(*body));

	body->ndm_family = (uint8_t)netlink_family(&peer);
	body->ndm_ifindex = (int)ifindex;
	body->ndm_state = set_state;
	netlink_put_addr(&message, NDA_DST, &peer);
	return netlink_call(&questions, &message, state ? entry_state : NULL, state);
}

static uint16_t entry(void)
{
	uint16_t state = 0;

	entry_call(RTM_GETNEIGH, 0, 0, &state);
	return state;
}

/* ---- sockets -------------------------------------------------------------------------------- */

static ssize_t probe(int flags)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(9) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(9) };

	memcpy(&v4.sin_addr, peer.bytes + 12, 4);
	memcpy(&v6.sin6_addr, peer.bytes, 16);
	flags |= MSG_DONTWAIT | MSG_DONTROUTE | MSG_NOSIGNAL;
	if (harp_addr_is_v4(&peer))
		return sendto(probe_fd, NULL, 0, flags, (struct sockaddr *)&v4, sizeof(v4));
	return sendto(probe_fd, NULL, 0, flags, (struct sockaddr *)&v6, sizeof(v6));
}

static void sockets_open(const char *ifname)
{
	const int hops = 1;
	int family = netlink_family(&peer);

	fact(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0,
	     "to be nobody");
	fact(netlink_open(&monitor, RTMGRP_NEIGH) == 0, "a monitor");
	fact(netlink_open(&questions, 0) == 0, "a netlink socket");
	probe_fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	fact(probe_fd >= 0, "a UDP socket");
	fact(setsockopt(probe_fd, SOL_SOCKET, SO_BINDTODEVICE, ifname,
			(socklen_t)strlen(ifname) + 1) == 0,
	     "a UDP socket bound to the interface");
	fact((family == AF_INET ? setsockopt(probe_fd, IPPROTO_IP, IP_TTL, &hops, sizeof(hops))
				: setsockopt(probe_fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &hops,
					     sizeof(hops))) == 0,
	     "one hop");
}

/* Datagrams that this namespace has sent. */
static unsigned long datagrams_sent(void)
{
	bool v4 = harp_addr_is_v4(&peer);
	char line[512];
	unsigned long sent = 0, ignored;
	FILE *file = fopen(v4 ? "/proc/self/net/snmp" : "/proc/self/net/snmp6", "re");

	fact(file != NULL, "counters");
	while (fgets(line, sizeof(line), file))
		if (v4)
			sscanf(line, "Udp: %lu %lu %lu %lu", &ignored, &ignored, &ignored, &sent);
		else
			sscanf(line, "Udp6OutDatagrams %lu", &sent);
	fclose(file);
	return sent;
}

/* ---- facts ---------------------------------------------------------------------------------- */

static void fact_of_resolving(void)
{
	struct pollfd fd = { .fd = monitor.fd, .events = POLLIN };
	uint64_t until_ms = clock_ms() + RESOLVE_MS;
	uint16_t state = 0;

	fact(!(entry() & (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE)),
	     "the neighbor is not known yet");
	fact(probe(0) == 0, "a datagram of no bytes is sent");
	while (state != NUD_REACHABLE && clock_ms() < until_ms) {
		poll(&fd, 1, (int)(until_ms - clock_ms()));
		netlink_events(&monitor, entry_state, &state);
	}
	fact(state == NUD_REACHABLE, "the kernel resolves the neighbor, and the monitor hears");
}

/* The kernel chooses its reachable time between half and one and a half of what it is told to. */
static void fact_of_confirming(unsigned reachable_ms)
{
	const struct timespec pause = { .tv_nsec = 20000000 };
	uint64_t until_ms = clock_ms() + 4 * reachable_ms;
	unsigned long before = datagrams_sent();

	while (clock_ms() < until_ms) {
		fact(probe(MSG_CONFIRM | MSG_PROBE) == 0, "MSG_CONFIRM | MSG_PROBE is taken");
		fact(entry() == NUD_REACHABLE, "a confirmed neighbor stays REACHABLE");
		nanosleep(&pause, NULL);
	}
	fact(datagrams_sent() == before, "confirming sends nothing");
	until_ms = clock_ms() + 4 * reachable_ms + 1000;
	while (entry() == NUD_REACHABLE && clock_ms() < until_ms)
		nanosleep(&pause, NULL);
	fact(entry() != NUD_REACHABLE, "left alone it does not stay so");
}

static void fact_of_privilege(void)
{
	fact(entry_call(RTM_NEWNEIGH, NLM_F_CREATE, NUD_REACHABLE, NULL) == -EPERM,
	     "nobody may not change a neighbor");
}

int main(int argc, char **argv)
{
	struct in_addr v4;

	ifindex = argc == 4 ? if_nametoindex(argv[1]) : 0;
	if (!ifindex) {
		fprintf(stderr, "usage: neighbor_facts IFNAME ADDRESS REACHABLE_MS\n");
		return 2;
	}
	if (inet_pton(AF_INET, argv[2], &v4) == 1)
		peer = harp_addr_v4(((uint8_t *)&v4)[0], ((uint8_t *)&v4)[1], ((uint8_t *)&v4)[2],
				    ((uint8_t *)&v4)[3]);
	else
		fact(inet_pton(AF_INET6, argv[2], peer.bytes) == 1, "an address");
	sockets_open(argv[1]);
	fact_of_resolving();
	fact_of_privilege();
	fact_of_confirming((unsigned)atoi(argv[3]));
	return 0;
}
