/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - the interfaces and DPDK ports that HARP offers; constant after the first init
 * (device_load.c). */
#ifndef HARP_PLUGIN_DEVICE_H
#define HARP_PLUGIN_DEVICE_H

#include "harp_host.h"

#define PLUGIN_DEVICES_MAX 32u

struct device {
	char ifname[16];
	uint32_t ifindex;
	char pci_path[256]; /* empty: none */
	uint64_t guid;
	uint32_t speed_mbps;
	bool speed_is_assumed; /* the driver does not report it */
	uint32_t mtu_bytes;
	int numa_node;
	bool has_default_route;
	bool segments; /* accepts GSO packets from the kernel: TSO, or GSO in software */
	/* The network namespace of the NIC, if it is not this process's (0): only HARP can use the
	 * device, as this process has no sockets there. A DPDK port has a number of its own. */
	uint64_t netns;
	bool has_v4, has_v6;
	struct harp_addr addr_v4, addr_v6; /* first usable address of each family */
	/* A DPDK port: unknown to the kernel, so netns is a number of its own and ifindex 0. */
	bool dpdk;
	const char *port; /* its port spec (harp_host.h), if this process opens it; NULL: leased
			     from harpd */
	uint32_t queues;  /* requested, at least 1 */
	char driver[32];  /* "virtio_net"; of a DPDK port, once it is open: "net_memif" */
};
/* Opens the DPDK port plugin_device(dev) until the last context ends. -errno, with one line in
 * why. */
typedef int plugin_port_open(int dev, struct harp_instance_port *out, char *why, size_t why_len);
/* Called by each first context; opens DPDK ports. Failures are logged by WARN. */
int plugin_devices_load(plugin_port_open *open);
/* The number of DPDK ports that could not be used; other devices are. */
unsigned plugin_ports_refused(void);
int plugin_device_count(void);
const struct device *plugin_device(int dev); /* NULL when out of range */
/* The number of kernel lanes of a comm on a NIC, 1 to 16: as configured, else as many as NCCL's
 * socket transport uses sockets there (device_sysfs.c). */
unsigned device_kernel_lanes(const struct device *device);
/* The device's address of that family (enum nic_family); NULL: none. */
static inline const struct harp_addr *device_address(const struct device *device, unsigned family)
{
	if (family == 0)
		return device->has_v4 ? &device->addr_v4 : NULL;
	return device->has_v6 ? &device->addr_v6 : NULL;
}
/* The scope id of an address that is reached through the device: 0 unless it is link-local. */
static inline uint32_t device_scope_id(const struct device *device, const struct harp_addr *addr)
{
	return harp_addr_is_link_local(addr) ? device->ifindex : 0;
}

#endif
