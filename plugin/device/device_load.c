/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_load.c - the devices that this process offers: DPDK ports, the kernel's interfaces, or both.
 *
 * Theory of operation
 * -------------------
 * Ports come from HARP_DPDK and from harpd. Whether one works is known when it is open, so each is opened
 * here, at init:
 *
 *   HARP_PATH=dpdk        ports alone are offered, and one that can't be used is an error of init;
 *   HARP_PATH=auto        those that can be used are offered, first. One that can't is named by WARN, counted
 *                         (ports_refused), and left out; where none is left the kernel's interfaces are offered,
 *                         as without ports. Beside ports they are only where HARP_IFNAME names them;
 *   HARP_PATH=xdp|kernel  no port is touched, which is said once.
 *
 * The list is made once per load of the library and never changes: NCCL keeps device numbers across contexts
 * and asks for properties from any thread. A later first context opens its ports again; the one that fails then
 * has a number that NCCL knows, so that init fails with the reason.
 */
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
#include "base/util.h"
#include "device/scan.h"
#include "process/log.h"
#include "process/config.h"

#define DEVICE_SYSFS "/sys"

static struct device device_list[PLUGIN_DEVICES_MAX]; /* Writer: plugin_devices_load, once */
static unsigned device_count, device_refused;
static char device_texts[sizeof(((struct plugin_config *)0)->dpdk)]; /* that ports point into */

/* ---- the kernel's interfaces ------------------------------------------------------------------ */

static int device_mtu(const char *ifname)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), result;
	struct ifreq request;

	if (fd < 0)
		return -errno;
	memset(&request, 0, sizeof(request));
	memcpy(request.ifr_name, ifname, strnlen(ifname, sizeof(request.ifr_name) - 1));
	result = ioctl(fd, SIOCGIFMTU, &request) ? -errno : request.ifr_mtu;
	close(fd);
	return result;
}

/* Says what was looked for, where that wish came from, and what there is instead. */
static void device_warn_none(const struct plugin_config *config, const struct ifaddrs *addresses)
{
	const char *named = getenv("HARP_IFNAME"), *family = "IP";
	char there[512] = "";
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
		if (used + 32 < sizeof(there))
			used += (size_t)snprintf(there + used, sizeof(there) - used, " %s%s",
						 entry->ifa_name, state);
	}
	if (config->ifname[0])
		WARN("%s=\"%s\" selects no usable interface: it must be up, running and have an "
		     "%s address; there are:%s",
		     named && *named ? "HARP_IFNAME" : "NCCL_SOCKET_IFNAME", config->ifname, family,
		     there);
	else
		WARN("no usable interface: one must be up, running and have an %s address; "
		     "there are:%s",
		     family, there);
}

static int device_segments(const char *ifname)
{
	static const uint32_t offloads[] = { ETHTOOL_GTSO, ETHTOOL_GGSO };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), found = 0;

	if (fd < 0)
		return -errno;
	for (size_t i = 0; i < ARRAY_SIZE(offloads); i++) {
		struct ethtool_value value = { .cmd = offloads[i] };
		struct ifreq request = { .ifr_data = (void *)&value };

		snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", ifname);
		found |= !ioctl(fd, SIOCETHTOOL, &request) && value.data;
	}
	close(fd);
	return found;
}

/* IFF_RUNNING follows the carrier up to a second late: an interface just set up is asked itself. */
static void device_ask_carrier(struct ifaddrs *addresses)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	for (struct ifaddrs *entry = addresses; fd >= 0 && entry; entry = entry->ifa_next) {
		struct ethtool_value carrier = { .cmd = ETHTOOL_GLINK };
		struct ifreq request = { .ifr_data = (void *)&carrier };

		if ((entry->ifa_flags & (IFF_UP | IFF_RUNNING)) != IFF_UP ||
		    strlen(entry->ifa_name) >= sizeof(request.ifr_name))
			continue;
		strcpy(request.ifr_name, entry->ifa_name);
		if (!ioctl(fd, SIOCETHTOOL, &request) && carrier.data)
			entry->ifa_flags |= IFF_RUNNING;
	}
	if (fd >= 0)
		close(fd);
}

/* A port and an interface of one name: the name was meant for the port. */
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

/* Behind the ports that are there. */
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

/* ---- DPDK ports ------------------------------------------------------------------------------- */

/* One is there for its opener, as the device of the next number; false and why: it can't be used. */
static bool devices_try_port(const struct device_port *port, plugin_port_open *open, char *why,
			     size_t why_len)
{
	struct device *device = &device_list[device_count];
	struct harp_instance_port info;
	unsigned dev = device_count;

	if (port->why[0]) {
		snprintf(why, why_len, "%s", port->why);
		return false;
	}
	*device = port->device;
	device_count++;
	if (open((int)dev, &info, why, why_len)) {
		device_count--;
		return false;
	}
	device_port_opened(device, &info, plugin_config(), DEVICE_SYSFS, dev);
	return true;
}

static int devices_open_ports(const struct device_port *ports, unsigned count,
			      plugin_port_open *open)
{
	for (unsigned i = 0; i < count; i++) {
		const char *name = ports[i].device.ifname;
		char why[384];

		if (devices_try_port(&ports[i], open, why, sizeof(why)))
			continue;
		if (plugin_config()->path == PATH_DPDK) {
			WARN("HARP_PATH=dpdk, but DPDK port %s cannot be used: %s (or use "
			     "HARP_PATH=auto)",
			     name, why);
			return -EPROTONOSUPPORT;
		}
		WARN("DPDK port %s is not used, and HARP goes on with the next best path: %s", name,
		     why);
		device_refused++;
	}
	return 0;
}

static int devices_load_ports(const struct plugin_config *config, plugin_port_open *open)
{
	const struct harp_lease_device *leased;
	struct device_port *ports = calloc(PLUGIN_DEVICES_MAX, sizeof(*ports));
	unsigned leased_count;
	int count, rc;

	if (!ports)
		return -ENOMEM;
	leased = plugin_daemon_devices(&leased_count);
	count = device_ports(config, leased, leased_count, ports, PLUGIN_DEVICES_MAX, device_texts);
	rc = count < 0 ? count : devices_open_ports(ports, (unsigned)count, open);
	free(ports);
	if (!rc && config->path == PATH_DPDK && !device_count) {
		WARN("HARP_PATH=dpdk, but there is no DPDK port: name one in HARP_DPDK, or in harp.toml's "
		     "[[dpdk]] of a harpd that runs%s",
		     count < 1 && config->ifname[0] && !config->ifname_is_nccl
			     ? "; HARP_IFNAME must let its name through"
			     : "");
		rc = -EPROTONOSUPPORT;
	}
	return rc;
}

static void devices_say_unused(const struct plugin_config *config)
{
	const struct harp_lease_device *leased;
	unsigned count, ports = config->dpdk[0] != '\0';

	leased = plugin_daemon_devices(&count);
	for (unsigned i = 0; i < count; i++)
		ports += (leased[i].flags & HARP_LEASE_DEVICE_DPDK) != 0;
	if (ports)
		INFO("HARP_PATH=%s: DPDK ports (of HARP_DPDK and of harpd) are not used",
		     config->path == PATH_XDP ? "xdp" : "kernel");
}

/* A later first context: the devices are what they were. */
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

/* ---- all of them ------------------------------------------------------------------------------ */

int plugin_devices_load(plugin_port_open *open)
{
	const struct plugin_config *config = plugin_config();
	bool beside = config->ifname_set && !config->ifname_is_nccl;
	int rc = 0;

	if (device_count)
		return devices_open_again(open);
	device_refused = 0;
	if (config->path == PATH_XDP || config->path == PATH_KERNEL)
		devices_say_unused(config);
	else
		rc = devices_load_ports(config, open);
	if (!rc && config->path != PATH_DPDK && (!device_count || beside))
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
