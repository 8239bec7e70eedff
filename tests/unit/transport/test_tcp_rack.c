/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_rack.c - RFC 8985 (RACK-TLP), 9937 (PRR), 4015 (Eifel response), 5682 (F-RTO). */
#include "tcp_sack_rig.h"

#define REORDER_NS (RTT_NS / 4)

/* ---- RACK ------------------------------------------------------------------------------------ */

TEST(reordering_within_the_window_costs_nothing)
{
	in_flight(10, true);
	later(RTT_NS);
	sack(0, 1, 2);
	rig_silent(&rig);
	rig_wait(&rig, REORDER_NS / 2);
	rig_silent(&rig);
	ack(2);
	rig_wait(&rig, REORDER_NS);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_lost_segs"), 0);
	CHECK_EQ(rig.conn->rack.reordering, 1);
	/* The path is known to reorder now: three SACKed segments are no longer proof (section
	 * 6.2). */
	later(RTT_NS);
	sack(2, 3, 7);
	CHECK_EQ(rig_stat(&rig, "tcp_lost_segs"), 0);
}

TEST(segments_later_than_the_window_are_lost)
{
	in_flight(10, true);
	later(RTT_NS);
	sack(0, 1, 2);
	rig_wait(&rig, 2 * REORDER_NS); /* and the wheel's tick */
	expect_segment(0);
	rig_silent(&rig);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
}

/* The receiver took a part of the retransmission: the rest is detected as lost. */
TEST(the_rest_of_a_retransmission_is_detected_as_lost)
{
	uint32_t block[1][2] = { { 1, 10 } };
	struct rig_say say;

	in_flight(20, true);
	later(RTT_NS);
	sack(0, 1, 10);
	expect_segment(0);
	rig.out_head = rig.out_tail;
	for (unsigned i = 0; i < 2; i++) {
		say = ack_say(0, 1, block);
		say.ack += 700;
		rig_says(&rig, say);
		CHECK_EQ(rig.conn->sndq.head->seq, at(0) + 700);
		later(RTT_NS);
		block[0][1] = (rig.conn->snd.nxt_seq - first_seq) /
			      MSS; /* and the segments sent after it */
	}
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, at(0) + 700);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
}

TEST(dsack_widens_the_window)
{
	uint64_t narrow;

	in_flight(20, true);
	later(RTT_NS);
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
	sack(2, 0, 1); /* more than the retransmissions: duplicated by the network */
	CHECK(tcp_rack_window_ns(rig.conn) == 2 * narrow);
	for (uint32_t i = 0; i < 15; i++)
		tcp_rack_adapt(rig.conn, false, true);
	CHECK(tcp_rack_window_ns(rig.conn) == 2 * narrow);
	tcp_rack_adapt(rig.conn, false, true); /* 16 recoveries without */
	CHECK(tcp_rack_window_ns(rig.conn) == narrow);
}

/* ---- The tail -------------------------------------------------------------------------------- */

/* The next tail is probed although a DSACK may still undo the last recovery. */
TEST(a_tail_after_a_recovery_is_probed)
{
	in_flight(10, true);
	later(RTT_NS);
	sack(0, 1, 10);
	expect_segment(0);
	later(RTT_NS);
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

	in_flight(4, true);
	rig_wait(&rig, RIG_MS);
	expect_segment(3);
	CHECK_EQ(rig_write(&rig, 2 * MSS), 2 * MSS);
	rig.out_head = rig.out_tail;
	later(RTT_NS);
	ack(4);
	CHECK_EQ(rig.conn->tlp.out, 1);
	due_ns = rig.now_ns + rig.conn->rtt.pto_ns;
	later(RTT_NS);
	sack(4, 3, 4);
	CHECK_EQ(rig.conn->tlp.out, 0);
	CHECK(rig.conn->deadline.probe_ns == due_ns);
	rig_wait(&rig, RIG_MS);
	expect_segment(5);
	CHECK_EQ(rig_stat(&rig, "tcp_tlp_probes"), 2);
}

TEST(the_probe_is_new_data_when_there_is_some)
{
	in_flight(12, true);
	rig_wait(&rig, RIG_MS);
	expect_segment(10);
	rig_silent(&rig);
	later(RTT_NS);
	ack(11);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 0);
	CHECK_EQ(rig.conn->tlp.out, 0);
}

/* Section 7.4: only the probe arrived, so a segment was lost although no gap was reported. */
TEST(a_probe_that_repairs_counts_as_loss)
{
	uint32_t before;

	in_flight(4, true);
	before = rig.conn->cc.cwnd_bytes;
	rig_wait(&rig, RIG_MS);
	expect_segment(3);
	later(RTT_NS);
	ack(4);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, before);
	CHECK_EQ(rig_write(&rig, MSS), MSS);
	rig.out_head = rig.out_tail;
	later(RTT_NS);
	ack(5);
	CHECK(rig.conn->cc.ssthresh_bytes < before);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
}

TEST(a_probe_reported_as_duplicate_is_no_loss)
{
	uint32_t before;

	in_flight(4, true);
	before = rig.conn->cc.ssthresh_bytes;
	rig_wait(&rig, RIG_MS);
	expect_segment(3);
	later(RTT_NS);
	sack(4, 3, 4); /* DSACK */
	CHECK_EQ(rig.conn->tlp.out, 0);
	CHECK_EQ(rig_write(&rig, MSS), MSS);
	rig.out_head = rig.out_tail;
	later(RTT_NS);
	ack(5);
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, before);
	CHECK_EQ(rig.conn->rack.mult, 0);
}

/* ---- PRR: RFC 9937 section 6.2; NewReno halves, so one segment leaves for two that arrive ---- */

TEST(prr_sends_half_of_what_arrives)
{
	uint32_t pipe_last, end = 30;

	in_flight(40, true);
	later(RTT_NS);
	ack(10); /* cwnd is 20 */
	rig.out_head = rig.out_tail;
	CHECK_EQ(conn_flight_bytes(rig.conn), 20 * MSS);
	later(RTT_NS);
	sack(10, 11, 14);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, 10 * MSS);
	pipe_last = tcp_loss_pipe_bytes(rig.conn);
	for (uint32_t i = 15; i <= end && pipe_last > 10 * MSS; i++) {
		sack(10, 11, i);
		CHECK(rig.conn->prr.out_bytes <=
		      rig.conn->prr.delivered_bytes / 2 + MSS); /* the share, cut to segments */
		CHECK(rig.conn->prr.out_bytes + MSS + MSS / 2 >= rig.conn->prr.delivered_bytes / 2);
		pipe_last = tcp_loss_pipe_bytes(rig.conn);
		CHECK(pipe_last >= 9 * MSS);
	}
	rig.out_head = rig.out_tail;
	later(RTT_NS);
	ack((rig.conn->loss.recover_seq - first_seq) / MSS);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, 10 * MSS);
}

/* 16 of 20 segments are lost at once: slow start follows, not a burst. */
TEST(prr_does_not_burst_after_heavy_loss)
{
	in_flight(40, true);
	later(RTT_NS);
	ack(10);
	rig.out_head = rig.out_tail;
	later(RTT_NS);
	sack(10, 26, 30);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK(rig_pending(&rig) >= 1 && rig_pending(&rig) <= 5);
	rig.out_head = rig.out_tail;
	later(RTT_NS);
	ack(11);
	CHECK(rig_pending(&rig) <= 2);
}

/* RFC 3168: one reduction and no retransmission. */
TEST(ecn_reduces_once)
{
	in_flight(20, true);
	later(RTT_NS);
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

	in_flight(10, false);
	before = rig.conn->cc.cwnd_bytes;
	rig.conn->deadline.probe_ns = TCP_NEVER_NS; /* the probe would have asked in time */
	rig_wait(&rig, 8 * RIG_MS);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 1);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, MSS);
	expect_segment(0);
	rig_silent(&rig);
	sack(0, 2, 3); /* an original: the path was slow, and 0 and 1 are only late */
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK(rig.conn->cc.cwnd_bytes >= before);
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_rto"), 1);
	ack(10);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 1);
}

TEST(dsack_undoes_a_timeout)
{
	uint32_t before;

	in_flight(1, false); /* no other segment can arrive */
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

/* DSACKs one by one, or one for all from a receiver with GRO. */
static void undo_fast_recovery(bool joined)
{
	uint32_t before, una, resent;

	in_flight(20, false);
	before = rig.conn->cc.cwnd_bytes;
	later(RTT_NS);
	sack(0, 2, 6);
	expect_segment(0);
	sack(0, 2, 9);
	expect_segment(1);
	rig.out_head = rig.out_tail;
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	later(20 * US);
	ack(9); /* they were late */
	while (rig.conn->recovery != TCP_RECOVERY_NONE)
		ack((rig.conn->loss.recover_seq - first_seq) / MSS);
	CHECK(rig.conn->cc.cwnd_bytes < before);
	una = (rig.conn->snd.una_seq - first_seq) / MSS;
	resent = (uint32_t)rig.conn->acct.retransmits;
	CHECK(resent > 1);
	if (joined) {
		sack(una, 0, resent + 1); /* more than were retransmitted */
		CHECK_EQ(rig.conn->acct.undone_recoveries, 0);
		sack(una, 0, resent);
	}
	for (uint32_t i = 0; i < resent && !joined; i++) {
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
	uint32_t before, early;

	in_flight(20, true);
	before = rig.conn->cc.cwnd_bytes;
	early = rig.tsecr;
	later(2 * RIG_MS);
	sack(0, 1, 5);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK(rig_pending(&rig) > 0);
	rig.tsecr = early;
	ack(5);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK(rig.conn->cc.cwnd_bytes >= before);
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_recovery"), 1);
}

TEST(a_real_timeout_is_not_undone)
{
	in_flight(10, false);
	rig.conn->deadline.probe_ns = TCP_NEVER_NS;
	rig_wait(&rig, 8 * RIG_MS);
	expect_segment(0);
	later(RTT_NS);
	ack(1); /* of the retransmission */
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_RTO);
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_rto"), 0);
	expect_segment(1);
	expect_segment(2);
}

/* Small writes without an ACK must not postpone the probe or the timeout. */
TEST(writes_do_not_put_off_the_timers)
{
	uint64_t begin_ns;

	rig_begin_sack(&rig, NULL);
	rig.conn->rtt.srtt_ns =
		100 * RIG_MS; /* a long path that never varied: 2 * SRTT is beyond the RTO */
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
