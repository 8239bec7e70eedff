/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_loss.c - loss recovery: start, end, transmissions during it, and undo.
 *
 * Theory of operation. Segments have marks (tcp_sack.c). With SACK, RACK marks lost segments
 * (tcp_rack.c); without it, duplicate and partial ACKs do (tcp_dupack.c). A timeout marks all
 * segments that are neither SACKed nor recent. Segments marked lost are retransmitted, oldest
 * first, as the window allows, which clears the mark.
 *
 * conn->recovery is the state. All states but NONE are an episode, which lasts until SND.UNA
 * reaches recover_seq (SND.NXT when the state was entered), regardless of further losses:
 *	NONE	the controller (cc.h) moves cwnd. Segments may be marked while duplicates or late
 *		segments are observed.
 *		-> FAST at the first loss: an ACK (loss_repair()), or RACK's timer
 *		(tcp_loss_found())
 *		-> CWR  at an ECN mark (tcp_loss_ecn()), or when the tail loss probe has repaired a
 *		loss
 *	FAST	segments were lost. The controller has set ssthresh, and PRR (RFC 9937) moves cwnd
 *		there: for each delivered byte, a fraction of a byte is sent, which avoids both
 *		pauses and bursts
 *	CWR	as FAST, with nothing to retransmit
 *		-> FAST at the next loss: PRR continues towards the same ssthresh
 *	RTO	the timer has expired, in any state (tcp_loss_timeout()): slow start from one
 *		segment, up to the controller's ssthresh. Repeated expiry stays in this state
 *	all	-> NONE by loss_end(), at recover_seq; or by loss_undo(), if the episode was
 *		spurious
 *
 * Two bits may stay set after an episode. loss_open is set by the first mark, duplicate ACK or
 * probe, keeps ACKs off the fast path, and is cleared by loss_close(). undo.open is set by FAST and
 * RTO, which may be spurious. It is cleared when data sent after the episode is acknowledged,
 * because a DSACK arrives one round trip late.
 *
 * An episode was spurious if the first ACK of new data echoes a timestamp from before the first
 * retransmission (Eifel, RFC 3522), if every retransmission is reported as a duplicate (DSACK, RFC
 * 3708), or if, after a timeout, a segment is delivered that was sent before it and not
 * retransmitted (F-RTO with SACK, RFC 5682 section 3). Then struct cc is restored (RFC 4015), the
 * lost marks are cleared, and RACK detects which segments are really lost.
 */
#include "transport/tcp.h"

enum { LOSS_TSVAL_SET = 1, LOSS_TSVAL_USED }; /* values of undo.tsval_set */

static uint32_t loss_outstanding_bytes(const struct harp_conn *conn)
{
	return conn_flight_bytes(conn) - conn->loss.sacked_bytes - conn->loss.dup_acked_bytes;
}

uint32_t tcp_loss_pipe_bytes(const struct harp_conn *conn)
{
	uint32_t not_in_pipe =
		conn->loss.sacked_bytes + conn->loss.lost_bytes + conn->loss.dup_acked_bytes;
	uint32_t flight = conn_flight_bytes(conn);

	return flight > not_in_pipe ? flight - not_in_pipe : 0;
}

static struct cc_event loss_event(const struct harp_conn *conn, uint32_t flight_bytes)
{
	return (struct cc_event){
		.now_ns = conn->tcp->now_ns,
		.mss_bytes = conn->snd.mss_bytes,
		.flight_bytes = flight_bytes,
		.snd_una_seq = conn->snd.una_seq,
		.snd_nxt_seq = conn->snd.nxt_seq,
		.srtt_ns = conn->rtt.srtt_ns,
		.rtt_ns_min = conn->rtt.min_ns,
	};
}

/* True if PRR sets the window. */
static bool loss_is_reducing(const struct harp_conn *conn)
{
	return conn->recovery == TCP_RECOVERY_FAST || conn->recovery == TCP_RECOVERY_CWR;
}

/* ------------------------------------------------------------------------------------------------
 * Start.
 */
static void loss_save(struct harp_conn *conn)
{
	conn->undo.cc = conn->cc;
	conn->undo.open = 1;
	conn->undo.seq = conn->snd.una_seq;
	conn->undo.tsval_set = 0;
	/* DSACKs for earlier retransmissions may arrive, too. */
	conn->undo.resent_segs = conn->scoreboard.resent_count;
}

static void loss_begin(struct harp_conn *conn, enum tcp_recovery recovery, enum cc_signal signal,
		       uint32_t flight_bytes)
{
	assert(tcp_sack_sums_valid(conn));
	if (conn->recovery == TCP_RECOVERY_NONE) {
		struct cc_event ev = loss_event(conn, flight_bytes);

		if (recovery == TCP_RECOVERY_FAST)
			loss_save(conn);
		else
			conn->undo.open = 0; /* ECN, or the loss is certain */
		ev.signal = (uint8_t)signal;
		conn->cc.ops->congestion(&conn->cc, &ev);
		tcp_ecn_reduced(conn);
		conn->loss.resent_segs = 0;
		conn->prr.delivered_bytes = 0;
		conn->prr.out_bytes = 0;
		conn->prr.flight_bytes = flight_bytes > 0 ? flight_bytes : 1;
	}
	conn->recovery = (uint8_t)recovery;
	conn->loss.recover_seq = conn->snd.nxt_seq;
	conn->undo.end_seq = conn->snd.nxt_seq;
	conn->undo.frto = 0;
	conn->loss_open = 1;
	conn->tlp.out = 0;
	if (recovery == TCP_RECOVERY_FAST) {
		conn->loss.rtx_force = 1;
		conn->acct.fast_retransmits++;
		conn->tcp->stats->tcp_fast_retransmits++;
	}
}

/* ------------------------------------------------------------------------------------------------
 * PRR: RFC 9937 section 6.2. safe: the ACK moved SND.UNA and no further loss was detected.
 */
static void loss_prr(struct harp_conn *conn, uint32_t delivered_bytes, bool safe)
{
	uint32_t pipe = tcp_loss_pipe_bytes(conn), ssthresh = conn->cc.ssthresh_bytes;
	int64_t count, ahead;

	conn->prr.delivered_bytes += delivered_bytes;
	ahead = (int64_t)conn->prr.delivered_bytes - conn->prr.out_bytes;
	if (pipe > ssthresh) {
		/* "SndCnt = CEIL(prr_delivered * ssthresh / RecoverFS) - prr_out" */
		uint64_t share = (uint64_t)conn->prr.delivered_bytes * ssthresh;

		count = (int64_t)((share + conn->prr.flight_bytes - 1) / conn->prr.flight_bytes) -
			conn->prr.out_bytes;
	} else {
		/* "SndCnt = MAX(prr_delivered - prr_out, DeliveredData)", one more segment if safe,
		 * "MIN(ssthresh - inflight, SndCnt)" */
		count = ahead > delivered_bytes ? ahead : delivered_bytes;
		if (safe)
			count += conn->snd.mss_bytes;
		if (count > (int64_t)ssthresh - pipe)
			count = (int64_t)ssthresh - pipe;
	}
	if (count < 0)
		count = 0;
	/* With nothing in flight, no ACK would arrive. */
	if (pipe == 0 && count < conn->snd.mss_bytes)
		count = conn->snd.mss_bytes;
	conn->cc.cwnd_bytes = pipe + (uint32_t)count;
}

static bool loss_was_spurious(struct harp_conn *conn, const struct tcp_ack *a)
{
	bool eifel = a->acked_bytes > 0 && conn->undo.tsval_set == LOSS_TSVAL_SET &&
		     (conn->options & HARP_TCPI_TIMESTAMPS) &&
		     (int32_t)(conn->ts.echo - conn->undo.tsval) < 0;

	/* Eifel considers only the first ACK of new data. */
	if (a->acked_bytes > 0 && conn->undo.tsval_set)
		conn->undo.tsval_set = LOSS_TSVAL_USED;
	return eifel || a->undo ||
	       (conn->recovery == TCP_RECOVERY_RTO && conn->undo.frto && a->original);
}

static void loss_undo(struct harp_conn *conn)
{
	uint32_t cwnd_bytes = conn->cc.cwnd_bytes;

	if (conn->recovery == TCP_RECOVERY_RTO)
		conn->tcp->stats->tcp_spurious_rto++;
	else
		conn->tcp->stats->tcp_spurious_recovery++;
	conn->acct.undone_recoveries++;
	conn->cc = conn->undo.cc;
	if (conn->cc.cwnd_bytes < cwnd_bytes)
		conn->cc.cwnd_bytes = cwnd_bytes;
	for (struct frame *seg = conn->sndq.head; seg && seg != conn->sndq.unsent;
	     seg = seg->next) {
		if (seg->tcp_flags & SEG_LOST)
			tcp_sack_unmark_lost(conn, seg);
	}
	tcp_rack_restart(conn);
	conn->recovery = TCP_RECOVERY_NONE;
	conn->undo.open = 0;
	conn->loss.rtx_force = 0;
	tcp_dupack_forget(conn);
}

/* ------------------------------------------------------------------------------------------------
 * An ACK.
 */
/* SND.UNA has passed recover_seq. */
static void loss_end(struct harp_conn *conn)
{
	if (loss_is_reducing(conn))
		conn->cc.cwnd_bytes = conn->cc.ssthresh_bytes;
	conn->recovery = TCP_RECOVERY_NONE;
	conn->loss.rtx_force = 0;
	conn->undo.frto = 0;
	conn->undo.end_seq = conn->loss.recover_seq;
	conn->undo.last_seq = conn->snd.nxt_seq;
	tcp_dupack_forget(conn);
	tcp_rack_adapt(conn, false, true);
	assert(tcp_sack_sums_valid(conn));
}

static void loss_close(struct harp_conn *conn)
{
	if (!conn_loss_is_quiet(conn))
		return;
	if (conn->undo.open && seq_leq(conn->snd.una_seq, conn->undo.last_seq))
		return; /* a DSACK may still arrive */
	conn->undo.open = 0;
	conn->loss_open = 0;
	conn->loss.rack_next = NULL;
	conn->scoreboard.range_count = 0;
	conn->scoreboard.resent_untracked |= conn->scoreboard.resent_count > 0;
	conn->scoreboard.resent_count = 0;
	tcp_timer_loss(conn, TCP_NEVER_NS);
}

void tcp_loss_undo_end(struct harp_conn *conn)
{
	conn->undo.open = 0;
	loss_close(conn);
}

void tcp_loss_ecn(struct harp_conn *conn)
{
	if (conn->recovery != TCP_RECOVERY_NONE)
		return;
	conn->acct.ecn_reductions++;
	conn->tcp->stats->tcp_ecn_reductions++;
	loss_begin(conn, TCP_RECOVERY_CWR, CC_SIGNAL_ECN, conn->cc.cwnd_bytes);
	if (conn_flight_bytes(conn) > 0) {
		loss_prr(conn, 0, false);
		return;
	}
	loss_end(conn);
	loss_close(conn);
}

static void loss_repair(struct harp_conn *conn, struct tcp_ack *a)
{
	if (conn->recovery != TCP_RECOVERY_NONE &&
	    seq_geq(conn->snd.una_seq, conn->loss.recover_seq))
		loss_end(conn);
	if (conn->options & HARP_TCPI_SACK) {
		bool repaired = tcp_rack_probe_acked(conn, a);

		tcp_rack_adapt(conn, a->dsack, false);
		a->lost = tcp_rack_detect(conn);
		if (repaired && conn->recovery == TCP_RECOVERY_NONE && !a->lost)
			loss_begin(conn, TCP_RECOVERY_CWR, CC_SIGNAL_LOSS, a->flight_bytes);
	} else if (a->acked_bytes > 0) {
		tcp_dupack_advance(conn, a);
	} else if (a->dup) {
		tcp_dupack_count(conn, a);
	}
	if (a->lost && conn->recovery != TCP_RECOVERY_RTO && conn->recovery != TCP_RECOVERY_FAST)
		loss_begin(conn, TCP_RECOVERY_FAST, CC_SIGNAL_LOSS, a->flight_bytes);
	if (loss_is_reducing(conn))
		loss_prr(conn, a->delivered_bytes, a->acked_bytes > 0 && !a->lost);
}

void tcp_loss_ack(struct harp_conn *conn, struct tcp_ack *a)
{
	bool reducing, timed_out;
	struct cc_event ev;

	if (conn->loss_open && conn->undo.open && loss_was_spurious(conn, a))
		loss_undo(conn);
	/* The ACK that ends recovery still belongs to it. */
	reducing = loss_is_reducing(conn);
	timed_out = conn->recovery == TCP_RECOVERY_RTO;
	if (conn->loss_open)
		loss_repair(conn, a);
	ev = loss_event(conn, a->flight_bytes);
	/* An ACK that fills a hole covers data delivered before the timeout. Counting it would
	 * reopen the window at once (RFC 3465 section 2.3). */
	ev.acked_bytes = timed_out ? a->delivered_bytes : a->acked_bytes;
	ev.delivered_bytes = a->delivered_bytes;
	ev.marked_bytes = conn->ecn.ack_ece ? a->delivered_bytes : 0;
	ev.rtt_ns = a->rtt_ns;
	ev.recovering = reducing || loss_is_reducing(conn);
	/* After a timeout the loss window is the limit, even with little data to send. */
	ev.limited = timed_out || (conn->flags & CONN_CWND_LIMITED) != 0;
	if (a->delivered_bytes > 0) {
		conn->cc.ops->acked(&conn->cc, &ev);
		if (seq_geq(conn->snd.una_seq, conn->limited_seq))
			conn->flags &= ~(uint32_t)CONN_CWND_LIMITED;
	}
	if (conn->loss_open) {
		loss_close(conn);
		tcp_tx_ready(conn);
	}
}

void tcp_loss_found(struct harp_conn *conn)
{
	if (conn->recovery == TCP_RECOVERY_NONE || conn->recovery == TCP_RECOVERY_CWR)
		loss_begin(conn, TCP_RECOVERY_FAST, CC_SIGNAL_LOSS, loss_outstanding_bytes(conn));
	if (loss_is_reducing(conn))
		loss_prr(conn, 0, false);
	tcp_tx_ready(conn);
}

/* ------------------------------------------------------------------------------------------------
 * A timeout.
 */
/* Marks segments lost: RFC 8985 section 6.3 marks the oldest one, and others that RACK would mark
 * by their age; without SACK, all. */
static void loss_mark_all(struct harp_conn *conn)
{
	uint64_t age_ns = conn->rack.rtt_ns + tcp_rack_window_ns(conn);
	uint64_t now_ns = conn->tcp->now_ns;
	bool skip_recent = (conn->options & HARP_TCPI_SACK) && conn->rack.rtt_ns > 0;

	for (struct frame *seg = conn->sndq.head; seg && seg != conn->sndq.unsent;
	     seg = seg->next) {
		if (seg->tcp_flags & SEG_MARKS)
			continue;
		if (skip_recent && seg != conn->sndq.head && seg->sent_ns + age_ns > now_ns &&
		    seg_bytes(seg) <= conn->snd.mss_bytes)
			continue;
		tcp_sack_mark_lost(conn, seg);
	}
}

void tcp_loss_timeout(struct harp_conn *conn)
{
	uint32_t flight_bytes = loss_outstanding_bytes(conn);

	/* RFC 2018 section 8: the peer has reneged on a SACKed segment. */
	if (conn->sndq.head && (conn->sndq.head->tcp_flags & SEG_SACKED)) {
		conn->tcp->stats->tcp_reneged++;
		tcp_sack_forget(conn);
	}
	/* RFC 5681 section 3.1: ssthresh is held constant when the same data times out again. */
	if (conn->recovery != TCP_RECOVERY_RTO) {
		struct cc_event ev = loss_event(conn, flight_bytes);

		loss_save(conn);
		conn->cc.ops->timeout(&conn->cc, &ev);
		tcp_ecn_reduced(conn);
		conn->undo.frto = (conn->options & HARP_TCPI_SACK) != 0;
		if (conn->recovery == TCP_RECOVERY_NONE)
			conn->loss.resent_segs = 0;
	} else {
		conn->undo.frto = 0;
	}
	conn->recovery = TCP_RECOVERY_RTO;
	conn->loss.recover_seq = conn->snd.nxt_seq;
	conn->undo.end_seq = conn->snd.nxt_seq;
	conn->tlp.out = 0;
	conn->loss.rtx_force = 1;
	conn->loss_open = 1;
	tcp_dupack_forget(conn);
	loss_mark_all(conn);
	tcp_rack_restart(conn);
	/* RFC 5681: the loss window, plus the data that may still be in flight. */
	conn->cc.cwnd_bytes = tcp_loss_pipe_bytes(conn) + conn->snd.mss_bytes;
	assert(tcp_sack_sums_valid(conn));
}

struct frame *tcp_loss_next(struct harp_conn *conn)
{
	struct frame *seg = conn->loss.rtx_next;
	uint32_t bytes, pipe;

	if (conn->loss.lost_bytes == 0)
		return NULL;
	if (seq_lt(conn->loss.rtx_seq, conn->snd.una_seq))
		seg = conn->sndq.head;
	while (!(seg->tcp_flags & SEG_LOST)) {
		conn->tcp->stats->tcp_sack_walked++;
		seg = seg->next;
		assert(seg && seg != conn->sndq.unsent);
	}
	conn->loss.rtx_next = seg;
	conn->loss.rtx_seq = seg->seq;
	if (conn->loss.rtx_force)
		return seg;
	bytes = seg_bytes(seg) < conn->snd.mss_bytes ? seg_bytes(seg) : conn->snd.mss_bytes;
	pipe = tcp_loss_pipe_bytes(conn);
	return pipe > 0 && pipe + bytes > conn->cc.cwnd_bytes ? NULL : seg;
}

void tcp_loss_sent(struct harp_conn *conn, struct frame *seg, bool is_retrans)
{
	if (loss_is_reducing(conn))
		conn->prr.out_bytes += seg_bytes(seg);
	if (!is_retrans)
		return;
	conn->loss.rtx_force = 0;
	if (conn->loss.resent_segs < UINT8_MAX)
		conn->loss.resent_segs++;
	if (seg->tcp_flags & SEG_LOST)
		tcp_sack_unmark_lost(conn, seg);
	if (conn->undo.open) {
		conn->undo.resent_segs++;
		if (!conn->undo.tsval_set) {
			conn->undo.tsval = conn_tsval(conn);
			conn->undo.tsval_set = LOSS_TSVAL_SET;
		}
	}
	if (conn->options & HARP_TCPI_SACK)
		tcp_rack_resent(conn, seg);
	/* RFC 6298 (5.1): the ACK of the oldest segment takes another round trip. */
	if (seg == conn->sndq.head && conn->recovery == TCP_RECOVERY_FAST)
		tcp_timer_resent(conn);
}
