/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_loss.c - what was lost and what is still on the way.
 *
 * Without SACK a duplicate ACK says that one segment has left the network, not which: the bytes in
 * flight are those outstanding less one segment per duplicate ACK. Fast recovery is RFC 6582 in that
 * form (window inflation and deflation are the same arithmetic on the other side of the comparison, and
 * limited transmit, RFC 3042, follows from it). After a timeout everything outstanding counts as lost
 * and is sent again from the oldest on, in slow start; an ACK that covers more skips what arrived.
 */
#include "transport/tcp.h"

static struct cc_event loss_event(const struct harp_conn *conn, uint32_t flight_bytes)
{
	return (struct cc_event){
		.now_ns = conn->tcp->now_ns,
		.mss_bytes = conn->snd_mss_bytes,
		.flight_bytes = flight_bytes,
		.snd_una_seq = conn->snd_una_seq,
		.snd_nxt_seq = conn->snd_nxt_seq,
		.srtt_ns = conn->srtt_ns,
		.rtt_ns_min = conn->rtt_ns_min,
	};
}

static void loss_forget_dups(struct harp_conn *conn)
{
	conn->dup_acks = 0;
	conn->dup_acked_bytes = 0;
}

/* RFC 6582 section 3.2 step 2: not for duplicate ACKs that our own go-back caused. */
static bool loss_may_recover(const struct harp_conn *conn)
{
	if (conn->recovered_from_rto)
		return seq_gt(conn->snd_una_seq, conn->recover_seq);
	return seq_geq(conn->snd_una_seq, conn->recover_seq);
}

void tcp_loss_dup_ack(struct harp_conn *conn)
{
	uint32_t flight = conn_flight_bytes(conn);

	conn->acct.dup_acks_in++;
	if (conn->recovery == TCP_RECOVERY_RTO)
		return;
	if (conn->dup_acks < UINT8_MAX)
		conn->dup_acks++;
	conn->dup_acked_bytes += conn->snd_mss_bytes;
	if (conn->dup_acked_bytes > flight)
		conn->dup_acked_bytes = flight;
	if (conn->recovery == TCP_RECOVERY_NONE && conn->dup_acks >= TCP_DUPACK_THRESHOLD &&
	    loss_may_recover(conn)) {
		struct cc_event ev = loss_event(conn, flight);

		conn->recovery = TCP_RECOVERY_FAST;
		conn->recover_seq = conn->snd_nxt_seq;
		conn->rtx_seq = conn->snd_una_seq;
		ev.signal = CC_SIGNAL_LOSS;
		conn->cc.ops->congestion(&conn->cc, &ev);
		tcp_ecn_reduced(conn);
		conn->cc.cwnd_bytes = conn->cc.ssthresh_bytes;
		conn->acct.fast_retransmits++;
		conn->tcp->stats->tcp_fast_retransmits++;
	}
	tcp_tx_ready(conn);
}

/* RFC 6582 section 3.2 step 3: the ACK ends recovery, or it is a partial one. */
static void loss_acked_fast(struct harp_conn *conn, uint32_t acked_bytes)
{
	uint32_t arrived;

	if (seq_geq(conn->snd_una_seq, conn->recover_seq)) {
		conn->recovery = TCP_RECOVERY_NONE;
		conn->recovered_from_rto = 0;
		loss_forget_dups(conn);
		return;
	}
	/* Of what it covers all but the segment sent again had been reported by duplicates. */
	arrived = acked_bytes > conn->snd_mss_bytes ? acked_bytes - conn->snd_mss_bytes : 0;
	conn->dup_acked_bytes -= arrived < conn->dup_acked_bytes ? arrived : conn->dup_acked_bytes;
}

/*
 * RFC 3522: the first ACK after a timeout echoes a timestamp from before it, so it was the original that
 * arrived: nothing was lost, someone was slow (a busy core, more often than a path). RFC 4015: the
 * window is what it was.
 */
static bool loss_undo_timeout(struct harp_conn *conn)
{
	bool spurious = conn->undo_cwnd_bytes != 0 && (conn->options & HARP_TCPI_TIMESTAMPS) &&
			(int32_t)(conn->ts_echo - conn->undo_tsval) < 0;

	if (spurious) {
		conn->cc.cwnd_bytes = conn->undo_cwnd_bytes;
		conn->cc.ssthresh_bytes = conn->undo_ssthresh_bytes;
		conn->recovery = TCP_RECOVERY_NONE;
		conn->recovered_from_rto = 1;
	}
	conn->undo_cwnd_bytes = 0;
	return spurious;
}

void tcp_loss_acked(struct harp_conn *conn, uint32_t acked_bytes, uint32_t flight_before,
		    uint64_t rtt_ns)
{
	struct cc_event ev = loss_event(conn, flight_before);

	if (conn->recovery == TCP_RECOVERY_FAST) {
		loss_acked_fast(conn, acked_bytes);
		return;
	}
	ev.acked_bytes = ev.delivered_bytes = acked_bytes;
	ev.marked_bytes = conn->ack_ece ? acked_bytes : 0;
	ev.rtt_ns = rtt_ns;
	ev.limited = (conn->flags & CONN_CWND_LIMITED) != 0;
	if (conn->recovery == TCP_RECOVERY_RTO && !loss_undo_timeout(conn)) {
		ev.limited = 1;
		if (seq_geq(conn->snd_una_seq, conn->recover_seq)) {
			conn->recovery = TCP_RECOVERY_NONE;
			conn->recovered_from_rto = 1;
		} else if (seq_lt(conn->rtx_seq, conn->snd_una_seq)) {
			conn->rtx_seq = conn->snd_una_seq;
			conn->rtx_next = conn->snd_head;
		}
	}
	loss_forget_dups(conn);
	conn->cc.ops->acked(&conn->cc, &ev);
	if (seq_geq(conn->snd_una_seq, conn->limited_seq))
		conn->flags &= ~(uint32_t)CONN_CWND_LIMITED;
}

void tcp_loss_timeout(struct harp_conn *conn)
{
	/* RFC 5681 section 3.1: ssthresh is held constant when the same data times out again. */
	if (conn->recovery != TCP_RECOVERY_RTO) {
		struct cc_event ev = loss_event(conn, conn_flight_bytes(conn));

		conn->undo_cwnd_bytes = conn->cc.cwnd_bytes;
		conn->undo_ssthresh_bytes = conn->cc.ssthresh_bytes;
		conn->undo_tsval = conn_tsval(conn);
		conn->cc.ops->timeout(&conn->cc, &ev);
		tcp_ecn_reduced(conn);
	}
	conn->cc.cwnd_bytes = conn->snd_mss_bytes; /* RFC 5681: the loss window */
	conn->recovery = TCP_RECOVERY_RTO;
	conn->recover_seq = conn->snd_nxt_seq;
	conn->rtx_seq = conn->snd_una_seq;
	conn->rtx_next = conn->snd_head;
	loss_forget_dups(conn);
}

void tcp_loss_ecn(struct harp_conn *conn)
{
	struct cc_event ev = loss_event(conn, conn->cc.cwnd_bytes);

	if (conn->recovery != TCP_RECOVERY_NONE)
		return;
	ev.signal = CC_SIGNAL_ECN;
	conn->cc.ops->congestion(&conn->cc, &ev);
	if (conn->cc.cwnd_bytes > conn->cc.ssthresh_bytes)
		conn->cc.cwnd_bytes = conn->cc.ssthresh_bytes;
	conn->acct.ecn_reductions++;
	conn->tcp->stats->tcp_ecn_reductions++;
	tcp_ecn_reduced(conn);
}

uint32_t tcp_loss_pipe_bytes(const struct harp_conn *conn)
{
	/* After a timeout: what was sent again, and what is new since. */
	if (conn->recovery == TCP_RECOVERY_RTO)
		return conn->rtx_seq - conn->snd_una_seq + (conn->snd_nxt_seq - conn->recover_seq);
	return conn_flight_bytes(conn) - conn->dup_acked_bytes;
}

struct frame *tcp_loss_next(const struct harp_conn *conn)
{
	const struct frame *seg;

	if (conn->recovery == TCP_RECOVERY_NONE || !conn->snd_head ||
	    conn->snd_head == conn->snd_unsent)
		return NULL;
	if (conn->recovery == TCP_RECOVERY_FAST)
		return seq_geq(conn->snd_una_seq, conn->rtx_seq) ? conn->snd_head : NULL;
	seg = conn->rtx_next;
	if (!seg || seg == conn->snd_unsent || seq_geq(seg->seq, conn->recover_seq))
		return NULL;
	if (seg != conn->snd_head &&
	    tcp_loss_pipe_bytes(conn) + seg_bytes(seg) > conn->cc.cwnd_bytes)
		return NULL;
	/* The oldest one goes out even where it lies: once per timeout, not once per poll. */
	if (seg == conn->snd_head && seq_gt(conn->rtx_seq, seg->seq))
		return NULL;
	return conn->rtx_next;
}

void tcp_loss_resent(struct harp_conn *conn, const struct frame *seg)
{
	conn->rtx_seq = seg->seq + seg_space(seg);
	if (conn->recovery == TCP_RECOVERY_RTO)
		conn->rtx_next = seg->next;
}
