/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_dupack.c - what duplicate ACKs tell where the peer has no SACK: RFC 6582, 3042.
 *
 * Three of them say that the oldest segment is lost, and in the repair each partial ACK says it of the next one. A
 * duplicate ACK takes one segment's bytes off what is in flight (dup_acked_bytes), whichever it was; so limited
 * transmit is the same comparison as everything else. What an ACK then covers had in part been told of already.
 */
#include "transport/tcp.h"

void tcp_dupack_forget(struct harp_conn *conn)
{
	conn->dup_acks = 0;
	conn->loss.dup_acked_bytes = 0;
}

static void dupack_mark_head(struct harp_conn *conn)
{
	if (conn->snd_head && conn->snd_head != conn->snd_unsent &&
	    !(conn->snd_head->tcp_flags & SEG_MARKS))
		tcp_sack_mark_lost(conn, conn->snd_head);
	conn->loss.rtx_force = 1;
}

/*
 * Section 3.2 step 2 begins no repair before an ACK of more than recover, as the copies of what was sent again make duplicates
 * of recover itself. But what was lost right behind it would then wait for the timeout each time: there are no more
 * copies than segments sent again, so it takes so many duplicates more.
 */
static bool dupack_may_recover(const struct harp_conn *conn)
{
	uint32_t copies = conn->loss.recover_seq == conn->snd_una_seq ? conn->loss.resent_segs : 0;

	return conn->dup_acks >= TCP_DUPACK_THRESHOLD + copies &&
	       !seq_awaited(conn->loss.recover_seq, conn->snd_una_seq, conn->snd_nxt_seq);
}

void tcp_dupack_count(struct harp_conn *conn, struct tcp_ack *a)
{
	uint32_t most = conn_flight_bytes(conn), room;

	/* RFC 5681 section 3.2 (4): no more than was outstanding when recovery began, or a peer could draw
	 * on new data for ever by duplicates of one ACK (Savage et al. 1999). */
	if (conn->recovery == TCP_RECOVERY_FAST &&
	    conn->loss.recover_seq - conn->snd_una_seq < most)
		most = conn->loss.recover_seq - conn->snd_una_seq;
	room = most > conn->loss.dup_acked_bytes ? most - conn->loss.dup_acked_bytes : 0;

	if (conn->recovery == TCP_RECOVERY_RTO)
		return;
	if (conn->dup_acks < UINT8_MAX)
		conn->dup_acks++;
	a->delivered_bytes = conn->snd_mss_bytes < room ? conn->snd_mss_bytes : room;
	conn->loss.dup_acked_bytes += a->delivered_bytes;
	if (conn->recovery != TCP_RECOVERY_FAST && conn->dup_acks >= TCP_DUPACK_THRESHOLD &&
	    !tcp_mtu_explains(conn) &&
	    (conn->recovery == TCP_RECOVERY_CWR || dupack_may_recover(conn))) {
		dupack_mark_head(conn);
		a->lost = !tcp_mtu_probe_lost(conn, conn->snd_head);
	}
}

void tcp_dupack_advance(struct harp_conn *conn, struct tcp_ack *a)
{
	uint32_t known;

	if (conn->recovery != TCP_RECOVERY_FAST) {
		known = conn->loss.dup_acked_bytes;
		a->delivered_bytes = a->acked_bytes > known ? a->acked_bytes - known : 0;
		tcp_dupack_forget(conn);
		return;
	}
	/* A partial ACK: of what it covers all but the segment sent again had been reported. */
	known = a->acked_bytes > conn->snd_mss_bytes ? a->acked_bytes - conn->snd_mss_bytes : 0;
	if (known > conn->loss.dup_acked_bytes)
		known = conn->loss.dup_acked_bytes;
	conn->loss.dup_acked_bytes -= known;
	/* Duplicates may have claimed all of what was in flight, the lost segment too. */
	if (conn->loss.dup_acked_bytes > conn_flight_bytes(conn))
		conn->loss.dup_acked_bytes = conn_flight_bytes(conn);
	a->delivered_bytes = a->acked_bytes - known;
	dupack_mark_head(conn);
	tcp_mtu_probe_lost(conn, conn->snd_head);
}
