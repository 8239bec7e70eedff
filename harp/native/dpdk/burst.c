/* SPDX-License-Identifier: Apache-2.0 */
/* Bursts: packets in and out of a port, and their bytes. */
#include <errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk_private.h"

#define BURST_MAX 65535u
/* A buffer's reference count has 16 bits; a packet with that many references is not sent again. */
#define REFERENCES_MAX 60000u
#define SEGMENTS_MAX 64u

struct dpdk_burst *dpdk_burst_create(uint32_t size)
{
	struct dpdk_burst *burst;

	if (!size || size > BURST_MAX)
		return NULL;
	burst = calloc(1, sizeof(*burst) + size * sizeof(burst->packets[0]));
	if (burst)
		burst->size = size;
	return burst;
}

void dpdk_burst_clear(struct dpdk_burst *burst)
{
	/* After a fork they are the parent's. */
	if (dpdk_running() == 1 && burst->count)
		rte_pktmbuf_free_bulk(burst->packets, burst->count);
	burst->count = 0;
}

void dpdk_burst_destroy(struct dpdk_burst *burst)
{
	dpdk_burst_clear(burst);
	free(burst);
}

/* Lays `bytes` over a chain of as many buffers as they take. */
static struct rte_mbuf *lay_out(struct rte_mbuf **buffers, uint32_t segments, uint32_t bytes)
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

/* One packet more, of undefined contents. */
static int add_packet(struct dpdk_burst *burst, struct rte_mempool *pool, uint32_t bytes)
{
	uint32_t room = rte_pktmbuf_data_room_size(pool) - RTE_PKTMBUF_HEADROOM;
	uint32_t segments = bytes ? (bytes - 1) / room + 1 : 1;
	struct rte_mbuf *buffers[SEGMENTS_MAX];

	if (dpdk_running() != 1)
		return -ECHILD;
	if (segments > SEGMENTS_MAX)
		return -EMSGSIZE;
	if (burst->count == burst->size)
		return -EINVAL;
	if (rte_pktmbuf_alloc_bulk(pool, buffers, segments))
		return -ENOBUFS;
	burst->packets[burst->count++] = lay_out(buffers, segments, bytes);
	return 0;
}

int dpdk_burst_allocate(struct dpdk_burst *burst, struct rte_mempool *pool, uint32_t count,
			uint32_t bytes)
{
	int result = burst->count ? -EINVAL : 0;

	while (!result && burst->count < count)
		result = add_packet(burst, pool, bytes);
	if (result)
		dpdk_burst_clear(burst);
	return result;
}

int dpdk_burst_append(struct dpdk_burst *burst, struct rte_mempool *pool, const void *data,
		      uint32_t bytes)
{
	int result = add_packet(burst, pool, bytes);

	return result ? result : dpdk_packet_write(burst, burst->count - 1, 0, data, bytes);
}

uint32_t dpdk_packet_bytes(const struct dpdk_burst *burst, uint32_t index)
{
	return index < burst->count ? burst->packets[index]->pkt_len : 0;
}

void dpdk_packet_lengths(const struct dpdk_burst *burst, uint32_t *bytes)
{
	for (uint32_t i = 0; i < burst->count; i++)
		bytes[i] = burst->packets[i]->pkt_len;
}

int dpdk_packet_segments(const struct dpdk_burst *burst, uint32_t index, struct dpdk_segment *out,
			 unsigned max)
{
	unsigned count = 0;

	if (index >= burst->count)
		return -ERANGE;
	for (struct rte_mbuf *m = burst->packets[index]; m; m = m->next, count++)
		if (count < max)
			out[count] = (struct dpdk_segment){ rte_pktmbuf_mtod(m, uint8_t *),
							    m->data_len };
	return (int)count;
}

/* Walks over [offset, offset + bytes) of a packet, copying one way or the other. */
static int transfer(const struct dpdk_burst *burst, uint32_t index, uint32_t offset, uint8_t *out,
		    const uint8_t *from, uint32_t bytes)
{
	struct rte_mbuf *m;

	if (index >= burst->count || offset > burst->packets[index]->pkt_len ||
	    bytes > burst->packets[index]->pkt_len - offset)
		return -ERANGE;
	for (m = burst->packets[index]; m && bytes; m = m->next) {
		uint32_t here;

		assert(!out != !from);
		if (offset >= m->data_len) {
			offset -= m->data_len;
			continue;
		}
		here = RTE_MIN(bytes, m->data_len - offset);
		if (out) {
			memcpy(out, rte_pktmbuf_mtod_offset(m, uint8_t *, offset), here); /* COPY */
			out += here;
		} else {
			memcpy(rte_pktmbuf_mtod_offset(m, uint8_t *, offset), from,
			       here); /* COPY */
			from += here;
		}
		bytes -= here;
		offset = 0;
	}
	return bytes ? -ERANGE : 0;
}

int dpdk_packet_read(const struct dpdk_burst *burst, uint32_t index, uint32_t offset, void *out,
		     uint32_t bytes)
{
	return transfer(burst, index, offset, out, NULL, bytes);
}

int dpdk_packet_write(struct dpdk_burst *burst, uint32_t index, uint32_t offset, const void *from,
		      uint32_t bytes)
{
	return transfer(burst, index, offset, NULL, from, bytes);
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

int dpdk_receive(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint32_t max)
{
	if (dpdk_running() != 1)
		return -ECHILD;
	if (burst->count)
		return -EINVAL;
	burst->count = dpdk_rx(port, queue, burst->packets, (uint16_t)RTE_MIN(max, burst->size));
	return (int)burst->count;
}

/* One reference more for the driver to give back. False: it has too many already. */
static bool hold(struct rte_mbuf *packet)
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

	while (held < count && hold(packets[held]))
		held++;
	sent = dpdk_tx(port, queue, packets, (uint16_t)held);
	if (sent < held)
		rte_pktmbuf_free_bulk(packets + sent, held - sent);
	return sent;
}

int dpdk_send(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint32_t first, bool keep)
{
	uint32_t count, sent;

	if (dpdk_running() != 1)
		return -ECHILD;
	if (first > burst->count)
		return -ERANGE;
	count = burst->count - first;
	if (keep)
		return (int)dpdk_send_kept(port, queue, burst->packets + first, count);
	sent = dpdk_tx(port, queue, burst->packets + first, (uint16_t)count);
	memmove(burst->packets + first, burst->packets + first + sent,
		(count - sent) * sizeof(burst->packets[0]));
	burst->count -= sent;
	return (int)sent;
}
