/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_offload.c - two stacks on NICs with offloads: a GSO packet arrives as the segments that it stands for, and
 * nothing is copied.
 */
#include "offload_rig.h"

/* The same bytes through NICs with and without offloads: the segments that arrive are the same, to the
 * identification. */
static void test_gso_packets_are_segments(bool v6, enum way way, size_t piece)
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
		CHECK_EQ(net_stat(0, "tcp_tso_packets_out") > 0, cut);
		CHECK_EQ(net_stat(0, "tcp_retransmits"), 0);
		if (!cut) {
			count = net.recorder[1].count;
			memcpy(plain, net.recorder[1].segs, count * sizeof(plain[0]));
			CHECK(count > BYTES / 1460);
		} else {
			CHECK(net_stat(0, "tcp_tso_segs_out") > count / 2);
			CHECK(net_stat(0, "tx_packets") < count * 3 / 4);
			CHECK_EQ(net.recorder[1].count, count);
		}
		for (unsigned i = 0; cut && i < count && i < net.recorder[1].count; i++) {
			const struct seg *a = &plain[i], *b = &net.recorder[1].segs[i];

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

/* PSH is in the last segment of a GSO packet, and the segments follow each other. */
TEST(a_gso_packet_has_psh_at_its_end)
{
	struct how how = { .offloads = ALL_OFFLOADS, .tso_bytes_max = 20000 };
	struct recorder *recorder = &net.recorder[1];
	unsigned pushed = 0;

	net_open(&how);
	net_move(BY_COPY, 10 * 1448);
	for (unsigned i = 1; i < recorder->count; i++) {
		CHECK_EQ(recorder->segs[i].seq,
			 recorder->segs[i - 1].seq + recorder->segs[i - 1].len);
		CHECK_EQ(recorder->segs[i].id, (uint16_t)(recorder->segs[i - 1].id + 1));
		CHECK(recorder->segs[i].len <= 1448);
		pushed += (recorder->segs[i].flags & TCP_PSH) != 0;
	}
	CHECK(recorder->segs[recorder->count - 1].flags & TCP_PSH);
	CHECK(pushed > 0 && pushed < recorder->count / 2);
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

/* Segments are cut anywhere in the memory, and put together of pieces that lie apart; made larger
 * for a probe of the path, and smaller when it carries less: nothing is copied for any of that. */
TEST(resegmenting_copies_nothing)
{
	struct how how = { .external_count = 64 };
	const size_t pieces[] = { 1, 999, 3, 1448, 777, 2000, 5, 5000 };
	struct frame *first;

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	for (unsigned i = 0; i < 8; i++) {
		/* Sent from a copy of the bytes now and then, so that they do not go on where the
		 * last ended. */
		static uint8_t apart[8][5000];

		memcpy(apart[i], net.bytes + net.sent, pieces[i]);
		CHECK_EQ(harp_stack_memory_add(net.stack[0], apart[i], sizeof(apart[i])), 0);
		CHECK_EQ(harp_conn_send_external(net.from, i % 2 ? apart[i] : net.bytes + net.sent,
						 pieces[i]),
			 (ssize_t)pieces[i]);
		net.sent += pieces[i];
	}
	first = net.from->sndq.unsent;
	CHECK(seg_bytes(first) == net.from->snd.mss_bytes && seg_frags(first) > 3);
	CHECK(tcp_resegment_gather(net.from, 2111));
	CHECK_EQ(seg_bytes(first), 2111);
	first->next->tcp_flags |= SEG_PUSH; /* the end of a handover, which the next one takes in */
	CHECK_EQ(first->tcp_flags, 0);
	CHECK(tcp_resegment_gather(net.from, 5222));
	CHECK_EQ(seg_bytes(first), 5222);
	CHECK_EQ(first->next->seq, first->seq + 5222);
	CHECK(tcp_resegment_split(net.from, first, 1000)); /* between two pieces */
	CHECK_EQ(first->tcp_flags, 0);
	CHECK_EQ(first->next->tcp_flags, SEG_PUSH);
	CHECK(tcp_resegment_split(net.from, first, 500));
	net.from->snd.mss_bytes = 333;
	net_arrives(100000, 100000);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), 0);
	CHECK(net_stat(0, "tcp_resegmented") > 10);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net.stack[0]->pool.external_free_count, 64);
}

/* A segment of several frames is lost, and the card has given back the first of them only: it is
 * sent again when the card has done with all, and not before. */
static void test_sent_again_when_read(enum way way)
{
	const struct harp_wire_impair down = { .down = 1 }, up = { 0 };
	struct how how = { .external_count = 64 };

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &down), 0);
	net.recorder[0].slow = true;
	while (net.sent < 1400) {
		CHECK_EQ(net_send(way, 100), 100);
		net.sent += 100;
	}
	CHECK(seg_frags(net.from->sndq.unsent) > 1);
	for (int i = 0; i < 3000; i++)
		net_step(MS);
	CHECK(net.recorder[0].held_count > 0);
	CHECK_EQ(net_stat(0, "tcp_retransmits"), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &up), 0);
	net.recorder[0].slow = false;
	net_arrives(100, MS);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx") + net_stat(0, "frames_tcp_external"), 0);
	net_close();
}

/* A card that gives frames back when more has left, and no sooner: what is lost at the end is sent
 * again as a copy. */
static void test_sent_again_when_kept(enum way way)
{
	const struct harp_wire_impair down = { .down = 1 }, up = { 0 };
	struct how how = { .external_count = 64, .lazy = true };

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &down), 0);
	net.recorder[0].stuck = true;
	while (net.sent < 4000) {
		CHECK_EQ(net_send(way, 500), 500);
		net.sent += 500;
	}
	net_step(MS);
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &up), 0);
	net_arrives(3000, MS);
	CHECK(net_stat(0, "tx_copied_bytes") >= net.sent);
	net.recorder[0].stuck = false;
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx") + net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net_stat(0, "frames_tx_nic"), 0);
	net_close();
}

/* A card of the first version: whatever lies behind its structs, it has nothing of the second. */
TEST(a_nic_of_the_first_version_has_no_offloads)
{
	struct how how = { .external_count = 64, .v1 = true };

	net_open(&how);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), -ENOTSUP);
	CHECK_EQ(harp_conn_send_external(net.from, net.bytes, 10), -EFAULT);
	net_move(BY_COPY, 9000);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), BYTES);
}

TEST(datagrams_have_good_checksums)
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
}

/* A card says when it has done with what it has, and has not got this yet. */
TEST(a_segment_made_between_polls_is_due_now)
{
	struct how how = { 0 };

	net_open(&how);
	for (int i = 0; i < 4; i++)
		net_step(MS);
	CHECK(harp_stack_next_deadline_ns(net.stack[0]) > net.now_ns);
	harp_conn_abort(net.from);
	CHECK_EQ(harp_stack_next_deadline_ns(net.stack[0]), net.now_ns);
	harp_stack_poll(net.stack[0], net.now_ns);
	CHECK(harp_stack_next_deadline_ns(net.stack[0]) > net.now_ns);
	CHECK_EQ(net_stat(0, "tcp_rst_out"), 1);
	net.from = NULL;
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
	test_sent_again_when_read(BY_FRAMES);
	test_sent_again_when_read(IN_PLACE);
	test_sent_again_when_kept(BY_FRAMES);
	test_sent_again_when_kept(IN_PLACE);
	return check_done();
}
