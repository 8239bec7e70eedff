/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_sack.c - the sender's scoreboard: which segments the peer has, by its SACK blocks.
 *
 * Theory of operation. The truth is a mark per segment (frame.tcp_flags): SEG_SACKED, the peer has it;
 * SEG_LOST, it doesn't, and it waits to be sent again; neither, it is on its way. What is in flight
 * follows from three sums: outstanding - sacked_bytes - lost_bytes (RFC 6675's pipe, segment by segment).
 *
 * The queue is a list of up to some thousand segments, and who sends the blocks may be an enemy. Two
 * small arrays make the work of an ACK follow what is new in it:
 *	- fingers: every so many segments sent one is remembered, with its sequence number. A segment is
 *	  found from the finger before it. When the array is full every second finger goes, and the step
 *	  doubles. A finger is good as long as its sequence number is not before snd_una: a frame goes home
 *	  when all of it is acknowledged.
 *	- ranges: what earlier blocks told and is marked. Only what a block adds to them is walked over. It
 *	  is a cache: when it is full the shortest range goes, and telling it again costs that little.
 *
 * A block says nothing about a segment that it covers in part: the rest is missing (RFC 2018 section 4
 * has blocks of whatever came in, and segments were cut by us). Blocks that lie outside of what is
 * outstanding are ignored and counted; the first may report a duplicate (RFC 2883).
 */
#include "transport/tcp.h"

#define SACK_FINGER_STEP 16u /* segments, at first */
#define SACK_DSACK_BYTES_MAX (1u << 30)

/* ------------------------------------------------------------------------------------------------
 * Marks.
 */
static uint32_t sack_end(const struct frame *seg)
{
	return seg->seq + seg_space(seg);
}

void tcp_sack_mark_lost(struct harp_conn *conn, struct frame *seg)
{
	assert(!(seg->tcp_flags & SEG_MARKS));
	/* A cursor from before snd_una stands for the head: nothing is before that. */
	if (conn->loss.lost_bytes == 0 || (seq_geq(conn->loss.rtx_seq, conn->snd_una_seq) &&
					   seq_lt(seg->seq, conn->loss.rtx_seq))) {
		conn->loss.rtx_next = seg;
		conn->loss.rtx_seq = seg->seq;
	}
	seg->tcp_flags |= SEG_LOST;
	conn->loss.lost_bytes += seg_space(seg);
	conn->acct.lost_segs++;
	conn->tcp->stats->tcp_lost_segs++;
	conn->loss_open = 1;
}

void tcp_sack_unmark_lost(struct harp_conn *conn, struct frame *seg)
{
	seg->tcp_flags &= (uint8_t)~SEG_LOST;
	conn->loss.lost_bytes -= seg_space(seg);
}

static void sack_mark(struct harp_conn *conn, struct frame *seg, struct tcp_ack *a)
{
	uint32_t space = seg_space(seg);

	if (seg->tcp_flags & SEG_LOST)
		tcp_sack_unmark_lost(conn, seg);
	seg->tcp_flags |= SEG_SACKED;
	conn->loss.sacked_bytes += space;
	conn->loss.sacked_segs++;
	conn->loss_open = 1;
	a->delivered_bytes += space;
	tcp_rack_delivered(conn, seg, a);
}

void tcp_sack_acked(struct harp_conn *conn, const struct frame *seg, uint32_t n, struct tcp_ack *a)
{
	bool whole = n == seg_space(seg);

	if (seg->tcp_flags & SEG_SACKED) {
		conn->loss.sacked_bytes -= n;
		conn->loss.sacked_segs -= whole;
		return;
	}
	if (seg->tcp_flags & SEG_LOST)
		conn->loss.lost_bytes -= n;
	a->delivered_bytes += n;
	if (whole)
		tcp_rack_delivered(conn, seg, a);
}

void tcp_sack_forget(struct harp_conn *conn)
{
	for (struct frame *seg = conn->snd_head; seg && seg != conn->snd_unsent; seg = seg->next)
		seg->tcp_flags &= (uint8_t)~SEG_SACKED;
	conn->loss.sacked_bytes = 0;
	conn->loss.sacked_segs = 0;
	conn->board.range_count = 0;
	tcp_rack_restart(conn);
}

struct tcp_marks tcp_sack_marks(const struct harp_conn *conn)
{
	struct tcp_marks marks = { 0 };

	if (conn->loss.lost_bytes == 0 && !seq_lt(conn->snd_una_seq, conn->loss.retrans_end_seq))
		return marks;
	for (const struct frame *seg = conn->snd_head; seg && seg != conn->snd_unsent;
	     seg = seg->next) {
		if (seg->tcp_flags & SEG_LOST)
			marks.lost_segs++;
		else if ((seg->flags & FRAME_RETRANS) && !(seg->tcp_flags & SEG_SACKED))
			marks.retrans_segs++;
	}
	return marks;
}

bool tcp_sack_sums_good(const struct harp_conn *conn)
{
	uint32_t sacked = 0, segs = 0, lost = 0;

	for (const struct frame *seg = conn->snd_head; seg && seg != conn->snd_unsent;
	     seg = seg->next) {
		if (seg->tcp_flags & SEG_SACKED) {
			sacked += seg_space(seg);
			segs++;
		}
		if (seg->tcp_flags & SEG_LOST)
			lost += seg_space(seg);
	}
	return sacked == conn->loss.sacked_bytes && segs == conn->loss.sacked_segs &&
	       lost == conn->loss.lost_bytes;
}

/* ------------------------------------------------------------------------------------------------
 * Fingers.
 */
/* The i-th, oldest first. */
static uint32_t sack_finger_at(const struct tcp_board *b, uint32_t i)
{
	return (b->finger_first + i) % TCP_FINGERS;
}

static void sack_fingers_thin(struct tcp_board *b)
{
	for (uint32_t i = 0; i < TCP_FINGERS / 2; i++)
		b->finger[sack_finger_at(b, i)] = b->finger[sack_finger_at(b, 2 * i)];
	b->finger_count = TCP_FINGERS / 2;
	b->finger_step *= 2;
}

void tcp_sack_finger(struct harp_conn *conn, const struct frame *seg)
{
	struct tcp_board *b = &conn->board;

	while (b->finger_count > 0 && seq_lt(b->finger[b->finger_first].seq, conn->snd_una_seq)) {
		b->finger_first = sack_finger_at(b, 1);
		b->finger_count--;
	}
	if (b->finger_count == 0)
		b->finger_step = SACK_FINGER_STEP;
	else if (b->finger_count == TCP_FINGERS)
		sack_fingers_thin(b);
	b->finger[sack_finger_at(b, b->finger_count)].seq = seg->seq;
	b->finger[sack_finger_at(b, b->finger_count)].frame = seg->index;
	b->finger_count++;
	conn->finger_left = b->finger_step < UINT16_MAX ? (uint16_t)b->finger_step : UINT16_MAX;
}

struct frame *tcp_sack_find(struct harp_conn *conn, uint32_t seq)
{
	const struct tcp_board *b = &conn->board;
	struct frame *seg = conn->snd_head;
	uint32_t low = 0, high = b->finger_count;

	/* The last finger at or before seq. */
	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (seq_leq(b->finger[sack_finger_at(b, mid)].seq, seq))
			low = mid + 1;
		else
			high = mid;
	}
	if (low > 0) {
		uint32_t at = sack_finger_at(b, low - 1);

		if (seq_geq(b->finger[at].seq, conn->snd_una_seq))
			seg = &conn->tcp->pool->frames[b->finger[at].frame];
	}
	for (; seg && seg != conn->snd_unsent; seg = seg->next) {
		conn->tcp->stats->tcp_sack_walked++;
		if (seq_lt(seq, sack_end(seg)))
			return seg;
	}
	return NULL;
}

/* ------------------------------------------------------------------------------------------------
 * Ranges.
 */
static void sack_range_remove(struct tcp_board *b, uint32_t i)
{
	b->range_count--;
	for (; i < b->range_count; i++)
		b->range[i] = b->range[i + 1];
}

/* [start, end), disjoint from all there are, is marked now. */
static void sack_range_add(struct tcp_board *b, uint32_t start, uint32_t end)
{
	uint32_t i = 0, shortest = 0;

	if (b->range_count == TCP_SACK_RANGES) {
		for (uint32_t k = 1; k < TCP_SACK_RANGES; k++) {
			if (b->range[k].end_seq - b->range[k].start_seq <
			    b->range[shortest].end_seq - b->range[shortest].start_seq)
				shortest = k;
		}
		sack_range_remove(b, shortest);
	}
	while (i < b->range_count && seq_lt(b->range[i].start_seq, start))
		i++;
	if (i > 0 && b->range[i - 1].end_seq == start) {
		b->range[i - 1].end_seq = end;
		if (i < b->range_count && b->range[i].start_seq == end) {
			b->range[i - 1].end_seq = b->range[i].end_seq;
			sack_range_remove(b, i);
		}
		return;
	}
	if (i < b->range_count && b->range[i].start_seq == end) {
		b->range[i].start_seq = start;
		return;
	}
	for (uint32_t k = b->range_count; k > i; k--)
		b->range[k] = b->range[k - 1];
	b->range[i].start_seq = start;
	b->range[i].end_seq = end;
	b->range_count++;
}

static void sack_ranges_trim(struct harp_conn *conn)
{
	struct tcp_board *b = &conn->board;

	while (b->range_count > 0 && seq_leq(b->range[0].end_seq, conn->snd_una_seq))
		sack_range_remove(b, 0);
}

/* Marks the whole segments of [start, end), which no range touches. */
static void sack_mark_gap(struct harp_conn *conn, uint32_t start, uint32_t end, struct tcp_ack *a)
{
	struct frame *seg = tcp_sack_find(conn, start);
	uint32_t first, last;

	if (seg && seq_lt(seg->seq, start))
		seg = seg->next;
	if (!seg)
		return;
	first = last = seg->seq;
	for (; seg && seg != conn->snd_unsent && seq_leq(sack_end(seg), end); seg = seg->next) {
		conn->tcp->stats->tcp_sack_walked++;
		if (!(seg->tcp_flags & SEG_SACKED))
			sack_mark(conn, seg, a);
		last = sack_end(seg);
	}
	if (seq_lt(first, last))
		sack_range_add(&conn->board, first, last);
}

/* A valid block: what the ranges don't have of it. */
static void sack_block(struct harp_conn *conn, uint32_t start, uint32_t end, struct tcp_ack *a)
{
	const struct tcp_board *b = &conn->board;

	while (seq_lt(start, end)) {
		uint32_t gap_end = end, next = end;

		/* Adding to the ranges moves them: look again after each gap. */
		for (uint32_t i = 0; i < b->range_count; i++) {
			if (seq_leq(b->range[i].end_seq, start))
				continue;
			if (seq_lt(b->range[i].start_seq, end)) {
				gap_end = b->range[i].start_seq;
				next = b->range[i].end_seq;
			}
			break;
		}
		if (seq_lt(start, gap_end))
			sack_mark_gap(conn, start, gap_end, a);
		start = next;
	}
}

/* ------------------------------------------------------------------------------------------------
 * Blocks in.
 */
/* RFC 2883 section 4: the first block reports a duplicate when it lies below the ACK or within the
 * second one. */
static bool sack_is_dsack(const struct tcp_options *opt, uint32_t ack)
{
	if (seq_lt(opt->sack[0].start_seq, ack))
		return true;
	return opt->sack_count > 1 && seq_geq(opt->sack[0].start_seq, opt->sack[1].start_seq) &&
	       seq_leq(opt->sack[0].end_seq, opt->sack[1].end_seq);
}

static void sack_dsack(struct harp_conn *conn, uint32_t start, uint32_t end, struct tcp_ack *a)
{
	/* A receiver that joins segments (GRO) reports several at once. */
	uint32_t segs = (end - start + conn->snd_mss_bytes - 1) / conn->snd_mss_bytes;

	/* Believed for what may have been outstanding, and of no more segments than we sent again: the
	 * network makes copies too. */
	if (!seq_lt(start, end) || seq_gt(end, conn->snd_nxt_seq) ||
	    seq_lt(start, conn->snd_una_seq - SACK_DSACK_BYTES_MAX)) {
		conn->tcp->stats->tcp_sack_bad++;
		return;
	}
	conn->tcp->stats->tcp_dsack_in++;
	if (conn->undo.dsack_in_segs + segs > conn->acct.retransmits)
		return;
	conn->undo.dsack_in_segs += segs;
	if (conn->tlp.out && conn->tlp.again && end == conn->tlp.end_seq) {
		a->dsack_tlp = true;
		return;
	}
	a->dsack = true;
	if (conn->undo.open && conn->undo.resent_segs > 0 && seq_geq(start, conn->undo.seq) &&
	    seq_leq(end, conn->undo.end_seq)) {
		conn->undo.resent_segs -=
			segs < conn->undo.resent_segs ? segs : conn->undo.resent_segs;
		a->undo = conn->undo.resent_segs == 0;
	}
}

void tcp_sack_in(struct harp_conn *conn, const struct tcp_segment *seg, struct tcp_ack *a)
{
	const struct tcp_options *opt = &seg->opt;

	conn->tcp->stats->tcp_sack_in++;
	sack_ranges_trim(conn);
	for (uint32_t i = 0; i < opt->sack_count; i++) {
		uint32_t start = opt->sack[i].start_seq, end = opt->sack[i].end_seq;

		if (i == 0 && sack_is_dsack(opt, seg->ack)) {
			sack_dsack(conn, start, end, a);
			continue;
		}
		if (!seq_lt(start, end) || seq_gt(end, conn->snd_nxt_seq) ||
		    seq_lt(start, seg->ack)) {
			conn->tcp->stats->tcp_sack_bad++;
			continue;
		}
		/* Of an old ACK: what has been acknowledged since says nothing new. */
		sack_block(conn, seq_max(start, conn->snd_una_seq), end, a);
	}
}
