/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - selects and orders the interfaces that HARP offers to NCCL.
 *
 * Theory of operation
 * -------------------
 * The selection follows NCCL's socket transport, because users know it and NCCL's bootstrap uses
 * the same rules. An interface is usable if it is up and running, has an address of the right
 * family, and is not a port of a bridge or bond, unless it is named in full with "=". Of the usable
 * ones:
 *
 *   named        those that match HARP_IFNAME, else NCCL_SOCKET_IFNAME;
 *   not named    the first of these groups that is not empty: NICs of other network namespaces that
 *                harpd leases; ib*; the subnet of NCCL_COMM_ID; all except docker*, lo and virbr*;
 *                docker*; lo; virbr*. Interfaces with only link-local addresses count if the group
 *                has no others.
 *
 * A leased NIC in this process's network namespace is an interface like any other. One in another
 * namespace (if this process is in a container) is known from harpd only, and only HARP can use it.
 * It is offered if it is up and has an address and a queue to lease. A local interface of the same
 * name is then left out, because the name means the NIC.
 *
 * Of several IPv6 addresses, handles carry the one with the longest expected lifetime: no tentative
 * one, temporary or deprecated ones only without a better one, and link-local ones last.
 *
 * device_sysfs.c describes devices. A VLAN or macvlan gets the properties of the interface beneath
 * it (PCI function, NUMA node, guid: NCCL must see that they share a port), a bond those of its
 * first port, except for its own speed and guid.
 *
 * device_load.c puts DPDK ports before these interfaces.
 */
#include "device/scan.h"
#include "base/addr.h"
#include "base/sockaddr.h"
#include "base/util.h"
#include "process/config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Groups of unnamed interfaces, best first. */
enum device_group {
	GROUP_LEASED,
	GROUP_INFINIBAND,
	GROUP_COMM_ID,
	GROUP_ORDINARY,
	GROUP_DOCKER,
	GROUP_LOOPBACK,
	GROUP_VIRBR,
	GROUP_NONE,
};

/* ---- names ----------------------------------------------------------------------------------- */

bool device_name_matches(const char *list, const char *ifname, bool *exact)
{
	bool except = *list == '^', whole, listed = false;

	if (except)
		list++;
	whole = *list == '=';
	if (whole)
		list++;
	*exact = false;
	while (*list) {
		size_t len = strcspn(list, ",");
		bool hit = whole ? strlen(ifname) == len && !strncmp(list, ifname, len)
				 : len > 0 && !strncmp(list, ifname, len);

		listed |= hit;
		list += len;
		list += *list == ',';
	}
	*exact = whole && listed && !except;
	return listed != except;
}

static enum device_group device_default_group(const struct candidate *candidate)
{
	const char *name = candidate->device.ifname;

	if (candidate->device.netns)
		return GROUP_LEASED;
	if (!strncmp(name, "ib", 2))
		return GROUP_INFINIBAND;
	if (candidate->on_comm_id_subnet)
		return GROUP_COMM_ID;
	if (!strncmp(name, "docker", 6))
		return GROUP_DOCKER;
	if (!strcmp(name, "lo"))
		return GROUP_LOOPBACK;
	if (!strncmp(name, "virbr", 5))
		return GROUP_VIRBR;
	return GROUP_ORDINARY;
}

/* ---- addresses ------------------------------------------------------------------------------- */

static struct harp_addr device_addr(const struct sockaddr *sa)
{
	struct harp_endpoint endpoint;

	sockaddr_to_endpoint((const void *)sa, &endpoint);
	return endpoint.addr;
}

/* How suitable an address is for handles; 0: unusable. */
static int device_rank_v6(const struct device_host *host, const char *ifname,
			  const struct sockaddr_in6 *v6, const struct harp_addr *addr)
{
	int state;

	if (IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr) || IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
	    IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
		return 0;
	state = host->address_state(ifname, addr);
	if (state < 0) /* unknown: treated as preferred */
		state = HARP_ADDRESS_PREFERRED;
	if (state < HARP_ADDRESS_DEPRECATED)
		return 0;
	return IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? state : state + RANK_BEYOND_LINK;
}

static void device_add_address(const struct device_host *host, struct candidate *candidate,
			       const struct ifaddrs *entry, int family)
{
	struct device *device = &candidate->device;
	const struct sockaddr_in6 *v6;
	struct harp_addr addr;
	int rank;

	if (family && entry->ifa_addr->sa_family != family)
		return;
	if (entry->ifa_addr->sa_family == AF_INET) {
		const struct sockaddr_in *v4 = (const void *)entry->ifa_addr;

		if (device->has_v4 || v4->sin_addr.s_addr == INADDR_ANY)
			return;
		device->addr_v4 = device_addr(entry->ifa_addr);
		device->has_v4 = true;
		return;
	}
	v6 = (const void *)entry->ifa_addr;
	addr = device_addr(entry->ifa_addr);
	rank = device_rank_v6(host, device->ifname, v6, &addr);
	if (rank <= candidate->v6_rank)
		return;
	candidate->v6_rank = rank;
	device->addr_v6 = addr;
}

static bool device_is_link_local_only(const struct candidate *candidate)
{
	return !candidate->device.has_v4 && candidate->v6_rank <= RANK_BEYOND_LINK;
}

/* Is the IP address of NCCL_COMM_ID ("1.2.3.4:5000", "[fd00::1]:5000") on this address's subnet? */
static bool device_on_subnet(const struct ifaddrs *entry, const struct harp_addr *wanted)
{
	struct harp_addr own, mask;

	if (!entry->ifa_netmask ||
	    harp_addr_is_v4(wanted) != (entry->ifa_addr->sa_family == AF_INET))
		return false;
	own = device_addr(entry->ifa_addr);
	mask = device_addr(entry->ifa_netmask);
	for (unsigned i = 0; i < sizeof(own.bytes); i++)
		if ((own.bytes[i] ^ wanted->bytes[i]) & mask.bytes[i])
			return false;
	return true;
}

static bool device_parse_comm_id(const char *comm_id, struct harp_addr *out)
{
	char host[HARP_ADDR_TEXT_MAX];
	const char *end;

	if (!comm_id || !*comm_id)
		return false;
	if (*comm_id == '[')
		end = strchr(++comm_id, ']');
	else
		end = strrchr(comm_id, ':');
	if (!end || (size_t)(end - comm_id) >= sizeof(host))
		return false;
	memcpy(host, comm_id, (size_t)(end - comm_id));
	host[end - comm_id] = '\0';
	return !harp_addr_parse(host, out);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static struct candidate *device_candidate(struct candidate *all, unsigned *count, unsigned max,
					  const char *label)
{
	/* An address label may carry a suffix: "eth0:1" is an address of eth0. */
	size_t len = strcspn(label, ":");
	struct candidate *candidate;

	if (len == 0 || len >= sizeof(all->device.ifname))
		return NULL;
	for (unsigned i = 0; i < *count; i++)
		if (strlen(all[i].device.ifname) == len &&
		    !strncmp(all[i].device.ifname, label, len))
			return &all[i];
	if (*count == max)
		return NULL;
	candidate = &all[(*count)++];
	memset(candidate, 0, sizeof(*candidate));
	memcpy(candidate->device.ifname, label, len);
	candidate->device.numa_node = -1;
	return candidate;
}

static unsigned device_collect(const struct device_host *host, int family, struct candidate *all,
			       unsigned max)
{
	struct harp_addr comm_id;
	bool has_comm_id = device_parse_comm_id(host->comm_id, &comm_id);
	unsigned count = 0;

	for (const struct ifaddrs *entry = host->addresses; entry; entry = entry->ifa_next) {
		const unsigned needed = IFF_UP | IFF_RUNNING;
		struct candidate *candidate;

		if (!entry->ifa_addr || (entry->ifa_flags & needed) != needed)
			continue;
		candidate = device_candidate(all, &count, max, entry->ifa_name);
		if (!candidate)
			continue;
		switch (entry->ifa_addr->sa_family) {
		case AF_PACKET: {
			const struct sockaddr_ll *link = (const void *)entry->ifa_addr;

			candidate->device.ifindex = (uint32_t)link->sll_ifindex;
			candidate->has_mac = link->sll_halen == sizeof(candidate->mac);
			if (candidate->has_mac)
				memcpy(candidate->mac, link->sll_addr, sizeof(candidate->mac));
			break;
		}
		case AF_INET:
		case AF_INET6:
			device_add_address(host, candidate, entry, family);
			if (has_comm_id && device_on_subnet(entry, &comm_id))
				candidate->on_comm_id_subnet = true;
			break;
		}
	}
	return count;
}

static bool device_usable(const struct device_host *host, const struct plugin_config *config,
			  struct candidate *candidate)
{
	struct device *device = &candidate->device;
	bool exact = false;

	if (config->ifname[0] && !device_name_matches(config->ifname, device->ifname, &exact))
		return false;
	if (device->netns && (config->path == PATH_KERNEL || config->daemon == DAEMON_OFF ||
			      candidate->unnamed_never))
		return false;
	/* With an IPv4 address, a link-local IPv6 address is not needed. */
	device->has_v6 =
		candidate->v6_rank && (!device->has_v4 || candidate->v6_rank > RANK_BEYOND_LINK);
	if (!device->has_v4 && !device->has_v6)
		return false;
	return exact || device->netns ||
	       (!device_sysfs_exists(host->sysfs, device->ifname, "brport") &&
		!device_sysfs_exists(host->sysfs, device->ifname, "bonding_slave"));
}

static void device_describe(const struct device_host *host, const struct plugin_config *config,
			    struct candidate *candidate, const struct candidate *all,
			    unsigned count)
{
	struct device *device = &candidate->device;
	int mtu;

	if (config->speed_mbps)
		device->speed_mbps = config->speed_mbps;
	if (!device->netns) {
		device->guid = device_guid(candidate->mac, device->ifindex);
		device_describe_hardware(host->sysfs, candidate, all, count);
		mtu = host->mtu(device->ifname);
		device->mtu_bytes = mtu > 0 ? (uint32_t)mtu : 0;
		device->has_default_route = host->default_route(device->ifname) == 1;
		device->segments = host->segments(device->ifname) == 1;
	}
	if (!device->speed_mbps) {
		device->speed_mbps = device_assumed_speed_mbps(device);
		device->speed_is_assumed = true;
	}
}

void device_take_address(struct device *device, const struct harp_addr *addr, int family)
{
	if (harp_addr_is_v4(addr)) {
		if (family == AF_INET6 || device->has_v4)
			return;
		device->addr_v4 = *addr;
		device->has_v4 = true;
	} else if (family != AF_INET &&
		   (!device->has_v6 || (harp_addr_is_link_local(&device->addr_v6) &&
					!harp_addr_is_link_local(addr)))) {
		device->addr_v6 = *addr;
		device->has_v6 = true;
	}
}

void device_take_lease(struct device *device, const struct harp_lease_device *leased, int family)
{
	const struct harp_addr *const addresses[] = { (const void *)leased->addr_v4,
						      (const void *)leased->addr_v6 };

	memcpy(device->ifname, leased->ifname, sizeof(device->ifname));
	device->guid = leased->guid;
	device->mtu_bytes = leased->mtu_bytes;
	device->numa_node = leased->numa_node;
	device->speed_mbps = leased->speed_mbps;
	memcpy(device->pci_path, leased->pci_path, sizeof(device->pci_path));
	for (unsigned i = 0; i < ARRAY_SIZE(addresses); i++)
		if (!addr_is_zero(addresses[i]))
			device_take_address(device, addresses[i], family);
}

/* Adds NICs of other namespaces with a queue that harpd can lease; returns the new count. */
static unsigned device_collect_leased(const struct device_host *host,
				      const struct plugin_config *config, struct candidate *all,
				      unsigned count, unsigned max)
{
	for (unsigned i = 0; host->netns && i < host->leased_count && count < max; i++) {
		const struct harp_lease_device *leased = &host->leased[i];
		struct candidate *candidate = &all[count];
		struct device *device = &candidate->device;

		if (leased->netns == host->netns || !(leased->flags & HARP_LEASE_DEVICE_UP) ||
		    !leased->queues_free || (leased->flags & HARP_LEASE_DEVICE_DPDK))
			continue;
		count++;
		memset(candidate, 0, sizeof(*candidate));
		device_take_lease(device, leased, config->family);
		device->ifindex = leased->ifindex;
		device->netns = leased->netns;
		if (device->has_v6)
			candidate->v6_rank =
				HARP_ADDRESS_PREFERRED +
				(harp_addr_is_link_local(&device->addr_v6) ? 0 : RANK_BEYOND_LINK);
		device->has_default_route = leased->flags & HARP_LEASE_DEVICE_DEFAULT_ROUTE;
		candidate->unnamed_never = device->has_default_route && !config->ifname_set;
	}
	return count;
}

/* Does a usable leased NIC of another namespace have this interface's name? */
static bool device_is_shadowed(const struct candidate *candidate, const struct candidate *all,
			       unsigned count)
{
	for (unsigned i = 0; i < count && !candidate->device.netns; i++)
		if (all[i].usable && all[i].device.netns &&
		    !strcmp(all[i].device.ifname, candidate->device.ifname))
			return true;
	return false;
}

unsigned device_scan(const struct device_host *host, const struct plugin_config *config,
		     struct device *out, unsigned max)
{
	enum device_group best = GROUP_NONE, group;
	bool link_local_only =
		true; /* true: all of the best group have only link-local addresses */
	unsigned count, chosen = 0, room = 256;
	struct candidate *all = calloc(room, sizeof(*all));

	if (!all)
		return 0;
	count = device_collect(host, config->family, all, room);
	count = device_collect_leased(host, config, all, count, room);
	for (unsigned i = 0; i < count; i++)
		all[i].usable = device_usable(host, config, &all[i]);
	for (unsigned i = 0; i < count; i++) {
		all[i].usable &= !device_is_shadowed(&all[i], all, count);
		group = all[i].usable ? device_default_group(&all[i]) : GROUP_NONE;
		if (group < best)
			link_local_only = true;
		if (group <= best && group != GROUP_NONE) {
			best = group;
			link_local_only &= device_is_link_local_only(&all[i]);
		}
	}
	for (unsigned i = 0; i < count && chosen < max; i++) {
		struct device *device = &all[i].device;

		if (!all[i].usable || (!config->ifname[0] &&
				       (device_default_group(&all[i]) != best ||
					(device_is_link_local_only(&all[i]) && !link_local_only))))
			continue;
		device_describe(host, config, &all[i], all, count);
		out[chosen++] = *device;
	}
	free(all);
	return chosen;
}
