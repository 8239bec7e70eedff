/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_offload.c - stacks on NICs with TSO, checksum offload and external frames. A GSO packet
 * arrives as its segments, nothing is copied, and application memory is released when neither the
 * stack nor the NIC refers to it.
 */
#include "memory/external.h"
#include "net_rig.h"

#define ALL_OFFLOADS (HARP_NIC_TX_CSUM | HARP_NIC_TX_TSO)

/* Two stacks on a strict wire with these options. */
#define SETUP(...)                                                                                 \
	((struct net_setup){ .tx_frames = 64,                                                      \
			     .wire = { .tx_frags_max = 48, .strict = 1, __VA_ARGS__ } })

enum send_method { BY_COPY, BY_FRAMES, IN_PLACE };

static ssize_t net_send(enum send_method method, size_t len)
{
	struct iovec iov = { net.bytes + net.sent, len };
	struct harp_frame *frame;
	int err;

	if (method == BY_COPY)
		return harp_conn_send(net.sender, &iov, 1);
	if (method == IN_PLACE)
		return harp_conn_send_external(net.sender, iov.iov_base, len);
	err = harp_frame_alloc(net.sender, &frame);
	if (err)
		return err;
	frame->len = len < frame->capacity ? (uint32_t)len : frame->capacity;
	memcpy(frame->data, iov.iov_base,
	       frame->len); /* a copy by the application, not by the stack */
	len = frame->len;
	CHECK_EQ(harp_conn_send_frame(net.sender, frame), 0);
	return (ssize_t)len;
}

static void net_transfer(enum send_method method, size_t piece_bytes)
{
	for (int i = 0; i < 20000 && net.received < BYTES; i++) {
		ssize_t n = 1;

		while (n > 0 && net.sent < BYTES) {
			size_t rest_bytes = BYTES - net.sent;

			n = net_send(method, rest_bytes < piece_bytes ? rest_bytes : piece_bytes);
			CHECK(n > 0 || n == -EAGAIN);
			net.sent += n > 0 ? (uint64_t)n : 0;
		}
		net_step(100000);
		net_take();
	}
	CHECK_EQ(net.received, BYTES);
	net_settles();
	CHECK_EQ(harp_conn_acked_bytes(net.sender), BYTES);
}

/* With and without offloads the received segments are the same, including the IPv4
 * identification. */
static void test_gso_packets_are_segments(bool v6, enum send_method method, size_t piece_bytes)
{
	static struct seg plain[TAP_SEGS_MAX];
	struct net_setup setup = SETUP(.external_count = 512);
	unsigned count = 0;
	uint32_t begin = 0;

	for (int offload = 0; offload < 2; offload++) {
		setup.v6 = v6;
		setup.wire.offloads = offload ? ALL_OFFLOADS : 0;
		net_open_connected(setup);
		if (method == IN_PLACE)
			CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
		net_transfer(method, piece_bytes);
		CHECK_EQ(net_stat(0, "tcp_tso_packets_out") > 0, offload);
		CHECK_EQ(net_stat(0, "tcp_retransmits"), 0);
		if (!offload) {
			count = net.tap[1].count;
			memcpy(plain, net.tap[1].segs, count * sizeof(plain[0]));
			CHECK(count > BYTES / 1460);
		} else {
			CHECK(net_stat(0, "tcp_tso_segs_out") > count / 2);
			CHECK(net_stat(0, "tx_packets") < count * 3 / 4);
			CHECK_EQ(net.tap[1].count, count);
		}
		for (unsigned i = 0; offload && i < count && i < net.tap[1].count; i++) {
			const struct seg *a = &plain[i], *b = &net.tap[1].segs[i];

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

AFTER_EACH(net_close())

/* No byte is copied end to end, neither from the stack's frames nor from application memory. */
static void test_nothing_is_copied(enum send_method method, uint32_t offloads)
{
	struct harp_tcp_info info;

	net_open_connected(SETUP(.external_count = 512, .offloads = offloads));
	if (method == IN_PLACE)
		CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	net_transfer(method, 9000);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), 0);
	CHECK_EQ(net_stat(1, "rx_copied_bytes") + net_stat(1, "rx_coalesced_bytes"), 0);
	CHECK_EQ(net_stat(0, "tx_external_bytes"), method == IN_PLACE ? BYTES : 0);
	harp_conn_info(net.sender, &info);
	CHECK_EQ(info.tx_copied_bytes, 0);
	harp_conn_info(net.receiver, &info);
	CHECK_EQ(info.rx_copied_bytes, 0);
	net_close();
}

/* Segments consist of non-contiguous pieces of memory. They grow for a path MTU probe and are split
 * when the MTU falls. No step copies a byte. */
TEST(resegmenting_copies_nothing)
{
	const size_t pieces[] = { 1, 999, 3, 1448, 777, 2000, 5, 5000 };
	struct frame *first;

	net_open_connected(SETUP(.external_count = 64));
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	for (unsigned i = 0; i < 8; i++) {
		/* Every other piece is sent from a copy, so that the pieces are not contiguous. */
		static uint8_t copies[8][5000];

		memcpy(copies[i], net.bytes + net.sent, pieces[i]);
		CHECK_EQ(harp_stack_memory_add(net.stack[0], copies[i], sizeof(copies[i])), 0);
		CHECK_EQ(harp_conn_send_external(net.sender,
						 i % 2 ? copies[i] : net.bytes + net.sent,
						 pieces[i]),
			 (ssize_t)pieces[i]);
		net.sent += pieces[i];
	}
	first = net.sender->sndq.unsent;
	CHECK(seg_bytes(first) == net.sender->snd.mss_bytes && seg_frags(first) > 3);
	CHECK(tcp_resegment_gather(net.sender, 2111));
	CHECK_EQ(seg_bytes(first), 2111);
	first->next->tcp_flags |= SEG_PUSH; /* the end of a write, which the next call gathers */
	CHECK_EQ(first->tcp_flags, 0);
	CHECK(tcp_resegment_gather(net.sender, 5222));
	CHECK_EQ(seg_bytes(first), 5222);
	CHECK_EQ(first->next->seq, first->seq + 5222);
	CHECK(tcp_resegment_split(net.sender, first, 1000)); /* between two pieces */
	CHECK_EQ(first->tcp_flags, 0);
	CHECK_EQ(first->next->tcp_flags, SEG_PUSH);
	CHECK(tcp_resegment_split(net.sender, first, 500));
	net.sender->snd.mss_bytes = 333;
	net_arrives(100000, 100000);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), 0);
	CHECK(net_stat(0, "tcp_resegmented") > 10);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net.stack[0]->pool.external_free_count, 64);
}

/* A segment of several frames is lost, and the NIC has completed only the first one. The segment is
 * retransmitted only after the NIC has completed all frames. */
static void test_retransmission_waits_for_completions(enum send_method method)
{
	const struct harp_wire_impair down = { .down = 1 }, up = { 0 };

	net_open_connected(SETUP(.external_count = 64));
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &down), 0);
	net.tap[0].slow = true;
	while (net.sent < 1400) {
		CHECK_EQ(net_send(method, 100), 100);
		net.sent += 100;
	}
	CHECK(seg_frags(net.sender->sndq.unsent) > 1);
	for (int i = 0; i < 3000; i++)
		net_step(MS);
	CHECK(net.tap[0].held_count > 0);
	CHECK_EQ(net_stat(0, "tcp_retransmits"), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &up), 0);
	net.tap[0].slow = false;
	net_arrives(100, MS);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx") + net_stat(0, "frames_tcp_external"), 0);
	net_close();
}

/* The NIC completes frames only when it sends more. A loss at the end of the data is retransmitted
 * from a copy. */
static void test_retransmission_as_a_copy(enum send_method method)
{
	const struct harp_wire_impair down = { .down = 1 }, up = { 0 };
	struct net_setup setup = SETUP(.external_count = 64);

	setup.lazy = true;
	net_open_connected(setup);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &down), 0);
	net.tap[0].stuck = true;
	while (net.sent < 4000) {
		CHECK_EQ(net_send(method, 500), 500);
		net.sent += 500;
	}
	net_step(MS);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &up), 0);
	net_arrives(3000, MS);
	CHECK(net_stat(0, "tx_copied_bytes") >= net.sent);
	net.tap[0].stuck = false;
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx") + net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net_stat(0, "frames_tx_nic"), 0);
	net_close();
}

TEST(datagrams_have_good_checksums)
{
	struct harp_endpoint local = { .port = 9000 };
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = 9000 };
	struct harp_udp *a, *b;
	uint8_t got[2000];

	net_open_connected(SETUP(.offloads = HARP_NIC_TX_CSUM));
	CHECK_EQ(harp_udp_open(net.stack[0], NULL, NULL, &a), 0);
	CHECK_EQ(harp_udp_open(net.stack[1], &local, NULL, &b), 0);
	for (unsigned len = 0; len <= 1472; len += 736) {
		struct iovec iov = { net.bytes, len };

		CHECK_EQ(harp_udp_send(a, &remote, &iov, 1), (ssize_t)len);
		net_step(MS);
		net_step(MS);
		CHECK_EQ(harp_udp_recv(b, got, sizeof(got), NULL), (ssize_t)len);
		CHECK(memcmp(got, net.bytes, len) == 0);
	}
	CHECK_EQ(net_stat(1, "drop_udp_checksum"), 0);
	harp_udp_close(a);
	harp_udp_close(b);
}

/* The NIC does not have this segment yet, so the next completion is not its deadline. */
TEST(a_segment_created_between_polls_is_due_now)
{
	net_open_connected(SETUP());
	for (int i = 0; i < 4; i++)
		net_step(MS);
	CHECK(harp_stack_next_deadline_ns(net.stack[0]) > net.now_ns);
	harp_conn_abort(net.sender);
	CHECK_EQ(harp_stack_next_deadline_ns(net.stack[0]), net.now_ns);
	harp_stack_poll(net.stack[0], net.now_ns);
	CHECK(harp_stack_next_deadline_ns(net.stack[0]) > net.now_ns);
	CHECK_EQ(net_stat(0, "tcp_rst_out"), 1);
	net.sender = NULL;
}

/* ---- the application's memory ---------------------------------------------------------------- */

TEST(only_registered_memory_is_sent_in_place)
{
	struct harp_stack *stack;
	uint8_t *p;

	net_open_connected(SETUP(.external_count = 64, .complete_delay_ns = 5 * MS));
	stack = net.stack[0];
	p = net.bytes;
	CHECK_EQ(harp_stack_memory_add(stack, NULL, 10), -EINVAL);
	CHECK_EQ(harp_stack_memory_add(stack, p, 0), -EINVAL);
	CHECK_EQ(harp_stack_memory_add(stack, p, SIZE_MAX), -EINVAL);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -ENOENT);
	CHECK_EQ(harp_conn_send_external(net.sender, p, 10), -EFAULT);
	CHECK_EQ(harp_stack_memory_add(stack, p, 1000), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p + 500, 1000), 0); /* overlaps */
	CHECK_EQ(harp_stack_memory_add(stack, p, 1000), 0);       /* twice */
	CHECK_EQ(harp_stack_memory_remove(stack, p, 999), -ENOENT);
	CHECK_EQ(harp_conn_send_external(net.sender, p + 600, 901),
		 -EFAULT); /* beyond the region by a byte */
	CHECK_EQ(harp_conn_send_external(net.sender, p - 1, 10), -EFAULT);
	CHECK_EQ(harp_conn_send_external(net.sender, p + 400, SIZE_MAX - 300), -EFAULT);
	CHECK_EQ(harp_conn_send_external(net.sender, p, 0), 0);
	CHECK_EQ(harp_conn_send_external(net.sender, p, 1000), 1000);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), 0); /* it was added twice */
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -EBUSY);
	for (int k = 0; k < 40; k++)
		net_step(MS / 10);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000),
		 -EBUSY); /* acknowledged, not completed */
	CHECK_EQ(harp_conn_acked_bytes(net.sender), 1000);
	for (int i = 0; i < 10; i++)
		net_step(MS);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -ENOENT);
	CHECK_EQ(harp_stack_memory_remove(stack, p + 500, 1000), 0);
	CHECK_EQ(harp_conn_send_external(net.sender, p + 600, 1), -EFAULT);
}

/* Checks that all data arrives and no frame is left. */
static void arrives(void)
{
	net_arrives(3000, MS);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx") + net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net_stat(0, "frames_tx_nic"), 0);
}

/* Sends as much as possible from a registered copy of the bytes, offset by ten. */
static uint8_t *send_apart(size_t len)
{
	uint8_t *apart = malloc(BYTES);
	ssize_t n;

	memcpy(apart, net.bytes, BYTES);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], apart, BYTES), 0);
	CHECK_EQ(harp_conn_send(net.sender, &(struct iovec){ apart, 10 }, 1), 10);
	n = harp_conn_send_external(net.sender, apart + 10, len);
	CHECK(n > 8000);
	net.sent = 10 + (uint64_t)n;
	return apart;
}

static void scribble(uint8_t *apart)
{
	memset(apart, 0xee, BYTES);
	free(apart);
}

/* Segments wait for a NIC whose ring stays full, such as a memif whose peer has stopped. */
static uint8_t *send_to_a_full_nic(void)
{
	uint8_t *apart;

	net_open_connected(SETUP(.external_count = 64));
	net.tap[0].full = true;
	apart = send_apart(40000);
	net_step(MS);
	return apart;
}

/* Eviction drops the waiting segments, and the memory is free at once. */
TEST(eviction_from_a_full_nic_is_immediate)
{
	uint8_t *apart = send_to_a_full_nic();

	CHECK(net_stat(0, "frames_tx_nic") > 0);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), -EBUSY);
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, BYTES), (ssize_t)net.sent - 10);
	CHECK(net_stat(0, "tx_forgotten") > 0);
	CHECK_EQ(net_stat(0, "tx_evicted_bytes"), net.sent - 10);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	scribble(apart);
	net_step(MS);
	net.tap[0].full = false;
	arrives();
}

/* Each eviction flushes the NIC, which completes its frames at the third flush. */
TEST(an_eviction_from_a_nic_without_progress_ends)
{
	struct harp_stack *stack;
	uint8_t *apart;
	unsigned evictions;

	net_open_connected(SETUP(.external_count = 64));
	stack = net.stack[0];
	net.tap[0].stuck = true;
	net.tap[0].flushes = 3;
	apart = send_apart(40000);
	net_step(MS);
	CHECK(net_stat(0, "frames_tx_nic") > 0);
	for (evictions = 0;
	     harp_stack_memory_remove(stack, apart, BYTES) == -EBUSY && evictions < 10;
	     evictions++) {
		CHECK(harp_stack_memory_evict(stack, apart, BYTES) >= 0);
		net_step(MS);
	}
	CHECK_EQ(evictions, 3);
	scribble(apart);
	arrives();
}

TEST(work_behind_an_eviction_is_due_at_once)
{
	uint8_t *apart = send_to_a_full_nic();

	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, BYTES), (ssize_t)net.sent - 10);
	harp_conn_abort(net.sender);
	CHECK_EQ(harp_stack_next_deadline_ns(net.stack[0]), net.now_ns);
	net.sender = NULL;
	scribble(apart);
	net.tap[0].full = false;
	net_step(MS);
}

TEST(an_eviction_leaves_other_memory_alone)
{
	static uint8_t other[1000];

	net_open_connected(SETUP(.external_count = 64));
	CHECK_EQ(harp_stack_memory_add(net.stack[0], other, sizeof(other)), 0);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	net.tap[0].full = true;
	CHECK_EQ(harp_conn_send_external(net.sender, net.bytes, 3000), 3000);
	net.sent = 3000;
	net_step(MS);
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], other, sizeof(other)), 0);
	CHECK_EQ(net_stat(0, "tx_forgotten") + net_stat(0, "tx_evicted_bytes"), 0);
	/* The ring is still full. */
	CHECK(harp_stack_next_deadline_ns(net.stack[0]) > net.now_ns);
	net.tap[0].full = false;
	arrives();
	CHECK_EQ(net_stat(0, "tcp_retransmits") + net_stat(0, "tx_copied_bytes"), 0);
}

/* Without a free frame the bytes are copied into the frames of the headers. */
TEST(an_eviction_needs_no_free_frame)
{
	struct frame_pool *pool;
	uint32_t free_count;
	uint8_t *apart;

	net_open_connected(SETUP(.external_count = 64));
	pool = &net.stack[0]->pool;
	apart = send_apart(40000);
	free_count = pool->free_count;
	pool->free_count = 0;
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, BYTES), (ssize_t)net.sent - 10);
	pool->free_count = free_count;
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	scribble(apart);
	arrives();
}

/* Packets larger than a frame, and no free frame: the connection ends with -ENOBUFS. */
TEST(an_eviction_without_room_ends_the_connection)
{
	struct frame_pool *pool;
	uint32_t free_count;
	uint8_t *apart;

	net_open_connected(SETUP(.external_count = 64, .mtu_bytes = 9000));
	pool = &net.stack[0]->pool;
	apart = send_apart(40000);
	free_count = pool->free_count;
	pool->free_count = 0;
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, BYTES), 0);
	pool->free_count += free_count; /* some were released */
	CHECK_EQ(harp_conn_error(net.sender), -ENOBUFS);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	scribble(apart);
}

TEST(evicted_memory_is_refused_until_it_is_added_again)
{
	struct harp_stack *stack;
	uint8_t *p;

	net_open_connected(SETUP(.external_count = 64, .complete_delay_ns = 5 * MS));
	stack = net.stack[0];
	p = net.bytes;
	CHECK_EQ(harp_stack_memory_add(stack, p, BYTES), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_stack_memory_evict(stack, p, BYTES / 2), 0); /* one of two registrations */
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES), 0);
	CHECK_EQ(harp_conn_send_external(net.sender, p, 1000), 1000);
	net_step(MS); /* the NIC has it */
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_stack_memory_evict(stack, p, BYTES / 2), 1000);
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), -EBUSY);
	CHECK_EQ(harp_conn_send_external(net.sender, p + 1000, 1000), -EFAULT);
	CHECK_EQ(harp_stack_memory_add(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_conn_send_external(net.sender, p + 1000, 1000), 1000);
	net.sent = 2000;
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), 0);
	arrives();
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), -ENOENT);
}

TEST(overlapping_memory_stays_registered)
{
	struct harp_stack *stack;
	uint8_t *p;

	net_open_connected(SETUP(.external_count = 64));
	stack = net.stack[0];
	p = net.bytes;
	CHECK_EQ(harp_stack_memory_add(stack, p, 5000), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p, 9000), 0);
	CHECK_EQ(harp_conn_send_external(net.sender, p, 1000), 1000);
	CHECK_EQ(harp_conn_send_external(net.sender, p + 1000, 8000), 8000);
	net.sent = 9000;
	CHECK(harp_stack_memory_evict(stack, p, 5000) > 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 5000), 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 9000), -EBUSY);
	arrives();
	CHECK_EQ(harp_stack_memory_remove(stack, p, 9000), 0);
}

/* The application evicts its memory before the peer has received the bytes, and overwrites it. The
 * peer receives the original bytes. */
static void evict(bool from_stack)
{
	uint8_t *apart;
	ssize_t n;

	net_open_connected(SETUP(.external_count = 64, .complete_delay_ns = 5 * MS));
	apart = send_apart(40000);
	CHECK(net.sent > 30000);
	net_step(MS); /* some segments are sent */
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, 1), -ENOENT);
	n = from_stack ? harp_stack_memory_evict(net.stack[0], apart, BYTES)
		       : harp_conn_evict(net.sender);
	CHECK(n > 20000);
	CHECK_EQ(net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), 10 + (uint64_t)n);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), -EBUSY); /* in use */
	for (int i = 0; i < 60; i++)
		net_step(MS / 10);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	scribble(apart);
	arrives();
	net_close();
}

TEST(the_memory_of_a_stack_or_a_connection_is_evicted)
{
	evict(true);
	evict(false);
}

int main(void)
{
	test_gso_packets_are_segments(false, BY_COPY, 9000);
	test_gso_packets_are_segments(true, BY_COPY, 9000);
	test_gso_packets_are_segments(false, IN_PLACE, 65536);
	test_gso_packets_are_segments(true, IN_PLACE, 1000);
	test_gso_packets_are_segments(false, BY_FRAMES, 9000);
	check_run();
	for (uint32_t offloads = 0; offloads <= ALL_OFFLOADS; offloads += ALL_OFFLOADS) {
		test_nothing_is_copied(BY_FRAMES, offloads);
		test_nothing_is_copied(IN_PLACE, offloads);
	}
	test_retransmission_waits_for_completions(BY_FRAMES);
	test_retransmission_waits_for_completions(IN_PLACE);
	test_retransmission_as_a_copy(BY_FRAMES);
	test_retransmission_as_a_copy(IN_PLACE);
	return check_done();
}
