/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_resegment.c - changes segments of the send queue:
 *
 *	_split()	path MTU or the peer's window permit less than a segment
 *	_trim()		part of a segment is acknowledged
 *	_gather()	a path MTU probe is larger than the waiting segments
 *	_into_pool()	the application removes its memory
 *
 * Cached checksums of changed frames are dropped, and computed again on transmission.
 */
#include "transport/tcp.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/checksum.h"

bool tcp_resegment_split(struct harp_conn *conn, struct frame *seg, uint32_t bytes)
{
	struct tcp *tcp = conn->tcp;
	struct frame *f = seg, *rest, *piece = NULL;
	uint32_t keep = bytes, frags = 1, total = seg_bytes(seg), tail_frags = 0, moved;

	assert(bytes > 0 && bytes < seg_space(seg));
	/* The second part needs a frame with headroom. Exceeds the budget if necessary, because
	 * otherwise no data could be sent. */
	rest = frame_alloc(tcp->pool, 0);
	if (!rest)
		return false;
	while (keep > f->pub.len) {
		keep -= f->pub.len;
		f = f->frag;
		frags++;
	}
	moved = f->pub.len - keep;
	if (frame_is_external(tcp->pool, f) && moved > 0) {
		piece = tcp_external_cut(conn, f, keep);
		if (!piece && moved > rest->pub.capacity) {
			frame_release(tcp->pool, rest);
			return false;
		}
	}
	if (piece) {
		piece->frag = f->frag;
		f->frag = piece;
		moved = 0;
	}
	/* COPY: the cut-off bytes of the frame that straddles the boundary. */
	rest->csum = csum_copy(rest->pub.data, f->pub.data + keep, moved, 0);
	rest->pub.len = moved;
	rest->flags =
		(uint8_t)(FRAME_CSUM | (seg->flags & (FRAME_SENT | FRAME_RETRANS | FRAME_FIN)));
	rest->tcp_flags = seg->tcp_flags;
	rest->sent_ns = seg->sent_ns;
	rest->seq = seg->seq + bytes;
	rest->frag = f->frag;
	rest->next = seg->next;
	for (const struct frame *g = rest; g; g = g->frag)
		tail_frags++;
	f->pub.len = keep;
	if (frame_is_external(tcp->pool, f))
		f->pub.capacity = keep;
	f->frag = NULL;
	f->flags &= (uint8_t)~FRAME_CSUM;
	seg->flags &= (uint8_t)~FRAME_FIN;
	seg->tcp_flags &= (uint8_t)~SEG_PUSH;
	seg_set(seg, bytes, frags);
	seg_set(rest, total - bytes, tail_frags);
	seg->next = rest;
	if (conn->sndq.tail == seg)
		conn->sndq.tail = rest;
	conn->frames.tx_held++;
	tcp->stats->frames_tcp_tx++;
	tcp->stats->tx_copied_bytes += moved;
	conn->acct.tx_copied_bytes += moved;
	return true;
}

void tcp_resegment_trim(struct harp_conn *conn, struct frame *seg, uint32_t n)
{
	uint32_t total = seg_bytes(seg), frags = seg_frags(seg), left = n;

	for (struct frame *f = seg; left > 0; f = f->frag) {
		uint32_t cut = left < f->pub.len ? left : f->pub.len;

		/* The first frame keeps its headroom even if its payload is empty. */
		f->pub.data += cut;
		f->pub.len -= cut;
		f->pub.capacity -= cut;
		f->flags &= (uint8_t)~FRAME_CSUM;
		left -= cut;
	}
	/* Frees empty continuation frames, because NICs accept no empty descriptors. */
	while (seg->frag && seg->frag->pub.len == 0) {
		struct frame *empty = seg->frag;

		seg->frag = empty->frag;
		empty->frag = NULL;
		tcp_sndq_uncount(conn, empty, 1);
		frame_release(conn->tcp->pool, empty);
		frags--;
	}
	seg->seq += n;
	seg_set(seg, total - n, frags);
}

/* Free bytes after a frame's data, up to the end of its chunk. */
static uint32_t resegment_chunk_space(const struct frame_pool *pool, const struct frame *f)
{
	if (frame_is_external(pool, f))
		return 0;
	return (uint32_t)(frame_chunk(pool, f) + pool->frame_size - (f->pub.data + f->pub.len));
}

/* Moves the first `bytes` of the next segment, which begins with an external frame, to this one.
 * False if that is impossible. */
static bool resegment_gather_external(struct harp_conn *conn, struct frame *seg, uint32_t bytes)
{
	struct frame *from = seg->next, *x = from->frag, *rest = NULL;

	if (seg_frags(seg) == conn->tcp->tx_frags_max)
		return false;
	if (x->pub.len > bytes) {
		rest = tcp_external_cut(conn, x, bytes);
		if (!rest)
			return false;
		x->pub.len = x->pub.capacity = bytes;
		x->flags &= (uint8_t)~FRAME_CSUM;
		rest->frag = x->frag;
	}
	from->frag = rest ? rest : x->frag;
	x->frag = NULL;
	tcp_sndq_last_frag(seg)->frag = x;
	seg_set(seg, seg_bytes(seg) + x->pub.len, seg_frags(seg) + 1);
	from->seq += x->pub.len;
	seg_set(from, seg_bytes(from) - x->pub.len, seg_frags(from) - (rest ? 0 : 1));
	return true;
}

/* Removes the segment after seg, whose bytes have all been moved. */
static void resegment_drop_second(struct harp_conn *conn, struct frame *seg)
{
	struct frame *from = seg->next;

	seg->tcp_flags |= from->tcp_flags & SEG_PUSH;
	seg->next = from->next;
	from->next = NULL;
	tcp_sndq_uncount(conn, from, seg_frags(from));
	frame_release_packet(conn->tcp->pool, from);
}

bool tcp_resegment_gather(struct harp_conn *conn, uint32_t bytes)
{
	struct tcp *tcp = conn->tcp;
	struct frame *seg = conn->sndq.unsent;

	while (seg_bytes(seg) < bytes) {
		struct frame *last = tcp_sndq_last_frag(seg), *from = seg->next, *first = from;
		uint32_t room = resegment_chunk_space(tcp->pool, last), n = bytes - seg_bytes(seg);

		if (from->pub.len == 0 && frame_is_external(tcp->pool, from->frag)) {
			if (!resegment_gather_external(conn, seg, n))
				return false;
			if (seg_bytes(from) == 0)
				resegment_drop_second(conn, seg);
			continue;
		}
		if (room == 0) {
			if (seg_frags(seg) == tcp->tx_frags_max)
				return false;
			/* Exceeds the budget, which a busy sender has used up. */
			last->frag = frame_alloc(tcp->pool, tcp_pool_floor_tx(conn));
			if (!last->frag)
				return false;
			conn->frames.tx_held++;
			tcp->stats->frames_tcp_tx++;
			seg_set(seg, seg_bytes(seg), seg_frags(seg) + 1);
			continue;
		}
		if (first->pub.len == 0) /* its bytes were moved before */
			first = first->frag;
		n = n < room ? n : room;
		n = n < first->pub.len ? n : first->pub.len;
		/* COPY: bytes of the following segments. */
		memcpy(last->pub.data + last->pub.len, first->pub.data, n);
		last->pub.len += n;
		last->flags &= (uint8_t)~FRAME_CSUM;
		seg_set(seg, seg_bytes(seg) + n, seg_frags(seg));
		tcp->stats->tx_copied_bytes += n;
		conn->acct.tx_copied_bytes += n;
		tcp_resegment_trim(conn, from, n);
		if (seg_bytes(from) == 0)
			resegment_drop_second(conn, seg);
	}
	return true;
}

/* Allocates frames for `bytes`; NULL: too few are free. May exceed the budget, because these frames
 * replace external ones. */
static struct frame *resegment_alloc_chain(struct harp_conn *conn, uint32_t bytes, uint32_t *frags)
{
	struct frame_pool *pool = conn->tcp->pool;
	struct frame *chain = NULL, *f;

	for (*frags = 0; bytes > 0; ++*frags) {
		f = *frags < conn->tcp->tx_frags_max - 1 ? frame_alloc(pool, 0) : NULL;
		if (!f) {
			frame_release_packet(pool, chain);
			return NULL;
		}
		f->frag = chain;
		chain = f;
		bytes -= bytes < f->pub.capacity ? bytes : f->pub.capacity;
	}
	return chain;
}

ssize_t tcp_resegment_into_pool(struct harp_conn *conn, struct frame *seg)
{
	uint32_t frags = 0, left = seg_bytes(seg) - seg->pub.len, room;
	struct frame *old = seg->frag, *to = seg, *chain = NULL;
	ssize_t copied = left;

	/* The NIC may still read the first frame, but not beyond its data. */
	room = resegment_chunk_space(conn->tcp->pool, seg);
	if (left > room) {
		chain = resegment_alloc_chain(conn, left - room, &frags);
		if (!chain)
			return -ENOBUFS;
	}
	seg->frag = chain;
	for (const struct frame *f = old; f; f = f->frag) {
		for (uint32_t at = 0, n; at < f->pub.len; at += n) {
			if (resegment_chunk_space(conn->tcp->pool, to) == 0)
				to = to->frag;
			assert(to); /* the allocated frames suffice */
			room = resegment_chunk_space(conn->tcp->pool, to);
			n = f->pub.len - at < room ? f->pub.len - at : room;
			/* COPY: the application removes its memory. */
			memcpy(to->pub.data + to->pub.len, f->pub.data + at, n);
			to->pub.len += n;
		}
	}
	seg->flags &= (uint8_t)~FRAME_CSUM;
	tcp_sndq_uncount(conn, old, seg_frags(seg) - 1);
	frame_release_packet(conn->tcp->pool, old);
	conn->frames.tx_held += frags;
	conn->tcp->stats->frames_tcp_tx += frags;
	seg_set(seg, seg_bytes(seg), frags + 1);
	conn->acct.tx_copied_bytes += (uint64_t)copied;
	conn->tcp->stats->tx_copied_bytes += (uint64_t)copied;
	return copied;
}
