/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk_take.c - checks whether a DPDK port may be taken from the kernel.
 *
 * A NIC bound to vfio-pci has no kernel interface. The kernel still uses other NICs when they are
 * opened: mlx5 shares its NIC with the kernel, and af_packet, af_xdp, pcap and tap's remote use a
 * named interface. From then on packets go to DPDK, or to both.
 */
#include "host/dpdk_take.h"

#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "base/why.h"

#define PCI_DEVICES "/sys/bus/pci/devices"

/* Arguments of virtual devices that name a kernel interface. */
static const char *const take_arguments[] = { "iface", "rx_iface", "tx_iface", "rx_iface_in",
					      "remote" };

/* -EBUSY if the default route uses this interface. An interface that cannot be queried is not in
 * this network namespace. */
static int take_ifname(const char *ifname, const struct why *why)
{
	if (harp_host_has_default_route(ifname) <= 0)
		return 0;
	return why_fail(
		why, -EBUSY,
		"the default route leaves by its interface %s: opening it would cut the "
		"host off; choose another NIC, or set take=default-route (default_route = true in "
		"harp.toml)",
		ifname);
}

/* True for 0000:00:06.0, or 00:06.0 in domain 0. path: its sysfs folder. */
static bool take_pci_path(const char *device, size_t len, const char *pci_devices, char *path,
			  size_t size)
{
	unsigned domain = 0, bus, slot, function;
	char text[32], end;

	if (len >= sizeof(text))
		return false;
	memcpy(text, device, len);
	text[len] = '\0';
	if (sscanf(text, "%x:%x:%x.%x%c", &domain, &bus, &slot, &function, &end) != 4) {
		domain = 0;
		if (sscanf(text, "%x:%x.%x%c", &bus, &slot, &function, &end) != 3)
			return false;
	}
	snprintf(path, size, "%s/%04x:%02x:%02x.%x/net", pci_devices, domain, bus, slot, function);
	return true;
}

/* Checks the interfaces of a PCI device. It has none if it is bound to vfio-pci, or absent. */
static int take_pci(const char *path, const struct why *why)
{
	DIR *folder = opendir(path);
	const struct dirent *entry;
	int rc = 0;

	if (!folder)
		return 0;
	while (!rc && (entry = readdir(folder)))
		if (entry->d_name[0] != '.')
			rc = take_ifname(entry->d_name, why);
	closedir(folder);
	return rc;
}

/* Checks one argument, "iface=eth0", of len bytes. */
static int take_argument(const char *text, size_t len, const struct why *why)
{
	const char *equals = memchr(text, '=', len);
	size_t name_len = equals ? (size_t)(equals - text) : 0;
	char ifname[IF_NAMESIZE];

	if (!equals || len - name_len - 1 >= sizeof(ifname))
		return 0;
	memcpy(ifname, equals + 1, len - name_len - 1);
	ifname[len - name_len - 1] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(take_arguments); i++)
		if (strlen(take_arguments[i]) == name_len &&
		    !memcmp(take_arguments[i], text, name_len))
			return take_ifname(ifname, why);
	return 0;
}

int dpdk_take_check_at(const struct harp_port_spec *spec, const char *pci_devices, char *why,
		       size_t why_len)
{
	struct why reason = { .text = why, .size = why_len };
	const char *at = spec->device;
	size_t len = strcspn(at, ",");
	char path[512];
	int rc = 0;

	if (why && why_len)
		why[0] = '\0';
	if (spec->take_default_route)
		return 0;
	why_about(&reason, "%.*s", (int)(len < 48 ? len : 48), at);
	if (take_pci_path(at, len, pci_devices, path, sizeof(path)))
		rc = take_pci(path, &reason);
	while (!rc && at[len]) {
		at += len + 1;
		len = strcspn(at, ",");
		rc = take_argument(at, len, &reason);
	}
	return rc;
}

int dpdk_take_check(const struct harp_port_spec *spec, char *why, size_t why_len)
{
	return dpdk_take_check_at(spec, PCI_DEVICES, why, why_len);
}
