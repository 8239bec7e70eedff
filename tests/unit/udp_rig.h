/* SPDX-License-Identifier: Apache-2.0 */
/*
 * udp_rig.h - one stack whose peer is the test, for UDP: any datagram in, what it sends kept to look at.
 *
 * The stack sits on a callback NIC and knows its neighbor. Both families are one form: struct rig_say is
 * turned into an IPv4 or an IPv6 packet by rig->v6.
 */
#ifndef HARP_TESTS_UDP_RIG_H
#define HARP_TESTS_UDP_RIG_H

#include <errno.h>
#include <stdlib.h>

#include "base/checksum.h"
#include "check.h"
#include "packet.h"
#include "stack/stack.h"

#define RIG_QUEUE 512u
#define RIG_PACKET_MAX 2000u
#define RIG_MS 1000000ull
#define RIG_S 1000000000ull
#define RIG_PORT 61000u
#define RIG_PEER_PORT 5000u

static const uint8_t rig_mac[6] = { 2, 0, 0, 0, 0, 1 }, rig_peer_mac[6] = { 2, 0, 0, 0, 0, 2 };

struct rig_packet {
	uint32_t len;
	uint8_t bytes[RIG_PACKET_MAX];
};

/* A packet of the stack's, taken apart. */
struct rig_sent {
	uint8_t proto;
	const uint8_t *l4; /* transport or ICMP header */
	uint32_t l4_len;
};

struct rig {
	bool v6;
	struct harp_nic *nic;
	struct harp_stack *stack;
	struct harp_addr own, peer, other; /* other: a second peer, its MAC known too */
	uint64_t now_ns;
	bool nic_full;
	struct rig_packet in[RIG_QUEUE], out[RIG_QUEUE];
	unsigned in_head, in_tail, out_head, out_tail;
};

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
	struct rig_packet *p = &rig->out[rig->out_tail % RIG_QUEUE];

	if (rig->nic_full)
		return -EAGAIN;
	CHECK(len <= RIG_PACKET_MAX && rig->out_tail - rig->out_head < RIG_QUEUE);
	rig->out_tail++;
	memcpy(p->bytes, frame, len);
	p->len = (uint32_t)len;
	return 0;
}

static inline void rig_open(struct rig *rig, bool v6)
{
	struct harp_nic_callbacks nic = { .size = sizeof(nic),
					  .mac = { 2, 0, 0, 0, 0, 1 },
					  .ctx = rig,
					  .receive = rig_receive,
					  .send = rig_send,
					  .frame_count = 1024 };
	struct harp_stack_options options = { .size = sizeof(options),
					      .max_conns = 8,
					      .seed = 1,
					      .neighbor_mode = HARP_NEIGHBOR_EXTERNAL,
					      .now_ns = 10 * RIG_S };

	memset(rig, 0, sizeof(*rig));
	rig->v6 = v6;
	rig->now_ns = options.now_ns;
	CHECK_EQ(harp_addr_parse(v6 ? "fd00::1" : "10.0.0.1", &rig->own), 0);
	CHECK_EQ(harp_addr_parse(v6 ? "fd00::2" : "10.0.0.2", &rig->peer), 0);
	CHECK_EQ(harp_addr_parse(v6 ? "fd00::3" : "10.0.0.3", &rig->other), 0);
	CHECK_EQ(harp_nic_callback_create(&rig->nic, &nic), 0);
	CHECK_EQ(harp_stack_create(&rig->stack, rig->nic, &options), 0);
	CHECK_EQ(harp_stack_address_add(rig->stack, &rig->own, v6 ? 64 : 24), 0);
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &rig->peer, rig_peer_mac), 0);
	CHECK_EQ(harp_stack_neighbor_set(rig->stack, &rig->other, rig_peer_mac), 0);
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

/* Every test ends with this: no socket, no frame, no port is left. */
static inline void rig_close(struct rig *rig)
{
	rig->nic_full = false;
	rig_poll(rig);
	rig_poll(rig);
	CHECK_EQ(rig_stat(rig, "udp_sockets"), 0);
	CHECK_EQ(rig_stat(rig, "frames_udp_tx"), 0);
	CHECK_EQ(rig_stat(rig, "frames_udp_rx"), 0);
	CHECK_EQ(rig->stack->pool.free_count + rig->stack->io.fill_held + rig->stack->io.tx_held,
		 rig->stack->pool.frame_count);
	for (uint32_t port = 0; port < 65536; port++)
		CHECK(!port_used(&rig->stack->udp.ports, (uint16_t)port) &&
		      rig->stack->udp.by_port[port] == 0);
	CHECK_EQ(rig->stack->wheel.count, 0);
	harp_stack_destroy(rig->stack);
	harp_nic_destroy(rig->nic);
	rig->stack = NULL;
}

static inline uint32_t rig_l3_bytes(const struct rig *rig)
{
	return rig->v6 ? 40 : 20;
}

/* An IP packet around l4_len bytes that are at rig_l4(p) already. */
static inline uint8_t *rig_l4(struct rig *rig, struct rig_packet *p)
{
	return p->bytes + 14 + rig_l3_bytes(rig);
}

static inline void rig_wrap(struct rig *rig, struct rig_packet *p, const struct harp_addr *src,
			    uint8_t proto, uint32_t l4_len)
{
	p->len = l4_len +
		 packet_headers(p->bytes, rig_mac, rig_peer_mac, src, &rig->own, proto, l4_len);
}

/* Everything about a datagram of the peer's that a test may want to be odd. */
struct rig_say {
	const struct harp_addr *src; /* NULL: the peer */
	uint16_t src_port, dst_port; /* 0: the usual ones */
	uint32_t len;                /* payload */
	uint8_t first;               /* its first byte; the next ones count on */
	int32_t length_field_more;   /* added to the length field */
	uint32_t trailing;           /* bytes of IP payload behind the datagram */
	bool zero_checksum, bad_checksum;
};

static inline void rig_put(struct rig *rig, struct rig_say say)
{
	struct rig_packet *p = &rig->in[rig->in_tail++ % RIG_QUEUE];
	const struct harp_addr *src = say.src ? say.src : &rig->peer;
	uint8_t *uh = rig_l4(rig, p);
	uint32_t len = 8 + say.len, field = (uint32_t)((int32_t)len + say.length_field_more);
	uint16_t sum;

	memset(p->bytes, 0, sizeof(p->bytes));
	be16_store(uh, say.src_port ? say.src_port : RIG_PEER_PORT);
	be16_store(uh + 2, say.dst_port ? say.dst_port : RIG_PORT);
	be16_store(uh + 4, (uint16_t)field);
	for (uint32_t i = 0; i < say.len; i++)
		uh[8 + i] = (uint8_t)(say.first + i);
	memset(uh + len, 0xee, say.trailing);
	sum = csum_finish(csum_partial(uh, field < len ? field : len,
				       ip_pseudo_sum(src, &rig->own, IP_PROTO_UDP, field)));
	sum = sum == 0 ? 0xffff : sum;
	sum = say.zero_checksum ? 0 : (uint16_t)(sum ^ (say.bad_checksum ? 0x100 : 0));
	memcpy(uh + 6, &sum, 2);
	rig_wrap(rig, p, src, IP_PROTO_UDP, len + say.trailing);
}

static inline void rig_says(struct rig *rig, struct rig_say say)
{
	rig_put(rig, say);
	rig_poll(rig);
}

/* The stack's next packet; false when there is none. */
static inline bool rig_take(struct rig *rig, struct rig_sent *sent)
{
	struct rig_packet *p;
	uint8_t *ip;

	*sent = (struct rig_sent){ 0 };
	if (rig->out_head == rig->out_tail)
		return false;
	p = &rig->out[rig->out_head++ % RIG_QUEUE];
	ip = p->bytes + 14;
	*sent = (struct rig_sent){ .proto = rig->v6 ? ip[6] : ip[9],
				   .l4 = ip + rig_l3_bytes(rig),
				   .l4_len =
					   rig->v6 ? be16_load(ip + 4) : be16_load(ip + 2) - 20u };
	CHECK(14 + rig_l3_bytes(rig) + sent->l4_len == p->len);
	return true;
}

/* The next packet is this datagram, its checksum good. */
static inline const uint8_t *rig_expect(struct rig *rig, uint16_t dst_port, uint32_t len)
{
	static const uint8_t none[8];
	struct rig_sent sent;
	const uint8_t *ip;
	struct harp_addr dst;

	CHECK(rig_take(rig, &sent));
	if (sent.proto != IP_PROTO_UDP || sent.l4_len != 8 + len) {
		CHECK_EQ(sent.proto, IP_PROTO_UDP);
		CHECK_EQ(sent.l4_len, 8 + len);
		return none;
	}
	ip = sent.l4 - rig_l3_bytes(rig);
	if (rig->v6)
		memcpy(dst.bytes, ip + 24, 16);
	else
		dst = harp_addr_v4(ip[16], ip[17], ip[18], ip[19]);
	CHECK_EQ(be16_load(sent.l4 + 2), dst_port);
	CHECK_EQ(be16_load(sent.l4 + 4), 8 + len);
	CHECK(be16_load(sent.l4 + 6) != 0);
	CHECK_EQ(csum_finish(csum_partial(sent.l4, sent.l4_len,
					  ip_pseudo_sum(&rig->own, &dst, IP_PROTO_UDP, 8 + len))),
		 0);
	return sent.l4 + 8;
}

static inline void rig_silent(struct rig *rig)
{
	CHECK_EQ(rig->out_tail - rig->out_head, 0);
	rig->out_head = rig->out_tail;
}

/* All events of all sockets. */
static inline uint32_t rig_events(struct rig *rig)
{
	uint32_t events = 0, all = 0;

	while (harp_udp_next_event(rig->stack, &events))
		all |= events;
	return all;
}

static inline struct harp_udp *rig_socket(struct rig *rig, uint16_t port,
					  const struct harp_udp_options *opt)
{
	struct harp_endpoint at = { .port = port };
	struct harp_udp *sock = NULL;

	CHECK_EQ(harp_udp_open(rig->stack, &at, opt, &sock), 0);
	return sock;
}

static inline struct harp_endpoint rig_peer(const struct rig *rig)
{
	return (struct harp_endpoint){ .addr = rig->peer, .port = RIG_PEER_PORT };
}

static inline ssize_t rig_write(struct harp_udp *sock, const struct harp_endpoint *to, size_t len)
{
	static uint8_t bytes[65536];
	struct iovec iov[2] = { { .iov_base = bytes, .iov_len = len / 3 },
				{ .iov_base = bytes + len / 3, .iov_len = len - len / 3 } };

	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(i * 5 + 1);
	return harp_udp_send(sock, to, iov, 2);
}

#endif
