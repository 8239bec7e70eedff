/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig.h - a test rig: one stack on a callback NIC, with the test as its peer.
 *
 * A packet that the test queues arrives at the next poll. Packets that the stack sends are queued
 * too: as parsed TCP segments for rig_expect(), or as bytes in a raw rig. Functions such as
 * rig_established() act as the peer until the connection is in that state, and empty the queue.
 */
#ifndef HARP_TESTS_RIG_H
#define HARP_TESTS_RIG_H

#include <errno.h>
#include <stdlib.h>

#include "base/checksum.h"
#include "base/util.h"
#include "check.h"
#include "packet.h"
#include "stack/stack.h"

#define RIG_QUEUE 512u
#define RIG_PACKET_MAX 2000u
#define RIG_RAW_MAX 10000u /* a jumbo packet */
#define RIG_MS 1000000ull
#define RIG_S 1000000000ull
#define RIG_PORT 61000u /* the stack's port when it listens */
#define RIG_PEER_PORT 5000u
#define RIG_PEER_ISS 70000u
#define RIG_PEER_WND 60000u /* unscaled */

static const uint8_t rig_mac[6] = { 2, 0, 0, 0, 0, 1 }, rig_peer_mac[6] = { 2, 0, 0, 0, 0, 2 };

/* A segment that the stack sent. */
struct rig_seg {
	uint32_t seq, ack, wnd, len;
	uint16_t src_port, dst_port;
	uint8_t flags;
	uint8_t tos;
	struct tcp_options opt;
	uint8_t payload[RIG_PACKET_MAX];
};

struct rig {
	struct harp_nic *nic;
	struct harp_stack *stack;
	struct harp_listener *listener;
	struct harp_conn *conn;
	uint64_t now_ns;
	struct harp_addr own, peer;
	uint32_t seq, ack; /* SND.NXT and RCV.NXT of the peer */
	bool timestamps, wscale, sack;
	uint32_t tsval, tsecr; /* the peer's next TSval, and the TSecr that it echoes */
	uint16_t port, peer_port;
	uint32_t timers; /* number of timers without connections */
	bool raw, nic_full;
	unsigned in_head, in_tail, out_head, out_tail;
	struct rig_packet {
		uint32_t len;
		uint8_t bytes[RIG_RAW_MAX];
	} in[RIG_QUEUE];
	union {
		struct rig_seg out[RIG_QUEUE];
		struct rig_packet sent[RIG_QUEUE]; /* in a raw rig */
	};
};

/* Frame size of the NIC; 0: every packet fits in one frame. */
static uint32_t rig_frame_bytes;
static uint32_t rig_frame_count = 512; /* few, so that tests reach the limits of the pool */

static inline size_t rig_receive(void *ctx, void *buf, size_t cap)
{
	struct rig *rig = ctx;
	struct rig_packet *p;

	if (rig->in_head == rig->in_tail)
		return 0;
	p = &rig->in[rig->in_head++ % RIG_QUEUE];
	CHECK(p->len <= cap);
	memcpy(buf, p->bytes, p->len);
	return p->len;
}

static inline int rig_send(void *ctx, const void *frame, size_t len)
{
	struct rig *rig = ctx;
	const uint8_t *ip = (const uint8_t *)frame + 14, *th = ip + 20;
	uint32_t tcp_len = be16_load(ip + 2) - 20u, header;
	struct harp_addr src = harp_addr_v4(10, 0, 0, 1);
	struct harp_addr dst = harp_addr_v4(ip[16], ip[17], ip[18], ip[19]);
	struct rig_seg *s;

	if (rig->nic_full)
		return -EAGAIN;
	if (rig->raw) {
		struct rig_packet *p = &rig->sent[rig->out_tail++ % RIG_QUEUE];

		CHECK(len <= RIG_RAW_MAX && rig->out_tail - rig->out_head <= RIG_QUEUE);
		p->len = (uint32_t)len;
		memcpy(p->bytes, frame, len);
		return 0;
	}
	CHECK(len >= 54 && ip[9] == IP_PROTO_TCP && tcp_len + 34 <= len);
	CHECK_EQ(csum_finish(csum_partial(ip, 20, 0)), 0);
	CHECK_EQ(csum_finish(csum_partial(th, tcp_len,
					  ip_pseudo_sum(&src, &dst, IP_PROTO_TCP, tcp_len))),
		 0);
	header = th[12] / 16 * 4u;
	s = &rig->out[rig->out_tail++ % RIG_QUEUE];
	*s = (struct rig_seg){ .src_port = be16_load(th),
			       .dst_port = be16_load(th + 2),
			       .seq = be32_load(th + 4),
			       .ack = be32_load(th + 8),
			       .flags = th[13],
			       .tos = ip[1],
			       .wnd = be16_load(th + 14),
			       .len = tcp_len - header };
	CHECK(tcp_options_parse(th + 20, header - 20, &s->opt));
	memcpy(s->payload, th + header, s->len);
	return 0;
}

struct rig_setup {
	uint32_t max_conns, max_neighbors, mtu_bytes, frame_bytes, frame_count, neighbor_mode;
	bool raw;
};

/* Creates a stack without addresses. */
static inline void rig_open_bare(struct rig *rig, struct rig_setup setup)
{
	struct harp_nic_callbacks nic = { .size = sizeof(nic),
					  .mtu_bytes = setup.mtu_bytes,
					  .mac = { 2, 0, 0, 0, 0, 1 },
					  .ctx = rig,
					  .receive = rig_receive,
					  .send = rig_send,
					  .frame_size = setup.frame_bytes,
					  .frame_count = setup.frame_count };
	struct harp_stack_options options = { .size = sizeof(options),
					      .max_conns = setup.max_conns,
					      .max_neighbors = setup.max_neighbors,
					      .seed = 1,
					      .neighbor_mode = setup.neighbor_mode };

	memset(rig, 0, offsetof(struct rig, in));
	rig->raw = setup.raw;
	rig->now_ns = options.now_ns = 10 * RIG_S;
	rig->own = harp_addr_v4(10, 0, 0, 1);
	rig->peer = harp_addr_v4(10, 0, 0, 2);
	rig->peer_port = RIG_PEER_PORT;
	rig->seq = RIG_PEER_ISS;
	rig->tsval = 1000;
	rig->timestamps = rig->wscale = true;
	CHECK_EQ(harp_nic_callback_create(&rig->nic, &nic), 0);
	CHECK_EQ(harp_stack_create(&rig->stack, rig->nic, &options), 0);
	rig->timers = rig->stack->wheel.count;
}

static inline void rig_open_conns(struct rig *rig, uint32_t max_conns)
{
	rig_open_bare(rig, (struct rig_setup){ .max_conns = max_conns,
					       .frame_bytes = rig_frame_bytes,
					       .frame_count = rig_frame_count,
					       .neighbor_mode = HARP_NEIGHBOR_EXTERNAL });
	CHECK_EQ(harp_stack_address_add(rig->stack, &rig->own, 24), 0);
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &rig->peer, rig_peer_mac), 0);
}

static inline void rig_open(struct rig *rig)
{
	rig_open_conns(rig, 8);
}

static inline uint64_t rig_stat(const struct rig *rig, const char *name)
{
	uint64_t value = 0;

	CHECK_EQ(harp_stack_stat(rig->stack, name, &value), 0);
	return value;
}

static inline void rig_poll(struct rig *rig)
{
	harp_stack_poll(rig->stack, rig->now_ns);
}

/* Advances the clock and polls at each deadline. */
static inline void rig_wait(struct rig *rig, uint64_t ns)
{
	uint64_t until_ns = rig->now_ns + ns;

	for (;;) {
		uint64_t next_ns = harp_stack_next_deadline_ns(rig->stack);

		if (next_ns > until_ns)
			break;
		rig->now_ns = next_ns > rig->now_ns ? next_ns : rig->now_ns;
		rig_poll(rig);
	}
	rig->now_ns = until_ns;
	rig_poll(rig);
}

/* Checks that no connection, socket, frame, timer, flow or port is left. */
static inline void rig_check_empty(const struct rig *rig)
{
	static const char *const counts[] = { "tcp_conns",   "frames_tcp_tx", "frames_tcp_rx",
					      "udp_sockets", "frames_udp_tx", "frames_udp_rx" };
	const struct tcp *tcp = &rig->stack->tcp;
	const struct udp *udp = &rig->stack->udp;
	uint32_t ports = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(counts); i++)
		CHECK_EQ(rig_stat(rig, counts[i]), 0);
	CHECK_EQ(rig->stack->pool.free_count + rig->stack->io.fill_held + rig->stack->io.tx_held,
		 rig->stack->pool.frame_count);
	if (rig->stack->options.neighbor_mode == HARP_NEIGHBOR_EXTERNAL)
		CHECK_EQ(rig->stack->wheel.count, rig->timers);
	CHECK_EQ(tcp->flows.count, 0);
	CHECK_EQ(tcp->embryonic_count, 0);
	for (uint32_t port = 0; port < 65536; port++)
		ports += tcp->ports.users[port] + udp->ports.users[port] + udp->by_port[port];
	CHECK_EQ(ports, 0);
	CHECK(TAILQ_EMPTY(&tcp->tx_ready) && TAILQ_EMPTY(&tcp->tx_blocked) &&
	      TAILQ_EMPTY(&tcp->tx_unresolved) && TAILQ_EMPTY(&tcp->ack_list) &&
	      TAILQ_EMPTY(&tcp->events) && TAILQ_EMPTY(&tcp->pool_waiters) &&
	      TAILQ_EMPTY(&tcp->time_wait));
}

/* Ends the connections, checks that nothing is left, and destroys the stack. */
static inline void rig_close(struct rig *rig)
{
	if (!rig->stack)
		return;
	if (rig->conn)
		harp_conn_abort(rig->conn);
	if (rig->listener)
		harp_listener_close(rig->listener);
	rig->nic_full = false;
	rig_poll(rig);
	rig_wait(rig, 200 * RIG_S); /* timers end the closed connections */
	rig_check_empty(rig);
	harp_stack_destroy(rig->stack);
	harp_nic_destroy(rig->nic);
	rig->stack = NULL;
}

/* ---- TCP ------------------------------------------------------------------------------------- */

/* A segment that the peer sends. */
struct rig_say {
	uint8_t flags;
	uint8_t tos;
	uint32_t seq, ack;
	uint32_t wnd;
	uint32_t len; /* payload, filled with rig_byte() */
	uint8_t options[40];
	uint32_t options_len;
	bool raw_options; /* no timestamp is added */
	bool bad_checksum;
	uint8_t salt; /* XORed into the payload */
	uint16_t peer_port;
	uint32_t peer_v4; /* source IPv4 address; 0: rig.peer */
	uint32_t sack_count;
	struct tcp_sack_block sack[TCP_SACK_BLOCKS_MAX];
};

static inline uint8_t rig_byte(uint32_t seq)
{
	return (uint8_t)(seq * 7 + (seq >> 8));
}

/* Checks that these are the peer's payload bytes from seq on. */
static inline void rig_check_bytes(const uint8_t *bytes, uint32_t len, uint32_t seq)
{
	for (uint32_t i = 0; i < len; i++)
		CHECK_EQ(bytes[i], rig_byte(seq + i));
}

static inline void rig_put(struct rig *rig, struct rig_say say)
{
	struct rig_packet *p = &rig->in[rig->in_tail++ % RIG_QUEUE];
	struct harp_addr src = rig->peer;
	uint8_t *ip = p->bytes + 14, *th = ip + packet_ip_bytes(&src);
	uint32_t tcp_len;

	if (say.peer_v4)
		be32_store(src.bytes + 12, say.peer_v4);

	if (rig->timestamps && !say.raw_options && !(say.flags & TCP_SYN)) {
		tcp_options_write_timestamp(say.options, rig->tsval, rig->tsecr);
		say.options_len = 12;
	}
	if (say.sack_count > 0) {
		struct tcp_options opt = { .sack_count = say.sack_count };

		memcpy(opt.sack, say.sack, sizeof(opt.sack));
		say.options_len += tcp_options_write_sack(say.options + say.options_len, &opt);
	}
	tcp_len = 20 + say.options_len + say.len;
	memset(p->bytes, 0, RIG_PACKET_MAX);
	packet_headers(p->bytes, rig_mac, rig_peer_mac, &src, &rig->own, IP_PROTO_TCP, tcp_len);
	if (harp_addr_is_v4(&src)) {
		ip[1] = say.tos;
		packet_ipv4_seal(ip);
	} else {
		be16_store(ip, (uint16_t)(0x6000 | say.tos << 4));
	}
	be16_store(th, say.peer_port);
	be16_store(th + 2, rig->port);
	be32_store(th + 4, say.seq);
	be32_store(th + 8, say.ack);
	th[12] = (uint8_t)((20 + say.options_len) / 4 << 4);
	th[13] = say.flags;
	be16_store(th + 14, (uint16_t)say.wnd);
	memcpy(th + 20, say.options, say.options_len);
	for (uint32_t i = 0; i < say.len; i++)
		th[20 + say.options_len + i] = rig_byte(say.seq + i) ^ say.salt;
	packet_seal(th, 16, tcp_len, &src, &rig->own, IP_PROTO_TCP);
	th[16] = (uint8_t)(th[16] ^ say.bad_checksum);
	p->len = (uint32_t)(th - p->bytes) + tcp_len;
}

/* The peer sends the segment, and the stack polls once. */
static inline void rig_says(struct rig *rig, struct rig_say say)
{
	rig_put(rig, say);
	rig_poll(rig);
}

/* A segment at the peer's SND.NXT that acknowledges everything. */
static inline struct rig_say rig_usual(struct rig *rig, uint8_t flags, uint32_t len)
{
	return (struct rig_say){ .flags = flags,
				 .peer_port = rig->peer_port,
				 .seq = rig->seq,
				 .ack = rig->ack,
				 .wnd = RIG_PEER_WND,
				 .len = len };
}

/* The peer sends a segment at an offset from its SND.NXT. */
static inline void rig_says_at(struct rig *rig, uint8_t flags, uint32_t offset, uint32_t len)
{
	struct rig_say say = rig_usual(rig, flags, len);

	say.seq += offset;
	rig_says(rig, say);
}

/* The peer acknowledges this many more bytes. */
static inline void rig_acks(struct rig *rig, uint32_t bytes)
{
	rig->ack += bytes;
	rig_says(rig, rig_usual(rig, TCP_ACK, 0));
}

/* The peer sends its next bytes in order, and FIN if the flags include it. */
static inline void rig_sends(struct rig *rig, uint8_t flags, uint32_t len)
{
	rig_says(rig, rig_usual(rig, flags, len));
	rig->seq += len + (flags & TCP_FIN ? 1 : 0);
}

/* Takes the stack's next segment. Without one, the check fails and the segment is empty. */
static inline const struct rig_seg *rig_expect(struct rig *rig, uint8_t flags)
{
	static const struct rig_seg empty;
	const struct rig_seg *s;

	CHECK(rig->out_head != rig->out_tail);
	if (rig->out_head == rig->out_tail)
		return &empty;
	s = &rig->out[rig->out_head++ % RIG_QUEUE];
	/* PSH on data is not checked here; tests/packet checks it. */
	CHECK_EQ(s->len > 0 ? s->flags | (flags & TCP_PSH) : s->flags,
		 s->len > 0 ? flags | (s->flags & TCP_PSH) : flags);
	if (s->opt.seen & TCP_OPT_TIMESTAMP)
		rig->tsecr = s->opt.tsval;
	return s;
}

static inline unsigned rig_pending(const struct rig *rig)
{
	return rig->out_tail - rig->out_head;
}

static inline void rig_silent(struct rig *rig)
{
	CHECK_EQ(rig_pending(rig), 0);
	rig->out_head = rig->out_tail;
}

static inline uint32_t rig_events(struct rig *rig)
{
	uint32_t events = 0, mask = 0;

	while (harp_stack_next_event(rig->stack, &events))
		mask |= events;
	return mask;
}

static inline struct rig_say rig_syn(struct rig *rig, uint8_t flags)
{
	struct rig_say say = rig_usual(rig, flags, 0);
	struct tcp_options opt = { .seen = TCP_OPT_MSS,
				   .mss_bytes = 1460,
				   .wscale = 2,
				   .tsval = rig->tsval,
				   .tsecr = rig->tsecr };

	if (rig->timestamps)
		opt.seen |= TCP_OPT_TIMESTAMP;
	if (rig->wscale)
		opt.seen |= TCP_OPT_WSCALE;
	if (rig->sack)
		opt.seen |= TCP_OPT_SACK_PERMITTED;
	say.options_len = tcp_options_write_syn(say.options, &opt);
	return say;
}

static inline int rig_connect(struct rig *rig, const struct harp_tcp_options *opt,
			      struct harp_conn **conn)
{
	struct harp_endpoint remote = { .addr = rig->peer, .port = RIG_PEER_PORT };

	return harp_tcp_connect(rig->stack, NULL, &remote, opt, conn);
}

/* Connects (SYN-SENT) and returns the SYN, which must have these flags. */
static inline const struct rig_seg *rig_syn_sent_flags(struct rig *rig,
						       const struct harp_tcp_options *opt,
						       uint8_t flags)
{
	const struct rig_seg *s;

	rig->seq = RIG_PEER_ISS;
	CHECK_EQ(rig_connect(rig, opt, &rig->conn), 0);
	rig_poll(rig);
	s = rig_expect(rig, flags);
	rig->port = s->src_port;
	rig->ack = s->seq + 1;
	return s;
}

static inline const struct rig_seg *rig_syn_sent(struct rig *rig,
						 const struct harp_tcp_options *opt)
{
	return rig_syn_sent_flags(rig, opt, TCP_SYN);
}

/* The peer sends a SYN-ACK with these additional flags and this window. */
static inline void rig_syn_acked_as(struct rig *rig, uint8_t flags, uint32_t wnd)
{
	struct rig_say say = rig_syn(rig, TCP_SYN | TCP_ACK | flags);

	say.wnd = wnd;
	rig_says(rig, say);
	rig->seq++;
	rig_expect(rig, TCP_ACK);
}

static inline void rig_syn_acked(struct rig *rig)
{
	rig_syn_acked_as(rig, 0, RIG_PEER_WND);
}

/* Connects and completes the handshake. */
static inline void rig_established(struct rig *rig, const struct harp_tcp_options *opt)
{
	rig_syn_sent(rig, opt);
	rig_syn_acked(rig);
	rig_silent(rig);
	CHECK_EQ(rig->conn->state, HARP_TCP_ESTABLISHED);
	CHECK(rig_events(rig) & HARP_EVENT_CONNECTED);
}

/* Opens a stack and connects to a peer that supports SACK. */
static inline void rig_begin_sack(struct rig *rig, const struct harp_tcp_options *opt)
{
	rig_open(rig);
	rig->sack = true;
	rig_established(rig, opt);
}

/* Opens a stack and connects to a peer without SACK. */
static inline void rig_begin(struct rig *rig, const struct harp_tcp_options *opt)
{
	rig_open(rig);
	rig_established(rig, opt);
}

static inline void rig_app_closes(struct rig *rig)
{
	harp_conn_close(rig->conn);
	rig->conn = NULL;
	rig_poll(rig);
}

/* Expects the stack's FIN, alone or with the last bytes. */
static inline void rig_expect_fin(struct rig *rig)
{
	const struct rig_seg *s = rig_expect(rig, TCP_ACK | TCP_FIN | TCP_PSH);

	rig->ack = s->seq + s->len + 1;
}

/* The application shuts down sending, and the stack sends FIN. */
static inline void rig_app_shuts(struct rig *rig)
{
	CHECK_EQ(harp_conn_shutdown(rig->conn, SHUT_WR), 0);
	rig_poll(rig);
	rig_expect_fin(rig);
}

/* The peer acknowledges everything and advertises this window. */
static inline void rig_window(struct rig *rig, uint32_t wnd)
{
	struct rig_say say = rig_usual(rig, TCP_ACK, 0);

	say.wnd = wnd;
	rig_says(rig, say);
}

/* Discards the stack's segments; keeps the newest timestamp. */
static inline void rig_drain(struct rig *rig)
{
	for (; rig->out_head != rig->out_tail; rig->out_head++) {
		const struct rig_seg *s = &rig->out[rig->out_head % RIG_QUEUE];

		if (s->opt.seen & TCP_OPT_TIMESTAMP)
			rig->tsecr = s->opt.tsval;
	}
}

/* Options for a new connection. */
#define RIG_OPTIONS(...)                                                                           \
	(&(struct harp_tcp_options){ .size = sizeof(struct harp_tcp_options), __VA_ARGS__ })

/* The connection's current options. */
static inline struct harp_tcp_options rig_options(const struct rig *rig)
{
	struct harp_tcp_options opt = { .size = sizeof(opt) };

	CHECK_EQ(harp_conn_options(rig->conn, &opt), 0);
	return opt;
}

/* Changes one option of the connection: 0 or -errno. */
#define RIG_SET(rig, option, value)                                                                \
	({                                                                                         \
		struct harp_tcp_options rig_opt = rig_options(rig);                                \
                                                                                                   \
		rig_opt.option = (value);                                                          \
		harp_conn_set_options((rig)->conn, &rig_opt);                                      \
	})

static inline struct harp_tcp_info rig_info(const struct rig *rig)
{
	struct harp_tcp_info info;

	harp_conn_info(rig->conn, &info);
	return info;
}

static inline void rig_listen_options(struct rig *rig, const struct harp_tcp_options *opt)
{
	struct harp_endpoint local = { .port = RIG_PORT };

	rig->port = RIG_PORT;
	CHECK_EQ(harp_tcp_listen(rig->stack, &local, opt, &rig->listener), 0);
}

static inline void rig_listen(struct rig *rig, uint32_t backlog)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .backlog = backlog };

	rig_listen_options(rig, &opt);
}

/* The peer sends a SYN; returns the stack's SYN-ACK. */
static inline const struct rig_seg *rig_syn_received(struct rig *rig)
{
	const struct rig_seg *s;

	rig_says(rig, rig_syn(rig, TCP_SYN));
	s = rig_expect(rig, TCP_SYN | TCP_ACK);
	rig->ack = s->seq + 1;
	rig->seq++;
	return s;
}

/* The peer connects, and the application accepts. */
static inline void rig_accept(struct rig *rig)
{
	rig_syn_received(rig);
	rig_says(rig, rig_usual(rig, TCP_ACK, 0));
	CHECK_EQ(harp_tcp_accept(rig->listener, &rig->conn), 0);
}

static inline ssize_t rig_write(struct rig *rig, size_t len)
{
	static uint8_t bytes[1u << 20];
	struct iovec iov = { .iov_base = bytes, .iov_len = len };
	ssize_t n;

	CHECK(len <= sizeof(bytes));
	n = harp_conn_send(rig->conn, &iov, 1);
	rig_poll(rig);
	return n;
}

/* Writes bytes, which the stack must send in one segment. */
static inline const struct rig_seg *rig_writes(struct rig *rig, uint32_t len)
{
	const struct rig_seg *s;

	CHECK_EQ(rig_write(rig, len), len);
	s = rig_expect(rig, TCP_ACK | TCP_PSH);
	CHECK_EQ(s->len, len);
	return s;
}

/* The application reads all received bytes: len bytes of the peer, from seq on. */
static inline void rig_reads(struct rig *rig, uint32_t seq, uint32_t len)
{
	static uint8_t bytes[1u << 20];

	CHECK_EQ(harp_conn_recv(rig->conn, bytes, sizeof(bytes)), len);
	rig_check_bytes(bytes, len, seq);
}

#endif
