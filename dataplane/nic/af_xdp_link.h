/* SPDX-License-Identifier: Apache-2.0 */
/* af_xdp_link.h - what an interface says about itself: index, MTU, driver, queues, offloads. */
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
	uint32_t rx_queues, tx_queues; /* 0: the driver does not say */
	uint32_t rx_queues_max;        /* that it could have */
	uint32_t offloads;             /* enum af_xdp_offload */
	bool up, carrier, loopback;
	uint8_t mac[6];
	char driver[32]; /* empty: unknown */
};

/* Reads them; -ENODEV no such interface, -EINVAL not Ethernet or a name too long, other -errno. */
int af_xdp_link_read(const char *ifname, struct af_xdp_link *out);
/* May a neighbour on the same machine hand over packets whose TCP checksum is only begun? */
bool af_xdp_link_partial_csum(const struct af_xdp_link *link);
/* Do its packets arrive on devices beneath it (bond, team, VLAN)? An AF_XDP socket on it receives nothing. */
bool af_xdp_link_is_stacked(const struct af_xdp_link *link);
/* Is this a software device on which native XDP costs the kernel more than it gives HARP? */
bool af_xdp_link_wants_generic(const struct af_xdp_link *link);

#endif
