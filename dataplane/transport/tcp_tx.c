/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_tx.c - when a connection sends, and what: the transmit phase of a poll.
 *
 * Theory of operation. Nothing is sent when the application calls or when a segment arrives, with the
 * exceptions of duplicate and challenge ACKs and resets: a connection with something to send is put on
 * tx_ready, one that owes an ACK on ack_list, and tcp_tx_phase(), once a poll, serves both: data
 * first, a few segments of each connection in turn, as that is what someone waits for, then those ACKs
 * that no data segment took along and that are due (tcp_delack.c).
 *
 * What can't leave is not forgotten:
 *	- the NIC's ring is full: the phase ends, everyone keeps the place in tx_ready;
 *	- the next hop is unresolved: tx_unresolved, until eth->resolved_generation moves or anything (a
 *	  timer, an ACK, the application) makes the connection ready again, which asks for it again;
 *	- pacing says later: the connection's timer puts it back on tx_ready;
 *	- the frame to be sent again is still being read by the NIC, or no frame is free: tx_blocked, tried
 *	  again in every phase. While the NIC holds frames there is one soon: stack_nic_next_ns().
 */
#include "transport/tcp.h"

#include <assert.h>
#include <errno.h>

#define TX_SLIVER_BYTES (TCP_MSS_BYTES_MIN / 2) /* less is sent when the override timer says so */
#define TX_PUSH_RTT_NS_MAX (2 * TCP_NS_PER_MS)  /* see tx_is_pushed() */
#define TX_PHASE_SEGMENTS_MAX 256u              /* then the receive ring has its turn */
#define CACHE_LINE_BYTES 64u
#define TX_KEPT_NS (10 * TCP_NS_PER_MS) /* longer than a card takes to send what it was given */

/* ------------------------------------------------------------------------------------------------
 * Data.
 */
/*
 * PSH marks the end of what the application handed over, and the end of the queue. It also marks the last segment
 * that a small window lets out: a receiver of ours holds the ACK of a segment in the middle of a stream
 * (delack_hold_ns()), which on a short path is a good part of the round trip.
 */
static bool tx_is_pushed(const struct harp_conn *conn, const struct tcp_train *train)
{
	uint32_t cwnd = conn->cc.cwnd_bytes, wnd = conn->snd_wnd_bytes, bytes;
	const struct frame *seg = train->last;

	if (seg == conn->snd_tail || (seg->tcp_flags & SEG_PUSH))
		return true;
	if (conn->rtt.srtt_ns >= TX_PUSH_RTT_NS_MAX ||
	    (cwnd < wnd ? cwnd : wnd) >= 2u * TCP_ACK_EVERY_SEGMENTS * conn->snd_mss_bytes)
		return false;
	assert(seg->next); /* it is not the tail */
	bytes = train->bytes + seg_bytes(seg->next);
	return tcp_loss_pipe_bytes(conn) + bytes > cwnd || conn_flight_bytes(conn) + bytes > wnd;
}

/* A segment has left. */
static void tx_note(struct harp_conn *conn, struct frame *seg, bool again)
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
	if (again) {
		seg->flags |= FRAME_RETRANS;
		conn->loss.retrans_end_seq =
			seq_max(conn->loss.retrans_end_seq, seg->seq + seg_space(seg));
		tcp->stats->tcp_retransmits++;
		conn->acct.retransmits++;
		conn->acct.bytes_retransmitted += bytes;
	} else {
		seg->flags |= FRAME_SENT;
		conn->snd_unsent = seg->next;
		conn->snd_nxt_seq = seg->seq + seg_space(seg);
		if (conn->finger_left-- == 0)
			tcp_sack_finger(conn, seg);
	}
	if (conn->loss_open)
		tcp_loss_sent(conn, seg, again);
}

/* The card has kept a segment's frames since it was sent, and may do so until more has left (HARP_NIC_TX_LAZY): then
 * nothing would ever leave. */
static int tx_copy(struct harp_conn *conn, const struct frame *seg, uint8_t flags)
{
	struct tcp_train train = { .segments = 1, .bytes = seg_bytes(seg) };
	int err;

	if (!(conn->tcp->io->features & HARP_NIC_TX_LAZY) || !(seg->flags & FRAME_SENT) ||
	    conn->tcp->now_ns - seg->sent_ns < TX_KEPT_NS)
		return -EBUSY;
	train.first = train.last = tcp_train_copy(conn, seg, &train.frags);
	if (!train.first)
		return -ENOMEM;
	err = tcp_out_train(conn, &train, seg->seq, flags, NULL);
	frame_release_packet(conn->tcp->pool, train.first);
	return err;
}

/* The caller tells the timers of it. */
static int tx_train(struct harp_conn *conn, const struct tcp_train *train, struct tcp_burst *burst)
{
	bool again = train->first->flags & FRAME_SENT;
	uint8_t flags = TCP_ACK;
	int err;

	if (again)
		tcp_train_forget_sums(conn, train->first);
	if (train->last->flags & FRAME_FIN)
		flags |= TCP_FIN;
	if (tx_is_pushed(conn, train))
		flags |= TCP_PSH;
	if (tcp_train_is_busy(train->first))
		err = tx_copy(conn, train->first, flags);
	else
		err = tcp_out_train(conn, train, train->first->seq, flags, burst);
	if (err)
		return err;
	for (struct frame *seg = train->first;; seg = seg->next) {
		tx_note(conn, seg, again);
		if (seg == train->last)
			break;
	}
	return 0;
}

static int tx_segment(struct harp_conn *conn, struct frame *seg)
{
	struct tcp_train train = tcp_train_one(seg);
	int err = tx_train(conn, &train, NULL);

	if (!err)
		tcp_timer_sent(conn);
	return err;
}

/* Segments larger than the path now allows (RFC 1191) are cut before they leave. */
static bool tx_fit_mss(struct harp_conn *conn, struct frame *seg)
{
	if (seg_bytes(seg) <= conn->snd_mss_bytes)
		return true;
	if (!tcp_recut_split(conn, seg, conn->snd_mss_bytes))
		return false;
	conn->tcp->stats->tcp_resegmented++;
	return true;
}

static void tx_limited(struct harp_conn *conn)
{
	conn->flags |= CONN_CWND_LIMITED;
	conn->limited_seq = conn->snd_nxt_seq;
}

/* Pacing may leave the window half used in slow start, which is limited by it all the same. */
static bool tx_paced(struct harp_conn *conn, uint32_t bytes)
{
	if (tcp_cc_pace_admits(conn, bytes))
		return true;
	if (conn->cc.cwnd_bytes < conn->cc.ssthresh_bytes &&
	    conn_flight_bytes(conn) >= conn->cc.cwnd_bytes / 2)
		tx_limited(conn);
	return false;
}

/* The first bytes of a segment may leave. */
static int tx_cut(struct harp_conn *conn, struct frame *seg, uint32_t bytes)
{
	return tcp_recut_split(conn, seg, bytes) ? 1 : -ENOMEM;
}

/* May the oldest unsent segment leave? 1: yes, perhaps cut as RFC 9293 3.8.6.2.1 allows; 0: no, and
 * something else will ask again; -ENOMEM: a frame to cut it with is missing. */
static int tx_may_send(struct harp_conn *conn, struct frame *seg)
{
	uint32_t bytes = seg_bytes(seg);
	uint32_t edge = conn->snd_una_seq + conn->snd_wnd_bytes;
	uint32_t usable = seq_gt(edge, conn->snd_nxt_seq) ? edge - conn->snd_nxt_seq : 0;

	if (bytes > 0 && tcp_loss_pipe_bytes(conn) + bytes > conn->cc.cwnd_bytes &&
	    conn_flight_bytes(conn) > 0) {
		tx_limited(conn);
		return 0;
	}
	if (seg_space(seg) <= usable)
		return conn->cc.pacing_bytes_per_s == 0 || bytes == 0 || tx_paced(conn, bytes);
	if (bytes > 0 && bytes == usable) { /* no room for the FIN, which takes a sequence number */
		if (conn->cc.pacing_bytes_per_s > 0 && !tx_paced(conn, bytes))
			return 0;
		return tx_cut(conn, seg, bytes);
	}
	/* "min(D,U) >= Fs*Max(SND.WND)", Fs = 1/2; or the override time-out: see tcp_timer.c. */
	if (usable > 0 && (conn->flags & CONN_WINDOW_FORCE))
		return tx_cut(conn, seg, usable);
	/* Unless Max(SND.WND) is a joke: RFC 1122's sender would let itself be led by a window of 1. */
	if (usable >= conn->snd_wnd_max_bytes / 2 && usable >= TX_SLIVER_BYTES)
		return tx_cut(conn, seg, usable);
	if (conn_flight_bytes(conn) > 0)
		return 0;
	if (conn->snd_wnd_bytes > 0)
		tcp_timer_sliver(conn);
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
	bool again = seg && (seg->flags & FRAME_SENT);
	int err;

	if (!seg)
		return 0;
	for (; seg_bytes(seg) > conn->snd_mss_bytes; seg = seg->next) { /* its end is what counts */
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
	tcp_rack_probed(conn, again);
	if (again)
		tcp_rack_resent(conn, seg);
	else if (seg->flags & FRAME_FIN)
		tx_fin_sent(conn);
	return 0;
}

/* RFC 4821 section 7.2: new data in a segment larger than the others. */
static int tx_mtu_probe(struct harp_conn *conn, unsigned *sent)
{
	uint32_t bytes = tcp_mtu_probe(conn);
	struct frame *seg = conn->snd_unsent;
	int err;

	if (bytes == 0 || !tcp_recut_gather(conn, bytes))
		return 0;
	err = tx_segment(conn, seg);
	if (err)
		return err; /* cut again when its turn comes */
	tcp_mtu_probed(conn, seg);
	++*sent;
	return 0;
}

/* May the oldest unsent segment, which may leave, do so with the headers of the one before? */
static bool tx_goes_on(const struct harp_conn *conn, const struct tcp_burst *burst,
		       struct frame *seg)
{
	const struct tcp_train train = tcp_train_one(seg);

	return burst->header_bytes > 0 && train.bytes == burst->bytes &&
	       !(seg->flags & FRAME_FIN) && !tx_is_pushed(conn, &train) && !tcp_train_is_busy(seg);
}

/* What was never sent, as much as may leave; as tx_conn(). */
static int tx_new(struct harp_conn *conn, int quota, unsigned *sent)
{
	struct tcp_burst burst = { .header_bytes = 0 };
	struct tcp_train train;
	struct frame *seg;
	int err;

	while ((seg = conn->snd_unsent) != NULL) {
		if (quota <= 0)
			return 1;
		if (seg->next) /* its headers are written next */
			__builtin_prefetch(seg->next->pub.data - CACHE_LINE_BYTES, 1);
		if (!tx_fit_mss(conn, seg))
			return -ENOMEM;
		err = tx_may_send(conn, seg);
		if (err <= 0)
			return err;
		if (tx_goes_on(conn, &burst, seg)) {
			err = tcp_out_next(conn, &burst, seg);
			if (err)
				return err;
			tx_note(conn, seg, false);
			++*sent;
			quota--;
			continue;
		}
		train = conn->tcp->io->tso_bytes_max > 0 ? tcp_train_make(conn, seg)
							 : tcp_train_one(seg);
		err = tx_train(conn, &train, train.last->next ? &burst : NULL);
		if (err)
			return err;
		conn->flags &= ~(uint32_t)CONN_WINDOW_FORCE;
		*sent += train.segments;
		quota -= (int)train.segments;
		if (train.last->flags & FRAME_FIN)
			tx_fin_sent(conn);
	}
	return 0;
}

/* Everything this connection may send, up to its quota. 0: nothing more to send now; 1: quota used up;
 * -errno as tcp_out_train(). *sent counts. */
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
	/* All calls since the last poll count as one. */
	if ((conn->flags & CONN_PUSH) && conn->snd_unsent)
		conn->snd_tail->tcp_flags |= SEG_PUSH;
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
	if (conn->snd_unsent && conn_flight_bytes(conn) == 0)
		tcp_cc_restart(conn);
	if (conn->mtu.state != MTU_IDLE) {
		err = tx_mtu_probe(conn, sent);
		if (err)
			return err;
	}
	before = *sent;
	err = tx_new(conn, quota, sent);
	if (*sent != before)
		tcp_timer_sent(conn); /* at the same time: once is enough */
	return err;
}

/* ------------------------------------------------------------------------------------------------
 * Who sends when.
 */
static struct conn_list *tx_list(struct tcp *tcp, uint8_t which)
{
	switch (which) {
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

static void tx_move(struct harp_conn *conn, uint8_t which)
{
	struct conn_list *from = tx_list(conn->tcp, conn->tx_queued);
	struct conn_list *to = tx_list(conn->tcp, which);

	if (from)
		TAILQ_REMOVE(from, conn, tx_link);
	if (to)
		TAILQ_INSERT_TAIL(to, conn, tx_link);
	conn->tx_queued = which;
}

void tcp_tx_ready(struct harp_conn *conn)
{
	/* A next hop that is unresolved is asked again: the timer that would have done so may just have
	 * been stopped by the ACK or the window that brings us here. */
	if (conn->tx_queued == TX_LIST_NONE || conn->tx_queued == TX_LIST_UNRESOLVED)
		tx_move(conn, TX_LIST_READY);
}

void tcp_tx_unlist(struct harp_conn *conn)
{
	tx_move(conn, TX_LIST_NONE);
	if (conn->on_ack_list) {
		TAILQ_REMOVE(&conn->tcp->ack_list, conn, ack_link);
		conn->tcp->acks_owed--;
	}
	conn->on_ack_list = 0;
	if (conn->on_pool_list)
		TAILQ_REMOVE(&conn->tcp->pool_waiters, conn, pool_link);
	conn->on_pool_list = 0;
	tcp_starve_end(conn);
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
	if (tcp_starve_may_feed(tcp))
		return tcp->now_ns;
	return tcp->acks_owed > 0 ? tcp_delack_next_ns(tcp) : TCP_NEVER_NS;
}

/* Blocked ones try again in every phase, unresolved ones when a neighbour has become usable. */
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
	/* In the order in which they came to wait. */
	while ((conn = TAILQ_FIRST(&tcp->pool_waiters)) != NULL &&
	       tcp->pool->free_count > tcp_pool_floor_tx(conn) + tcp->tx_frags_max) {
		TAILQ_REMOVE(&tcp->pool_waiters, conn, pool_link);
		conn->on_pool_list = 0;
		conn->flags &= ~(uint32_t)CONN_WANT_WRITE;
		tcp_conn_event(conn, HARP_EVENT_WRITABLE);
	}
	tcp_starve_feed(tcp);
}

/* One connection's turn is over with this result. False: the phase is over too. */
static bool tx_turn(struct harp_conn *conn, int result)
{
	switch (result) {
	case 0:
		tx_move(conn, TX_LIST_NONE);
		if ((conn->flags & CONN_WANT_WRITE) && conn->opts.unsent_bytes_max != UINT32_MAX)
			tcp_ack_writable(conn);
		return true;
	case 1:
		tx_move(conn, TX_LIST_READY); /* to the end: the others first */
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
	case -EMSGSIZE: /* once more, cut */
		if (tcp_mtu_refused(conn))
			return true;
		/* fall through */
	default:
		/* No route, or our address is gone: the timers decide how long to hope. */
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
		if (!tx_turn(conn, tx_conn(conn, &sent)))
			break;
	}
	if (!tcp->nic_full && tcp->acks_owed > 0)
		sent += tcp_delack_phase(tcp);
	return sent;
}
