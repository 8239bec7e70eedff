/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_fast.c - the fast path (header prediction, Jacobson 1990).
 *
 * Conditions: the connection is established; the flags are ACK, perhaps PSH; the payload begins at
 * RCV.NXT and fits; the options are the negotiated ones; no loss is being repaired. Then the only
 * effects in RFC 9293 section 3.10.7 are that the ACK may move SND.UNA, the window is updated, and
 * the payload is queued. The result must be the same as that of the slow path in tcp_in.c.
 */
#include "transport/tcp.h"

/* One condition per line; any of them selects the slow path. */
static inline bool fast_is_slow(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	uint32_t flight = conn_flight_bytes(conn);
	bool slow = conn->state != HARP_TCP_ESTABLISHED;

	slow |= (seg->flags & ~TCP_PSH) != TCP_ACK;
	slow |= seg->seq != conn->rcv.nxt_seq;
	slow |= seg->len > conn_rcv_wnd_bytes(conn);
	slow |= seg->ack - conn->snd.una_seq > flight;
	slow |= (seg->ack == conn->snd.una_seq) & (seg->len == 0) & (flight > 0);
	slow |= seg->opt.seen != ((conn->options & HARP_TCPI_TIMESTAMPS) ? TCP_OPT_TIMESTAMP : 0);
	slow |= (seg->opt.seen != 0) & ((int32_t)(seg->opt.tsval - conn->ts.recent) < 0);
	slow |= !tcp_check_echo(conn, seg);
	slow |= conn->loss_open;
	slow |= conn->reass.head != NULL;
	slow |= (conn->flags & (CONN_FIN_OOO | CONN_FIN_WANTED | CONN_READ_SHUT | CONN_ECN_ECHO)) !=
		0;
	slow |= ((conn->flags & CONN_ECN_IN) != 0) & ((seg->in->tos & 3) == 3); /* CE */
	return slow;
}

/* True if the payload is one frame, and budget and pool have room for it without coalescing or
 * eviction. */
static inline bool fast_may_keep(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	const struct tcp *tcp = conn->tcp;

	return !seg->in->frame->frag && conn->frames.rx_held * 2 <= conn->frames.rx_budget &&
	       tcp->pool->free_count >= tcp->pool_high_frames;
}

static inline void fast_keep(struct harp_conn *conn, const struct tcp_segment *seg)
{
	struct tcp *tcp = conn->tcp;
	struct frame *f = seg->in->frame;

	f->pub.data += seg->header_bytes;
	f->pub.len = seg->len;
	f->pub.capacity = seg->len;
	f->next = NULL;
	f->seq = seg->seq;
	f->owner = 0;
	f->flags = 0;
	if (conn->rcvq.tail)
		conn->rcvq.tail->next = f;
	else
		conn->rcvq.head = f;
	conn->rcvq.tail = f;
	conn->frames.rx_held++;
	tcp->stats->frames_tcp_rx++;
	tcp->stats->tcp_data_segs_in++;
	conn->acct.data_segs_in++;
	conn->acct.bytes_received += seg->len;
	conn->rcv_queued_bytes += seg->len;
	conn->rcv.nxt_seq += seg->len;
	tcp_delack_received(conn, seg, seg->len);
}

static inline void fast_note_received(struct harp_conn *conn, const struct tcp_segment *seg)
{
	conn->tcp->stats->tcp_fast_path_in++;
	conn_note_received(conn);
	tcp_check_take_timestamp(conn, seg);
	conn->ts.echo = seg->opt.tsecr;
}

enum tcp_verdict tcp_fast_in(struct harp_conn *conn, struct tcp_segment *seg)
{
	if (fast_is_slow(conn, seg))
		return TCP_PASS;
	fast_note_received(conn, seg);
	if (seg->ack != conn->snd.una_seq)
		tcp_ack_new(conn, seg->ack);
	tcp_window_update(conn, seg);
	if (seg->len == 0)
		return TCP_DONE;
	if (!fast_may_keep(conn, seg))
		return tcp_reass_payload(conn, seg);
	fast_keep(conn, seg);
	return TCP_KEPT;
}

/* The time and the headers are those of the previous segment, except for the sequence number. So
 * only sequence number, window and memory are checked. */
bool tcp_fast_next(struct harp_conn *conn, const struct tcp_segment *seg)
{
	if (seg->seq != conn->rcv.nxt_seq || seg->len > conn_rcv_wnd_bytes(conn) ||
	    !fast_may_keep(conn, seg))
		return false;
	conn->tcp->stats->tcp_fast_path_in++;
	if (seq_leq(seg->seq, conn->rcv.acked_seq))
		tcp_check_take_timestamp(conn, seg);
	tcp_window_update(conn, seg);
	fast_keep(conn, seg);
	return true;
}
