/* SPDX-License-Identifier: Apache-2.0 */
/* test_eth.c - VLAN tags, and a reply without a frame. tests/packet has the rest of Ethernet and ARP. */
#include <errno.h>

#include "host.h"

static struct host h;
BEFORE_EACH(host_init(&h, 1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(host_done(&h))

static const uint8_t everyone[6] = { 255, 255, 255, 255, 255, 255 };

/* An echo request of len bytes with tags in front of its type; the frame's length. */
static uint32_t make_tagged(uint8_t *p, const uint8_t *tags, uint32_t tags_len)
{
	uint8_t plain[100];
	uint32_t len = make_ipv4(plain, IP_PROTO_ICMP, 8);

	memset(plain + 34, 0, 8);
	plain[34] = 8;
	icmp_seal(plain + 34, 8);
	memcpy(p, plain, 12);
	memcpy(p + 12, tags, tags_len);
	memcpy(p + 12 + tags_len, plain + 12, len - 12);
	return len + tags_len;
}

TEST(only_frames_of_our_vlan_are_received)
{
	static const struct {
		uint16_t vlan_id; /* ours */
		uint8_t tags[8];
		uint32_t len;
		bool good;
	} frames[] = {
		{ 0, { 0 }, 0, true },
		{ 0, { 0x81, 0, 0xe0, 0 }, 4, true }, /* priority 7 of no VLAN */
		{ 0, { 0x81, 0, 0, 5 }, 4, false },
		{ 5, { 0x81, 0, 0, 5 }, 4, true },
		{ 5, { 0x81, 0, 0xb0, 5 }, 4, true }, /* priority and drop eligible */
		{ 5, { 0x81, 0, 0, 6 }, 4, false },
		{ 5, { 0x81, 0, 0xe0, 0 }, 4, false },
		{ 5, { 0 }, 0, false },
		{ 5, { 0x88, 0xa8, 0, 5 }, 4, false }, /* a provider's */
		{ 0, { 0x88, 0xa8, 0, 0 }, 4, false },
		{ 5, { 0x88, 0xa8, 0, 1, 0x81, 0, 0, 5 }, 8, false },
		{ 5, { 0x81, 0, 0, 5, 0x81, 0, 0, 5 }, 8, false },
		{ 0, { 0x81, 0, 0, 0, 0x81, 0, 0, 0 }, 8, false },
		{ 4094, { 0x81, 0, 0x0f, 0xfe }, 4, true },
	};
	struct harp_addr peer = ipv4_mapped(peer_ip);
	uint8_t p[100], r[HOST_PACKET_MAX];

	for (unsigned i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
		uint32_t tag = frames[i].vlan_id ? 4 : 0;

		host_done(&h);
		host_init(&h, 1500, HARP_NEIGHBOR_OWN);
		h.eth.vlan_id = frames[i].vlan_id;
		CHECK_EQ(neighbor_set(&h.eth, &peer, peer_mac), 0);
		peer_say(&h, p, make_tagged(p, frames[i].tags, frames[i].len));
		CHECK_EQ(h.stats.drop_vlan, !frames[i].good);
		CHECK_EQ(h.stats.icmp_echo_in, frames[i].good);
		CHECK_EQ(peer_receive(&h, r), frames[i].good ? 42 + tag : 0);
		if (frames[i].good && tag) {
			CHECK_EQ(be16_load(r + 12), ETH_TYPE_VLAN);
			CHECK_EQ(be16_load(r + 14), frames[i].vlan_id);
		}
		if (frames[i].good)
			CHECK_EQ(be16_load(r + 12 + tag), ETH_TYPE_IPV4);
	}
}

/* ARP is tagged too; a tag cut off is short; a full packet and its tag fit. */
TEST(arp_and_full_packets_are_tagged)
{
	struct harp_stack_options opt = { .size = sizeof(opt), .vlan_id = 4095 };
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct ip_path path = { .dst = peer };
	uint8_t plain[100], p[100], r[HOST_PACKET_MAX];
	static const uint8_t tag[4] = { 0x81, 0, 0, 9 };

	h.eth.vlan_id = 9;
	make_arp(plain, everyone, 1, peer_mac, peer_ip, host_ip);
	memcpy(p, plain, 12);
	memcpy(p + 12, tag, 4);
	memcpy(p + 16, plain + 12, 30);
	peer_say(&h, p, 46);
	CHECK_EQ(peer_receive(&h, r), 46);
	CHECK_MEM(r + 12, tag, 4);
	CHECK_EQ(be16_load(r + 16), ETH_TYPE_ARP);
	for (uint32_t len = 14; len < 18; len++)
		peer_say(&h, p, len);
	CHECK_EQ(h.stats.drop_eth_short, 4);

	struct frame *f = frame_alloc(&h.pool, 0);
	struct packet_out out = { .frame = f, .head = f->pub.data, .len = 1480 };

	f->pub.len = 1480;
	memset(f->pub.data, 0, 1480);
	CHECK_EQ(ip_output(&h.ip, &path, IP_PROTO_TCP, 0, &out), 0);
	frame_release(&h.pool, f);
	host_poll(&h);
	CHECK_EQ(peer_receive(&h, r), 1518); /* 1500, Ethernet, tag */
	host_done(&h);

	struct eth eth;

	CHECK_EQ(eth_init(&eth, &h.io, &h.wheel, &h.rng, &h.stats, &opt), -EINVAL);
}

TEST(an_arp_reply_without_a_frame_is_a_counted_drop)
{
	uint8_t p[100], r[HOST_PACKET_MAX];
	struct frame *hold[256];
	unsigned n = 0;

	while ((hold[n] = frame_alloc(&h.pool, 0)) != NULL)
		n++;
	make_arp(p, everyone, 1, peer_mac, peer_ip, host_ip);
	peer_say(&h, p, 42);
	CHECK_EQ(h.stats.drop_no_frame, 1);
	CHECK_EQ(peer_receive(&h, r), 0);
	while (n > 0)
		frame_release(&h.pool, hold[--n]);
}
