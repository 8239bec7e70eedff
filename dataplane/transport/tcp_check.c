/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_check.c - acceptability of a segment: RFC 9293 section 3.10.7.4 up to the ACK, RFC 5961, RFC
 * 7323 section 5.
 *
 * Threat model. An off-path attacker can send any segment with our peer's address, sees none of our
 * replies, and may know the 4-tuple, our windows and roughly our clock. Each kind of segment must
 * match a value that the attacker cannot know:
 *
 *	RST	SEG.SEQ equal to RCV.NXT: 1 in 2^32. Another one in the window gets a challenge ACK,
 *		to which a peer that has closed the connection replies with an exact RST. After a
 *		simultaneous open the attacker may have chosen RCV.NXT, so an RST must also
 *		acknowledge our SYN.
 *	SYN	never accepted: always a challenge ACK (except TIME-WAIT:
 *		tcp_check_time_wait_reuse()).
 *	data, FIN, ACK
 *		SEG.SEQ in the window; SEG.ACK in [SND.UNA - MAX.SND.WND, SND.NXT] and not before
 *		our first byte; with timestamps, a TSval that is not old and a TSecr that we sent
 *		and that the peer may still echo.
 *
 * TSecr. Our timestamps begin at a secret offset (tcp_conn_secrets()). A peer echoes its TS.Recent,
 * which only grows. PAWS accepts segments whose TSval is at least TS.Recent. The peer sent such a
 * segment after all segments with an earlier TSval, so its TSecr is at least theirs. ts.echo_min is
 * the greatest TSecr among segments with an earlier TSval, and ts.echo_max among those with the
 * newest TSval, of which more may follow within the same clock tick. So TSecr is in [ts.echo_min,
 * ts.sent], where ts.sent is the last TSval sent. On a busy connection that range is a round trip
 * in milliseconds, and on an idle one the time between the last two exchanges, out of 2^32.
 * Segments of a correct peer pass in any order of arrival. If one fails, the challenge ACK carries
 * our newest TSval, so a peer with a different TS.Recent recovers. A peer whose handshake already
 * echoed another value (CONN_ECHO_LOOSE) is exempt. RSTs are exempt, too: RFC 7323 section 3.2
 * allows them without timestamps.
 *
 * Challenge ACKs are rate-limited, so that two ends do not reply to each other forever and an
 * attacker cannot make us send. A limit shared by connections leaks information between them: in
 * CVE-2016-5696, an attacker counted a global budget from its own connection and so learned
 * 4-tuples and sequence numbers. Here each connection has its own limit, which depends only on the
 * number of connections: the sum stays near TCP_CHALLENGE_ACKS_PER_S_STACK, but a challenge on one
 * connection never changes the output of another. A keyed hash of connection and time adds jitter
 * to budgets and epochs, so that an attacker cannot even measure the number of connections.
 */
#include "transport/tcp.h"

#include <errno.h>

/* RFC 7323 section 5.5: TS.Recent is invalid after 24 days. */
#define CHECK_TS_AGE_NS (24ull * 86400 * TCP_NS_PER_S)
#define CHECK_EPOCH_NS_MAX (16 * TCP_NS_PER_S)
/* minimum interval of replies to probes, shorter than any probe timer */
#define CHECK_PROBE_NS (4 * TCP_NS_PER_MS)

/* ------------------------------------------------------------------------------------------------
 * Challenge ACKs: RFC 5961 section 7.
 */
/* Starts an epoch with a random length and budget. */
static void check_new_epoch(struct harp_conn *conn)
{
	struct tcp *tcp = conn->tcp;
	uint64_t conns = tcp->stats->tcp_conns > 0 ? tcp->stats->tcp_conns : 1;
	uint64_t budget = TCP_CHALLENGE_ACKS_PER_S_STACK / conns;
	uint64_t epoch_ns = TCP_NS_PER_S, seed[2] = { conn->index, tcp->now_ns }, hash;

	if (budget > TCP_CHALLENGE_ACKS_PER_S)
		budget = TCP_CHALLENGE_ACKS_PER_S;
	if (budget == 0) {
		epoch_ns = conns * TCP_NS_PER_S / TCP_CHALLENGE_ACKS_PER_S_STACK;
		if (epoch_ns > CHECK_EPOCH_NS_MAX)
			epoch_ns = CHECK_EPOCH_NS_MAX;
		budget = 1;
	}
	hash = siphash24(&tcp->challenge_secret, seed, sizeof(seed));
	/* 3/4 to 5/4 of the time, and half to all of the budget. */
	epoch_ns = epoch_ns - epoch_ns / 4 + ((hash >> 32) * (epoch_ns / 2) >> 32);
	conn->throttle.challenge_epoch_end_ns = tcp->now_ns + epoch_ns;
	conn->throttle.challenge_left =
		(uint8_t)(budget - (hash & 0xffff) * (budget / 2 + 1) / 0x10000);
}

/* Sends a challenge ACK if the connection's budget allows it. */
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
	/* RFC 7323 section 4.3 (2): only segments that begin at or before Last.ACK.sent. */
	if (!(seg->opt.seen & TCP_OPT_TIMESTAMP) || !(conn->options & HARP_TCPI_TIMESTAMPS) ||
	    !seq_leq(seg->seq, conn->rcv.acked_seq))
		return;
	if (seg->opt.tsval != conn->ts.recent) {
		conn->ts.echo_min = conn->ts.echo_max;
		conn->ts.echo_max = seg->opt.tsecr;
	} else if (seq_gt(seg->opt.tsecr, conn->ts.echo_max)) {
		conn->ts.echo_max = seg->opt.tsecr;
	}
	conn->ts.recent = seg->opt.tsval;
	conn->ts.recent_ns = conn->tcp->now_ns;
}

static enum tcp_verdict check_timestamps(struct harp_conn *conn, const struct tcp_segment *seg)
{
	bool fresh = conn->tcp->now_ns - conn->ts.recent_ns < CHECK_TS_AGE_NS;

	if (!(conn->options & HARP_TCPI_TIMESTAMPS) || (seg->flags & TCP_RST))
		return TCP_PASS;
	/* RFC 7323 section 3.2, without timestamps: "SHOULD silently drop the segment". */
	if (!(seg->opt.seen & TCP_OPT_TIMESTAMP))
		return seg->flags & TCP_SYN ? TCP_PASS : TCP_DROP_PAWS;
	/* RFC 7323 section 5.3 R1: "Send an acknowledgment in reply". */
	if ((int32_t)(seg->opt.tsval - conn->ts.recent) < 0 && fresh) {
		check_challenge(conn);
		return TCP_DROP_PAWS;
	}
	if (!(seg->flags & TCP_ACK) || !fresh || tcp_check_echo(conn, seg) ||
	    (conn->flags & CONN_ECHO_LOOSE))
		return TCP_PASS;
	if (conn->state == HARP_TCP_SYN_RECEIVED && seg->ack == conn->iss_seq + 1) {
		/* The peer knows our ISN but echoes timestamps differently. */
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

	/* The four cases of the table in RFC 9293 section 3.10.7.4. Unlike there, an empty segment
	 * at the right edge is acceptable: its sender has filled the window, and its ACK is
	 * valid. */
	if (space == 0)
		return seg->seq - conn->rcv.nxt_seq <= wnd;
	if (wnd == 0)
		return false;
	return seg->seq - conn->rcv.nxt_seq < wnd || seg->seq + space - 1 - conn->rcv.nxt_seq < wnd;
}

/* True if the window is closed and seq may have been in it before it was shrunk
 * (reass_refused()). */
static bool check_was_offered(const struct harp_conn *conn, uint32_t seq)
{
	return conn_rcv_wnd_bytes(conn) == 0 &&
	       seq - conn->rcv.nxt_seq <= conn_rcv_offered_bytes_max(conn);
}

/*
 * Rate limit for replies to keepalive and window probes without payload. Two ends whose sequence
 * numbers differ by one in both directions would mistake each other's ACKs for probes and reply
 * endlessly (Linux: tcp_invalid_ratelimit). Only segments with SEG.SEQ = RCV.NXT - 1 count, so an
 * off-path attacker cannot exhaust the limit.
 */
static bool check_may_answer_probe(struct harp_conn *conn)
{
	if (conn->tcp->now_ns < conn->throttle.probe_next_ns)
		return false;
	conn->throttle.probe_next_ns = conn->tcp->now_ns + CHECK_PROBE_NS;
	return true;
}

static enum tcp_verdict check_unacceptable(struct harp_conn *conn, const struct tcp_segment *seg,
					   uint32_t space)
{
	/* RFC 9293 section 3.10.7.4: "If an incoming segment is not acceptable, an acknowledgment
	 * should be sent in reply (unless the RST bit is set ...)". Keepalive probes and duplicate
	 * data get the ACK at once. Replies to segments that no correct peer sends are
	 * rate-limited: otherwise an off-path attacker could make us send duplicate ACKs to its
	 * victim. */
	uint32_t behind = conn_rcv_offered_bytes_max(conn);

	if (seg->flags & TCP_RST) {
		/* The RST was sent into an advertised window (RFC 5961 section 3.2). To the
		 * challenge, a peer that has closed the connection replies with an exact RST. */
		if (check_was_offered(conn, seg->seq))
			check_challenge(conn);
		return TCP_DROP_WINDOW;
	}
	/* A retransmitted FIN restarts 2 MSL. Other segments do not, because an attacker could
	 * occupy the slot forever. */
	if (conn->state == HARP_TCP_TIME_WAIT && (seg->flags & TCP_FIN) &&
	    seg->seq + space == conn->rcv.nxt_seq)
		tcp_timer_life(conn, TCP_TIME_WAIT_NS);
	if (!(seg->flags & TCP_SYN) && conn->rcv.nxt_seq - seg->seq <= behind &&
	    (space > 0 || seg->seq + 1 == conn->rcv.nxt_seq)) {
		if (space > 0 && seq_leq(seg->seq + space, conn->rcv.nxt_seq))
			tcp_sackout_duplicate(conn, seg->seq, seg->seq + space);
		if (space > 0 || check_may_answer_probe(conn))
			(void)tcp_out_ack(conn);
	} else {
		check_challenge(conn);
	}
	if (space > 0 && seq_leq(seg->seq + space, conn->rcv.nxt_seq))
		return TCP_DROP_DUPLICATE;
	return TCP_DROP_WINDOW;
}

/* RFC 9293 section 3.10.7.4: "If the RCV.WND is zero, ... special allowance should be made to
 * accept valid ACKs". This includes data that was in flight when the window was shrunk (RFC 7323
 * section 2.4). Removes its payload and moves SEG.SEQ to the edge; otherwise later segments at the
 * edge would look older. */
static bool check_closed_window(struct harp_conn *conn, struct tcp_segment *seg, uint32_t space)
{
	if (!check_was_offered(conn, seg->seq) || (seg->flags & (TCP_RST | TCP_SYN)))
		return false;
	if (space > 0) {
		conn->tcp->stats->drop_tcp_rx_budget++;
		tcp_delack_request(conn, true);
	}
	seg->seq = conn->rcv.nxt_seq;
	seg->len = 0;
	seg->flags &= (uint8_t)~TCP_FIN;
	return true;
}

/* True for the SYN-ACK of a simultaneous open: its SYN was received before, its ACK completes the
 * handshake. */
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
		/* The peer needs an ACK if our SYN-ACK was lost. */
		tcp_delack_request(conn, true);
		return TCP_PASS;
	}
	space = seg->len + ((seg->flags & TCP_SYN) ? 1u : 0u) + ((seg->flags & TCP_FIN) ? 1u : 0u);
	if (seg->flags & TCP_RST) /* the text of an RST is not data (RFC 9293 section 3.5.3) */
		space = 0;
	/* A retransmitted SYN in SYN-RECEIVED: our SYN-ACK was lost. */
	if (conn->state == HARP_TCP_SYN_RECEIVED && (seg->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
	    seg->seq == conn->irs_seq) {
		tcp_ecn_syn_again(conn, seg->flags);
		conn->flags |= CONN_SYN_PENDING;
		tcp_tx_ready(conn);
		return TCP_DROP_DUPLICATE;
	}
	if (check_acceptable(conn, seg, space) || check_closed_window(conn, seg, space))
		return TCP_PASS;
	return check_unacceptable(conn, seg, space);
}

/*
 * True for an RST after a simultaneous open that does not acknowledge our SYN. An attacker that
 * knows the 4-tuple can forge both the SYN and this RST. A peer that never sent the SYN resets our
 * SYN-ACK in the same way. So the connection returns to SYN-SENT. The retransmission timer sends
 * the SYN again, and a peer that refuses it sends an RST that acknowledges it.
 */
static bool check_rst_of_other_syn(const struct harp_conn *conn, const struct tcp_segment *seg)
{
	return conn->state == HARP_TCP_SYN_RECEIVED && !(conn->flags & CONN_PASSIVE) &&
	       !((seg->flags & TCP_ACK) && seg->ack == conn->iss_seq + 1);
}

/* Second, check the RST bit, after RFC 5961 section 3.2. */
static enum tcp_verdict check_rst(struct harp_conn *conn, const struct tcp_segment *seg)
{
	if (!(seg->flags & TCP_RST))
		return TCP_PASS;
	if (seg->seq != conn->rcv.nxt_seq) {
		/* The sequence number "does not exactly match the next expected sequence value, yet
		 * is within the current receive window ... MUST send an acknowledgment (challenge
		 * ACK)". */
		check_challenge(conn);
		return TCP_DROP_WINDOW;
	}
	if (check_rst_of_other_syn(conn, seg)) {
		tcp_conn_offer(conn);
		tcp_state_set(conn, HARP_TCP_SYN_SENT);
		return TCP_DROP_STATE;
	}
	/* RFC 1337 section 3 (F1): "Ignore RST segments in TIME-WAIT state". An old duplicate would
	 * otherwise end the state that protects the next incarnation. */
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

	/* RFC 7323 section 5.3 R1: PAWS is checked before the sequence number. */
	if ((v = check_timestamps(conn, seg)) != TCP_PASS ||
	    (v = check_sequence(conn, seg)) != TCP_PASS || (v = check_rst(conn, seg)) != TCP_PASS)
		return v;
	return check_syn(conn, seg);
}

enum tcp_verdict tcp_check_ack(struct harp_conn *conn, const struct tcp_segment *seg)
{
	/* RFC 5961 section 5.2: "((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT)", else challenge.
	 * No ACK before our first byte is valid. Otherwise an attacker that completed a handshake
	 * with a forged address by guessing could choose from a window of valid ACKs
	 * (draft-ietf-tcpm-tcp-ghost-acks). */
	uint32_t behind = conn->snd_wnd_max_bytes;

	if (conn->acct.bytes_acked < behind)
		behind = conn->snd.una_seq - (conn->iss_seq + 1);
	if (seq_gt(seg->ack, conn->snd.nxt_seq) || seq_lt(seg->ack, conn->snd.una_seq - behind)) {
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
	    seg->opt.tsval != conn->ts.recent)
		return (int32_t)(seg->opt.tsval - conn->ts.recent) > 0;
	return seq_gt(seg->seq, conn->rcv.nxt_seq);
}
