/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_rig.h - hosts for device_scan(): addresses as getifaddrs() returns them, and the other
 * inputs of struct device_host, which depend on names and addresses.
 */
#ifndef HARP_TESTS_DEVICE_RIG_H
#define HARP_TESTS_DEVICE_RIG_H

#include "device/scan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdlib.h>

#include "check.h"
#include "device/daemon.h"
#include "process/log.h"
#include "process/config.h"

static char sysfs[] = "/tmp/harp-test-device-XXXXXX"; /* exists only if the test creates it */

/* Needed by plugin_devices_load(), which is not under test here. */
void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
}
const struct plugin_config *plugin_config(void)
{
	return NULL;
}
const struct harp_lease_device *plugin_daemon_devices(unsigned *count)
{
	*count = 0;
	return NULL;
}
uint64_t plugin_netns(void)
{
	return 1;
}
int harp_host_has_default_route(const char *ifname)
{
	return !strcmp(ifname, "eth0");
}
static int fixed_mtu(const char *ifname)
{
	return !strcmp(ifname, "eth0") ? 9000 : !strcmp(ifname, "gone") ? -ENODEV : 1500;
}

/* The last byte of the address selects the state. */
static int fixed_state(const char *ifname, const struct harp_addr *addr)
{
	switch (addr->bytes[15]) {
	case 0xd0:
		return HARP_ADDRESS_DUPLICATE;
	case 0x1e:
		return HARP_ADDRESS_TENTATIVE;
	case 0xde:
		return HARP_ADDRESS_DEPRECATED;
	case 0x7e:
		return HARP_ADDRESS_TEMPORARY;
	default:
		return !strcmp(ifname, "eth3") ? -EPERM : HARP_ADDRESS_PREFERRED;
	}
}
int harp_host_address_state(const char *ifname, const struct harp_addr *addr)
{
	return fixed_state(ifname, addr);
}

/* ---- a host ---------------------------------------------------------------------------------- */

#define UP (IFF_UP | IFF_RUNNING)
static struct ifaddrs entries[64];
static struct sockaddr_storage stores[64], masks[64];
static unsigned entry_count;

static inline struct ifaddrs *add_entry(const char *ifname, unsigned flags)
{
	struct ifaddrs *entry = &entries[entry_count];

	memset(entry, 0, sizeof(*entry));
	memset(&stores[entry_count], 0, sizeof(stores[0]));
	entry->ifa_name = (char *)(uintptr_t)ifname;
	entry->ifa_flags = flags;
	entry->ifa_addr = (struct sockaddr *)&stores[entry_count];
	entry->ifa_netmask = (struct sockaddr *)&masks[entry_count];
	if (entry_count > 0)
		entries[entry_count - 1].ifa_next = entry;
	entry_count++;
	return entry;
}

static inline void add_link(const char *ifname, unsigned flags, int ifindex, uint8_t mac_tail)
{
	struct sockaddr_ll *link = (void *)add_entry(ifname, flags)->ifa_addr;
	const uint8_t mac[6] = { 0x02, 0x11, 0x22, 0x33, 0x44, mac_tail };

	link->sll_family = AF_PACKET;
	link->sll_ifindex = ifindex;
	link->sll_halen = 6;
	memcpy(link->sll_addr, mac, 6);
}

static inline void add_address(const char *ifname, unsigned flags, const char *text, unsigned scope)
{
	struct ifaddrs *entry = add_entry(ifname, flags);

	if (strchr(text, ':')) {
		struct sockaddr_in6 *v6 = (void *)entry->ifa_addr;
		struct sockaddr_in6 *mask = (void *)entry->ifa_netmask;

		v6->sin6_family = mask->sin6_family = AF_INET6;
		v6->sin6_scope_id = scope;
		CHECK_EQ(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
		CHECK_EQ(inet_pton(AF_INET6, "ffff:ffff:ffff:ffff::", &mask->sin6_addr), 1);
	} else {
		struct sockaddr_in *v4 = (void *)entry->ifa_addr;
		struct sockaddr_in *mask = (void *)entry->ifa_netmask;

		v4->sin_family = mask->sin_family = AF_INET;
		CHECK_EQ(inet_pton(AF_INET, text, &v4->sin_addr), 1);
		CHECK_EQ(inet_pton(AF_INET, "255.255.255.0", &mask->sin_addr), 1);
	}
}

static inline void reset(void)
{
	entry_count = 0;
}

static struct device devices[8];
static unsigned device_total;

static int rig_segments(const char *ifname)
{
	return !strcmp(ifname, "eth0");
}

static const struct device_host base_host = {
	.addresses = entries,
	.sysfs = sysfs,
	.mtu = fixed_mtu,
	.default_route = harp_host_has_default_route,
	.segments = rig_segments,
	.address_state = fixed_state,
};

/* The chosen names, separated by spaces; an asterisk marks those of other network namespaces. */
static inline const char *scan_host(const struct device_host *host,
				    const struct plugin_config *config)
{
	static char names[256];
	size_t used = 0;

	device_total = device_scan(host, config, devices, 8);
	names[0] = '\0';
	for (unsigned i = 0; i < device_total; i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s%s", i ? " " : "",
					 devices[i].ifname, devices[i].netns ? "*" : "");
	return names;
}

static inline const char *scan(const char *ifname, int family, const char *comm_id)
{
	struct plugin_config config = { .family = family };
	struct device_host host = base_host;

	host.comm_id = comm_id;
	snprintf(config.ifname, sizeof(config.ifname), "%s", ifname);
	return scan_host(&host, &config);
}

#endif
