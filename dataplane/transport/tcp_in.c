/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_in.c - segment arrival: the steps of RFC 9293 section 3.10.7, in its order.
 *
 * Theory of operation. tcp_input() checks header and checksum and finds the connection. tcp_fast.c
 * handles the common case. All other segments follow the RFC step by step; tcp_check.c decides
 * acceptability. Each step returns a verdict or TCP_PASS.
 *
 * This code only requests most replies (tcp_delack_request(), tcp_tx_ready()); the transmit phase
 * sends them. It sends resets, challenge ACKs and replies to unacceptable segments itself, because
 * no state records the segments to which they reply.
 */
#include "transport/tcp_gro.h"

#include <errno.h>
#include <string.h>

#include "base/checksum.h"
#include "base/endian.h"

static inline bool in_checksum_valid(struct tcp *tcp, const struct packet_in *in)
{
	uint16_t field;

	if (in->csum_valid)
		return true;
	memcpy(&field, in->frame->pub.data + 16, sizeof(field));
	return ip_l4_csum_holds(in->frame, in->l4_csum_pseudo, field,
				tcp->io->nic->caps.features & HARP_NIC_RX_CSUM_PARTIAL,
				&tcp->stats->csum_partial_accepted);
}

bool tcp_checksum_valid(struct tcp *tcp, const struct packet_in *in)
{
	return in_checksum_valid(tcp, in);
}

static enum tcp_verdict in_parse(struct tcp *tcp, struct packet_in *in, struct tcp_segment *seg)
{
	const uint8_t *th = in->frame->pub.data;
	uint32_t options_len;

	if (in->len < TCP_HEADER_BYTES || in->frame->pub.len < TCP_HEADER_BYTES)
		return TCP_DROP_SHORT;
	seg->header_bytes = (uint8_t)(th[12] >> 4 << 2);
	if (seg->header_bytes < TCP_HEADER_BYTES || seg->header_bytes > in->frame->pub.len ||
	    seg->header_bytes > in->len)
		return TCP_DROP_SHORT;
	if (!in_checksum_valid(tcp, in))
		return TCP_DROP_CHECKSUM;
	seg->in = in;
	seg->flags = th[13];
	/* Only port scanners send these. */
	if ((seg->flags & TCP_SYN && seg->flags & (TCP_FIN | TCP_RST)) ||
	    !(seg->flags & (TCP_SYN | TCP_RST | TCP_ACK)))
		return TCP_DROP_FLAGS;
	seg->seq = be32_load(th + 4);
	seg->ack = be32_load(th + 8);
	seg->wnd_field = (uint32_t)(th[14] << 8 | th[15]);
	seg->len = in->len - seg->header_bytes;
	options_len = seg->header_bytes - TCP_HEADER_BYTES;
	if (!tcp_options_parse_fast(th + TCP_HEADER_BYTES, options_len, &seg->opt) &&
	    !tcp_options_parse(th + TCP_HEADER_BYTES, options_len, &seg->opt))
		return TCP_DROP_OPTIONS;
	return TCP_PASS;
}

/* The connection with this 4-tuple; NULL: none. */
static inline struct harp_conn *in_find(struct tcp *tcp, const struct tcp_segment *seg)
{
	const uint8_t *th = seg->in->frame->pub.data;
	struct flow_key key = { .local = seg->in->dst,
				.remote = seg->in->src,
				.local_port = (uint16_t)(th[2] << 8 | th[3]),
				.remote_port = (uint16_t)(th[0] << 8 | th[1]) };
	uint32_t index = flow_find(&tcp->flows, &key);

	return index == FLOW_NONE ? NULL : &tcp->conns[index];
}

static enum tcp_verdict in_slow(struct harp_conn *conn, struct tcp_segment *seg);

static enum tcp_verdict in_no_flow(struct tcp *tcp, struct tcp_segment *seg)
{
	const uint8_t *th = seg->in->frame->pub.data;
	struct harp_listener *l =
		tcp_listener_find(tcp, &seg->in->dst, (uint16_t)(th[2] << 8 | th[3]));

	enum tcp_verdict v;

	if (l) {
		v = tcp_listen_input(l, seg);
		return v == TCP_PASS ? in_slow(in_find(tcp, seg), seg) : v;
	}
	if (port_on_other_queue(&tcp->ports, (uint16_t)(th[2] << 8 | th[3])))
		return TCP_DROP_OTHER_QUEUE;
	/* Section 3.10.7.1, CLOSED: "An incoming segment containing a RST is discarded. An incoming
	 * segment not containing a RST causes a RST to be sent in response." */
	if (!(seg->flags & TCP_RST))
		tcp_out_rst_reply(tcp, seg);
	return TCP_DROP_NO_FLOW;
}

static void in_fin(struct harp_conn *conn)
{
	conn->flags &= ~(uint32_t)CONN_FIN_OOO;
	conn->flags |= CONN_FIN_RECEIVED;
	/* "advance RCV.NXT over the FIN, and send an acknowledgment for the FIN." */
	conn->rcv.nxt_seq++;
	conn->rcv.edge_seq = seq_max(conn->rcv.edge_seq, conn->rcv.nxt_seq);
	tcp_reass_purge(conn); /* no data follows the FIN */
	tcp_delack_request(conn, true);
	tcp_conn_event(conn, HARP_EVENT_EOF | HARP_EVENT_READABLE);
	switch (conn->state) {
	case HARP_TCP_ESTABLISHED:
		tcp_state_set(conn, HARP_TCP_CLOSE_WAIT);
		break;
	case HARP_TCP_FIN_WAIT_1:
		/* Our FIN is not acknowledged yet; otherwise the state would be FIN-WAIT-2. */
		tcp_state_set(conn, HARP_TCP_CLOSING);
		break;
	case HARP_TCP_FIN_WAIT_2:
		tcp_enter_time_wait(conn);
		break;
	default:
		break;
	}
}

/* ------------------------------------------------------------------------------------------------
 * Section 3.10.7.3: SYN-SENT.
 */
static enum tcp_verdict in_syn_sent(struct harp_conn *conn, const struct tcp_segment *seg)
{
	bool ack_valid = false;

	/* "First, check the ACK bit: If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless
	 * the RST bit is set ...) and discard the segment." */
	if (seg->flags & TCP_ACK) {
		ack_valid = seq_gt(seg->ack, conn->iss_seq) && seq_leq(seg->ack, conn->snd.nxt_seq);
		if (!ack_valid) {
			if (!(seg->flags & TCP_RST))
				tcp_out_rst_reply(conn->tcp, seg);
			return TCP_DROP_ACK;
		}
	}
	/* "Second, check the RST bit: If the ACK was acceptable, then signal to the user 'error:
	 * connection reset', drop the segment, enter CLOSED state." */
	if (seg->flags & TCP_RST) {
		if (!ack_valid)
			return TCP_DROP_STATE;
		conn->tcp->stats->tcp_rst_in++;
		tcp_conn_die(conn, -ECONNREFUSED);
		return TCP_DONE;
	}
	/* "Fourth, check the SYN bit"; "Fifth, if neither of the SYN or RST bits is set, then
	 * drop". */
	if (!(seg->flags & TCP_SYN))
		return TCP_DROP_STATE;
	conn_note_received(conn);
	tcp_syn_options(conn, seg);
	conn->rcv.edge_seq = tcp_window_edge(conn);
	if (!ack_valid) {
		/* Simultaneous open: "Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment". */
		tcp_state_set(conn, HARP_TCP_SYN_RECEIVED);
		conn->flags |= CONN_SYN_PENDING;
		tcp_tx_ready(conn);
		return TCP_DONE;
	}
	if ((conn->options & HARP_TCPI_TIMESTAMPS) && !tcp_check_echo(conn, seg))
		conn->flags |= CONN_ECHO_LOOSE;
	conn->snd.una_seq = seg->ack;
	tcp_timer_handshake(conn);
	tcp_conn_established(conn);
	tcp_delack_request(conn, true);
	return TCP_DONE;
}

/*
 * True for a SYN-ACK that acknowledges our SYN, but has another ISN than the SYN that began a
 * simultaneous open. The sender of that SYN need not have known our ISN: the SYN was an old
 * duplicate or forged. With RFC 9293 we would send an ACK and the peer a reset, so an attacker that
 * knows the 4-tuple could abort a connect with one packet.
 */
static bool in_first_syn_was_false(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	return conn->state == HARP_TCP_SYN_RECEIVED && !(conn->flags & CONN_PASSIVE) &&
	       (seg->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK) &&
	       seg->seq != conn->irs_seq && seg->ack == conn->iss_seq + 1 &&
	       seg->ack == conn->snd.nxt_seq;
}

/* ------------------------------------------------------------------------------------------------
 * Fifth, check the ACK field.
 */
static enum tcp_verdict in_ack_syn_received(struct harp_conn *conn, const struct tcp_segment *seg)
{
	/* "If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state"; otherwise "form a reset
	 * segment <SEQ=SEG.ACK><CTL=RST> and send it." */
	if (!seq_gt(seg->ack, conn->snd.una_seq) || seq_gt(seg->ack, conn->snd.nxt_seq)) {
		tcp_out_rst_reply(conn->tcp, seg);
		return TCP_DROP_ACK;
	}
	conn->snd.una_seq = seg->ack;
	/* RFC 7323 section 2.2: the window of a SYN-ACK (simultaneous open) is never scaled. */
	conn->snd.wnd_bytes = seg->wnd_field << (seg->flags & TCP_SYN ? 0 : conn->snd.wscale);
	conn->snd_wnd_max_bytes = conn->snd.wnd_bytes;
	conn->snd.wl1_seq = seg->seq;
	conn->snd.wl2_seq = seg->ack;
	tcp_timer_handshake(conn);
	tcp_conn_established(conn);
	return TCP_PASS;
}

/* Our FIN is acknowledged. False if the connection terminated. */
static bool in_fin_acked(struct harp_conn *conn)
{
	switch (conn->state) {
	case HARP_TCP_FIN_WAIT_1:
		tcp_state_set(conn, HARP_TCP_FIN_WAIT_2);
		/* The application has closed: a silent peer must not keep the slot. */
		if (!(conn->flags & CONN_HANDLE))
			tcp_timer_life(conn, TCP_FIN_WAIT_2_NS);
		return true;
	case HARP_TCP_CLOSING:
		tcp_enter_time_wait(conn);
		return true;
	case HARP_TCP_LAST_ACK:
		tcp_conn_die(conn, 0);
		return false;
	default:
		return true;
	}
}

static enum tcp_verdict in_check_ack(struct harp_conn *conn, const struct tcp_segment *seg)
{
	enum tcp_verdict v;

	/* "if the ACK bit is off, drop the segment and return" */
	if (!(seg->flags & TCP_ACK))
		return TCP_DROP_STATE;
	if (conn->state == HARP_TCP_SYN_RECEIVED) {
		v = in_ack_syn_received(conn, seg);
		if (v != TCP_PASS)
			return v;
	}
	v = tcp_check_ack(conn, seg);
	if (v != TCP_PASS)
		return v;
	conn_note_received(conn);
	/* RFC 7323 section 5.3 R3 does this earlier, before the segment is known to be
	 * acceptable. */
	tcp_check_take_timestamp(conn, seg);
	conn->ts.echo = seg->opt.tsecr;
	conn->ecn.ack_ece = (seg->flags & (TCP_ECE | TCP_SYN)) == TCP_ECE &&
			    (conn->options & HARP_TCPI_ECN) && seq_geq(seg->ack, conn->snd.una_seq);
	tcp_ack_in(conn, seg);
	if (conn->ecn.ack_ece)
		tcp_ecn_echo_in(conn);
	conn->ecn.ack_ece = 0;
	if (seq_geq(seg->ack, conn->snd.una_seq) && !(seg->flags & TCP_SYN))
		tcp_window_update(conn, seg);
	if ((conn->flags & CONN_FIN_QUEUED) && conn->snd.una_seq == conn->snd.end_seq &&
	    !in_fin_acked(conn))
		return TCP_DONE;
	return TCP_PASS;
}

/* ------------------------------------------------------------------------------------------------
 * Seventh, process the segment text; eighth, check the FIN bit.
 */
static enum tcp_verdict in_text_and_fin(struct harp_conn *conn, struct tcp_segment *seg)
{
	uint32_t fin_seq = seg->seq + seg->len;
	bool fin = seg->flags & TCP_FIN;
	enum tcp_verdict v = TCP_DONE;

	/* "This should not occur since a FIN has been received from the remote side. Ignore." */
	if (conn->state != HARP_TCP_ESTABLISHED && conn->state != HARP_TCP_FIN_WAIT_1 &&
	    conn->state != HARP_TCP_FIN_WAIT_2)
		return TCP_DONE;
	if (seg->len > 0) {
		if (!(conn->flags & CONN_HANDLE) && !conn->listener &&
		    seq_gt(fin_seq, conn->rcv.nxt_seq)) {
			/* RFC 1122 section 4.2.2.13: a reset for data after the application's
			 * close. */
			tcp_conn_reset(conn, -ECONNRESET);
			return TCP_DROP_STATE;
		}
		tcp_ecn_data_in(conn, seg);
		v = tcp_reass_payload(conn, seg);
	}
	if (fin && seq_lt(fin_seq, conn->rcv.edge_seq) && seq_geq(fin_seq, conn->rcv.nxt_seq)) {
		conn->flags |= CONN_FIN_OOO;
		conn->rcv_fin_seq = fin_seq;
	}
	/* In-order data extends beyond the FIN, so the FIN was forged. */
	if ((conn->flags & CONN_FIN_OOO) && seq_gt(conn->rcv.nxt_seq, conn->rcv_fin_seq))
		conn->flags &= ~(uint32_t)CONN_FIN_OOO;
	if ((conn->flags & CONN_FIN_OOO) && conn->rcv.nxt_seq == conn->rcv_fin_seq)
		in_fin(conn);
	else if (fin && seg->len == 0)
		(void)tcp_out_ack(conn); /* a duplicate ACK, as for out-of-order data */
	return v;
}

/* Replaces a connection in TIME-WAIT by a new incarnation, the exception to MUST-13 in RFC 9293
 * section 3.6.1: it "assigns its initial sequence number for the new connection to be larger than
 * the largest sequence number it used on the previous". So the SYN never gets a cookie. */
static enum tcp_verdict in_time_wait_reuse(struct harp_conn *conn, struct tcp_segment *seg)
{
	struct tcp *tcp = conn->tcp;
	struct harp_listener *l = tcp_listener_find(tcp, &seg->in->dst, conn->local_port);
	uint32_t old_nxt_seq = conn->snd.nxt_seq;

	if (tcp_listen_is_full(l) || tcp_embryonic_is_full(tcp)) {
		tcp->stats->drop_tcp_backlog++; /* TIME-WAIT continues */
		return TCP_DROP_BACKLOG;
	}
	tcp_conn_die(conn, 0);
	conn = tcp_listen_embryo(l, seg);
	if (!conn)
		return TCP_DROP_STATE;
	tcp_conn_iss_beyond(conn, old_nxt_seq);
	tcp_tx_ready(conn);
	return TCP_DONE;
}

static enum tcp_verdict in_slow(struct harp_conn *conn, struct tcp_segment *seg)
{
	enum tcp_verdict v;

	if (conn->state == HARP_TCP_SYN_SENT)
		return in_syn_sent(conn, seg);
	if (in_first_syn_was_false(conn, seg)) {
		tcp_conn_offer(conn);
		return in_syn_sent(conn, seg);
	}
	if (tcp_check_time_wait_reuse(conn, seg))
		return in_time_wait_reuse(conn, seg);
	v = tcp_check_segment(conn, seg);
	if (v != TCP_PASS)
		return v;
	v = in_check_ack(conn, seg);
	if (v != TCP_PASS)
		return v;
	if (seg->flags & TCP_SYN) /* as in SYN-SENT, data and FIN are ignored */
		return TCP_DONE;
	/* "Sixth, check the URG bit": urgent data is delivered in line (RFC 6093). */
	return in_text_and_fin(conn, seg);
}

static enum tcp_verdict in_segment(struct tcp *tcp, struct tcp_gro *gro)
{
	struct tcp_segment *seg = &gro->seg;
	enum tcp_verdict v = in_parse(tcp, &gro->in, seg);
	struct harp_conn *conn;

	if (v != TCP_PASS)
		return v;
	tcp->stats->tcp_segs_in++;
	conn = in_find(tcp, seg);
	if (!conn)
		return in_no_flow(tcp, seg);
	conn->acct.segs_in++;
	v = tcp_fast_in(conn, seg);
	if (v == TCP_PASS)
		return in_slow(conn, seg);
	if (v == TCP_KEPT && gro->head && conn->rcvq.tail == gro->in.frame)
		tcp_gro_begin(gro, conn);
	return v;
}

enum tcp_verdict tcp_input(struct tcp *tcp, struct tcp_gro *gro)
{
	/* offset of the counter of each drop reason; 0: not counted here */
	static const size_t counters[TCP_VERDICTS] = {
		[TCP_DROP_SHORT] = offsetof(struct harp_stats, drop_tcp_short),
		[TCP_DROP_CHECKSUM] = offsetof(struct harp_stats, drop_tcp_checksum),
		[TCP_DROP_FLAGS] = offsetof(struct harp_stats, drop_tcp_flags),
		[TCP_DROP_OPTIONS] = offsetof(struct harp_stats, drop_tcp_options),
		[TCP_DROP_NO_FLOW] = offsetof(struct harp_stats, drop_tcp_no_flow),
		[TCP_DROP_OTHER_QUEUE] = offsetof(struct harp_stats, drop_port_elsewhere),
		[TCP_DROP_BACKLOG] = 0, /* counted in tcp_listen.c */
		[TCP_DROP_WINDOW] = offsetof(struct harp_stats, drop_tcp_window),
		[TCP_DROP_PAWS] = offsetof(struct harp_stats, drop_tcp_paws),
		[TCP_DROP_ACK] = offsetof(struct harp_stats, drop_tcp_ack),
		[TCP_DROP_DUPLICATE] = offsetof(struct harp_stats, drop_tcp_duplicate),
		[TCP_DROP_RX_BUDGET] = offsetof(struct harp_stats, drop_tcp_rx_budget),
		[TCP_DROP_STATE] = offsetof(struct harp_stats, drop_tcp_state),
		[TCP_DROP_ECHO] = offsetof(struct harp_stats, drop_tcp_echo),
	};
	enum tcp_verdict v = in_segment(tcp, gro);

	if (counters[v] != 0)
		++*(uint64_t *)((uint8_t *)tcp->stats + counters[v]);
	return v;
}
