/* SPDX-License-Identifier: Apache-2.0 */
/* test_udp.c - UDP sockets: sending, receiving, ICMP errors, budgets, and refused calls. */
#include <limits.h>

#include "rig.h"

static struct rig the_rig, *const rig = &the_rig;
static bool v6;
static struct harp_addr own, peer_addr, other_addr; /* other_addr: a second peer */

static void open_family(uint32_t mtu_bytes)
{
	static const char *const addrs[2][3] = { { "10.0.0.1", "10.0.0.2", "10.0.0.3" },
						 { "fd00::1", "fd00::2", "fd00::3" } };

	rig_open_bare(rig, (struct rig_setup){ .max_conns = 8,
					       .mtu_bytes = mtu_bytes,
					       .frame_bytes = 2048,
					       .frame_count = 1024,
					       .neighbor_mode = HARP_NEIGHBOR_EXTERNAL,
					       .raw = true });
	CHECK_EQ(harp_addr_parse(addrs[v6][0], &own), 0);
	CHECK_EQ(harp_addr_parse(addrs[v6][1], &peer_addr), 0);
	CHECK_EQ(harp_addr_parse(addrs[v6][2], &other_addr), 0);
	CHECK_EQ(harp_stack_address_add(rig->stack, &own, v6 ? 64 : 24), 0);
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &peer_addr, rig_peer_mac), 0);
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &other_addr, rig_peer_mac), 0);
}

BEFORE_EACH(open_family(1500))
AFTER_EACH(rig_close(rig))

static uint32_t l3_bytes(void)
{
	return v6 ? 40 : 20;
}

/* The transport header of a packet. */
static uint8_t *l4_of(struct rig_packet *p)
{
	return p->bytes + 14 + l3_bytes();
}

/* Queues a packet for the next poll; the caller writes l4_bytes at l4_of(). */
static struct rig_packet *next_packet(void)
{
	struct rig_packet *p = &rig->in[rig->in_tail++ % RIG_QUEUE];

	memset(p->bytes, 0, RIG_PACKET_MAX);
	return p;
}

static void write_headers(struct rig_packet *p, const struct harp_addr *src, uint8_t proto,
			  uint32_t l4_bytes)
{
	p->len = l4_bytes +
		 packet_headers(p->bytes, rig_mac, rig_peer_mac, src, &own, proto, l4_bytes);
}

/* A datagram that the peer sends. */
struct udp_say {
	const struct harp_addr *src; /* NULL: the peer */
	uint16_t src_port, dst_port; /* 0: the default ports */
	uint32_t len;                /* payload */
	uint8_t first;               /* first payload byte; the next ones count up */
	int32_t length_field_delta;  /* added to the length field */
	uint32_t trailing;           /* bytes of IP payload after the datagram */
	bool zero_checksum, bad_checksum;
};

static void udp_put(struct udp_say say)
{
	struct rig_packet *p = next_packet();
	const struct harp_addr *src = say.src ? say.src : &peer_addr;
	uint8_t *uh = l4_of(p);
	uint32_t len = 8 + say.len, field = (uint32_t)((int32_t)len + say.length_field_delta);
	uint16_t sum;

	be16_store(uh, say.src_port ? say.src_port : RIG_PEER_PORT);
	be16_store(uh + 2, say.dst_port ? say.dst_port : RIG_PORT);
	be16_store(uh + 4, (uint16_t)field);
	for (uint32_t i = 0; i < say.len; i++)
		uh[8 + i] = (uint8_t)(say.first + i);
	memset(uh + len, 0xee, say.trailing);
	sum = csum_finish(csum_partial(uh, field < len ? field : len,
				       ip_pseudo_sum(src, &own, IP_PROTO_UDP, field)));
	sum = sum == 0 ? 0xffff : sum;
	sum = say.zero_checksum ? 0 : (uint16_t)(sum ^ (say.bad_checksum ? 0x100 : 0));
	memcpy(uh + 6, &sum, 2);
	write_headers(p, src, IP_PROTO_UDP, len + say.trailing);
}

static void udp_says(struct udp_say say)
{
	udp_put(say);
	rig_poll(rig);
}

struct udp_sent {
	uint8_t proto;
	const uint8_t *l4; /* transport or ICMP header */
	uint32_t l4_len;
};

/* Takes the stack's next packet; false: there is none. */
static bool udp_take(struct udp_sent *sent)
{
	struct rig_packet *p;
	const uint8_t *ip;

	*sent = (struct udp_sent){ 0 };
	if (rig_pending(rig) == 0)
		return false;
	p = &rig->sent[rig->out_head++ % RIG_QUEUE];
	ip = p->bytes + 14;
	*sent = (struct udp_sent){ .proto = v6 ? ip[6] : ip[9],
				   .l4 = l4_of(p),
				   .l4_len = v6 ? be16_load(ip + 4) : be16_load(ip + 2) - 20u };
	CHECK(14 + l3_bytes() + sent->l4_len == p->len);
	return true;
}

/* Checks that the next packet is this datagram with a correct checksum; returns its payload. */
static const uint8_t *udp_expect(uint16_t dst_port, uint32_t len)
{
	static const uint8_t empty[8];
	struct udp_sent sent;
	const uint8_t *ip;
	struct harp_addr dst;

	CHECK(udp_take(&sent));
	if (sent.proto != IP_PROTO_UDP || sent.l4_len != 8 + len) {
		CHECK_EQ(sent.proto, IP_PROTO_UDP);
		CHECK_EQ(sent.l4_len, 8 + len);
		return empty;
	}
	ip = sent.l4 - l3_bytes();
	if (v6)
		memcpy(dst.bytes, ip + 24, 16);
	else
		dst = harp_addr_v4(ip[16], ip[17], ip[18], ip[19]);
	CHECK_EQ(be16_load(sent.l4 + 2), dst_port);
	CHECK_EQ(be16_load(sent.l4 + 4), 8 + len);
	CHECK(be16_load(sent.l4 + 6) != 0);
	CHECK_EQ(csum_finish(csum_partial(sent.l4, sent.l4_len,
					  ip_pseudo_sum(&own, &dst, IP_PROTO_UDP, 8 + len))),
		 0);
	return sent.l4 + 8;
}

static struct harp_udp *udp_socket(uint16_t port, const struct harp_udp_options *opt)
{
	struct harp_endpoint local = { .port = port };
	struct harp_udp *sock = NULL;

	CHECK_EQ(harp_udp_open(rig->stack, &local, opt, &sock), 0);
	return sock;
}

static struct harp_endpoint udp_peer(void)
{
	return (struct harp_endpoint){ .addr = peer_addr, .port = RIG_PEER_PORT };
}

static ssize_t udp_write(struct harp_udp *sock, const struct harp_endpoint *dst, size_t len)
{
	static uint8_t bytes[65536];
	struct iovec iov[2] = { { .iov_base = bytes, .iov_len = len / 3 },
				{ .iov_base = bytes + len / 3, .iov_len = len - len / 3 } };

	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(i * 5 + 1);
	return harp_udp_send(sock, dst, iov, 2);
}

TEST(datagrams_are_received)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct harp_udp_from source;
	uint8_t buf[100];

	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), &source), -EAGAIN);
	udp_says((struct udp_say){ .len = 40, .first = 7 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), &source), 40);
	CHECK(buf[0] == 7 && buf[39] == 46);
	CHECK_EQ(source.peer.port, RIG_PEER_PORT);
	CHECK_MEM(&source.peer.addr, &peer_addr, sizeof(source.peer.addr));
	/* A datagram larger than the buffer is truncated, and the call returns its full length. */
	udp_put((struct udp_say){ .len = 90, .first = 1 });
	udp_says((struct udp_say){ .len = 0 });
	memset(buf, 0xaa, sizeof(buf));
	CHECK_EQ(harp_udp_recv(sock, buf, 10, NULL), 90);
	CHECK(buf[9] == 10 && buf[10] == 0xaa);
	CHECK_EQ(harp_udp_recv(sock, buf, 10, NULL), 0); /* an empty datagram */
	CHECK_EQ(harp_udp_recv(sock, buf, 10, NULL), -EAGAIN);
	/* Each datagram is reported with its source and destination. */
	for (uint8_t i = 0; i < 3; i++)
		udp_put((struct udp_say){ .src = i == 1 ? &other_addr : NULL,
					  .src_port = 100u + i,
					  .len = 20u * (i + 1u),
					  .first = i });
	rig_poll(rig);
	for (uint8_t i = 0; i < 3; i++) {
		CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), &source), 20 * (i + 1));
		CHECK_EQ(buf[0], i);
		CHECK_EQ(source.peer.port, 100 + i);
		CHECK_MEM(&source.peer.addr, i == 1 ? &other_addr : &peer_addr, 16);
		CHECK_MEM(&source.local.addr, &own, 16);
		CHECK_EQ(source.local.port, RIG_PORT);
	}
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), &source), -EAGAIN);
	CHECK_EQ(rig_stat(rig, "udp_in"), 6);
	rig_silent(rig);
	harp_udp_close(sock);
}

TEST(datagrams_are_sent)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct harp_endpoint peer = udp_peer();
	const uint8_t *data;
	uint32_t payload_max = 1500 - l3_bytes() - 8;

	CHECK_EQ(udp_write(sock, NULL, 5), -EDESTADDRREQ);
	CHECK_EQ(harp_udp_payload_max(sock, &peer), payload_max);
	CHECK_EQ(udp_write(sock, &peer, payload_max + 1), -EMSGSIZE);
	CHECK_EQ(udp_write(sock, &peer, payload_max), payload_max);
	CHECK_EQ(udp_write(sock, &peer, 0), 0);
	CHECK_EQ(harp_stack_next_deadline_ns(rig->stack), rig->now_ns);
	rig_poll(rig);
	data = udp_expect(RIG_PEER_PORT, payload_max);
	CHECK(data[0] == 1 && data[100] == (uint8_t)501 &&
	      data[payload_max - 1] == (uint8_t)((payload_max - 1) * 5 + 1));
	udp_expect(RIG_PEER_PORT, 0);
	CHECK_EQ(rig_stat(rig, "tx_copied_bytes"), payload_max);
	CHECK_EQ(rig_stat(rig, "udp_out"), 2);
	rig_silent(rig);
	harp_udp_close(sock);
}

/* A jumbo datagram is received and sent whole; the send budget limits its size. */
TEST(a_datagram_may_span_several_frames)
{
	enum { LEN = 7000, FRAME_MAX = 2048 - FRAME_HEADROOM_BYTES };
	static uint8_t buf[LEN + 1];
	struct harp_udp_options few = { .size = sizeof(few), .tx_frames = 4 };
	struct harp_endpoint peer = udp_peer();
	struct harp_udp *sock;
	const uint8_t *data;

	rig_close(rig);
	open_family(8000);
	sock = udp_socket(RIG_PORT, NULL);
	udp_says((struct udp_say){ .len = LEN, .first = 9 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), LEN);
	for (uint32_t i = 0; i < LEN; i++)
		CHECK_EQ(buf[i], (uint8_t)(9 + i));
	CHECK_EQ(udp_write(sock, &peer, LEN), LEN);
	rig_poll(rig);
	data = udp_expect(RIG_PEER_PORT, LEN);
	for (uint32_t i = 0; i < LEN; i++)
		CHECK_EQ(data[i], (uint8_t)(i * 5 + 1));
	harp_udp_close(sock);
	sock = udp_socket(RIG_PORT, &few);
	CHECK_EQ(harp_udp_payload_max(sock, &peer), 4 * FRAME_MAX);
	harp_udp_close(sock);
}

/* A computed checksum of zero is sent as all ones, because zero means "no checksum". */
TEST(a_zero_checksum_is_sent_as_ones)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct harp_endpoint peer = udp_peer();
	uint8_t payload[2] = { 0, 0 };
	struct iovec iov = { payload, 2 };
	struct udp_sent sent = { 0 };

	CHECK_EQ(harp_udp_send(sock, &peer, &iov, 1), 2);
	rig_poll(rig);
	CHECK(udp_take(&sent));
	memcpy(payload, sent.l4 + 6, 2); /* the checksum as payload makes the sum all ones */
	CHECK_EQ(harp_udp_send(sock, &peer, &iov, 1), 2);
	rig_poll(rig);
	CHECK(udp_take(&sent));
	CHECK_EQ(be16_load(sent.l4 + 6), 0xffff);
	harp_udp_close(sock);
}

TEST(invalid_datagrams_are_dropped)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	uint8_t buf[2000];

	/* The length field: less than a header, more than the packet has, zero. */
	udp_says((struct udp_say){ .len = 10, .length_field_delta = -11 });
	udp_says((struct udp_say){ .len = 10, .length_field_delta = 1 });
	udp_says((struct udp_say){ .len = 10, .length_field_delta = -18 });
	CHECK_EQ(rig_stat(rig, "drop_udp_short"), 3);
	/* A length field below IP's: the rest is discarded, and the checksum covers the shorter
	 * datagram. */
	udp_says((struct udp_say){ .len = 10, .trailing = 30, .first = 1 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 10);
	udp_says((struct udp_say){ .len = 10, .length_field_delta = -4, .first = 1 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 6);
	/* A truncated header. */
	for (uint32_t len = 0; len < 8; len++) {
		write_headers(next_packet(), &peer_addr, IP_PROTO_UDP, len);
		rig_poll(rig);
	}
	CHECK_EQ(rig_stat(rig, "drop_udp_short"), 11);
	udp_says((struct udp_say){ .len = 10, .bad_checksum = true });
	CHECK_EQ(rig_stat(rig, "drop_udp_checksum"), 1);
	/* No checksum: IPv4 allows it, IPv6 does not. */
	udp_says((struct udp_say){ .len = 10, .zero_checksum = true });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), v6 ? -EAGAIN : 10);
	CHECK_EQ(rig_stat(rig, "drop_udp_checksum"), v6 ? 2 : 1);
	/* Source addresses that cannot receive a reply. */
	{
		static const char *const bad[2][5] = {
			{ "255.255.255.255", "224.0.0.1", "10.0.0.255", "127.0.0.1", "0.0.0.0" },
			{ "ff02::1", "ff05::2", "::1", "::", "fd00::1" },
		};
		struct harp_addr src;

		for (int i = 0; i < 5; i++) {
			CHECK_EQ(harp_addr_parse(bad[v6][i], &src), 0);
			udp_says((struct udp_say){ .src = &src, .len = 10 });
		}
		CHECK_EQ(rig_stat(rig, "drop_ip_source"), 5);
	}
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -EAGAIN);
	rig_silent(rig);
	harp_udp_close(sock);
}

TEST(a_closed_port_is_answered_with_an_icmp_error)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct udp_sent sent = { 0 };

	udp_says((struct udp_say){ .dst_port = 9, .len = 1400 });
	CHECK_EQ(rig_stat(rig, "drop_udp_no_port"), 1);
	CHECK(udp_take(&sent));
	CHECK_EQ(sent.proto, v6 ? 58 : IP_PROTO_ICMP);
	CHECK_EQ(sent.l4[0], v6 ? 1 : 3);
	CHECK_EQ(sent.l4[1], v6 ? 4 : 3);
	CHECK_EQ(sent.l4_len + l3_bytes(), v6 ? 1280 : 576);
	CHECK_EQ(csum_finish(
			 csum_partial(sent.l4, sent.l4_len,
				      v6 ? ip_pseudo_sum(&own, &peer_addr, 58, sent.l4_len) : 0)),
		 0);
	CHECK_MEM(sent.l4 + 8, rig->in[(rig->in_head - 1) % RIG_QUEUE].bytes + 14, sent.l4_len - 8);
	/* Invalid datagrams get no reply. */
	udp_says((struct udp_say){ .dst_port = 9, .len = 10, .bad_checksum = true });
	rig_silent(rig);
	harp_udp_close(sock);
}

/* The token bucket must not reveal how many errors other hosts caused: after equal pauses, bursts
 * have different lengths. Their average is the limit. */
TEST(icmp_errors_are_rate_limited_unpredictably)
{
	unsigned min = UINT_MAX, max = 0, total = 0;
	struct udp_sent sent;

	for (unsigned burst = 0; burst < 40; burst++) {
		unsigned count = 0;

		for (unsigned i = 0; i < 200; i++)
			udp_says((struct udp_say){ .dst_port = 9, .len = 10 });
		while (udp_take(&sent))
			count++;
		min = count < min ? count : min;
		max = count > max ? count : max;
		total += count;
		rig->now_ns += 50 * RIG_MS;
	}
	CHECK(min >= 25 && max > min + 4);
	CHECK(total >= 40 * 45 && total <= 40 * 55);
	CHECK_EQ(rig_stat(rig, "icmp_unreachable_out"), total);
}

/* The IPv6 flow label of what a socket sends that is connected to this port of the peer. */
static uint32_t label_to(uint16_t port)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct harp_endpoint peer = udp_peer();
	struct udp_sent sent;

	peer.port = port;
	CHECK_EQ(harp_udp_connect(sock, &peer), 0);
	CHECK_EQ(udp_write(sock, NULL, 5), 5);
	rig_poll(rig);
	CHECK(udp_take(&sent));
	harp_udp_close(sock);
	return be32_load(sent.l4 - l3_bytes()) & 0xfffffu;
}

TEST(flow_labels_of_connected_sockets_depend_on_the_peers_port)
{
	if (v6)
		CHECK(label_to(1000) != label_to(1001));
}

TEST(a_connected_socket_receives_from_its_peer_only)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct harp_endpoint peer = udp_peer(), local, remote;
	struct udp_sent sent;
	uint8_t buf[100];

	/* Connecting drops queued datagrams of other senders and keeps those of the peer. */
	udp_put((struct udp_say){ .src = &other_addr, .len = 11 });
	udp_put((struct udp_say){ .len = 12 });
	udp_put((struct udp_say){ .src_port = 8, .len = 13 });
	rig_poll(rig);
	CHECK_EQ(harp_udp_connect(sock, &peer), 0);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 12);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -EAGAIN);
	harp_udp_endpoints(sock, &local, &remote);
	CHECK_MEM(&local.addr, &own, 16);
	CHECK_MEM(&remote, &peer, sizeof(peer));
	CHECK_EQ(udp_write(sock, &peer, 5), -EISCONN);
	CHECK_EQ(udp_write(sock, NULL, 5), 5);
	rig_poll(rig);
	udp_expect(RIG_PEER_PORT, 5);
	/* Later datagrams of other senders have no socket. */
	udp_says((struct udp_say){ .src = &other_addr, .len = 11 });
	CHECK(udp_take(&sent) && sent.proto != IP_PROTO_UDP);
	udp_says((struct udp_say){ .len = 12 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 12);
	/* A disconnected socket receives from any sender. */
	CHECK_EQ(harp_udp_connect(sock, NULL), 0);
	udp_says((struct udp_say){ .src = &other_addr, .len = 11 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 11);
	harp_udp_close(sock);
}

/* Receives an ICMP error that quotes a datagram sent to (dst, dst_port). */
static void icmp_error(uint8_t type, uint8_t code, uint32_t mtu_bytes, const struct harp_addr *dst,
		       uint16_t dst_port)
{
	struct rig_packet *p = next_packet();
	uint8_t *h = l4_of(p), *quote = h + 8, *uh = quote + l3_bytes();
	uint32_t len = 8 + l3_bytes() + 8;
	uint16_t sum;

	h[0] = type;
	h[1] = code;
	be32_store(h + 4, mtu_bytes);
	if (v6) {
		quote[0] = 0x60;
		be16_store(quote + 4, 8);
		quote[6] = IP_PROTO_UDP;
		memcpy(quote + 8, own.bytes, 16);
		memcpy(quote + 24, dst->bytes, 16);
	} else {
		quote[0] = 0x45;
		be16_store(quote + 2, 28);
		quote[9] = IP_PROTO_UDP;
		memcpy(quote + 12, own.bytes + 12, 4);
		memcpy(quote + 16, dst->bytes + 12, 4);
	}
	be16_store(uh, RIG_PORT);
	be16_store(uh + 2, dst_port);
	be16_store(uh + 4, 8);
	sum = csum_finish(csum_partial(h, len, v6 ? ip_pseudo_sum(&other_addr, &own, 58, len) : 0));
	memcpy(h + 2, &sum, 2);
	write_headers(p, &other_addr, v6 ? 58 : IP_PROTO_ICMP, len);
	rig_poll(rig);
}

TEST(icmp_errors_reach_their_socket)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct harp_endpoint peer = udp_peer(), remote;
	uint8_t unreachable = v6 ? 1 : 3, port = v6 ? 4 : 3, host = v6 ? 3 : 1;
	uint8_t too_big = v6 ? 2 : 3, too_big_code = v6 ? 0 : 4;
	uint32_t headers = l3_bytes() + 8;
	uint8_t buf[8];

	/* Unconnected: the error names the destination. */
	icmp_error(unreachable, port, 0, &other_addr, 99);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -EAGAIN);
	CHECK_EQ(harp_udp_error(sock, &remote), -ECONNREFUSED);
	CHECK(remote.port == 99 && memcmp(&remote.addr, &other_addr, 16) == 0);
	CHECK_EQ(harp_udp_error(sock, &remote), 0);
	/* Connected: the socket gets only errors about its peer, and a receive reports each error
	 * once. */
	CHECK_EQ(harp_udp_connect(sock, &peer), 0);
	icmp_error(unreachable, port, 0, &other_addr, 99);
	icmp_error(unreachable, port, 0, &peer_addr, 99);
	CHECK_EQ(harp_udp_error(sock, NULL), 0);
	icmp_error(unreachable, port, 0, &peer_addr, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -ECONNREFUSED);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -EAGAIN);
	icmp_error(unreachable, host, 0, &peer_addr, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_error(sock, NULL), -EHOSTUNREACH);
	icmp_error(unreachable, 0, 0, &peer_addr,
		   RIG_PEER_PORT); /* network unreachable (IPv6: no route) */
	CHECK_EQ(harp_udp_error(sock, NULL), -ENETUNREACH);
	icmp_error(v6 ? 4 : 12, 0, 0, &peer_addr, RIG_PEER_PORT); /* parameter problem */
	CHECK_EQ(harp_udp_error(sock, NULL), -EPROTO);
	/* Packet too big: it only lowers the MTU, not below the minimum MTU, and for ten
	 * minutes. */
	icmp_error(too_big, too_big_code, 1400, &peer_addr, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_error(sock, NULL), -EMSGSIZE);
	CHECK_EQ(harp_udp_payload_max(sock, NULL), 1400 - headers);
	CHECK_EQ(udp_write(sock, NULL, 1400 - headers + 1), -EMSGSIZE);
	icmp_error(too_big, too_big_code, 1450, &peer_addr, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_payload_max(sock, NULL), 1400 - headers);
	icmp_error(too_big, too_big_code, 69, &peer_addr, RIG_PEER_PORT);
	/* IPv6 ignores an MTU below its minimum (RFC 8201 section 4), IPv4 uses the minimum. */
	CHECK_EQ(harp_udp_payload_max(sock, NULL), (v6 ? 1400 : 552) - headers);
	rig->now_ns += 601 * RIG_S;
	rig_poll(rig);
	CHECK_EQ(harp_udp_payload_max(sock, NULL), 1500 - headers);
	/* The path still has the smaller MTU, so a second error arrives. */
	icmp_error(too_big, too_big_code, 1400, &peer_addr, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_payload_max(sock, NULL), 1400 - headers);
	harp_udp_close(sock);
	icmp_error(unreachable, port, 0, &peer_addr, RIG_PEER_PORT); /* no socket */
}

/* The application does not read: the budget limits the queued datagrams, and each drop is
 * counted. */
TEST(the_receive_budget_is_enforced)
{
	struct harp_udp_options opt = { .size = sizeof(opt), .rx_frames = 10 };
	struct harp_udp *sock = udp_socket(RIG_PORT, &opt);
	uint8_t buf[100];
	int got = 0;

	for (uint8_t i = 0; i < 25; i++)
		udp_says((struct udp_say){ .len = 10, .first = i });
	CHECK_EQ(rig_stat(rig, "drop_udp_rx_budget"), 15);
	CHECK_EQ(rig_stat(rig, "frames_udp_rx"), 10);
	while (harp_udp_recv(sock, buf, sizeof(buf), NULL) == 10) {
		CHECK_EQ(buf[0], got); /* the oldest datagrams, in order */
		got++;
	}
	CHECK_EQ(got, 10);
	udp_says((struct udp_say){ .len = 10 });
	CHECK_EQ(rig_stat(rig, "udp_in"), 11);
	harp_udp_close(sock); /* while a datagram is unread */
}

TEST(the_send_budget_is_enforced)
{
	struct harp_udp_options opt = { .size = sizeof(opt), .tx_frames = 8 };
	struct harp_udp *sock = udp_socket(RIG_PORT, &opt);
	struct harp_endpoint peer = udp_peer();
	int count = 0;

	while (udp_write(sock, &peer, 20) == 20)
		count++;
	CHECK_EQ(count, 8);
	rig_poll(rig);
	CHECK_EQ(udp_write(sock, &peer, 20), 20);
	rig_poll(rig);
	CHECK_EQ(rig->out_tail, 9);
	CHECK_EQ(rig_stat(rig, "frames_udp_tx"), 0);
	harp_udp_close(sock);
}

TEST(a_full_nic_delays_datagrams_in_order)
{
	struct harp_udp_options opt = { .size = sizeof(opt), .tx_frames = 400 };
	struct harp_udp *sock = udp_socket(RIG_PORT, &opt);
	struct harp_endpoint peer = udp_peer();
	uint32_t sent = 0, next = 0;
	struct udp_sent s;

	rig->nic_full = true;
	for (; sent < 300; sent++) {
		struct iovec iov = { &sent, sizeof(sent) };

		if (harp_udp_send(sock, &peer, &iov, 1) != sizeof(sent))
			break;
		if (sent % 7 == 0)
			rig_poll(rig);
	}
	CHECK(sent > 100);
	rig->nic_full = false;
	for (int i = 0; i < 50; i++) {
		rig->now_ns += RIG_MS;
		rig_poll(rig);
		for (; udp_take(&s); next++)
			CHECK_MEM(s.l4 + 8, &next, sizeof(next));
	}
	CHECK_EQ(next, sent);
	harp_udp_close(sock);
}

/* While one next hop is unresolved, datagrams to other hosts are sent. After a timeout the socket
 * reports an error. */
TEST(an_unresolved_neighbor_does_not_delay_other_datagrams)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct harp_endpoint peer = udp_peer(), dead = peer, remote;

	CHECK_EQ(harp_addr_parse(v6 ? "fd00::9" : "10.0.0.9", &dead.addr), 0);
	dead.port = 1;
	CHECK_EQ(udp_write(sock, &dead, 4), 4);
	CHECK_EQ(udp_write(sock, &peer, 5), 5);
	rig_poll(rig);
	udp_expect(RIG_PEER_PORT, 5);
	rig_silent(rig);
	/* When it is resolved, the waiting datagrams are sent in order. */
	CHECK_EQ(udp_write(sock, &dead, 6), 6);
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &dead.addr, rig_peer_mac), 0);
	rig_poll(rig);
	udp_expect(1, 4);
	udp_expect(1, 6);
	/* It is never resolved. */
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &dead.addr, NULL), 0);
	CHECK_EQ(udp_write(sock, &dead, 7), 7);
	for (int i = 0; i < 50; i++) {
		rig_poll(rig);
		rig->now_ns += 100 * RIG_MS;
	}
	CHECK_EQ(harp_udp_error(sock, &remote), -EHOSTUNREACH);
	CHECK_MEM(&remote.addr, &dead.addr, 16);
	CHECK_EQ(rig_stat(rig, "drop_udp_unsent"), 1);
	CHECK_EQ(rig_stat(rig, "frames_udp_tx"), 0);
	/* The socket is closed while a datagram waits. */
	CHECK_EQ(udp_write(sock, &dead, 8), 8);
	rig_poll(rig);
	harp_udp_close(sock);
	rig_silent(rig);
}

TEST(addresses_and_ports_are_checked)
{
	struct harp_endpoint endpoint = { .addr = own, .port = RIG_PORT }, local;
	struct harp_udp_options bad = { .size = sizeof(bad), .dscp = 64 };
	struct harp_udp *sock[9], *extra;
	bool is_random = false;

	CHECK_EQ(harp_udp_open(rig->stack, &endpoint, &bad, &extra), -EINVAL);
	CHECK_EQ(harp_udp_open(rig->stack, &endpoint, NULL, &sock[0]), 0);
	CHECK_EQ(harp_udp_open(rig->stack, &endpoint, NULL, &extra), -EADDRINUSE);
	endpoint.addr = (struct harp_addr){ { 0 } };
	CHECK_EQ(harp_udp_open(rig->stack, &endpoint, NULL, &extra), -EADDRINUSE);
	endpoint.addr = peer_addr;
	CHECK_EQ(harp_udp_open(rig->stack, &endpoint, NULL, &extra), -EADDRNOTAVAIL);
	/* Automatic ports are in the range, differ, and are not consecutive (RFC 6056). */
	for (int i = 1; i < 8; i++) {
		sock[i] = udp_socket(0, NULL);
		harp_udp_endpoints(sock[i], &local, NULL);
		CHECK(local.port >= 61000 && local.port != RIG_PORT);
		if (i > 1) {
			struct harp_endpoint previous;

			harp_udp_endpoints(sock[i - 1], &previous, NULL);
			is_random |= local.port != previous.port + 1;
		}
	}
	CHECK(is_random);
	endpoint = (struct harp_endpoint){ .port = 0 };
	CHECK_EQ(harp_udp_open(rig->stack, &endpoint, NULL, &extra), -ENOSPC); /* max_conns is 8 */
	for (int i = 0; i < 8; i++)
		harp_udp_close(sock[i]);
	harp_udp_close(NULL);
}

TEST(two_addresses_share_a_port)
{
	struct harp_endpoint first = { .addr = own, .port = RIG_PORT }, second = first;
	struct harp_udp *a, *b;
	uint8_t buf[10];

	CHECK_EQ(harp_addr_parse(v6 ? "fd00::11" : "10.0.0.11", &second.addr), 0);
	CHECK_EQ(harp_stack_address_add(rig->stack, &second.addr, v6 ? 64 : 24), 0);
	CHECK_EQ(harp_udp_open(rig->stack, &first, NULL, &a), 0);
	CHECK_EQ(harp_udp_open(rig->stack, &second, NULL, &b), 0);
	udp_says((struct udp_say){ .len = 3 });
	own = second.addr;
	udp_says((struct udp_say){ .len = 4 });
	CHECK_EQ(harp_udp_recv(a, buf, sizeof(buf), NULL), 3);
	CHECK_EQ(harp_udp_recv(a, buf, sizeof(buf), NULL), -EAGAIN);
	CHECK_EQ(harp_udp_recv(b, buf, sizeof(buf), NULL), 4);
	harp_udp_close(a);
	udp_says((struct udp_say){ .len = 4 });
	CHECK_EQ(harp_udp_recv(b, buf, sizeof(buf), NULL), 4);
	harp_udp_close(b);
}

TEST(a_removed_address_fails_its_datagrams)
{
	struct harp_udp *sock = udp_socket(RIG_PORT, NULL);
	struct harp_endpoint peer = udp_peer(), remote;

	CHECK_EQ(udp_write(sock, &peer, 5), 5);
	CHECK_EQ(harp_stack_address_remove(rig->stack, &own), 0);
	rig_poll(rig);
	rig_silent(rig);
	CHECK(harp_udp_error(sock, &remote) < 0);
	CHECK_EQ(remote.port, RIG_PEER_PORT);
	CHECK_EQ(rig_stat(rig, "drop_udp_unsent"), 1);
	CHECK_EQ(rig_stat(rig, "frames_udp_tx"), 0);
	CHECK(udp_write(sock, &peer, 5) < 0);
	harp_udp_close(sock);
}

TEST(closing_a_socket_discards_its_unsent_datagrams)
{
	struct harp_udp_options opt = { .size = sizeof(opt), .tx_frames = 8 };
	struct harp_udp *sock = udp_socket(RIG_PORT, &opt);
	struct harp_endpoint peer = udp_peer();

	while (udp_write(sock, &peer, 9) == 9)
		; /* until the budget is used up */
	CHECK_EQ(rig_stat(rig, "frames_udp_tx"), 8);
	harp_udp_close(sock);
	rig_poll(rig);
	rig_silent(rig);
}

int main(void)
{
	for (unsigned family = 0; family < 2; family++) {
		v6 = family;
		check_run();
		if (check_failures)
			fprintf(stderr, "IPv%d\n", v6 ? 6 : 4);
	}
	return check_done();
}
