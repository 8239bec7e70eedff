/* SPDX-License-Identifier: Apache-2.0 */
/* test_ip.c - IPv4 and IPv6 packets that are accepted, and the headers of sent packets.
 * tests/packet/test_malformed.py covers packets that are dropped. */
#include <errno.h>

#include "host.h"

BEFORE_EACH(host_open(1500, HARP_NEIGHBOR_OWN))
AFTER_EACH(rig_close(&rig))

static struct ipv4_header *header(uint8_t *p)
{
	return (struct ipv4_header *)(p + 14);
}

/* Receives one packet; returns the verdict of ip_input(). */
static enum ip_verdict receive(const uint8_t *p, uint32_t len, struct packet_in *in)
{
	struct frame *packets[NICIO_BURST];

	peer_send(p, len);
	CHECK_EQ(nicio_rx(&host->io, packets), 1);
	*in = (struct packet_in){ .frame = packets[0] };
	CHECK_EQ(eth_input(&host->eth, packets[0]), ETH_IPV4);
	return ip_input(&host->ip, in);
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
	static uint8_t p[RIG_RAW_MAX];
	uint32_t len;

	rig_close(&rig);
	host_open(9000, HARP_NEIGHBOR_OWN);
	/* The padding of a minimum-size Ethernet frame is removed. */
	(void)make_ipv4(p, IP_PROTO_TCP, 22);
	header(p)->ttl = 1;
	header(p)->tos = 0x2e;
	packet_ipv4_seal(p + 14);
	CHECK_EQ(receive(p, 60, &in), IP_LOCAL_TCP);
	CHECK_EQ(in.len, 22);
	CHECK_EQ(in.frame->pub.len, 22);
	CHECK_EQ(in.ttl, 1);
	CHECK_EQ(in.tos, 0x2e);
	CHECK_EQ(in.csum_valid, 0);
	CHECK(in.ip_header == in.frame->pub.data - 20);
	CHECK_EQ(in.src.bytes[15], 2);
	CHECK_EQ(in.dst.bytes[15], 1);
	/* The pseudo-header of RFC 9293 figure 2. */
	const uint8_t pseudo[12] = { 10, 0, 0, 2, 10, 0, 0, 1, 0, 6, 0, 22 };

	CHECK_EQ(csum_finish(in.l4_csum_pseudo), csum_finish(csum_partial(pseudo, 12, 0)));
	frame_release_packet(&host->pool, in.frame);

	/* IP options are skipped. */
	len = make_ipv4(p, IP_PROTO_UDP, 40 + 8);
	header(p)->version_ihl = 0x4f;
	memset(p + 34, 1, 40);
	packet_ipv4_seal(p + 14);
	CHECK_EQ(receive(p, len, &in), IP_LOCAL_UDP);
	CHECK_EQ(in.len, 8);
	frame_release_packet(&host->pool, in.frame);

	/* A packet of several frames whose total length ends within a frame, at its end, or before
	 * it. */
	for (uint32_t payload = 1000; payload <= 8980; payload += 5) {
		make_ipv4(p, IP_PROTO_TCP, payload);
		CHECK_EQ(receive(p, 9014, &in), IP_LOCAL_TCP);
		CHECK_EQ(in.len, payload);
		CHECK_EQ(chain_bytes(in.frame), payload);
		frame_release_packet(&host->pool, in.frame);
		nicio_fill(&host->io);
	}
	/* An empty payload is valid. */
	make_ipv4(p, IP_PROTO_ICMP, 0);
	CHECK_EQ(receive(p, 60, &in), IP_LOCAL_ICMP);
	CHECK_EQ(in.len, 0);
	frame_release_packet(&host->pool, in.frame);
	CHECK_EQ(host->stats.drop_nic_desc, 0);
}

/* The number of packets that reached TCP, which drops them as too short. */
static uint64_t tcp_packets(void)
{
	return host->stats.drop_tcp_short;
}

/* IP skips the checks of a header that equals the previous one, unless own addresses changed. */
TEST(a_repeated_header_is_validated_again_after_a_change)
{
	static const struct {
		unsigned offset;
		uint8_t value;
		size_t counter;
	} changes[] = {
		{ 15, 1, offsetof(struct harp_stats, drop_ip_source) },
		{ 15, 255, offsetof(struct harp_stats, drop_ip_source) },
		{ 19, 9, offsetof(struct harp_stats, drop_ip_not_ours) },
	};
	struct harp_addr own = ipv4_mapped(host_ip);
	uint8_t p[100] = { 0 };
	uint64_t count;
	uint32_t len;

	for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		const uint64_t *counter = (uint64_t *)((char *)&host->stats + changes[i].counter);
		uint64_t before = *counter;

		for (unsigned round = 0; round < 2; round++) {
			len = make_ipv4(p, IP_PROTO_TCP, 28);
			peer_say(p, len);
			CHECK_EQ(tcp_packets(), 4 * i + 2 * round + 1);
			peer_say(p, len);
			CHECK_EQ(tcp_packets(), 4 * i + 2 * round + 2);
			p[14 + changes[i].offset] = changes[i].value;
			packet_ipv4_seal(p + 14);
			peer_say(p, len);
			CHECK_EQ(*counter, before + round + 1);
		}
	}
	count = tcp_packets();
	len = make_ipv4(p, IP_PROTO_TCP, 28);
	peer_say(p, len);
	CHECK_EQ(tcp_packets(), ++count);
	CHECK_EQ(ip_address_remove(&host->ip, &own), 0);
	peer_say(p, len);
	CHECK_EQ(tcp_packets(), count);
	CHECK_EQ(ip_address_add(&host->ip, &own, 24), 0);
	peer_say(p, len);
	CHECK_EQ(tcp_packets(), ++count);
	/* The peer's address becomes an own address. */
	own = ipv4_mapped(p + 14 + 12);
	CHECK_EQ(ip_address_add(&host->ip, &own, 24), 0);
	peer_say(p, len);
	CHECK_EQ(tcp_packets(), count);
}

TEST(sent_packets_have_complete_headers)
{
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct ip_path path = { .dst = peer };
	uint8_t p[RIG_RAW_MAX];
	uint16_t last_id = UINT16_MAX;

	CHECK_EQ(neighbor_set(&host->eth, &peer, rig_peer_mac), 0);
	for (unsigned i = 0; i < 3; i++) {
		struct packet_out out = make_out(100 + i);

		CHECK_EQ(ip_output(&host->ip, &path, IP_PROTO_TCP, 2, &out), 0);
		CHECK_EQ(out.len, 134 + i);
		frame_release(&host->pool, out.frame);
		rig_poll(&rig);
		CHECK_EQ(peer_receive(p), 134 + i);
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

	CHECK_EQ(ip_output(&host->ip, &path, IP_PROTO_TCP, 0, &big), -EMSGSIZE);
	CHECK(big.head == big.frame->pub.data && big.len == 1481);
	big.frame->pub.len = big.len = 1480;
	CHECK_EQ(ip_output(&host->ip, &path, IP_PROTO_TCP, 0, &big), 0);
	frame_release(&host->pool, big.frame);

	/* The path looks up its neighbor again if its entry now holds another address. */
	path.neighbor->addr = harp_addr_v4(10, 0, 0, 99);
	struct packet_out out = make_out(50);
	int err = ip_output(&host->ip, &path, IP_PROTO_TCP, 0, &out);

	CHECK(err == -EAGAIN || err == 0);
	CHECK_MEM(&path.neighbor->addr, &peer, sizeof(peer));
	frame_release(&host->pool, out.frame);
}

/* Identification fields count per path, so they reveal nothing about packets to other hosts (RFC
 * 6864). */
TEST(ids_reveal_nothing_about_other_paths)
{
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct ip_path first = { .dst = peer }, second = { .dst = peer };
	uint8_t p[RIG_RAW_MAX];
	uint16_t next = 0;

	CHECK_EQ(neighbor_set(&host->eth, &peer, rig_peer_mac), 0);
	for (unsigned i = 0; i < 12; i++) {
		struct packet_out out = make_out(100);
		bool is_first = i % 3 == 2;

		CHECK_EQ(ip_output(&host->ip, is_first ? &first : &second, IP_PROTO_TCP, 0, &out),
			 0);
		frame_release(&host->pool, out.frame);
		rig_poll(&rig);
		CHECK_EQ(peer_receive(p), 134);
		if (is_first)
			CHECK_EQ(be16_get(header(p)->id), next++);
	}
}

static uint32_t send_and_receive(struct ip_path *path, uint32_t len, uint8_t tos, uint8_t *p)
{
	struct packet_out out = make_out(len);

	CHECK_EQ(ip_output(&host->ip, path, IP_PROTO_TCP, tos, &out), 0);
	frame_release(&host->pool, out.frame);
	rig_poll(&rig);
	return peer_receive(p);
}

/* A path reuses the headers of its previous packet, which equal those of a new path. */
TEST(a_path_reuses_its_headers)
{
	struct harp_addr peer = ipv4_mapped(peer_ip), own = ipv4_mapped(host_ip);
	struct ip_path path = { .dst = peer };
	uint8_t p[RIG_RAW_MAX], q[RIG_RAW_MAX], mac[6];

	memcpy(mac, rig_peer_mac, sizeof(mac));
	CHECK_EQ(neighbor_set(&host->eth, &peer, mac), 0);
	for (unsigned i = 0; i < 60; i++) {
		struct ip_path new_path = { .dst = peer, .v4_id = path.v4_id };
		uint32_t len = 10 + i * 37 % 1400, got;
		uint8_t tos = (uint8_t)(i / 5 % 3);

		if (i % 7 == 6) { /* the peer's MAC address changes */
			mac[5]++;
			CHECK_EQ(neighbor_set(&host->eth, &peer, mac), 0);
		}
		got = send_and_receive(&path, len, tos, p);
		CHECK_EQ(got, len + 34);
		CHECK_EQ(send_and_receive(&new_path, len, tos, q), got);
		CHECK_MEM(p, q, got);
		CHECK_MEM(p, mac, sizeof(mac));
	}
	CHECK_EQ(path.sent.len, 34);
	/* Nothing is sent from a removed address. */
	struct packet_out out = make_out(10);

	CHECK_EQ(ip_address_remove(&host->ip, &own), 0);
	CHECK(ip_output(&host->ip, &path, IP_PROTO_TCP, 0, &out) < 0);
	CHECK(out.head == out.frame->pub.data && out.len == 10);
	frame_release(&host->pool, out.frame);
}

TEST(a_full_ring_leaves_the_packet_unchanged)
{
	struct harp_addr peer = ipv4_mapped(peer_ip);
	struct ip_path path = { .dst = peer };
	unsigned sent = 0;
	int err = 0;

	neighbor_set(&host->eth, &peer, rig_peer_mac);
	host->io.tx_ring = 32;
	rig.nic_full = true;
	while (!err && sent < 1000) {
		struct packet_out out = make_out(10);

		err = ip_output(&host->ip, &path, IP_PROTO_TCP, 0, &out);
		if (err)
			CHECK(out.head == out.frame->pub.data && out.len == 10);
		frame_release(&host->pool, out.frame);
		sent += !err;
	}
	CHECK_EQ(err, -EAGAIN);
	CHECK_EQ(sent, 32);
	CHECK_EQ(host->stats.tx_ring_full, 1);
}

/* ---- IPv6 ------------------------------------------------------------------------------------ */

TEST(valid_ipv6_packets_are_trimmed_and_delivered)
{
	struct packet_in in;
	struct frame *packets[NICIO_BURST];
	uint8_t p[200] = { 0 };

	make_ipv6(p, IP_PROTO_TCP, 22);
	header6(p)->version_class_label = be32_of(0x62eabcde);
	header6(p)->hop_limit = 1;
	peer_send(p, 120); /* padding is removed */
	CHECK_EQ(nicio_rx(&host->io, packets), 1);
	in = (struct packet_in){ .frame = packets[0] };
	CHECK_EQ(eth_input(&host->eth, packets[0]), ETH_IPV6);
	CHECK_EQ(ip6_input(&host->ip, &in), IP_LOCAL_TCP);
	CHECK_EQ(in.len, 22);
	CHECK_EQ(in.frame->pub.len, 22);
	CHECK_EQ(in.ttl, 1);
	CHECK_EQ(in.tos, 0x2e);
	CHECK_MEM(&in.src, &peer_ip6, 16);
	CHECK_MEM(&in.dst, &host_ip6, 16);
	/* The pseudo-header of RFC 8200 section 8.1. */
	uint8_t pseudo[40] = { [35] = 22, [39] = 6 };

	memcpy(pseudo, &peer_ip6, 16);
	memcpy(pseudo + 16, &host_ip6, 16);
	CHECK_EQ(csum_finish(in.l4_csum_pseudo), csum_finish(csum_partial(pseudo, 40, 0)));
	frame_release_packet(&host->pool, in.frame);
}

TEST(sent_ipv6_packets_have_complete_headers)
{
	struct ip_path path = { .dst = peer_ip6 };
	static const uint32_t lens[] = { 1460, 1461, 1000, 7, 1460 };
	uint8_t r[RIG_RAW_MAX] = { 0 };

	CHECK_EQ(neighbor_set(&host->eth, &peer_ip6, rig_peer_mac), 0);
	CHECK_EQ(ip_path_lookup(&host->ip, &path), 0);
	ip_path_label(&host->ip, &path, 1, 2);
	/* A packet of MTU size, one byte more, then packets that reuse the previous headers. */
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		uint32_t len = lens[i];
		struct packet_out out = make_out(len);

		CHECK_EQ(ip_output(&host->ip, &path, IP_PROTO_TCP, 0xb9, &out),
			 len <= 1460 ? 0 : -EMSGSIZE);
		frame_release(&host->pool, out.frame);
		rig_poll(&rig);
		CHECK_EQ(peer_receive(r), len <= 1460 ? len + 54 : 0);
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

/* RFC 6437: a label is constant for a flow, differs between flows and stacks, has 20 bits, and is
 * never 0. */
TEST(flow_labels_are_constant_per_flow_and_secret)
{
	struct ip_path a = { .src = host_ip6, .dst = peer_ip6 }, b = a;
	unsigned matches = 0;

	ip_path_label(&host->ip, &a, 1000, 2000);
	ip_path_label(&host->ip, &b, 1000, 2000);
	CHECK_EQ(a.flow_label, b.flow_label);
	for (uint16_t port = 1; port < 1000; port++) {
		ip_path_label(&host->ip, &b, 1000, port);
		matches += a.flow_label == b.flow_label;
		CHECK(b.flow_label > 0 && b.flow_label <= 0xfffff);
	}
	CHECK(matches < 3);
	host->ip.label_key.k[0]++;
	ip_path_label(&host->ip, &b, 1000, 2000);
	CHECK(a.flow_label != b.flow_label);
}

/* IPv6 requires an MTU of at least 1280 bytes (RFC 8200 section 5). */
TEST(an_mtu_below_1280_is_refused)
{
	rig_close(&rig);
	host_open(1279, HARP_NEIGHBOR_OWN);
	CHECK_EQ(ip_address_add(&host->ip, &host_ip6, 64), -EINVAL);
	rig_close(&rig);
	host_open(1280, HARP_NEIGHBOR_OWN);
	CHECK_EQ(ip_route_add(&host->ip, &peer_ip6, 128, NULL, 1279), -EINVAL);
	CHECK_EQ(ip_route_add(&host->ip, &peer_ip6, 128, NULL, 1280), 0);
}
