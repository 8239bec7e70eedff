/* SPDX-License-Identifier: Apache-2.0 */
/* test_offload.c - derives offload flags from packet headers; packets without complete headers are
 * refused. */
#include <rte_ip.h>
#include <rte_tcp.h>
#include <rte_udp.h>

#include "check.h"
#include "dpdk/port.h"

#define TSO(mss) (HARP_DESC_TX_CSUM | HARP_DESC_TX_TSO | (uint32_t)(mss) << HARP_DESC_MSS_SHIFT)

static uint8_t bytes[256];
static struct rte_mbuf mbuf;

/* Writes Ethernet, IP, and TCP or UDP headers; returns their length. */
static uint32_t build_packet(bool tagged, unsigned version, uint8_t proto, uint32_t options)
{
	uint32_t l2_len = tagged ? 18 : 14, l4_len = proto == IPPROTO_UDP ? 8 : 20 + options;
	uint32_t l3_len = version == 4 ? 20 : 40;

	memset(bytes, 0, sizeof(bytes));
	bytes[12] = 0x81;
	bytes[l2_len - 2] = version == 4 ? 0x08 : 0x86;
	bytes[l2_len - 1] = version == 4 ? 0x00 : 0xdd;
	bytes[l2_len] = version == 4 ? 0x45 : 0x60;
	bytes[l2_len + (version == 4 ? 9 : 6)] = proto;
	bytes[l2_len + 10] = 0x77; /* IPv4's checksum */
	if (proto == IPPROTO_TCP)
		bytes[l2_len + l3_len + 12] = (uint8_t)((5 + options / 4) << 4);
	return l2_len + l3_len + l4_len;
}

static bool set_offload(uint32_t len, uint32_t flags)
{
	mbuf = (struct rte_mbuf){ .buf_addr = bytes, .data_len = (uint16_t)len, .pkt_len = len };
	return offload_packet(&mbuf, flags);
}

static void check_lengths(unsigned l2_len, unsigned l3_len)
{
	CHECK_EQ(mbuf.l2_len, l2_len);
	CHECK_EQ(mbuf.l3_len, l3_len);
}

TEST(a_checksum_is_left_to_the_device)
{
	CHECK(set_offload(build_packet(false, 4, IPPROTO_TCP, 12), HARP_DESC_TX_CSUM));
	CHECK(mbuf.ol_flags == (RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_TCP_CKSUM));
	check_lengths(14, 20);
	CHECK_EQ(mbuf.l4_len, 32);
	CHECK_EQ(bytes[24], 0x77); /* the IPv4 checksum is unchanged */
	CHECK(set_offload(build_packet(true, 6, IPPROTO_UDP, 0), HARP_DESC_TX_CSUM));
	CHECK(mbuf.ol_flags == (RTE_MBUF_F_TX_IPV6 | RTE_MBUF_F_TX_UDP_CKSUM));
	check_lengths(18, 40);
}

TEST(a_gso_packet_is_left_to_the_device)
{
	CHECK(set_offload(build_packet(true, 4, IPPROTO_TCP, 0), TSO(1448)));
	CHECK(mbuf.ol_flags == (RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM |
				RTE_MBUF_F_TX_TCP_CKSUM | RTE_MBUF_F_TX_TCP_SEG));
	check_lengths(18, 20);
	CHECK_EQ(mbuf.l4_len, 20);
	CHECK_EQ(mbuf.tso_segsz, 1448);
	CHECK_EQ(bytes[28] | bytes[29], 0); /* the device computes it per segment */
	CHECK(set_offload(build_packet(false, 6, IPPROTO_TCP, 12), TSO(8928)));
	CHECK(mbuf.ol_flags ==
	      (RTE_MBUF_F_TX_IPV6 | RTE_MBUF_F_TX_TCP_CKSUM | RTE_MBUF_F_TX_TCP_SEG));
	CHECK_EQ(mbuf.tso_segsz, 8928);
}

TEST(packets_without_known_headers_are_refused)
{
	static const struct {
		bool tagged;
		unsigned version;
		uint8_t proto;
	} packets[] = {
		{ false, 4, IPPROTO_TCP }, { true, 4, IPPROTO_TCP },  { false, 6, IPPROTO_TCP },
		{ true, 6, IPPROTO_TCP },  { false, 4, IPPROTO_UDP }, { true, 6, IPPROTO_UDP },
	};

	/* The headers are not all in the first mbuf. */
	for (unsigned i = 0; i < sizeof(packets) / sizeof(packets[0]); i++) {
		uint32_t len =
			build_packet(packets[i].tagged, packets[i].version, packets[i].proto, 0);

		CHECK(set_offload(len, HARP_DESC_TX_CSUM));
		CHECK(!set_offload(len - 1, HARP_DESC_TX_CSUM));
		CHECK(!set_offload(20, HARP_DESC_TX_CSUM));
	}
	CHECK(!set_offload(build_packet(false, 4, IPPROTO_UDP, 0), TSO(1448)));
	CHECK(!set_offload(build_packet(false, 4, IPPROTO_ICMP, 0), HARP_DESC_TX_CSUM));
	build_packet(false, 4, IPPROTO_TCP, 0);
	bytes[12] = 0x08;
	bytes[13] = 0x06; /* ARP */
	CHECK(!set_offload(60, HARP_DESC_TX_CSUM));
}
