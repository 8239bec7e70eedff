/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_reass.c - payload in: in order to the receive queue, else to the reassembly list.
 *
 * Received frames are kept where the NIC put them. Both queues are flat lists of frames in sequence
 * order, each with the sequence number of its first byte; together with the frames that the application
 * holds they count against the connection's budget. When the budget is short the reassembly list gives
 * way to bytes that are in order, farthest first: they can be asked for again. When the pool is short, and
 * a connection has next to nothing of it, those of other connections do as well: else holes that nobody fills
 * could keep everybody's frames. When the receive queue
 * holds half of the budget, small segments are copied into the spare room of its last frame, so that a
 * peer that sends bytes one by one can't use up frames by the window's measure of full segments.
 */
#include "transport/tcp.h"

#include <string.h>

/* A peer that fills holes at random may not have us search for ever (CVE-2018-5390). */
#define REASS_WALK_FRAMES_MAX 1024u

/* ------------------------------------------------------------------------------------------------
 * Frames in and out of the account.
 */
static void reass_release(struct harp_conn *conn, struct frame *f)
{
	conn->rx_frames_held--;
	conn->tcp->stats->frames_tcp_rx--;
	frame_release(conn->tcp->pool, f);
}

void tcp_rcvq_purge(struct harp_conn *conn)
{
	while (conn->rcv_head) {
		struct frame *f = conn->rcv_head;

		conn->rcv_head = f->next;
		reass_release(conn, f);
	}
	conn->rcv_tail = NULL;
	conn->rcv_queued_bytes = 0;
}

void tcp_rcvq_discard(struct harp_conn *conn)
{
	conn->tcp->stats->rx_discarded_bytes += conn->rcv_queued_bytes;
	tcp_rcvq_purge(conn);
	tcp_window_reopen(conn);
}

/* Those with out-of-order data are listed, the longest so first; one whose holes were filled may still be. */
static void reass_list(struct harp_conn *conn)
{
	if (conn->on_reass_list)
		return;
	TAILQ_INSERT_TAIL(&conn->tcp->reassembling, conn, reass_link);
	conn->on_reass_list = 1;
}

static void reass_unlist(struct harp_conn *conn)
{
	if (!conn->on_reass_list)
		return;
	TAILQ_REMOVE(&conn->tcp->reassembling, conn, reass_link);
	conn->on_reass_list = 0;
}

void tcp_reass_purge(struct harp_conn *conn)
{
	while (conn->reass.head) {
		struct frame *f = conn->reass.head;

		conn->reass.head = f->next;
		reass_release(conn, f);
	}
	conn->reass.tail = NULL;
	conn->reass.hint = NULL;
	conn->reass_frames = 0;
	conn->sackout.count = 0;
	reass_unlist(conn);
}

/* The farthest frames of the reassembly list go; false when there are none. An eighth of them at once:
 * the walk to the end, which one small segment can cause, is paid for by as many segments before. */
static bool reass_evict(struct harp_conn *conn)
{
	struct frame *f, **link = &conn->reass.head, *before = NULL;
	uint32_t keep = conn->reass_frames - (conn->reass_frames + 7) / 8;

	if (!conn->reass.head)
		return false;
	for (; keep > 0; keep--) {
		before = *link;
		link = &before->next;
	}
	f = *link;
	*link = NULL;
	conn->reass.tail = before;
	conn->reass.hint = NULL;
	tcp_sackout_evicted(conn, f->seq);
	while (f) {
		struct frame *rest = f->next;

		conn->reass_frames--;
		reass_release(conn, f);
		f = rest;
	}
	return true;
}

/* Of another connection, by turns; false when none has any. */
static bool reass_evict_other(struct tcp *tcp)
{
	struct harp_conn *conn;

	while ((conn = TAILQ_FIRST(&tcp->reassembling)) != NULL) {
		bool evicted = reass_evict(conn);

		reass_unlist(conn);
		if (conn->reass.head)
			reass_list(conn);
		if (evicted)
			return true;
	}
	return false;
}

/* ------------------------------------------------------------------------------------------------
 * Packets, before they are taken apart.
 */
static uint32_t reass_count_frames(const struct frame *f)
{
	uint32_t n = 0;

	for (; f; f = f->frag)
		n += f->pub.len > 0;
	return n;
}

/* Bytes in the first `frames` of a chain. */
static uint32_t reass_count_bytes(const struct frame *f, uint32_t frames)
{
	uint32_t bytes = 0;

	for (; f && frames > 0; f = f->frag) {
		bytes += f->pub.len;
		frames -= f->pub.len > 0;
	}
	return bytes;
}

/* ------------------------------------------------------------------------------------------------
 * The receive queue.
 */
/* Room behind the bytes of a frame, up to the end of its chunk. */
static uint32_t rcvq_spare_bytes(const struct tcp *tcp, const struct frame *f)
{
	const uint8_t *end = frame_chunk(tcp->pool, f) + tcp->pool->frame_size;

	return (uint32_t)(end - (f->pub.data + f->pub.len));
}

/* May len more bytes be copied behind the last ones? */
static bool rcvq_may_coalesce(const struct harp_conn *conn, uint32_t len)
{
	return conn->rcv_tail && conn->rx_frames_held * 2 > conn->rx_frames_budget &&
	       rcvq_spare_bytes(conn->tcp, conn->rcv_tail) >= len;
}

static bool rcvq_coalesce(struct harp_conn *conn, const struct frame *f)
{
	struct tcp *tcp = conn->tcp;
	struct frame *tail = conn->rcv_tail;

	if (!rcvq_may_coalesce(conn, f->pub.len))
		return false;
	/* COPY: small segments merged, so that they don't use a frame each. */
	memcpy(tail->pub.data + tail->pub.len, f->pub.data, f->pub.len);
	tail->pub.len += f->pub.len;
	tcp->stats->rx_coalesced_bytes += f->pub.len;
	return true;
}

/* Takes a frame that begins at rcv_nxt and already counts against the budget. */
static void rcvq_append(struct harp_conn *conn, struct frame *f)
{
	uint32_t len = f->pub.len;

	conn->rcv_nxt_seq += len;
	conn->acct.bytes_received += len;
	if (conn->flags & CONN_READ_SHUT) {
		conn->tcp->stats->rx_discarded_bytes += len;
		reass_release(conn, f);
		return;
	}
	conn->rcv_queued_bytes += len;
	if (rcvq_coalesce(conn, f)) {
		reass_release(conn, f);
		return;
	}
	f->next = NULL;
	f->pub.capacity = len;
	if (conn->rcv_tail)
		conn->rcv_tail->next = f;
	else
		conn->rcv_head = f;
	conn->rcv_tail = f;
}

/* ------------------------------------------------------------------------------------------------
 * The reassembly list: sorted, without overlaps. What came first stays, and of a frame that overlaps it what is new.
 */
/* What of a segment's text is taken: len bytes from seq on, behind `skip` of its packet. */
struct reass_text {
	uint32_t seq, len, skip;
	uint32_t dup_start_seq, dup_end_seq; /* had come before; equal: nothing */
};

/* These bytes of it had. "The receiver reports the first such duplicate segment in a single D-SACK block": RFC 2883
 * section 4.2. */
static void reass_note_duplicate(struct reass_text *t, uint32_t start_seq, uint32_t end_seq)
{
	if (t->dup_start_seq == t->dup_end_seq)
		t->dup_start_seq = start_seq;
	else if (t->dup_end_seq != start_seq)
		return;
	t->dup_end_seq = end_seq;
}

/* Cuts off the bytes before seq, which had come before. False: that was all of it, and the frame is gone. */
static bool reass_cut_old(struct harp_conn *conn, struct frame *f, uint32_t seq,
			  struct reass_text *t)
{
	uint32_t old = seq - f->seq;

	if (old >= f->pub.len) {
		reass_note_duplicate(t, f->seq, f->seq + f->pub.len);
		reass_release(conn, f);
		return false;
	}
	if (old > 0)
		reass_note_duplicate(t, f->seq, seq);
	f->pub.data += old;
	f->pub.len -= old;
	f->seq += old;
	return true;
}

/* The last frame that begins at or before seq goes to *before. False: too far to walk. */
static bool reass_find(const struct harp_conn *conn, uint32_t seq, struct frame **before)
{
	struct frame *at = NULL, *next = conn->reass.head;

	*before = NULL;
	if (!next || seq_lt(seq, next->seq))
		return true;
	if (seq_leq(conn->reass.tail->seq, seq)) {
		*before = conn->reass.tail; /* the usual case: it goes on at the end */
		return true;
	}
	if (conn->reass.hint && seq_leq(conn->reass.hint->seq, seq))
		next = conn->reass.hint; /* the next usual one: a hole is being filled */
	for (uint32_t steps = 0; next && seq_leq(next->seq, seq); steps++) {
		if (steps == REASS_WALK_FRAMES_MAX)
			return false;
		at = next;
		next = next->next;
	}
	*before = at;
	return true;
}

/* Takes the frame behind `before` (NULL: the first one) off the list. */
static struct frame *reass_unlink(struct harp_conn *conn, struct frame *before)
{
	struct frame **link = before ? &before->next : &conn->reass.head, *f = *link;

	*link = f->next;
	if (!f->next)
		conn->reass.tail = before;
	conn->reass.hint = NULL;
	conn->reass_frames--;
	return f;
}

/*
 * The frames behind `before` that f, which begins before them, overlaps. Those that lie amidst of it become part of it, so
 * that what is new on both sides of them needs no other frame; of one that goes on to its end or beyond, f has no bytes.
 */
static void reass_join(struct harp_conn *conn, struct frame *before, struct frame *f,
		       struct reass_text *t)
{
	uint32_t end = f->seq + f->pub.len;
	struct frame *kept;

	while ((kept = before ? before->next : conn->reass.head) != NULL &&
	       seq_lt(kept->seq, end)) {
		uint32_t kept_end = kept->seq + kept->pub.len;

		reass_note_duplicate(t, kept->seq, seq_min(kept_end, end));
		if (seq_geq(kept_end, end)) {
			f->pub.len = kept->seq - f->seq;
			return;
		}
		/* COPY: bytes that came first, over those that a segment around them repeats. */
		memcpy(f->pub.data + (kept->seq - f->seq), kept->pub.data, kept->pub.len);
		conn->tcp->stats->rx_coalesced_bytes += kept->pub.len;
		reass_release(conn, reass_unlink(conn, before));
	}
}

/* Out of order: to its place. Frees the frame when it brings nothing new. */
static void reass_insert(struct harp_conn *conn, struct frame *f, struct reass_text *t)
{
	struct frame *before, *after;

	if (!reass_find(conn, f->seq, &before)) {
		conn->tcp->stats->drop_tcp_rx_budget++;
		reass_release(conn, f);
		return;
	}
	tcp_sackout_kept(conn, f->seq, f->seq + f->pub.len);
	if (before && seq_gt(before->seq + before->pub.len, f->seq) &&
	    !reass_cut_old(conn, f, before->seq + before->pub.len, t))
		return;
	reass_join(conn, before, f, t);
	after = before ? before->next : conn->reass.head;
	if (f->pub.len == 0) { /* between two that touch */
		reass_release(conn, f);
		return;
	}
	f->next = after;
	if (before)
		before->next = f;
	else
		conn->reass.head = f;
	reass_list(conn);
	if (!after)
		conn->reass.tail = f;
	conn->reass.hint = f;
	conn->reass_frames++;
}

/* In order: to the receive queue, and what follows it there. */
static void reass_append(struct harp_conn *conn, struct frame *f, struct reass_text *t)
{
	/* Of a packet of several frames those before may have let out what lies here, too. */
	if (!reass_cut_old(conn, f, conn->rcv_nxt_seq, t))
		return;
	reass_join(conn, NULL, f, t);
	rcvq_append(conn, f);
	while (conn->reass.head && conn->reass.head->seq == conn->rcv_nxt_seq)
		rcvq_append(conn, reass_unlink(conn, NULL));
}

/* ------------------------------------------------------------------------------------------------
 * Payload.
 */
/* Its own frames have left the pool already: what is left must keep the NIC fed. */
static bool reass_pool_short(const struct harp_conn *conn)
{
	return conn->tcp->pool->free_count < tcp_pool_floor_rx(conn);
}

/* Frames for it in the budget and in the pool, making room when it is in order. */
static bool reass_admit(struct harp_conn *conn, uint32_t frames, bool in_order)
{
	while (in_order && reass_pool_short(conn)) {
		if (reass_evict(conn))
			continue;
		/* Who has some is not stuck: the application takes them. And to take back what was acknowledged
		 * selectively costs its sender a timeout. */
		if (conn->rx_frames_held >= TCP_FRAMES_BUDGET_MIN || !reass_evict_other(conn->tcp))
			break;
	}
	while (in_order && conn->rx_frames_held + frames > conn->budget.rx_frames_limit)
		if (!reass_evict(conn))
			break;
	return conn->rx_frames_held + frames <= conn->budget.rx_frames_limit &&
	       !reass_pool_short(conn);
}

/* How many of len bytes behind the first `skip` of a chain the budget has frames for. */
static uint32_t reass_admit_part(const struct harp_conn *conn, const struct frame *f, uint32_t skip,
				 uint32_t len)
{
	uint32_t bytes;

	if (conn->rx_frames_held >= conn->budget.rx_frames_limit || reass_pool_short(conn))
		return 0;
	bytes = reass_count_bytes(f, conn->budget.rx_frames_limit - conn->rx_frames_held);
	if (bytes <= skip)
		return 0;
	return bytes - skip < len ? bytes - skip : len;
}

/* In order, and refused. Segments smaller than the window's measure of a frame use up the budget before the window,
 * and the peer would send into it, ever more rarely, until its user timeout. It is taken back, though RFC 9293
 * would rather not (SHLD-14): so the peer asks as long as it takes (MUST-37), and hears of room. */
static void reass_refused(struct harp_conn *conn)
{
	if (conn->rx_frames_held < conn->budget.rx_frames_limit && !tcp_starve_refused(conn))
		return;
	conn->rcv_edge_seq = conn->rcv_nxt_seq;
	/* What the peer says from here on comes at the edge, and is no older than what is thrown away. */
	if (seq_gt(conn->snd_wl1_seq, conn->rcv_nxt_seq))
		conn->snd_wl1_seq = conn->rcv_nxt_seq;
}

/* Hands the fragments one by one to where they belong. */
static void reass_take(struct harp_conn *conn, struct frame *f, struct reass_text *t, bool in_order)
{
	uint32_t seq = t->seq;

	while (f) {
		struct frame *rest = f->frag;

		f->frag = NULL;
		f->next = NULL;
		f->seq = seq;
		f->owner = 0;
		f->flags = 0;
		seq += f->pub.len;
		if (f->pub.len == 0) {
			frame_release(conn->tcp->pool, f);
		} else {
			conn->rx_frames_held++;
			conn->tcp->stats->frames_tcp_rx++;
			if (in_order)
				reass_append(conn, f, t);
			else
				reass_insert(conn, f, t);
		}
		f = rest;
	}
	tcp_sackout_duplicate(conn, t->dup_start_seq, t->dup_end_seq);
}

/* RFC 9293 3.10.7.4: "trimming off any portions that lie outside the window". TCP_PASS: something is left. */
static enum tcp_verdict reass_trim_to_window(struct harp_conn *conn, struct reass_text *t)
{
	if (seq_lt(t->seq, conn->rcv_nxt_seq)) {
		uint32_t old = conn->rcv_nxt_seq - t->seq;

		if (old >= t->len) {
			tcp_sackout_duplicate(conn, t->seq, t->seq + t->len);
			tcp_delack_want(conn, true);
			return TCP_DROP_DUPLICATE;
		}
		reass_note_duplicate(t, t->seq, conn->rcv_nxt_seq);
		t->seq += old;
		t->len -= old;
		t->skip += old;
	}
	if (seq_gt(t->seq + t->len, conn->rcv_edge_seq)) {
		if (!seq_gt(conn->rcv_edge_seq, t->seq)) {
			tcp_delack_want(conn, true);
			return TCP_DROP_WINDOW;
		}
		t->len = conn->rcv_edge_seq - t->seq;
	}
	return TCP_PASS;
}

/* Room for it; what is in order may be larger than the frames left: its beginning is kept then, or the peer would send it
 * for ever. False: none of it. */
static bool reass_trim_to_room(struct harp_conn *conn, const struct frame *f, struct reass_text *t,
			       bool in_order)
{
	/* Copied, it needs none; unless what a first frame of it lets out comes between it and the next. */
	if (in_order && !(f->frag && conn->reass.head) && rcvq_may_coalesce(conn, t->len))
		return true;
	if (reass_admit(conn, reass_count_frames(f), in_order))
		return true;
	t->len = in_order ? reass_admit_part(conn, f, t->skip, t->len) : 0;
	tcp_delack_want(conn, true);
	if (t->len > 0) {
		conn->tcp->stats->drop_tcp_rx_budget++;
		return true;
	}
	if (in_order)
		reass_refused(conn);
	return false;
}

enum tcp_verdict tcp_reass_payload(struct harp_conn *conn, struct tcp_segment *seg)
{
	struct tcp *tcp = conn->tcp;
	struct frame *f = seg->in->frame;
	struct reass_text text = { .seq = seg->seq, .len = seg->len, .skip = seg->header_bytes };
	enum tcp_verdict v;
	bool in_order, hole;

	conn->acct.data_segs_in++;
	tcp->stats->tcp_data_segs_in++;
	v = reass_trim_to_window(conn, &text);
	if (v != TCP_PASS)
		return v;
	in_order = text.seq == conn->rcv_nxt_seq;
	if (!reass_trim_to_room(conn, f, &text, in_order))
		return TCP_DROP_RX_BUDGET;
	f = frame_packet_cut_front(tcp->pool, f, text.skip);
	frame_packet_cut_back(tcp->pool, f, text.len);
	hole = conn->reass.head != NULL;
	reass_take(conn, f, &text, in_order);
	if (!in_order) {
		conn->delack.bulk_segs = 0;
		tcp->stats->tcp_out_of_order++;
		conn->acct.out_of_order_in++;
		/* RFC 5681 section 4.2: "A TCP receiver SHOULD send an immediate duplicate ACK when an
		 * out-of-order segment arrives", one for each: the sender counts them. */
		(void)tcp_out_ack(conn);
		return TCP_KEPT;
	}
	if (hole) {
		tcp_sackout_advance(conn);
		tcp_delack_want(conn, true); /* it is filled, wholly or in part */
	}
	tcp_delack_took(conn, seg, text.len);
	return TCP_KEPT;
}
