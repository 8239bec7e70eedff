/* SPDX-License-Identifier: Apache-2.0 */
/* configure.c - configures a device from its reported properties, so that it can be started. */
#include <errno.h>
#include <rte_errno.h>
#include <stdio.h>
#include <string.h>

#include "dpdk/eal_log.h"
#include "dpdk/port.h"

#define PORT_ETH_BYTES 22u /* Ethernet header, VLAN tag, frame check sequence */
#define PORT_FRAME_SIZE 2048u
#define PORT_FRAME_SIZE_MAX 65536u
#define PORT_ROOM_HARDWARE 2048u /* devices round receive buffers to multiples of up to 1 KiB */
#define PORT_RING 1024u
#define PORT_FRAGS_MAX 16u
#define PORT_TSO_BYTES_MAX 65400u
#define PORT_HEADROOM 256u /* FRAME_HEADROOM_BYTES; no receive buffer needs more */
/* With XDP sockets (DRIVER_CHUNKS) the kernel reserves part of each chunk, and the driver's ring
 * always has this many frames. */
#define PORT_CHUNK_BYTES_MAX 4096u
#define PORT_CHUNK_RESERVED_BYTES (256u + RTE_PKTMBUF_HEADROOM)
#define PORT_CHUNK_RING 2048u

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* DPDK's message, or the errno's text. */
static const char *port_error_text(char text[EAL_TEXT_BYTES], int err)
{
	eal_log_message(text);
	if (!text[0])
		snprintf(text, EAL_TEXT_BYTES, "%s", rte_strerror(-err));
	return text;
}

uint32_t port_frame_size(const struct rte_eth_dev_info *info, uint32_t traits, uint32_t mtu_bytes)
{
	uint32_t room = mtu_bytes + PORT_ETH_BYTES, size = PORT_FRAME_SIZE, head = PORT_HEADROOM;

	if (info && room < info->min_rx_bufsize)
		room = info->min_rx_bufsize;
	if (info && info->driver_name && strncmp(info->driver_name, "net_", 4) == 0 &&
	    !(traits & DRIVER_READS) && room < PORT_ROOM_HARDWARE)
		room = PORT_ROOM_HARDWARE;
	if (traits & DRIVER_CHUNKS)
		head = PORT_CHUNK_RESERVED_BYTES;
	while (size < PORT_FRAME_SIZE_MAX && size < POOL_RESERVED_BYTES + head + room)
		size *= 2;
	while ((traits & DRIVER_SLOTS) && size < PORT_FRAME_SIZE_MAX &&
	       driver_slot_bytes(size) < mtu_bytes + PORT_ETH_BYTES + DRIVER_SLOT_OVERHEAD)
		size *= 2;
	return size;
}

/* ---- choices ---- */

/* The MTU to configure: the port's, limited to what the device supports. */
static uint32_t port_device_mtu(const struct dpdk_port *port)
{
	const struct rte_eth_dev_info *info = &port->info;
	uint32_t overhead = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN;
	uint32_t max = info->max_mtu;

	if (info->max_mtu != UINT16_MAX && info->max_rx_pktlen > info->max_mtu)
		overhead = info->max_rx_pktlen - info->max_mtu;
	if (info->max_rx_pktlen > overhead)
		max = min_u32(max, info->max_rx_pktlen - overhead);
	if (port->traits & DRIVER_CHUNKS)
		max = min_u32(max, PORT_CHUNK_BYTES_MAX - POOL_RESERVED_BYTES -
					   PORT_CHUNK_RESERVED_BYTES - PORT_ETH_BYTES);
	return min_u32(max, port->mtu_bytes);
}

static int port_choose_mtu(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
			   const struct why *why)
{
	uint16_t mtu = 0;

	port->mtu_bytes = opt->mtu_bytes;
	if (!port->mtu_bytes) {
		rte_eth_dev_get_mtu(port->id, &mtu);
		port->mtu_bytes = mtu && mtu < RTE_ETHER_MTU ? mtu : RTE_ETHER_MTU;
	}
	if (port->mtu_bytes < 68 || port->mtu_bytes > UINT16_MAX - PORT_ETH_BYTES)
		return why_fail(why, -EINVAL, "MTU %u is not in 68..%u", port->mtu_bytes,
				UINT16_MAX - PORT_ETH_BYTES);
	if (port_device_mtu(port) < port->mtu_bytes && !(port->traits & DRIVER_ANY_LENGTH))
		return why_fail(why, -EINVAL, "MTU %u exceeds the device's maximum of %u",
				port->mtu_bytes, port_device_mtu(port));
	return 0;
}

static int port_choose_frames(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
			      const struct why *why)
{
	port->frame_size = port_frame_size(&port->info, port->traits, port->mtu_bytes);
	port->frame_count = opt->frame_count;
	if (port->frame_count < 128 || port->frame_count > 1u << 20)
		return why_fail(why, -EINVAL, "%u frames; use 128 to 1048576", port->frame_count);
	return 0;
}

/*
 * Half of a queue's frames are for reception. They must suffice for the whole ring: some drivers
 * stop receiving if they cannot refill it after a burst. A NIC returns sent frames only when the
 * stack sends more, for which the stack needs free frames. So the transmit ring may hold a quarter.
 */
static int port_check_rings(struct dpdk_port *port, const struct why *why)
{
	uint32_t need = 0, chain = port->traits & DRIVER_INDIRECT ? 2 : 1;

	if (!(port->traits & DRIVER_FILLS_LATE))
		need = 2 * (port->rx_ring + min_u32(port->rx_ring, NIC_BURST));
	if (!(port->traits & DRIVER_READS) && need < 4 * chain * port->tx_ring)
		need = 4 * chain * port->tx_ring;
	if (need > port->frame_count)
		return why_fail(
			why, -EINVAL,
			"%u frames are too few for its rings of at least %u and %u descriptors; "
			"use %u",
			port->frame_count, port->rx_ring, port->tx_ring, need);
	/* The driver may require a longer ring than port_choose_queues() computed. Then packets
	 * have fewer fragments. */
	port->frags_max = PORT_FRAGS_MAX;
	if ((port->traits & DRIVER_INDIRECT) &&
	    DRIVER_SLOT_MBUFS * 4 * port->tx_ring > port->frame_count)
		port->frags_max = port->frame_count / (4 * port->tx_ring);
	return 0;
}

static int port_choose_queues(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
			      const struct why *why)
{
	uint32_t max = min_u32(port->info.max_rx_queues, port->info.max_tx_queues);
	uint32_t ring = PORT_RING;
	int err;

	if (opt->queues > max || opt->queues > RTE_MAX_QUEUES_PER_PORT)
		return why_fail(why, -EINVAL, "%u queues; the device has %u", opt->queues, max);
	port->queues = (uint16_t)opt->queues;
	if (port->traits & DRIVER_CHUNKS)
		ring = PORT_CHUNK_RING;
	if ((port->traits & DRIVER_CHUNKS) && port->frame_count < 4 * ring)
		return why_fail(why, -EINVAL, "%u frames; its driver keeps %u, so use at least %u",
				port->frame_count, ring, 4 * ring);
	ring = min_u32(ring, port->frame_count / 4);
	port->rx_ring = port->tx_ring = (uint16_t)min_u32(ring, 32768);
	if (port->traits & DRIVER_INDIRECT)
		port->tx_ring = (uint16_t)min_u32(port->tx_ring,
						  port->frame_count / (4 * DRIVER_SLOT_MBUFS));
	err = rte_eth_dev_adjust_nb_rx_tx_desc(port->id, &port->rx_ring, &port->tx_ring);
	if (err)
		return why_fail(why, err, "rings of %u descriptors: %s", ring, rte_strerror(-err));
	port->spare_count = 2u * port->rx_ring + NIC_BURST;
	return port_check_rings(port, why);
}

/* ---- the device ---- */

#define PORT_TX_CSUM (RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM)
/* For segmented packets the device also writes IPv4 checksums. virtio does so only for those and
 * does not report it. */
#define PORT_TX_TSO (PORT_TX_CSUM | RTE_ETH_TX_OFFLOAD_TCP_TSO)

static void port_offloads(const struct dpdk_port *port, struct rte_eth_conf *conf)
{
	const uint64_t rx = port->info.rx_offload_capa, tx = port->info.tx_offload_capa;
	uint32_t room = port->frame_size - POOL_RESERVED_BYTES - RTE_PKTMBUF_HEADROOM;

	conf->rxmode.offloads = rx & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_TCP_CKSUM |
				      RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
	if (room < port->mtu_bytes + PORT_ETH_BYTES)
		conf->rxmode.offloads |= rx & RTE_ETH_RX_OFFLOAD_SCATTER;
	conf->txmode.offloads = tx & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	if ((tx & PORT_TX_CSUM) == PORT_TX_CSUM)
		conf->txmode.offloads |= PORT_TX_CSUM;
	if ((tx & PORT_TX_TSO) == PORT_TX_TSO)
		conf->txmode.offloads |= PORT_TX_TSO | (tx & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM);
}

static void port_features(struct dpdk_port *port)
{
	const struct rte_eth_desc_lim *lim = &port->info.tx_desc_lim;
	bool chains = port->info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;

	port->features = 0;
	if (chains) {
		port->features |= HARP_NIC_TX_MULTI;
		if (lim->nb_mtu_seg_max > 0)
			port->frags_max = min_u32(port->frags_max, lim->nb_mtu_seg_max);
	} else {
		port->frags_max = 1;
	}
	port->slot_frames =
		port->traits & DRIVER_INDIRECT ? min_u32(DRIVER_SLOT_MBUFS, port->frags_max) : 1;
	if ((port->info.tx_offload_capa & PORT_TX_CSUM) == PORT_TX_CSUM)
		port->features |= HARP_NIC_TX_CSUM;
	if (chains && (port->info.tx_offload_capa & PORT_TX_TSO) == PORT_TX_TSO &&
	    !(port->traits & DRIVER_NO_TSO)) {
		port->features |= HARP_NIC_TX_TSO;
		port->tso_bytes_max = PORT_TSO_BYTES_MAX;
	}
	/* NICs report completion only for some descriptors. Some drivers check for it only when
	 * they send (virtio: when its ring is nearly full). */
	if (!(port->traits & DRIVER_READS))
		port->features |= HARP_NIC_TX_LAZY;
	if (port->traits & DRIVER_KERNEL)
		port->features |= HARP_NIC_RX_CSUM_PARTIAL;
}

/* The device's MAC address, if usable. Several virtual drivers use one address for all devices, or
 * none. */
static void port_mac(struct dpdk_port *port)
{
	if (rte_eth_macaddr_get(port->id, &port->mac) == 0 &&
	    rte_is_valid_assigned_ether_addr(&port->mac))
		return;
	rte_eth_random_addr(port->mac.addr_bytes);
	rte_eth_dev_default_mac_addr_set(port->id, &port->mac);
}

int port_configure(struct dpdk_port *port, const struct harp_dpdk_port_options *opt,
		   const struct why *why)
{
	struct rte_eth_conf conf = { 0 };
	char text[EAL_TEXT_BYTES];
	int err;

	err = port_choose_mtu(port, opt, why);
	if (!err)
		err = port_choose_frames(port, opt, why);
	if (!err)
		err = port_choose_queues(port, opt, why);
	if (err)
		return err;
	conf.rxmode.mtu = port_device_mtu(port);
	port_offloads(port, &conf);
	if (port->queues > 1 && port->info.flow_type_rss_offloads) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf =
			port->info.flow_type_rss_offloads &
			(RTE_ETH_RSS_NONFRAG_IPV4_TCP | RTE_ETH_RSS_NONFRAG_IPV6_TCP);
	}
	eal_log_mark();
	err = rte_eth_dev_configure(port->id, port->queues, port->queues, &conf);
	if (err)
		return why_fail(why, err, "cannot be configured with %u queues and MTU %u: %s",
				port->queues, port->mtu_bytes, port_error_text(text, err));
	/* The reported properties may depend on the configuration. */
	err = rte_eth_dev_info_get(port->id, &port->info);
	if (err)
		return why_fail(why, err, "reading its properties: %s", rte_strerror(-err));
	port_features(port);
	if (port->features & HARP_NIC_TX_MULTI)
		port->external_count = port->frame_count;
	port_mac(port);
	return 0;
}

int port_queues_setup(struct dpdk_port *port, const struct why *why)
{
	struct rte_eth_rxconf rx = port->info.default_rxconf;
	struct rte_eth_txconf tx = port->info.default_txconf;
	struct rte_eth_conf conf = { 0 };
	char text[EAL_TEXT_BYTES];
	unsigned socket = (unsigned)rte_eth_dev_socket_id(port->id);
	int err = 0;

	port_offloads(port, &conf);
	rx.offloads = conf.rxmode.offloads;
	tx.offloads = conf.txmode.offloads;
	eal_log_mark();
	for (uint16_t q = 0; q < port->queues && !err; q++) {
		err = rte_eth_rx_queue_setup(port->id, q, port->rx_ring, socket, &rx,
					     port->nics[q].pool->mempool);
		if (!err)
			err = rte_eth_tx_queue_setup(port->id, q, port->tx_ring, socket, &tx);
		if (err)
			return why_fail(why, err, "queue %u cannot be set up: %s", q,
					port_error_text(text, err));
	}
	return 0;
}
