/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_ack.c - effects of an acceptable ACK on the send queue, the RTT, the windows, and the
 * application. */
#include "transport/tcp.h"

#define ACK_CONFIRM_NS TCP_NS_PER_S /* minimum interval of neighbor confirmations */

void tcp_ack_writable(struct harp_conn *conn)
{
	tcp_budget_tune_tx(conn);
	if (conn->frames.tx_held * 4 > conn->frames.tx_budget * 3 ||
	    conn->budget.tx_external_held * 4 > conn->frames.tx_budget * 3 ||
	    conn_unsent_bytes(conn) > conn->opts.unsent_bytes_max / 2)
		return;
	if (conn->on_list.pool)
		TAILQ_REMOVE(&conn->tcp->pool_waiters, conn, link.pool);
	conn->on_list.pool = 0;
	conn->flags &= ~(uint32_t)CONN_WANT_WRITE;
	tcp_conn_event(conn, HARP_EVENT_WRITABLE);
}

/* Moves SND.UNA to a->ack. */
static void ack_advance(struct harp_conn *conn, struct tcp_ack *a)
{
	uint32_t fin = (conn->flags & CONN_FIN_QUEUED) && a->ack == conn->snd.end_seq;

	a->acked_bytes = a->ack - conn->snd.una_seq;
	tcp_sndq_acked(conn, a->ack, a);
	conn->snd.una_seq = a->ack;
	conn->acct.bytes_acked += a->acked_bytes - fin;
}

void tcp_ack_progress(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;

	if (tcp->now_ns < conn->throttle.confirm_next_ns || !ip_path_neighbor(&conn->path))
		return;
	conn->throttle.confirm_next_ns = tcp->now_ns + ACK_CONFIRM_NS;
	neighbor_confirm(tcp->eth, conn->path.neighbor, tcp->now_ns);
}

/* After SND.UNA moved: updates pacing, timers, application and neighbor table. */
static void ack_notify(struct harp_conn *conn)
{
	tcp_cc_pace(conn);
	tcp_timer_acked(conn);
	if (conn->sndq.head)
		tcp_tx_ready(conn);
	tcp_conn_event(conn, HARP_EVENT_ACKED);
	if (conn->flags & CONN_WANT_WRITE)
		tcp_ack_writable(conn);
	tcp_ack_progress(conn);
}

/* Karn's algorithm: sent_ns is 0 if the delivered segment was retransmitted. If a retransmission
 * filled a hole, the segments behind it may have arrived long before. */
static void ack_round_trip(struct harp_conn *conn, struct tcp_ack *a, bool single)
{
	uint64_t now_ns = conn->tcp->now_ns;

	if (a->sent_ns == 0 || a->resent)
		return;
	a->rtt_ns = now_ns > a->sent_ns ? now_ns - a->sent_ns : 1;
	tcp_timer_rtt(conn, a->rtt_ns, single);
}

void tcp_ack_new(struct harp_conn *conn, uint32_t ack)
{
	struct tcp_ack a = { .ack = ack, .flight_bytes = conn_flight_bytes(conn) };
	bool single = tcp_sndq_is_single(conn);

	ack_advance(conn, &a);
	a.delivered_bytes = a.acked_bytes;
	ack_round_trip(conn, &a, single);
	if (a.sent_ns) {
		/* RACK state, without reordering. */
		conn->rack.sent_ns = a.sent_ns;
		conn->rack.end_seq = ack;
		conn->rack.fack_seq = ack;
		conn->rack.rtt_ns = a.rtt_ns;
	}
	tcp_loss_ack(conn, &a);
	ack_notify(conn);
}

/* RFC 5681 section 2: all conditions of a duplicate acknowledgment. The copy that a tail loss probe
 * sent may arrive after all data was acknowledged (RFC 8985 section 7.4.2). */
static bool ack_is_duplicate(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	return seg->ack == conn->snd.una_seq && (conn_flight_bytes(conn) > 0 || conn->tlp.out) &&
	       seg->len == 0 && !(seg->flags & (TCP_SYN | TCP_FIN)) &&
	       seg->wnd_field << conn->snd.wscale == conn->snd.wnd_bytes;
}

void tcp_ack_in(struct harp_conn *conn, const struct tcp_segment *seg)
{
	struct tcp_ack a = { .ack = seg->ack,
			     .flight_bytes = conn_flight_bytes(conn) - conn->loss.sacked_bytes -
					     conn->loss.dup_acked_bytes,
			     .fack_seq = conn->rack.fack_seq,
			     .dup = ack_is_duplicate(conn, seg),
			     .sack = (seg->opt.seen & TCP_OPT_SACK) &&
				     (conn->options & HARP_TCPI_SACK) };
	bool single = tcp_sndq_is_single(conn), advances = seq_gt(seg->ack, conn->snd.una_seq);

	conn->acct.dup_acks_in += a.dup;
	if (!conn->loss_open && !a.sack && !(a.dup && !(conn->options & HARP_TCPI_SACK))) {
		if (advances)
			tcp_ack_new(conn, seg->ack);
		return;
	}
	conn->loss_open = 1; /* each segment reports its delivery */
	if (advances)
		ack_advance(conn, &a);
	if (a.sack)
		tcp_sack_in(conn, seg, &a);
	ack_round_trip(conn, &a, single && advances);
	tcp_loss_ack(conn, &a);
	if (advances)
		ack_notify(conn);
}

void tcp_window_update(struct harp_conn *conn, const struct tcp_segment *seg)
{
	uint32_t wnd = seg->wnd_field << conn->snd.wscale;
	bool opened = wnd > conn->snd.wnd_bytes, shut = conn->snd.wnd_bytes == 0;

	/* RFC 9293 section 3.10.7.4: "If SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =<
	 * SEG.ACK), set SND.WND <- SEG.WND, set SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK."
	 * This code also accepts a newer ACK with an older SEG.SEQ, as in a retransmission. Such an
	 * ACK moves SND.UNA, and SND.UNA plus the old window would exceed the advertised edge. */
	if (!seq_lt(conn->snd.wl1_seq, seg->seq) && !seq_gt(seg->ack, conn->snd.wl2_seq) &&
	    !(conn->snd.wl1_seq == seg->seq && seq_leq(conn->snd.wl2_seq, seg->ack)))
		return;
	conn->snd.wl1_seq = seg->seq;
	conn->snd.wl2_seq = seg->ack;
	if (wnd == conn->snd.wnd_bytes)
		return; /* if SND.UNA moved, ack_notify() has already resumed transmission */
	conn->snd.wnd_bytes = wnd;
	if (wnd > conn->snd_wnd_max_bytes)
		conn->snd_wnd_max_bytes = wnd;
	if (opened && shut && conn_flight_bytes(conn) > 0 && (conn->flags & CONN_HANDLE)) {
		/* The peer had shrunk its window, so data beyond the edge was not lost. Resets the
		 * backoff and the user timeout. */
		conn->progress_ns = conn->tcp->now_ns;
		tcp_timer_reopened(conn);
	}
	if (!conn->sndq.unsent)
		return;
	if (opened && conn_flight_bytes(conn) == 0) {
		/* The persist timer is no longer needed. */
		conn->rtx_backoff = 0;
		conn->deadline.rto_ns = TCP_NEVER_NS;
	}
	tcp_tx_ready(conn);
}
