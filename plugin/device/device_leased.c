/* SPDX-License-Identifier: Apache-2.0 */
/* device_leased.c - NICs of other network namespaces, known from harpd alone. */
#include <string.h>
#include <sys/socket.h>

#include "device/scan.h"
#include "process/config.h"

static bool device_leased_usable(const struct harp_lease_device *leased)
{
	return (leased->flags & HARP_LEASE_DEVICE_UP) && leased->queues_free;
}

static void device_leased_address(struct candidate *candidate, const struct harp_addr *addr,
				  bool v4)
{
	static const struct harp_addr none;
	struct device *device = &candidate->device;

	if (!memcmp(addr, &none, sizeof(none)))
		return;
	if (v4) {
		device->addr_v4 = *addr;
		device->has_v4 = true;
		return;
	}
	device->addr_v6 = *addr;
	device->scope_id = device_scope_id(device, addr);
	candidate->v6_rank = HARP_ADDRESS_PREFERRED + (device->scope_id ? 0 : RANK_BEYOND_LINK);
}

unsigned device_collect_leased(const struct device_host *host, const struct plugin_config *config,
			       struct candidate *all, unsigned count, unsigned max)
{
	for (unsigned i = 0; host->netns && i < host->leased_count && count < max; i++) {
		const struct harp_lease_device *leased = &host->leased[i];
		struct candidate *candidate = &all[count];
		struct device *device = &candidate->device;

		if (leased->netns == host->netns || !device_leased_usable(leased) ||
		    (leased->flags & HARP_LEASE_DEVICE_DPDK))
			continue;
		count++;
		memset(candidate, 0, sizeof(*candidate));
		memcpy(device->ifname, leased->ifname, sizeof(device->ifname));
		device->ifindex = leased->ifindex;
		device->netns = leased->netns;
		device->guid = leased->guid;
		device->mtu_bytes = leased->mtu_bytes;
		device->numa_node = leased->numa_node;
		device->speed_mbps = leased->speed_mbps;
		memcpy(device->pci_path, leased->pci_path, sizeof(device->pci_path));
		device->has_default_route = leased->flags & HARP_LEASE_DEVICE_DEFAULT_ROUTE;
		candidate->unnamed_never = device->has_default_route && !config->ifname_set;
		if (config->family != AF_INET6)
			device_leased_address(candidate, (const void *)leased->addr_v4, true);
		if (config->family != AF_INET)
			device_leased_address(candidate, (const void *)leased->addr_v6, false);
	}
	return count;
}

bool device_is_shadowed(const struct candidate *candidate, const struct candidate *all,
			const bool *usable, unsigned count)
{
	for (unsigned i = 0; i < count && !candidate->device.netns; i++)
		if (usable[i] && all[i].device.netns &&
		    !strcmp(all[i].device.ifname, candidate->device.ifname))
			return true;
	return false;
}
