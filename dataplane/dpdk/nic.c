/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic.c - one queue pair of an Ethernet device as a NIC: descriptors become mbufs, and mbufs descriptors.
 *
 * Theory of operation
 *
 * A frame is an mbuf (pool.h), so a descriptor is translated by arithmetic. What changes hands is written down in the
 * pool's states: fill() makes a frame EMPTY, the driver takes it (RECEIVING), rx() hands it on (HOME); tx() gives it to
 * the driver (SENDING), whose free puts it into the list that complete() empties (HOME).
 *
 * rx() asks the driver for at most as many packets as it has descriptors for. Where packets consist of several mbufs
 * those that don't fit wait in the NIC for the next call. An mbuf that is not one of the frames (a spare, or one
 * that came through a net_ring from another port of this process) is copied into frames.
 *
 * tx() makes mbufs of as many packets as a burst has and offers them to the driver, which may take fewer: the others
 * become frames again, and the caller keeps them.
 */
#include <errno.h>
#include <rte_prefetch.h>
#include <string.h>

#include "dpdk/gate.h"

#define NIC_JOIN_BYTES 96u /* Ethernet with a tag, IPv6 and TCP with timestamps have 90 */
#define NIC_DRIVER_STATS_NS 100000000u /* how often the driver is asked what it dropped */

static inline struct dpdk_nic *nic_of(struct harp_nic *nic)
{
	return (struct dpdk_nic *)nic;
}

static inline void nic_enter(struct dpdk_nic *nic)
{
	pool_enter(nic->pool);
	external_enter(nic->external);
}

static inline void nic_leave(struct dpdk_nic *nic)
{
	external_leave(nic->external);
	pool_leave(nic->pool);
}

/* ---- receiving --------------------------------------------------------------------------------- */

static unsigned nic_fill(struct harp_nic *harp_nic, const uint64_t *addrs, unsigned count)
{
	struct pool *pool = nic_of(harp_nic)->pool;

	pool_enter(pool);
	for (unsigned i = 0; i < count; i++) {
		uint32_t index = (uint32_t)(addrs[i] >> pool->shift);

		assert(index < pool->frame_count && pool->state[index] == POOL_HOME);
		pool->state[index] = POOL_EMPTY;
		pool->empty.items[pool->empty.count++] = index;
	}
	pool_leave(pool);
	return count;
}

/* *None* is one that was never written, of a packet that has not left its host (virtio): its data is vouched for. */
static inline uint32_t nic_rx_flags(const struct rte_mbuf *packet)
{
	const uint64_t sum = packet->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;

	return sum == RTE_MBUF_F_RX_L4_CKSUM_GOOD || sum == RTE_MBUF_F_RX_L4_CKSUM_NONE
		       ? HARP_DESC_CSUM_GOOD
		       : 0;
}

/* It was given to receive into. (One that was sent may come back through a net_ring.) */
static inline bool nic_is_frame(const struct pool *pool, const struct rte_mbuf *mbuf)
{
	return mbuf->pool == pool->mempool && pool->state[pool_index(pool, mbuf)] == POOL_RECEIVING;
}

/* All of a packet's mbufs are frames of this pool. */
static bool nic_is_ours(const struct pool *pool, const struct rte_mbuf *packet)
{
	for (; packet; packet = packet->next)
		if (!nic_is_frame(pool, packet))
			return false;
	return true;
}

/* A chain of our frames: each mbuf a descriptor, and again an mbuf by itself. */
static void nic_rx_chain(struct dpdk_nic *nic, struct rte_mbuf *mbuf, struct harp_desc *descs)
{
	struct pool *pool = nic->pool;
	uint32_t flags = nic_rx_flags(mbuf);

	while (mbuf) {
		struct rte_mbuf *next = mbuf->next;

		pool->state[pool_index(pool, mbuf)] = POOL_HOME;
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

/* Descriptors that a copy of the packet takes. */
static unsigned nic_copy_descs(const struct dpdk_nic *nic, const struct rte_mbuf *packet)
{
	uint32_t room = nic->nic.caps.frame_size - nic->nic.caps.rx_headroom;

	return (packet->pkt_len + room - 1) / room;
}

/* A packet in mbufs that are not our frames, copied into some that were filled. */
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

		pool->state[index] = POOL_HOME;
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

/* Any packet. Descriptors written; 0 if there is no room for them; or -1: dropped. */
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
 * Headers that come in an mbuf of their own, as memif's do when their sender sends its payload from where that lies: into
 * the headroom of the payload's mbuf, and the packet is one frame. The mbuf they came in is as good as new.
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
			pool->state[pool_index(pool, packet)] = POOL_HOME;
			descs[got] = (struct harp_desc){
				.addr = pool_offset(pool, packet),
				.len = packet->data_len,
				.flags = nic_rx_flags(packet),
			};
		} else {
			count = nic_rx_any(nic, packet, descs + got, max - got);
			if (count == 0 && got > 0)
				break;
			if (count == 0) { /* larger than any burst of the caller's */
				nic->stats.rx_invalid++;
				rte_pktmbuf_free(packet);
				count = -1;
			}
		}
		nic->waiting_at++;
		if (count < 0)
			continue;
		got += (unsigned)count;
		nic->stats.rx_packets++;
		nic->stats.rx_bytes += bytes;
	}
	return got;
}

static unsigned nic_rx(struct harp_nic *harp_nic, struct harp_desc *descs, unsigned max,
		       uint64_t now_ns)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	unsigned want = max < NIC_BURST ? max : NIC_BURST;
	unsigned got;

	nic->now_ns = now_ns;
	nic_enter(nic);
	if (nic->waiting_at == nic->waiting_count && gate_pass(nic)) {
		nic->waiting_at = 0;
		nic->waiting_count =
			rte_eth_rx_burst(nic->port_id, nic->queue, nic->waiting, (uint16_t)want);
	}
	got = nic_rx_take(nic, descs, max);
	nic_leave(nic);
	return got;
}

void nic_drop_waiting(struct dpdk_nic *nic)
{
	nic_enter(nic);
	while (nic->waiting_at < nic->waiting_count)
		rte_pktmbuf_free(nic->waiting[nic->waiting_at++]);
	nic_leave(nic);
}

/* ---- transmitting ------------------------------------------------------------------------------ */

/* Which external frame a descriptor names; beyond any: none. */
static inline uint64_t nic_external(const struct dpdk_nic *nic, const struct harp_desc *desc)
{
	return (desc->addr >> nic->pool->shift) - nic->pool->frame_count;
}

static bool nic_desc_good(const struct dpdk_nic *nic, const struct harp_desc *desc, bool first)
{
	const struct pool *pool = nic->pool;
	uint32_t size = nic->nic.caps.frame_size, at = (uint32_t)(desc->addr & (size - 1));
	uint64_t index = desc->addr >> pool->shift;

	if (index >= pool->frame_count)
		return !first && at == 0 && nic->external &&
		       external_good(nic->external, index - pool->frame_count, desc->len);

	return at >= POOL_RESERVED_BYTES && desc->len > 0 && desc->len <= size - at &&
	       pool->state[index] == POOL_HOME;
}

static inline struct rte_mbuf *nic_mbuf_make(struct dpdk_nic *nic, const struct harp_desc *desc)
{
	struct pool *pool = nic->pool;
	uint32_t index = (uint32_t)(desc->addr >> pool->shift);
	struct rte_mbuf *mbuf;

	if (index >= pool->frame_count)
		return external_make(nic->external, index - pool->frame_count, desc->len);
	mbuf = pool_mbuf(pool, index);
	pool->state[index] = POOL_SENDING;
	mbuf->data_off =
		(uint16_t)((desc->addr & (nic->nic.caps.frame_size - 1)) - POOL_RESERVED_BYTES);
	mbuf->data_len = (uint16_t)desc->len;
	mbuf->pkt_len = desc->len;
	mbuf->ol_flags = 0;
	return mbuf;
}

/* The driver did not take it: frames again. */
static void nic_packet_undo(struct dpdk_nic *nic, struct rte_mbuf *mbuf)
{
	while (mbuf) {
		struct rte_mbuf *next = mbuf->next;

		if (mbuf->pool == nic->pool->mempool) {
			nic->pool->state[pool_index(nic->pool, mbuf)] = POOL_HOME;
			mbuf->next = NULL;
			mbuf->nb_segs = 1;
		} else {
			external_undo(mbuf);
		}
		mbuf = next;
	}
}

/* The packet at descs, as mbufs. Its descriptors; 0: it has no end; -1: it can't be sent. */
static int nic_packet_make(struct dpdk_nic *nic, const struct harp_desc *descs, unsigned count,
			   struct rte_mbuf **out)
{
	unsigned n = 1;
	struct rte_mbuf *first, *last;

	while (descs[n - 1].flags & HARP_DESC_MORE)
		if (n++ == count)
			return 0;
	for (unsigned i = 0; i < n; i++)
		if (__builtin_expect(!nic_desc_good(nic, &descs[i], i == 0), 0))
			return -1;
	if (n > nic->nic.caps.tx_frags_max)
		return -1;
	first = last = nic_mbuf_make(nic, &descs[0]);
	for (unsigned i = 1; i < n; i++) {
		last->next = nic_mbuf_make(nic, &descs[i]);
		last = last->next;
		first->pkt_len += descs[i].len;
		first->nb_segs++;
	}
	if ((descs[0].flags & (HARP_DESC_TX_CSUM | HARP_DESC_TX_TSO)) &&
	    !offload_packet(first, descs[0].flags)) {
		nic_packet_undo(nic, first);
		return -1;
	}
	*out = first;
	return (int)n;
}

/* A packet that can't be sent: those of its frames that are the caller's are done. */
static unsigned nic_packet_refuse(struct dpdk_nic *nic, const struct harp_desc *descs)
{
	struct pool *pool = nic->pool;
	unsigned n = 0;

	do {
		uint64_t index = descs[n].addr >> pool->shift;

		if (nic->external &&
		    external_good(nic->external, nic_external(nic, &descs[n]), 1)) {
			external_refuse(nic->external, (uint32_t)nic_external(nic, &descs[n]));
			nic->in_flight++;
			continue;
		}
		if (index >= pool->frame_count || pool->state[index] != POOL_HOME ||
		    pool->done.count == pool->done.max)
			continue;
		pool->done.items[pool->done.count++] = (uint32_t)index;
		nic->in_flight++;
	} while (descs[n++].flags & HARP_DESC_MORE);
	nic->stats.tx_invalid++;
	return n;
}

/* What the driver has to say of packets that it is to work on. Those that it would not send are left out,
 * with what comes after them; *n: -1 when there is one. */
static unsigned nic_prepare(struct dpdk_nic *nic, struct rte_mbuf **packets, unsigned made, int *n)
{
	uint16_t good = rte_eth_tx_prepare(nic->port_id, nic->queue, packets, (uint16_t)made);

	for (unsigned i = good; i < made; i++)
		nic_packet_undo(nic, packets[i]);
	if (good < made)
		*n = -1;
	return good;
}

/* One burst. Descriptors taken; *more false when there is nothing left that the driver would take. */
static unsigned nic_tx_burst(struct dpdk_nic *nic, const struct harp_desc *descs, unsigned count,
			     bool *more)
{
	struct rte_mbuf *packets[NIC_BURST];
	uint8_t sizes[NIC_BURST];
	unsigned made = 0, at = 0, taken = 0, sent;
	uint64_t bytes = 0;
	int n = 0;

	for (; made < NIC_BURST && at < count; at += (unsigned)n) {
		if (at + 4 < count &&
		    descs[at + 4].addr >> nic->pool->shift < nic->pool->frame_count)
			__builtin_prefetch(pool_mbuf(nic->pool, (uint32_t)(descs[at + 4].addr >>
									   nic->pool->shift)),
					   1);
		n = nic_packet_make(nic, descs + at, count - at, &packets[made]);
		if (n <= 0)
			break;
		sizes[made++] = (uint8_t)n;
	}
	/* Read before the burst: what has been sent is the driver's. */
	uint32_t lens[NIC_BURST];

	for (unsigned i = 0; i < made; i++)
		lens[i] = packets[i]->pkt_len;
	if (nic->nic.caps.features & HARP_NIC_TX_CSUM)
		made = nic_prepare(nic, packets, made, &n);
	sent = made ? rte_eth_tx_burst(nic->port_id, nic->queue, packets, (uint16_t)made) : 0;
	for (unsigned i = 0; i < sent; i++) {
		taken += sizes[i];
		bytes += lens[i];
	}
	nic->in_flight += taken;
	nic->stats.tx_packets += sent;
	nic->stats.tx_bytes += bytes;
	for (unsigned i = sent; i < made; i++)
		nic_packet_undo(nic, packets[i]);
	if (sent == made && n < 0) {
		taken += nic_packet_refuse(nic, descs + taken);
		n = 1;
	}
	*more = sent == made && n > 0 && taken < count;
	return taken;
}

static unsigned nic_tx(struct harp_nic *harp_nic, const struct harp_desc *descs, unsigned count,
		       uint64_t now_ns)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	unsigned taken = 0;
	bool more = count > 0;

	(void)now_ns;
	nic_enter(nic);
	more = more && gate_pass(nic);
	while (more)
		taken += nic_tx_burst(nic, descs + taken, count - taken, &more);
	nic_leave(nic);
	return taken;
}

/* Drivers free what they have sent when it suits them, which may be never: asks for it. */
static void nic_clean(struct dpdk_nic *nic)
{
	if (!gate_pass(nic))
		return;
	if (nic->port->traits & DRIVER_PULLS)
		rte_eth_tx_burst(nic->port_id, nic->queue, nic->waiting, 0);
	else if (nic->cleans)
		nic->cleans = rte_eth_tx_done_cleanup(nic->port_id, nic->queue, 0) >= 0;
}

static unsigned nic_complete_external(struct dpdk_nic *nic, uint64_t *addrs, unsigned max)
{
	uint32_t items[NIC_BURST];
	unsigned n = external_complete(nic->external, items, max < NIC_BURST ? max : NIC_BURST);

	for (unsigned i = 0; i < n; i++)
		addrs[i] = (uint64_t)(nic->pool->frame_count + items[i]) << nic->pool->shift;
	return n;
}

static unsigned nic_complete(struct harp_nic *harp_nic, uint64_t *addrs, unsigned max,
			     uint64_t now_ns)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	struct pool *pool = nic->pool;
	unsigned count = 0;

	nic->now_ns = now_ns;
	nic_enter(nic);
	if (pool->done.count == 0 && nic->in_flight > 0)
		nic_clean(nic);
	while (count < max && pool->done.count > 0)
		addrs[count++] = (uint64_t)pool->done.items[--pool->done.count] << pool->shift;
	if (nic->external)
		count += nic_complete_external(nic, addrs + count, max - count);
	nic->in_flight -= count;
	nic_leave(nic);
	return count;
}

static void nic_kick(struct harp_nic *nic, uint64_t now_ns)
{
	(void)nic;
	(void)now_ns; /* drivers send in tx() */
}

/* ---- the rest ---------------------------------------------------------------------------------- */

static void nic_stats(struct harp_nic *harp_nic, struct harp_nic_stats *out)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	struct rte_eth_stats driver;

	/* The device's are of all queues; the first NIC tells them. Asking may take the firmware a while. */
	if (nic->queue == 0 && (nic->driver_stats_ns == 0 || nic->now_ns < nic->driver_stats_ns ||
				nic->now_ns - nic->driver_stats_ns >= NIC_DRIVER_STATS_NS)) {
		nic->driver_stats_ns = nic->now_ns;
		if (rte_eth_stats_get(nic->port_id, &driver) == 0)
			nic->dropped = driver.imissed + driver.rx_nombuf;
	}
	*out = nic->stats;
	out->rx_dropped += nic->dropped;
	out->rx_fill_empty += nic->pool->starved;
	if (nic->port->traits & DRIVER_COPIES)
		out->driver_copied_bytes = out->rx_bytes + out->tx_bytes;
}

static int nic_memory_add(struct harp_nic *harp_nic, const void *base, size_t bytes)
{
	struct external *external = nic_of(harp_nic)->external;

	return external ? external_memory_add(external, base, bytes) : -ENOTSUP;
}

/* What the driver has sent and not said so comes home, if it can be asked. */
static void nic_clean_inside(struct dpdk_nic *nic)
{
	nic_enter(nic);
	nic_clean(nic);
	nic_leave(nic);
}

static int nic_memory_remove(struct harp_nic *harp_nic, const void *base, size_t bytes)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	enum port_flush flush = PORT_FLUSH_NONE;
	int err;

	if (!nic->external)
		return -ENOENT;
	err = external_memory_remove(nic->external, base, bytes, nic->now_ns, &flush);
	if (err != -EBUSY)
		return err;
	nic_clean_inside(nic);
	if (flush)
		port_flush(nic, flush);
	return external_memory_remove(nic->external, base, bytes, nic->now_ns, NULL);
}

static void nic_destroy(struct harp_nic *harp_nic)
{
	struct dpdk_nic *nic = nic_of(harp_nic);

	nic_drop_waiting(nic);
	if (nic->external) {
		nic_clean_inside(nic);
		if (external_out(nic->external))
			port_flush(nic, PORT_FLUSH_QUEUE);
		/* Its user's memory is its user's again. Where a driver can't stop a queue the queue's next user takes care
		 * of what is out, or the port's end. */
		if (!external_out(nic->external))
			external_reset(nic->external);
	}
	__atomic_store_n(&nic->taken, false, __ATOMIC_RELEASE);
}

static const struct harp_nic_ops nic_ops = {
	.size = sizeof(struct harp_nic_ops),
	.rx = nic_rx,
	.tx = nic_tx,
	.complete = nic_complete,
	.fill = nic_fill,
	.kick = nic_kick,
	.stats = nic_stats,
	.destroy = nic_destroy,
	.memory_add = nic_memory_add,
	.memory_remove = nic_memory_remove,
};

void nic_init(struct dpdk_nic *nic, struct dpdk_port *port, uint16_t queue)
{
	struct harp_nic_caps *caps = &nic->nic.caps;
	uint32_t half = port->frame_count / 2, tx = port->tx_ring;
	const struct external *external = nic->external;
	const size_t kept = offsetof(struct dpdk_nic, pool), from = offsetof(struct dpdk_nic, port);

	/* All but the pools: who shuts the gate may be looking whether a thread is in one. */
	memset(nic, 0, kept);
	memset((uint8_t *)nic + from, 0, sizeof(*nic) - from);
	nic->nic.ops = &nic_ops;
	nic->port = port;
	nic->port_id = port->id;
	nic->queue = queue;
	nic->cleans = true;
	snprintf(caps->name, sizeof(caps->name), "%.31s", port->name);
	snprintf(caps->mode, sizeof(caps->mode), "dpdk %s queue %u", port->info.driver_name, queue);
	caps->frame_base = nic->pool->base;
	caps->frame_size = port->frame_size;
	caps->frame_count = port->frame_count;
	caps->frame_reserved = POOL_RESERVED_BYTES;
	caps->rx_headroom = POOL_RESERVED_BYTES + RTE_PKTMBUF_HEADROOM;
	caps->rx_ring = 2u * port->rx_ring < half ? 2u * port->rx_ring : half;
	/* A ring that was filled when the device was set up wants as many frames for its own. */
	caps->rx_fill_min = port->traits & DRIVER_TAKES_LATE ? 0 : port->rx_ring + NIC_BURST;
	/* A burst of trains takes some forty frames each, and drops those that find none. */
	if (port->traits & DRIVER_TRAINS)
		caps->rx_fill_min = caps->rx_ring;
	/* More than the driver's: a ring that is full gives frames back when it is offered more, and by some drivers (virtio)
	 * at no other time. */
	if (port->traits & DRIVER_INDIRECT)
		tx *= DRIVER_SLOT_MBUFS;
	caps->tx_ring = tx + NIC_BURST < half ? tx + NIC_BURST : half;
	caps->tx_frags_max = port->frags_max < caps->tx_ring ? port->frags_max : caps->tx_ring;
	caps->mtu_bytes = port->mtu_bytes;
	caps->features = port->features;
	caps->tso_bytes_max = port->tso_bytes_max;
	caps->external_count = external ? external->count : 0;
	caps->external = external ? external->where : NULL;
	memcpy(caps->mac, port->mac.addr_bytes, sizeof(caps->mac));
}
