/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_timer.c - when segments are sent: RTT samples, probes, and segments that wait for a
 * frame, a next hop or a NIC. The peer's window: its scale, sizes of a few bytes, and the FIN that
 * must fit.
 */

#include "rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

TEST(the_application_can_probe)
{
	rig_begin(&rig, NULL);
	CHECK_EQ(harp_conn_probe(rig.conn), 0);
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, rig.ack - 1);
	/* The peer's probe is answered. */
	struct rig_say say = rig_usual(&rig, TCP_ACK, 0);

	say.seq--;
	rig_says(&rig, say);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
}

TEST(a_retransmitted_segment_gives_no_rtt_sample)
{
	struct rig_say say;

	rig_begin(&rig, NULL);
	rig.conn->rtt.srtt_ns = 0;
	CHECK_EQ(rig_write(&rig, 100), 100);
	rig_wait(&rig, 2 * RIG_MS);
	say = rig_usual(&rig, TCP_ACK, 0);
	say.ack += 100;
	rig_says(&rig, say);
	CHECK_EQ(rig_info(&rig).srtt_ns, 2 * RIG_MS);
	CHECK_EQ(rig_info(&rig).rttvar_ns, RIG_MS);
	CHECK_EQ(rig_write(&rig, 100), 100);
	rig_wait(&rig, 500 * RIG_MS); /* retransmitted: no sample (Karn's algorithm) */
	say.ack += 100;
	rig_says(&rig, say);
	CHECK_EQ(rig_info(&rig).srtt_ns, 2 * RIG_MS);
	CHECK(rig_info(&rig).retransmits > 0);
}

/* The segments after a hole arrived long before the retransmission that their ACK waited for. */
TEST(segments_behind_a_hole_give_no_rtt_sample)
{
	uint64_t before_ns;

	rig_begin(&rig, NULL);
	before_ns = rig_info(&rig).srtt_ns;
	CHECK_EQ(rig_write(&rig, 4 * 1448), 4 * 1448);
	rig_wait(&rig, 100 * RIG_MS);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), rig_stat(&rig, "tcp_rto"));
	rig_drain(&rig);
	rig_acks(&rig, 4 * 1448);
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_rto"), 0);
	CHECK_EQ(rig_info(&rig).srtt_ns, before_ns);
}

/* An ACK of all data in flight stops the timer, but data that waits for address resolution needs a
 * timer. */
TEST(data_that_waits_for_address_resolution_has_a_deadline)
{
	struct harp_addr peer = harp_addr_v4(10, 0, 0, 2);

	rig_begin(&rig, NULL);
	rig_writes(&rig, 100);
	CHECK_EQ(harp_stack_neighbor_set(rig.stack, &peer, NULL), 0);
	CHECK_EQ(rig_write(&rig, 100), 100);
	CHECK_EQ(rig.conn->on_list.tx, TX_LIST_UNRESOLVED);
	CHECK_EQ(rig_stat(&rig, "neighbor_wait"), 1);
	rig_acks(&rig, 100);
	CHECK_EQ(rig.conn->snd.una_seq, rig.conn->snd.nxt_seq);
	rig_silent(&rig);
	CHECK_EQ(rig.conn->on_list.tx, TX_LIST_UNRESOLVED);
	CHECK(harp_stack_next_deadline_ns(rig.stack) < rig.now_ns + RIG_S);
}

/* RFC 6298 section 5 (5.1): the timer starts when the data is sent. The time of address resolution
 * is part of neither the timeout nor the round trip. */
TEST(the_timeout_begins_when_resolved_data_is_sent)
{
	struct harp_addr peer = harp_addr_v4(10, 0, 0, 2);
	uint64_t rto_ns;

	rig_begin(&rig, NULL);
	rto_ns = tcp_timer_rto_ns(rig.conn);
	CHECK_EQ(harp_stack_neighbor_set(rig.stack, &peer, NULL), 0);
	CHECK_EQ(rig_write(&rig, 4 * 1448), 4 * 1448);
	rig_wait(&rig, rto_ns - RIG_MS);
	CHECK_EQ(harp_stack_neighbor_set(rig.stack, &peer, rig_peer_mac), 0);
	rig_poll(&rig);
	CHECK_EQ(rig_pending(&rig), 4);
	rig_drain(&rig);
	rig_wait(&rig, 2 * RIG_MS);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
	rig_acks(&rig, 4 * 1448);
}

TEST(the_round_trip_begins_when_a_resolved_syn_is_sent)
{
	struct harp_addr peer = harp_addr_v4(10, 0, 0, 2);

	rig_open(&rig);
	CHECK_EQ(harp_stack_neighbor_set(rig.stack, &peer, NULL), 0);
	CHECK_EQ(rig_connect(&rig, NULL, &rig.conn), 0);
	rig_wait(&rig, 1500 * RIG_MS); /* more than the initial RTO */
	rig_silent(&rig);
	CHECK_EQ(harp_stack_neighbor_set(rig.stack, &peer, rig_peer_mac), 0);
	rig_poll(&rig);
	rig.port = rig.out[rig.out_head % RIG_QUEUE].src_port;
	rig.ack = rig_expect(&rig, TCP_SYN)->seq + 1;
	rig.now_ns += RIG_MS;
	rig_syn_acked(&rig);
	CHECK_EQ(rig_info(&rig).srtt_ns, RIG_MS + 1);
}

/* A segment must be split to fit the window, nothing is in flight, and the pool is empty. No ACK
 * and no timer would make the stack retry. */
TEST(a_split_without_a_free_frame_is_retried)
{
	struct iovec iov = { .iov_base = (uint8_t[1448]){ 0 }, .iov_len = 1448 };
	struct frame *frames = NULL, *f;
	struct rig_say say;

	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	say = rig_syn(&rig, TCP_SYN | TCP_ACK);
	say.wnd = 1000;
	rig_says(&rig, say);
	rig.seq++;
	rig_expect(&rig, TCP_ACK);
	rig_poll(&rig);
	CHECK_EQ(harp_conn_send(rig.conn, &iov, 1), 1448);
	while ((f = frame_alloc(&rig.stack->pool, 0)) != NULL) {
		f->next = frames;
		frames = f;
	}
	rig_poll(&rig);
	rig_silent(&rig);
	CHECK_EQ(rig.conn->on_list.tx, TX_LIST_BLOCKED);
	while ((f = frames) != NULL) {
		frames = f->next;
		frame_release(&rig.stack->pool, f);
	}
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 1000);
}

static unsigned complete_nothing(struct harp_nic *nic, uint64_t *addrs, unsigned max,
				 uint64_t now_ns)
{
	return 0;
}

/* A NIC without next_ns (AF_XDP) is polled for completions: at once, then at growing intervals. A
 * segment to be retransmitted while the NIC holds it waits for the completion. */
TEST(a_nic_that_holds_packets_is_polled_again)
{
	struct harp_nic_ops ops;
	const struct harp_nic_ops *original;
	unsigned polls = 0;
	uint64_t until_ns;

	rig_open(&rig);
	original = rig.nic->ops;
	ops = *original;
	ops.next_ns = NULL;
	ops.complete = complete_nothing;
	rig.nic->ops = &ops;
	rig_established(&rig, NULL);
	CHECK_EQ(rig_write(&rig, 4 * 1448), 4 * 1448);
	CHECK(rig.stack->io.tx_held > 0);
	CHECK(harp_stack_next_deadline_ns(rig.stack) <= rig.now_ns + 20000);
	for (until_ns = rig.now_ns + RIG_S; rig.now_ns < until_ns; polls++) {
		rig.now_ns = harp_stack_next_deadline_ns(rig.stack);
		rig_poll(&rig);
	}
	CHECK(polls < 100);
	CHECK_EQ(rig.conn->on_list.tx, TX_LIST_BLOCKED); /* to be retransmitted after a timeout */
	CHECK_EQ(rig_pending(&rig), 4);
	CHECK(harp_stack_next_deadline_ns(rig.stack) < UINT64_MAX);
	ops.complete = original->complete;
	rig.now_ns = harp_stack_next_deadline_ns(rig.stack);
	rig_poll(&rig);
	CHECK(rig_pending(&rig) > 4);
	rig_poll(&rig);
	CHECK_EQ(rig.stack->io.tx_held, 0);
	rig.nic->ops = original;
}

/* ---- the peer's window ----------------------------------------------------------------------- */

/* RFC 7323 section 2.2: the window of a SYN-ACK is never scaled, not even in a simultaneous open.
 * The ECE that negotiates ECN reports no mark. */
TEST(the_window_of_a_simultaneous_syn_ack_is_not_scaled)
{
	struct rig_say syn;

	for (uint32_t wnd = 1; wnd <= 65535; wnd += 65534) {
		rig_open(&rig);
		rig_syn_sent_flags(&rig, RIG_OPTIONS(.ecn = HARP_ECN_REQUEST),
				   TCP_SYN | TCP_ECE | TCP_CWR);
		syn = rig_syn(&rig, TCP_SYN | TCP_ECE | TCP_CWR);
		syn.options[syn.options_len - 1] = 14; /* the window scale comes last */
		rig_says(&rig, syn);
		CHECK_EQ(rig.conn->snd.wscale, 14);
		rig_drain(&rig);
		syn.flags = TCP_SYN | TCP_ACK | TCP_ECE;
		syn.wnd = wnd;
		rig.seq++;
		rig_says(&rig, syn);
		rig_poll(&rig);
		CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
		CHECK_EQ(rig.conn->snd.wnd_bytes, wnd);
		CHECK_EQ(rig.conn->acct.ecn_ece_in, 0);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		/* Later windows are scaled. */
		rig_window(&rig, 3);
		CHECK_EQ(rig.conn->snd.wnd_bytes, 3 << 14);
		rig_close(&rig);
	}
}

/* Connects to a peer without window scaling that advertises this window. */
static void connect_to_window(uint32_t wnd)
{
	rig_open(&rig);
	rig.wscale = false;
	rig_syn_sent(&rig, NULL);
	rig_syn_acked_as(&rig, 0, wnd);
}

/* RFC 9293 section 3.8.6.2.1: half of the largest window rounds to 0, so the override timeout of
 * 0.1 s sends a byte at a time. */
TEST(a_window_of_one_byte_is_filled_at_the_override_timeout)
{
	uint64_t start_ns;
	unsigned sent = 0, polls;

	connect_to_window(1);
	CHECK_EQ(rig_write(&rig, 50000), 50000);
	start_ns = rig.now_ns;
	polls = (unsigned)rig_stat(&rig, "polls");
	while (rig.now_ns < start_ns + 60 * RIG_S) {
		rig_wait(&rig, RIG_MS);
		polls++;
		if (rig_pending(&rig) == 0)
			continue;
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 1);
		rig.ack++;
		sent++;
		rig_window(&rig, 1);
		polls++;
	}
	CHECK(sent >= 60 && sent <= 600);
	CHECK(rig_stat(&rig, "polls") - polls < 5000); /* no timer fires in a loop */
	rig_window(&rig, 60000);
	CHECK(rig_expect(&rig, TCP_ACK)->len > 500);
}

/* A small device that has never advertised more than 200 bytes gets them at once. */
TEST(a_small_window_is_filled_at_once)
{
	unsigned got = 0;

	connect_to_window(200);
	CHECK_EQ(rig_write(&rig, 2000), 2000);
	while (got < 2000 && rig_pending(&rig) > 0) {
		const struct rig_seg *s = &rig.out[rig.out_head++ % RIG_QUEUE];

		got += s->len;
		rig.ack = s->seq + s->len;
		rig_window(&rig, 200);
	}
	CHECK_EQ(got, 2000);
}

/* RFC 9293 section 3.4: a FIN takes a sequence number. Into a closed window it would be dropped,
 * and its retransmission would wait for a timeout with backoff. */
static void fin_waits(uint32_t bytes)
{
	static uint8_t data[400];
	struct iovec iov = { data, bytes };

	rig_begin(&rig, NULL);
	rig_window(&rig, bytes >> 2); /* scaled by 2 */
	if (bytes > 0) /* the bytes fill the window, and the FIN would be sent with them */
		CHECK_EQ(harp_conn_send(rig.conn, &iov, 1), bytes);
	rig_app_closes(&rig);
	if (bytes > 0) {
		rig.ack = rig_expect(&rig, TCP_ACK)->seq + bytes;
		rig_window(&rig, 0);
	}
	CHECK_EQ(rig_pending(&rig), 0);
	for (unsigned i = 0; i < 100; i++) { /* 10 s; probes are answered */
		rig_wait(&rig, 100 * RIG_MS);
		while (rig_pending(&rig) > 0) {
			CHECK(!(rig.out[rig.out_head++ % RIG_QUEUE].flags & TCP_FIN));
			rig_window(&rig, 0);
		}
	}
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	rig_poll(&rig);
	rig_expect_fin(&rig);
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_FIN, 0));
	rig_poll(&rig);
	rig_wait(&rig, 61 * RIG_S);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
	rig_drain(&rig);
	rig_close(&rig);
}

TEST(a_fin_waits_for_the_window)
{
	fin_waits(0);
	fin_waits(400);
}
