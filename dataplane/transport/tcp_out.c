/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_out.c - segments out: headers, windows, ACKs, probes and resets.
 *
 * Theory of operation. Nothing is sent when the application calls or when a segment arrives, with the
 * exceptions of duplicate and challenge ACKs and resets: a connection with something to send is put on
 * tx_ready, one that owes an ACK on ack_list, and tcp_out_phase(), once a poll, serves both: data
 * first, a few segments of each connection in turn, as that is what someone waits for, then those ACKs
 * that no data segment took along.
 *
 * An ACK waits for the poll after the one in which it became due, so that an application that answers
 * at once has its answer carry it; it does not wait when two full-sized segments are unacknowledged
 * (RFC 9293 3.8.6.3) or when CONN_ACK_NOW says so. There is no delayed ACK timer.
 *
 * What can't leave is not forgotten:
 *	- the NIC's ring is full: the phase ends, everyone keeps the place in tx_ready;
 *	- the next hop is unresolved: tx_unresolved, until eth->resolved_generation moves or the
 *	  connection's timer asks again;
 *	- the frame to be sent again is still being read by the NIC, or no frame is free: tx_blocked, tried
 *	  again in every phase. It is not counted as work pending: the NIC's completion is what moves it.
 */
#include "transport/tcp.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/checksum.h"

#define TX_PHASE_SEGMENTS_MAX 256u /* then the receive ring has its turn */

/* ------------------------------------------------------------------------------------------------
 * Headers.
 */
static void out_put16(uint8_t *at, uint32_t v)
{
	at[0] = (uint8_t)(v >> 8);
	at[1] = (uint8_t)v;
}

static void out_put32(uint8_t *at, uint32_t v)
{
	v = htobe32(v);
	memcpy(at, &v, sizeof(v));
}

struct out_header {
	const struct ip_path *path;
	uint32_t seq, ack, wnd_field;
	uint16_t local_port, remote_port;
	uint8_t flags;
	uint8_t options_len;
};

/* Writes the fixed header and the checksum; the options lie already behind the fixed header.
 * payload_sum, payload_len: of the bytes that follow. */
static void out_write_header(uint8_t *at, const struct out_header *h, uint32_t payload_sum,
			     uint32_t payload_len)
{
	uint32_t len = TCP_HEADER_BYTES + h->options_len, sum;
	uint16_t csum;

	out_put16(at, h->local_port);
	out_put16(at + 2, h->remote_port);
	out_put32(at + 4, h->seq);
	out_put32(at + 8, h->ack);
	at[12] = (uint8_t)(len / 4 << 4);
	at[13] = h->flags;
	out_put16(at + 14, h->wnd_field);
	out_put32(at + 16, 0); /* checksum, urgent pointer */
	sum = ip_pseudo_sum(&h->path->src, &h->path->dst, IP_PROTO_TCP, len + payload_len);
	sum = csum_words(at, len, csum_add(sum, payload_sum));
	csum = csum_finish(sum);
	memcpy(at + 16, &csum, sizeof(csum));
}

/* ------------------------------------------------------------------------------------------------
 * What every segment of a connection says about our receiving side.
 */
static uint32_t out_window_field(struct harp_conn *conn)
{
	uint32_t wnd;

	/* While the peer's loss is open, duplicate ACKs must be equal to be seen as such. */
	if (!conn->reass_head || conn_rcv_wnd_bytes(conn) < 2u * conn->rcv_mss_bytes)
		conn->rcv_edge_seq = tcp_window_edge(conn);
	wnd = conn_rcv_wnd_bytes(conn) >> conn->rcv_wscale;
	return wnd > 65535 ? 65535 : wnd;
}

static void out_acked(struct harp_conn *conn)
{
	conn->rcv_acked_seq = conn->rcv_nxt_seq;
	conn->full_segs_unacked = 0;
	conn->flags &= ~(uint32_t)(CONN_ACK_PENDING | CONN_ACK_NOW);
	if (conn->on_ack_list) {
		TAILQ_REMOVE(&conn->tcp->ack_list, conn, ack_link);
		conn->on_ack_list = 0;
	}
}

static uint32_t out_tsval(const struct harp_conn *conn)
{
	return conn->tcp->now_ms + conn->ts_offset;
}

/* Sends one segment whose payload lies in f: 0, -EAGAIN (next hop), -ENOBUFS (NIC), other -errno. */
static int out_transmit(struct harp_conn *conn, struct frame *f, uint32_t frags, uint32_t seq,
			uint8_t flags, uint32_t payload_len)
{
	struct tcp *tcp = conn->tcp;
	struct out_header h = { .path = &conn->path, .seq = seq, .flags = flags,
				.local_port = conn->local_port, .remote_port = conn->remote_port };
	struct packet_out out = { .frame = f };
	int err;

	if (!nicio_tx_ready(tcp->io, frags))
		return -ENOBUFS;
	err = ip_path_check(tcp->ip, &conn->path);
	if (err)
		return err;
	if (flags & TCP_ACK) {
		h.ack = conn->rcv_nxt_seq;
		h.wnd_field = out_window_field(conn);
	}
	if (conn->options & HARP_TCPI_TIMESTAMPS) {
		h.options_len = TCP_OPTIONS_TIMESTAMP_BYTES;
		tcp_options_write_timestamp(f->pub.data - TCP_OPTIONS_TIMESTAMP_BYTES,
					    out_tsval(conn), conn->ts_recent);
	}
	out.head = f->pub.data - TCP_HEADER_BYTES - h.options_len;
	out.len = TCP_HEADER_BYTES + h.options_len + payload_len;
	out_write_header(out.head, &h, payload_len ? tcp_sndq_csum(f) : 0, payload_len);
	err = ip_output(tcp->ip, &conn->path, IP_PROTO_TCP, conn->tos, &out);
	if (err)
		return err;
	tcp->stats->tcp_segs_out++;
	conn->acct.segs_out++;
	if (flags & TCP_ACK)
		out_acked(conn);
	return 0;
}

/* A frame without payload for one control segment; the NIC's completion sends it home. */
static struct frame *out_control_frame(struct tcp *tcp)
{
	struct frame *f = frame_alloc(tcp->pool, 0);

	if (!f) {
		tcp->stats->drop_no_frame++;
		return NULL;
	}
	f->next = NULL;
	f->frag = NULL;
	f->pub.len = 0;
	f->flags = 0;
	return f;
}

static int out_control(struct harp_conn *conn, uint32_t seq, uint8_t flags)
{
	struct frame *f = out_control_frame(conn->tcp);
	int err;

	if (!f)
		return -ENOMEM;
	err = out_transmit(conn, f, 1, seq, flags, 0);
	frame_release(conn->tcp->pool, f);
	return err;
}

int tcp_out_ack(struct harp_conn *conn)
{
	return out_control(conn, conn->snd_nxt_seq, TCP_ACK);
}

int tcp_out_challenge_ack(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;

	/* RFC 5961 section 7: throttled, or two of them could play ping-pong. */
	if (tcp->now_ns - conn->challenge_epoch_ns >= TCP_NS_PER_S) {
		conn->challenge_epoch_ns = tcp->now_ns;
		conn->challenge_count = 0;
	}
	if (conn->challenge_count >= TCP_CHALLENGE_ACKS_PER_S)
		return 0;
	conn->challenge_count++;
	tcp->stats->tcp_challenge_acks++;
	return tcp_out_ack(conn);
}

int tcp_out_probe(struct harp_conn *conn)
{
	/* RFC 9293 section 3.8.4: SEG.SEQ = SND.NXT-1, which any receiver must answer. The same when
	 * nothing is in flight, and below its window also when something is. */
	return out_control(conn, conn->snd_una_seq - 1, TCP_ACK);
}

int tcp_out_rst(struct harp_conn *conn)
{
	int err = out_control(conn, conn->snd_nxt_seq, TCP_RST | TCP_ACK);

	if (!err)
		conn->tcp->stats->tcp_rst_out++;
	return err;
}

void tcp_out_rst_reply(struct tcp *tcp, const struct tcp_segment *seg)
{
	const struct packet_in *in = seg->in;
	struct ip_path path = { .src = in->dst, .dst = in->src };
	const uint8_t *th = in->frame->pub.data; /* see tcp_input(): still the TCP header */
	struct out_header h = { .path = &path, .flags = TCP_RST };
	struct frame *f;
	struct packet_out out;

	h.local_port = (uint16_t)(th[2] << 8 | th[3]);
	h.remote_port = (uint16_t)(th[0] << 8 | th[1]);
	/* RFC 9293 3.10.7.1: "If the ACK bit is off, sequence number zero is used, <SEQ=0>
	 * <ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>. If the ACK bit is on, <SEQ=SEG.ACK><CTL=RST>." */
	if (seg->flags & TCP_ACK) {
		h.seq = seg->ack;
	} else {
		h.flags |= TCP_ACK;
		h.ack = seg->seq + seg->len + ((seg->flags & TCP_SYN) ? 1u : 0u) +
			((seg->flags & TCP_FIN) ? 1u : 0u);
	}
	if (ip_path_lookup(tcp->ip, &path) != 0 || !nicio_tx_ready(tcp->io, 1))
		return;
	f = out_control_frame(tcp);
	if (!f)
		return;
	out = (struct packet_out){ .frame = f, .head = f->pub.data - TCP_HEADER_BYTES,
				   .len = TCP_HEADER_BYTES };
	out_write_header(out.head, &h, 0, 0);
	if (ip_output(tcp->ip, &path, IP_PROTO_TCP, 0, &out) == 0) {
		tcp->stats->tcp_rst_out++;
		tcp->stats->tcp_segs_out++;
	}
	frame_release(tcp->pool, f);
}

/* ------------------------------------------------------------------------------------------------
 * The handshake.
 */
static int out_syn(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;
	bool reply = conn->state == HARP_TCP_SYN_RECEIVED;
	struct tcp_options opt = { .mss_bytes = conn->rcv_mss_bytes, .wscale = conn->rcv_wscale,
				   .tsval = out_tsval(conn), .tsecr = reply ? conn->ts_recent : 0 };
	struct out_header h = { .path = &conn->path, .seq = conn->iss_seq, .flags = TCP_SYN,
				.local_port = conn->local_port, .remote_port = conn->remote_port };
	uint8_t bytes[TCP_OPTIONS_BYTES_MAX];
	struct packet_out out;
	struct frame *f;
	uint32_t wnd;
	int err;

	if (!nicio_tx_ready(tcp->io, 1))
		return -ENOBUFS;
	err = ip_path_check(tcp->ip, &conn->path);
	if (err)
		return err;
	f = out_control_frame(tcp);
	if (!f)
		return -ENOMEM;
	opt.seen = TCP_OPT_MSS;
	/* SACK is not offered: a Linux peer that has it counts only SACK blocks as duplicate ACKs,
	 * and we send none yet. */
	if (!reply || (conn->options & HARP_TCPI_TIMESTAMPS))
		opt.seen |= TCP_OPT_TIMESTAMP;
	if (!reply || (conn->options & HARP_TCPI_WSCALE))
		opt.seen |= TCP_OPT_WSCALE;
	if (reply) {
		h.flags |= TCP_ACK;
		h.ack = conn->rcv_nxt_seq;
	}
	/* RFC 7323 section 2.2: the window of a SYN is never scaled. */
	wnd = conn->rx_frames_budget * conn->rcv_bytes_per_frame;
	h.wnd_field = wnd > 65535 ? 65535 : wnd;
	conn->rcv_edge_seq = conn->rcv_nxt_seq + h.wnd_field;
	h.options_len = (uint8_t)tcp_options_write_syn(bytes, &opt);
	memcpy(f->pub.data - h.options_len, bytes, h.options_len);
	out = (struct packet_out){ .frame = f,
				   .head = f->pub.data - TCP_HEADER_BYTES - h.options_len,
				   .len = TCP_HEADER_BYTES + h.options_len };
	out_write_header(out.head, &h, 0, 0);
	err = ip_output(tcp->ip, &conn->path, IP_PROTO_TCP, conn->tos, &out);
	frame_release(tcp->pool, f);
	if (err)
		return err;
	conn->flags &= ~(uint32_t)CONN_SYN_PENDING;
	tcp->stats->tcp_segs_out++;
	conn->acct.segs_out++;
	conn->snd_nxt_seq = conn->iss_seq + 1;
	if (reply)
		out_acked(conn);
	tcp_timer_sent(conn);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Data.
 */
static int out_segment(struct harp_conn *conn, struct frame *seg)
{
	struct tcp *tcp = conn->tcp;
	uint32_t bytes = seg_bytes(seg);
	uint8_t flags = TCP_ACK;
	bool again = seg->flags & FRAME_SENT;
	int err;

	if (seg->nic_refs > 0)
		return -EBUSY; /* its headers may not be rewritten yet */
	if (seg->flags & FRAME_FIN)
		flags |= TCP_FIN;
	if (seg == conn->snd_tail)
		flags |= TCP_PSH;
	err = out_transmit(conn, seg, seg_frags(seg), seg->seq, flags, bytes);
	if (err)
		return err;
	seg->sent_ns = tcp->now_ns;
	if (bytes > 0) {
		tcp->stats->tcp_data_segs_out++;
		conn->acct.data_segs_out++;
		conn->acct.bytes_sent += bytes;
	}
	if (again) {
		seg->flags |= FRAME_RETRANS;
		tcp->stats->tcp_retransmits++;
		conn->acct.retransmits++;
		conn->acct.bytes_retransmitted += bytes;
	} else {
		seg->flags |= FRAME_SENT;
		conn->snd_unsent = seg->next;
		conn->snd_nxt_seq = seg->seq + seg_space(seg);
	}
	tcp_timer_sent(conn);
	return 0;
}

/* Segments larger than the path now allows (RFC 1191) are cut before they leave. */
static bool out_fit_mss(struct harp_conn *conn, struct frame *seg)
{
	if (seg_bytes(seg) <= conn->snd_mss_bytes)
		return true;
	return tcp_sndq_split(conn, seg, conn->snd_mss_bytes);
}

/* May the oldest unsent segment leave? Cuts it when RFC 9293 3.8.6.2.1 allows a part. */
static bool out_may_send(struct harp_conn *conn, struct frame *seg)
{
	uint32_t bytes = seg_bytes(seg);
	uint32_t edge = conn->snd_una_seq + conn->snd_wnd_bytes;
	uint32_t usable = seq_gt(edge, conn->snd_nxt_seq) ? edge - conn->snd_nxt_seq : 0;

	if (bytes > 0 && tcp_loss_pipe_bytes(conn) + bytes > conn->cc.cwnd_bytes &&
	    conn_flight_bytes(conn) > 0) {
		conn->flags |= CONN_CWND_LIMITED;
		return false;
	}
	if (bytes <= usable)
		return true;
	/* "min(D,U) >= Fs*Max(SND.WND)", Fs = 1/2; or the override time-out: see tcp_timer.c. */
	if (usable > 0 && (usable >= conn->snd_wnd_max_bytes / 2 ||
			   (conn->flags & CONN_WINDOW_FORCE)))
		return tcp_sndq_split(conn, seg, usable);
	if (conn_flight_bytes(conn) == 0)
		tcp_timer_blocked(conn);
	return false;
}

static void out_fin_sent(struct harp_conn *conn)
{
	if (conn->state == HARP_TCP_ESTABLISHED)
		tcp_state_set(conn, HARP_TCP_FIN_WAIT_1);
	else if (conn->state == HARP_TCP_CLOSE_WAIT)
		tcp_state_set(conn, HARP_TCP_LAST_ACK);
}

/* Everything this connection may send, up to its quota. 0: nothing more to send now; 1: quota used up;
 * -errno as out_transmit(). *sent counts. */
static int out_conn(struct harp_conn *conn, unsigned *sent)
{
	unsigned quota = TCP_TX_QUOTA_SEGMENTS;
	struct frame *seg;
	int err = 0;

	if (conn->flags & CONN_SYN_PENDING) {
		err = out_syn(conn);
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
	if ((conn->flags & (CONN_FIN_WANTED | CONN_FIN_QUEUED)) == CONN_FIN_WANTED &&
	    !tcp_sndq_fin(conn))
		return -ENOMEM;
	while ((seg = tcp_loss_next(conn)) != NULL) {
		if (quota-- == 0)
			return 1;
		if (!out_fit_mss(conn, seg))
			return -ENOMEM;
		err = out_segment(conn, seg);
		if (err)
			return err;
		tcp_loss_resent(conn, seg);
		++*sent;
	}
	while ((seg = conn->snd_unsent) != NULL) {
		if (quota-- == 0)
			return 1;
		if (!out_fit_mss(conn, seg))
			return -ENOMEM;
		if (!out_may_send(conn, seg))
			return 0;
		err = out_segment(conn, seg);
		if (err)
			return err;
		conn->flags &= ~(uint32_t)CONN_WINDOW_FORCE;
		++*sent;
		if (seg->flags & FRAME_FIN)
			out_fin_sent(conn);
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Who sends when.
 */
static struct conn_list *out_list(struct tcp *tcp, uint8_t which)
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

static void out_move(struct harp_conn *conn, uint8_t which)
{
	struct conn_list *from = out_list(conn->tcp, conn->tx_queued);
	struct conn_list *to = out_list(conn->tcp, which);

	if (from)
		TAILQ_REMOVE(from, conn, tx_link);
	if (to)
		TAILQ_INSERT_TAIL(to, conn, tx_link);
	conn->tx_queued = which;
}

void tcp_out_ready(struct harp_conn *conn)
{
	if (conn->tx_queued == TX_LIST_NONE)
		out_move(conn, TX_LIST_READY);
}

void tcp_out_retry(struct harp_conn *conn)
{
	out_move(conn, TX_LIST_READY);
}

void tcp_out_want_ack(struct harp_conn *conn, bool now)
{
	if (now)
		conn->flags |= CONN_ACK_NOW;
	if (!(conn->flags & CONN_ACK_PENDING)) {
		conn->flags |= CONN_ACK_PENDING;
		conn->ack_poll = conn->tcp->poll_count;
	}
	if (!conn->on_ack_list) {
		TAILQ_INSERT_TAIL(&conn->tcp->ack_list, conn, ack_link);
		conn->on_ack_list = 1;
	}
}

void tcp_out_unlist(struct harp_conn *conn)
{
	out_move(conn, TX_LIST_NONE);
	if (conn->on_ack_list)
		TAILQ_REMOVE(&conn->tcp->ack_list, conn, ack_link);
	conn->on_ack_list = 0;
	if (conn->on_pool_list)
		TAILQ_REMOVE(&conn->tcp->pool_waiters, conn, pool_link);
	conn->on_pool_list = 0;
	conn->flags &= ~(uint32_t)(CONN_ACK_PENDING | CONN_ACK_NOW | CONN_PROBE_PENDING |
				   CONN_SYN_PENDING);
}

bool tcp_out_pending(const struct tcp *tcp)
{
	if (tcp->nic_full)
		return false;
	return !TAILQ_EMPTY(&tcp->tx_ready) || !TAILQ_EMPTY(&tcp->ack_list) ||
	       (!TAILQ_EMPTY(&tcp->tx_unresolved) &&
		tcp->resolved_seen != tcp->eth->resolved_generation);
}

/* Blocked ones try again in every phase, unresolved ones when a neighbour has become usable. */
static void out_wake(struct tcp *tcp)
{
	struct harp_conn *conn;

	while ((conn = TAILQ_FIRST(&tcp->tx_blocked)) != NULL)
		out_move(conn, TX_LIST_READY);
	if (tcp->resolved_seen != tcp->eth->resolved_generation) {
		tcp->resolved_seen = tcp->eth->resolved_generation;
		while ((conn = TAILQ_FIRST(&tcp->tx_unresolved)) != NULL)
			out_move(conn, TX_LIST_READY);
	}
	/* In the order in which they came to wait. */
	while ((conn = TAILQ_FIRST(&tcp->pool_waiters)) != NULL &&
	       tcp->pool->free_count > tcp_pool_floor_tx(conn) + tcp->tx_frags_max) {
		TAILQ_REMOVE(&tcp->pool_waiters, conn, pool_link);
		conn->on_pool_list = 0;
		conn->flags &= ~(uint32_t)CONN_WANT_WRITE;
		tcp_conn_event(conn, HARP_EVENT_WRITABLE);
	}
}

/* One connection's turn is over with this result. False: the phase is over too. */
static bool out_turn(struct harp_conn *conn, int result)
{
	switch (result) {
	case 0:
		out_move(conn, TX_LIST_NONE);
		return true;
	case 1:
		out_move(conn, TX_LIST_READY); /* to the end: the others first */
		return true;
	case -ENOBUFS:
		conn->tcp->nic_full = true;
		return false;
	case -EAGAIN:
		conn->tcp->stats->neighbour_wait++;
		out_move(conn, TX_LIST_UNRESOLVED);
		tcp_timer_blocked(conn);
		return true;
	case -EBUSY:
	case -ENOMEM:
		out_move(conn, TX_LIST_BLOCKED);
		return true;
	default:
		/* No route, or our address is gone: the timers decide how long to hope. */
		out_move(conn, TX_LIST_NONE);
		tcp_timer_blocked(conn);
		return true;
	}
}

/* The ACKs that are due: of an earlier poll, of two full-sized segments, or wanted now. */
static unsigned out_acks(struct tcp *tcp)
{
	struct harp_conn *conn, *next;
	unsigned sent = 0;

	for (conn = TAILQ_FIRST(&tcp->ack_list); conn; conn = next) {
		int err;

		next = TAILQ_NEXT(conn, ack_link);
		if (!(conn->flags & CONN_ACK_NOW) && conn->full_segs_unacked < 2 &&
		    conn->ack_poll == tcp->poll_count)
			continue;
		err = tcp_out_ack(conn);
		if (err == -ENOBUFS) {
			tcp->nic_full = true;
			break;
		}
		if (err) {
			/* The peer will ask again. */
			out_acked(conn);
			continue;
		}
		sent++;
	}
	return sent;
}

unsigned tcp_out_phase(struct tcp *tcp)
{
	struct harp_conn *conn;
	unsigned sent = 0;

	tcp->nic_full = false;
	out_wake(tcp);
	while ((conn = TAILQ_FIRST(&tcp->tx_ready)) != NULL && sent < TX_PHASE_SEGMENTS_MAX) {
		if (!out_turn(conn, out_conn(conn, &sent)))
			break;
	}
	if (!tcp->nic_full)
		sent += out_acks(tcp);
	return sent;
}
