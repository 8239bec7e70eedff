/* SPDX-License-Identifier: Apache-2.0 */
/* test_ip.c - which IPv4 packets come in, and what goes out. tests/packet/test_malformed.py has those that are dropped. */
#include "network/ip.h"

#include <errno.h>

#include "host.h"

static struct host h;
BEFORE_EACH(host_init(&h, 1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(host_done(&h))

static struct ipv4_header *header(uint8_t *p)
{
	return (struct ipv4_header *)(p + 14);
}

/* Receives one packet by hand and looks at what ip_input() says of it. */
static enum ip_verdict take(const uint8_t *p, uint32_t len, struct packet_in *in)
{
	struct frame *packets[NICIO_BURST];

	peer_send(&h, p, len);
	CHECK_EQ(nicio_rx(&h.io, packets, NICIO_BURST), 1);
	*in = (struct packet_in){ .frame = packets[0] };
	CHECK_EQ(eth_input(&h.eth, packets[0]), ETH_IPV4);
	return ip_input(&h.ip, in);
}

static uint32_t chain_bytes(const struct frame *f)
{
	uint32_t n = 0;

	for (; f; f = f->frag)
		n += f->pub.len;
	return n;
}

TEST(valid_packets_are_trimmed_and_delivered)
{
	struct packet_in in;
	static uint8_t p[HOST_PACKET_MAX];
	uint32_t len;

	host_done(&h);
	host_init(&h, 9000, HARP_NEIGHBOR_OWN);
	/* Padding goes: 26 bytes of payload in the smallest Ethernet frame and more. */
	(void)make_ipv4(p, IP_PROTO_TCP, 22);
	header(p)->ttl = 1;
	header(p)->tos = 0x2e;
	ipv4_seal(header(p));
	CHECK_EQ(take(p, 60, &in), IP_LOCAL_TCP);
	CHECK_EQ(in.len, 22);
	CHECK_EQ(in.frame->pub.len, 22);
	CHECK_EQ(in.ttl, 1);
	CHECK_EQ(in.tos, 0x2e);
	CHECK_EQ(in.csum_good, 0);
	CHECK(in.ip_header == in.frame->pub.data - 20);
	CHECK_EQ(in.src.bytes[15], 2);
	CHECK_EQ(in.dst.bytes[15], 1);
	/* The pseudo-header, RFC 9293 figure 2, by hand. */
	const uint8_t pseudo[12] = { 10, 0, 0, 2, 10, 0, 0, 1, 0, 6, 0, 22 };

	CHECK_EQ(csum_finish(in.l4_csum_pseudo), csum_finish(csum_partial(pseudo, 12, 0)));
	frame_release_packet(&h.pool, in.frame);

	/* Options are skipped. */
	len = make_ipv4(p, IP_PROTO_UDP, 40 + 8);
	header(p)->version_ihl = 0x4f;
	memset(p + 34, 1, 40);
	ipv4_seal(header(p));
	CHECK_EQ(take(p, len, &in), IP_LOCAL_UDP);
	CHECK_EQ(in.len, 8);
	frame_release_packet(&h.pool, in.frame);

	/* Several frames; a total length that ends inside one, at its end, before it. */
	for (uint32_t payload = 1000; payload <= 8980; payload += 5) {
		make_ipv4(p, IP_PROTO_TCP, payload);
		CHECK_EQ(take(p, 9014, &in), IP_LOCAL_TCP);
		CHECK_EQ(in.len, payload);
		CHECK_EQ(chain_bytes(in.frame), payload);
		frame_release_packet(&h.pool, in.frame);
		nicio_fill(&h.io);
	}
	/* An empty payload is a packet too. */
	make_ipv4(p, IP_PROTO_ICMP, 0);
	CHECK_EQ(take(p, 60, &in), IP_LOCAL_ICMP);
	CHECK_EQ(in.len, 0);
	frame_release_packet(&h.pool, in.frame);
	CHECK_EQ(h.stats.drop_nic_desc, 0);
}

static struct packet_out make_out(uint32_t len)
{
	struct frame *f = frame_alloc(&h.pool, 0);

	f->pub.len = len;
	memset(f->pub.data, 0x5a, len);
	return (struct packet_out){ .frame = f, .head = f->pub.data, .len = len, .frags = 1 };
}

/* A packet like the last one is not judged again, unless there is something new to judge it by. */
TEST(a_repeated_header_is_validated_again_after_a_change)
{
	static const struct {
		unsigned at;
		uint8_t value;
		size_t counter;
	} other[] = {
		{ 15, 1, offsetof(struct harp_stats, drop_ip_source) },
		{ 15, 255, offsetof(struct harp_stats, drop_ip_source) },
		{ 19, 9, offsetof(struct harp_stats, drop_ip_not_ours) },
	};
	struct harp_addr own = ipv4_mapped(host_ip);
	uint8_t p[100] = { 0 };
	uint32_t len;

	for (unsigned i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		const uint64_t *counter = (uint64_t *)((char *)&h.stats + other[i].counter);
		uint64_t before = *counter;

		for (unsigned again = 0; again < 2; again++) {
			len = make_ipv4(p, IP_PROTO_TCP, 28);
			peer_say(&h, p, len);
			CHECK_EQ(h.tcp_packets, 4 * i + 2 * again + 1);
			peer_say(&h, p, len);
			CHECK_EQ(h.tcp_packets, 4 * i + 2 * again + 2);
			p[14 + other[i].at] = other[i].value;
			ipv4_seal(header(p));
			peer_say(&h, p, len);
			CHECK_EQ(*counter, before + again + 1);
		}
	}
	len = make_ipv4(p, IP_PROTO_TCP, 28);
	peer_say(&h, p, len);
	CHECK_EQ(h.ip_verdict, IP_LOCAL_TCP);
	CHECK_EQ(ip_address_remove(&h.ip, &own), 0);
	peer_say(&h, p, len);
	CHECK_EQ(h.ip_verdict, IP_DROPPED);
	CHECK_EQ(ip_address_add(&h.ip, &own, 24), 0);
	peer_say(&h, p, len);
	CHECK_EQ(h.ip_verdict, IP_LOCAL_TCP);
	/* The peer's address becomes ours. */
	own = ipv4_mapped(p + 14 + 12);
	CHECK_EQ(ip_address_add(&h.ip, &own, 24), 0);
	peer_say(&h, p, len);
	CHECK_EQ(h.ip_verdict, IP_DROPPED);
}

TEST(sent_packets_have_complete_headers)
{
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct ip_path path = { .dst = peer };
	uint8_t p[HOST_PACKET_MAX];
	uint16_t last_id = UINT16_MAX;

	CHECK_EQ(neighbor_set(&h.eth, &peer, peer_mac), 0);
	for (unsigned i = 0; i < 3; i++) {
		struct packet_out out = make_out(100 + i);

		CHECK_EQ(ip_output(&h.ip, &path, IP_PROTO_TCP, 2, &out), 0);
		CHECK_EQ(out.len, 134 + i);
		frame_release(&h.pool, out.frame);
		host_poll(&h);
		CHECK_EQ(peer_receive(&h, p), 134 + i);
		CHECK_EQ(csum_finish(csum_partial(p + 14, 20, 0)), 0);
		CHECK_EQ(be16_get(header(p)->total_len), 120 + i);
		CHECK_EQ(be16_get(header(p)->flags_offset), IPV4_FLAG_DF);
		CHECK_EQ(header(p)->tos, 2);
		CHECK_EQ(header(p)->ttl, 64);
		CHECK_MEM(header(p)->src, host_ip, 4);
		CHECK_MEM(header(p)->dst, peer_ip, 4);
		CHECK_EQ(p[34], 0x5a);
		CHECK(be16_get(header(p)->id) != last_id);
		last_id = be16_get(header(p)->id);
	}
	struct packet_out big = make_out(1481); /* one byte above the MTU */

	CHECK_EQ(ip_output(&h.ip, &path, IP_PROTO_TCP, 0, &big), -EMSGSIZE);
	CHECK(big.head == big.frame->pub.data && big.len == 1481);
	big.frame->pub.len = big.len = 1480;
	CHECK_EQ(ip_output(&h.ip, &path, IP_PROTO_TCP, 0, &big), 0);
	frame_release(&h.pool, big.frame);

	/* The path finds its new neighbor when the record it knew serves another address. */
	path.neighbor->addr = harp_addr_v4(10, 0, 0, 99);
	struct packet_out out = make_out(50);
	int err = ip_output(&h.ip, &path, IP_PROTO_TCP, 0, &out);

	CHECK(err == -EAGAIN || err == 0);
	CHECK_MEM(&path.neighbor->addr, &peer, sizeof(peer));
	frame_release(&h.pool, out.frame);
}

/* A peer that sees some of our packets learns nothing about those to others: RFC 6864 lets it be so. */
TEST(ids_tell_nothing_of_others)
{
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct ip_path here = { .dst = peer }, there = { .dst = peer };
	uint8_t p[HOST_PACKET_MAX];
	uint16_t next = 0;

	CHECK_EQ(neighbor_set(&h.eth, &peer, peer_mac), 0);
	for (unsigned i = 0; i < 12; i++) {
		struct packet_out out = make_out(100);
		bool ours = i % 3 == 2;

		CHECK_EQ(ip_output(&h.ip, ours ? &here : &there, IP_PROTO_TCP, 0, &out), 0);
		frame_release(&h.pool, out.frame);
		host_poll(&h);
		CHECK_EQ(peer_receive(&h, p), 134);
		if (ours)
			CHECK_EQ(be16_get(header(p)->id), next++);
	}
}

static uint32_t send_and_hear(struct ip_path *path, uint32_t len, uint8_t tos, uint8_t *p)
{
	struct packet_out out = make_out(len);

	CHECK_EQ(ip_output(&h.ip, path, IP_PROTO_TCP, tos, &out), 0);
	frame_release(&h.pool, out.frame);
	host_poll(&h);
	return peer_receive(&h, p);
}

/* A path has the headers of its packet before: they are those that a new path would make. */
TEST(a_path_reuses_its_headers)
{
	struct harp_addr peer = ipv4_mapped(peer_ip), own = ipv4_mapped(host_ip);
	struct ip_path path = { .dst = peer };
	uint8_t p[HOST_PACKET_MAX], q[HOST_PACKET_MAX], mac[6];

	memcpy(mac, peer_mac, sizeof(mac));
	CHECK_EQ(neighbor_set(&h.eth, &peer, mac), 0);
	for (unsigned i = 0; i < 60; i++) {
		struct ip_path fresh = { .dst = peer, .v4_id = path.v4_id };
		uint32_t len = 10 + i * 37 % 1400, got;
		uint8_t tos = (uint8_t)(i / 5 % 3);

		if (i % 7 == 6) { /* it moves to another card */
			mac[5]++;
			CHECK_EQ(neighbor_set(&h.eth, &peer, mac), 0);
		}
		got = send_and_hear(&path, len, tos, p);
		CHECK_EQ(got, len + 34);
		CHECK_EQ(send_and_hear(&fresh, len, tos, q), got);
		CHECK_MEM(p, q, got);
		CHECK_MEM(p, mac, sizeof(mac));
	}
	CHECK_EQ(path.sent.len, 34);
	/* What it may not be sent to or from any more it isn't. */
	struct packet_out out = make_out(10);

	CHECK_EQ(ip_address_remove(&h.ip, &own), 0);
	CHECK(ip_output(&h.ip, &path, IP_PROTO_TCP, 0, &out) < 0);
	CHECK(out.head == out.frame->pub.data && out.len == 10);
	frame_release(&h.pool, out.frame);
}

TEST(a_full_ring_leaves_the_packet_unchanged)
{
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct ip_path path = { .dst = peer };
	unsigned sent = 0;
	int err = 0;

	neighbor_set(&h.eth, &peer, peer_mac);
	h.io.tx_ring = 32;
	while (!err && sent < 1000) { /* the wire completes at the present: stop its clock */
		struct packet_out out = make_out(10);

		h.io.now_ns = 0;
		err = ip_output(&h.ip, &path, IP_PROTO_TCP, 0, &out);
		if (err)
			CHECK(out.head == out.frame->pub.data && out.len == 10);
		frame_release(&h.pool, out.frame);
		sent += !err;
	}
	CHECK_EQ(err, -EAGAIN);
	CHECK_EQ(sent, 32);
	CHECK_EQ(h.stats.tx_ring_full, 1);
	host_poll(&h);
}
