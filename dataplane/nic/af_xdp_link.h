/* SPDX-License-Identifier: Apache-2.0 */
/* af_xdp_link.h - interface properties: index, MTU, driver, queues, offloads. */
#ifndef HARP_NIC_AF_XDP_LINK_H
#define HARP_NIC_AF_XDP_LINK_H

#include <stdbool.h>
#include <stdint.h>

enum af_xdp_offload {
	OFFLOAD_RX_CSUM = 0x01,
	OFFLOAD_TX_CSUM = 0x02,
	OFFLOAD_SG = 0x04,
	OFFLOAD_TSO = 0x08,
	OFFLOAD_GSO = 0x10,
	OFFLOAD_GRO = 0x20,
	OFFLOAD_LRO = 0x40,
};

struct af_xdp_link {
	uint32_t ifindex;
	uint32_t mtu_bytes;
	uint32_t rx_queues, tx_queues; /* 0: not reported */
	uint32_t rx_queues_max;        /* maximum that the driver supports */
	uint32_t offloads;             /* enum af_xdp_offload */
	bool up, carrier, loopback;
	uint8_t mac[6];
	char driver[32]; /* empty: unknown */
};

/* Reads the properties. -ENODEV no such interface, -EINVAL not Ethernet or a name too long, other
 * -errno. */
int af_xdp_link_read(const char *ifname, struct af_xdp_link *out);
/* True if packets from a local neighbor may have partial TCP checksums. */
bool af_xdp_link_partial_csum(const struct af_xdp_link *link);
/* True if packets arrive on lower devices (bond, team, VLAN), so that an AF_XDP socket receives
 * nothing. */
bool af_xdp_link_is_stacked(const struct af_xdp_link *link);
/* True for a software device on which native XDP costs the kernel more than HARP gains. */
bool af_xdp_link_prefers_generic(const struct af_xdp_link *link);

#endif
