/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_dupack.c - loss detection by duplicate ACKs, for peers without SACK: RFC 6582, 3042.
 *
 * Three duplicates mark the oldest segment lost; during recovery each partial ACK marks the next
 * one. A duplicate ACK removes one segment, not known which, from the bytes in flight
 * (dup_acked_bytes), so limited transmit (RFC 3042) needs no special case. A later cumulative ACK
 * covers bytes that duplicates have already reported.
 */
#include "transport/tcp.h"

void tcp_dupack_forget(struct harp_conn *conn)
{
	conn->snd.dup_acks = 0;
	conn->loss.dup_acked_bytes = 0;
}

static void dupack_mark_head(struct harp_conn *conn)
{
	if (conn->sndq.head && conn->sndq.head != conn->sndq.unsent &&
	    !(conn->sndq.head->tcp_flags & SEG_MARKS))
		tcp_sack_mark_lost(conn, conn->sndq.head);
	conn->loss.rtx_force = 1;
}

/*
 * RFC 6582 section 3.2 step 2 starts no recovery before an ACK beyond recover, because redundant
 * retransmissions cause duplicate ACKs of recover itself. A loss right after recover would then
 * always wait for the timeout. Instead, this code requires additional duplicates, as many as
 * segments were retransmitted.
 */
static bool dupack_may_recover(const struct harp_conn *conn)
{
	uint32_t copies = conn->loss.recover_seq == conn->snd.una_seq ? conn->loss.resent_segs : 0;

	return conn->snd.dup_acks >= TCP_DUPACK_THRESHOLD + copies &&
	       !seq_awaited(conn->loss.recover_seq, conn->snd.una_seq, conn->snd.nxt_seq);
}

void tcp_dupack_count(struct harp_conn *conn, struct tcp_ack *a)
{
	uint32_t limit = conn_flight_bytes(conn), room;

	/* RFC 5681 section 3.2 (4): at most the bytes that were outstanding when recovery began.
	 * Otherwise a peer could pull new data endlessly with duplicates of one ACK (Savage et al.
	 * 1999). */
	if (conn->recovery == TCP_RECOVERY_FAST &&
	    conn->loss.recover_seq - conn->snd.una_seq < limit)
		limit = conn->loss.recover_seq - conn->snd.una_seq;
	room = limit > conn->loss.dup_acked_bytes ? limit - conn->loss.dup_acked_bytes : 0;

	if (conn->recovery == TCP_RECOVERY_RTO)
		return;
	if (conn->snd.dup_acks < UINT8_MAX)
		conn->snd.dup_acks++;
	a->delivered_bytes = conn->snd.mss_bytes < room ? conn->snd.mss_bytes : room;
	conn->loss.dup_acked_bytes += a->delivered_bytes;
	if (conn->recovery != TCP_RECOVERY_FAST && conn->snd.dup_acks >= TCP_DUPACK_THRESHOLD &&
	    !tcp_mtu_explains(conn) &&
	    (conn->recovery == TCP_RECOVERY_CWR || dupack_may_recover(conn))) {
		dupack_mark_head(conn);
		a->lost = !tcp_mtu_probe_lost(conn, conn->sndq.head);
	}
}

void tcp_dupack_advance(struct harp_conn *conn, struct tcp_ack *a)
{
	uint32_t reported;

	if (conn->recovery != TCP_RECOVERY_FAST) {
		reported = conn->loss.dup_acked_bytes;
		a->delivered_bytes = a->acked_bytes > reported ? a->acked_bytes - reported : 0;
		tcp_dupack_forget(conn);
		return;
	}
	/* A partial ACK: duplicates had already reported its bytes, except for the retransmitted
	 * segment. */
	reported = a->acked_bytes > conn->snd.mss_bytes ? a->acked_bytes - conn->snd.mss_bytes : 0;
	if (reported > conn->loss.dup_acked_bytes)
		reported = conn->loss.dup_acked_bytes;
	conn->loss.dup_acked_bytes -= reported;
	/* Duplicates may have covered everything in flight, including the lost segment. */
	if (conn->loss.dup_acked_bytes > conn_flight_bytes(conn))
		conn->loss.dup_acked_bytes = conn_flight_bytes(conn);
	a->delivered_bytes = a->acked_bytes - reported;
	dupack_mark_head(conn);
	tcp_mtu_probe_lost(conn, conn->sndq.head);
}
