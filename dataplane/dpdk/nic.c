/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic.c - one queue pair of an Ethernet device as a NIC.
 *
 * Theory of operation
 *
 * A frame is an mbuf (pool.h), so descriptors are converted by arithmetic. The pool's states record
 * the owner of a frame. fill() makes it EMPTY, the driver takes it (RECEIVING), rx() returns it
 * (STACK): nic_rx.c. tx() gives it to the driver (SENDING). When the driver frees it, it joins the
 * list that complete() empties (STACK): nic_tx.c.
 */
#include "dpdk/nic.h"

#include <errno.h>
#include <string.h>

#define NIC_DRIVER_STATS_NS 100000000u /* interval of queries for the driver's drop counters */

static void nic_stats(struct harp_nic *harp_nic, struct harp_nic_stats *out)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	struct rte_eth_stats driver;

	/* The device counts for all queues, so only the first queue's NIC reports. The interval
	 * limits queries, because the firmware may answer slowly. */
	if (nic->queue == 0 && (nic->driver_stats_ns == 0 || nic->now_ns < nic->driver_stats_ns ||
				nic->now_ns - nic->driver_stats_ns >= NIC_DRIVER_STATS_NS)) {
		nic->driver_stats_ns = nic->now_ns;
		if (rte_eth_stats_get(nic->port_id, &driver) == 0)
			nic->dropped = driver.imissed + driver.rx_nombuf;
	}
	*out = nic->stats;
	out->rx_dropped += nic->dropped;
	out->rx_fill_empty += nic->pool->alloc_failed;
	if (!(nic->port->traits & DRIVER_COPIES))
		out->driver_copied_bytes = 0;
}

static int nic_memory_add(struct harp_nic *harp_nic, const void *base, size_t bytes)
{
	struct external *external = nic_of(harp_nic)->external;

	return external ? external_memory_add(external, base, bytes) : -ENOTSUP;
}

static int nic_memory_remove(struct harp_nic *harp_nic, const void *base, size_t bytes)
{
	struct external *external = nic_of(harp_nic)->external;

	return external ? external_memory_remove(external, base, bytes) : -ENOENT;
}

static void nic_memory_flush(struct harp_nic *harp_nic, const void *base, size_t bytes)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	enum port_flush how;

	if (!nic->external)
		return;
	nic_clean_inside(nic);
	how = external_memory_flush(nic->external, base, bytes, nic->now_ns);
	if (how)
		port_flush(nic, how);
}

static void nic_destroy(struct harp_nic *harp_nic)
{
	struct dpdk_nic *nic = nic_of(harp_nic);

	nic_drop_waiting(nic);
	if (nic->external) {
		nic_clean_inside(nic);
		if (external_is_held(nic->external))
			port_flush(nic, PORT_FLUSH_QUEUE);
		/* Releases the user's memory. If a driver cannot stop a queue, the device may still
		 * read the memory, so the mapping stays. port_nic() or port_close() removes it. */
		if (!external_is_held(nic->external))
			external_reset(nic->external);
	}
	__atomic_store_n(&nic->is_taken, false, __ATOMIC_RELEASE);
}

static const struct harp_nic_ops nic_ops = {
	.rx = nic_rx,
	.tx = nic_tx,
	.complete = nic_complete,
	.fill = nic_fill,
	.kick = nic_kick,
	.stats = nic_stats,
	.destroy = nic_destroy,
	.memory_add = nic_memory_add,
	.memory_remove = nic_memory_remove,
	.memory_flush = nic_memory_flush,
};

void nic_init(struct dpdk_nic *nic, struct dpdk_port *port, uint16_t queue)
{
	struct harp_nic_caps *caps = &nic->nic.caps;
	uint32_t half = port->frame_count / 2, tx = port->tx_ring * port->slot_frames;
	const struct external *external = nic->external;
	const size_t pool = offsetof(struct dpdk_nic, pool), rest = offsetof(struct dpdk_nic, port);

	/* Does not clear `pool` and `external`: quiesce_begin() may be reading the pool. */
	memset(nic, 0, pool);
	memset((uint8_t *)nic + rest, 0, sizeof(*nic) - rest);
	nic->nic.ops = &nic_ops;
	nic->port = port;
	nic->port_id = port->id;
	nic->queue = queue;
	nic->cleans = true;
	nic->alloc_failed = nic->pool->alloc_failed;
	snprintf(caps->name, sizeof(caps->name), "%.31s", port->name);
	snprintf(caps->mode, sizeof(caps->mode), "dpdk %s queue %u", port->info.driver_name, queue);
	caps->frame_base = nic->pool->base;
	caps->frame_size = port->frame_size;
	caps->frame_count = port->frame_count;
	caps->frame_reserved = POOL_RESERVED_BYTES;
	caps->rx_headroom = POOL_RESERVED_BYTES + RTE_PKTMBUF_HEADROOM;
	caps->rx_ring = 2u * port->rx_ring < half ? 2u * port->rx_ring : half;
	/* A ring that was filled at device setup permanently holds that many frames. */
	caps->rx_fill_min = port->traits & DRIVER_FILLS_LATE ? 0 : port->rx_ring + NIC_BURST;
	/* A GSO packet takes some forty frames, and packets without frames are dropped. */
	if (port->traits & DRIVER_GSO)
		caps->rx_fill_min = caps->rx_ring;
	/* Larger than the driver's ring: a full ring returns frames when it is offered more, and
	 * some drivers (virtio) return them only then. */
	caps->tx_ring = tx + NIC_BURST < half ? tx + NIC_BURST : half;
	caps->tx_frags_max = port->frags_max < caps->tx_ring ? port->frags_max : caps->tx_ring;
	caps->mtu_bytes = port->mtu_bytes;
	caps->features = port->features;
	caps->tso_bytes_max = port->tso_bytes_max;
	caps->external_count = external ? external->count : 0;
	caps->external = external ? external->addresses : NULL;
	memcpy(caps->mac, port->mac.addr_bytes, sizeof(caps->mac));
}
