/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - the layers below TCP on one end of a wire, and on the other end a peer made of raw bytes
 * that says whatever the test wants.
 */
#ifndef HARP_TESTS_HOST_H
#define HARP_TESTS_HOST_H

#include <stdlib.h>

#include "base/checksum.h"
#include "check.h"
#include "network/icmp.h"
#include "network/ipv4.h"
#include "network/ipv6.h"
#include "packet.h"

#define HOST_PACKET_MAX 10000u

static const uint8_t host_mac[6] = { 0x02, 0x48, 0x41, 0x52, 0x50, 0x00 };
static const uint8_t peer_mac[6] = { 0x02, 0x48, 0x41, 0x52, 0x50, 0x01 };
static const uint8_t host_ip[4] = { 10, 0, 0, 1 }, peer_ip[4] = { 10, 0, 0, 2 };

struct host {
	struct harp_wire *wire;
	struct harp_nic *peer;
	struct harp_stats stats;
	struct frame_pool pool;
	struct nicio io;
	struct wheel wheel;
	struct rng rng;
	struct harp_stack_options options;
	struct eth eth;
	struct ip ip;
	struct icmp icmp;
	uint64_t now_ns;
	/* what the layers said about the last packet */
	enum eth_verdict eth_verdict;
	enum ip_verdict ip_verdict;
	enum icmp_verdict icmp_verdict;
	struct harp_icmp_error icmp_error;
	unsigned tcp_packets;
};

static inline void host_init(struct host *h, uint32_t mtu_bytes, uint32_t neighbor_mode)
{
	struct harp_wire_options opt = {
		.size = sizeof(opt),
		.frame_count = 256,
		.mtu_bytes = mtu_bytes,
		.tx_frags_max = 16,
		.strict = 1,
	};
	struct harp_addr own = ipv4_mapped(host_ip);

	memset(h, 0, sizeof(*h));
	CHECK_EQ(harp_wire_create(&h->wire, &opt), 0);
	h->peer = harp_wire_port(h->wire, 1);
	h->now_ns = 1000000000;
	h->options.size = sizeof(h->options);
	h->options.neighbor_mode = neighbor_mode;
	h->options.max_neighbors = 16;
	struct harp_nic *nic = harp_wire_port(h->wire, 0);

	CHECK_EQ(frame_pool_init(&h->pool, &nic->caps), 0);
	CHECK_EQ(nicio_init(&h->io, nic, &h->pool, &h->stats), 0);
	h->io.now_ns = h->now_ns;
	rng_seed(&h->rng, 1);
	wheel_init(&h->wheel, h->now_ns);
	CHECK_EQ(eth_init(&h->eth, &h->io, &h->wheel, &h->rng, &h->stats, &h->options), 0);
	ip_init(&h->ip, &h->eth, &h->stats, &h->options);
	icmp_init(&h->icmp, &h->ip, &h->stats);
	CHECK_EQ(ip_address_add(&h->ip, &own, 24), 0);
	nicio_fill(&h->io);
	for (uint64_t i = 0; i < 64; i++) { /* the peer's receive frames */
		uint64_t addr = i * h->peer->caps.frame_size;

		CHECK_EQ(h->peer->ops->fill(h->peer, &addr, 1), 1);
	}
}

/* Every frame is home or with the NIC for receiving: nothing leaked, nothing lost. */
static inline void host_done(struct host *h)
{
	struct harp_wire_stats wire;

	if (!h->wire)
		return;
	nicio_flush(&h->io);
	nicio_complete(&h->io);
	CHECK_EQ(h->io.tx_held, 0);
	CHECK_EQ(h->pool.free_count + h->io.fill_held, h->pool.frame_count);
	CHECK_EQ(h->stats.nic_completion_bad, 0);
	CHECK_EQ(harp_wire_stats(h->wire, 0, &wire), 0);
	CHECK_EQ(wire.strict_violations, 0);
	eth_destroy(&h->eth);
	CHECK_EQ(h->wheel.count, 0);
	frame_pool_destroy(&h->pool);
	harp_wire_destroy(h->wire);
	h->wire = NULL;
}

static inline void host_up(struct host *h, struct frame *packet)
{
	struct packet_in in = { .frame = packet };

	h->ip_verdict = IP_DROPPED;
	h->icmp_verdict = ICMP_DROPPED;
	h->eth_verdict = eth_input(&h->eth, packet);
	in.group = h->eth_verdict == ETH_IPV6_GROUP;
	if (h->eth_verdict == ETH_IPV4)
		h->ip_verdict = ip_input(&h->ip, &in);
	else if (h->eth_verdict == ETH_IPV6 || h->eth_verdict == ETH_IPV6_GROUP)
		h->ip_verdict = ip6_input(&h->ip, &in);
	if (h->ip_verdict == IP_LOCAL_ICMP)
		h->icmp_verdict = icmp_input(&h->icmp, &in, &h->icmp_error);
	if (h->ip_verdict == IP_LOCAL_ICMP6)
		h->icmp_verdict = icmp6_input(&h->icmp, &in, &h->icmp_error);
	h->tcp_packets += h->ip_verdict == IP_LOCAL_TCP;
	frame_release_packet(&h->pool, packet);
}

static inline void host_fire(void *ctx, struct timer *timer, uint64_t now_ns)
{
	struct host *h = ctx;

	CHECK_EQ(timer->kind, TIMER_KIND_NEIGHBOR);
	neighbor_timer(&h->eth, timer, now_ns);
}

/* What a stack's poll does, as far as these layers go. Returns the packets received. */
static inline unsigned host_poll(struct host *h)
{
	struct frame *packets[NICIO_BURST];
	unsigned n, total = 0;

	h->io.now_ns = h->now_ns;
	while ((n = nicio_rx(&h->io, packets, NICIO_BURST)) > 0) {
		for (unsigned i = 0; i < n; i++)
			host_up(h, packets[i]);
		total += n;
	}
	wheel_advance(&h->wheel, h->now_ns, host_fire, h);
	nicio_flush(&h->io);
	nicio_complete(&h->io);
	nicio_fill(&h->io);
	return total;
}

/* The peer sends bytes, cut at 1900, the wire's frames being smaller than a jumbo packet. */
static inline void peer_send(struct host *h, const uint8_t *bytes, uint32_t len)
{
	struct harp_desc descs[16];
	const struct harp_nic_caps *caps = &h->peer->caps;
	uint64_t done[16];
	unsigned n = 0;

	for (uint32_t at = 0; at < len || n == 0; n++) {
		uint32_t piece = len - at < 1900 ? len - at : 1900;

		descs[n].addr = (uint64_t)(128 + n) * caps->frame_size;
		descs[n].len = piece;
		memcpy(caps->frame_base + descs[n].addr, bytes + at, piece);
		at += piece;
		descs[n].flags = at < len ? HARP_DESC_MORE : 0;
	}
	CHECK_EQ(h->peer->ops->tx(h->peer, descs, n, h->now_ns), n);
	CHECK_EQ(h->peer->ops->complete(h->peer, done, 16, h->now_ns), n);
}

/* The next packet that the host sent; its length, 0 when there is none. */
static inline uint32_t peer_receive(struct host *h, uint8_t *bytes)
{
	struct harp_desc desc;
	uint32_t len = 0;
	static struct harp_desc burst[NICIO_BURST];
	static unsigned have, at;

	if (at == have) {
		at = 0;
		have = h->peer->ops->rx(h->peer, burst, NICIO_BURST, h->now_ns);
	}
	while (at < have) {
		uint64_t frame;

		desc = burst[at++];
		memcpy(bytes + len, h->peer->caps.frame_base + desc.addr, desc.len);
		len += desc.len;
		frame = desc.addr & ~(uint64_t)(h->peer->caps.frame_size - 1);
		CHECK_EQ(h->peer->ops->fill(h->peer, &frame, 1), 1);
		if (!(desc.flags & HARP_DESC_MORE))
			break;
	}
	return len;
}

/* Sends and polls once. */
static inline void peer_say(struct host *h, const uint8_t *bytes, uint32_t len)
{
	peer_send(h, bytes, len);
	CHECK_EQ(host_poll(h), 1);
}

static inline uint32_t make_eth(uint8_t *p, const uint8_t *dst, uint16_t type)
{
	memcpy(p, dst, 6);
	memcpy(p + 6, peer_mac, 6);
	be16_store(p + 12, type);
	return 14;
}

static inline uint32_t make_arp(uint8_t *p, const uint8_t *eth_dst, uint16_t op,
				const uint8_t *sender_mac, const uint8_t *sender_ip,
				const uint8_t *target_ip)
{
	static const uint8_t head[6] = { 0, 1, 8, 0, 6, 4 };

	make_eth(p, eth_dst, ETH_TYPE_ARP);
	memcpy(p + 14, head, 6);
	be16_store(p + 20, op);
	memcpy(p + 22, sender_mac, 6);
	memcpy(p + 28, sender_ip, 4);
	memset(p + 32, 0, 6);
	memcpy(p + 38, target_ip, 4);
	return 42;
}

static inline void ipv4_seal(struct ipv4_header *h)
{
	h->csum = 0;
	h->csum = csum_finish(csum_partial(h, ipv4_header_bytes(h), 0));
}

/* An Ethernet and IPv4 header for payload bytes that the caller writes behind it. */
static inline uint32_t make_ipv4(uint8_t *p, uint8_t proto, uint32_t payload_len)
{
	struct harp_addr src = ipv4_mapped(peer_ip), dst = ipv4_mapped(host_ip);

	return payload_len + packet_headers(p, host_mac, peer_mac, &src, &dst, proto, payload_len);
}

static inline void icmp_seal(uint8_t *icmp, uint32_t len)
{
	icmp[2] = icmp[3] = 0;
	uint16_t sum = csum_finish(csum_partial(icmp, len, 0));

	memcpy(icmp + 2, &sum, 2);
}

/* ---- IPv6: fd00::1 and fd00::2 on the same wire ------------------------------------------------ */

#define HOST6_PAYLOAD 54u /* of a packet without extension headers: Ethernet 14, IPv6 40 */

static const struct harp_addr host_ip6 = { .bytes = { 0xfd, [15] = 1 } };
static const struct harp_addr peer_ip6 = { .bytes = { 0xfd, [15] = 2 } };

static inline struct harp_addr host_addr(const char *text)
{
	struct harp_addr addr;

	CHECK_EQ(harp_addr_parse(text, &addr), 0);
	return addr;
}

static inline struct ipv6_header *header6(uint8_t *p)
{
	return (struct ipv6_header *)(p + 14);
}

static inline void host6_init(struct host *h, uint32_t mtu_bytes, uint32_t neighbor_mode)
{
	host_init(h, mtu_bytes, neighbor_mode);
	CHECK_EQ(ip_address_add(&h->ip, &host_ip6, 64), 0);
	host_poll(h);
}

/* An Ethernet and IPv6 header for payload bytes that the caller writes behind it. */
static inline uint32_t make_ipv6(uint8_t *p, uint8_t next, uint32_t payload_len)
{
	return payload_len +
	       packet_headers(p, host_mac, peer_mac, &peer_ip6, &host_ip6, next, payload_len);
}

#endif
