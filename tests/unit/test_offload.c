/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_offload.c - two stacks on cards that do more: what leaves in trains arrives as if it had left one by one,
 * nothing is copied, and memory is let go of when neither stack nor card refers to it.
 */
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
#define SPY_FRAMES_MAX 8192u
#define ALL_OFFLOADS (HARP_NIC_TX_CSUM | HARP_NIC_TX_TSO)

/* A data segment that arrived. */
struct seg {
	uint32_t seq, len;
	uint16_t id;
	uint8_t flags;
};

/* A card that looks at what it receives, and is never given a frame that it has. */
struct spy {
	struct harp_nic nic; /* must be first */
	struct harp_nic *inner;
	struct seg segs[SEGS_MAX];
	unsigned count;
	enum {
		SPY_HOME,
		SPY_FIRST,
		SPY_LATER
	} out[SPY_FRAMES_MAX]; /* of a packet, with the card */
	bool slow;             /* frames but a packet's first come back when this ends */
	bool stuck;            /* none do */
	uint64_t held[SPY_FRAMES_MAX];
	unsigned held_count;
};

static struct {
	struct harp_wire *wire;
	struct spy spy[2];
	struct harp_stack *stack[2];
	struct harp_listener *listener;
	struct harp_conn *from, *to;
	uint64_t now_ns, sent, received;
	uint8_t *bytes; /* what is sent */
} net;

static void spy_look(struct spy *spy, const uint8_t *p)
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
	if (len == 0 || spy->count == SEGS_MAX)
		return;
	spy->segs[spy->count++] = (struct seg){ .seq = be32_load(th + 4),
						.len = len,
						.id = v4 ? be16_load(ip + 4) : 0,
						.flags = th[13] };
}

static unsigned spy_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max, uint64_t now_ns)
{
	struct spy *spy = (struct spy *)nic;
	unsigned n = spy->inner->ops->rx(spy->inner, descs, max, now_ns);

	for (unsigned i = 0; i < n; i++) {
		CHECK(!(descs[i].flags & HARP_DESC_MORE)); /* a packet fits in a frame here */
		spy_look(spy, nic->caps.frame_base + descs[i].addr);
	}
	return n;
}
static unsigned spy_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned n,
		       uint64_t now_ns)
{
	struct spy *spy = (struct spy *)nic;
	unsigned taken = spy->inner->ops->tx(spy->inner, descs, n, now_ns);

	for (unsigned i = 0; i < taken; i++) {
		uint64_t frame = descs[i].addr / nic->caps.frame_size;
		bool first = i == 0 || !(descs[i - 1].flags & HARP_DESC_MORE);

		CHECK(frame < SPY_FRAMES_MAX && spy->out[frame] == SPY_HOME);
		spy->out[frame] = first ? SPY_FIRST : SPY_LATER;
	}
	return taken;
}
/* Drivers that give back descriptor by descriptor may keep the end of a packet for long. */
static unsigned spy_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max, uint64_t now_ns)
{
	struct spy *spy = (struct spy *)nic;
	unsigned n = spy->inner->ops->complete(spy->inner, addrs, max, now_ns), kept = 0;

	for (unsigned i = 0; i < n; i++) {
		if (spy->stuck ||
		    (spy->slow && spy->out[addrs[i] / nic->caps.frame_size] == SPY_LATER))
			spy->held[spy->held_count++] = addrs[i];
		else
			addrs[kept++] = addrs[i];
	}
	while (!spy->stuck && !spy->slow && kept < max && spy->held_count > 0)
		addrs[kept++] = spy->held[--spy->held_count];
	for (unsigned i = 0; i < kept; i++)
		spy->out[addrs[i] / nic->caps.frame_size] = SPY_HOME;
	return kept;
}
static unsigned spy_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned n)
{
	struct harp_nic *inner = ((struct spy *)nic)->inner;

	return inner->ops->fill(inner, addrs, n);
}
static void spy_kick(struct harp_nic *nic, uint64_t now_ns)
{
	struct harp_nic *inner = ((struct spy *)nic)->inner;

	inner->ops->kick(inner, now_ns);
}
static void spy_stats(struct harp_nic *nic, struct harp_nic_stats *out)
{
	struct harp_nic *inner = ((struct spy *)nic)->inner;

	inner->ops->stats(inner, out);
}
static void spy_destroy(struct harp_nic *nic)
{
	(void)nic;
}
static int spy_memory_add(struct harp_nic *nic, const void *base, size_t bytes)
{
	struct harp_nic *inner = ((struct spy *)nic)->inner;

	return inner->ops->memory_add(inner, base, bytes);
}
static int spy_memory_remove(struct harp_nic *nic, const void *base, size_t bytes)
{
	struct harp_nic *inner = ((struct spy *)nic)->inner;

	return inner->ops->memory_remove(inner, base, bytes);
}

#define SPY_OPS(bytes)                                                                             \
	{                                                                                          \
		.size = (bytes), .rx = spy_rx, .tx = spy_tx, .complete = spy_complete,             \
		.fill = spy_fill, .kick = spy_kick, .stats = spy_stats, .destroy = spy_destroy,    \
		.memory_add = spy_memory_add, .memory_remove = spy_memory_remove                   \
	}
static const struct harp_nic_ops spy_ops = SPY_OPS(sizeof(struct harp_nic_ops));
/* Compiled with the first version of harp_nic.h: what lies behind is not its. */
static const struct harp_nic_ops spy_ops_v1 = SPY_OPS(offsetof(struct harp_nic_ops, memory_add));

struct how {
	uint32_t offloads, external_count, tso_bytes_max;
	uint64_t complete_delay_ns;
	bool v6, v1, lazy;
};

static void net_step(uint64_t ns)
{
	net.now_ns += ns;
	for (unsigned i = 0; i < 2; i++)
		harp_stack_poll(net.stack[i], net.now_ns);
}

static void net_connect(bool v6, uint32_t tx_frames)
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

static void net_open(const struct how *how)
{
	struct harp_wire_options opt = { .size = sizeof(opt),
					 .tx_frags_max = 48,
					 .strict = 1,
					 .offloads = how->offloads,
					 .external_count = how->external_count,
					 .tso_bytes_max = how->tso_bytes_max,
					 .complete_delay_ns = how->complete_delay_ns };
	struct harp_stack_options stack = { .size = sizeof(stack), .now_ns = MS };

	memset(&net, 0, sizeof(net));
	net.now_ns = MS;
	CHECK_EQ(harp_wire_create(&net.wire, &opt), 0);
	net.bytes = malloc(BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		net.bytes[i] = (uint8_t)(i * 7 + i / 251);
	for (unsigned i = 0; i < 2; i++) {
		struct spy *spy = &net.spy[i];
		struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(i + 1));

		spy->inner = harp_wire_port(net.wire, i);
		spy->nic.ops = how->v1 ? &spy_ops_v1 : &spy_ops;
		spy->nic.caps = spy->inner->caps;
		if (how->lazy)
			spy->nic.caps.features |= HARP_NIC_TX_LAZY;
		if (how->v1)
			memset(&spy->nic.caps.frame_reserved, 0xff,
			       sizeof(spy->nic.caps) -
				       offsetof(struct harp_nic_caps, frame_reserved));
		CHECK_EQ(harp_stack_create(&net.stack[i], &spy->nic, &stack), 0);
		CHECK_EQ(harp_stack_address_add(net.stack[i], &addr, 24), 0);
		CHECK_EQ(harp_addr_parse(i ? "fd00::2" : "fd00::1", &addr), 0);
		CHECK_EQ(harp_stack_address_add(net.stack[i], &addr, 64), 0);
	}
	net_connect(how->v6, 64);
}

static uint64_t net_stat(unsigned stack, const char *name)
{
	uint64_t value = 0;

	CHECK_EQ(harp_stack_stat(net.stack[stack], name, &value), 0);
	return value;
}

static void net_close(void)
{
	harp_conn_close(net.from);
	harp_conn_close(net.to);
	harp_listener_close(net.listener);
	for (unsigned i = 0; i < 2; i++) {
		struct harp_wire_stats wire;
		struct harp_nic_stats nic;

		net_step(MS);
		CHECK_EQ(harp_wire_stats(net.wire, i, &wire), 0);
		CHECK_EQ(wire.strict_violations, 0);
		spy_stats(&net.spy[i].nic, &nic);
		CHECK_EQ(nic.tx_invalid, 0);
	}
	harp_stack_destroy(net.stack[0]);
	harp_stack_destroy(net.stack[1]);
	harp_wire_destroy(net.wire);
	free(net.bytes);
}

/* The receiver takes frames as they come, and gives them back. */
static void net_take(void)
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
static void net_arrives(unsigned turns, uint64_t turn_ns)
{
	for (unsigned i = 0; i < turns && net.received < net.sent; i++) {
		net_step(turn_ns);
		net_take();
	}
	CHECK_EQ(net.received, net.sent);
}

/* The last ACKs come, and the card gives back what it has. */
static void net_settles(void)
{
	for (unsigned i = 0; i < 10; i++)
		net_step(10 * MS);
}

enum way { BY_COPY, BY_FRAMES, IN_PLACE };

static ssize_t net_send(enum way way, size_t len)
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

static void net_move(enum way way, size_t piece)
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

/* The same bytes through two kinds of cards: the segments that arrive are the same, to the identification. */
static void test_trains_are_segments(bool v6, enum way way, size_t piece)
{
	static struct seg plain[SEGS_MAX];
	struct how how = { .v6 = v6, .external_count = 512 };
	unsigned count = 0;
	uint32_t begin = 0;

	for (int cut = 0; cut < 2; cut++) {
		how.offloads = cut ? ALL_OFFLOADS : 0;
		net_open(&how);
		if (way == IN_PLACE)
			CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
		net_move(way, piece);
		CHECK_EQ(net_stat(0, "tcp_trains_out") > 0, cut);
		CHECK_EQ(net_stat(0, "tcp_retransmits"), 0);
		if (!cut) {
			count = net.spy[1].count;
			memcpy(plain, net.spy[1].segs, count * sizeof(plain[0]));
			CHECK(count > BYTES / 1460);
		} else {
			CHECK(net_stat(0, "tcp_train_segs_out") > count / 2);
			CHECK(net_stat(0, "tx_packets") < count * 3 / 4);
			CHECK_EQ(net.spy[1].count, count);
		}
		for (unsigned i = 0; cut && i < count && i < net.spy[1].count; i++) {
			const struct seg *a = &plain[i], *b = &net.spy[1].segs[i];

			if (i == 0)
				begin = b->seq - a->seq;
			CHECK_EQ(b->seq - a->seq, begin);
			CHECK_EQ(b->len, a->len);
			CHECK_EQ(b->flags, a->flags);
			CHECK_EQ(b->id, a->id);
		}
		net_close();
	}
}

/* RFC 9293 says of a segment what it says, whoever cut it: PSH ends a train, and nothing is missing between. */
static void test_trains_push_at_their_end(void)
{
	struct how how = { .offloads = ALL_OFFLOADS, .tso_bytes_max = 20000 };
	struct spy *spy = &net.spy[1];
	unsigned pushed = 0;

	net_open(&how);
	net_move(BY_COPY, 10 * 1448);
	for (unsigned i = 1; i < spy->count; i++) {
		CHECK_EQ(spy->segs[i].seq, spy->segs[i - 1].seq + spy->segs[i - 1].len);
		CHECK_EQ(spy->segs[i].id, (uint16_t)(spy->segs[i - 1].id + 1));
		CHECK(spy->segs[i].len <= 1448);
		pushed += (spy->segs[i].flags & TCP_PSH) != 0;
	}
	CHECK(spy->segs[spy->count - 1].flags & TCP_PSH);
	CHECK(pushed > 0 && pushed < spy->count / 2);
	net_close();
}

/* End to end with the stacks' own frames, and from the application's memory: nothing is copied. */
static void test_nothing_is_copied(enum way way, uint32_t offloads)
{
	struct how how = { .external_count = 512, .offloads = offloads };
	struct harp_tcp_info info;

	net_open(&how);
	if (way == IN_PLACE)
		CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	net_move(way, 9000);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), 0);
	CHECK_EQ(net_stat(1, "rx_copied_bytes") + net_stat(1, "rx_coalesced_bytes"), 0);
	CHECK_EQ(net_stat(0, "tx_external_bytes"), way == IN_PLACE ? BYTES : 0);
	CHECK_EQ(harp_conn_info(net.from, &info, sizeof(info)), 0);
	CHECK_EQ(info.tx_copied_bytes, 0);
	CHECK_EQ(harp_conn_info(net.to, &info, sizeof(info)), 0);
	CHECK_EQ(info.rx_copied_bytes, 0);
	net_close();
}

/* Segments are cut anywhere in the memory, and put together of pieces that lie apart; made larger for a probe
 * of the path, and smaller when it carries less: nothing is copied for any of that. */
static void test_cut_and_gathered(void)
{
	struct how how = { .external_count = 64 };
	const size_t pieces[] = { 1, 999, 3, 1448, 777, 2000, 5, 5000 };
	struct frame *first;

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	for (unsigned i = 0; i < 8; i++) {
		/* Sent from a copy of the bytes now and then, so that they do not go on where the last ended. */
		static uint8_t apart[8][5000];

		memcpy(apart[i], net.bytes + net.sent, pieces[i]);
		CHECK_EQ(harp_stack_memory_add(net.stack[0], apart[i], sizeof(apart[i])), 0);
		CHECK_EQ(harp_conn_send_external(net.from, i % 2 ? apart[i] : net.bytes + net.sent,
						 pieces[i]),
			 (ssize_t)pieces[i]);
		net.sent += pieces[i];
	}
	first = net.from->snd_unsent;
	CHECK(seg_bytes(first) == net.from->snd_mss_bytes && seg_frags(first) > 3);
	CHECK(tcp_sndq_gather(net.from, 2111));
	CHECK_EQ(seg_bytes(first), 2111);
	CHECK(tcp_sndq_gather(net.from, 5222));
	CHECK_EQ(seg_bytes(first), 5222);
	CHECK_EQ(first->next->seq, first->seq + 5222);
	CHECK(tcp_sndq_split(net.from, first, 1000)); /* between two pieces */
	CHECK(tcp_sndq_split(net.from, first, 500));
	net.from->snd_mss_bytes = 333;
	net_arrives(100000, 100000);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), 0);
	CHECK(net_stat(0, "tcp_resegmented") > 10);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net.stack[0]->pool.external_free_count, 64);
	net_close();
}

static void test_memory_rules(void)
{
	struct how how = { .external_count = 64, .complete_delay_ns = 5 * MS };
	struct harp_stack *stack;
	uint8_t *p;

	net_open(&how);
	stack = net.stack[0];
	p = net.bytes;
	CHECK_EQ(harp_stack_memory_add(stack, NULL, 10), -EINVAL);
	CHECK_EQ(harp_stack_memory_add(stack, p, 0), -EINVAL);
	CHECK_EQ(harp_stack_memory_add(stack, p, SIZE_MAX), -EINVAL);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -ENOENT);
	CHECK_EQ(harp_conn_send_external(net.from, p, 10), -EFAULT);
	CHECK_EQ(harp_stack_memory_add(stack, p, 1000), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p + 500, 1000), 0); /* overlaps */
	CHECK_EQ(harp_stack_memory_add(stack, p, 1000), 0);       /* twice */
	CHECK_EQ(harp_stack_memory_remove(stack, p, 999), -ENOENT);
	CHECK_EQ(harp_conn_send_external(net.from, p + 600, 901), -EFAULT); /* its last byte */
	CHECK_EQ(harp_conn_send_external(net.from, p - 1, 10), -EFAULT);
	CHECK_EQ(harp_conn_send_external(net.from, p + 400, SIZE_MAX - 300), -EFAULT);
	CHECK_EQ(harp_conn_send_external(net.from, p, 0), 0);
	CHECK_EQ(harp_conn_send_external(net.from, p, 1000), 1000);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), 0); /* once was one too many */
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -EBUSY);
	for (int k = 0; k < 40; k++)
		net_step(MS / 10);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000),
		 -EBUSY); /* acknowledged, not completed */
	CHECK_EQ(harp_conn_acked_bytes(net.from), 1000);
	for (int i = 0; i < 10; i++)
		net_step(MS);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -ENOENT);
	CHECK_EQ(harp_stack_memory_remove(stack, p + 500, 1000), 0);
	CHECK_EQ(harp_conn_send_external(net.from, p + 600, 1), -EFAULT);
	net_close();
}

/* An aborted connection lets go as soon as the card has. */
static void test_abort(void)
{
	struct how how = { .external_count = 64, .complete_delay_ns = 5 * MS };
	struct harp_stack *stack;

	net_open(&how);
	stack = net.stack[0];
	CHECK_EQ(harp_stack_memory_add(stack, net.bytes, BYTES), 0);
	CHECK(harp_conn_send_external(net.from, net.bytes, BYTES) > 20000);
	net_step(MS); /* some of it is with the card, most waits for the window */
	CHECK_EQ(harp_stack_memory_remove(stack, net.bytes, BYTES), -EBUSY);
	harp_conn_abort(net.from);
	CHECK_EQ(harp_stack_memory_remove(stack, net.bytes, BYTES), -EBUSY);
	net_step(6 * MS);
	CHECK_EQ(harp_stack_memory_remove(stack, net.bytes, BYTES), 0);
	CHECK_EQ(net_stat(0, "frames_tcp_external"), 0);
	net.from = NULL;
	net_close();
}

/* The application wants its memory back before the peer has what lies in it: scribbles over it, and all arrives. */
static void test_evicted(bool of_stack)
{
	struct how how = { .external_count = 64, .complete_delay_ns = 5 * MS };
	uint8_t *apart = malloc(BYTES);
	ssize_t n;

	net_open(&how);
	memcpy(apart, net.bytes, BYTES);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], apart, BYTES), 0);
	CHECK_EQ(harp_conn_send(net.from, &(struct iovec){ apart, 10 }, 1), 10);
	n = harp_conn_send_external(net.from, apart + 10, 40000);
	CHECK(n > 30000);
	net.sent = 10 + (uint64_t)n;
	net_step(MS); /* some has left */
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, 1), -ENOENT);
	n = of_stack ? harp_stack_memory_evict(net.stack[0], apart, BYTES)
		     : harp_conn_evict(net.from);
	CHECK(n > 20000);
	CHECK_EQ(net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), 10 + (uint64_t)n);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), -EBUSY); /* the card's */
	for (int i = 0; i < 60; i++)
		net_step(MS / 10);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	memset(apart, 0xee, BYTES);
	free(apart);
	net_arrives(100, MS);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx"), 0);
	net_close();
}

/* A segment of several frames is lost, and the card has given back the first of them only: it is sent again when the
 * card has done with all, and not before. */
static void test_sent_again_when_read(enum way way)
{
	const struct harp_wire_impair down = { .down = 1 }, up = { 0 };
	struct how how = { .external_count = 64 };

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &down), 0);
	net.spy[0].slow = true;
	while (net.sent < 1400) {
		CHECK_EQ(net_send(way, 100), 100);
		net.sent += 100;
	}
	CHECK(seg_frags(net.from->snd_unsent) > 1);
	for (int i = 0; i < 3000; i++)
		net_step(MS);
	CHECK(net.spy[0].held_count > 0);
	CHECK_EQ(net_stat(0, "tcp_retransmits"), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &up), 0);
	net.spy[0].slow = false;
	net_arrives(100, MS);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx") + net_stat(0, "frames_tcp_external"), 0);
	net_close();
}

/* A card that gives frames back when more has left, and no sooner: what is lost at the end is sent again as a copy. */
static void test_sent_again_when_kept(enum way way)
{
	const struct harp_wire_impair down = { .down = 1 }, up = { 0 };
	struct how how = { .external_count = 64, .lazy = true };

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &down), 0);
	net.spy[0].stuck = true;
	while (net.sent < 4000) {
		CHECK_EQ(net_send(way, 500), 500);
		net.sent += 500;
	}
	net_step(MS);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &up), 0);
	net_arrives(3000, MS);
	CHECK(net_stat(0, "tx_copied_bytes") >= net.sent);
	net.spy[0].stuck = false;
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx") + net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net_stat(0, "frames_tx_nic"), 0);
	net_close();
}

/* Records run out: whoever has some waits for its own ACKs, and everything arrives. */
static void test_few_records(void)
{
	struct how how = { .external_count = 12, .offloads = ALL_OFFLOADS };

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	net_move(IN_PLACE, 100);
	CHECK_EQ(net.stack[0]->pool.external_free_count, 12);
	net_close();
}

/* A card of the first version: whatever lies behind its structs, it has nothing of the second. */
static void test_first_version(void)
{
	struct how how = { .external_count = 64, .v1 = true };

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), -ENOTSUP);
	CHECK_EQ(harp_conn_send_external(net.from, net.bytes, 10), -EFAULT);
	net_move(BY_COPY, 9000);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), BYTES);
	net_close();
}

static void test_datagrams(void)
{
	struct how how = { .offloads = HARP_NIC_TX_CSUM };
	struct harp_endpoint at = { .port = 9000 };
	struct harp_endpoint to = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 9000 };
	struct harp_udp *a, *b;
	uint8_t got[2000];

	net_open(&how);
	CHECK_EQ(harp_udp_open(net.stack[0], NULL, NULL, &a), 0);
	CHECK_EQ(harp_udp_open(net.stack[1], &at, NULL, &b), 0);
	for (unsigned len = 0; len <= 1472; len += 736) {
		struct iovec iov = { net.bytes, len };

		CHECK_EQ(harp_udp_send(a, &to, &iov, 1), (ssize_t)len);
		net_step(MS);
		net_step(MS);
		CHECK_EQ(harp_udp_recv(b, got, sizeof(got), NULL), (ssize_t)len);
		CHECK(memcmp(got, net.bytes, len) == 0);
	}
	CHECK_EQ(net_stat(1, "drop_udp_checksum"), 0);
	harp_udp_close(a);
	harp_udp_close(b);
	net_close();
}

int main(void)
{
	test_trains_are_segments(false, BY_COPY, 9000);
	test_trains_are_segments(true, BY_COPY, 9000);
	test_trains_are_segments(false, IN_PLACE, 65536);
	test_trains_are_segments(true, IN_PLACE, 1000);
	test_trains_are_segments(false, BY_FRAMES, 9000);
	test_trains_push_at_their_end();
	for (uint32_t offloads = 0; offloads <= ALL_OFFLOADS; offloads += ALL_OFFLOADS) {
		test_nothing_is_copied(BY_FRAMES, offloads);
		test_nothing_is_copied(IN_PLACE, offloads);
	}
	test_cut_and_gathered();
	test_memory_rules();
	test_abort();
	test_evicted(true);
	test_evicted(false);
	test_sent_again_when_read(BY_FRAMES);
	test_sent_again_when_read(IN_PLACE);
	test_sent_again_when_kept(BY_FRAMES);
	test_sent_again_when_kept(IN_PLACE);
	test_few_records();
	test_first_version();
	test_datagrams();
	return check_done();
}
