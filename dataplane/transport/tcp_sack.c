/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_sack.c - the sender's scoreboard: which segments the peer has, according to SACK blocks.
 *
 * Theory of operation. A segment's mark (frame.tcp_flags) is SEG_SACKED (the peer has it), SEG_LOST
 * (it must be retransmitted), or neither (it is in flight). RFC 6675's pipe is the outstanding
 * bytes - sacked_bytes - lost_bytes.
 *
 * The queue is a list of up to some thousand segments, and SACK blocks may come from an attacker.
 * Two small arrays make the cost of an ACK proportional to its new information.
 *
 * Skip index: has every n-th sent segment, with its sequence number. A search starts at the last
 * entry before the segment. When the array is full, every second entry is removed and n doubles. An
 * entry is valid while its sequence number is not before SND.UNA, because a frame is freed only
 * when all of it is acknowledged.
 *
 * Ranges: sequence ranges that are already marked, so that only the new part of a block is walked.
 * This is a cache: when it is full, the shortest range is dropped, and another walk over it costs
 * little.
 *
 * A block that covers only a part of a segment does not mark it (blocks report any bytes that
 * arrived, RFC 2018 section 4, and segments may have been split since). Blocks outside of the
 * outstanding data are ignored and counted; the first block may report a duplicate (RFC 2883).
 */
#include "transport/tcp.h"

#define SACK_SKIP_STEP 16u /* initial distance of entries, in segments */
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
	/* A cursor before SND.UNA means the head, which is the first segment. */
	if (conn->loss.lost_bytes == 0 || (seq_geq(conn->loss.rtx_seq, conn->snd.una_seq) &&
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
	bool complete = n == seg_space(seg);

	if (seg->tcp_flags & SEG_SACKED) {
		conn->loss.sacked_bytes -= n;
		conn->loss.sacked_segs -= complete;
		return;
	}
	if (seg->tcp_flags & SEG_LOST)
		conn->loss.lost_bytes -= n;
	a->delivered_bytes += n;
	if (complete)
		tcp_rack_delivered(conn, seg, a);
}

void tcp_sack_forget(struct harp_conn *conn)
{
	for (struct frame *seg = conn->sndq.head; seg && seg != conn->sndq.unsent; seg = seg->next)
		seg->tcp_flags &= (uint8_t)~SEG_SACKED;
	conn->loss.sacked_bytes = 0;
	conn->loss.sacked_segs = 0;
	conn->scoreboard.range_count = 0;
	tcp_rack_restart(conn);
}

struct tcp_marks tcp_sack_marks(const struct harp_conn *conn)
{
	struct tcp_marks marks = { 0 };

	if (conn->loss.lost_bytes == 0 && !seq_lt(conn->snd.una_seq, conn->loss.retrans_end_seq))
		return marks;
	for (const struct frame *seg = conn->sndq.head; seg && seg != conn->sndq.unsent;
	     seg = seg->next) {
		if (seg->tcp_flags & SEG_LOST)
			marks.lost_segs++;
		else if ((seg->flags & FRAME_RETRANS) && !(seg->tcp_flags & SEG_SACKED))
			marks.retrans_segs++;
	}
	return marks;
}

bool tcp_sack_sums_valid(const struct harp_conn *conn)
{
	uint32_t sacked = 0, segs = 0, lost = 0;

	for (const struct frame *seg = conn->sndq.head; seg && seg != conn->sndq.unsent;
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

/* Position of the i-th entry of the skip index, oldest first. */
static uint32_t sack_skip_at(const struct tcp_scoreboard *b, uint32_t i)
{
	return (b->skip_first + i) % TCP_SKIP_ENTRIES;
}

static void sack_skip_halve(struct tcp_scoreboard *b)
{
	for (uint32_t i = 0; i < TCP_SKIP_ENTRIES / 2; i++)
		b->skip[sack_skip_at(b, i)] = b->skip[sack_skip_at(b, 2 * i)];
	b->skip_count = TCP_SKIP_ENTRIES / 2;
	b->skip_step *= 2;
}

void tcp_sack_index(struct harp_conn *conn, const struct frame *seg)
{
	struct tcp_scoreboard *b = &conn->scoreboard;

	while (b->skip_count > 0 && seq_lt(b->skip[b->skip_first].seq, conn->snd.una_seq)) {
		b->skip_first = sack_skip_at(b, 1);
		b->skip_count--;
	}
	if (b->skip_count == 0)
		b->skip_step = SACK_SKIP_STEP;
	else if (b->skip_count == TCP_SKIP_ENTRIES)
		sack_skip_halve(b);
	b->skip[sack_skip_at(b, b->skip_count)].seq = seg->seq;
	b->skip[sack_skip_at(b, b->skip_count)].frame = seg->index;
	b->skip_count++;
	conn->skip_left = b->skip_step < UINT16_MAX ? (uint16_t)b->skip_step : UINT16_MAX;
}

struct frame *tcp_sack_find(struct harp_conn *conn, uint32_t seq)
{
	const struct tcp_scoreboard *b = &conn->scoreboard;
	struct frame *seg = conn->sndq.head;
	uint32_t low = 0, high = b->skip_count;

	/* Binary search for the last entry at or before seq. */
	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (seq_leq(b->skip[sack_skip_at(b, mid)].seq, seq))
			low = mid + 1;
		else
			high = mid;
	}
	if (low > 0) {
		uint32_t at = sack_skip_at(b, low - 1);

		if (seq_geq(b->skip[at].seq, conn->snd.una_seq))
			seg = &conn->tcp->pool->frames[b->skip[at].frame];
	}
	for (; seg && seg != conn->sndq.unsent; seg = seg->next) {
		conn->tcp->stats->tcp_sack_walked++;
		if (seq_lt(seq, sack_end(seg)))
			return seg;
	}
	return NULL;
}

/* ------------------------------------------------------------------------------------------------
 * Ranges.
 */
static void sack_range_remove(struct tcp_scoreboard *b, uint32_t i)
{
	b->range_count--;
	for (; i < b->range_count; i++)
		b->range[i] = b->range[i + 1];
}

/* Adds [start, end), now marked and disjoint from all ranges. */
static void sack_range_add(struct tcp_scoreboard *b, uint32_t start, uint32_t end)
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
	struct tcp_scoreboard *b = &conn->scoreboard;

	while (b->range_count > 0 && seq_leq(b->range[0].end_seq, conn->snd.una_seq))
		sack_range_remove(b, 0);
}

/* Marks the segments within [start, end), which overlaps no range. */
static void sack_mark_gap(struct harp_conn *conn, uint32_t start, uint32_t end, struct tcp_ack *a)
{
	struct frame *seg = tcp_sack_find(conn, start);
	uint32_t first, last;

	if (seg && seq_lt(seg->seq, start))
		seg = seg->next;
	if (!seg)
		return;
	first = last = seg->seq;
	for (; seg && seg != conn->sndq.unsent && seq_leq(sack_end(seg), end); seg = seg->next) {
		conn->tcp->stats->tcp_sack_walked++;
		if (!(seg->tcp_flags & SEG_SACKED))
			sack_mark(conn, seg, a);
		last = sack_end(seg);
	}
	if (seq_lt(first, last))
		sack_range_add(&conn->scoreboard, first, last);
}

/* Processes a valid block: marks the parts that no range covers. */
static void sack_block(struct harp_conn *conn, uint32_t start, uint32_t end, struct tcp_ack *a)
{
	const struct tcp_scoreboard *b = &conn->scoreboard;

	while (seq_lt(start, end)) {
		uint32_t gap_end = end, next = end;

		/* Searches again after each gap, because sack_mark_gap() moves ranges. */
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

/* RFC 2883 section 4: the first block reports a duplicate if it is below SEG.ACK or within the
 * second block. */
static bool sack_is_dsack(const struct tcp_options *opt, uint32_t ack)
{
	if (seq_lt(opt->sack[0].start_seq, ack))
		return true;
	return opt->sack_count > 1 && seq_geq(opt->sack[0].start_seq, opt->sack[1].start_seq) &&
	       seq_leq(opt->sack[0].end_seq, opt->sack[1].end_seq);
}

static void sack_dsack(struct harp_conn *conn, uint32_t start, uint32_t end, struct tcp_ack *a)
{
	/* A receiver with GRO reports several segments at once. */
	uint32_t segs = (end - start + conn->snd.mss_bytes - 1) / conn->snd.mss_bytes;

	if (!seq_lt(start, end) || seq_gt(end, conn->snd.nxt_seq) ||
	    seq_lt(start, conn->snd.una_seq - SACK_DSACK_BYTES_MAX)) {
		conn->tcp->stats->tcp_sack_bad++;
		return;
	}
	conn->tcp->stats->tcp_dsack_in++;
	/* More duplicates than retransmissions: the network duplicates packets, too. */
	if (conn->undo.dsack_in_segs + segs > conn->acct.retransmits)
		return;
	conn->undo.dsack_in_segs += segs;
	if (conn->tlp.out && conn->tlp.is_retrans && end == conn->tlp.end_seq) {
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
		if (!seq_lt(start, end) || seq_gt(end, conn->snd.nxt_seq) ||
		    seq_lt(start, seg->ack)) {
			conn->tcp->stats->tcp_sack_bad++;
			continue;
		}
		/* In an old ACK, a block may begin before SND.UNA. */
		sack_block(conn, seq_max(start, conn->snd.una_seq), end, a);
	}
}
