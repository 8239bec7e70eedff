/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_rx.c - reception of a queue: mbufs become descriptors.
 *
 * rx() requests at most as many packets as it has descriptors. If packets have several mbufs, those
 * that do not fit wait in the NIC for the next call. A received mbuf that is not one of our frames
 * is copied into frames: a spare, or an mbuf of another port of this process (net_ring).
 */
#include <rte_prefetch.h>
#include <stdio.h>
#include <string.h>

#include "dpdk/eal_log.h"
#include "dpdk/nic.h"

#define NIC_ALLOC_FAILED_LOG_NS UINT64_C(10000000000) /* minimum interval of the log line */
#define NIC_JOIN_BYTES 96u /* Ethernet with a VLAN tag, IPv6 and TCP with timestamps: 90 */

unsigned nic_fill(struct harp_nic *harp_nic, const uint64_t *addrs, unsigned count)
{
	struct pool *pool = nic_of(harp_nic)->pool;

	pool_enter(pool);
	for (unsigned i = 0; i < count; i++) {
		uint32_t index = (uint32_t)(addrs[i] >> pool->shift);

		assert(index < pool->frame_count && pool->state[index] == POOL_STACK);
		pool->state[index] = POOL_EMPTY;
		pool->empty.items[pool->empty.count++] = index;
	}
	pool_leave(pool);
	return count;
}

/* RX_L4_CKSUM_NONE: the checksum was never written, because the packet has not left its host
 * (virtio). Its data counts as verified. */
static inline uint32_t nic_rx_flags(const struct rte_mbuf *packet)
{
	const uint64_t sum = packet->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;

	return sum == RTE_MBUF_F_RX_L4_CKSUM_GOOD || sum == RTE_MBUF_F_RX_L4_CKSUM_NONE
		       ? HARP_DESC_RX_CSUM_VALID
		       : 0;
}

/* True if the driver held the mbuf for reception. (A sent mbuf may return through a net_ring.) */
static inline bool nic_is_frame(const struct pool *pool, const struct rte_mbuf *mbuf)
{
	return mbuf->pool == pool->mempool && pool->state[pool_index(pool, mbuf)] == POOL_RECEIVING;
}

/* True if all mbufs of a packet are frames of this pool. */
static bool nic_is_ours(const struct pool *pool, const struct rte_mbuf *packet)
{
	for (; packet; packet = packet->next)
		if (!nic_is_frame(pool, packet))
			return false;
	return true;
}

/* Converts a chain of our frames: each mbuf becomes a descriptor, and is unchained. */
static void nic_rx_chain(struct dpdk_nic *nic, struct rte_mbuf *mbuf, struct harp_desc *descs)
{
	struct pool *pool = nic->pool;
	uint32_t flags = nic_rx_flags(mbuf);

	while (mbuf) {
		struct rte_mbuf *next = mbuf->next;

		pool->state[pool_index(pool, mbuf)] = POOL_STACK;
		*descs++ = (struct harp_desc){
			.addr = pool_offset(pool, mbuf),
			.len = mbuf->data_len,
			.flags = flags | (next ? HARP_DESC_MORE : 0),
		};
		mbuf->next = NULL;
		mbuf->nb_segs = 1;
		mbuf = next;
	}
}

/* Number of descriptors that a copy of the packet needs. */
static unsigned nic_copy_descs(const struct dpdk_nic *nic, const struct rte_mbuf *packet)
{
	uint32_t room = nic->nic.caps.frame_size - nic->nic.caps.rx_headroom;

	return (packet->pkt_len + room - 1) / room;
}

/* Copies a packet whose mbufs are not our frames into frames of the fill list. */
static void nic_rx_copy(struct dpdk_nic *nic, const struct rte_mbuf *packet,
			struct harp_desc *descs)
{
	struct pool *pool = nic->pool;
	uint32_t room = nic->nic.caps.frame_size - nic->nic.caps.rx_headroom;
	uint32_t flags = nic_rx_flags(packet);

	for (uint32_t at = 0, len; at < packet->pkt_len; at += len, descs++) {
		uint32_t index = pool->empty.items[--pool->empty.count];
		uint64_t addr = ((uint64_t)index << pool->shift) + nic->nic.caps.rx_headroom;
		uint8_t *to = pool->base + addr;
		const uint8_t *from;

		pool->state[index] = POOL_STACK;
		len = packet->pkt_len - at < room ? packet->pkt_len - at : room;
		from = rte_pktmbuf_read(packet, at, len, to);
		if (from != to)
			memcpy(to, from, len); /* COPY: not one of our frames */
		nic->stats.copied_bytes += len;
		*descs = (struct harp_desc){
			.addr = addr,
			.len = len,
			.flags = flags | (at + len < packet->pkt_len ? HARP_DESC_MORE : 0),
		};
	}
}

/* Converts any packet. Returns the descriptors written; 0: too few are left; -1: dropped. */
static int nic_rx_any(struct dpdk_nic *nic, struct rte_mbuf *packet, struct harp_desc *descs,
		      unsigned room)
{
	bool ours = nic_is_ours(nic->pool, packet);
	unsigned count = ours ? packet->nb_segs : nic_copy_descs(nic, packet);

	if (count > room)
		return 0;
	if (!ours && (count == 0 || count > nic->pool->empty.count)) {
		nic->stats.rx_fill_empty += count > 0;
		nic->stats.rx_invalid += count == 0;
		rte_pktmbuf_free(packet);
		return -1;
	}
	if (ours) {
		nic_rx_chain(nic, packet, descs);
	} else {
		nic_rx_copy(nic, packet, descs);
		rte_pktmbuf_free(packet);
	}
	return (int)count;
}

/*
 * memif sends headers in a separate mbuf if the payload is sent in place. Copies them into the
 * headroom of the payload's mbuf, so that the packet is one frame. The header mbuf becomes empty
 * again.
 */
static struct rte_mbuf *nic_rx_join(struct dpdk_nic *nic, struct rte_mbuf *packet)
{
	struct pool *pool = nic->pool;
	struct rte_mbuf *rest = packet->next;
	uint32_t index = pool_index(pool, packet);

	if (packet->nb_segs != 2 || packet->data_len > NIC_JOIN_BYTES ||
	    packet->data_len > rest->data_off || !nic_is_ours(pool, packet))
		return packet;
	rest->data_off = (uint16_t)(rest->data_off - packet->data_len);
	memcpy(rte_pktmbuf_mtod(rest, void *), rte_pktmbuf_mtod(packet, void *), packet->data_len);
	rest->data_len = (uint16_t)(rest->data_len + packet->data_len);
	rest->pkt_len = packet->pkt_len;
	rest->ol_flags = packet->ol_flags;
	packet->next = NULL;
	packet->nb_segs = 1;
	pool->state[index] = POOL_EMPTY;
	pool->empty.items[pool->empty.count++] = index;
	return rest;
}

static unsigned nic_rx_take(struct dpdk_nic *nic, struct harp_desc *descs, unsigned max)
{
	struct pool *pool = nic->pool;
	unsigned got = 0;

	while (nic->waiting_at < nic->waiting_count && got < max) {
		struct rte_mbuf *packet = nic->waiting[nic->waiting_at];
		uint32_t bytes = packet->pkt_len;
		int count = 1;

		if (packet->nb_segs > 1)
			packet = nic->waiting[nic->waiting_at] = nic_rx_join(nic, packet);

		if (nic->waiting_at + 4 < nic->waiting_count)
			rte_prefetch0(nic->waiting[nic->waiting_at + 4]);
		if (__builtin_expect(packet->nb_segs == 1 && nic_is_frame(pool, packet), 1)) {
			pool->state[pool_index(pool, packet)] = POOL_STACK;
			descs[got] = (struct harp_desc){
				.addr = pool_offset(pool, packet),
				.len = packet->data_len,
				.flags = nic_rx_flags(packet),
			};
		} else {
			count = nic_rx_any(nic, packet, descs + got, max - got);
			if (count == 0 && got > 0)
				break;
			if (count == 0) { /* exceeds any burst of the caller */
				nic->stats.rx_invalid++;
				rte_pktmbuf_free(packet);
				count = -1;
			}
		}
		nic->waiting_at++;
		if (count < 0)
			continue;
		got += (unsigned)count;
		nic->stats.driver_copied_bytes += bytes;
	}
	return got;
}

/* Logs that the driver found too few frames. Drivers then drop packets or leave them in the ring,
 * and few report it. */
static void nic_rx_log_alloc_failed(struct dpdk_nic *nic)
{
	char line[256];

	nic->alloc_failed = nic->pool->alloc_failed;
	if (nic->alloc_failed_log_ns > 0 &&
	    nic->now_ns - nic->alloc_failed_log_ns < NIC_ALLOC_FAILED_LOG_NS)
		return;
	nic->alloc_failed_log_ns = nic->now_ns;
	snprintf(line, sizeof(line),
		 "%s queue %u: too few of %u frames are free for reception: packets wait or are "
		 "lost; raise the port's frames=",
		 nic->port->name, nic->queue, nic->port->frame_count);
	eal_log_forward(line);
}

unsigned nic_rx(struct harp_nic *harp_nic, struct harp_desc *descs, unsigned max, uint64_t now_ns)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	unsigned limit = max < NIC_BURST ? max : NIC_BURST;
	unsigned got;

	nic->now_ns = now_ns;
	nic_enter(nic);
	if (nic->waiting_at == nic->waiting_count && quiesce_enter(nic)) {
		nic->waiting_at = 0;
		nic->waiting_count =
			rte_eth_rx_burst(nic->port_id, nic->queue, nic->waiting, (uint16_t)limit);
	}
	got = nic_rx_take(nic, descs, max);
	nic_leave(nic);
	if (__builtin_expect(nic->pool->alloc_failed != nic->alloc_failed, 0))
		nic_rx_log_alloc_failed(nic);
	return got;
}

void nic_drop_waiting(struct dpdk_nic *nic)
{
	nic_enter(nic);
	while (nic->waiting_at < nic->waiting_count)
		rte_pktmbuf_free(nic->waiting[nic->waiting_at++]);
	nic_leave(nic);
}
