/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_rig.h - two stacks on a wire under a virtual clock, and a connection from the first to the
 * second.
 *
 * Between each stack and its port of the wire is a tap: a NIC that records the data segments
 * received. It checks that the stack sends no frame that the NIC still holds, and can drop large
 * packets or delay completions.
 */
#ifndef HARP_TESTS_NET_RIG_H
#define HARP_TESTS_NET_RIG_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/checksum.h"
#include "base/endian.h"
#include "base/util.h"
#include "check.h"
#include "stack/stack.h"

#define US 1000ull
#define MS 1000000ull
#define S 1000000000ull
#define NET_PORT 7000
#define BYTES 300000u /* length of the pattern that the connection repeats */
#define TAP_SEGS_MAX 4096u
#define TAP_FRAMES_MAX 131072u
#define TAP_HELD_MAX 8192u

/* A received data segment. */
struct seg {
	uint32_t seq, len;
	uint16_t id;
	uint8_t flags;
};

struct tap {
	struct harp_nic nic; /* must be first */
	struct harp_nic *inner;
	struct seg segs[TAP_SEGS_MAX];
	unsigned count;
	uint32_t path_bytes; /* larger IP packets are dropped */
	bool slow;           /* only the first frame of a packet is completed */
	bool stuck;          /* no frame is completed */
	bool full;           /* its ring stays full */
	unsigned flushes;    /* flushes until stuck frames are completed; 0: they stay stuck */
	uint8_t state[TAP_FRAMES_MAX];
	uint64_t held[TAP_HELD_MAX];
	unsigned held_count;
};
/* A frame is free, or the NIC holds it as a packet's first or later frame. */
enum { TAP_FREE, TAP_FIRST, TAP_LATER };

static struct {
	struct harp_wire *wire;
	struct tap tap[2];
	struct harp_stack *stack[2];
	struct harp_listener *listener; /* of stack 1 */
	struct harp_conn *sender, *receiver;
	uint64_t now_ns, sent, received;
	uint8_t bytes[BYTES];
} net;

/* ---- the tap --------------------------------------------------------------------------------- */

static inline struct harp_nic *tap_inner(struct harp_nic *nic)
{
	return ((struct tap *)nic)->inner;
}

static inline void tap_record(struct tap *tap, const uint8_t *p)
{
	bool v4 = be16_load(p + 12) == 0x0800;
	const uint8_t *ip = p + 14, *th = ip + (v4 ? 20 : 40);
	uint32_t len = v4 ? be16_load(ip + 2) - 20u : be16_load(ip + 4);
	uint32_t sum = csum_add(htobe32(IP_PROTO_TCP), htobe32(len));

	if (be16_load(p + 12) == 0x0806 || (v4 ? ip[9] : ip[6]) != IP_PROTO_TCP)
		return;
	sum = csum_partial(v4 ? ip + 12 : ip + 8, v4 ? 8 : 32, sum);
	CHECK_EQ(csum_finish(csum_partial(th, len, sum)), 0);
	CHECK(!v4 || csum_finish(csum_partial(ip, 20, 0)) == 0);
	len -= th[12] / 16 * 4u;
	if (len > 0 && tap->count < TAP_SEGS_MAX)
		tap->segs[tap->count++] = (struct seg){ .seq = be32_load(th + 4),
							.len = len,
							.id = v4 ? be16_load(ip + 4) : 0,
							.flags = th[13] };
}

static inline unsigned tap_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max,
			      uint64_t now_ns)
{
	struct tap *tap = (struct tap *)nic;
	unsigned n = tap->inner->ops->rx(tap->inner, descs, max, now_ns), count = 0;

	for (unsigned i = 0; i < n; i++) {
		bool is_whole = !(descs[i].flags & HARP_DESC_MORE) &&
				(i == 0 || !(descs[i - 1].flags & HARP_DESC_MORE));

		if (is_whole && tap->path_bytes && descs[i].len > tap->path_bytes + 14) {
			CHECK_EQ(tap->inner->ops->fill(tap->inner, &descs[i].addr, 1), 1);
			continue;
		}
		if (is_whole)
			tap_record(tap, nic->caps.frame_base + descs[i].addr);
		descs[count++] = descs[i];
	}
	return count;
}

static inline unsigned tap_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned n,
			      uint64_t now_ns)
{
	struct tap *tap = (struct tap *)nic;
	unsigned count = tap->full ? 0 : tap->inner->ops->tx(tap->inner, descs, n, now_ns);

	for (unsigned i = 0; i < count; i++) {
		uint64_t frame = descs[i].addr / nic->caps.frame_size;
		bool is_first = i == 0 || !(descs[i - 1].flags & HARP_DESC_MORE);

		CHECK(frame < TAP_FRAMES_MAX && tap->state[frame] == TAP_FREE);
		tap->state[frame] = is_first ? TAP_FIRST : TAP_LATER;
	}
	return count;
}

/* Drivers that complete per descriptor may hold the end of a packet for a long time. */
static inline unsigned tap_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max,
				    uint64_t now_ns)
{
	struct tap *tap = (struct tap *)nic;
	unsigned n = tap->inner->ops->complete(tap->inner, addrs, max, now_ns), count = 0;

	for (unsigned i = 0; i < n; i++) {
		uint8_t state = tap->state[addrs[i] / nic->caps.frame_size];

		if (tap->stuck || (tap->slow && state == TAP_LATER))
			tap->held[tap->held_count++] = addrs[i];
		else
			addrs[count++] = addrs[i];
	}
	while (!tap->stuck && !tap->slow && count < max && tap->held_count > 0)
		addrs[count++] = tap->held[--tap->held_count];
	for (unsigned i = 0; i < count; i++)
		tap->state[addrs[i] / nic->caps.frame_size] = TAP_FREE;
	return count;
}

static inline unsigned tap_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned n)
{
	return tap_inner(nic)->ops->fill(tap_inner(nic), addrs, n);
}
static inline void tap_kick(struct harp_nic *nic, uint64_t now_ns)
{
	tap_inner(nic)->ops->kick(tap_inner(nic), now_ns);
}
static inline void tap_stats(struct harp_nic *nic, struct harp_nic_stats *out)
{
	tap_inner(nic)->ops->stats(tap_inner(nic), out);
}
static inline void tap_destroy(struct harp_nic *nic)
{
}
static inline int tap_memory_add(struct harp_nic *nic, const void *base, size_t bytes)
{
	return tap_inner(nic)->ops->memory_add(tap_inner(nic), base, bytes);
}
static inline int tap_memory_remove(struct harp_nic *nic, const void *base, size_t bytes)
{
	return tap_inner(nic)->ops->memory_remove(tap_inner(nic), base, bytes);
}

static inline void tap_memory_flush(struct harp_nic *nic, const void *base, size_t bytes)
{
	struct tap *tap = (struct tap *)nic;

	if (tap->flushes > 0 && --tap->flushes == 0)
		tap->stuck = false;
}

static const struct harp_nic_ops tap_ops = { .rx = tap_rx,
					     .tx = tap_tx,
					     .complete = tap_complete,
					     .fill = tap_fill,
					     .kick = tap_kick,
					     .stats = tap_stats,
					     .destroy = tap_destroy,
					     .memory_add = tap_memory_add,
					     .memory_remove = tap_memory_remove,
					     .memory_flush = tap_memory_flush };

/* ---- the stacks ------------------------------------------------------------------------------ */

struct net_setup {
	struct harp_wire_options wire;
	struct harp_stack_options stack;
	uint32_t tx_frames;
	bool v6;   /* the connection is over IPv6 */
	bool lazy; /* the tap has HARP_NIC_TX_LAZY */
};

/* Stack i has 10.0.0.(i+1) and fd00::(i+1), and a MAC address that ends with i. */
static inline struct harp_addr net_addr(bool v6, unsigned i)
{
	if (v6)
		return (struct harp_addr){ { 0xfd, [15] = (uint8_t)(i + 1) } };
	return harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));
}

static inline void net_open(struct net_setup setup)
{
	memset(&net, 0, sizeof(net));
	net.now_ns = setup.stack.now_ns ? setup.stack.now_ns : MS;
	for (uint32_t i = 0; i < BYTES; i++)
		net.bytes[i] = (uint8_t)(i * 7 + i / 251);
	setup.wire.size = sizeof(setup.wire);
	CHECK_EQ(harp_wire_create(&net.wire, &setup.wire), 0);
	setup.stack.size = sizeof(setup.stack);
	setup.stack.now_ns = net.now_ns;
	for (unsigned i = 0; i < 2; i++) {
		struct tap *tap = &net.tap[i];

		tap->inner = harp_wire_port(net.wire, i);
		tap->nic.ops = &tap_ops;
		tap->nic.caps = tap->inner->caps;
		if (setup.lazy)
			tap->nic.caps.features |= HARP_NIC_TX_LAZY;
		setup.stack.seed = setup.stack.seed + 1;
		CHECK_EQ(harp_stack_create(&net.stack[i], &tap->nic, &setup.stack), 0);
		for (unsigned v6 = 0; v6 < 2; v6++) {
			struct harp_addr addr = net_addr(v6, i);

			CHECK_EQ(harp_stack_address_add(net.stack[i], &addr, v6 ? 64 : 24), 0);
		}
	}
}

/* Polls each stack, and once more if it has work left, as applications do before they sleep. */
static inline void net_step(uint64_t ns)
{
	net.now_ns += ns;
	for (unsigned i = 0; i < 2; i++) {
		harp_stack_poll(net.stack[i], net.now_ns);
		if (harp_stack_next_deadline_ns(net.stack[i]) <= net.now_ns)
			harp_stack_poll(net.stack[i], net.now_ns);
	}
}

/* The next deadline of stack i or its NIC. */
static inline uint64_t net_next_ns(unsigned i)
{
	struct harp_nic *port = net.tap[i].inner;
	uint64_t stack_ns = harp_stack_next_deadline_ns(net.stack[i]);
	uint64_t port_ns = port->ops->next_ns(port);

	return stack_ns < port_ns ? stack_ns : port_ns;
}

static inline void net_listen(uint32_t tx_frames)
{
	struct harp_tcp_options tcp = { .size = sizeof(tcp), .tx_frames = tx_frames };
	struct harp_endpoint any = { .port = NET_PORT };

	CHECK_EQ(harp_tcp_listen(net.stack[1], &any, &tcp, &net.listener), 0);
}

static inline void net_open_connected(struct net_setup setup)
{
	struct harp_tcp_options tcp = { .size = sizeof(tcp), .tx_frames = setup.tx_frames };
	struct harp_endpoint remote = { .addr = net_addr(setup.v6, 1), .port = NET_PORT };

	net_open(setup);
	net_listen(setup.tx_frames);
	CHECK_EQ(harp_tcp_connect(net.stack[0], NULL, &remote, &tcp, &net.sender), 0);
	for (int i = 0; i < 50 && harp_tcp_accept(net.listener, &net.receiver) != 0; i++)
		net_step(MS);
	CHECK(net.receiver != NULL);
}

static inline uint64_t net_stat(unsigned stack, const char *name)
{
	uint64_t value = 0;

	CHECK_EQ(harp_stack_stat(net.stack[stack], name, &value), 0);
	return value;
}

static inline void net_close(void)
{
	if (!net.wire)
		return;
	if (net.sender)
		harp_conn_close(net.sender);
	if (net.receiver)
		harp_conn_close(net.receiver);
	if (net.listener)
		harp_listener_close(net.listener);
	for (unsigned i = 0; i < 2; i++) {
		struct harp_wire_stats wire;
		struct harp_nic_stats nic;

		net_step(MS);
		CHECK_EQ(harp_wire_stats(net.wire, i, &wire), 0);
		CHECK_EQ(wire.strict_violations, 0);
		tap_stats(&net.tap[i].nic, &nic);
		CHECK_EQ(nic.tx_invalid, 0);
	}
	harp_stack_destroy(net.stack[0]);
	harp_stack_destroy(net.stack[1]);
	harp_wire_destroy(net.wire);
	net.wire = NULL;
}

/* ---- the connection -------------------------------------------------------------------------- */

/* The receiver reads all frames, checks their bytes, and releases them. */
static inline void net_take(void)
{
	struct harp_frame *frame;

	while (harp_conn_recv_frame(net.receiver, &frame) == 1) {
		for (uint32_t pos = 0, n; pos < frame->len; pos += n, net.received += n) {
			uint32_t offset = (uint32_t)(net.received % BYTES);

			n = frame->len - pos < BYTES - offset ? frame->len - pos : BYTES - offset;
			CHECK(memcmp(frame->data + pos, net.bytes + offset, n) == 0);
		}
		harp_frame_release(net.receiver, frame);
	}
	CHECK(net.received <= net.sent);
}

/* Checks that all data sent arrives within this many turns. */
static inline void net_arrives(unsigned turns, uint64_t turn_ns)
{
	for (unsigned i = 0; i < turns && net.received < net.sent; i++) {
		net_step(turn_ns);
		net_take();
	}
	CHECK_EQ(net.received, net.sent);
}

/* The last ACKs arrive, and the NIC completes its frames. */
static inline void net_settles(void)
{
	for (unsigned i = 0; i < 10; i++)
		net_step(10 * MS);
}

#endif
