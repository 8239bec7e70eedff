/* SPDX-License-Identifier: Apache-2.0 */
/* offload.c - offload requests for a packet: checksums and segmentation. */
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_tcp.h>
#include <rte_udp.h>

#include "dpdk/port.h"

/* Requires the headers in the packet's first mbuf, where HARP writes them. */
bool offload_packet(struct rte_mbuf *mbuf, uint32_t flags)
{
	const struct rte_ether_hdr *eth = rte_pktmbuf_mtod(mbuf, const struct rte_ether_hdr *);
	uint32_t l2_len = sizeof(*eth), room = mbuf->data_len;
	uint16_t type = eth->ether_type;
	uint8_t proto;

	if (type == RTE_BE16(RTE_ETHER_TYPE_VLAN)) {
		l2_len += sizeof(struct rte_vlan_hdr);
		type = *rte_pktmbuf_mtod_offset(mbuf, const rte_be16_t *, l2_len - 2);
	}
	mbuf->l2_len = l2_len & 0x7f;
	if (room < l2_len + (type == RTE_BE16(RTE_ETHER_TYPE_IPV4) ? sizeof(struct rte_ipv4_hdr)
								   : sizeof(struct rte_ipv6_hdr)))
		return false;
	if (type == RTE_BE16(RTE_ETHER_TYPE_IPV4)) {
		struct rte_ipv4_hdr *ip =
			rte_pktmbuf_mtod_offset(mbuf, struct rte_ipv4_hdr *, l2_len);

		mbuf->l3_len = rte_ipv4_hdr_len(ip);
		mbuf->ol_flags |= RTE_MBUF_F_TX_IPV4;
		proto = ip->next_proto_id;
		if (flags & HARP_DESC_TX_TSO) {
			/* The NIC writes it for each segment. */
			mbuf->ol_flags |= RTE_MBUF_F_TX_IP_CKSUM;
			ip->hdr_checksum = 0;
		}
	} else if (type == RTE_BE16(RTE_ETHER_TYPE_IPV6)) {
		mbuf->l3_len = sizeof(struct rte_ipv6_hdr);
		mbuf->ol_flags |= RTE_MBUF_F_TX_IPV6;
		proto = rte_pktmbuf_mtod_offset(mbuf, const struct rte_ipv6_hdr *, l2_len)->proto;
	} else {
		return false;
	}
	if (proto == IPPROTO_UDP) {
		mbuf->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM;
		return !(flags & HARP_DESC_TX_TSO) &&
		       room >= l2_len + mbuf->l3_len + sizeof(struct rte_udp_hdr);
	}
	if (proto != IPPROTO_TCP || room < l2_len + mbuf->l3_len + sizeof(struct rte_tcp_hdr))
		return false;
	mbuf->ol_flags |= RTE_MBUF_F_TX_TCP_CKSUM;
	mbuf->l4_len =
		(rte_pktmbuf_mtod_offset(mbuf, const struct rte_tcp_hdr *, l2_len + mbuf->l3_len)
			 ->data_off >>
		 4) *
		4u;
	if (flags & HARP_DESC_TX_TSO) {
		mbuf->ol_flags |= RTE_MBUF_F_TX_TCP_SEG;
		mbuf->tso_segsz = (uint16_t)(flags >> HARP_DESC_MSS_SHIFT);
	}
	return true;
}
