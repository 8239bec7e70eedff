/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_tx.c - the transmit phase of a poll: decides which connection sends which data.
 *
 * Theory of operation. Calls of the application and arriving segments send nothing directly, except
 * duplicate ACKs, challenge ACKs and resets. A connection with data to send is on tx_ready, one
 * with a pending ACK on ack_list. tcp_tx_phase() serves both once per poll: first data, because
 * receivers wait for it, with a quota of segments per connection; then the ACKs that no data
 * segment has carried and that are due (tcp_delack.c).
 *
 * Data that cannot be sent now waits:
 *	- if the NIC's ring is full, the phase ends, and all connections keep their place in
 *	  tx_ready
 *	- if the next hop is unresolved, on tx_unresolved, until eth->resolved_generation changes or
 *	  an event (a timer, an ACK, the application) makes the connection ready, which requests
 *	  resolution again
 *	- if pacing does not allow it, until the connection's timer puts it back on tx_ready
 *	- if the NIC still reads the frame to retransmit, or no frame is free, on tx_blocked, which
 *	  every phase retries. While the NIC holds frames, stack_nic_next_ns() schedules a poll
 */
#include "transport/tcp.h"

#include <assert.h>
#include <errno.h>

/* smaller amounts are sent only when the override timer expires */
#define TX_OVERRIDE_BYTES_MIN (TCP_MSS_BYTES_MIN / 2)
#define TX_PUSH_RTT_NS_MAX (2 * TCP_NS_PER_MS) /* see tx_is_pushed() */
#define TX_PHASE_SEGMENTS_MAX 256u             /* limits the time between polls of the NIC */
#define CACHE_LINE_BYTES 64u
#define TX_BUSY_NS (10 * TCP_NS_PER_MS) /* more than the time of a NIC to send a packet */

/* ------------------------------------------------------------------------------------------------
 * Data.
 */
/*
 * True if the segment gets PSH, which marks the end of a send call and the end of the queue. It
 * also marks the last segment that a small window allows: a HARP receiver delays the ACK of a
 * segment in the middle of a stream (delack_hold_ns()), and on a short path that delay is a large
 * part of the round trip.
 */
static bool tx_is_pushed(const struct harp_conn *conn, const struct tcp_gso *gso)
{
	uint32_t cwnd = conn->cc.cwnd_bytes, wnd = conn->snd.wnd_bytes, bytes;
	const struct frame *seg = gso->last;

	if (seg == conn->sndq.tail || (seg->tcp_flags & SEG_PUSH))
		return true;
	if (conn->rtt.srtt_ns >= TX_PUSH_RTT_NS_MAX ||
	    (cwnd < wnd ? cwnd : wnd) >= 2u * TCP_ACK_EVERY_SEGMENTS * conn->snd.mss_bytes)
		return false;
	assert(seg->next); /* not the last one */
	bytes = gso->bytes + seg_bytes(seg->next);
	return tcp_loss_pipe_bytes(conn) + bytes > cwnd || conn_flight_bytes(conn) + bytes > wnd;
}

/* Updates state after a segment has been sent. */
static void tx_note(struct harp_conn *conn, struct frame *seg, bool is_retrans)
{
	struct tcp *tcp = conn->tcp;
	uint32_t bytes = seg_bytes(seg);

	seg->sent_ns = tcp->now_ns;
	if (bytes > 0) {
		tcp->stats->tcp_data_segs_out++;
		conn->acct.data_segs_out++;
		conn->acct.bytes_sent += bytes;
		conn->pace.credit_bytes -= bytes;
	}
	if (is_retrans) {
		seg->flags |= FRAME_RETRANS;
		conn->loss.retrans_end_seq =
			seq_max(conn->loss.retrans_end_seq, seg->seq + seg_space(seg));
		tcp->stats->tcp_retransmits++;
		conn->acct.retransmits++;
		conn->acct.bytes_retransmitted += bytes;
	} else {
		seg->flags |= FRAME_SENT;
		conn->sndq.unsent = seg->next;
		conn->snd.nxt_seq = seg->seq + seg_space(seg);
		if (conn->skip_left-- == 0)
			tcp_sack_index(conn, seg);
	}
	if (conn->loss_open)
		tcp_loss_sent(conn, seg, is_retrans);
}

/* Sends a copy of a segment whose frames the NIC holds. A NIC with HARP_NIC_TX_LAZY may hold them
 * until more is sent, so waiting for it could block the connection forever. */
static int tx_copy(struct harp_conn *conn, const struct frame *seg, uint8_t flags)
{
	struct tcp_gso gso = { .segments = 1, .bytes = seg_bytes(seg) };
	int err;

	if (!(conn->tcp->io->features & HARP_NIC_TX_LAZY) || !(seg->flags & FRAME_SENT) ||
	    conn->tcp->now_ns - seg->sent_ns < TX_BUSY_NS)
		return -EBUSY;
	gso.first = gso.last = tcp_gso_copy(conn, seg, &gso.frags);
	if (!gso.first)
		return -ENOMEM;
	err = tcp_out_segments(conn, &gso, seg->seq, flags, NULL);
	frame_release_packet(conn->tcp->pool, gso.first);
	return err;
}

/* The caller must notify the timers. */
static int tx_segments(struct harp_conn *conn, const struct tcp_gso *gso, struct tcp_burst *burst)
{
	bool is_retrans = gso->first->flags & FRAME_SENT;
	uint8_t flags = TCP_ACK;
	int err;

	if (is_retrans)
		tcp_gso_drop_sums(conn, gso->first);
	if (gso->last->flags & FRAME_FIN)
		flags |= TCP_FIN;
	if (tx_is_pushed(conn, gso))
		flags |= TCP_PSH;
	if (tcp_gso_is_busy(gso->first))
		err = tx_copy(conn, gso->first, flags);
	else
		err = tcp_out_segments(conn, gso, gso->first->seq, flags, burst);
	if (err)
		return err;
	for (struct frame *seg = gso->first;; seg = seg->next) {
		tx_note(conn, seg, is_retrans);
		if (seg == gso->last)
			break;
	}
	return 0;
}

static int tx_segment(struct harp_conn *conn, struct frame *seg)
{
	struct tcp_gso gso = tcp_gso_one(seg);
	int err = tx_segments(conn, &gso, NULL);

	if (!err)
		tcp_timer_sent(conn);
	return err;
}

/* Splits a segment that is larger than the path now allows (RFC 1191). False: no frame is free. */
static bool tx_fit_mss(struct harp_conn *conn, struct frame *seg)
{
	if (seg_bytes(seg) <= conn->snd.mss_bytes)
		return true;
	if (!tcp_resegment_split(conn, seg, conn->snd.mss_bytes))
		return false;
	conn->tcp->stats->tcp_resegmented++;
	return true;
}

static void tx_limited(struct harp_conn *conn)
{
	conn->flags |= CONN_CWND_LIMITED;
	conn->limited_seq = conn->snd.nxt_seq;
}

/* True if pacing allows `bytes`. In slow start, a paced connection counts as limited by the window
 * even if half of the window is unused. */
static bool tx_paced(struct harp_conn *conn, uint32_t bytes)
{
	if (tcp_cc_pace_admits(conn, bytes))
		return true;
	if (conn->cc.cwnd_bytes < conn->cc.ssthresh_bytes &&
	    conn_flight_bytes(conn) >= conn->cc.cwnd_bytes / 2)
		tx_limited(conn);
	return false;
}

/* Splits a segment, whose first bytes may be sent. Results as tx_may_send(). */
static int tx_cut(struct harp_conn *conn, struct frame *seg, uint32_t bytes)
{
	return tcp_resegment_split(conn, seg, bytes) ? 1 : -ENOMEM;
}

/* Decides whether the oldest unsent segment may be sent; may split it, as RFC 9293 section
 * 3.8.6.2.1 permits. 1: yes; 0: no, an event will retry; -ENOMEM: no frame for the split. */
static int tx_may_send(struct harp_conn *conn, struct frame *seg)
{
	uint32_t bytes = seg_bytes(seg);
	uint32_t edge = conn->snd.una_seq + conn->snd.wnd_bytes;
	uint32_t usable = seq_gt(edge, conn->snd.nxt_seq) ? edge - conn->snd.nxt_seq : 0;

	if (bytes > 0 && tcp_loss_pipe_bytes(conn) + bytes > conn->cc.cwnd_bytes &&
	    conn_flight_bytes(conn) > 0) {
		tx_limited(conn);
		return 0;
	}
	if (seg_space(seg) <= usable)
		return conn->cc.pacing_bytes_per_s == 0 || bytes == 0 || tx_paced(conn, bytes);
	if (bytes > 0 && bytes == usable) {
		/* the window has no space for the FIN */
		if (conn->cc.pacing_bytes_per_s > 0 && !tx_paced(conn, bytes))
			return 0;
		return tx_cut(conn, seg, bytes);
	}
	/* The override timeout has expired: see tcp_timer.c. */
	if (usable > 0 && (conn->flags & CONN_WINDOW_FORCE))
		return tx_cut(conn, seg, usable);
	/* "min(D,U) >= Fs*Max(SND.WND)" with Fs = 1/2, unless Max(SND.WND) is tiny: otherwise a
	 * peer with a window of 1 would get segments of one byte. */
	if (usable >= conn->snd_wnd_max_bytes / 2 && usable >= TX_OVERRIDE_BYTES_MIN)
		return tx_cut(conn, seg, usable);
	if (conn_flight_bytes(conn) > 0)
		return 0;
	if (conn->snd.wnd_bytes > 0)
		tcp_timer_override(conn);
	else
		tcp_timer_blocked(conn);
	return 0;
}

static void tx_fin_sent(struct harp_conn *conn)
{
	if (conn->state == HARP_TCP_ESTABLISHED)
		tcp_state_set(conn, HARP_TCP_FIN_WAIT_1);
	else if (conn->state == HARP_TCP_CLOSE_WAIT)
		tcp_state_set(conn, HARP_TCP_LAST_ACK);
}

/* RFC 8985 section 7.3: the tail loss probe. */
static int tx_loss_probe(struct harp_conn *conn, unsigned *sent)
{
	struct frame *seg = tcp_rack_probe(conn);
	bool is_retrans = seg && (seg->flags & FRAME_SENT);
	int err;

	if (!seg)
		return 0;
	for (; seg_bytes(seg) > conn->snd.mss_bytes; seg = seg->next) {
		/* the probe is the end of the last segment */
		if (!tx_fit_mss(conn, seg)) {
			conn->flags |= CONN_TLP_PENDING;
			return -ENOMEM;
		}
	}
	err = tx_segment(conn, seg);
	if (err) {
		conn->flags |= CONN_TLP_PENDING;
		return err;
	}
	++*sent;
	tcp_rack_probed(conn, is_retrans);
	if (is_retrans)
		tcp_rack_resent(conn, seg);
	else if (seg->flags & FRAME_FIN)
		tx_fin_sent(conn);
	return 0;
}

/* RFC 4821 section 7.2: new data in a segment larger than the others. */
static int tx_mtu_probe(struct harp_conn *conn, unsigned *sent)
{
	uint32_t bytes = tcp_mtu_probe(conn);
	struct frame *seg = conn->sndq.unsent;
	int err;

	if (bytes == 0 || !tcp_resegment_gather(conn, bytes))
		return 0;
	err = tx_segment(conn, seg);
	if (err)
		return err; /* tx_new() splits it again */
	tcp_mtu_probed(conn, seg);
	++*sent;
	return 0;
}

/* True if the oldest unsent segment, which may be sent, can reuse the previous one's headers. */
static bool tx_continues_burst(const struct harp_conn *conn, const struct tcp_burst *burst,
			       struct frame *seg)
{
	const struct tcp_gso gso = tcp_gso_one(seg);

	return burst->header_bytes > 0 && gso.bytes == burst->bytes && !(seg->flags & FRAME_FIN) &&
	       !tx_is_pushed(conn, &gso) && !tcp_gso_is_busy(seg);
}

/* Sends new data as far as allowed; results as tx_conn(). */
static int tx_new(struct harp_conn *conn, int quota, unsigned *sent)
{
	struct tcp_burst burst = { .header_bytes = 0 };
	struct tcp_gso gso;
	struct frame *seg;
	int err;

	while ((seg = conn->sndq.unsent) != NULL) {
		if (quota <= 0)
			return 1;
		if (seg->next) /* the next iteration writes its headers */
			__builtin_prefetch(seg->next->pub.data - CACHE_LINE_BYTES, 1);
		if (!tx_fit_mss(conn, seg))
			return -ENOMEM;
		err = tx_may_send(conn, seg);
		if (err <= 0)
			return err;
		if (tx_continues_burst(conn, &burst, seg)) {
			err = tcp_out_next(conn, &burst, seg);
			if (err)
				return err;
			tx_note(conn, seg, false);
			++*sent;
			quota--;
			continue;
		}
		gso = conn->tcp->io->tso_bytes_max > 0 ? tcp_gso_build(conn, seg)
						       : tcp_gso_one(seg);
		err = tx_segments(conn, &gso, gso.last->next ? &burst : NULL);
		if (err)
			return err;
		conn->flags &= ~(uint32_t)CONN_WINDOW_FORCE;
		*sent += gso.segments;
		quota -= (int)gso.segments;
		if (gso.last->flags & FRAME_FIN)
			tx_fin_sent(conn);
	}
	return 0;
}

/* Sends a connection's data, up to its quota, and adds the number of segments to *sent. 0: done for
 * now; 1: quota used up; -errno as tcp_out_segments(). */
static int tx_conn(struct harp_conn *conn, unsigned *sent)
{
	int quota = TCP_TX_QUOTA_SEGMENTS;
	struct frame *seg;
	unsigned before;
	int err = 0;

	if (conn->flags & CONN_SYN_PENDING) {
		err = tcp_out_syn(conn);
		*sent += err == 0;
		return err;
	}
	if (!conn_synchronized(conn) || conn->state == HARP_TCP_TIME_WAIT)
		return 0;
	if (conn->flags & CONN_PROBE_PENDING) {
		err = tcp_out_probe(conn);
		if (err)
			return err;
		conn->flags &= ~(uint32_t)CONN_PROBE_PENDING;
		++*sent;
	}
	/* All send calls since the last poll count as one. */
	if ((conn->flags & CONN_PUSH) && conn->sndq.unsent)
		conn->sndq.tail->tcp_flags |= SEG_PUSH;
	conn->flags &= ~(uint32_t)CONN_PUSH;
	if ((conn->flags & (CONN_FIN_WANTED | CONN_FIN_QUEUED)) == CONN_FIN_WANTED &&
	    !tcp_sndq_fin(conn))
		return -ENOMEM;
	if (conn->flags & CONN_TLP_PENDING) {
		err = tx_loss_probe(conn, sent);
		if (err)
			return err;
	}
	while ((seg = tcp_loss_next(conn)) != NULL) {
		if (quota-- == 0)
			return 1;
		if (!tx_fit_mss(conn, seg))
			return -ENOMEM;
		err = tx_segment(conn, seg);
		if (err)
			return err;
		++*sent;
	}
	if (conn->sndq.unsent && conn_flight_bytes(conn) == 0)
		tcp_cc_restart(conn);
	if (conn->mtu.state != MTU_IDLE) {
		err = tx_mtu_probe(conn, sent);
		if (err)
			return err;
	}
	before = *sent;
	err = tx_new(conn, quota, sent);
	if (*sent != before)
		tcp_timer_sent(conn); /* once, because all were sent at the same time */
	return err;
}

static struct conn_list *tx_list(struct tcp *tcp, uint8_t list)
{
	switch (list) {
	case TX_LIST_READY:
		return &tcp->tx_ready;
	case TX_LIST_BLOCKED:
		return &tcp->tx_blocked;
	case TX_LIST_UNRESOLVED:
		return &tcp->tx_unresolved;
	default:
		return NULL;
	}
}

/* Moves the connection to the end of a list, enum tcp_tx_list. */
static void tx_move(struct harp_conn *conn, uint8_t list)
{
	struct conn_list *from = tx_list(conn->tcp, conn->on_list.tx);
	struct conn_list *to = tx_list(conn->tcp, list);

	if (from)
		TAILQ_REMOVE(from, conn, link.tx);
	if (to)
		TAILQ_INSERT_TAIL(to, conn, link.tx);
	conn->on_list.tx = list;
}

void tcp_tx_ready(struct harp_conn *conn)
{
	/* Retries an unresolved next hop, because the ACK or window update that led here may have
	 * stopped the timer that would retry. */
	if (conn->on_list.tx == TX_LIST_NONE || conn->on_list.tx == TX_LIST_UNRESOLVED)
		tx_move(conn, TX_LIST_READY);
}

void tcp_tx_unlist(struct harp_conn *conn)
{
	tx_move(conn, TX_LIST_NONE);
	if (conn->on_list.ack) {
		TAILQ_REMOVE(&conn->tcp->ack_list, conn, link.ack);
		conn->tcp->acks_pending--;
	}
	conn->on_list.ack = 0;
	if (conn->on_list.pool)
		TAILQ_REMOVE(&conn->tcp->pool_waiters, conn, link.pool);
	conn->on_list.pool = 0;
	tcp_pressure_end(conn);
	conn->flags &= ~(uint32_t)(CONN_ACK_PENDING | CONN_ACK_NOW | CONN_PROBE_PENDING |
				   CONN_SYN_PENDING | CONN_TLP_PENDING);
}

uint64_t tcp_tx_next_ns(const struct tcp *tcp)
{
	if (tcp->nic_full)
		return TCP_NEVER_NS;
	if (!TAILQ_EMPTY(&tcp->tx_ready) || (!TAILQ_EMPTY(&tcp->tx_unresolved) &&
					     tcp->resolved_seen != tcp->eth->resolved_generation))
		return tcp->now_ns;
	if (tcp_pressure_may_serve(tcp))
		return tcp->now_ns;
	return tcp->acks_pending > 0 ? tcp_delack_next_ns(tcp) : TCP_NEVER_NS;
}

/* Makes waiting connections ready: blocked ones in every phase, unresolved ones when a neighbor has
 * become usable. */
static void tx_wake(struct tcp *tcp)
{
	struct harp_conn *conn;

	while ((conn = TAILQ_FIRST(&tcp->tx_blocked)) != NULL)
		tx_move(conn, TX_LIST_READY);
	if (tcp->resolved_seen != tcp->eth->resolved_generation) {
		tcp->resolved_seen = tcp->eth->resolved_generation;
		while ((conn = TAILQ_FIRST(&tcp->tx_unresolved)) != NULL)
			tx_move(conn, TX_LIST_READY);
	}
	while ((conn = TAILQ_FIRST(&tcp->pool_waiters)) != NULL &&
	       tcp->pool->free_count > tcp_pool_floor_tx(conn) + tcp->tx_frags_max) {
		TAILQ_REMOVE(&tcp->pool_waiters, conn, link.pool);
		conn->on_list.pool = 0;
		conn->flags &= ~(uint32_t)CONN_WANT_WRITE;
		tcp_conn_event(conn, HARP_EVENT_WRITABLE);
	}
	tcp_pressure_serve(tcp);
}

/* Moves the connection according to the result of tx_conn(). False: the phase ends. */
static bool tx_result(struct harp_conn *conn, int result)
{
	switch (result) {
	case 0:
		tx_move(conn, TX_LIST_NONE);
		if ((conn->flags & CONN_WANT_WRITE) && conn->opts.unsent_bytes_max != UINT32_MAX)
			tcp_ack_writable(conn);
		return true;
	case 1:
		tx_move(conn, TX_LIST_READY);
		return true;
	case -ENOBUFS:
		conn->tcp->nic_full = true;
		return false;
	case -EAGAIN:
		tx_move(conn, TX_LIST_UNRESOLVED);
		tcp_timer_blocked(conn);
		return true;
	case -EBUSY:
	case -ENOMEM:
		tx_move(conn, TX_LIST_BLOCKED);
		return true;
	case -EMSGSIZE: /* retry with smaller segments */
		if (tcp_mtu_refused(conn))
			return true;
		/* fall through */
	default:
		/* No route, or no source address: timers decide how long to retry. */
		tx_move(conn, TX_LIST_NONE);
		tcp_timer_blocked(conn);
		return true;
	}
}

unsigned tcp_tx_phase(struct tcp *tcp)
{
	struct harp_conn *conn;
	unsigned sent = 0;

	tcp->nic_full = false;
	tx_wake(tcp);
	while ((conn = TAILQ_FIRST(&tcp->tx_ready)) != NULL && sent < TX_PHASE_SEGMENTS_MAX) {
		if (!tx_result(conn, tx_conn(conn, &sent)))
			break;
	}
	if (!tcp->nic_full && tcp->acks_pending > 0)
		sent += tcp_delack_phase(tcp);
	return sent;
}
