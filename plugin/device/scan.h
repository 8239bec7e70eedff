/* SPDX-License-Identifier: Apache-2.0 */
/* scan.h - choosing and describing interfaces and ports from a given picture of a host, for the tests. */
#ifndef HARP_PLUGIN_SCAN_H
#define HARP_PLUGIN_SCAN_H

#include <ifaddrs.h>

#include "device/device.h"
#include "process/config.h"

/* Where device_scan() looks. */
struct device_host {
	const struct ifaddrs *addresses;          /* as getifaddrs() gives them */
	const char *sysfs;                        /* "/sys" */
	const char *comm_id;                      /* NCCL_COMM_ID or NULL */
	int (*mtu)(const char *ifname);           /* bytes, or -errno */
	int (*default_route)(const char *ifname); /* 1, 0, -errno */
	int (*segments)(const char *ifname); /* the kernel hands it GSO packets: 1, 0, -errno */
	/* enum harp_address_state, or -errno: unknown */
	int (*address_state)(const char *ifname, const struct harp_addr *addr);
	/* What harpd leases (harp_lease.h), and the number of this process's network namespace. */
	const struct harp_lease_device *leased;
	unsigned leased_count;
	uint64_t netns;
};

/*
 * Fills out with at most max devices in NCCL's order of preference and returns how many.
 * config: ifname, family and speed_mbps are used. 0: none fits; nothing is logged.
 */
unsigned device_scan(const struct device_host *host, const struct plugin_config *config,
		     struct device *out, unsigned max);

/* Does ifname match a list in NCCL_SOCKET_IFNAME's syntax? exact: the list names it in whole. */
bool device_name_matches(const char *list, const char *ifname, bool *exact);

/* A DPDK port as a device, as far as it is known before it is opened. why: it can't be used; empty: it may. */
struct device_port {
	struct device device;
	char why[256];
};
/*
 * Those of HARP_DPDK, then those of harpd's devices, that HARP_IFNAME lets through: how many, at most max.
 * texts: what the devices' port texts lie in. -EINVAL, said by WARN: HARP_DPDK is not understood.
 */
int device_ports(const struct plugin_config *config, const struct harp_lease_device *leased,
		 unsigned leased_count, struct device_port *out, unsigned max,
		 char texts[sizeof(config->dpdk)]);
/* Adds what an open port says of itself; dev: its number. */
void device_port_opened(struct device *device, const struct harp_instance_port *info,
			const struct plugin_config *config, const char *sysfs, unsigned dev);

/* ---- between device.c, device_load.c and device_sysfs.c -------------------------------------- */

/* What NCCL's own socket transport assumes of an interface that reports no speed. */
#define DEVICE_SPEED_MBPS_DEFAULT 10000u
/*
 * What is assumed of cloud NICs, whose drivers report none (virtio_net, ENA, gVNIC, Hyper-V's). NCCL sizes the number of
 * channels, and the message size at which it leaves LL for Simple, by the speed. Too low a figure leaves bandwidth
 * unused; too high a figure only costs buffers. HARP_SPEED_MBPS sets the true one.
 */
#define DEVICE_SPEED_MBPS_CLOUD 25000u
/* Ranks of IPv6 addresses (enum harp_address_state) that reach further than their link are so much higher. */
#define RANK_BEYOND_LINK HARP_ADDRESS_PREFERRED

/* Everything the kernel says about one interface. */
struct candidate {
	struct device device;
	uint8_t mac[6];
	bool has_mac;
	bool on_comm_id_subnet;
	bool unnamed_never; /* only when named: of another namespace and on its default route */
	int v6_rank; /* of device.addr_v6: how good an address to give to peers; 0: there is none */
};

/* MAC and index: unique per interface of a host, and the same each time it is asked. */
uint64_t device_guid(const uint8_t mac[6], uint32_t ifindex);
/* The PCI function of an address ("0000:3b:00.0"), and its NUMA node unless there is one. */
void device_describe_pci_function(const char *sysfs, const char *address, struct device *device);
/* The speed of an interface whose driver reports none. */
uint32_t device_assumed_speed_mbps(const struct device *device);
/* Is there such an entry in the interface's directory? */
bool device_sysfs_exists(const char *sysfs, const char *ifname, const char *entry);
/* Adds speed (unless set), PCI path and NUMA node; guid too when a wire beneath is shared. all: the
 * interfaces of the host. */
void device_describe_hardware(const char *sysfs, struct candidate *candidate,
			      const struct candidate *all, unsigned count);

#endif
