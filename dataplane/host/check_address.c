/* SPDX-License-Identifier: Apache-2.0 */
/* check_address.c - the addresses of an interface that HARP would use, and why it would not use the
 * others. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/check.h"
#include "host/netlink.h"

#define IPV6_MTU_MIN 1280u /* RFC 8200 section 5 */

/* The best address of each kind, and the first unusable one. */
struct addresses {
	uint32_t ifindex;
	int v4_state, v6_state, link_local_state, unusable_state; /* -1: none */
	struct harp_addr v4, v6, link_local, unusable;
};

static int addresses_answer(void *ctx, const struct nlmsghdr *message)
{
	struct addresses *a = ctx;
	const struct ifaddrmsg *body = NLMSG_DATA(message);
	struct harp_addr addr, *place;
	int state, *best;

	if (!netlink_own_address(message, &addr, &state) || body->ifa_index != a->ifindex ||
	    body->ifa_scope > RT_SCOPE_LINK)
		return 0;
	if (state < HARP_ADDRESS_DEPRECATED) {
		place = &a->unusable;
		best = &a->unusable_state;
	} else if (body->ifa_family == AF_INET) {
		place = &a->v4;
		best = &a->v4_state;
	} else if (harp_addr_is_link_local(&addr)) {
		place = &a->link_local;
		best = &a->link_local_state;
	} else {
		place = &a->v6;
		best = &a->v6_state;
	}
	if (state > *best) {
		*place = addr;
		*best = state;
	}
	return 0;
}

static int addresses_read(struct addresses *a, uint32_t ifindex)
{
	struct netlink_message message;
	struct netlink nl;
	int rc = netlink_open(&nl, 0);

	if (rc)
		return rc;
	do {
		*a = (struct addresses){ .ifindex = ifindex,
					 .v4_state = -1,
					 .v6_state = -1,
					 .link_local_state = -1,
					 .unusable_state = -1 };
		netlink_begin(&message, RTM_GETADDR, NLM_F_DUMP, sizeof(struct ifaddrmsg));
		rc = netlink_call(&nl, &message, addresses_answer, a);
	} while (rc == -EINTR);
	netlink_close(&nl);
	return rc;
}

static bool ipv6_disabled(const char *ifname)
{
	char path[96], yes = '0';
	FILE *file;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv6/conf/%s/disable_ipv6", ifname);
	file = fopen(path, "re");
	if (file && fread(&yes, 1, 1, file) != 1)
		yes = '0';
	if (file)
		fclose(file);
	return yes == '1';
}

/* severity: of the finding that no IPv6 address is reachable by all peers. */
static void check_ipv6(struct report *report, const char *ifname, const struct af_xdp_link *link,
		       const struct addresses *a, enum severity severity)
{
	static const char *const words[] = {
		[HARP_ADDRESS_DEPRECATED] = " (deprecated: it will expire)",
		[HARP_ADDRESS_TEMPORARY] = " (temporary: it changes daily)",
		[HARP_ADDRESS_PREFERRED] = "",
	};
	char text[HARP_ADDR_TEXT_MAX];

	if (access("/proc/net/if_inet6", F_OK))
		report_add(report, "ipv6", severity,
			   "disabled in the kernel|boot without ipv6.disable=1");
	else if (ipv6_disabled(ifname))
		report_add(report, "ipv6", severity,
			   "disabled|sysctl net.ipv6.conf.%s."
			   "disable_ipv6=0",
			   ifname);
	else if (link->mtu_bytes < IPV6_MTU_MIN)
		report_add(report, "ipv6", severity,
			   "needs an MTU of %u, not %u|ip link set dev %s mtu %u", IPV6_MTU_MIN,
			   link->mtu_bytes, ifname, IPV6_MTU_MIN);
	else if (a->v6_state >= 0)
		report_add(report, "ipv6", GOOD, "%s%s", harp_addr_format(&a->v6, text),
			   words[a->v6_state]);
	else if (a->unusable_state == HARP_ADDRESS_DUPLICATE)
		report_add(report, "ipv6", severity > SLOWER ? severity : SLOWER,
			   "another host has %s too|give each host its own address",
			   harp_addr_format(&a->unusable, text));
	else if (a->unusable_state == HARP_ADDRESS_TENTATIVE)
		report_add(
			report, "ipv6", severity,
			"%s is being checked for duplicates|wait a second or two, or add it with "
			"`nodad`",
			harp_addr_format(&a->unusable, text));
	else if (a->link_local_state >= 0)
		report_add(report, "ipv6", severity == REFUSED ? SLOWER : GOOD,
			   "only the link-local %s, %s|ip address add fd00:...::1/64 dev %s",
			   harp_addr_format(&a->link_local, text),
			   severity == REFUSED ? "which only hosts on this link can reach"
					       : "which is not used if there is IPv4",
			   ifname);
	else
		report_add(report, "ipv6", severity, "no address|ip address add ... dev %s",
			   ifname);
}

void check_addresses(struct report *report, const char *ifname, const struct af_xdp_link *link)
{
	char text[HARP_ADDR_TEXT_MAX];
	struct addresses a;
	int rc = addresses_read(&a, link->ifindex);

	if (rc) {
		report_add(report, "addresses", SLOWER, "unknown: %s|", strerror(-rc));
		return;
	}
	if (a.v4_state >= 0)
		report_add(report, "ipv4", GOOD, "%s", harp_addr_format(&a.v4, text));
	else
		report_add(report, "ipv4", GOOD, "no address: peers are reached over IPv6 only");
	check_ipv6(report, ifname, link, &a, a.v4_state >= 0 ? GOOD : REFUSED);
}
