/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_load.c - the devices that HARP offers: DPDK ports, kernel interfaces, or both.
 *
 * Theory of operation
 * -------------------
 * Ports come from HARP_DPDK and from harpd. A port must be open to know whether it works, so init
 * opens them:
 *
 *   HARP_PATH=dpdk        Only ports are offered. An unusable one is an error of init.
 *   HARP_PATH=auto        Usable ports are offered first. An unusable one is logged by WARN,
 *                         counted (ports_refused), and left out. Kernel interfaces are offered if
 *                         no port is left, or if HARP_IFNAME names them.
 *   HARP_PATH=xdp|kernel  Ports are not used, which is logged once.
 *
 * The list is made once and never changes, because NCCL keeps device numbers across contexts and
 * queries properties from any thread. A later first context opens the ports again; if one fails
 * then, NCCL already knows its number, so init fails with the reason.
 */
#include "device/scan.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "device/daemon.h"
#include "process/log.h"
#include "process/config.h"

#define DEVICE_SYSFS "/sys"

static struct device device_list[PLUGIN_DEVICES_MAX]; /* Writer: plugin_devices_load, once */
static unsigned device_count, device_refused;
static char
	device_texts[sizeof(((struct plugin_config *)0)->dpdk)]; /* device->port points into it */

/* ---- the kernel's interfaces ---------------------------------------------------------------- */

/* 0 or -errno. */
static int device_ioctl(const char *ifname, unsigned long code, struct ifreq *request)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;

	if (fd < 0)
		return -errno;
	snprintf(request->ifr_name, sizeof(request->ifr_name), "%s", ifname);
	rc = ioctl(fd, code, request) ? -errno : 0;
	close(fd);
	return rc;
}

static bool device_ethtool(const char *ifname, uint32_t command)
{
	struct ethtool_value value = { .cmd = command };
	struct ifreq request = { .ifr_data = (void *)&value };

	return !device_ioctl(ifname, SIOCETHTOOL, &request) && value.data;
}

static int device_mtu(const char *ifname)
{
	struct ifreq request = { 0 };
	int rc = device_ioctl(ifname, SIOCGIFMTU, &request);

	return rc ? rc : request.ifr_mtu;
}

static int device_segments(const char *ifname)
{
	return device_ethtool(ifname, ETHTOOL_GTSO) || device_ethtool(ifname, ETHTOOL_GGSO);
}

/* Logs the interfaces that were requested, by which setting, and those that exist. */
static void device_warn_none(const struct plugin_config *config, const struct ifaddrs *addresses)
{
	const char *named = getenv("HARP_IFNAME"), *family = "IP";
	char list[512] = "";
	size_t used = 0;

	if (config->family)
		family = config->family == AF_INET ? "IPv4" : "IPv6";
	for (const struct ifaddrs *entry = addresses; entry; entry = entry->ifa_next) {
		const char *state = "";

		if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_PACKET)
			continue;
		if (!(entry->ifa_flags & IFF_UP))
			state = " (down)";
		else if (!(entry->ifa_flags & IFF_RUNNING))
			state = " (no carrier)";
		if (used + 32 < sizeof(list))
			used += (size_t)snprintf(list + used, sizeof(list) - used, " %s%s",
						 entry->ifa_name, state);
	}
	if (config->ifname[0])
		WARN("%s=\"%s\" selects no usable interface: it must be up, running and have an "
		     "%s address; there are:%s",
		     named && *named ? "HARP_IFNAME" : "NCCL_SOCKET_IFNAME", config->ifname, family,
		     list);
	else
		WARN("no usable interface: one must be up, running and have an %s address; "
		     "there are:%s",
		     family, list);
}

/* IFF_RUNNING follows the carrier with up to a second of delay, so the carrier itself is read. */
static void device_ask_carrier(struct ifaddrs *addresses)
{
	for (struct ifaddrs *entry = addresses; entry; entry = entry->ifa_next)
		if ((entry->ifa_flags & (IFF_UP | IFF_RUNNING)) == IFF_UP &&
		    device_ethtool(entry->ifa_name, ETHTOOL_GLINK))
			entry->ifa_flags |= IFF_RUNNING;
}

/* If a port and an interface have the same name, it means the port. */
static void devices_drop_shadowed(unsigned ports)
{
	unsigned kept = ports;

	for (unsigned i = ports; i < device_count; i++) {
		bool shadowed = false;

		for (unsigned p = 0; p < ports; p++)
			shadowed |= !strcmp(device_list[p].ifname, device_list[i].ifname);
		if (!shadowed)
			device_list[kept++] = device_list[i];
	}
	device_count = kept;
}

/* Appended to the ports. */
static int devices_load_interfaces(const struct plugin_config *config)
{
	unsigned ports = device_count;
	struct ifaddrs *addresses;
	struct device_host host;

	if (getifaddrs(&addresses)) {
		int error = errno;

		WARN("cannot list the interfaces: %s", strerror(error));
		return -error;
	}
	device_ask_carrier(addresses);
	host = (struct device_host){
		.addresses = addresses,
		.sysfs = DEVICE_SYSFS,
		.comm_id = getenv("NCCL_COMM_ID"),
		.mtu = device_mtu,
		.default_route = harp_host_has_default_route,
		.segments = device_segments,
		.address_state = harp_host_address_state,
		.netns = plugin_netns(),
	};
	host.leased = plugin_daemon_devices(&host.leased_count);
	device_count += device_scan(&host, config, device_list + ports, PLUGIN_DEVICES_MAX - ports);
	devices_drop_shadowed(ports);
	for (unsigned i = ports; i < device_count; i++)
		if (device_list[i].speed_is_assumed && strcmp(device_list[i].ifname, "lo") != 0)
			INFO("%s: the driver%s%s reports no speed: %u Mbit/s is assumed; set HARP_SPEED_MBPS to "
			     "the NIC's",
			     device_list[i].ifname, device_list[i].driver[0] ? " " : "",
			     device_list[i].driver, device_list[i].speed_mbps);
	if (!device_count)
		device_warn_none(config, addresses);
	freeifaddrs(addresses);
	return device_count ? 0 : -ENODEV;
}

/* ---- DPDK ports ----------------------------------------------------------------------------- */

/*
 * Ports of HARP_DPDK, then leased ones. The kernel has no interface, address or route for a port.
 * The rest of the plugin treats it as a NIC in a network namespace of its own (device->netns): only
 * HARP lanes use it, and two ports of one host are different hosts to each other.
 */

/* Inode numbers of network namespaces have 32 bits. */
#define DEVICE_PORT_NETNS (1ull << 63)

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

static char port_names[PLUGIN_DEVICES_MAX][sizeof(((struct device *)0)->ifname)];
static unsigned port_count;

static bool port_is_known(const char *name)
{
	for (unsigned i = 0; i < port_count; i++)
		if (!strcmp(port_names[i], name))
			return true;
	return false;
}

static void port_name(struct device *device, const char *name)
{
	memcpy(device->ifname, name, strnlen(name, sizeof(device->ifname) - 1));
	memcpy(port_names[port_count++], device->ifname, sizeof(device->ifname));
}

/* Opens it as the next device. unusable: why it cannot be used, if that is known already. */
static int port_open(const struct device *port, plugin_port_open *open, const char *unusable)
{
	const struct plugin_config *config = plugin_config();
	struct device *device = &device_list[device_count];
	unsigned dev = device_count;
	struct harp_instance_port info;
	char why[384];
	bool exact;
	int rc = -ENODEV;

	/* HARP_IFNAME also selects ports; NCCL_SOCKET_IFNAME selects kernel interfaces only. */
	if (config->ifname[0] && !config->ifname_is_nccl &&
	    !device_name_matches(config->ifname, port->ifname, &exact)) {
		INFO("%s: DPDK port left out by HARP_IFNAME=\"%s\"", port->ifname, config->ifname);
		return 0;
	}
	if (unusable) {
		snprintf(why, sizeof(why), "%s", unusable);
	} else if (!port->has_v4 && !port->has_v6) {
		snprintf(
			why, sizeof(why),
			"it has no %s address: give it one, by ;ip=ADDRESS/LENGTH in HARP_DPDK or by "
			"`addresses` in its [[dpdk]]",
			config->family == AF_INET    ? "IPv4"
			: config->family == AF_INET6 ? "IPv6"
						     : "IP");
	} else {
		*device = *port;
		device->dpdk = true;
		device->netns = DEVICE_PORT_NETNS | ++device_count;
		rc = open((int)dev, &info, why, sizeof(why));
	}
	if (!rc) {
		device_port_opened(device, &info, config, DEVICE_SYSFS, dev);
		return 0;
	}
	device_count = dev;
	if (config->path == PATH_DPDK) {
		WARN("HARP_PATH=dpdk, but DPDK port %s cannot be used: %s (or use HARP_PATH=auto)",
		     port->ifname, why);
		return -EPROTONOSUPPORT;
	}
	WARN("DPDK port %s is not used, and HARP uses the next best path: %s", port->ifname, why);
	device_refused++;
	return 0;
}

/* text: a port spec of HARP_DPDK. */
static int port_own(const char *text, plugin_port_open *open)
{
	const struct plugin_config *config = plugin_config();
	struct device device = { .port = text, .numa_node = -1 };
	struct harp_port_spec spec;
	char why[256];

	if (harp_port_spec_parse(text, &spec, why, sizeof(why))) {
		WARN("HARP_DPDK=\"%.100s\" is not understood: %s", text, why);
		return -EINVAL;
	}
	if (port_is_known(spec.name)) {
		WARN("HARP_DPDK names two ports %s: give one of them another name, by ;name=NAME",
		     spec.name);
		return -EINVAL;
	}
	if (port_count == PLUGIN_DEVICES_MAX) {
		WARN("HARP_DPDK has more than %u ports", PLUGIN_DEVICES_MAX);
		return -EINVAL;
	}
	port_name(&device, spec.name);
	device.mtu_bytes = spec.mtu_bytes;
	device.queues = spec.queues > config->instances ? spec.queues : config->instances;
	for (unsigned i = 0; i < spec.address_count; i++)
		device_take_address(&device, &spec.addresses[i], config->family);
	return port_open(&device, open, NULL);
}

/* Unless HARP_DPDK has one of that name. */
static int port_leased(const struct harp_lease_device *leased, plugin_port_open *open)
{
	const struct plugin_config *config = plugin_config();
	struct device device = { 0 };

	if (port_is_known(leased->ifname) || port_count == PLUGIN_DEVICES_MAX)
		return 0;
	device_take_lease(&device, leased, config->family);
	port_name(&device, leased->ifname);
	device.queues = leased->queues < config->instances ? leased->queues : config->instances;
	return port_open(&device, open,
			 leased->queues_free ? NULL
					     : "harpd has leased it to another process (`harpctl "
					       "status` says which)");
}

static int devices_load_ports(const struct plugin_config *config, plugin_port_open *open)
{
	const struct harp_lease_device *leased;
	unsigned leased_count;
	char *at, *rest;
	int rc = 0;

	port_count = 0;
	memcpy(device_texts, config->dpdk, sizeof(device_texts));
	for (at = strtok_r(device_texts, " ", &rest); at && !rc; at = strtok_r(NULL, " ", &rest))
		rc = port_own(at, open);
	leased = plugin_daemon_devices(&leased_count);
	for (unsigned i = 0; i < leased_count && !rc; i++)
		if (leased[i].flags & HARP_LEASE_DEVICE_DPDK)
			rc = port_leased(&leased[i], open);
	if (!rc && config->path == PATH_DPDK && !device_count) {
		WARN("HARP_PATH=dpdk, but there is no DPDK port: name one in HARP_DPDK, or in harp.toml's "
		     "[[dpdk]] of a harpd that runs%s",
		     config->ifname[0] && !config->ifname_is_nccl
			     ? "; HARP_IFNAME must let its name through"
			     : "");
		rc = -EPROTONOSUPPORT;
	}
	return rc;
}

/* A later first context: the devices stay the same. */
static int devices_open_again(plugin_port_open *open)
{
	for (unsigned dev = 0; dev < device_count; dev++) {
		struct harp_instance_port info;
		char why[384];

		if (!device_list[dev].dpdk || !open((int)dev, &info, why, sizeof(why)))
			continue;
		WARN("DPDK port %s, which NCCL knows as device %u, cannot be opened again: %s",
		     device_list[dev].ifname, dev, why);
		return -EPROTONOSUPPORT;
	}
	return 0;
}

/* ---- all of them ---------------------------------------------------------------------------- */

int plugin_devices_load(plugin_port_open *open)
{
	const struct plugin_config *config = plugin_config();
	bool is_named = config->ifname_set && !config->ifname_is_nccl;
	int rc = 0;

	if (device_count)
		return devices_open_again(open);
	device_refused = 0;
	if (config->path == PATH_AUTO || config->path == PATH_DPDK)
		rc = devices_load_ports(config, open);
	else if (config->dpdk[0])
		INFO("HARP_PATH=%s: the ports of HARP_DPDK are not used",
		     config->path == PATH_XDP ? "xdp" : "kernel");
	if (!rc && config->path != PATH_DPDK && (!device_count || is_named))
		rc = devices_load_interfaces(config);
	if (rc)
		device_count = 0;
	return rc;
}

unsigned plugin_ports_refused(void)
{
	return device_refused;
}

int plugin_device_count(void)
{
	return (int)device_count;
}

const struct device *plugin_device(int dev)
{
	return dev >= 0 && (unsigned)dev < device_count ? &device_list[dev] : NULL;
}
