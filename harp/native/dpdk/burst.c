/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives bursts of packets. */
#include <errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk_private.h"

/* A buffer's reference count has 16 bits; a packet with that many references is not sent again. */
#define REFERENCES_MAX 60000u
#define SEGMENTS_MAX 64u

struct dpdk_burst *dpdk_burst_create(uint32_t size)
{
	struct dpdk_burst *burst;

	burst = calloc(1, sizeof(*burst) + size * sizeof(burst->packets[0]));
	if (burst)
		burst->size = size;
	return burst;
}

void dpdk_burst_clear(struct dpdk_burst *burst)
{
	/* In a forked child the parent owns the packets. */
	if (dpdk_running() == 1 && burst->count)
		rte_pktmbuf_free_bulk(burst->packets, burst->count);
	burst->count = 0;
}

void dpdk_burst_destroy(struct dpdk_burst *burst)
{
	dpdk_burst_clear(burst);
	free(burst);
}

/* Makes the buffers one packet of this size. */
static struct rte_mbuf *link_segments(struct rte_mbuf **buffers, uint32_t segments, uint32_t bytes)
{
	struct rte_mbuf *head = buffers[0];

	head->nb_segs = (uint16_t)segments;
	head->pkt_len = bytes;
	for (uint32_t i = 0; i < segments; i++) {
		uint32_t here = RTE_MIN(bytes, (uint32_t)rte_pktmbuf_tailroom(buffers[i]));

		buffers[i]->data_len = (uint16_t)here;
		buffers[i]->next = i + 1 < segments ? buffers[i + 1] : NULL;
		bytes -= here;
	}
	return head;
}

int dpdk_burst_add(struct dpdk_burst *burst, struct rte_mempool *pool, uint32_t bytes)
{
	uint32_t room = rte_pktmbuf_data_room_size(pool) - RTE_PKTMBUF_HEADROOM;
	uint32_t segments = bytes ? (bytes - 1) / room + 1 : 1;
	struct rte_mbuf *buffers[SEGMENTS_MAX];

	if (segments > SEGMENTS_MAX)
		return -EMSGSIZE;
	if (rte_pktmbuf_alloc_bulk(pool, buffers, segments))
		return -ENOBUFS;
	burst->packets[burst->count++] = link_segments(buffers, segments, bytes);
	return 0;
}

uint16_t dpdk_rx(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count)
{
	uint16_t got;

	if (!dpdk_gate_enter())
		return 0;
	got = rte_eth_rx_burst(port, queue, packets, count);
	dpdk_gate_leave();
	return got;
}

uint16_t dpdk_tx(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count)
{
	uint16_t sent;

	if (!dpdk_gate_enter())
		return 0;
	sent = rte_eth_tx_burst(port, queue, packets, count);
	dpdk_gate_leave();
	return sent;
}

void dpdk_receive(uint16_t port, uint16_t queue, struct dpdk_burst *burst)
{
	burst->count = dpdk_rx(port, queue, burst->packets, (uint16_t)burst->size);
}

/* Adds a reference, which the driver releases after sending. False: there are too many. */
static bool add_reference(struct rte_mbuf *packet)
{
	if (rte_mbuf_refcnt_read(packet) > REFERENCES_MAX)
		return false;
	for (struct rte_mbuf *m = packet; m; m = m->next)
		rte_mbuf_refcnt_update(m, 1);
	return true;
}

uint32_t dpdk_send_kept(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint32_t count)
{
	uint32_t held = 0, sent;

	while (held < count && add_reference(packets[held]))
		held++;
	sent = dpdk_tx(port, queue, packets, (uint16_t)held);
	if (sent < held)
		rte_pktmbuf_free_bulk(packets + sent, held - sent);
	return sent;
}

void dpdk_send(uint16_t port, uint16_t queue, struct dpdk_burst *burst)
{
	uint32_t sent = dpdk_tx(port, queue, burst->packets, (uint16_t)burst->count);

	burst->count -= sent;
	memmove(burst->packets, burst->packets + sent, burst->count * sizeof(burst->packets[0]));
}
