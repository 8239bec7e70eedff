/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_tx.c - transmission of a queue: descriptors become mbufs, and return when the driver frees
 * them.
 *
 * tx() builds mbufs for a burst of packets and offers them to the driver, which may accept fewer.
 * The others become frames again and stay with the caller.
 */
#include "dpdk/nic.h"

/* The external frame of a descriptor; an index beyond the last: none. */
static inline uint64_t nic_external(const struct dpdk_nic *nic, const struct harp_desc *desc)
{
	return (desc->addr >> nic->pool->shift) - nic->pool->frame_count;
}

static bool nic_desc_valid(const struct dpdk_nic *nic, const struct harp_desc *desc, bool first)
{
	const struct pool *pool = nic->pool;
	uint32_t size = nic->nic.caps.frame_size, at = (uint32_t)(desc->addr & (size - 1));
	uint64_t index = desc->addr >> pool->shift;

	if (index >= pool->frame_count)
		return !first && at == 0 && nic->external &&
		       external_valid(nic->external, index - pool->frame_count, desc->len);

	return at >= POOL_RESERVED_BYTES && desc->len > 0 && desc->len <= size - at &&
	       pool->state[index] == POOL_STACK;
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

/* Converts a packet that the driver did not accept back to frames. */
static void nic_packet_undo(struct dpdk_nic *nic, struct rte_mbuf *mbuf)
{
	while (mbuf) {
		struct rte_mbuf *next = mbuf->next;

		if (mbuf->pool == nic->pool->mempool) {
			nic->pool->state[pool_index(nic->pool, mbuf)] = POOL_STACK;
			mbuf->next = NULL;
			mbuf->nb_segs = 1;
		} else {
			external_undo(mbuf);
		}
		mbuf = next;
	}
}

/* Builds mbufs for the packet at descs. Returns its number of descriptors; 0: its end is missing;
 * -1: it cannot be sent. */
static int nic_packet_make(struct dpdk_nic *nic, const struct harp_desc *descs, unsigned count,
			   struct rte_mbuf **out)
{
	unsigned n = 1;
	struct rte_mbuf *first, *last;

	while (descs[n - 1].flags & HARP_DESC_MORE)
		if (n++ == count)
			return 0;
	for (unsigned i = 0; i < n; i++)
		if (__builtin_expect(!nic_desc_valid(nic, &descs[i], i == 0), 0))
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

/* Completes the frames of a packet that cannot be sent. */
static unsigned nic_packet_refuse(struct dpdk_nic *nic, const struct harp_desc *descs)
{
	struct pool *pool = nic->pool;
	unsigned n = 0;

	do {
		uint64_t index = descs[n].addr >> pool->shift;

		if (nic->external &&
		    external_valid(nic->external, nic_external(nic, &descs[n]), 1)) {
			external_refuse(nic->external, (uint32_t)nic_external(nic, &descs[n]));
			nic->in_flight++;
			continue;
		}
		if (index >= pool->frame_count || pool->state[index] != POOL_STACK ||
		    pool->done.count == pool->done.max)
			continue;
		pool->done.items[pool->done.count++] = (uint32_t)index;
		nic->in_flight++;
	} while (descs[n++].flags & HARP_DESC_MORE);
	nic->stats.tx_invalid++;
	return n;
}

/* Lets the driver check packets with offloads. Returns the number of packets before the first
 * rejected one, and sets *n to -1 if there is one. */
static unsigned nic_prepare(struct dpdk_nic *nic, struct rte_mbuf **packets, unsigned total, int *n)
{
	uint16_t prepared = rte_eth_tx_prepare(nic->port_id, nic->queue, packets, (uint16_t)total);

	for (unsigned i = prepared; i < total; i++)
		nic_packet_undo(nic, packets[i]);
	if (prepared < total)
		*n = -1;
	return prepared;
}

/* Sends one burst. Returns the number of consumed descriptors; *more: the driver may accept
 * more. */
static unsigned nic_tx_burst(struct dpdk_nic *nic, const struct harp_desc *descs, unsigned count,
			     bool *more)
{
	struct rte_mbuf *packets[NIC_BURST];
	uint8_t sizes[NIC_BURST];
	unsigned total = 0, at = 0, taken = 0, sent;
	int n = 0;

	for (; total < NIC_BURST && at < count; at += (unsigned)n) {
		if (at + 4 < count &&
		    descs[at + 4].addr >> nic->pool->shift < nic->pool->frame_count)
			__builtin_prefetch(pool_mbuf(nic->pool, (uint32_t)(descs[at + 4].addr >>
									   nic->pool->shift)),
					   1);
		n = nic_packet_make(nic, descs + at, count - at, &packets[total]);
		if (n <= 0)
			break;
		sizes[total++] = (uint8_t)n;
	}
	/* Read before the burst, because sent mbufs belong to the driver. */
	uint32_t lens[NIC_BURST];

	for (unsigned i = 0; i < total; i++)
		lens[i] = packets[i]->pkt_len;
	if (nic->nic.caps.features & HARP_NIC_TX_CSUM)
		total = nic_prepare(nic, packets, total, &n);
	sent = total ? rte_eth_tx_burst(nic->port_id, nic->queue, packets, (uint16_t)total) : 0;
	for (unsigned i = 0; i < sent; i++) {
		taken += sizes[i];
		nic->stats.driver_copied_bytes += lens[i];
	}
	nic->in_flight += taken;
	for (unsigned i = sent; i < total; i++)
		nic_packet_undo(nic, packets[i]);
	if (sent == total && n < 0) {
		taken += nic_packet_refuse(nic, descs + taken);
		n = 1;
	}
	*more = sent == total && n > 0 && taken < count;
	return taken;
}

unsigned nic_tx(struct harp_nic *harp_nic, const struct harp_desc *descs, unsigned count,
		uint64_t now_ns)
{
	struct dpdk_nic *nic = nic_of(harp_nic);
	unsigned taken = 0;
	bool more = count > 0;

	(void)now_ns;
	nic_enter(nic);
	more = more && quiesce_enter(nic);
	while (more)
		taken += nic_tx_burst(nic, descs + taken, count - taken, &more);
	nic_leave(nic);
	return taken;
}

/* Requests that the driver frees sent mbufs; without a request, it may do so late or never. */
static void nic_clean(struct dpdk_nic *nic)
{
	if (!quiesce_enter(nic))
		return;
	if (nic->port->traits & DRIVER_PULLS)
		rte_eth_tx_burst(nic->port_id, nic->queue, nic->waiting, 0);
	else if (nic->cleans)
		nic->cleans = rte_eth_tx_done_cleanup(nic->port_id, nic->queue, 0) >= 0;
}

void nic_clean_inside(struct dpdk_nic *nic)
{
	nic_enter(nic);
	nic_clean(nic);
	nic_leave(nic);
}

static unsigned nic_complete_external(struct dpdk_nic *nic, uint64_t *addrs, unsigned max)
{
	uint32_t items[NIC_BURST];
	unsigned n = external_complete(nic->external, items, max < NIC_BURST ? max : NIC_BURST);

	for (unsigned i = 0; i < n; i++)
		addrs[i] = (uint64_t)(nic->pool->frame_count + items[i]) << nic->pool->shift;
	return n;
}

unsigned nic_complete(struct harp_nic *harp_nic, uint64_t *addrs, unsigned max, uint64_t now_ns)
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

void nic_kick(struct harp_nic *nic, uint64_t now_ns)
{
	(void)nic;
	(void)now_ns; /* drivers send inside tx() */
}
