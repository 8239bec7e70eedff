/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_sysfs.c - properties of an interface: speed, PCI function, NUMA node, lower interfaces.
 *
 * sysfs is used only if its MAC address and index match the kernel's: in a container, /sys may
 * belong to another network namespace.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/scan.h"
#include "base/util.h"
#include "process/config.h"

#define DEVICE_SPEED_MBPS_MAX 10000000u
#define DEVICE_STACKING_MAX 4u /* VLAN on bond on ... */

bool device_sysfs_exists(const char *sysfs, const char *ifname, const char *entry)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/class/net/%s/%s", sysfs, ifname, entry);
	return access(path, F_OK) == 0;
}

/* Reads one line without its newline; false: it does not exist or cannot be read (an unknown speed
 * reads as EINVAL). */
static bool device_sysfs_read(const char *directory, const char *entry, char *out, size_t len)
{
	char path[PATH_MAX];
	FILE *file;
	bool good;

	if (snprintf(path, sizeof(path), "%s/%s", directory, entry) >= (int)sizeof(path))
		return false;
	file = fopen(path, "re");
	if (!file)
		return false;
	good = fgets(out, (int)len, file) != NULL;
	fclose(file);
	if (good)
		out[strcspn(out, "\n")] = '\0';
	return good;
}

static bool device_sysfs_number(const char *directory, const char *entry, long *out)
{
	char text[32], *end;

	if (!device_sysfs_read(directory, entry, text, sizeof(text)))
		return false;
	errno = 0;
	*out = strtol(text, &end, 10);
	return !errno && end != text && *end == '\0';
}

/* Does /sys describe this interface? */
static bool device_sysfs_matches(const char *directory, const struct candidate *candidate)
{
	const uint8_t *mac = candidate->mac;
	char text[64], expected[18];
	long ifindex;

	if (!device_sysfs_number(directory, "ifindex", &ifindex) ||
	    ifindex != (long)candidate->device.ifindex)
		return false;
	if (!candidate->has_mac)
		return true;
	snprintf(expected, sizeof(expected), "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1],
		 mac[2], mac[3], mac[4], mac[5]);
	return device_sysfs_read(directory, "address", text, sizeof(text)) &&
	       !strcmp(text, expected);
}

/* The directory of the first lower interface in this namespace, by name so that the result is
 * stable; count: how many there are. */
static bool device_sysfs_lower(const char *directory, char *out, size_t len, unsigned *count)
{
	char lowest[NAME_MAX + 1] = "", path[PATH_MAX + NAME_MAX + 2];
	DIR *dir = opendir(directory);
	struct dirent *entry;

	*count = 0;
	if (!dir)
		return false;
	while ((entry = readdir(dir))) {
		if (strncmp(entry->d_name, "lower_", 6))
			continue;
		(*count)++;
		if (!lowest[0] || strcmp(entry->d_name, lowest) < 0)
			strcpy(lowest, entry->d_name);
	}
	closedir(dir);
	if (!lowest[0])
		return false;
	snprintf(path, sizeof(path), "%s/%s", directory, lowest);
	if (strlen(path) >= len)
		return false;
	strcpy(out, path);
	return true;
}

/* "0000:3b:00.1", domain of four digits or more. */
static bool device_is_pci_address(const char *name)
{
	size_t digits = strspn(name, "0123456789abcdefABCDEF");

	if (digits < 4)
		return false;
	name += digits;
	return name[0] == ':' && isxdigit(name[1]) && isxdigit(name[2]) && name[3] == ':' &&
	       isxdigit(name[4]) && isxdigit(name[5]) && name[6] == '.' && name[7] >= '0' &&
	       name[7] <= '7' && name[8] == '\0';
}

static void device_describe_driver(const char *directory, struct device *device)
{
	char path[PATH_MAX], real[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/device/driver", directory) < (int)sizeof(path) &&
	    realpath(path, real))
		snprintf(device->driver, sizeof(device->driver), "%.31s", strrchr(real, '/') + 1);
}

uint32_t device_assumed_speed_mbps(const struct device *device)
{
	static const char *const cloud[] = { "ena", "gve", "hv_netvsc", "mana", "virtio_net" };

	for (size_t i = 0; i < ARRAY_SIZE(cloud); i++)
		if (!strcmp(device->driver, cloud[i]))
			return DEVICE_SPEED_MBPS_CLOUD;
	return DEVICE_SPEED_MBPS_DEFAULT;
}

/* numa: also takes the node. */
static void device_set_pci(const char *real, bool numa, struct device *device)
{
	long node;

	if (strlen(real) < sizeof(device->pci_path))
		strcpy(device->pci_path, real);
	if (numa && device_sysfs_number(real, "numa_node", &node) && node >= 0 && node <= INT_MAX)
		device->numa_node = (int)node;
}

/* The PCI function of the interface; for virtio, the parent of the virtio device. */
static void device_describe_pci(const char *directory, struct device *device)
{
	char path[PATH_MAX], real[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/device", directory) >= (int)sizeof(path) ||
	    !realpath(path, real))
		return;
	for (char *slash = strrchr(real, '/'); slash && slash != real;
	     *slash = '\0', slash = strrchr(real, '/')) {
		if (device_is_pci_address(slash + 1)) {
			device_set_pci(real, true, device);
			return;
		}
	}
}

void device_describe_pci_function(const char *sysfs, const char *address, struct device *device)
{
	char path[PATH_MAX], real[PATH_MAX];

	if (!device_is_pci_address(address) ||
	    snprintf(path, sizeof(path), "%s/bus/pci/devices/%s", sysfs, address) >=
		    (int)sizeof(path) ||
	    !realpath(path, real))
		return;
	device_set_pci(real, device->numa_node < 0, device);
}

uint64_t device_guid(const uint8_t mac[6], uint32_t ifindex)
{
	uint64_t guid = 0;

	for (unsigned i = 0; i < 6; i++)
		guid = guid << 8 | mac[i];
	return guid << 16 | (ifindex & 0xffffu);
}

void device_describe_hardware(const char *sysfs, struct candidate *candidate,
			      const struct candidate *all, unsigned count)
{
	struct device *device = &candidate->device;
	char directory[PATH_MAX], lower[PATH_MAX];
	bool shared_wire = true;
	long number;

	snprintf(directory, sizeof(directory), "%s/class/net/%s", sysfs, device->ifname);
	if (!device_sysfs_matches(directory, candidate))
		return;
	if (!device->speed_mbps && device_sysfs_number(directory, "speed", &number) && number > 0)
		device->speed_mbps = number < (long)DEVICE_SPEED_MBPS_MAX ? (uint32_t)number
									  : DEVICE_SPEED_MBPS_MAX;
	for (unsigned depth = 0; depth < DEVICE_STACKING_MAX; depth++) {
		unsigned lowers;

		if (!device_sysfs_lower(directory, lower, sizeof(lower), &lowers))
			break;
		strcpy(directory, lower);
		shared_wire &= lowers == 1;
		if (!shared_wire || !device_sysfs_number(directory, "ifindex", &number))
			continue;
		for (unsigned i = 0; i < count; i++)
			if ((long)all[i].device.ifindex == number)
				device->guid = device_guid(all[i].mac, all[i].device.ifindex);
	}
	device_describe_pci(directory, device);
	device_describe_driver(directory, device);
}

/* ---- kernel lanes of a comm ----------------------------------------------------------------- */

/*
 * Clouds limit the bandwidth of one flow, so NCCL opens several sockets there (NCCL contract
 * section 4.5), by the PCI vendor of the NIC. Each of its variables overrides its own value;
 * NCCL_NSOCKS_PERTHREAD has no effect without threads. NCCL allows 64 sockets. HARP's lanes share
 * messages dynamically, so 16 are enough.
 */
#define KERNEL_LANES_MAX 16u
#define VENDOR_ENA 0x1d0fu
#define VENDOR_GVNIC 0x1ae0u

unsigned device_kernel_lanes(const struct device *device)
{
	const struct plugin_config *config = plugin_config();
	unsigned long vendor = 0, threads = 0, sockets = 1, lanes;
	char text[16];

	if (device->pci_path[0] &&
	    device_sysfs_read(device->pci_path, "vendor", text, sizeof(text)))
		vendor = strtoul(text, NULL, 16);
	if (vendor == VENDOR_ENA) {
		threads = 2;
		sockets = 8;
	} else if (vendor == VENDOR_GVNIC) {
		threads = 4;
	}
	if (config->nccl_threads >= 0)
		threads = (unsigned long)config->nccl_threads;
	if (config->nccl_sockets_per_thread >= 0)
		sockets = (unsigned long)config->nccl_sockets_per_thread;
	if (threads > KERNEL_LANES_MAX)
		threads = KERNEL_LANES_MAX;
	if (sockets > KERNEL_LANES_MAX)
		sockets = KERNEL_LANES_MAX;
	lanes = config->kernel_lanes ? config->kernel_lanes : threads * sockets;
	if (lanes > KERNEL_LANES_MAX)
		lanes = KERNEL_LANES_MAX;
	return lanes ? (unsigned)lanes : 1;
}
