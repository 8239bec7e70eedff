/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_check.c - is a segment from whom it says it is? RFC 9293 section 3.10.7.4 up to the ACK, RFC 5961,
 * RFC 7323 section 5.
 *
 * Theory of operation. Somebody off the path can send us anything under our peer's name, see none of our
 * answers, and may know the 4-tuple, our windows and roughly our clock. Each kind of segment must hit
 * something that he can't know:
 *
 *	RST	the very RCV.NXT: 1 in 2^32. Elsewhere in the window it gets a challenge ACK, whose answer
 *		by a peer that really reset is an RST that hits.
 *	SYN	nothing: always a challenge ACK (TIME-WAIT apart: tcp_check_time_wait_reuse()).
 *	data,	SEG.SEQ in the window, SEG.ACK in [SND.UNA - MAX.SND.WND, SND.NXT] and not before our first
 *	FIN,	byte, and with timestamps a TSecr that we have sent and that the peer may still echo, beside
 *	ACK	a TSval that is not old.
 *
 * The echo. Our timestamps begin at a secret offset (tcp_conn_secrets()). A peer echoes its TS.Recent,
 * which only grows. PAWS lets pass what has the TSval of our TS.Recent or a later one: that was sent after
 * everything with an earlier TSval, and echoes no less than the last such segment that we took a timestamp
 * from (ts_echo_min; ts_echo_max is for the TSval of TS.Recent, whose tick of the peer's clock may not be
 * over). So TSecr lies in [ts_echo_min, ts_sent], and ts_sent is the last TSval that really left: on a busy
 * connection a round trip of milliseconds, on an idle one the time between the last two exchanges, of 2^32
 * in all. No order of arrival makes a segment of an honest peer fail. Where one does, the challenge ACK
 * that it provokes carries our newest TSval, so that a peer with an odd idea of TS.Recent finds back, and a
 * peer whose very handshake echoed something else (CONN_ECHO_LOOSE) is not held to it. RSTs are exempt: RFC
 * 7323 section 3.2 lets them have none.
 *
 * Challenge ACKs are limited, lest two ends answer each other for ever or an attacker have us send.
 * A limit that connections share tells each of them about the others: CVE-2016-5696 counted a global
 * budget from a connection of the attacker's own, and so found 4-tuples and sequence numbers. Here nothing
 * is shared. What a connection may send follows from the number of connections alone: their sum stays
 * near TCP_CHALLENGE_ACKS_PER_S_STACK, yet no challenge on one of them can change what another one sends.
 * Budgets and epochs are jittered by a keyed hash of connection and epoch, so that not even that number
 * can be read off.
 */
#include "transport/tcp.h"

#include <errno.h>

/* RFC 7323 section 5.5: a timestamp older than 24 days may have wrapped. */
#define CHECK_TS_AGE_NS (24ull * 86400 * TCP_NS_PER_S)
#define CHECK_EPOCH_NS_MAX (16 * TCP_NS_PER_S)
/* Less than any timer that probes waits for. */
#define CHECK_PROBE_NS (4 * TCP_NS_PER_MS)

/* ------------------------------------------------------------------------------------------------
 * Challenge ACKs: RFC 5961 section 7.
 */
/* A new epoch: how long it lasts, and how many may leave in it. */
static void check_new_epoch(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;
	uint64_t conns = tcp->stats->tcp_conns > 0 ? tcp->stats->tcp_conns : 1;
	uint64_t most = TCP_CHALLENGE_ACKS_PER_S_STACK / conns;
	uint64_t epoch_ns = TCP_NS_PER_S, seed[2] = { conn->index, tcp->now_ns }, hash;

	if (most > TCP_CHALLENGE_ACKS_PER_S)
		most = TCP_CHALLENGE_ACKS_PER_S;
	if (most == 0) {
		epoch_ns = conns * TCP_NS_PER_S / TCP_CHALLENGE_ACKS_PER_S_STACK;
		if (epoch_ns > CHECK_EPOCH_NS_MAX)
			epoch_ns = CHECK_EPOCH_NS_MAX;
		most = 1;
	}
	hash = siphash24(&tcp->challenge_secret, seed, sizeof(seed));
	/* 3/4 to 5/4 of the time, half to all of the budget. */
	epoch_ns = epoch_ns - epoch_ns / 4 + ((hash >> 32) * (epoch_ns / 2) >> 32);
	conn->throttle.challenge_epoch_end_ns = tcp->now_ns + epoch_ns;
	conn->throttle.challenge_left =
		(uint8_t)(most - (hash & 0xffff) * (most / 2 + 1) / 0x10000);
}

/* Sends one, if the connection's budget has one left. */
static void check_challenge(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;

	if (tcp->now_ns >= conn->throttle.challenge_epoch_end_ns)
		check_new_epoch(conn);
	if (conn->throttle.challenge_left == 0) {
		tcp->stats->tcp_challenge_limited++;
		return;
	}
	conn->throttle.challenge_left--;
	tcp->stats->tcp_challenge_acks++;
	(void)tcp_out_ack(conn);
}

/* ------------------------------------------------------------------------------------------------
 * Timestamps.
 */
void tcp_check_take_timestamp(struct harp_conn *conn, const struct tcp_segment *seg)
{
	/* RFC 7323 section 4.3 (2): only segments that begin at or before the last ACK sent. */
	if (!(seg->opt.seen & TCP_OPT_TIMESTAMP) || !(conn->options & HARP_TCPI_TIMESTAMPS) ||
	    !seq_leq(seg->seq, conn->rcv_acked_seq))
		return;
	if (seg->opt.tsval != conn->ts_recent) {
		conn->ts.echo_min = conn->ts.echo_max;
		conn->ts.echo_max = seg->opt.tsecr;
	} else if (seq_gt(seg->opt.tsecr, conn->ts.echo_max)) {
		conn->ts.echo_max = seg->opt.tsecr;
	}
	conn->ts_recent = seg->opt.tsval;
	conn->ts.recent_ns = conn->tcp->now_ns;
}

static enum tcp_verdict check_timestamps(struct harp_conn *conn, const struct tcp_segment *seg)
{
	bool fresh = conn->tcp->now_ns - conn->ts.recent_ns < CHECK_TS_AGE_NS;

	if (!(conn->options & HARP_TCPI_TIMESTAMPS) || (seg->flags & TCP_RST))
		return TCP_PASS;
	if (!(seg->opt.seen & TCP_OPT_TIMESTAMP)) /* section 3.2: "SHOULD silently drop" */
		return seg->flags & TCP_SYN ? TCP_PASS : TCP_DROP_PAWS;
	/* Section 5.3 R1: "Send an acknowledgment in reply". */
	if ((int32_t)(seg->opt.tsval - conn->ts_recent) < 0 && fresh) {
		check_challenge(conn);
		return TCP_DROP_PAWS;
	}
	if (!(seg->flags & TCP_ACK) || !fresh || tcp_check_echo(conn, seg) ||
	    (conn->flags & CONN_ECHO_LOOSE))
		return TCP_PASS;
	if (conn->state == HARP_TCP_SYN_RECEIVED && seg->ack == conn->iss_seq + 1) {
		/* It knows our ISN and has another idea of echoes. */
		conn->flags |= CONN_ECHO_LOOSE;
		return TCP_PASS;
	}
	check_challenge(conn);
	return TCP_DROP_ECHO;
}

/* ------------------------------------------------------------------------------------------------
 * First, check the sequence number.
 */
static bool check_acceptable(const struct harp_conn *conn, const struct tcp_segment *seg,
			     uint32_t space)
{
	uint32_t wnd = conn_rcv_wnd_bytes(conn);

	/* The four cases of the table; an empty segment at the right edge is a sender that has filled
	 * the window, and its ACK is good. */
	if (space == 0)
		return seg->seq - conn->rcv_nxt_seq <= wnd;
	if (wnd == 0)
		return false;
	return seg->seq - conn->rcv_nxt_seq < wnd || seg->seq + space - 1 - conn->rcv_nxt_seq < wnd;
}

/* Is it where data may be that was under way when the window was taken back (reass_refused())? */
static bool check_was_offered(const struct harp_conn *conn, uint32_t seq)
{
	return conn_rcv_wnd_bytes(conn) == 0 &&
	       seq - conn->rcv_nxt_seq <= conn_rcv_offered_bytes_max(conn);
}

/*
 * A keepalive's or window's probe without a byte. Two ends that are a byte apart in both directions, whosever fault that is, take
 * each other's ACKs for such, and would answer for ever, as fast as they can (Linux: tcp_invalid_ratelimit). Nothing but the
 * very SEG.SEQ gets here, so a blind attacker has no say in who is answered.
 */
static bool check_answers_probe(struct harp_conn *conn)
{
	if (conn->tcp->now_ns < conn->throttle.probe_next_ns)
		return false;
	conn->throttle.probe_next_ns = conn->tcp->now_ns + CHECK_PROBE_NS;
	return true;
}

static enum tcp_verdict check_unacceptable(struct harp_conn *conn, const struct tcp_segment *seg,
					   uint32_t space)
{
	/* "If an incoming segment is not acceptable, an acknowledgment should be sent in reply (unless the
	 * RST bit is set ...)": keepalive probes and data that was received before get it at once, what no
	 * honest peer sends throttled, or a stranger could have us send his victim duplicate ACKs. */
	uint32_t behind = conn_rcv_offered_bytes_max(conn);

	if (seg->flags & TCP_RST) {
		/* It left into a window: RFC 5961 section 3.2. Who has reset answers with an RST that fits. */
		if (check_was_offered(conn, seg->seq))
			check_challenge(conn);
		return TCP_DROP_WINDOW;
	}
	/* The retransmitted FIN: restart 2 MSL. Any other would let a stranger keep the slot for ever. */
	if (conn->state == HARP_TCP_TIME_WAIT && (seg->flags & TCP_FIN) &&
	    seg->seq + space == conn->rcv_nxt_seq)
		tcp_timer_life(conn, TCP_TIME_WAIT_NS);
	if (!(seg->flags & TCP_SYN) && conn->rcv_nxt_seq - seg->seq <= behind &&
	    (space > 0 || seg->seq + 1 == conn->rcv_nxt_seq)) {
		if (space > 0 && seq_leq(seg->seq + space, conn->rcv_nxt_seq))
			tcp_sackout_duplicate(conn, seg->seq, seg->seq + space);
		if (space > 0 || check_answers_probe(conn))
			(void)tcp_out_ack(conn);
	} else {
		check_challenge(conn);
	}
	if (space > 0 && seq_leq(seg->seq + space, conn->rcv_nxt_seq))
		return TCP_DROP_DUPLICATE;
	return TCP_DROP_WINDOW;
}

/* "If the RCV.WND is zero, ... special allowance should be made to accept valid ACKs": also of what was under way when the
 * window was taken back, which RFC 7323 section 2.4 wants honoured. Its data is refused, and its place is the edge's, or
 * what comes after it at the edge would pass for older. */
static bool check_closed(struct harp_conn *conn, struct tcp_segment *seg, uint32_t space)
{
	if (!check_was_offered(conn, seg->seq) || (seg->flags & (TCP_RST | TCP_SYN)))
		return false;
	if (space > 0) {
		conn->tcp->stats->drop_tcp_rx_budget++;
		tcp_delack_want(conn, true);
	}
	seg->seq = conn->rcv_nxt_seq;
	seg->len = 0;
	seg->flags &= (uint8_t)~TCP_FIN;
	return true;
}

/* Simultaneous open: the SYN is known, and its ACK is what we wait for. */
static bool check_is_their_syn_ack(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	return conn->state == HARP_TCP_SYN_RECEIVED && !(conn->flags & CONN_PASSIVE) &&
	       (seg->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK) &&
	       seg->seq == conn->irs_seq;
}

static enum tcp_verdict check_sequence(struct harp_conn *conn, struct tcp_segment *seg)
{
	uint32_t space;

	if (check_is_their_syn_ack(conn, seg)) {
		tcp_delack_want(conn,
				true); /* the peer may wait for it, as our SYN-ACK may be lost */
		return TCP_PASS;
	}
	space = seg->len + ((seg->flags & TCP_SYN) ? 1u : 0u) + ((seg->flags & TCP_FIN) ? 1u : 0u);
	if (seg->flags & TCP_RST) /* it may carry a reason (RFC 9293 3.5.3) that is no data */
		space = 0;
	/* A SYN again in SYN-RECEIVED: our SYN-ACK was lost. */
	if (conn->state == HARP_TCP_SYN_RECEIVED && (seg->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
	    seg->seq == conn->irs_seq) {
		tcp_ecn_syn_again(conn, seg->flags);
		conn->flags |= CONN_SYN_PENDING;
		tcp_tx_ready(conn);
		return TCP_DROP_DUPLICATE;
	}
	if (check_acceptable(conn, seg, space) || check_closed(conn, seg, space))
		return TCP_PASS;
	return check_unacceptable(conn, seg, space);
}

/* Second, check the RST bit, after RFC 5961 section 3.2. */
static enum tcp_verdict check_rst(struct harp_conn *conn, const struct tcp_segment *seg)
{
	if (!(seg->flags & TCP_RST))
		return TCP_PASS;
	if (seg->seq != conn->rcv_nxt_seq) {
		/* "does not exactly match the next expected sequence value, yet is within the current
		 * receive window ... MUST send an acknowledgment (challenge ACK)". */
		check_challenge(conn);
		return TCP_DROP_WINDOW;
	}
	/* RFC 1337 section 3 (F1): "Ignore RST segments in TIME-WAIT state", or an old duplicate would
	 * end the wait that is to protect the next incarnation. */
	if (conn->state == HARP_TCP_TIME_WAIT)
		return TCP_DROP_STATE;
	conn->tcp->stats->tcp_rst_in++;
	switch (conn->state) {
	case HARP_TCP_SYN_RECEIVED:
		tcp_conn_die(conn, -ECONNREFUSED);
		break;
	case HARP_TCP_CLOSING:
	case HARP_TCP_LAST_ACK:
		tcp_conn_die(conn, 0);
		break;
	default:
		tcp_conn_die(conn, -ECONNRESET);
		break;
	}
	return TCP_DONE;
}

/* Fourth, check the SYN bit. */
static enum tcp_verdict check_syn(struct harp_conn *conn, const struct tcp_segment *seg)
{
	if (!(seg->flags & TCP_SYN) || check_is_their_syn_ack(conn, seg))
		return TCP_PASS;
	/* RFC 5961 section 4.2: "TCP endpoints MUST send a challenge ACK to the remote peer". */
	check_challenge(conn);
	return TCP_DROP_STATE;
}

enum tcp_verdict tcp_check_segment(struct harp_conn *conn, struct tcp_segment *seg)
{
	enum tcp_verdict v;

	/* RFC 7323 section 5.3 R1: PAWS comes before the sequence number. */
	if ((v = check_timestamps(conn, seg)) != TCP_PASS ||
	    (v = check_sequence(conn, seg)) != TCP_PASS || (v = check_rst(conn, seg)) != TCP_PASS)
		return v;
	return check_syn(conn, seg);
}

enum tcp_verdict tcp_check_ack(struct harp_conn *conn, const struct tcp_segment *seg)
{
	/* RFC 5961 section 5.2: "((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT)", else challenge. What lies
	 * before our first byte nobody can have received: who sends with a forged address and guessed
	 * his way through the handshake would have a window full of good ACKs
	 * (draft-ietf-tcpm-tcp-ghost-acks). */
	uint32_t behind = conn->snd_wnd_max_bytes;

	if (conn->acct.bytes_acked < behind)
		behind = conn->snd_una_seq - (conn->iss_seq + 1);
	if (seq_gt(seg->ack, conn->snd_nxt_seq) || seq_lt(seg->ack, conn->snd_una_seq - behind)) {
		check_challenge(conn);
		return TCP_DROP_ACK;
	}
	return TCP_PASS;
}

bool tcp_check_time_wait_reuse(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	if (conn->state != HARP_TCP_TIME_WAIT ||
	    (seg->flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN ||
	    !tcp_listener_find(conn->tcp, &conn->path.src, conn->local_port))
		return false;
	if ((conn->options & HARP_TCPI_TIMESTAMPS) && (seg->opt.seen & TCP_OPT_TIMESTAMP) &&
	    seg->opt.tsval != conn->ts_recent)
		return (int32_t)(seg->opt.tsval - conn->ts_recent) > 0;
	return seq_gt(seg->seq, conn->rcv_nxt_seq);
}
