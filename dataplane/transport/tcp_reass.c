/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_reass.c - received payload: in order to the receive queue, else to the reassembly list.
 *
 * Payload is not copied: both queues are lists of received frames in sequence order, each with the
 * sequence number of its first byte. Together with the frames that the application holds they count
 * against the connection's budget. If the budget is exhausted, in-order data evicts the frames of
 * the reassembly list, the last ones first, because the peer can retransmit them. If the pool is
 * short and a connection has hardly any frames, its in-order data also evicts frames of other
 * connections' reassembly lists; otherwise holes that are never filled could occupy all frames.
 * When a connection holds half of its budget, small segments are copied into the free space of the
 * last frame. So a peer that sends single bytes cannot use up frames that the window counts as full
 * segments.
 */
#include "transport/tcp.h"

#include <string.h>

/* Limits the walk when a peer fills holes at random (CVE-2018-5390). */
#define REASS_WALK_FRAMES_MAX 1024u

void tcp_rcvq_purge(struct harp_conn *conn)
{
	while (conn->rcvq.head) {
		struct frame *f = conn->rcvq.head;

		conn->rcvq.head = f->next;
		tcp_rx_release(conn, f);
	}
	conn->rcvq.tail = NULL;
	conn->rcv_queued_bytes = 0;
}

void tcp_rcvq_discard(struct harp_conn *conn)
{
	conn->tcp->stats->rx_discarded_bytes += conn->rcv_queued_bytes;
	tcp_rcvq_purge(conn);
	tcp_window_reopen(conn);
}

/* Appends a connection with out-of-order data to tcp->reassembling. It may stay there after its
 * holes were filled. */
static void reass_list(struct harp_conn *conn)
{
	if (conn->on_list.reass)
		return;
	TAILQ_INSERT_TAIL(&conn->tcp->reassembling, conn, link.reass);
	conn->on_list.reass = 1;
}

static void reass_unlist(struct harp_conn *conn)
{
	if (!conn->on_list.reass)
		return;
	TAILQ_REMOVE(&conn->tcp->reassembling, conn, link.reass);
	conn->on_list.reass = 0;
}

void tcp_reass_purge(struct harp_conn *conn)
{
	while (conn->reass.head) {
		struct frame *f = conn->reass.head;

		conn->reass.head = f->next;
		tcp_rx_release(conn, f);
	}
	conn->reass.tail = NULL;
	conn->reass.hint = NULL;
	conn->frames.reass_held = 0;
	conn->sackout.count = 0;
	reass_unlist(conn);
}

/* Evicts the last eighth of the reassembly list; false if it is empty. Evicts more than one frame,
 * because each call walks the list. */
static bool reass_evict(struct harp_conn *conn)
{
	struct frame *f, **link = &conn->reass.head, *prev = NULL;
	uint32_t keep = conn->frames.reass_held - (conn->frames.reass_held + 7) / 8;

	if (!conn->reass.head)
		return false;
	for (; keep > 0; keep--) {
		prev = *link;
		link = &prev->next;
	}
	f = *link;
	*link = NULL;
	conn->reass.tail = prev;
	conn->reass.hint = NULL;
	tcp_sackout_evicted(conn, f->seq);
	while (f) {
		struct frame *rest = f->next;

		conn->frames.reass_held--;
		tcp_rx_release(conn, f);
		f = rest;
	}
	return true;
}

/* Evicts frames of another connection's list, round robin; false if all lists are empty. */
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

/* Counts the frames of a packet that have payload. */
static uint32_t reass_count_frames(const struct frame *f)
{
	uint32_t n = 0;

	for (; f; f = f->frag)
		n += f->pub.len > 0;
	return n;
}

/* Bytes in the first `frames` frames of a packet. */
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
/* Free bytes after a frame's data, up to the end of its chunk. */
static uint32_t rcvq_tail_bytes(const struct tcp *tcp, const struct frame *f)
{
	const uint8_t *end = frame_chunk(tcp->pool, f) + tcp->pool->frame_size;

	return (uint32_t)(end - (f->pub.data + f->pub.len));
}

/* True if len more bytes may be copied to the end of the last frame. */
static bool rcvq_may_coalesce(const struct harp_conn *conn, uint32_t len)
{
	return conn->rcvq.tail && conn->frames.rx_held * 2 > conn->frames.rx_budget &&
	       rcvq_tail_bytes(conn->tcp, conn->rcvq.tail) >= len;
}

static bool rcvq_coalesce(struct harp_conn *conn, const struct frame *f)
{
	struct tcp *tcp = conn->tcp;
	struct frame *tail = conn->rcvq.tail;

	if (!rcvq_may_coalesce(conn, f->pub.len))
		return false;
	/* COPY: merges small segments, so that each does not use a frame. */
	memcpy(tail->pub.data + tail->pub.len, f->pub.data, f->pub.len);
	tail->pub.len += f->pub.len;
	tcp->stats->rx_coalesced_bytes += f->pub.len;
	return true;
}

/* Appends a frame that begins at RCV.NXT and already counts against the budget. */
static void rcvq_append(struct harp_conn *conn, struct frame *f)
{
	uint32_t len = f->pub.len;

	conn->rcv.nxt_seq += len;
	conn->acct.bytes_received += len;
	if (conn->flags & CONN_READ_SHUT) {
		conn->tcp->stats->rx_discarded_bytes += len;
		tcp_rx_release(conn, f);
		return;
	}
	conn->rcv_queued_bytes += len;
	if (rcvq_coalesce(conn, f)) {
		tcp_rx_release(conn, f);
		return;
	}
	f->next = NULL;
	f->pub.capacity = len;
	if (conn->rcvq.tail)
		conn->rcvq.tail->next = f;
	else
		conn->rcvq.head = f;
	conn->rcvq.tail = f;
}

/* ------------------------------------------------------------------------------------------------
 * The reassembly list: sorted, without overlaps. Of overlapping data, the bytes that arrived first
 * are used.
 */
/* The accepted part of a segment: len bytes that begin at seq, after `skip` bytes of the packet. */
struct reass_text {
	uint32_t seq, len, skip;
	uint32_t dup_start_seq, dup_end_seq; /* duplicate bytes; equal: none */
};

/* Records that these bytes are duplicates. "The receiver reports the first such duplicate segment
 * in a single D-SACK block": RFC 2883 section 4.2. */
static void reass_note_duplicate(struct reass_text *t, uint32_t start_seq, uint32_t end_seq)
{
	if (t->dup_start_seq == t->dup_end_seq)
		t->dup_start_seq = start_seq;
	else if (t->dup_end_seq != start_seq)
		return;
	t->dup_end_seq = end_seq;
}

/* Trims duplicate bytes before seq. False: nothing is left, and the frame is freed. */
static bool reass_cut_old(struct harp_conn *conn, struct frame *f, uint32_t seq,
			  struct reass_text *t)
{
	uint32_t old = seq - f->seq;

	if (old >= f->pub.len) {
		reass_note_duplicate(t, f->seq, f->seq + f->pub.len);
		tcp_rx_release(conn, f);
		return false;
	}
	if (old > 0)
		reass_note_duplicate(t, f->seq, seq);
	f->pub.data += old;
	f->pub.len -= old;
	f->seq += old;
	return true;
}

/* Finds the last frame that begins at or before seq. False: the walk would be too long. */
static bool reass_find(const struct harp_conn *conn, uint32_t seq, struct frame **prev)
{
	struct frame *at = NULL, *next = conn->reass.head;

	*prev = NULL;
	if (!next || seq_lt(seq, next->seq))
		return true;
	if (seq_leq(conn->reass.tail->seq, seq)) {
		*prev = conn->reass.tail; /* the most common case: append */
		return true;
	}
	if (conn->reass.hint && seq_leq(conn->reass.hint->seq, seq))
		next = conn->reass.hint; /* the next most common case: a hole is being filled */
	for (uint32_t steps = 0; next && seq_leq(next->seq, seq); steps++) {
		if (steps == REASS_WALK_FRAMES_MAX)
			return false;
		at = next;
		next = next->next;
	}
	*prev = at;
	return true;
}

/* Removes the frame after prev (NULL: the first) from the list. */
static struct frame *reass_unlink(struct harp_conn *conn, struct frame *prev)
{
	struct frame **link = prev ? &prev->next : &conn->reass.head, *f = *link;

	*link = f->next;
	if (!f->next)
		conn->reass.tail = prev;
	conn->reass.hint = NULL;
	conn->frames.reass_held--;
	return f;
}

/*
 * Resolves overlaps of f with the frames after prev, which begin after f. Frames inside f are
 * copied into it, so that f need not be divided. If a frame extends to the end of f or beyond, f is
 * trimmed.
 */
static void reass_join(struct harp_conn *conn, struct frame *prev, struct frame *f,
		       struct reass_text *t)
{
	uint32_t end = f->seq + f->pub.len;
	struct frame *next;

	while ((next = prev ? prev->next : conn->reass.head) != NULL && seq_lt(next->seq, end)) {
		uint32_t next_end = next->seq + next->pub.len;

		reass_note_duplicate(t, next->seq, seq_min(next_end, end));
		if (seq_geq(next_end, end)) {
			f->pub.len = next->seq - f->seq;
			return;
		}
		/* COPY: the bytes that arrived first replace those of f. */
		memcpy(f->pub.data + (next->seq - f->seq), next->pub.data, next->pub.len);
		conn->tcp->stats->rx_coalesced_bytes += next->pub.len;
		tcp_rx_release(conn, reass_unlink(conn, prev));
	}
}

/* Inserts an out-of-order frame. Frees it if it has no new bytes. */
static void reass_insert(struct harp_conn *conn, struct frame *f, struct reass_text *t)
{
	struct frame *prev, *next;

	if (!reass_find(conn, f->seq, &prev)) {
		conn->tcp->stats->drop_tcp_rx_budget++;
		tcp_rx_release(conn, f);
		return;
	}
	tcp_sackout_kept(conn, f->seq, f->seq + f->pub.len);
	if (prev && seq_gt(prev->seq + prev->pub.len, f->seq) &&
	    !reass_cut_old(conn, f, prev->seq + prev->pub.len, t))
		return;
	reass_join(conn, prev, f, t);
	next = prev ? prev->next : conn->reass.head;
	if (f->pub.len == 0) { /* prev and next cover all of it */
		tcp_rx_release(conn, f);
		return;
	}
	f->next = next;
	if (prev)
		prev->next = f;
	else
		conn->reass.head = f;
	reass_list(conn);
	if (!next)
		conn->reass.tail = f;
	conn->reass.hint = f;
	conn->frames.reass_held++;
}

/* Appends an in-order frame to the receive queue, followed by contiguous frames of the reassembly
 * list. */
static void reass_append(struct harp_conn *conn, struct frame *f, struct reass_text *t)
{
	/* After earlier frames of this packet, the list may have supplied this frame's bytes. */
	if (!reass_cut_old(conn, f, conn->rcv.nxt_seq, t))
		return;
	reass_join(conn, NULL, f, t);
	rcvq_append(conn, f);
	while (conn->reass.head && conn->reass.head->seq == conn->rcv.nxt_seq)
		rcvq_append(conn, reass_unlink(conn, NULL));
}

/* ------------------------------------------------------------------------------------------------
 * Payload.
 */
/* The segment's own frames have already left the pool. */
static bool reass_pool_short(const struct harp_conn *conn)
{
	return conn->tcp->pool->free_count < tcp_pool_floor_rx(conn);
}

/* True if budget and pool have room for these frames. Evicts others for in-order data. */
static bool reass_admit(struct harp_conn *conn, uint32_t frames, bool in_order)
{
	while (in_order && reass_pool_short(conn)) {
		if (reass_evict(conn))
			continue;
		/* A connection that holds frames is not stuck, because its application will read
		 * them. Eviction of SACKed data costs the other connection's peer a timeout. */
		if (conn->frames.rx_held >= TCP_FRAMES_BUDGET_MIN || !reass_evict_other(conn->tcp))
			break;
	}
	while (in_order && conn->frames.rx_held + frames > conn->budget.rx_frames_limit)
		if (!reass_evict(conn))
			break;
	return conn->frames.rx_held + frames <= conn->budget.rx_frames_limit &&
	       !reass_pool_short(conn);
}

/* Of len bytes after the first `skip` bytes of a packet, returns how many the budget admits. */
static uint32_t reass_admit_part(const struct harp_conn *conn, const struct frame *f, uint32_t skip,
				 uint32_t len)
{
	uint32_t bytes;

	if (conn->frames.rx_held >= conn->budget.rx_frames_limit || reass_pool_short(conn))
		return 0;
	bytes = reass_count_bytes(f, conn->budget.rx_frames_limit - conn->frames.rx_held);
	if (bytes <= skip)
		return 0;
	return bytes - skip < len ? bytes - skip : len;
}

/* In-order data was refused, because small segments use up the budget before the window. The peer
 * would retransmit into the open window, at growing intervals, until its user timeout. So this
 * shrinks the window, although RFC 9293 advises against it (SHLD-14). The peer then sends window
 * probes as long as necessary (MUST-37), and learns when the window opens. */
static void reass_refused(struct harp_conn *conn)
{
	if (conn->frames.rx_held < conn->budget.rx_frames_limit && !tcp_pressure_refused(conn))
		return;
	conn->rcv.edge_seq = conn->rcv.nxt_seq;
	/* SEG.SEQ of the peer's next segments is at the edge: their windows must count as new. */
	if (seq_gt(conn->snd.wl1_seq, conn->rcv.nxt_seq))
		conn->snd.wl1_seq = conn->rcv.nxt_seq;
}

/* Distributes the fragments to the receive queue and the reassembly list. */
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
			conn->frames.rx_held++;
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

/* RFC 9293 section 3.10.7.4: "trimming off any portions that lie outside the window". TCP_PASS: a
 * part is inside. */
static enum tcp_verdict reass_trim_to_window(struct harp_conn *conn, struct reass_text *t)
{
	if (seq_lt(t->seq, conn->rcv.nxt_seq)) {
		uint32_t old = conn->rcv.nxt_seq - t->seq;

		if (old >= t->len) {
			tcp_sackout_duplicate(conn, t->seq, t->seq + t->len);
			tcp_delack_request(conn, true);
			return TCP_DROP_DUPLICATE;
		}
		reass_note_duplicate(t, t->seq, conn->rcv.nxt_seq);
		t->seq += old;
		t->len -= old;
		t->skip += old;
	}
	if (seq_gt(t->seq + t->len, conn->rcv.edge_seq)) {
		if (!seq_gt(conn->rcv.edge_seq, t->seq)) {
			tcp_delack_request(conn, true);
			return TCP_DROP_WINDOW;
		}
		t->len = conn->rcv.edge_seq - t->seq;
	}
	return TCP_PASS;
}

/* Trims the text to the available frames. A part of an in-order segment may be accepted; otherwise
 * the peer could retransmit the segment forever. False: nothing is accepted. */
static bool reass_trim_to_budget(struct harp_conn *conn, const struct frame *f,
				 struct reass_text *t, bool in_order)
{
	/* A segment that will be coalesced needs no frame. This is not certain for a second frame,
	 * which may follow data of the reassembly list. */
	if (in_order && !(f->frag && conn->reass.head) && rcvq_may_coalesce(conn, t->len))
		return true;
	if (reass_admit(conn, reass_count_frames(f), in_order))
		return true;
	t->len = in_order ? reass_admit_part(conn, f, t->skip, t->len) : 0;
	tcp_delack_request(conn, true);
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
	in_order = text.seq == conn->rcv.nxt_seq;
	if (!reass_trim_to_budget(conn, f, &text, in_order))
		return TCP_DROP_RX_BUDGET;
	f = frame_packet_cut_front(tcp->pool, f, text.skip);
	frame_packet_cut_back(tcp->pool, f, text.len);
	hole = conn->reass.head != NULL;
	reass_take(conn, f, &text, in_order);
	if (!in_order) {
		conn->delack.bulk_segs = 0;
		tcp->stats->tcp_out_of_order++;
		conn->acct.out_of_order_in++;
		/* RFC 5681 section 3.2: "A TCP receiver SHOULD send an immediate duplicate ACK when
		 * an out-of-order segment arrives", one per segment: the sender counts them. */
		(void)tcp_out_ack(conn);
		return TCP_KEPT;
	}
	if (hole) {
		tcp_sackout_advance(conn);
		tcp_delack_request(conn, true); /* the hole is filled, at least in part */
	}
	tcp_delack_received(conn, seg, text.len);
	return TCP_KEPT;
}
