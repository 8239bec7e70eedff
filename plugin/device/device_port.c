/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_port.c - DPDK ports as devices: those of HARP_DPDK, then those that harpd leases.
 *
 * The kernel knows nothing of a port: no interface, no address, no route. To everything above it is a NIC of
 * another network namespace, one of its own (device->netns): HARP's lanes alone use it, and two ports of one
 * host are two hosts to each other. What the port says of itself is added when it has been opened.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "device/scan.h"
#include "process/log.h"
#include "process/config.h"

/* No inode of a network namespace has this bit: they are numbers of 32 bits. */
#define DEVICE_PORT_NETNS (1ull << 63)

/* The first address of each family that reaches beyond its link, else the first. */
static void port_addresses(struct device *device, const struct harp_addr *addresses, unsigned count,
			   int family)
{
	for (unsigned i = 0; i < count; i++) {
		const struct harp_addr *addr = &addresses[i];

		if (harp_addr_is_v4(addr)) {
			if (family == AF_INET6 || device->has_v4)
				continue;
			device->addr_v4 = *addr;
			device->has_v4 = true;
		} else if (family != AF_INET &&
			   (!device->has_v6 || (harp_addr_is_link_local(&device->addr_v6) &&
						!harp_addr_is_link_local(addr)))) {
			device->addr_v6 = *addr;
			device->has_v6 = true;
		}
	}
}

static void port_needs_address(struct device_port *port, const struct plugin_config *config)
{
	if (port->why[0] || port->device.has_v4 || port->device.has_v6)
		return;
	snprintf(port->why, sizeof(port->why),
		 "it has no %s address: give it one, by ;ip=ADDRESS/LENGTH in HARP_DPDK or by "
		 "`addresses` in its [[dpdk]]",
		 config->family == AF_INET    ? "IPv4"
		 : config->family == AF_INET6 ? "IPv6"
					      : "IP");
}

static struct device_port *port_begin(struct device_port *ports, unsigned count, const char *name)
{
	struct device_port *port = &ports[count];

	memset(port, 0, sizeof(*port));
	port->device.dpdk = true;
	port->device.numa_node = -1;
	port->device.netns = DEVICE_PORT_NETNS | (count + 1);
	memcpy(port->device.ifname, name, strnlen(name, sizeof(port->device.ifname) - 1));
	return port;
}

static bool port_exists(const struct device_port *ports, unsigned count, const char *name)
{
	for (unsigned i = 0; i < count; i++)
		if (!strcmp(ports[i].device.ifname, name))
			return true;
	return false;
}

/* One of HARP_DPDK. */
static int port_own(struct device_port *ports, unsigned *count, const char *text,
		    const struct plugin_config *config)
{
	struct device_port *port;
	struct harp_port_spec spec;
	char why[256];

	if (harp_port_spec_parse(text, &spec, why, sizeof(why))) {
		WARN("HARP_DPDK=\"%.100s\" is not understood: %s", text, why);
		return -EINVAL;
	}
	if (port_exists(ports, *count, spec.name)) {
		WARN("HARP_DPDK names two ports %s: give one of them another name, by ;name=NAME",
		     spec.name);
		return -EINVAL;
	}
	port = port_begin(ports, *count, spec.name);
	port->device.port = text;
	port->device.mtu_bytes = spec.mtu_bytes;
	port->device.queues = spec.queues > config->instances ? spec.queues : config->instances;
	port_addresses(&port->device, spec.addresses, spec.address_count, config->family);
	port_needs_address(port, config);
	(*count)++;
	return 0;
}

/* One of harpd's, unless HARP_DPDK has one of that name. */
static void port_leased(struct device_port *ports, unsigned *count,
			const struct harp_lease_device *leased, const struct plugin_config *config)
{
	static const struct harp_addr none;
	struct harp_addr addresses[2];
	struct device_port *port;
	unsigned address_count = 0;

	if (port_exists(ports, *count, leased->ifname))
		return;
	port = port_begin(ports, *count, leased->ifname);
	port->device.guid = leased->guid;
	port->device.mtu_bytes = leased->mtu_bytes;
	port->device.speed_mbps = leased->speed_mbps;
	port->device.numa_node = leased->numa_node;
	memcpy(port->device.pci_path, leased->pci_path, sizeof(port->device.pci_path));
	port->device.queues =
		leased->queues < config->instances ? leased->queues : config->instances;
	if (!leased->queues_free)
		snprintf(port->why, sizeof(port->why),
			 "harpd has leased it to another process (`harpctl status` says which)");
	if (memcmp(leased->addr_v4, &none, sizeof(none)))
		memcpy(&addresses[address_count++], leased->addr_v4, sizeof(none));
	if (memcmp(leased->addr_v6, &none, sizeof(none)))
		memcpy(&addresses[address_count++], leased->addr_v6, sizeof(none));
	port_addresses(&port->device, addresses, address_count, config->family);
	port_needs_address(port, config);
	(*count)++;
}

/* NCCL_SOCKET_IFNAME is about the kernel's interfaces, HARP_IFNAME about what HARP may take. */
static unsigned ports_named(struct device_port *ports, unsigned count,
			    const struct plugin_config *config)
{
	unsigned kept = 0;
	bool exact;

	for (unsigned i = 0; i < count; i++) {
		if (config->ifname[0] && !config->ifname_is_nccl &&
		    !device_name_matches(config->ifname, ports[i].device.ifname, &exact))
			INFO("%s: DPDK port left out by HARP_IFNAME=\"%s\"", ports[i].device.ifname,
			     config->ifname);
		else
			ports[kept++] = ports[i];
	}
	return kept;
}

int device_ports(const struct plugin_config *config, const struct harp_lease_device *leased,
		 unsigned leased_count, struct device_port *out, unsigned max,
		 char texts[sizeof(config->dpdk)])
{
	unsigned count = 0;
	char *at, *rest;

	memcpy(texts, config->dpdk, sizeof(config->dpdk));
	for (at = strtok_r(texts, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
		int rc;

		if (count == max) {
			WARN("HARP_DPDK has more than %u ports", max);
			return -EINVAL;
		}
		rc = port_own(out, &count, at, config);
		if (rc)
			return rc;
	}
	for (unsigned i = 0; i < leased_count && count < max; i++)
		if (leased[i].flags & HARP_LEASE_DEVICE_DPDK)
			port_leased(out, &count, &leased[i], config);
	return (int)ports_named(out, count, config);
}

void device_port_opened(struct device *device, const struct harp_instance_port *info,
			const struct plugin_config *config, const char *sysfs, unsigned dev)
{
	if (config->speed_mbps)
		device->speed_mbps = config->speed_mbps;
	else if (info->speed_mbps)
		device->speed_mbps = info->speed_mbps;
	else if (!device->speed_mbps)
		device->speed_mbps = DEVICE_SPEED_MBPS_DEFAULT;
	if (info->mtu_bytes)
		device->mtu_bytes = info->mtu_bytes;
	if (info->numa_node >= 0)
		device->numa_node = info->numa_node;
	if (info->pci[0])
		device_describe_pci_function(sysfs, info->pci, device);
	if (!device->guid)
		device->guid = device_guid(info->mac, dev);
	device->netns = DEVICE_PORT_NETNS | device->guid;
	snprintf(device->driver, sizeof(device->driver), "%s", info->driver);
}
