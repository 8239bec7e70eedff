/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_timer.c - RTT samples, probes, and segments that wait for a frame, a next hop or a
 * NIC. */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

TEST(the_application_can_probe)
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

TEST(a_retransmitted_segment_gives_no_rtt_sample)
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
	rig_wait(&rig, 500 * RIG_MS); /* retransmitted: no sample (Karn) */
	say.ack += 100;
	rig_says(&rig, say);
	harp_conn_info(rig.conn, &info, sizeof(info));
	CHECK_EQ(info.srtt_ns, 2 * RIG_MS);
	CHECK(info.retransmits > 0);
}

/* An ACK of all data in flight stops the timer, but data that waits for address resolution needs
 * one. */
TEST(data_that_waits_for_address_resolution_has_a_deadline)
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

/* A segment must be split to fit the window, nothing is in flight and the pool is empty: neither an
 * ACK nor a timer would make the stack try again. */
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

/* A NIC without next_ns (AF_XDP) is polled for completions: at once, then less and less often. A
 * segment that must be retransmitted while the NIC holds it waits for the completion. */
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
