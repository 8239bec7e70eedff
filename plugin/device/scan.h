/* SPDX-License-Identifier: Apache-2.0 */
/* scan.h - selects and describes interfaces and ports of a host, which tests replace. */
#ifndef HARP_PLUGIN_SCAN_H
#define HARP_PLUGIN_SCAN_H

#include <ifaddrs.h>

#include "device/device.h"
#include "process/config.h"

/* The inputs of device_scan(). */
struct device_host {
	const struct ifaddrs *addresses;          /* from getifaddrs() */
	const char *sysfs;                        /* "/sys" */
	const char *comm_id;                      /* NCCL_COMM_ID or NULL */
	int (*mtu)(const char *ifname);           /* bytes, or -errno */
	int (*default_route)(const char *ifname); /* 1, 0, -errno */
	int (*segments)(const char *ifname);      /* accepts GSO packets: 1, 0, -errno */
	/* enum harp_address_state, or -errno: unknown */
	int (*address_state)(const char *ifname, const struct harp_addr *addr);
	/* harpd's devices (harp_lease.h), and the inode number of this process's network
	 * namespace. */
	const struct harp_lease_device *leased;
	unsigned leased_count;
	uint64_t netns;
};

/*
 * Fills out with at most max devices in NCCL's order and returns how many. Uses ifname, family and
 * speed_mbps of config. 0: no interface matches; nothing is logged.
 */
unsigned device_scan(const struct device_host *host, const struct plugin_config *config,
		     struct device *out, unsigned max);

/* Does ifname match a list in NCCL_SOCKET_IFNAME's syntax? exact: the list names it in full. */
bool device_name_matches(const char *list, const char *ifname, bool *exact);

/* Adds the properties of an open port; dev: its number. */
void device_port_opened(struct device *device, const struct harp_instance_port *info,
			const struct plugin_config *config, const char *sysfs, unsigned dev);

/* ---- between device.c, device_load.c and device_sysfs.c -------------------------------------- */

/* NCCL's own socket transport assumes this if an interface reports no speed. */
#define DEVICE_SPEED_MBPS_DEFAULT 10000u
/*
 * The assumed speed of cloud NICs, whose drivers report none (virtio_net, ENA, gVNIC, Hyper-V).
 * NCCL derives the number of channels and the size limit of LL from it. A value that is too low
 * wastes bandwidth; one that is too high only costs buffers. HARP_SPEED_MBPS sets the actual speed.
 */
#define DEVICE_SPEED_MBPS_CLOUD 25000u
/* Added to the rank (enum harp_address_state) of IPv6 addresses that are not link-local. */
#define RANK_BEYOND_LINK HARP_ADDRESS_PREFERRED

/* The kernel's information about one interface. */
struct candidate {
	struct device device;
	uint8_t mac[6];
	bool has_mac;
	bool on_comm_id_subnet;
	bool unnamed_never; /* only usable if named: of another namespace, with its default route */
	bool usable;
	int v6_rank; /* suitability of device.addr_v6 for handles; 0: no address */
};

/* Adds an address of that family (0: any): the first IPv4 address, and the first IPv6 address that
 * is not link-local, else the first. */
void device_take_address(struct device *device, const struct harp_addr *addr, int family);
/* Takes the properties that harpd knows. */
void device_take_lease(struct device *device, const struct harp_lease_device *leased, int family);
/* From MAC address and index: unique per interface of a host, and constant. */
uint64_t device_guid(const uint8_t mac[6], uint32_t ifindex);
/* Sets the path of a PCI function ("0000:3b:00.0"), and the NUMA node unless set. */
void device_describe_pci_function(const char *sysfs, const char *address, struct device *device);
/* The assumed speed of an interface whose driver reports none. */
uint32_t device_assumed_speed_mbps(const struct device *device);
/* Does the interface's directory have that entry? */
bool device_sysfs_exists(const char *sysfs, const char *ifname, const char *entry);
/* Adds speed (unless set), PCI path and NUMA node, and the guid of a shared lower interface. all:
 * the interfaces of the host. */
void device_describe_hardware(const char *sysfs, struct candidate *candidate,
			      const struct candidate *all, unsigned count);

#endif
