/* SPDX-License-Identifier: Apache-2.0 */
/* host.h - a stack for tests of the layers below TCP. The test is its peer and builds packets. */
#ifndef HARP_TESTS_HOST_H
#define HARP_TESTS_HOST_H

#include "rig.h"

#include "network/ipv4.h"
#include "network/ipv6.h"

#define HOST_FRAMES 256u

static const uint8_t host_ip[4] = { 10, 0, 0, 1 }, peer_ip[4] = { 10, 0, 0, 2 };
/* fd00::1 and fd00::2 */
static const struct harp_addr host_ip6 = { .bytes = { 0xfd, [15] = 1 } };
static const struct harp_addr peer_ip6 = { .bytes = { 0xfd, [15] = 2 } };

static struct rig rig;
static struct harp_stack *host; /* rig.stack */

static inline void host_open(uint32_t mtu_bytes, uint32_t neighbor_mode)
{
	struct harp_addr addr = ipv4_mapped(host_ip);

	rig_open_bare(&rig, (struct rig_setup){ .max_conns = 1,
						.mtu_bytes = mtu_bytes,
						.frame_bytes = 2048,
						.frame_count = HOST_FRAMES,
						.neighbor_mode = neighbor_mode,
						.raw = true });
	host = rig.stack;
	CHECK_EQ(ip_address_add(&host->ip, &addr, 24), 0);
	if (mtu_bytes >= 1280)
		CHECK_EQ(ip_address_add(&host->ip, &host_ip6, 64), 0);
}

/* Queues a packet from the peer; the next poll receives it. */
static inline void peer_send(const uint8_t *bytes, uint32_t len)
{
	struct rig_packet *p = &rig.in[rig.in_tail++ % RIG_QUEUE];

	CHECK(len <= RIG_RAW_MAX);
	memcpy(p->bytes, bytes, len);
	p->len = len;
}

/* Sends a packet from the peer and polls the host. */
static inline void peer_say(const uint8_t *bytes, uint32_t len)
{
	uint64_t before = host->stats.rx_packets;

	peer_send(bytes, len);
	rig_poll(&rig);
	CHECK_EQ(host->stats.rx_packets, before + 1);
}

/* Copies the next packet that the host sent; returns its length, 0 if there is none. */
static inline uint32_t peer_receive(uint8_t *bytes)
{
	const struct rig_packet *p = &rig.sent[rig.out_head % RIG_QUEUE];

	if (rig_pending(&rig) == 0)
		return 0;
	rig.out_head++;
	memcpy(bytes, p->bytes, p->len);
	return p->len;
}

static inline uint32_t make_eth(uint8_t *p, const uint8_t *dst, uint16_t type)
{
	memcpy(p, dst, 6);
	memcpy(p + 6, rig_peer_mac, 6);
	be16_store(p + 12, type);
	return 14;
}

static inline uint32_t make_arp(uint8_t *p, const uint8_t *eth_dst, uint16_t op,
				const uint8_t *sender_mac, const uint8_t *sender_ip,
				const uint8_t *target_ip)
{
	static const uint8_t fixed[6] = { 0, 1, 8, 0, 6, 4 };

	make_eth(p, eth_dst, ETH_TYPE_ARP);
	memcpy(p + 14, fixed, 6);
	be16_store(p + 20, op);
	memcpy(p + 22, sender_mac, 6);
	memcpy(p + 28, sender_ip, 4);
	memset(p + 32, 0, 6);
	memcpy(p + 38, target_ip, 4);
	return 42;
}

/* Writes Ethernet and IPv4 headers; the caller writes the payload behind them. */
static inline uint32_t make_ipv4(uint8_t *p, uint8_t proto, uint32_t payload_len)
{
	struct harp_addr src = ipv4_mapped(peer_ip), dst = ipv4_mapped(host_ip);

	return payload_len +
	       packet_headers(p, rig_mac, rig_peer_mac, &src, &dst, proto, payload_len);
}

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

/* Writes Ethernet and IPv6 headers; the caller writes the payload behind them. */
static inline uint32_t make_ipv6(uint8_t *p, uint8_t next, uint32_t payload_len)
{
	return payload_len +
	       packet_headers(p, rig_mac, rig_peer_mac, &peer_ip6, &host_ip6, next, payload_len);
}

/* Allocates a packet of the host; its headers are missing. */
static inline struct packet_out make_out(uint32_t len)
{
	struct frame *f = frame_alloc(&host->pool, 0);

	f->pub.len = len;
	memset(f->pub.data, 0x5a, len);
	return (struct packet_out){ .frame = f, .head = f->pub.data, .len = len, .frags = 1 };
}

#endif
