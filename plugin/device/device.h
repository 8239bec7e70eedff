/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - the interfaces and ports that HARP offers, stable for the life of the process's first init (device_load.c). */
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
	bool speed_is_assumed; /* the driver reports none */
	uint32_t mtu_bytes;
	int numa_node;
	bool has_default_route;
	bool segments; /* takes GSO packets of the kernel's: TSO, or GSO in software */
	/* Of the network namespace whose NIC and addresses these are, harpd's; 0: this process's own.
	 * Elsewhere there are no kernel sockets of ours: such a device is HARP's or nothing. A DPDK port has a number
	 * of its own. */
	uint64_t netns;
	bool has_v4, has_v6;
	struct harp_addr addr_v4, addr_v6; /* first usable address of each family */
	uint32_t scope_id;                 /* of addr_v6 when link-local */
	/* A DPDK port: unknown to the kernel, and so of another namespace (netns), its own; ifindex 0. */
	bool dpdk;
	const char *port; /* its text (harp_host.h), when it is this process's; NULL: harpd's */
	uint32_t queues;  /* that it shall have, at least 1 */
	char driver[32];  /* "virtio_net"; of a DPDK port, once it is open: "net_memif" */
};
/* Opens a DPDK port, plugin_device(dev), until the last context goes. -errno: why (one line) says the reason. */
typedef int plugin_port_open(int dev, struct harp_instance_port *out, char *why, size_t why_len);
/* By every first context: DPDK ports are opened by it. Failures have been said by WARN. */
int plugin_devices_load(plugin_port_open *open);
/* DPDK ports that could not be used at the load, and something else is. */
unsigned plugin_ports_refused(void);
int plugin_device_count(void);
const struct device *plugin_device(int dev); /* NULL when out of range */
/* How many kernel lanes a comm has over a NIC, 1 to 16: as many as NCCL's socket transport would have sockets there, unless
 * HARP is told otherwise (device_sysfs.c). */
unsigned device_kernel_lanes(const struct device *device);
/* What names the link of an address that is reached through the device: 0 unless it is link-local. */
static inline uint32_t device_scope_id(const struct device *device, const struct harp_addr *addr)
{
	return harp_addr_is_link_local(addr) ? device->ifindex : 0;
}

#endif
