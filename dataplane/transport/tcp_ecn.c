/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_ecn.c - explicit congestion notification: RFC 3168, and the receiving half of DCTCP (RFC
 * 8257).
 *
 * Theory of operation. Both ends agree in the handshake. New data is then sent as ECT(0); SYNs,
 * pure ACKs, probes and retransmissions do not (RFC 3168 section 6.1). A router marks a packet CE
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
	bool asks = conn->opts.ecn == HARP_ECN_REQUEST ||
		    (conn->opts.ecn == HARP_ECN_DEFAULT && ecn_is_dctcp(conn));

	if (reply)
		return conn->flags & CONN_ECN_IN ? TCP_ECE : 0;
	/* Section 6.1.1.1: a SYN that offered ECN and got no answer may have been dropped for that
	 * reason. */
	if (asks && conn->snd.nxt_seq == conn->iss_seq) {
		conn->flags |= CONN_ECN_OFFERED;
		return TCP_ECE | TCP_CWR;
	}
	conn->flags |= CONN_ECN_PLAIN;
	return 0;
}

void tcp_ecn_syn_in(struct harp_conn *conn, uint8_t flags)
{
	uint8_t said = flags & (TCP_ECE | TCP_CWR);

	if (flags & TCP_ACK) {
		/* Only ECE: a peer that reflects unknown bits would send both. */
		if (said != TCP_ECE || !(conn->flags & CONN_ECN_OFFERED))
			return;
		conn->flags |= CONN_ECN_IN;
	} else if (said == (TCP_ECE | TCP_CWR) && conn->opts.ecn != HARP_ECN_OFF &&
		   !(conn->flags & CONN_ECN_PLAIN)) {
		conn->flags |= CONN_ECN_IN;
	}
	/* "A host MUST NOT set ECT on data packets unless it ... has sent no non-ECN-setup SYN". */
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

/* Output. */
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

/* Input. */
void tcp_ecn_data_in(struct harp_conn *conn, const struct tcp_segment *seg)
{
	bool marked = (seg->in->tos & ECN_MASK) == ECN_CE;
	bool before = conn->flags & CONN_ECN_ECHO;

	if (!(conn->flags & CONN_ECN_IN))
		return;
	if (marked) {
		conn->tcp->stats->tcp_ecn_ce_in++;
		conn->acct.ecn_ce_in++;
	}
	if (ecn_is_dctcp(conn)) {
		if (marked == before)
			return;
		if (conn->rcv.acked_seq != conn->rcv.nxt_seq)
			(void)tcp_out_ack(conn);
		conn->flags ^= CONN_ECN_ECHO;
		tcp_delack_request(conn, true);
		return;
	}
	/* A segment may have both: the sender has responded, and there is a new mark. */
	if (seg->flags & TCP_CWR)
		conn->flags &= ~(uint32_t)CONN_ECN_ECHO;
	if (marked) {
		conn->flags |= CONN_ECN_ECHO;
		if (!before)
			tcp_delack_request(conn, true);
	}
}

void tcp_ecn_reduced(struct harp_conn *conn)
{
	if (!(conn->options & HARP_TCPI_ECN))
		return;
	/* Section 6.1.2: "reduces its congestion window for any reason". */
	conn->flags |= CONN_ECN_CWR;
	conn->ecn.reduced_seq = conn->snd.nxt_seq;
}

void tcp_ecn_echo_in(struct harp_conn *conn)
{
	conn->tcp->stats->tcp_ecn_ece_in++;
	conn->acct.ecn_ece_in++;
	/* Once per window of data: all data sent since the last reduction must be acknowledged
	 * first. After half of the sequence space without a reduction, reduced_seq is ahead and
	 * meaningless. */
	if (seq_leq(conn->snd.una_seq, conn->ecn.reduced_seq) &&
	    seq_leq(conn->ecn.reduced_seq, conn->snd.nxt_seq))
		return;
	tcp_loss_ecn(conn);
}
