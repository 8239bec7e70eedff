/* SPDX-License-Identifier: Apache-2.0 */
/* test_ipv6.c - IPv6 packets in and out. tests/packet/test_malformed.py has those that are dropped. */
#include "network/ipv6.h"

#include <errno.h>

#include "host.h"

static struct host h;
BEFORE_EACH(host6_init(&h, 1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(host_done(&h))

TEST(valid_packets_are_trimmed_and_delivered)
{
	struct packet_in in;
	struct frame *packets[NICIO_BURST];
	uint8_t p[200] = { 0 };

	make_ipv6(p, IP_PROTO_TCP, 22);
	header6(p)->version_class_label = be32_of(0x62eabcde);
	header6(p)->hop_limit = 1;
	peer_send(&h, p, 120); /* padding goes */
	CHECK_EQ(nicio_rx(&h.io, packets, NICIO_BURST), 1);
	in = (struct packet_in){ .frame = packets[0] };
	CHECK_EQ(eth_input(&h.eth, packets[0]), ETH_IPV6);
	CHECK_EQ(ip6_input(&h.ip, &in), IP_LOCAL_TCP);
	CHECK_EQ(in.len, 22);
	CHECK_EQ(in.frame->pub.len, 22);
	CHECK_EQ(in.ttl, 1);
	CHECK_EQ(in.tos, 0x2e);
	CHECK_MEM(&in.src, &peer_ip6, 16);
	CHECK_MEM(&in.dst, &host_ip6, 16);
	/* RFC 8200 section 8.1, by hand. */
	uint8_t pseudo[40] = { [35] = 22, [39] = 6 };

	memcpy(pseudo, &peer_ip6, 16);
	memcpy(pseudo + 16, &host_ip6, 16);
	CHECK_EQ(csum_finish(in.l4_csum_pseudo), csum_finish(csum_partial(pseudo, 40, 0)));
	frame_release_packet(&h.pool, in.frame);
}

TEST(sent_packets_have_complete_headers)
{
	struct ip_path path = { .dst = peer_ip6 };
	static const uint32_t lens[] = { 1460, 1461, 1000, 7, 1460 };
	uint8_t r[HOST_PACKET_MAX] = { 0 };
	struct frame *f;

	CHECK_EQ(neighbor_set(&h.eth, &peer_ip6, peer_mac), 0);
	CHECK_EQ(ip_path_lookup(&h.ip, &path), 0);
	ip_path_label(&h.ip, &path, 1, 2);
	/* The MTU, and one byte more; then with the headers of the packet before. */
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct packet_out out;
		uint32_t len = lens[i];

		f = frame_alloc(&h.pool, 0);
		f->pub.len = len;
		memset(f->pub.data, 0x5a, len);
		out = (struct packet_out){
			.frame = f, .head = f->pub.data, .len = len, .frags = 1
		};
		CHECK_EQ(ip_output(&h.ip, &path, IP_PROTO_TCP, 0xb9, &out),
			 len <= 1460 ? 0 : -EMSGSIZE);
		frame_release(&h.pool, f);
		host_poll(&h);
		CHECK_EQ(peer_receive(&h, r), len <= 1460 ? len + 54 : 0);
		if (len > 1460)
			continue;
		CHECK_EQ(be16_load(r + 12), ETH_TYPE_IPV6);
		CHECK_EQ(be32_load(r + 14), 0x60000000u | 0xb9u << 20 | path.flow_label);
		CHECK_EQ(be16_get(header6(r)->payload_len), len);
		CHECK_EQ(header6(r)->next, IP_PROTO_TCP);
		CHECK_EQ(header6(r)->hop_limit, 64);
		CHECK_MEM(&header6(r)->src, &host_ip6, 16);
		CHECK_MEM(&header6(r)->dst, &peer_ip6, 16);
		CHECK_EQ(r[54], 0x5a);
	}
	CHECK_EQ(path.sent.len, 54);
}

/* RFC 6437: constant for a flow, different between flows and between stacks, 20 bits, never 0. */
TEST(flow_labels_are_constant_per_flow_and_secret)
{
	struct ip_path a = { .src = host_ip6, .dst = peer_ip6 }, b = a;
	unsigned same = 0;

	ip_path_label(&h.ip, &a, 1000, 2000);
	ip_path_label(&h.ip, &b, 1000, 2000);
	CHECK_EQ(a.flow_label, b.flow_label);
	for (uint16_t port = 1; port < 1000; port++) {
		ip_path_label(&h.ip, &b, 1000, port);
		same += a.flow_label == b.flow_label;
		CHECK(b.flow_label > 0 && b.flow_label <= 0xfffff);
	}
	CHECK(same < 3);
	h.ip.label_key.k[0]++;
	ip_path_label(&h.ip, &b, 1000, 2000);
	CHECK(a.flow_label != b.flow_label);
}

/* A NIC too small for IPv6 has none (RFC 8200 section 5). */
TEST(an_mtu_below_1280_is_refused)
{
	host_done(&h);
	host_init(&h, 1279, HARP_NEIGHBOR_OWN);
	CHECK_EQ(ip_address_add(&h.ip, &host_ip6, 64), -EINVAL);
	host_done(&h);
	host6_init(&h, 1280, HARP_NEIGHBOR_OWN);
	CHECK_EQ(ip_route_add(&h.ip, &peer_ip6, 128, NULL, 1279), -EINVAL);
	CHECK_EQ(ip_route_add(&h.ip, &peer_ip6, 128, NULL, 1280), 0);
}
