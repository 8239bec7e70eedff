/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - checks whether HARP would work on an interface. Each finding is one line and has a
 * remedy. Changes nothing.
 */
#include <errno.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "harp_host.h"
#include "host/netlink.h"
#include "host/privilege.h"
#include "nic/af_xdp_link.h"

#define REGION_BYTES (8192ull * 4096)
#define PORT_MIN 61000u
#define PORT_MAX 65535u
#define IPV6_MTU_MIN 1280u /* RFC 8200 section 5 */

enum severity { CHECK_OK, CHECK_SLOW, CHECK_FAILED };

struct report {
	struct harp_check_item *items;
	unsigned max, count;
};

/* Adds a finding. The format contains text and remedy, separated by '|'. */
static void __attribute__((format(printf, 4, 5)))
report_add(struct report *report, const char *name, enum severity severity, const char *format, ...)
{
	struct harp_check_item *item;
	char finding[512], *bar;
	va_list args;

	if (report->count++ >= report->max)
		return;
	item = &report->items[report->count - 1];
	va_start(args, format);
	vsnprintf(finding, sizeof(finding), format, args);
	va_end(args);
	bar = strchr(finding, '|');
	if (bar)
		*bar++ = '\0';
	memset(item, 0, sizeof(*item));
	snprintf(item->name, sizeof(item->name), "%s", name);
	item->severity = (int)severity;
	snprintf(item->text, sizeof(item->text), "%.255s", finding);
	snprintf(item->remedy, sizeof(item->remedy), "%.255s", bar ? bar : "");
}

/* ---- queries by rtnetlink, without libbpf or privileges ---- */

static int program_answer(void *ctx, const struct nlmsghdr *message)
{
	const struct rtattr *attributes[IFLA_MAX + 1], *xdp[IFLA_XDP_MAX + 1];

	if (message->nlmsg_type != RTM_NEWLINK)
		return 0;
	netlink_attributes(message, sizeof(struct ifinfomsg), attributes, IFLA_MAX);
	if (!attributes[IFLA_XDP])
		return 0;
	netlink_attributes_in(RTA_DATA(attributes[IFLA_XDP]), RTA_PAYLOAD(attributes[IFLA_XDP]),
			      xdp, IFLA_XDP_MAX);
	if (xdp[IFLA_XDP_ATTACHED] && *(uint8_t *)RTA_DATA(xdp[IFLA_XDP_ATTACHED]))
		*(uint32_t *)ctx = netlink_u32(xdp[IFLA_XDP_PROG_ID], UINT32_MAX);
	return 0;
}

/* *id: 0 if no XDP program is attached. -errno of rtnetlink. */
static int program_read(uint32_t ifindex, uint32_t *id)
{
	struct netlink_message message;
	struct ifinfomsg *body;
	struct netlink nl;
	int rc = netlink_open(&nl, 0);

	*id = 0;
	if (rc)
		return rc;
	body = netlink_begin(&message, RTM_GETLINK, 0, sizeof(*body));
	body->ifi_index = (int)ifindex;
	rc = netlink_call(&nl, &message, program_answer, id);
	netlink_close(&nl);
	return rc;
}

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

static bool is_ipv6_disabled(const char *ifname)
{
	char path[96], value = '0';
	FILE *file;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv6/conf/%s/disable_ipv6", ifname);
	file = fopen(path, "re");
	if (file && fread(&value, 1, 1, file) != 1)
		value = '0';
	if (file)
		fclose(file);
	return value == '1';
}

/* severity: how severe it is that peers on other links can reach no IPv6 address. */
static void check_ipv6(struct report *report, const char *ifname, const struct af_xdp_link *link,
		       const struct addresses *a, enum severity severity)
{
	static const char *const remarks[] = {
		[HARP_ADDRESS_DEPRECATED] = " (deprecated: it will expire)",
		[HARP_ADDRESS_TEMPORARY] = " (temporary: it changes daily)",
		[HARP_ADDRESS_PREFERRED] = "",
	};
	char text[HARP_ADDR_TEXT_MAX];

	if (access("/proc/net/if_inet6", F_OK))
		report_add(report, "ipv6", severity,
			   "disabled in the kernel|boot without ipv6.disable=1");
	else if (is_ipv6_disabled(ifname))
		report_add(report, "ipv6", severity,
			   "disabled|sysctl net.ipv6.conf.%s."
			   "disable_ipv6=0",
			   ifname);
	else if (link->mtu_bytes < IPV6_MTU_MIN)
		report_add(report, "ipv6", severity,
			   "needs an MTU of %u, not %u|ip link set dev %s mtu %u", IPV6_MTU_MIN,
			   link->mtu_bytes, ifname, IPV6_MTU_MIN);
	else if (a->v6_state >= 0)
		report_add(report, "ipv6", CHECK_OK, "%s%s", harp_addr_format(&a->v6, text),
			   remarks[a->v6_state]);
	else if (a->unusable_state == HARP_ADDRESS_DUPLICATE)
		report_add(report, "ipv6", severity > CHECK_SLOW ? severity : CHECK_SLOW,
			   "another host has %s too|give each host its own address",
			   harp_addr_format(&a->unusable, text));
	else if (a->unusable_state == HARP_ADDRESS_TENTATIVE)
		report_add(
			report, "ipv6", severity,
			"%s is being checked for duplicates|wait a second or two, or add it with "
			"`nodad`",
			harp_addr_format(&a->unusable, text));
	else if (a->link_local_state >= 0)
		report_add(report, "ipv6", severity == CHECK_FAILED ? CHECK_SLOW : CHECK_OK,
			   "only the link-local %s, %s|ip address add fd00:...::1/64 dev %s",
			   harp_addr_format(&a->link_local, text),
			   severity == CHECK_FAILED ? "which only hosts on this link can reach"
						    : "which is not used if there is IPv4",
			   ifname);
	else
		report_add(report, "ipv6", severity, "no address|ip address add ... dev %s",
			   ifname);
}

/* Addresses that peers may use, and why the others are not used. */
static void check_addresses(struct report *report, const char *ifname,
			    const struct af_xdp_link *link)
{
	char text[HARP_ADDR_TEXT_MAX];
	struct addresses a;
	int rc = addresses_read(&a, link->ifindex);

	if (rc) {
		report_add(report, "addresses", CHECK_SLOW, "unknown: %s|", strerror(-rc));
		return;
	}
	if (a.v4_state >= 0)
		report_add(report, "ipv4", CHECK_OK, "%s", harp_addr_format(&a.v4, text));
	else
		report_add(report, "ipv4", CHECK_OK,
			   "no address: peers are reached over IPv6 only");
	check_ipv6(report, ifname, link, &a, a.v4_state >= 0 ? CHECK_OK : CHECK_FAILED);
}

/* ---- findings ---- */

static void check_kernel(struct report *report)
{
	struct utsname name;
	unsigned major = 0, minor = 0;

	if (uname(&name) < 0 || sscanf(name.release, "%u.%u", &major, &minor) != 2)
		report_add(report, "kernel", CHECK_SLOW, "version unknown|");
	else if (major * 1000 + minor < 5009)
		report_add(report, "kernel", CHECK_FAILED,
			   "Linux %s has no XDP links|upgrade to Linux 5.9 or later, better 6.6",
			   name.release);
	else if (major * 1000 + minor < 6006)
		report_add(
			report, "kernel", CHECK_SLOW,
			"Linux %s has no multi-buffer AF_XDP: MTU 3822 at most|upgrade to Linux 6.6 "
			"or later for jumbo frames",
			name.release);
	else
		report_add(report, "kernel", CHECK_OK, "Linux %s: multi-buffer AF_XDP",
			   name.release);
}

static void check_privilege(struct report *report)
{
	char missing[80];

	if (privilege_missing(missing, sizeof(missing)))
		report_add(report, "privilege", CHECK_FAILED, "%s missing|run as root or add these",
			   missing);
	else
		report_add(report, "privilege", CHECK_OK, "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF");
	if (privilege_memlock(REGION_BYTES))
		report_add(report, "memlock", CHECK_OK, "locking %llu MiB of frames is allowed",
			   REGION_BYTES >> 20);
	else
		report_add(
			report, "memlock", CHECK_FAILED,
			"RLIMIT_MEMLOCK is below the %llu MiB of frames|raise `ulimit -l` or add "
			"CAP_IPC_LOCK",
			REGION_BYTES >> 20);
}

static void check_huge_pages(struct report *report)
{
	static const char *path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
	unsigned long long free_pages = 0;
	FILE *file = fopen(path, "re");

	if (file && fscanf(file, "%llu", &free_pages) != 1)
		free_pages = 0;
	if (file)
		fclose(file);
	if (free_pages >= REGION_BYTES >> 21)
		report_add(report, "huge-pages", CHECK_OK, "%llu of 2 MiB free", free_pages);
	else
		report_add(report, "huge-pages", CHECK_SLOW,
			   "%llu of 2 MiB free, %llu needed: 4 KiB pages are used|sysctl "
			   "vm.nr_hugepages=%llu",
			   free_pages, REGION_BYTES >> 21, REGION_BYTES >> 21);
}

/* ---- the interface -------------------------------------------------------------------------- */

static void check_link(struct report *report, const char *ifname, uint32_t queue,
		       const struct af_xdp_link *link)
{
	if (!link->up || !link->carrier)
		report_add(report, "link", CHECK_FAILED, "%s|%s",
			   link->up ? "no carrier" : "the interface is down",
			   link->up ? "check the cable or the peer" : "ip link set dev ... up");
	else
		report_add(report, "link", CHECK_OK, "up, %02x:%02x:%02x:%02x:%02x:%02x",
			   link->mac[0], link->mac[1], link->mac[2], link->mac[3], link->mac[4],
			   link->mac[5]);
	report_add(report, "driver", CHECK_OK, "%s", link->driver[0] ? link->driver : "unknown");
	if (af_xdp_link_is_stacked(link))
		report_add(report, "xdp-mode", CHECK_FAILED,
			   "an AF_XDP socket on a device of driver %s receives nothing|name a NIC "
			   "outside bonds, without a VLAN tag, or use kernel lanes",
			   link->driver);
	else if (af_xdp_link_prefers_generic(link))
		report_add(report, "xdp-mode", CHECK_OK,
			   "generic: native XDP on %s would disable the kernel's offloads",
			   link->driver);
	else
		report_add(report, "xdp-mode", CHECK_OK,
			   "native if that keeps the MTU, queues and offloads of %s, else generic",
			   ifname);
	if (link->rx_queues && queue >= link->rx_queues)
		report_add(report, "queue", CHECK_FAILED, "no queue %u; there are %u|choose 0..%u",
			   queue, link->rx_queues, link->rx_queues - 1);
	else if (link->rx_queues > 1)
		report_add(
			report, "queue", CHECK_SLOW,
			"%u receive queues: connections whose packets arrive on another queue than "
			"%u fall back to kernel lanes|ethtool -L %s combined 1",
			link->rx_queues, queue, ifname);
	else
		report_add(report, "queue", CHECK_OK, "queue %u of %u", queue,
			   link->rx_queues ? link->rx_queues : 1);
	report_add(report, "mtu", CHECK_OK, "%u: %u frame%s of %u a packet", link->mtu_bytes,
		   link->mtu_bytes <= 1500 ? 1 : (link->mtu_bytes + 18 + 3839) / 3840,
		   link->mtu_bytes <= 3822 ? "" : "s", link->mtu_bytes <= 1500 ? 2048 : 4096);
}

static void check_program(struct report *report, const char *ifname, const struct af_xdp_link *link)
{
	uint32_t id;
	int rc = program_read(link->ifindex, &id);

	if (rc)
		report_add(report, "xdp-program", CHECK_SLOW, "unknown: %s|", strerror(-rc));
	else if (id)
		report_add(report, "xdp-program", CHECK_FAILED,
			   "XDP program %u is attached|stop its owner (`bpftool prog show id %u`); "
			   "without an owner, `ip link set %s xdp off`",
			   id, id, ifname);
	else
		report_add(report, "xdp-program", CHECK_OK, "none attached");
}

static void check_default_route(struct report *report, const char *ifname)
{
	int rc = harp_host_has_default_route(ifname);

	if (rc < 0)
		report_add(report, "default-route", CHECK_SLOW, "unknown: %s|", strerror(-rc));
	else if (rc)
		report_add(report, "default-route", CHECK_SLOW,
			   "leaves by %s: the plugin uses it only if a setting names it|set "
			   "NCCL_SOCKET_IFNAME=%s",
			   ifname, ifname);
	else
		report_add(report, "default-route", CHECK_OK, "leaves by another interface");
}

/* ---- ports ---------------------------------------------------------------------------------- */

/* Counts local ports of HARP's range in a /proc/net/tcp table; records the first. */
static unsigned ports_in_use(const char *path, unsigned *first)
{
	char line[256];
	unsigned port, count = 0;
	FILE *file = fopen(path, "re");

	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x", &port) != 1 || port < PORT_MIN)
			continue;
		if (!count++ && !*first)
			*first = port;
	}
	fclose(file);
	return count;
}

/* True if one entry of "1-5,61000-65535" covers HARP's range. */
static bool is_port_range_reserved(void)
{
	FILE *file = fopen("/proc/sys/net/ipv4/ip_local_reserved_ports", "re");
	unsigned from, to;
	bool covered = false;
	int separator;

	if (!file)
		return false;
	while (!covered && fscanf(file, "%u", &from) == 1) {
		to = from;
		separator = fgetc(file);
		if (separator == '-' && fscanf(file, "%u", &to) == 1)
			separator = fgetc(file);
		covered = from <= PORT_MIN && to >= PORT_MAX;
		if (separator != ',')
			break;
	}
	fclose(file);
	return covered;
}

static bool is_port_range_automatic(void)
{
	FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
	unsigned from = 0, to = PORT_MAX;
	int got = file ? fscanf(file, "%u %u", &from, &to) : 0;

	if (file)
		fclose(file);
	return got != 2 || to >= PORT_MIN;
}

static void check_ports(struct report *report)
{
	unsigned first = 0;
	unsigned count = ports_in_use("/proc/self/net/tcp", &first) +
			 ports_in_use("/proc/self/net/tcp6", &first);

	if (count)
		report_add(
			report, "ports-used", CHECK_SLOW,
			"%u kernel sockets use ports of %u-%u (such as %u): HARP uses others|none "
			"needed",
			count, PORT_MIN, PORT_MAX, first);
	else
		report_add(report, "ports-used", CHECK_OK, "%u-%u are free", PORT_MIN, PORT_MAX);
	if (!is_port_range_automatic() || is_port_range_reserved())
		report_add(report, "ports-reserved", CHECK_OK,
			   "the kernel assigns no port of %u-%u automatically", PORT_MIN, PORT_MAX);
	else
		report_add(report, "ports-reserved", CHECK_SLOW,
			   "the kernel may assign ports of %u-%u to others|sysctl "
			   "net.ipv4.ip_local_reserved_ports=%u-%u",
			   PORT_MIN, PORT_MAX, PORT_MIN, PORT_MAX);
}

int harp_host_check(const char *ifname, uint32_t queue, struct harp_check_item *items, unsigned max)
{
	struct report report = { .items = items, .max = max };
	struct af_xdp_link link;
	int rc;

	check_kernel(&report);
	check_privilege(&report);
	check_huge_pages(&report);
	check_ports(&report);
	rc = af_xdp_link_read(ifname, &link);
	if (rc) {
		report_add(&report, "interface", CHECK_FAILED,
			   "%s: %s|`ip link` lists the interfaces", ifname ? ifname : "(none)",
			   rc == -ENODEV ? "no such interface" : strerror(-rc));
		return (int)report.count;
	}
	if (link.loopback) {
		report_add(
			&report, "interface", CHECK_FAILED,
			"%s is the loopback interface: the plugin never uses HARP on it|name the "
			"interface that leads to the other hosts; `ip link` lists them",
			ifname);
		return (int)report.count;
	}
	check_link(&report, ifname, queue, &link);
	check_addresses(&report, ifname, &link);
	check_program(&report, ifname, &link);
	check_default_route(&report, ifname);
	return (int)report.count;
}
