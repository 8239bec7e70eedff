/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_rack.c - RFC 8985 (RACK-TLP), 9937 (PRR), 4015 (Eifel response), 5682 (F-RTO). */
#include "tcp_sack_rig.h"

#define REORDER_NS (RTT_NS / 4)

/* ---- RACK ------------------------------------------------------------------------------------ */

TEST(reordering_within_the_reordering_window_is_no_loss)
{
	put_in_flight(10, true);
	advance(RTT_NS);
	sack(0, 1, 2);
	rig_silent(&rig);
	rig_wait(&rig, REORDER_NS / 2);
	rig_silent(&rig);
	ack(2);
	rig_wait(&rig, REORDER_NS);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_lost_segs"), 0);
	CHECK_EQ(rig.conn->rack.reordering, 1);
	/* The path is known to reorder: three SACKed segments are no proof of a loss now (section
	 * 6.2). */
	advance(RTT_NS);
	sack(2, 3, 7);
	CHECK_EQ(rig_stat(&rig, "tcp_lost_segs"), 0);
}

TEST(segments_later_than_the_reordering_window_are_lost)
{
	put_in_flight(10, true);
	advance(RTT_NS);
	sack(0, 1, 2);
	rig_wait(&rig, 2 * REORDER_NS); /* and a tick of the timer wheel */
	expect_segment(0);
	rig_silent(&rig);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
}

/* The receiver accepted a part of the retransmission: the rest is detected as lost. */
TEST(the_rest_of_a_retransmission_is_detected_as_lost)
{
	uint32_t block[1][2] = { { 1, 10 } };
	struct rig_say say;

	put_in_flight(20, true);
	advance(RTT_NS);
	sack(0, 1, 10);
	expect_segment(0);
	rig.out_head = rig.out_tail;
	for (unsigned i = 0; i < 2; i++) {
		say = ack_say(0, 1, block);
		say.ack += 700;
		rig_says(&rig, say);
		CHECK_EQ(rig.conn->sndq.head->seq, seq_of(0) + 700);
		advance(RTT_NS);
		/* and the segments sent after it */
		block[0][1] = (rig.conn->snd.nxt_seq - first_seq) / MSS;
	}
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, seq_of(0) + 700);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
}

TEST(dsack_widens_the_reordering_window)
{
	uint64_t narrow;

	put_in_flight(20, true);
	advance(RTT_NS);
	sack(0, 1, 2);
	expect_segment(10); /* limited transmit */
	rig_wait(&rig, 2 * REORDER_NS);
	expect_segment(0); /* spurious */
	rig.out_head = rig.out_tail;
	ack(2);
	rig.conn->rack.reordering = 1;
	narrow = tcp_rack_window_ns(rig.conn);
	sack(2, 0, 1); /* a duplicate */
	CHECK_EQ(rig_stat(&rig, "tcp_dsack_in"), 1);
	CHECK(tcp_rack_window_ns(rig.conn) == 2 * narrow);
	sack(2, 0, 1); /* more than the retransmissions: the network duplicated packets */
	CHECK(tcp_rack_window_ns(rig.conn) == 2 * narrow);
	for (uint32_t i = 0; i < 15; i++)
		tcp_rack_adapt(rig.conn, false, true);
	CHECK(tcp_rack_window_ns(rig.conn) == 2 * narrow);
	tcp_rack_adapt(rig.conn, false, true); /* 16 recoveries without a DSACK */
	CHECK(tcp_rack_window_ns(rig.conn) == narrow);
}

/* ---- Tail loss probes ------------------------------------------------------------------------ */

/* The next tail is probed although a DSACK may still undo the last recovery. */
TEST(a_tail_after_a_recovery_is_probed)
{
	put_in_flight(10, true);
	advance(RTT_NS);
	sack(0, 1, 10);
	expect_segment(0);
	advance(RTT_NS);
	ack(10);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK_EQ(rig.conn->undo.open, 1);
	CHECK_EQ(rig_write(&rig, 4 * MSS), 4 * MSS);
	rig.out_head = rig.out_tail;
	rig_wait(&rig, RIG_MS);
	expect_segment(13);
	CHECK_EQ(rig_stat(&rig, "tcp_tlp_probes"), 1);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
}

/* A DSACK of the probe acknowledges nothing, so the deadline of the next probe stays. */
TEST(data_after_a_probe_is_probed)
{
	uint64_t due_ns;

	put_in_flight(4, true);
	rig_wait(&rig, RIG_MS);
	expect_segment(3);
	CHECK_EQ(rig_write(&rig, 2 * MSS), 2 * MSS);
	rig.out_head = rig.out_tail;
	advance(RTT_NS);
	ack(4);
	CHECK_EQ(rig.conn->tlp.out, 1);
	due_ns = rig.now_ns + rig.conn->rtt.pto_ns;
	advance(RTT_NS);
	sack(4, 3, 4);
	CHECK_EQ(rig.conn->tlp.out, 0);
	CHECK(rig.conn->deadline.probe_ns == due_ns);
	rig_wait(&rig, RIG_MS);
	expect_segment(5);
	CHECK_EQ(rig_stat(&rig, "tcp_tlp_probes"), 2);
}

TEST(the_probe_is_new_data_if_there_is_any)
{
	put_in_flight(12, true);
	rig_wait(&rig, RIG_MS);
	expect_segment(10);
	rig_silent(&rig);
	advance(RTT_NS);
	ack(11);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 0);
	CHECK_EQ(rig.conn->tlp.out, 0);
}

/* Four segments are in flight: the probe repeats the last one. */
static void probe_last_of_four(void)
{
	rig_wait(&rig, RIG_MS);
	expect_segment(3);
	advance(RTT_NS);
}

static void deliver_fifth(void)
{
	CHECK_EQ(rig_write(&rig, MSS), MSS);
	rig.out_head = rig.out_tail;
	advance(RTT_NS);
	ack(5);
}

/* Section 7.4: only the probe arrived, so a segment was lost although no gap was reported. */
TEST(a_probe_that_repairs_counts_as_loss)
{
	uint32_t before;

	put_in_flight(4, true);
	before = rig.conn->cc.cwnd_bytes;
	probe_last_of_four();
	ack(4);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, before);
	deliver_fifth();
	CHECK(rig.conn->cc.ssthresh_bytes < before);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
}

TEST(a_probe_reported_as_duplicate_is_no_loss)
{
	uint32_t before;

	put_in_flight(4, true);
	before = rig.conn->cc.ssthresh_bytes;
	probe_last_of_four();
	sack(4, 3, 4); /* DSACK */
	CHECK_EQ(rig.conn->tlp.out, 0);
	deliver_fifth();
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, before);
	CHECK_EQ(rig.conn->rack.mult, 0);
}

/* Section 7.4.2: a peer without DSACK reports the probe by a duplicate ACK, perhaps when all data
 * is acknowledged. */
TEST(a_probe_acknowledged_twice_is_no_loss)
{
	uint32_t before;

	put_in_flight(4, true);
	before = rig.conn->cc.ssthresh_bytes;
	probe_last_of_four();
	ack(4); /* of the original */
	CHECK_EQ(rig.conn->tlp.out, 1);
	ack(4); /* of the probe */
	CHECK_EQ(rig.conn->tlp.out, 0);
	CHECK_EQ(rig.conn->loss_open, 0);
	deliver_fifth();
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, before);
}

/* ---- PRR (RFC 9937 section 6.2): NewReno halves, so one segment is sent per two delivered ---- */

TEST(prr_sends_half_of_what_arrives)
{
	uint32_t pipe_last, end = 30;

	put_in_flight(40, true);
	advance(RTT_NS);
	ack(10); /* cwnd is 20 */
	rig.out_head = rig.out_tail;
	CHECK_EQ(conn_flight_bytes(rig.conn), 20 * MSS);
	advance(RTT_NS);
	sack(10, 11, 14);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, 10 * MSS);
	pipe_last = tcp_loss_pipe_bytes(rig.conn);
	for (uint32_t i = 15; i <= end && pipe_last > 10 * MSS; i++) {
		sack(10, 11, i);
		CHECK(rig.conn->prr.out_bytes <=
		      rig.conn->prr.delivered_bytes / 2 + MSS); /* the share, in whole segments */
		CHECK(rig.conn->prr.out_bytes + MSS + MSS / 2 >= rig.conn->prr.delivered_bytes / 2);
		pipe_last = tcp_loss_pipe_bytes(rig.conn);
		CHECK(pipe_last >= 9 * MSS);
	}
	rig.out_head = rig.out_tail;
	advance(RTT_NS);
	ack((rig.conn->loss.recover_seq - first_seq) / MSS);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, 10 * MSS);
}

/* 16 of 20 segments are lost at once: PRR continues with slow start, not a burst. */
TEST(prr_does_not_burst_after_heavy_loss)
{
	put_in_flight(40, true);
	advance(RTT_NS);
	ack(10);
	rig.out_head = rig.out_tail;
	advance(RTT_NS);
	sack(10, 26, 30);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK(rig_pending(&rig) >= 1 && rig_pending(&rig) <= 5);
	rig.out_head = rig.out_tail;
	advance(RTT_NS);
	ack(11);
	CHECK(rig_pending(&rig) <= 2);
}

/* RFC 3168: one reduction and no retransmission. */
TEST(ecn_reduces_once)
{
	put_in_flight(20, true);
	advance(RTT_NS);
	tcp_loss_ecn(rig.conn);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_CWR);
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, 5 * MSS);
	tcp_loss_ecn(rig.conn);
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, 5 * MSS);
	for (uint32_t i = 1; i <= 10; i++)
		ack(i);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, 5 * MSS);
	CHECK(rig_pending(&rig) >= 4 && rig_pending(&rig) <= 6);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 0);
}

/* ---- Spurious retransmissions ---------------------------------------------------------------- */

TEST(frto_undoes_a_timeout_without_timestamps)
{
	uint32_t before;

	put_in_flight(10, false);
	before = rig.conn->cc.cwnd_bytes;
	rig.conn->deadline.probe_ns = TCP_NEVER_NS; /* no probe before the timeout */
	rig_wait(&rig, 8 * RIG_MS);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 1);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, MSS);
	expect_segment(0);
	rig_silent(&rig);
	sack(0, 2, 3); /* an original segment: 0 and 1 are only late */
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK(rig.conn->cc.cwnd_bytes >= before);
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_rto"), 1);
	ack(10);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 1);
}

TEST(dsack_undoes_a_timeout)
{
	uint32_t before;

	put_in_flight(1, false); /* no other segment can arrive */
	before = rig.conn->cc.cwnd_bytes;
	rig.conn->deadline.probe_ns = TCP_NEVER_NS;
	rig_wait(&rig, 60 * RIG_MS);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 1);
	ack(1);
	CHECK(rig.conn->cc.cwnd_bytes < before);
	sack(1, 0, 1);
	CHECK(rig.conn->cc.cwnd_bytes >= before);
	CHECK_EQ(rig.conn->acct.undone_recoveries, 1);
}

/* The receiver sends one DSACK per retransmission, or, with GRO, one for all. */
static void undo_fast_recovery(bool is_merged)
{
	uint32_t before, una, retransmits;

	put_in_flight(20, false);
	before = rig.conn->cc.cwnd_bytes;
	advance(RTT_NS);
	sack(0, 2, 6);
	expect_segment(0);
	sack(0, 2, 9);
	expect_segment(1);
	rig.out_head = rig.out_tail;
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	advance(20 * US);
	ack(9); /* they were late */
	while (rig.conn->recovery != TCP_RECOVERY_NONE)
		ack((rig.conn->loss.recover_seq - first_seq) / MSS);
	CHECK(rig.conn->cc.cwnd_bytes < before);
	una = (rig.conn->snd.una_seq - first_seq) / MSS;
	retransmits = (uint32_t)rig.conn->acct.retransmits;
	CHECK(retransmits > 1);
	if (is_merged) {
		sack(una, 0, retransmits + 1); /* more than were retransmitted */
		CHECK_EQ(rig.conn->acct.undone_recoveries, 0);
		sack(una, 0, retransmits);
	}
	for (uint32_t i = 0; i < retransmits && !is_merged; i++) {
		CHECK_EQ(rig.conn->acct.undone_recoveries, 0);
		sack(una, i, i + 1);
	}
	CHECK(rig.conn->cc.cwnd_bytes >= before);
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_recovery"), 1);
	rig_close(&rig);
}

TEST(dsack_undoes_a_fast_recovery)
{
	undo_fast_recovery(false);
	undo_fast_recovery(true);
}

/* Eifel: the ACK echoes a timestamp from before the first retransmission. */
TEST(eifel_undoes_a_fast_recovery)
{
	uint32_t before, early_tsecr;

	put_in_flight(20, true);
	before = rig.conn->cc.cwnd_bytes;
	early_tsecr = rig.tsecr;
	advance(2 * RIG_MS);
	sack(0, 1, 5);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK(rig_pending(&rig) > 0);
	rig.tsecr = early_tsecr;
	ack(5);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK(rig.conn->cc.cwnd_bytes >= before);
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_recovery"), 1);
}

TEST(a_real_timeout_is_not_undone)
{
	put_in_flight(10, false);
	rig.conn->deadline.probe_ns = TCP_NEVER_NS;
	rig_wait(&rig, 8 * RIG_MS);
	expect_segment(0);
	advance(RTT_NS);
	ack(1); /* of the retransmission */
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_RTO);
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_rto"), 0);
	expect_segment(1);
	expect_segment(2);
}

/* Small writes without an ACK must not postpone the probe or the timeout. */
TEST(writes_do_not_postpone_the_timers)
{
	uint64_t begin_ns;

	rig_begin_sack(&rig, NULL);
	/* a long path without variance: 2 * SRTT is beyond the RTO */
	rig.conn->rtt.srtt_ns = 100 * RIG_MS;
	rig.conn->rtt.rto_ns = 105 * RIG_MS;
	rig.conn->rtt.pto_ns = 200 * RIG_MS;
	begin_ns = rig.now_ns;
	while (rig_stat(&rig, "tcp_tlp_probes") + rig_stat(&rig, "tcp_rto") == 0 &&
	       rig.now_ns < begin_ns + RIG_S / 2) {
		CHECK_EQ(rig_write(&rig, 100), 100);
		rig_wait(&rig, 5 * RIG_MS);
		rig.out_head = rig.out_tail;
	}
	CHECK(rig.now_ns < begin_ns + RIG_S / 4);
}
