/* SPDX-License-Identifier: Apache-2.0 */
/* packet.h - builds the headers of IPv4 and IPv6 test packets. */
#ifndef HARP_TESTS_PACKET_H
#define HARP_TESTS_PACKET_H

#include <string.h>

#include "base/checksum.h"
#include "base/endian.h"
#include "harp_stats.h"
#include "network/ip.h"

#define PACKET_ETH_BYTES 14u

/* The sum of the counters of delivered, consumed and dropped packets; equals rx_packets. */
static inline uint64_t packets_counted(const struct harp_stats *s)
{
	return s->arp_in + s->nd_in + s->nd_ignored + s->drop_nd_bad + s->drop_ip6_ext +
	       s->drop_vlan + s->udp_in + s->drop_udp_short + s->drop_udp_checksum +
	       s->drop_udp_no_port + s->drop_udp_rx_budget + s->icmp_echo_in + s->icmp_error_in +
	       s->tcp_segs_in + s->drop_eth_short + s->drop_eth_not_ours + s->drop_eth_type +
	       s->drop_arp_bad + s->drop_ip_short + s->drop_ip_version + s->drop_ip_checksum +
	       s->drop_ip_not_ours + s->drop_ip_source + s->drop_ip_fragment + s->drop_ip_protocol +
	       s->drop_icmp_bad + s->drop_icmp_rate + s->drop_tcp_short + s->drop_tcp_checksum +
	       s->drop_tcp_flags + s->drop_tcp_options;
}

static inline uint32_t packet_ip_bytes(const struct harp_addr *addr)
{
	return harp_addr_is_v4(addr) ? 20 : 40;
}

/* Writes the checksum of a complete IPv4 header. */
static inline void packet_ipv4_seal(uint8_t *ip)
{
	uint16_t sum;

	memset(ip + 10, 0, 2);
	sum = csum_finish(csum_partial(ip, (ip[0] & 15u) * 4u, 0));
	memcpy(ip + 10, &sum, 2);
}

/* Writes Ethernet and IP headers for payload_len bytes; returns the payload's offset. */
static inline uint32_t packet_headers(uint8_t *p, const uint8_t dst_mac[6],
				      const uint8_t src_mac[6], const struct harp_addr *src,
				      const struct harp_addr *dst, uint8_t proto,
				      uint32_t payload_len)
{
	uint8_t *ip = p + PACKET_ETH_BYTES;

	memcpy(p, dst_mac, 6);
	memcpy(p + 6, src_mac, 6);
	if (harp_addr_is_v4(dst)) {
		be16_store(p + 12, 0x0800);
		memcpy(ip, "\x45\0\0\0\0\0\x40\0\x40\0\0\0", 12); /* DF, TTL 64 */
		ip[9] = proto;
		be16_store(ip + 2, (uint16_t)(20 + payload_len));
		memcpy(ip + 12, src->bytes + 12, 4);
		memcpy(ip + 16, dst->bytes + 12, 4);
		packet_ipv4_seal(ip);
	} else {
		be16_store(p + 12, 0x86dd);
		memset(ip, 0, 8);
		ip[0] = 0x60;
		be16_store(ip + 4, (uint16_t)payload_len);
		ip[6] = proto;
		ip[7] = 64;
		memcpy(ip + 8, src->bytes, 16);
		memcpy(ip + 24, dst->bytes, 16);
	}
	return PACKET_ETH_BYTES + packet_ip_bytes(dst);
}

/* Writes the transport checksum of len bytes at th to th + offset. */
static inline void packet_seal(uint8_t *th, uint32_t offset, uint32_t len,
			       const struct harp_addr *src, const struct harp_addr *dst,
			       uint8_t proto)
{
	uint16_t sum;

	memset(th + offset, 0, 2);
	sum = csum_finish(csum_partial(th, len, ip_pseudo_sum(src, dst, proto, len)));
	memcpy(th + offset, &sum, 2);
}

#endif
