/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_ack.c - what an acceptable ACK does: the send queue, the RTT, the windows, the application. */
#include "transport/tcp.h"

#define ACK_CONFIRM_NS TCP_NS_PER_S /* a neighbour need not hear of progress more often */

void tcp_ack_writable(struct harp_conn *conn)
{
	if (conn->tx_frames_held * 4 > conn->tx_frames_budget * 3 ||
	    conn_unsent_bytes(conn) > conn->snd_unsent_bytes_max / 2)
		return;
	if (conn->on_pool_list)
		TAILQ_REMOVE(&conn->tcp->pool_waiters, conn, pool_link);
	conn->on_pool_list = 0;
	conn->flags &= ~(uint32_t)CONN_WANT_WRITE;
	tcp_conn_event(conn, HARP_EVENT_WRITABLE);
}

void tcp_ack_new(struct harp_conn *conn, uint32_t ack)
{
	struct tcp *tcp = conn->tcp;
	uint32_t flight_before = conn_flight_bytes(conn);
	uint32_t acked = ack - conn->snd_una_seq;
	bool lone = conn->snd_head && conn->snd_head->next == conn->snd_unsent;
	uint64_t sent_ns = tcp_sndq_acked(conn, ack);
	uint64_t rtt_ns = 0;
	uint32_t fin = (conn->flags & CONN_FIN_QUEUED) && ack == conn->snd_end_seq;

	conn->snd_una_seq = ack;
	conn->acct.bytes_acked += acked - fin;
	if (sent_ns) {
		/* Karn's rule is in sent_ns: 0 when the segment was sent twice. */
		rtt_ns = tcp->now_ns > sent_ns ? tcp->now_ns - sent_ns : 1;
		tcp_timer_rtt(conn, rtt_ns, lone);
	}
	tcp_loss_acked(conn, acked, flight_before, rtt_ns);
	tcp_cc_pace(conn);
	tcp_timer_acked(conn);
	if (conn->snd_head)
		tcp_tx_ready(conn);
	tcp_conn_event(conn, HARP_EVENT_ACKED);
	if (conn->flags & CONN_WANT_WRITE)
		tcp_ack_writable(conn);
	if (tcp->now_ns >= conn->confirm_next_ns && conn->path.neighbour) {
		conn->confirm_next_ns = tcp->now_ns + ACK_CONFIRM_NS;
		neighbour_confirm(tcp->eth, conn->path.neighbour, tcp->now_ns);
	}
}

void tcp_window_update(struct harp_conn *conn, const struct tcp_segment *seg)
{
	uint32_t wnd = seg->wnd_field << conn->snd_wscale;
	bool opened = wnd > conn->snd_wnd_bytes;

	/* RFC 9293 3.10.7.4: "If SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK), set
	 * SND.WND <- SEG.WND, set SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK." */
	if (!seq_lt(conn->snd_wl1_seq, seg->seq) &&
	    !(conn->snd_wl1_seq == seg->seq && seq_leq(conn->snd_wl2_seq, seg->ack)))
		return;
	conn->snd_wl1_seq = seg->seq;
	conn->snd_wl2_seq = seg->ack;
	conn->snd_wnd_bytes = wnd;
	if (wnd > conn->snd_wnd_max_bytes)
		conn->snd_wnd_max_bytes = wnd;
	if (!conn->snd_unsent)
		return;
	if (opened && conn_flight_bytes(conn) == 0) {
		/* The persist timer has nothing to ask any more. */
		conn->rtx_backoff = 0;
		conn->rto_deadline_ns = TCP_NEVER_NS;
	}
	tcp_tx_ready(conn);
}
