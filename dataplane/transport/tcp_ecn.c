/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_ecn.c - explicit congestion notification: RFC 3168, and the receiver's half of DCTCP (RFC
 * 8257).
 *
 * Theory of operation. The handshake negotiates ECN. New data is then sent as ECT(0); SYNs, pure
 * ACKs, probes and retransmissions are not (RFC 3168 section 6.1). A router marks a packet CE
 * instead of dropping it, and the receiver sends ECE
 *	- until the sender sends CWR (RFC 3168 section 6.1.3); or,
 *	- with DCTCP, on the ACKs of marked segments only (RFC 8257 section 3.2): before the CE
 *	  state changes, pending data is acknowledged with the old state, including delayed ACKs.
 * The sender reduces its window once per window of data, and sends CWR on the next new data after
 * any reduction. DCTCP is not negotiated: both ends must be configured for it.
 *
 * Segments with marks leave the fast path; unmarked ones do not, even with ECN.
 */
#include "transport/tcp.h"

#define ECN_MASK 3u
#define ECN_CE 3u
#define ECN_ECT0 2u

static bool ecn_is_dctcp(const struct harp_conn *conn)
{
	return conn->cc.ops == &cc_dctcp;
}

/* ------------------------------------------------------------------------------------------------
 * The handshake: section 6.1.1.
 */
uint8_t tcp_ecn_syn_out(struct harp_conn *conn, bool reply)
{
	bool offer = conn->opts.ecn == HARP_ECN_REQUEST ||
		     (conn->opts.ecn == HARP_ECN_DEFAULT && ecn_is_dctcp(conn));

	if (reply)
		return conn->flags & CONN_ECN_IN ? TCP_ECE : 0;
	/* Section 6.1.1.1: only the first SYN, because a middlebox may drop SYNs that offer ECN. */
	if (offer && conn->snd.nxt_seq == conn->iss_seq) {
		conn->flags |= CONN_ECN_OFFERED;
		return TCP_ECE | TCP_CWR;
	}
	conn->flags |= CONN_ECN_PLAIN;
	return 0;
}

void tcp_ecn_syn_in(struct harp_conn *conn, uint8_t flags)
{
	uint8_t ecn_flags = flags & (TCP_ECE | TCP_CWR);

	if (flags & TCP_ACK) {
		/* Not CWR, too: a peer that reflects unknown bits sends both. */
		if (ecn_flags != TCP_ECE || !(conn->flags & CONN_ECN_OFFERED))
			return;
		conn->flags |= CONN_ECN_IN;
	} else if (ecn_flags == (TCP_ECE | TCP_CWR) && conn->opts.ecn != HARP_ECN_OFF &&
		   !(conn->flags & CONN_ECN_PLAIN)) {
		conn->flags |= CONN_ECN_IN;
	}
	/* Section 6.1.1: no ECT on data packets after a non-ECN-setup SYN. */
	if ((conn->flags & (CONN_ECN_IN | CONN_ECN_PLAIN)) == CONN_ECN_IN)
		conn->options |= HARP_TCPI_ECN;
}

void tcp_ecn_syn_again(struct harp_conn *conn, uint8_t flags)
{
	if ((flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR))
		return;
	/* The peer has disabled ECN and will not set ECT. */
	conn->flags &= ~(uint32_t)CONN_ECN_IN;
	conn->options &= (uint8_t)~HARP_TCPI_ECN;
}

uint8_t tcp_ecn_out(const struct harp_conn *conn, const struct frame *f, uint32_t payload_len,
		    uint8_t *flags)
{
	if ((conn->flags & CONN_ECN_ECHO) && (*flags & (TCP_ACK | TCP_RST)) == TCP_ACK)
		*flags |= TCP_ECE;
	if (payload_len == 0 || (f->flags & FRAME_SENT) || !(conn->options & HARP_TCPI_ECN))
		return 0;
	if (conn->flags & CONN_ECN_CWR)
		*flags |= TCP_CWR;
	return ECN_ECT0;
}

void tcp_ecn_data_in(struct harp_conn *conn, const struct tcp_segment *seg)
{
	bool marked = (seg->in->tos & ECN_MASK) == ECN_CE;
	bool echoing = conn->flags & CONN_ECN_ECHO;

	if (!(conn->flags & CONN_ECN_IN))
		return;
	if (marked) {
		conn->tcp->stats->tcp_ecn_ce_in++;
		conn->acct.ecn_ce_in++;
	}
	if (ecn_is_dctcp(conn)) {
		if (marked == echoing)
			return;
		if (conn->rcv.acked_seq != conn->rcv.nxt_seq)
			(void)tcp_out_ack(conn);
		conn->flags ^= CONN_ECN_ECHO;
		tcp_delack_request(conn, true);
		return;
	}
	/* A segment with CWR may have a new mark. */
	if (seg->flags & TCP_CWR)
		conn->flags &= ~(uint32_t)CONN_ECN_ECHO;
	if (marked) {
		conn->flags |= CONN_ECN_ECHO;
		if (!echoing)
			tcp_delack_request(conn, true);
	}
}

void tcp_ecn_reduced(struct harp_conn *conn)
{
	if (!(conn->options & HARP_TCPI_ECN))
		return;
	/* Section 6.1.2: CWR after the sender "reduces its congestion window for any reason". */
	conn->flags |= CONN_ECN_CWR;
	conn->ecn.reduced_seq = conn->snd.nxt_seq;
}

void tcp_ecn_echo_in(struct harp_conn *conn)
{
	conn->tcp->stats->tcp_ecn_ece_in++;
	conn->acct.ecn_ece_in++;
	/* Once per window of data: all data sent since the last reduction must be acknowledged
	 * first. If reduced_seq is ahead of SND.NXT, it is meaningless: SND.UNA has passed it by
	 * half of the sequence space. */
	if (seq_leq(conn->snd.una_seq, conn->ecn.reduced_seq) &&
	    seq_leq(conn->ecn.reduced_seq, conn->snd.nxt_seq))
		return;
	tcp_loss_ecn(conn);
}
