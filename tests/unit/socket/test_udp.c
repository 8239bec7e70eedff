/* SPDX-License-Identifier: Apache-2.0 */
/* test_udp.c - UDP sockets: what they send, receive, refuse and leave. */
#include <limits.h>

#include "udp_rig.h"

static struct rig the_rig, *const rig = &the_rig;
static bool v6;
BEFORE_EACH(rig_open(rig, v6))
AFTER_EACH(rig_close(rig))

TEST(datagrams_are_received)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct harp_udp_message many[4];
	struct harp_endpoint from;
	uint8_t buf[100], bufs[4][50];

	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), &from), -EAGAIN);
	rig_says(rig, (struct rig_say){ .len = 40, .first = 7 });
	CHECK_EQ(rig_events(rig), HARP_EVENT_READABLE);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), &from), 40);
	CHECK(buf[0] == 7 && buf[39] == 46);
	CHECK_EQ(from.port, RIG_PEER_PORT);
	CHECK_MEM(&from.addr, &rig->peer, sizeof(from.addr));
	/* Cut to the buffer, the real length reported, the rest gone. */
	rig_put(rig, (struct rig_say){ .len = 90, .first = 1 });
	rig_says(rig, (struct rig_say){ .len = 0 });
	memset(buf, 0xaa, sizeof(buf));
	CHECK_EQ(harp_udp_recv(sock, buf, 10, NULL), 90);
	CHECK(buf[9] == 10 && buf[10] == 0xaa);
	CHECK_EQ(harp_udp_recv(sock, buf, 10, NULL), 0); /* a datagram of nothing */
	CHECK_EQ(harp_udp_recv(sock, buf, 10, NULL), -EAGAIN);
	/* Many at once: with the address they came to. */
	for (uint8_t i = 0; i < 3; i++)
		rig_put(rig, (struct rig_say){ .src = i == 1 ? &rig->other : NULL,
					       .src_port = 100u + i,
					       .len = 20u * (i + 1u),
					       .first = i });
	rig_poll(rig);
	for (int i = 0; i < 4; i++)
		many[i] = (struct harp_udp_message){ .data = bufs[i], .size = sizeof(bufs[i]) };
	CHECK_EQ(harp_udp_recv_many(sock, many, 4), 3);
	for (uint8_t i = 0; i < 3; i++) {
		CHECK_EQ(many[i].len, 20 * (i + 1));
		CHECK_EQ(bufs[i][0], i);
		CHECK_EQ(many[i].peer.port, 100 + i);
		CHECK_MEM(&many[i].peer.addr, i == 1 ? &rig->other : &rig->peer, 16);
		CHECK_MEM(&many[i].local.addr, &rig->own, 16);
		CHECK_EQ(many[i].local.port, RIG_PORT);
	}
	CHECK_EQ(harp_udp_recv_many(sock, many, 4), -EAGAIN);
	CHECK_EQ(rig_stat(rig, "udp_in"), 6);
	rig_silent(rig);
	harp_udp_close(sock);
}

TEST(frames_are_received_without_a_copy)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct harp_endpoint from;
	struct harp_frame *frame;

	rig_says(rig, (struct rig_say){ .len = 1400, .first = 3 });
	CHECK_EQ(harp_udp_recv_frames(sock, &frame, 0, NULL), -EMSGSIZE);
	CHECK_EQ(harp_udp_recv_frames(sock, &frame, 1, &from), 1);
	CHECK(frame->len == 1400 && frame->data[1] == 4 && from.port == RIG_PEER_PORT);
	CHECK_EQ(rig_stat(rig, "frames_udp_rx"), 1);
	harp_udp_frame_release(sock, frame);
	CHECK_EQ(rig_stat(rig, "rx_copied_bytes"), 0);
	CHECK_EQ(harp_udp_recv_frames(sock, &frame, 1, &from), -EAGAIN);
	harp_udp_close(sock);
}

TEST(datagrams_are_sent)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct harp_endpoint peer = rig_peer(rig);
	struct harp_udp_message many[3];
	struct harp_udp_info info;
	struct harp_frame *frame;
	const uint8_t *data;
	uint32_t most = 1500 - rig_l3_bytes(rig) - 8;
	uint8_t byte = 9;

	CHECK_EQ(rig_write(sock, NULL, 5), -EDESTADDRREQ);
	CHECK_EQ(harp_udp_payload_max(sock, &peer), most);
	CHECK_EQ(rig_write(sock, &peer, most + 1), -EMSGSIZE);
	CHECK_EQ(rig_write(sock, &peer, most), most);
	CHECK_EQ(rig_write(sock, &peer, 0), 0);
	CHECK_EQ(harp_stack_next_deadline_ns(rig->stack), rig->now_ns);
	rig_poll(rig);
	data = rig_expect(rig, RIG_PEER_PORT, most);
	CHECK(data[0] == 1 && data[100] == (uint8_t)501 &&
	      data[most - 1] == (uint8_t)((most - 1) * 5 + 1));
	rig_expect(rig, RIG_PEER_PORT, 0);
	/* A frame of the stack's: nothing is copied. */
	CHECK_EQ(harp_udp_frame_alloc(sock, &frame), 0);
	frame->len = frame->capacity + 1;
	CHECK_EQ(harp_udp_send_frames(sock, &peer, &frame, 1), -EINVAL);
	frame->len = 33;
	memset(frame->data, 0x5a, 33);
	CHECK_EQ(harp_udp_send_frames(sock, &peer, &frame, 1), 0);
	rig_poll(rig);
	data = rig_expect(rig, RIG_PEER_PORT, 33);
	CHECK(data[0] == 0x5a && data[32] == 0x5a);
	CHECK_EQ(rig_stat(rig, "tx_copied_bytes"), most);
	/* Many: to different peers, from a named address; what can't be is refused where it stands. */
	for (int i = 0; i < 3; i++)
		many[i] = (struct harp_udp_message){ .data = &byte, .size = 1, .peer = peer };
	many[1].peer = (struct harp_endpoint){ .addr = rig->other, .port = 77 };
	many[1].local.addr = rig->own;
	many[2].local.addr = rig->peer;
	CHECK_EQ(harp_udp_send_many(sock, many, 3), 2);
	CHECK_EQ(harp_udp_send_many(sock, many + 2, 1), -EADDRNOTAVAIL);
	rig_poll(rig);
	rig_expect(rig, RIG_PEER_PORT, 1);
	rig_expect(rig, 77, 1);
	CHECK_EQ(harp_udp_info(sock, &info, sizeof(info)), 0);
	CHECK(info.tx_datagrams == 5 && info.tx_bytes == most + 35 && info.tx_frames_held == 0);
	rig_silent(rig);
	harp_udp_close(sock);
}

/* A checksum that comes out as zero is sent as all ones: zero would mean "none". */
TEST(a_zero_checksum_is_sent_as_ones)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct harp_endpoint peer = rig_peer(rig);
	uint8_t payload[2] = { 0, 0 };
	struct iovec iov = { payload, 2 };
	struct rig_sent sent = { 0 };

	CHECK_EQ(harp_udp_send(sock, &peer, &iov, 1), 2);
	rig_poll(rig);
	CHECK(rig_take(rig, &sent));
	memcpy(payload, sent.l4 + 6, 2); /* the complement of the sum: added to it, all ones */
	CHECK_EQ(harp_udp_send(sock, &peer, &iov, 1), 2);
	rig_poll(rig);
	CHECK(rig_take(rig, &sent));
	CHECK_EQ(be16_load(sent.l4 + 6), 0xffff);
	harp_udp_close(sock);
}

TEST(invalid_datagrams_are_dropped)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct rig_packet *p;
	uint8_t buf[2000];

	/* The length field: less than a header, more than there is, zero. */
	rig_says(rig, (struct rig_say){ .len = 10, .length_field_more = -11 });
	rig_says(rig, (struct rig_say){ .len = 10, .length_field_more = 1 });
	rig_says(rig, (struct rig_say){ .len = 10, .length_field_more = -18 });
	CHECK_EQ(rig_stat(rig, "drop_udp_short"), 3);
	/* Less than IP's: what lies behind is cut off, and the checksum is of the shorter one. */
	rig_says(rig, (struct rig_say){ .len = 10, .trailing = 30, .first = 1 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 10);
	rig_says(rig, (struct rig_say){ .len = 10, .length_field_more = -4, .first = 1 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 6);
	/* A header cut short. */
	for (uint32_t len = 0; len < 8; len++) {
		p = &rig->in[rig->in_tail++ % RIG_QUEUE];
		memset(p->bytes, 0, sizeof(p->bytes));
		rig_wrap(rig, p, &rig->peer, IP_PROTO_UDP, len);
		rig_poll(rig);
	}
	CHECK_EQ(rig_stat(rig, "drop_udp_short"), 11);
	rig_says(rig, (struct rig_say){ .len = 10, .bad_checksum = true });
	CHECK_EQ(rig_stat(rig, "drop_udp_checksum"), 1);
	/* No checksum: IPv4 allows it, IPv6 does not. */
	rig_says(rig, (struct rig_say){ .len = 10, .zero_checksum = true });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), rig->v6 ? -EAGAIN : 10);
	CHECK_EQ(rig_stat(rig, "drop_udp_checksum"), rig->v6 ? 2 : 1);
	/* Sources that can't be answered. */
	{
		static const char *const bad[2][5] = {
			{ "255.255.255.255", "224.0.0.1", "10.0.0.255", "127.0.0.1", "0.0.0.0" },
			{ "ff02::1", "ff05::2", "::1", "::", "fd00::1" },
		};
		struct harp_addr src;

		for (int i = 0; i < 5; i++) {
			CHECK_EQ(harp_addr_parse(bad[rig->v6][i], &src), 0);
			rig_says(rig, (struct rig_say){ .src = &src, .len = 10 });
		}
		CHECK_EQ(rig_stat(rig, "drop_ip_source"), 5);
	}
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -EAGAIN);
	rig_silent(rig);
	harp_udp_close(sock);
}

/* Nobody has the port: an ICMP error that quotes the packet, 50 at once and 1000 a second. */
TEST(a_closed_port_is_answered_with_an_icmp_error)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct rig_sent sent = { 0 };

	rig_says(rig, (struct rig_say){ .dst_port = 9, .len = 1400 });
	CHECK_EQ(rig_stat(rig, "drop_udp_no_port"), 1);
	CHECK(rig_take(rig, &sent));
	CHECK_EQ(sent.proto, rig->v6 ? 58 : IP_PROTO_ICMP);
	CHECK_EQ(sent.l4[0], rig->v6 ? 1 : 3);
	CHECK_EQ(sent.l4[1], rig->v6 ? 4 : 3);
	CHECK_EQ(sent.l4_len + rig_l3_bytes(rig), rig->v6 ? 1280 : 576);
	CHECK_EQ(csum_finish(csum_partial(
			 sent.l4, sent.l4_len,
			 rig->v6 ? ip_pseudo_sum(&rig->own, &rig->peer, 58, sent.l4_len) : 0)),
		 0);
	CHECK_MEM(sent.l4 + 8, rig->in[(rig->in_head - 1) % RIG_QUEUE].bytes + 14, sent.l4_len - 8);
	/* Broken ones are not answered at all. */
	rig_says(rig, (struct rig_say){ .dst_port = 9, .len = 10, .bad_checksum = true });
	rig_silent(rig);
	harp_udp_close(sock);
}

/* What is left of the bucket does not tell how much others took of it: after as long a pause the burst is of
 * another length each time. On average it is what the limit says. */
TEST(icmp_errors_are_rate_limited_unpredictably)
{
	unsigned least = UINT_MAX, most = 0, all = 0;
	struct rig_sent sent;

	for (unsigned burst = 0; burst < 40; burst++) {
		unsigned count = 0;

		for (unsigned i = 0; i < 200; i++)
			rig_says(rig, (struct rig_say){ .dst_port = 9, .len = 10 });
		while (rig_take(rig, &sent))
			count++;
		least = count < least ? count : least;
		most = count > most ? count : most;
		all += count;
		rig->now_ns += 50 * RIG_MS;
	}
	CHECK(least >= 25 && most > least + 4);
	CHECK(all >= 40 * 45 && all <= 40 * 55);
	CHECK_EQ(rig_stat(rig, "icmp_unreachable_out"), all);
}

TEST(a_connected_socket_hears_its_peer_only)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct harp_endpoint peer = rig_peer(rig), local, remote;
	struct rig_sent sent;
	uint8_t buf[100];

	/* Others' datagrams that wait when it is connected are dropped, the peer's stay. */
	rig_put(rig, (struct rig_say){ .src = &rig->other, .len = 11 });
	rig_put(rig, (struct rig_say){ .len = 12 });
	rig_put(rig, (struct rig_say){ .src_port = 8, .len = 13 });
	rig_poll(rig);
	CHECK_EQ(harp_udp_connect(sock, &peer), 0);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 12);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -EAGAIN);
	harp_udp_endpoints(sock, &local, &remote);
	CHECK_MEM(&local.addr, &rig->own, 16);
	CHECK_MEM(&remote, &peer, sizeof(peer));
	CHECK_EQ(rig_write(sock, &peer, 5), -EISCONN);
	CHECK_EQ(rig_write(sock, NULL, 5), 5);
	rig_poll(rig);
	rig_expect(rig, RIG_PEER_PORT, 5);
	/* From here datagrams of others have no socket. */
	rig_says(rig, (struct rig_say){ .src = &rig->other, .len = 11 });
	CHECK(rig_take(rig, &sent) && sent.proto != IP_PROTO_UDP);
	rig_says(rig, (struct rig_say){ .len = 12 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 12);
	/* And as before. */
	CHECK_EQ(harp_udp_connect(sock, NULL), 0);
	rig_says(rig, (struct rig_say){ .src = &rig->other, .len = 11 });
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), 11);
	harp_udp_close(sock);
}

/* An ICMP error that quotes a datagram of ours to (peer, port). */
static void icmp_error(uint8_t type, uint8_t code, uint32_t mtu_bytes, const struct harp_addr *to,
		       uint16_t to_port)
{
	struct rig_packet *p = &rig->in[rig->in_tail++ % RIG_QUEUE];
	uint8_t *h = rig_l4(rig, p), *quote = h + 8, *uh = quote + rig_l3_bytes(rig);
	uint32_t len = 8 + rig_l3_bytes(rig) + 8;
	uint16_t sum;

	memset(p->bytes, 0, sizeof(p->bytes));
	h[0] = type;
	h[1] = code;
	be32_store(h + 4, mtu_bytes);
	if (rig->v6) {
		quote[0] = 0x60;
		be16_store(quote + 4, 8);
		quote[6] = IP_PROTO_UDP;
		memcpy(quote + 8, rig->own.bytes, 16);
		memcpy(quote + 24, to->bytes, 16);
	} else {
		quote[0] = 0x45;
		be16_store(quote + 2, 28);
		quote[9] = IP_PROTO_UDP;
		memcpy(quote + 12, rig->own.bytes + 12, 4);
		memcpy(quote + 16, to->bytes + 12, 4);
	}
	be16_store(uh, RIG_PORT);
	be16_store(uh + 2, to_port);
	be16_store(uh + 4, 8);
	sum = csum_finish(
		csum_partial(h, len, rig->v6 ? ip_pseudo_sum(&rig->other, &rig->own, 58, len) : 0));
	memcpy(h + 2, &sum, 2);
	rig_wrap(rig, p, &rig->other, rig->v6 ? 58 : IP_PROTO_ICMP, len);
	rig_poll(rig);
}

TEST(icmp_errors_reach_their_socket)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct harp_endpoint peer = rig_peer(rig), about;
	uint8_t unreachable = rig->v6 ? 1 : 3, port = rig->v6 ? 4 : 3, host = rig->v6 ? 3 : 1;
	uint8_t too_big = rig->v6 ? 2 : 3, too_big_code = rig->v6 ? 0 : 4;
	uint32_t headers = rig_l3_bytes(rig) + 8;
	uint8_t buf[8];

	/* Unconnected: the error names the destination. */
	icmp_error(unreachable, port, 0, &rig->other, 99);
	CHECK_EQ(rig_events(rig), HARP_EVENT_ERROR);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -EAGAIN);
	CHECK_EQ(harp_udp_error(sock, &about), -ECONNREFUSED);
	CHECK(about.port == 99 && memcmp(&about.addr, &rig->other, 16) == 0);
	CHECK_EQ(harp_udp_error(sock, &about), 0);
	/* Connected: only errors of its peer; an empty receive reports one once. */
	CHECK_EQ(harp_udp_connect(sock, &peer), 0);
	icmp_error(unreachable, port, 0, &rig->other, 99);
	icmp_error(unreachable, port, 0, &rig->peer, 99);
	CHECK_EQ(rig_events(rig), 0);
	icmp_error(unreachable, port, 0, &rig->peer, RIG_PEER_PORT);
	CHECK_EQ(rig_events(rig), HARP_EVENT_ERROR);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -ECONNREFUSED);
	CHECK_EQ(harp_udp_recv(sock, buf, sizeof(buf), NULL), -EAGAIN);
	icmp_error(unreachable, host, 0, &rig->peer, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_error(sock, NULL), -EHOSTUNREACH);
	icmp_error(unreachable, 0, 0, &rig->peer, RIG_PEER_PORT); /* net; no route */
	CHECK_EQ(harp_udp_error(sock, NULL), -ENETUNREACH);
	icmp_error(rig->v6 ? 4 : 12, 0, 0, &rig->peer, RIG_PEER_PORT); /* parameter problem */
	CHECK_EQ(harp_udp_error(sock, NULL), -EPROTO);
	/* Too big: believed downwards, not below what links have, and for ten minutes. */
	icmp_error(too_big, too_big_code, 1400, &rig->peer, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_error(sock, NULL), -EMSGSIZE);
	CHECK_EQ(harp_udp_payload_max(sock, NULL), 1400 - headers);
	CHECK_EQ(rig_write(sock, NULL, 1400 - headers + 1), -EMSGSIZE);
	icmp_error(too_big, too_big_code, 1450, &rig->peer, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_payload_max(sock, NULL), 1400 - headers);
	icmp_error(too_big, too_big_code, 69, &rig->peer, RIG_PEER_PORT);
	/* A lie: IPv6 discards it (RFC 8201 section 4), IPv4 takes its least. */
	CHECK_EQ(harp_udp_payload_max(sock, NULL), (rig->v6 ? 1400 : 552) - headers);
	rig->now_ns += 601 * RIG_S;
	rig_poll(rig);
	CHECK_EQ(harp_udp_payload_max(sock, NULL), 1500 - headers);
	/* And once more, as the path is what it was. */
	icmp_error(too_big, too_big_code, 1400, &rig->peer, RIG_PEER_PORT);
	CHECK_EQ(harp_udp_payload_max(sock, NULL), 1400 - headers);
	harp_udp_close(sock);
	icmp_error(unreachable, port, 0, &rig->peer, RIG_PEER_PORT);
	CHECK_EQ(rig_events(rig), 0);
}

/* Nobody takes what arrives: the budget bounds it, and every datagram beyond is counted. */
TEST(the_receive_budget_is_enforced)
{
	struct harp_udp_options opt = { .size = sizeof(opt), .rx_frames = 10 };
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, &opt);
	struct harp_udp_info info;
	struct harp_frame *held;
	uint8_t buf[100];
	int got = 0;

	for (uint8_t i = 0; i < 25; i++)
		rig_says(rig, (struct rig_say){ .len = 10, .first = i });
	CHECK_EQ(harp_udp_info(sock, &info, sizeof(info)), 0);
	CHECK(info.rx_datagrams == 10 && info.rx_dropped == 15 && info.rx_frames_held == 10);
	CHECK_EQ(rig_stat(rig, "drop_udp_rx_budget"), 15);
	/* A lent frame counts until it is back. */
	CHECK_EQ(harp_udp_recv_frames(sock, &held, 1, NULL), 1);
	rig_says(rig, (struct rig_say){ .len = 10 });
	CHECK_EQ(rig_stat(rig, "drop_udp_rx_budget"), 16);
	harp_udp_frame_release(sock, held);
	while (harp_udp_recv(sock, buf, sizeof(buf), NULL) == 10) {
		got++;
		CHECK_EQ(buf[0], got); /* the oldest ones, in order */
	}
	CHECK_EQ(got, 9);
	rig_says(rig, (struct rig_say){ .len = 10 });
	CHECK_EQ(rig_stat(rig, "udp_in"), 11);
	harp_udp_close(sock); /* with one unread */
}

TEST(the_send_budget_is_enforced)
{
	struct harp_udp_options opt = { .size = sizeof(opt), .tx_frames = 8 };
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, &opt);
	struct harp_endpoint peer = rig_peer(rig);
	struct harp_frame *frame;
	int taken = 0;

	CHECK_EQ(harp_udp_frame_alloc(sock, &frame), 0); /* lent ones count */
	while (rig_write(sock, &peer, 20) == 20)
		taken++;
	CHECK_EQ(taken, 7);
	CHECK_EQ(rig_events(rig), 0);
	rig_poll(rig);
	CHECK_EQ(rig_events(rig), HARP_EVENT_WRITABLE);
	CHECK_EQ(rig->out_tail, 7);
	harp_udp_frame_release(sock, frame);
	CHECK_EQ(rig_stat(rig, "frames_udp_tx"), 0);
	harp_udp_close(sock);
}

/* A NIC that takes nothing: datagrams wait in order, and nothing is lost when it takes them again. */
TEST(a_full_nic_delays_datagrams_in_order)
{
	struct harp_udp_options opt = { .size = sizeof(opt), .tx_frames = 400 };
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, &opt);
	struct harp_endpoint peer = rig_peer(rig);
	uint32_t sent = 0, seen = 0;
	struct rig_sent s;

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
		for (; rig_take(rig, &s); seen++)
			CHECK_MEM(s.l4 + 8, &seen, sizeof(seen));
	}
	CHECK_EQ(seen, sent);
	harp_udp_close(sock);
}

/* A next hop that does not exist: other datagrams are sent meanwhile, it is given up in time, and reported. */
TEST(an_unresolved_neighbor_delays_no_other)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct harp_endpoint peer = rig_peer(rig), dead = peer, about;

	CHECK_EQ(harp_addr_parse(rig->v6 ? "fd00::9" : "10.0.0.9", &dead.addr), 0);
	dead.port = 1;
	CHECK_EQ(rig_write(sock, &dead, 4), 4);
	CHECK_EQ(rig_write(sock, &peer, 5), 5);
	rig_poll(rig);
	rig_expect(rig, RIG_PEER_PORT, 5);
	rig_silent(rig);
	/* It becomes known: what waited goes, before what came later. */
	CHECK_EQ(rig_write(sock, &dead, 6), 6);
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &dead.addr, rig_peer_mac), 0);
	rig_poll(rig);
	rig_expect(rig, 1, 4);
	rig_expect(rig, 1, 6);
	/* It never does. */
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &dead.addr, NULL), 0);
	CHECK_EQ(rig_write(sock, &dead, 7), 7);
	for (int i = 0; i < 50; i++) {
		rig_poll(rig);
		rig->now_ns += 100 * RIG_MS;
	}
	CHECK_EQ(rig_events(rig), HARP_EVENT_ERROR);
	CHECK_EQ(harp_udp_error(sock, &about), -EHOSTUNREACH);
	CHECK_MEM(&about.addr, &dead.addr, 16);
	CHECK_EQ(rig_stat(rig, "drop_udp_unsent"), 1);
	CHECK_EQ(rig_stat(rig, "frames_udp_tx"), 0);
	/* Closed while one waits. */
	CHECK_EQ(rig_write(sock, &dead, 8), 8);
	rig_poll(rig);
	harp_udp_close(sock);
	rig_silent(rig);
}

TEST(addresses_and_ports_are_checked)
{
	struct harp_endpoint at = { .addr = rig->own, .port = RIG_PORT }, local;
	struct harp_udp_options bad = { .size = sizeof(bad), .dscp = 64 };
	struct harp_udp *sock[9], *more;
	bool differ = false;

	CHECK_EQ(harp_udp_open(rig->stack, &at, &bad, &more), -EINVAL);
	CHECK_EQ(harp_udp_open(rig->stack, &at, NULL, &sock[0]), 0);
	CHECK_EQ(harp_udp_open(rig->stack, &at, NULL, &more), -EADDRINUSE);
	at.addr = (struct harp_addr){ { 0 } };
	CHECK_EQ(harp_udp_open(rig->stack, &at, NULL, &more), -EADDRINUSE);
	at.addr = rig->peer;
	CHECK_EQ(harp_udp_open(rig->stack, &at, NULL, &more), -EADDRNOTAVAIL);
	/* Automatic ports: in the range, different, and not one after the other (RFC 6056). */
	for (int i = 1; i < 8; i++) {
		sock[i] = rig_socket(rig, 0, NULL);
		harp_udp_endpoints(sock[i], &local, NULL);
		CHECK(local.port >= 61000 && local.port != RIG_PORT);
		if (i > 1) {
			struct harp_endpoint before;

			harp_udp_endpoints(sock[i - 1], &before, NULL);
			differ |= local.port != before.port + 1;
		}
	}
	CHECK(differ);
	at = (struct harp_endpoint){ .port = 0 };
	CHECK_EQ(harp_udp_open(rig->stack, &at, NULL, &more), -ENOSPC); /* max_conns is 8 */
	for (int i = 0; i < 8; i++)
		harp_udp_close(sock[i]);
	harp_udp_close(NULL);
}

/* Two addresses, a socket each on the same port: each receives its own. */
TEST(two_addresses_share_a_port)
{
	struct harp_endpoint first = { .addr = rig->own, .port = RIG_PORT }, second = first;
	struct harp_udp *a, *b;
	uint8_t buf[10];

	CHECK_EQ(harp_addr_parse(rig->v6 ? "fd00::11" : "10.0.0.11", &second.addr), 0);
	CHECK_EQ(harp_stack_address_add(rig->stack, &second.addr, rig->v6 ? 64 : 24), 0);
	CHECK_EQ(harp_udp_open(rig->stack, &first, NULL, &a), 0);
	CHECK_EQ(harp_udp_open(rig->stack, &second, NULL, &b), 0);
	rig_says(rig, (struct rig_say){ .len = 3 });
	rig->own = second.addr;
	rig_says(rig, (struct rig_say){ .len = 4 });
	CHECK_EQ(harp_udp_recv(a, buf, sizeof(buf), NULL), 3);
	CHECK_EQ(harp_udp_recv(a, buf, sizeof(buf), NULL), -EAGAIN);
	CHECK_EQ(harp_udp_recv(b, buf, sizeof(buf), NULL), 4);
	harp_udp_close(a);
	rig_says(rig, (struct rig_say){ .len = 4 });
	CHECK_EQ(harp_udp_recv(b, buf, sizeof(buf), NULL), 4);
	harp_udp_close(b);
}

/* Datagrams that are queued fail when their source address is removed. */
TEST(a_removed_address_fails_its_datagrams)
{
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, NULL);
	struct harp_endpoint peer = rig_peer(rig), about;

	CHECK_EQ(rig_write(sock, &peer, 5), 5);
	CHECK_EQ(harp_stack_address_remove(rig->stack, &rig->own), 0);
	rig_poll(rig);
	rig_silent(rig);
	CHECK_EQ(rig_events(rig), HARP_EVENT_ERROR);
	CHECK(harp_udp_error(sock, &about) < 0);
	CHECK_EQ(about.port, RIG_PEER_PORT);
	CHECK_EQ(rig_stat(rig, "drop_udp_unsent"), 1);
	CHECK_EQ(rig_stat(rig, "frames_udp_tx"), 0);
	CHECK(rig_write(sock, &peer, 5) < 0);
	harp_udp_close(sock);
}

/* Closed with datagrams that have not left yet: they never do. */
TEST(unsent_datagrams_end_with_their_socket)
{
	struct harp_udp_options opt = { .size = sizeof(opt), .tx_frames = 8 };
	struct harp_udp *sock = rig_socket(rig, RIG_PORT, &opt);
	struct harp_endpoint peer = rig_peer(rig);
	struct {
		struct harp_udp_info known;
		uint64_t newer[2];
	} info;

	harp_udp_set_user(sock, rig);
	CHECK(harp_udp_user(sock) == rig);
	while (rig_write(sock, &peer, 9) == 9)
		; /* and wants to write more */
	memset(&info, 0xee, sizeof(info));
	CHECK_EQ(harp_udp_info(sock, &info.known, sizeof(info)), 0);
	CHECK_EQ(info.known.tx_frames_held, 8);
	CHECK(info.newer[0] == 0 && info.newer[1] == 0);
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
