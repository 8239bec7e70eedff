/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_timer.c - retransmission and backoff, probes of zero windows, keepalive, user timeout. */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

TEST(rto_sends_everything_again_in_slow_start)
{
	const struct rig_seg *s;
	struct rig_say say;
	uint32_t first;

	rig_begin(&rig, NULL);
	CHECK_EQ(rig_write(&rig, 4 * 1448), 4 * 1448);
	first = rig_expect(&rig, TCP_ACK)->seq;
	rig_expect(&rig, TCP_ACK);
	rig_expect(&rig, TCP_ACK);
	rig_expect(&rig, TCP_ACK | TCP_PSH);
	rig_wait(&rig, 6 * RIG_MS); /* several segments: the floor is 5 ms */
	s = rig_expect(&rig, TCP_ACK);
	CHECK_EQ(s->seq, first);
	rig_silent(&rig); /* the window is one segment */
	say = rig_usual(&rig, TCP_ACK, 0);
	say.ack = first + 1448;
	rig_says(&rig, say);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, first + 1448);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, first + 2 * 1448);
	rig_silent(&rig);
	/* The rest had arrived all the time. */
	say.ack = first + 4 * 1448;
	rig_says(&rig, say);
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 4 * 1448);
	rig_wait(&rig, RIG_S);
	rig_silent(&rig);
}

TEST(probe_on_demand)
{
	rig_begin(&rig, NULL);
	CHECK_EQ(harp_conn_probe(rig.conn), 0);
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, rig.ack - 1);
	/* And the peer's is answered. */
	struct rig_say say = rig_usual(&rig, TCP_ACK, 0);

	say.seq--;
	rig_says(&rig, say);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
}

TEST(rtt_from_clean_samples_only)
{
	struct harp_tcp_info info;
	struct rig_say say;

	rig_begin(&rig, NULL);
	rig.conn->rtt.srtt_ns = 0;
	CHECK_EQ(rig_write(&rig, 100), 100);
	rig_wait(&rig, 2 * RIG_MS);
	say = rig_usual(&rig, TCP_ACK, 0);
	say.ack += 100;
	rig_says(&rig, say);
	harp_conn_info(rig.conn, &info, sizeof(info));
	CHECK_EQ(info.srtt_ns, 2 * RIG_MS);
	CHECK_EQ(info.rttvar_ns, RIG_MS);
	CHECK_EQ(rig_write(&rig, 100), 100);
	rig_wait(&rig, 500 * RIG_MS); /* sent again: Karn's rule, no sample */
	say.ack += 100;
	rig_says(&rig, say);
	harp_conn_info(rig.conn, &info, sizeof(info));
	CHECK_EQ(info.srtt_ns, 2 * RIG_MS);
	CHECK(info.retransmits > 0);
}

/* An outage is over with the first ACK of new data, though it gives no sample: what was lost besides must not
 * wait as long again. RFC 6298 (section 5, end) would keep the doubled time until there is one. */
TEST(an_ack_ends_the_doubling)
{
	struct rig_say say;
	uint64_t sent_ns;

	rig_begin(&rig, NULL);
	CHECK_EQ(rig_write(&rig, 100), 100);
	rig_wait(&rig, 10 * RIG_S);
	CHECK(tcp_timer_rto_ns(rig.conn) > 5 * RIG_S);
	say = rig_usual(&rig, TCP_ACK, 0);
	say.ack += 100;
	rig_says(&rig, say);
	rig.out_head = rig.out_tail;
	CHECK_EQ(rig_write(&rig, 100), 100);
	sent_ns = rig.now_ns;
	rig_expect(&rig, TCP_ACK | TCP_PSH);
	while (rig_pending(&rig) == 0 && rig.now_ns < sent_ns + 10 * RIG_S)
		rig_wait(&rig, RIG_MS);
	CHECK(rig.now_ns - sent_ns <= 52 * RIG_MS);
}

/* An ACK for everything in flight stops the timer; bytes that wait for a next hop need it all the same. */
TEST(what_waits_for_a_next_hop_is_not_forgotten)
{
	struct harp_addr peer = harp_addr_v4(10, 0, 0, 2);

	rig_begin(&rig, NULL);
	CHECK_EQ(rig_write(&rig, 100), 100);
	rig_expect(&rig, TCP_ACK | TCP_PSH);
	CHECK_EQ(harp_stack_neighbor_set(rig.stack, &peer, NULL), 0);
	CHECK_EQ(rig_write(&rig, 100), 100);
	CHECK_EQ(rig.conn->on_list.tx, TX_LIST_UNRESOLVED);
	CHECK_EQ(rig_stat(&rig, "neighbor_wait"), 1);
	rig.ack += 100;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(rig.conn->snd.una_seq, rig.conn->snd.nxt_seq);
	rig_silent(&rig);
	CHECK_EQ(rig.conn->on_list.tx, TX_LIST_UNRESOLVED);
	CHECK(harp_stack_next_deadline_ns(rig.stack) < rig.now_ns + RIG_S);
}

/* A segment must be cut to fit the window, nothing is in flight and no frame is left: neither an ACK nor a
 * timer would bring it back. */
TEST(a_cut_that_finds_no_frame_is_tried_again)
{
	struct iovec iov = { .iov_base = (uint8_t[1448]){ 0 }, .iov_len = 1448 };
	struct frame *taken = NULL, *f;
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
		f->next = taken;
		taken = f;
	}
	rig_poll(&rig);
	rig_silent(&rig);
	CHECK_EQ(rig.conn->on_list.tx, TX_LIST_BLOCKED);
	while ((f = taken) != NULL) {
		taken = f->next;
		frame_release(&rig.stack->pool, f);
	}
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 1000);
}

static unsigned nothing_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max,
				 uint64_t now_ns)
{
	return 0;
}

/* A card that can't say when it will have sent what it holds (AF_XDP) is asked: at once, then ever less
 * often. A segment that is to be sent again while the card still reads it waits for nothing else. */
TEST(a_card_that_holds_packets_is_asked_again)
{
	struct harp_nic_ops ops;
	const struct harp_nic_ops *usual;
	unsigned asked = 0;
	uint64_t until_ns;

	rig_open(&rig);
	usual = rig.nic->ops;
	ops = *usual;
	ops.next_ns = NULL;
	ops.complete = nothing_complete;
	rig.nic->ops = &ops;
	rig_established(&rig, NULL);
	CHECK_EQ(rig_write(&rig, 4 * 1448), 4 * 1448);
	CHECK(rig.stack->io.tx_held > 0);
	CHECK(harp_stack_next_deadline_ns(rig.stack) <= rig.now_ns + 20000);
	for (until_ns = rig.now_ns + RIG_S; rig.now_ns < until_ns; asked++) {
		rig.now_ns = harp_stack_next_deadline_ns(rig.stack);
		rig_poll(&rig);
	}
	CHECK(asked < 100);
	CHECK_EQ(rig.conn->on_list.tx, TX_LIST_BLOCKED); /* after a timeout: to be sent again */
	CHECK_EQ(rig_pending(&rig), 4);
	CHECK(harp_stack_next_deadline_ns(rig.stack) < UINT64_MAX);
	ops.complete = usual->complete;
	rig.now_ns = harp_stack_next_deadline_ns(rig.stack);
	rig_poll(&rig);
	CHECK(rig_pending(&rig) > 4);
	rig_poll(&rig);
	CHECK_EQ(rig.stack->io.tx_held, 0);
	rig.nic->ops = usual;
}
