/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload_rig.h - two stacks on NICs with offloads: TSO, checksums, and reading the application's memory. Between a stack
 * and its port of the wire a recorder notes each segment that arrives, and may hold frames that were sent.
 */
#ifndef HARP_TESTS_OFFLOAD_RIG_H
#define HARP_TESTS_OFFLOAD_RIG_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/checksum.h"
#include "base/endian.h"
#include "check.h"
#include "memory/external.h"
#include "stack/stack.h"

#define MS 1000000ull
#define PORT 7000
#define BYTES 300000u
#define SEGS_MAX 4096u
#define RECORDER_FRAMES_MAX 8192u
#define ALL_OFFLOADS (HARP_NIC_TX_CSUM | HARP_NIC_TX_TSO)

/* A data segment that arrived. */
struct seg {
	uint32_t seq, len;
	uint16_t id;
	uint8_t flags;
};

/* A NIC that records what it receives, and checks that no frame is sent that it holds. */
struct recorder {
	struct harp_nic nic; /* must be first */
	struct harp_nic *inner;
	struct seg segs[SEGS_MAX];
	unsigned count;
	enum {
		RECORDER_HOME,
		RECORDER_FIRST,
		RECORDER_LATER
	} out[RECORDER_FRAMES_MAX]; /* of a packet, with the card */
	bool slow;                  /* frames but a packet's first come back when this ends */
	bool stuck;                 /* none do */
	bool full;                  /* its ring is full and stays so */
	uint64_t held[RECORDER_FRAMES_MAX];
	unsigned held_count;
};

static struct {
	struct harp_wire *wire;
	struct recorder recorder[2];
	struct harp_stack *stack[2];
	struct harp_listener *listener;
	struct harp_conn *from, *to;
	uint64_t now_ns, sent, received;
	uint8_t *bytes; /* what is sent */
} net;

static inline void recorder_check(struct recorder *recorder, const uint8_t *p)
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
	if (len == 0 || recorder->count == SEGS_MAX)
		return;
	recorder->segs[recorder->count++] = (struct seg){ .seq = be32_load(th + 4),
							  .len = len,
							  .id = v4 ? be16_load(ip + 4) : 0,
							  .flags = th[13] };
}

static inline unsigned recorder_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max,
				   uint64_t now_ns)
{
	struct recorder *recorder = (struct recorder *)nic;
	unsigned n = recorder->inner->ops->rx(recorder->inner, descs, max, now_ns);

	for (unsigned i = 0; i < n; i++) {
		CHECK(!(descs[i].flags & HARP_DESC_MORE)); /* a packet fits in a frame here */
		recorder_check(recorder, nic->caps.frame_base + descs[i].addr);
	}
	return n;
}
static inline unsigned recorder_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned n,
				   uint64_t now_ns)
{
	struct recorder *recorder = (struct recorder *)nic;
	unsigned taken =
		recorder->full ? 0 : recorder->inner->ops->tx(recorder->inner, descs, n, now_ns);

	for (unsigned i = 0; i < taken; i++) {
		uint64_t frame = descs[i].addr / nic->caps.frame_size;
		bool first = i == 0 || !(descs[i - 1].flags & HARP_DESC_MORE);

		CHECK(frame < RECORDER_FRAMES_MAX && recorder->out[frame] == RECORDER_HOME);
		recorder->out[frame] = first ? RECORDER_FIRST : RECORDER_LATER;
	}
	return taken;
}
/* Drivers that give back descriptor by descriptor may keep the end of a packet for long. */
static inline unsigned recorder_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max,
					 uint64_t now_ns)
{
	struct recorder *recorder = (struct recorder *)nic;
	unsigned n = recorder->inner->ops->complete(recorder->inner, addrs, max, now_ns), kept = 0;

	for (unsigned i = 0; i < n; i++) {
		if (recorder->stuck ||
		    (recorder->slow &&
		     recorder->out[addrs[i] / nic->caps.frame_size] == RECORDER_LATER))
			recorder->held[recorder->held_count++] = addrs[i];
		else
			addrs[kept++] = addrs[i];
	}
	while (!recorder->stuck && !recorder->slow && kept < max && recorder->held_count > 0)
		addrs[kept++] = recorder->held[--recorder->held_count];
	for (unsigned i = 0; i < kept; i++)
		recorder->out[addrs[i] / nic->caps.frame_size] = RECORDER_HOME;
	return kept;
}
static inline unsigned recorder_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned n)
{
	struct harp_nic *inner = ((struct recorder *)nic)->inner;

	return inner->ops->fill(inner, addrs, n);
}
static inline void recorder_kick(struct harp_nic *nic, uint64_t now_ns)
{
	struct harp_nic *inner = ((struct recorder *)nic)->inner;

	inner->ops->kick(inner, now_ns);
}
static inline void recorder_stats(struct harp_nic *nic, struct harp_nic_stats *out)
{
	struct harp_nic *inner = ((struct recorder *)nic)->inner;

	inner->ops->stats(inner, out);
}
static inline void recorder_destroy(struct harp_nic *nic)
{
}
static int recorder_memory_add(struct harp_nic *nic, const void *base, size_t bytes)
{
	struct harp_nic *inner = ((struct recorder *)nic)->inner;

	return inner->ops->memory_add(inner, base, bytes);
}
static int recorder_memory_remove(struct harp_nic *nic, const void *base, size_t bytes)
{
	struct harp_nic *inner = ((struct recorder *)nic)->inner;

	return inner->ops->memory_remove(inner, base, bytes);
}

#define RECORDER_OPS(bytes)                                                                        \
	{                                                                                          \
		.size = (bytes), .rx = recorder_rx, .tx = recorder_tx,                             \
		.complete = recorder_complete, .fill = recorder_fill, .kick = recorder_kick,       \
		.stats = recorder_stats, .destroy = recorder_destroy,                              \
		.memory_add = recorder_memory_add, .memory_remove = recorder_memory_remove         \
	}
static const struct harp_nic_ops recorder_ops = RECORDER_OPS(sizeof(struct harp_nic_ops));
/* Compiled with the first version of harp_nic.h: what lies behind is not its. */
static const struct harp_nic_ops recorder_ops_v1 =
	RECORDER_OPS(offsetof(struct harp_nic_ops, memory_add));

struct how {
	uint32_t offloads, external_count, tso_bytes_max;
	uint32_t mtu_bytes;
	uint64_t complete_delay_ns;
	bool v6, v1, lazy;
};

/* As an application that sleeps between polls: a poll that left work is followed by another one. */
static inline void net_step(uint64_t ns)
{
	net.now_ns += ns;
	for (unsigned i = 0; i < 2; i++) {
		harp_stack_poll(net.stack[i], net.now_ns);
		if (harp_stack_next_deadline_ns(net.stack[i]) <= net.now_ns)
			harp_stack_poll(net.stack[i], net.now_ns);
	}
}

static inline void net_connect(bool v6, uint32_t tx_frames)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = PORT };
	struct harp_tcp_options tcp = { .size = sizeof(tcp), .tx_frames = tx_frames };
	struct harp_endpoint any = { .port = PORT };

	if (v6)
		CHECK_EQ(harp_addr_parse("fd00::2", &remote.addr), 0);
	CHECK_EQ(harp_tcp_listen(net.stack[1], &any, &tcp, &net.listener), 0);
	CHECK_EQ(harp_tcp_connect(net.stack[0], NULL, &remote, &tcp, &net.from), 0);
	for (int i = 0; i < 50 && harp_tcp_accept(net.listener, &net.to) != 0; i++)
		net_step(MS);
	CHECK(net.to != NULL);
}

static inline void net_open(const struct how *how)
{
	struct harp_wire_options opt = { .size = sizeof(opt),
					 .tx_frags_max = 48,
					 .strict = 1,
					 .mtu_bytes = how->mtu_bytes,
					 .offloads = how->offloads,
					 .external_count = how->external_count,
					 .tso_bytes_max = how->tso_bytes_max,
					 .complete_delay_ns = how->complete_delay_ns };
	struct harp_stack_options stack = { .size = sizeof(stack), .seed = 1, .now_ns = MS };

	memset(&net, 0, sizeof(net));
	net.now_ns = MS;
	CHECK_EQ(harp_wire_create(&net.wire, &opt), 0);
	net.bytes = malloc(BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		net.bytes[i] = (uint8_t)(i * 7 + i / 251);
	for (unsigned i = 0; i < 2; i++) {
		struct recorder *recorder = &net.recorder[i];
		struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));

		recorder->inner = harp_wire_port(net.wire, i);
		recorder->nic.ops = how->v1 ? &recorder_ops_v1 : &recorder_ops;
		recorder->nic.caps = recorder->inner->caps;
		if (how->lazy)
			recorder->nic.caps.features |= HARP_NIC_TX_LAZY;
		if (how->v1)
			memset(&recorder->nic.caps.frame_reserved, 0xff,
			       sizeof(recorder->nic.caps) -
				       offsetof(struct harp_nic_caps, frame_reserved));
		CHECK_EQ(harp_stack_create(&net.stack[i], &recorder->nic, &stack), 0);
		CHECK_EQ(harp_stack_address_add(net.stack[i], &addr, 24), 0);
		CHECK_EQ(harp_addr_parse(i ? "fd00::2" : "fd00::1", &addr), 0);
		CHECK_EQ(harp_stack_address_add(net.stack[i], &addr, 64), 0);
	}
	net_connect(how->v6, 64);
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
	harp_conn_close(net.from);
	harp_conn_close(net.to);
	harp_listener_close(net.listener);
	for (unsigned i = 0; i < 2; i++) {
		struct harp_wire_stats wire;
		struct harp_nic_stats nic;

		net_step(MS);
		CHECK_EQ(harp_wire_stats(net.wire, i, &wire), 0);
		CHECK_EQ(wire.strict_violations, 0);
		recorder_stats(&net.recorder[i].nic, &nic);
		CHECK_EQ(nic.tx_invalid, 0);
	}
	harp_stack_destroy(net.stack[0]);
	harp_stack_destroy(net.stack[1]);
	harp_wire_destroy(net.wire);
	free(net.bytes);
	net.wire = NULL;
}

/* The receiver takes frames as they come, and gives them back. */
static inline void net_take(void)
{
	struct harp_frame *frame;

	while (harp_conn_recv_frame(net.to, &frame) == 1) {
		CHECK(net.received + frame->len <= BYTES);
		CHECK(memcmp(frame->data, net.bytes + net.received, frame->len) == 0);
		net.received += frame->len;
		harp_frame_release(net.to, frame);
	}
}

/* All that was sent arrives within so many turns. */
static inline void net_arrives(unsigned turns, uint64_t turn_ns)
{
	for (unsigned i = 0; i < turns && net.received < net.sent; i++) {
		net_step(turn_ns);
		net_take();
	}
	CHECK_EQ(net.received, net.sent);
}

/* The last ACKs come, and the card gives back what it has. */
static inline void net_settles(void)
{
	for (unsigned i = 0; i < 10; i++)
		net_step(10 * MS);
}

enum way { BY_COPY, BY_FRAMES, IN_PLACE };

static inline ssize_t net_send(enum way way, size_t len)
{
	struct iovec iov = { net.bytes + net.sent, len };
	struct harp_frame *frame;
	int err;

	if (way == BY_COPY)
		return harp_conn_send(net.from, &iov, 1);
	if (way == IN_PLACE)
		return harp_conn_send_external(net.from, iov.iov_base, len);
	err = harp_frame_alloc(net.from, &frame);
	if (err)
		return err;
	frame->len = len < frame->capacity ? (uint32_t)len : frame->capacity;
	memcpy(frame->data, iov.iov_base, frame->len); /* the application's, not the stack's */
	len = frame->len;
	CHECK_EQ(harp_conn_send_frame(net.from, frame), 0);
	return (ssize_t)len;
}

static inline void net_move(enum way way, size_t piece)
{
	for (int i = 0; i < 20000 && net.received < BYTES; i++) {
		ssize_t n = 1;

		while (n > 0 && net.sent < BYTES) {
			size_t left = BYTES - net.sent;

			n = net_send(way, left < piece ? left : piece);
			CHECK(n > 0 || n == -EAGAIN);
			net.sent += n > 0 ? (uint64_t)n : 0;
		}
		net_step(100000);
		net_take();
	}
	CHECK_EQ(net.received, BYTES);
	net_settles();
	CHECK_EQ(harp_conn_acked_bytes(net.from), BYTES);
}

#endif
