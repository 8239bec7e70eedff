/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_rack.c - loss detection and the tail loss probe: RFC 8985.
 *
 * Theory of operation. RACK: once a segment is delivered, segments sent before it are late. A
 * segment that is late by more than the reordering window is lost, whether it was sent once or
 * retransmitted. The RFC's loop visits all outstanding segments in order of transmission. This file
 * uses two cursors instead.
 *
 * Segments sent once are in sequence order. rack_next walks over them once and stops at the first
 * one that is not yet lost, because all later ones were sent later.
 *
 * scoreboard.resent has the retransmissions in order of time; entries are removed at the front. An
 * entry is stale if its segment was acknowledged, SACKed or marked since. Sequence numbers and
 * marks show that, because a frame is freed only when SND.UNA has passed it; part of the head may
 * remain. If the array was full, a walk collects the missing retransmissions once it is empty. The
 * clock is that of a poll: segments of one poll have equal times and are ordered by sequence
 * number.
 *
 * Tail loss probe: when nothing is marked and no ACK has arrived for two round trips, a new segment
 * or a retransmission of the last one makes the peer report missing data. So the loss of a tail is
 * repaired without a timeout. Section 7.4.2 detects whether the probe itself repaired a loss.
 */
#include "transport/tcp.h"

#define RACK_WINDOW_PERSIST 16u /* recoveries without DSACK before the window is reset */
#define RACK_MULT_MAX 200u

/* RFC 8985 section 6.2: RACK_sent_after(). */
static bool rack_sent_after(const struct harp_conn *conn, const struct frame *seg)
{
	if (conn->rack.sent_ns != seg->sent_ns)
		return conn->rack.sent_ns > seg->sent_ns;
	return seq_gt(conn->rack.end_seq, seg->seq + seg_space(seg));
}

void tcp_rack_delivered(struct harp_conn *conn, const struct frame *seg, struct tcp_ack *a)
{
	uint64_t now_ns = conn->tcp->now_ns;
	uint64_t rtt_ns = now_ns > seg->sent_ns ? now_ns - seg->sent_ns : 1;
	uint32_t end = seg->seq + seg_space(seg);

	if (seg->flags & FRAME_RETRANS) {
		uint32_t tsval = (uint32_t)(seg->sent_ns / TCP_NS_PER_MS) + conn->ts.offset;

		a->resent = true;
		/* Section 6.2 step 2: ignores a segment whose original may have been delivered. */
		if ((conn->options & HARP_TCPI_TIMESTAMPS) && (int32_t)(conn->ts.echo - tsval) < 0)
			return;
		if (rtt_ns < conn->rtt.min_ns)
			return;
	} else {
		/* Section 6.2 step 3: reordering is seen if "Segment.end_seq < RACK.fack AND
		 * Segment.retransmitted is FALSE". */
		if (seq_lt(end, a->fack_seq))
			conn->rack.reordering = 1;
		if (seg->sent_ns > a->sent_ns)
			a->sent_ns = seg->sent_ns;
		if (seq_leq(end, conn->loss.recover_seq))
			a->original = true;
	}
	if (seq_gt(end, conn->rack.fack_seq))
		conn->rack.fack_seq = end;
	conn->rack.rtt_ns = rtt_ns;
	if (seg->sent_ns > conn->rack.sent_ns ||
	    (seg->sent_ns == conn->rack.sent_ns && seq_gt(end, conn->rack.end_seq))) {
		conn->rack.sent_ns = seg->sent_ns;
		conn->rack.end_seq = end;
	}
}

/* ------------------------------------------------------------------------------------------------
 * The reordering window: section 6.2, step 4.
 */
void tcp_rack_adapt(struct harp_conn *conn, bool dsack, bool recovered)
{
	if (!seq_awaited(conn->rack.dsack_seq, conn->snd.una_seq, conn->snd.nxt_seq))
		conn->rack.dsack_round = 0;
	if (dsack && !conn->rack.dsack_round) {
		conn->rack.dsack_round = 1;
		conn->rack.dsack_seq = conn->snd.nxt_seq;
		conn->rack.persist = RACK_WINDOW_PERSIST;
		if (conn->rack.mult < RACK_MULT_MAX)
			conn->rack.mult++;
	} else if (recovered && conn->rack.persist > 0 && --conn->rack.persist == 0) {
		conn->rack.mult = 0;
	}
}

uint64_t tcp_rack_window_ns(const struct harp_conn *conn)
{
	uint64_t window_ns = (conn->rack.mult + 1u) * (conn->rtt.min_ns / 4);

	if (!conn->rack.reordering &&
	    (conn->recovery == TCP_RECOVERY_FAST || conn->recovery == TCP_RECOVERY_RTO ||
	     conn->loss.sacked_segs >= TCP_DUPACK_THRESHOLD))
		return 0;
	return window_ns < conn->rtt.srtt_ns ? window_ns : conn->rtt.srtt_ns;
}

/* ------------------------------------------------------------------------------------------------
 * Detection: section 6.2, step 5.
 */
void tcp_rack_resent(struct harp_conn *conn, const struct frame *seg)
{
	struct tcp_scoreboard *b = &conn->scoreboard;
	uint32_t at;

	if (b->resent_count == TCP_RETRANS_ENTRIES) {
		b->resent_untracked = true;
		return;
	}
	at = (b->resent_first + b->resent_count++) % TCP_RETRANS_ENTRIES;
	b->resent[at].seq = seg->seq;
	b->resent[at].frame = seg->index;
}

void tcp_rack_restart(struct harp_conn *conn)
{
	conn->loss.rack_next = NULL;
	conn->scoreboard.resent_count = 0;
	conn->scoreboard.resent_untracked = true;
}

/* Collects retransmissions that the array lacks in sequence order, which is nearly the order of
 * time. */
static void rack_track(struct harp_conn *conn)
{
	struct tcp_scoreboard *b = &conn->scoreboard;

	b->resent_untracked = false;
	for (const struct frame *seg = conn->sndq.head; seg && seg != conn->sndq.unsent;
	     seg = seg->next) {
		conn->tcp->stats->tcp_sack_walked++;
		if ((seg->flags & FRAME_RETRANS) && !(seg->tcp_flags & SEG_MARKS))
			tcp_rack_resent(conn, seg);
		if (b->resent_untracked)
			break;
	}
}

/* True if the segment is lost. If it is late, but within the reordering window, lowers *deadline_ns
 * to the time when it will be lost. */
static bool rack_is_lost(const struct harp_conn *conn, const struct frame *seg, uint64_t window_ns,
			 uint64_t *deadline_ns)
{
	uint64_t due_ns = seg->sent_ns + conn->rack.rtt_ns + window_ns;

	if (!rack_sent_after(conn, seg))
		return false;
	if (due_ns <= conn->tcp->now_ns)
		return true;
	if (due_ns < *deadline_ns)
		*deadline_ns = due_ns;
	return false;
}

static bool rack_detect_originals(struct harp_conn *conn, uint64_t window_ns, uint64_t *deadline_ns)
{
	struct frame *seg = conn->loss.rack_next;
	bool lost = false;

	if (!seg || seq_lt(conn->loss.rack_next_seq, conn->snd.una_seq))
		seg = conn->sndq.head;
	for (; seg && seg != conn->sndq.unsent; seg = seg->next) {
		conn->tcp->stats->tcp_sack_walked++;
		conn->loss.rack_next = seg;
		conn->loss.rack_next_seq = seg->seq;
		if ((seg->tcp_flags & SEG_MARKS) || (seg->flags & FRAME_RETRANS))
			continue;
		if (!rack_is_lost(conn, seg, window_ns, deadline_ns))
			break;
		tcp_sack_mark_lost(conn, seg);
		lost |= !tcp_mtu_probe_lost(conn, seg);
	}
	return lost;
}

/* For an entry below SND.UNA: true if it is the partly acknowledged head. */
static bool rack_is_remainder(const struct harp_conn *conn, const struct frame *seg)
{
	return seg == conn->sndq.head && seg != conn->sndq.unsent && (seg->flags & FRAME_RETRANS);
}

static bool rack_detect_resent(struct harp_conn *conn, uint64_t window_ns, uint64_t *deadline_ns)
{
	struct tcp_scoreboard *b = &conn->scoreboard;
	bool lost = false;

	if (b->resent_count == 0 && b->resent_untracked)
		rack_track(conn);
	for (; b->resent_count > 0; b->resent_count--) {
		uint32_t at = b->resent_first;
		struct frame *seg = &conn->tcp->pool->frames[b->resent[at].frame];
		bool stale = seq_lt(b->resent[at].seq, conn->snd.una_seq) &&
			     !rack_is_remainder(conn, seg);

		if (!stale && !(seg->tcp_flags & SEG_MARKS)) {
			if (!rack_is_lost(conn, seg, window_ns, deadline_ns))
				break;
			tcp_sack_mark_lost(conn, seg);
			lost = true;
		}
		b->resent_first = (at + 1) % TCP_RETRANS_ENTRIES;
	}
	return lost;
}

bool tcp_rack_detect(struct harp_conn *conn)
{
	uint64_t window_ns = tcp_rack_window_ns(conn), deadline_ns = TCP_NEVER_NS;
	bool lost = rack_detect_originals(conn, window_ns, &deadline_ns);

	lost |= rack_detect_resent(conn, window_ns, &deadline_ns);
	tcp_timer_loss(conn, deadline_ns);
	return lost;
}

void tcp_rack_timeout(struct harp_conn *conn)
{
	if (conn_flight_bytes(conn) > 0 && tcp_rack_detect(conn))
		tcp_loss_found(conn);
}

/* ------------------------------------------------------------------------------------------------
 * The tail loss probe: section 7.
 */
void tcp_rack_probe_timeout(struct harp_conn *conn)
{
	if (conn_flight_bytes(conn) == 0 || !conn_loss_is_quiet(conn))
		return;
	tcp_loss_undo_end(conn);
	conn->flags |= CONN_TLP_PENDING;
	tcp_tx_ready(conn);
}

struct frame *tcp_rack_probe(struct harp_conn *conn)
{
	struct frame *seg = conn->sndq.unsent;
	uint32_t edge = conn->snd.una_seq + conn->snd.wnd_bytes;

	conn->flags &= ~(uint32_t)CONN_TLP_PENDING;
	if (conn->loss_open || conn_flight_bytes(conn) == 0)
		return NULL;
	/* Section 7.3: new data if the receiver's window allows it, regardless of cwnd. */
	if (seg && seg_bytes(seg) <= conn->snd.mss_bytes &&
	    seq_leq(seg->seq + seg_space(seg), edge))
		return seg;
	return tcp_sack_find(conn, conn->snd.nxt_seq - 1);
}

void tcp_rack_probed(struct harp_conn *conn, bool is_retrans)
{
	conn->tlp.out = 1;
	conn->tlp.is_retrans = is_retrans;
	conn->tlp.end_seq = conn->snd.nxt_seq;
	conn->loss_open = 1;
	conn->deadline.probe_ns = TCP_NEVER_NS;
	conn->acct.tlp_probes++;
	conn->tcp->stats->tcp_tlp_probes++;
	tcp_timer_resent(conn);
}

bool tcp_rack_probe_acked(struct harp_conn *conn, const struct tcp_ack *a)
{
	if (!conn->tlp.out || seq_lt(a->ack, conn->tlp.end_seq))
		return false;
	if (!conn->tlp.is_retrans || a->dsack_tlp || (a->dup && !a->sack)) {
		/* The probe was new data or a redundant copy, so nothing was lost. */
		conn->tlp.out = 0;
		return false;
	}
	if (a->ack == conn->tlp.end_seq)
		return false; /* a DSACK may still arrive */
	conn->tlp.out = 0;
	return true;
}
