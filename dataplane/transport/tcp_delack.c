/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_delack.c - delayed ACKs: decides when received data is acknowledged.
 *
 * Theory of operation. A connection with a pending ACK is on ack_list. An outgoing data segment
 * carries the ACK (tcp_out_acked()). After the data of a poll, tcp_delack_phase() sends the ACKs
 * that are due.
 *
 * An ACK waits for the poll after the one in which it became due. If the application replies at
 * once, its data carries the ACK or is sent with it; a separate ACK costs a kick of the NIC and
 * delays the application's wakeup. The ACK does not wait if two full-sized segments are
 * unacknowledged (RFC 9293 section 3.8.6.3) and the last one did not end the sender's data (PSH),
 * or if CONN_ACK_NOW is set.
 *
 * In the middle of a stream, ACKs are held (CONN_ACK_HELD). A fast poller would otherwise send one
 * for every two or three segments; each costs about as much as a data segment and delays the next
 * one. A hold ends after TCP_ACK_EVERY_SEGMENTS segments (an ACK for every second one, RFC 9293
 * section 3.8.6.3, is a SHOULD), at its deadline, or with a segment that ends the sender's data:
 * see delack_hold_ns(). Segments of one poll get one ACK, unless they have more than
 * TCP_ACK_BURST_BYTES.
 */
#include "transport/tcp.h"

#include <errno.h>

void tcp_delack_request(struct harp_conn *conn, bool now)
{
	if (now)
		conn->flags |= CONN_ACK_NOW;
	if (!(conn->flags & CONN_ACK_PENDING) || (conn->flags & CONN_ACK_HELD)) {
		conn->flags &= ~(uint32_t)CONN_ACK_HELD;
		conn->flags |= CONN_ACK_PENDING;
		conn->delack.poll = conn->tcp->poll_count;
	}
	if (!conn->on_list.ack) {
		TAILQ_INSERT_TAIL(&conn->tcp->ack_list, conn, link.ack);
		conn->tcp->acks_pending++;
		conn->on_list.ack = 1;
	}
}

static void delack_hold(struct harp_conn *conn, uint64_t hold_ns)
{
	uint64_t due_ns = conn->tcp->now_ns + hold_ns;

	/* Never delays an ACK that is already due, or held for a shorter time. */
	if (conn->flags & CONN_ACK_PENDING &&
	    (!(conn->flags & CONN_ACK_HELD) || !conn->opts.delayed_ack_ns ||
	     conn->delack.due_ns <= due_ns))
		return;
	tcp_delack_request(conn, false);
	conn->flags |= CONN_ACK_HELD;
	conn->delack.due_ns = due_ns;
}

/*
 * Maximum delay of an ACK in a slow stream. The ACK waits for a second segment (RFC 5681 section
 * 4.2: "an ACK SHOULD be generated for at least every second full-sized segment"). The reason is
 * fairness, not cost: with an ACK per segment, a sender refills each free place of a full queue,
 * while flows acknowledged in pairs need two places and lose. Four Linux flows got a quarter of the
 * path next to four flows of this stack. A single PSH is no hint, because other stacks set it at
 * the end of every call. Two in a row are short messages for which an application may wait. A
 * segment larger than the MSS was coalesced (GRO, LRO, a local sender): it counts as at least two,
 * and may fill a small window.
 */
static uint64_t delack_pair_ns(struct harp_conn *conn, bool pushed, bool coalesced)
{
	bool is_message = pushed && conn->delack.full_pushed;
	/* Segments arrive in clusters: some gaps are much longer than the typical one. */
	uint64_t hold_ns = 8u * conn->delack.full_gap_ns;

	conn->delack.full_pushed = pushed;
	if (is_message || coalesced || conn->rcv.full_segs_unacked >= 2 ||
	    conn->tcp->acks_pending >= TCP_ACKS_HELD_MAX)
		return 0;
	return hold_ns < TCP_ACK_HOLD_SLOW_NS_MAX ? hold_ns : TCP_ACK_HOLD_SLOW_NS_MAX;
}

/* harp_tcp_options.delayed_ack_ns, but "at least every 2*RMSS bytes" (RFC 5681 section 4.2). */
static uint64_t delack_short_ns(const struct harp_conn *conn)
{
	if (conn->rcv.nxt_seq - conn->rcv.acked_seq >= 2u * conn->rcv.mss_bytes ||
	    conn->tcp->acks_pending >= TCP_ACKS_HELD_MAX)
		return 0;
	return conn->opts.delayed_ack_ns;
}

/*
 * Maximum delay of this segment's ACK:
 *	0			if the sender may be waiting for our window
 *	delayed_ack_ns		after a short segment
 *	delack_pair_ns()	in a slow stream
 *	0			after PSH, the end of the sender's data
 *	TCP_ACK_HOLD_NS		at first, because a sender in slow start may have used up its window
 *	TCP_ACK_HOLD_BULK_NS	in a long stream
 */
static uint64_t delack_hold_ns(struct harp_conn *conn, const struct tcp_segment *seg, uint32_t len)
{
	if (conn_rcv_wnd_bytes(conn) <= 4u * TCP_ACK_EVERY_SEGMENTS * conn->rcv.mss_bytes)
		return 0;
	if (len + TCP_OPTIONS_TIMESTAMP_BYTES < conn->rcv.mss_bytes)
		return delack_short_ns(conn);
	if (2 * conn->delack.full_gap_ns > TCP_ACK_HOLD_BULK_NS)
		return delack_pair_ns(conn, seg->flags & TCP_PSH, len > conn->rcv.mss_bytes);
	if (seg->flags & TCP_PSH)
		return 0;
	if (conn->delack.bulk_segs >= TCP_BULK_SEGMENTS)
		return TCP_ACK_HOLD_BULK_NS;
	conn->delack.bulk_segs++;
	return TCP_ACK_HOLD_NS;
}

/* Tracks the interval of full-sized segments. A pause counts as at most twice the typical interval
 * (plus a constant). */
static void delack_gap(struct harp_conn *conn)
{
	uint32_t now_ns = (uint32_t)conn->tcp->now_ns, gap_ns = now_ns - conn->delack.full_ns;
	uint32_t gap_ns_max = 2 * conn->delack.full_gap_ns + TCP_ACK_HOLD_NS;

	if (gap_ns > gap_ns_max)
		gap_ns = gap_ns_max;
	conn->delack.full_ns = now_ns;
	conn->delack.full_gap_ns += gap_ns / 8u - conn->delack.full_gap_ns / 8u;
	if (conn->delack.full_gap_ns > TCP_ACK_HOLD_SLOW_NS_MAX)
		conn->delack.full_gap_ns = TCP_ACK_HOLD_SLOW_NS_MAX;
}

void tcp_delack_received(struct harp_conn *conn, const struct tcp_segment *seg, uint32_t len)
{
	uint64_t hold_ns;

	if (len >= conn->rcv.mss_bytes - TCP_OPTIONS_TIMESTAMP_BYTES) {
		conn->rcv.full_segs_unacked =
			(uint8_t)(conn->rcv.full_segs_unacked + 1u + len / 65536u);
		delack_gap(conn);
	}
	hold_ns = delack_hold_ns(conn, seg, len);
	conn->delack.last_pushed = (seg->flags & TCP_PSH) != 0;
	if (hold_ns)
		delack_hold(conn, hold_ns);
	else
		tcp_delack_request(conn, false);
	if (conn->rcv.full_segs_unacked >= TCP_ACK_EVERY_SEGMENTS &&
	    conn->rcv.nxt_seq - conn->rcv.acked_seq >= TCP_ACK_BURST_BYTES)
		(void)tcp_out_ack(conn);
	if (!(conn->flags & CONN_READ_SHUT))
		tcp_conn_event(conn, HARP_EVENT_READABLE);
}

static bool delack_is_due(const struct harp_conn *conn)
{
	if (conn->flags & CONN_ACK_NOW)
		return true;
	if (conn->flags & CONN_ACK_HELD)
		return conn->rcv.full_segs_unacked >= TCP_ACK_EVERY_SEGMENTS ||
		       conn->tcp->now_ns >= conn->delack.due_ns;
	return conn->delack.poll != conn->tcp->poll_count ||
	       (conn->rcv.full_segs_unacked >= 2 && !conn->delack.last_pushed);
}

unsigned tcp_delack_phase(struct tcp *tcp)
{
	struct harp_conn *conn, *next;
	unsigned sent = 0;

	for (conn = TAILQ_FIRST(&tcp->ack_list); conn; conn = next) {
		int err;

		next = TAILQ_NEXT(conn, link.ack);
		if (!delack_is_due(conn))
			continue;
		err = tcp_out_ack(conn);
		if (err == -ENOBUFS) {
			tcp->nic_full = true;
			break;
		}
		if (err) {
			/* The peer retransmits, which requests another ACK. */
			tcp_out_acked(conn);
			continue;
		}
		sent++;
	}
	return sent;
}

uint64_t tcp_delack_next_ns(const struct tcp *tcp)
{
	const struct harp_conn *conn;
	uint64_t next_ns = TCP_NEVER_NS;

	TAILQ_FOREACH(conn, &tcp->ack_list, link.ack)
	{
		if (!(conn->flags & CONN_ACK_HELD) || (conn->flags & CONN_ACK_NOW))
			return tcp->now_ns;
		if (conn->delack.due_ns < next_ns)
			next_ns = conn->delack.due_ns;
	}
	return next_ns;
}
