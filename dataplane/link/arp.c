/* SPDX-License-Identifier: Apache-2.0 */
/* arp.c - ARP packets (RFC 826) for the neighbor table. */
#include <string.h>

#include "link/eth.h"

#define ARP_HTYPE_ETHERNET 1u
#define ARP_OP_REQUEST 1u
#define ARP_OP_REPLY 2u

struct arp_packet { /* RFC 826, "Packet format:", for Ethernet and IPv4 */
	be16_t htype, ptype;
	uint8_t hlen, plen;
	be16_t op;
	uint8_t sender_mac[ETH_MAC_BYTES], sender_ip[4];
	uint8_t target_mac[ETH_MAC_BYTES], target_ip[4];
};
static_assert(sizeof(struct arp_packet) == 28, "RFC 826");

static void arp_send(struct eth *eth, uint16_t op, const uint8_t *eth_dst, const uint8_t *sender_ip,
		     const uint8_t *target_mac, const uint8_t *target_ip)
{
	struct frame *f = eth_control_frame(eth);
	struct arp_packet *arp;

	if (!f)
		return;
	arp = (struct arp_packet *)f->pub.data;
	f->pub.len = sizeof(*arp);
	*arp = (struct arp_packet){
		.htype = be16_of(ARP_HTYPE_ETHERNET),
		.ptype = be16_of(ETH_TYPE_IPV4),
		.hlen = ETH_MAC_BYTES,
		.plen = 4,
		.op = be16_of(op),
	};
	memcpy(arp->sender_mac, eth->io->nic->caps.mac, ETH_MAC_BYTES);
	memcpy(arp->sender_ip, sender_ip, 4);
	if (target_mac)
		memcpy(arp->target_mac, target_mac, ETH_MAC_BYTES);
	memcpy(arp->target_ip, target_ip, 4);

	struct packet_out out = { .frame = f, .head = f->pub.data, .len = f->pub.len };

	eth_control_send(eth, eth_dst, ETH_TYPE_ARP, &out);
	eth->stats->arp_out++;
}

void arp_request(struct eth *eth, const struct harp_addr *src_addr, const struct harp_addr *target,
		 const uint8_t *mac)
{
	arp_send(eth, ARP_OP_REQUEST, mac ? mac : eth_broadcast, src_addr->bytes + 12, NULL,
		 target->bytes + 12);
}

static struct harp_addr arp_addr(const uint8_t *ip)
{
	return harp_addr_v4(ip[0], ip[1], ip[2], ip[3]);
}

static bool arp_is_valid(const struct frame *f)
{
	const struct arp_packet *arp = (const struct arp_packet *)f->pub.data;
	static const uint8_t zero[ETH_MAC_BYTES];

	if (f->pub.len < sizeof(*arp))
		return false;
	return be16_get(arp->htype) == ARP_HTYPE_ETHERNET &&
	       be16_get(arp->ptype) == ETH_TYPE_IPV4 && arp->hlen == ETH_MAC_BYTES &&
	       arp->plen == 4 &&
	       (be16_get(arp->op) == ARP_OP_REQUEST || be16_get(arp->op) == ARP_OP_REPLY) &&
	       !(arp->sender_mac[0] & 1) && memcmp(arp->sender_mac, zero, sizeof(zero)) != 0 &&
	       arp->sender_ip[0] < 224 && arp->sender_ip[0] != 127;
}

static bool arp_is_own(const struct eth *eth, const struct harp_addr *addr)
{
	return eth->network.is_own && eth->network.is_own(eth->network.ip, addr);
}

enum eth_verdict arp_input(struct eth *eth, const struct frame *f)
{
	const struct arp_packet *arp = (const struct arp_packet *)f->pub.data;
	struct harp_addr sender, target;
	bool for_us, reply;

	if (!arp_is_valid(f)) {
		eth->stats->drop_arp_bad++;
		return ETH_DROPPED;
	}
	eth->stats->arp_in++;
	if (eth->neighbor_mode == HARP_NEIGHBOR_EXTERNAL)
		return ETH_CONSUMED; /* the kernel has the same addresses and replies */
	sender = arp_addr(arp->sender_ip);
	target = arp_addr(arp->target_ip);
	reply = be16_get(arp->op) == ARP_OP_REPLY;
	for_us = arp_is_own(eth, &target);
	if (arp_is_own(eth, &sender)) {
		neighbor_conflict(eth, arp->sender_mac);
		return ETH_CONSUMED;
	}
	/* A probe (RFC 5227 section 1.1) has no sender address. It gets a reply, but teaches
	 * nothing. */
	if (arp->sender_ip[0] != 0)
		neighbor_learn(eth, &sender, arp->sender_mac,
			       NEIGHBOR_OVERRIDE | (reply    ? NEIGHBOR_REPLY
						    : for_us ? NEIGHBOR_ASKS_US
							     : 0u));
	if (for_us && !reply)
		arp_send(eth, ARP_OP_REPLY, arp->sender_mac, arp->target_ip, arp->sender_mac,
			 arp->sender_ip);
	return ETH_CONSUMED;
}
