/* SPDX-License-Identifier: Apache-2.0 */
/* A generator, a sink or echo, and a ping: loops over a queue that return to Python regularly. */
#include <errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_pause.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "dpdk_private.h"

#define BURST 32u
#define CALLS_PER_LOOK 32u /* bursts between two readings of the clock */
#define IDLE_CALLS_MAX 64u /* after this many idle calls the thread yields */
#define SEQUENCE_AT RTE_ETHER_HDR_LEN

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void count_burst(struct dpdk_count *count, uint32_t packets, uint64_t bytes, uint64_t now)
{
	count->calls++;
	if (!packets) {
		/* With fewer cores than pollers the other side needs this processor. */
		if (++count->idle % IDLE_CALLS_MAX == 0)
			sched_yield();
		return;
	}
	if (!count->packets)
		count->first_ns = now;
	count->last_ns = now;
	count->packets += packets;
	count->bytes += bytes;
}

static uint64_t bytes_of(struct rte_mbuf **packets, uint32_t count)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < count; i++)
		bytes += packets[i]->pkt_len;
	return bytes;
}

int dpdk_generate(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint64_t packets,
		  uint64_t span_ns, struct dpdk_count *count)
{
	uint64_t now = now_ns(), end = now + span_ns, left = packets;
	uint32_t at = 0;

	if (!burst->count)
		return -EINVAL;
	do {
		for (uint32_t i = 0; i < CALLS_PER_LOOK && left; i++) {
			uint32_t want = RTE_MIN(BURST, burst->count - at), sent;

			want = (uint32_t)RTE_MIN((uint64_t)want, left);
			sent = dpdk_send_kept(port, queue, burst->packets + at, want);
			count_burst(count, sent, bytes_of(burst->packets + at, sent), now);
			left -= sent;
			at = at + sent < burst->count ? at + sent : 0;
		}
		now = now_ns();
	} while (left && now < end);
	return 0;
}

static void swap_addresses(struct rte_mbuf *packet)
{
	struct rte_ether_hdr *header = rte_pktmbuf_mtod(packet, struct rte_ether_hdr *);
	struct rte_ether_addr sender;

	if (packet->data_len < sizeof(*header))
		return;
	sender = header->src_addr;
	header->src_addr = header->dst_addr;
	header->dst_addr = sender;
}

void dpdk_sink(uint16_t port, uint16_t queue, uint64_t packets, uint64_t span_ns, bool echo,
	       struct dpdk_count *count)
{
	uint64_t now = now_ns(), end = now + span_ns;
	uint64_t until = packets ? count->packets + packets : UINT64_MAX;
	struct rte_mbuf *got[BURST];

	do {
		for (uint32_t i = 0; i < CALLS_PER_LOOK && count->packets < until; i++) {
			uint32_t want = (uint32_t)RTE_MIN((uint64_t)BURST, until - count->packets);
			uint32_t n = dpdk_rx(port, queue, got, (uint16_t)want), sent = 0;

			/* Before the driver owns and frees the packets. */
			count_burst(count, n, bytes_of(got, n), now);
			if (echo) {
				for (uint32_t j = 0; j < n; j++)
					swap_addresses(got[j]);
				sent = dpdk_tx(port, queue, got, (uint16_t)n);
			}
			rte_pktmbuf_free_bulk(got + sent, n - sent);
		}
		now = now_ns();
	} while (count->packets < until && now < end);
}

/* Receives until the answer with this sequence number; returns its time, or 0 after end_ns. */
static uint64_t wait_answer(uint16_t port, uint16_t queue, uint64_t sequence, uint64_t end_ns)
{
	struct rte_mbuf *got[BURST];
	uint64_t now, answer_ns;
	uint32_t idle = 0;

	do {
		uint32_t n = dpdk_rx(port, queue, got, BURST);

		now = now_ns();
		answer_ns = 0;
		for (uint32_t i = 0; i < n; i++)
			if (got[i]->data_len >= SEQUENCE_AT + sizeof(sequence) &&
			    !memcmp(rte_pktmbuf_mtod_offset(got[i], uint8_t *, SEQUENCE_AT),
				    &sequence, sizeof(sequence)))
				answer_ns = now;
		rte_pktmbuf_free_bulk(got, n);
		if (n)
			continue;
		rte_pause();
		if (++idle % IDLE_CALLS_MAX == 0)
			sched_yield();
	} while (!answer_ns && now < end_ns);
	return answer_ns;
}

int dpdk_ping(uint16_t port, uint16_t queue, struct dpdk_burst *burst, uint32_t rounds,
	      uint64_t wait_ns, uint64_t *rtt_ns)
{
	uint32_t answered = 0;

	if (!burst->count || burst->packets[0]->data_len < SEQUENCE_AT + sizeof(uint64_t))
		return -EINVAL;
	for (uint32_t i = 0; i < rounds; i++) {
		uint64_t sequence = now_ns(), begin, end;

		memcpy(rte_pktmbuf_mtod_offset(burst->packets[0], uint8_t *, SEQUENCE_AT),
		       &sequence, sizeof(sequence));
		begin = now_ns();
		if (!dpdk_send_kept(port, queue, burst->packets, 1))
			continue;
		end = wait_answer(port, queue, sequence, begin + wait_ns);
		if (end)
			rtt_ns[answered++] = end - begin;
	}
	return (int)answered;
}
