/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_sndq.c - the send queue: bytes and frames of the application become segments.
 *
 * A segment is a frame, whose headroom takes the headers, and continuation frames with payload only.
 * The newest segment grows until it is full or sent; after that its bytes lie still until they are
 * acknowledged, so that retransmission reads them again and the NIC never sees them change.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <string.h>

#include "base/checksum.h"

/* A chunk's room for payload: what frame_alloc() leaves above the headroom. */
static uint32_t sndq_frame_bytes(const struct tcp *tcp)
{
	return tcp->pool->frame_size - tcp->pool->data_at;
}

uint32_t tcp_sndq_segment_bytes_max(const struct tcp *tcp)
{
	return sndq_frame_bytes(tcp) * tcp->tx_frags_max;
}

static struct frame *sndq_take_frame(struct harp_conn *conn)
{
	struct frame_pool *pool = conn->tcp->pool;
	struct frame *f;

	if (conn->tx_frames_held >= conn->tx_frames_budget)
		return NULL;
	f = frame_alloc(pool, pool->free_count >= conn->tcp->pool_plenty_frames
				      ? 0
				      : tcp_pool_floor_tx(conn));
	if (!f)
		return NULL;
	f->tcp_flags = 0;
	conn->tx_frames_held++;
	conn->tcp->stats->frames_tcp_tx++;
	return f;
}

/* So many frames of a segment are about to go home; of those from f on some are external. */
static void sndq_uncount(struct harp_conn *conn, const struct frame *f, uint32_t frags)
{
	struct harp_stats *stats = conn->tcp->stats;
	uint32_t external = 0;

	for (uint32_t i = 0; conn->tx_external_held > 0 && i < frags; i++, f = f->frag)
		external += frame_is_external(conn->tcp->pool, f);
	conn->tx_external_held -= external;
	stats->frames_tcp_external -= external;
	conn->tx_frames_held -= frags - external;
	stats->frames_tcp_tx -= frags - external;
}

static inline void sndq_release(struct harp_conn *conn, struct frame *seg)
{
	if (!seg->frag) { /* one of ours, as an external frame is never a segment's first */
		conn->tx_frames_held--;
		conn->tcp->stats->frames_tcp_tx--;
		frame_release(conn->tcp->pool, seg);
		return;
	}
	sndq_uncount(conn, seg, seg_frags(seg));
	frame_release_packet(conn->tcp->pool, seg);
}

static void sndq_append_segment(struct harp_conn *conn, struct frame *f)
{
	f->seq = conn->snd_end_seq;
	f->next = NULL;
	if (conn->snd_tail)
		conn->snd_tail->next = f;
	else
		conn->snd_head = f;
	conn->snd_tail = f;
	if (!conn->snd_unsent)
		conn->snd_unsent = f;
}

struct frame *tcp_sndq_last_frag(struct frame *seg)
{
	while (seg->frag)
		seg = seg->frag;
	return seg;
}

/* The newest segment when it may still grow. */
static struct frame *sndq_open_tail(const struct harp_conn *conn)
{
	struct frame *tail = conn->snd_tail;

	if (!conn->snd_unsent || (tail->flags & (FRAME_SENT | FRAME_FIN)) ||
	    seg_bytes(tail) >= conn->snd_mss_bytes)
		return NULL;
	return tail;
}

/* The frame that the next byte goes to, with room in it; NULL: budget or pool are used up. */
static struct frame *sndq_writable(struct harp_conn *conn, struct frame **segment)
{
	struct frame *seg = sndq_open_tail(conn), *last, *f;

	if (seg) {
		last = tcp_sndq_last_frag(seg);
		*segment = seg;
		if (last->pub.len < last->pub.capacity && (last->flags & FRAME_CSUM))
			return last;
		if (seg_frags(seg) < conn->tcp->tx_frags_max) {
			f = sndq_take_frame(conn);
			if (!f)
				return NULL;
			f->flags = FRAME_CSUM;
			last->frag = f;
			seg_set(seg, seg_bytes(seg), seg_frags(seg) + 1);
			return f;
		}
	}
	f = sndq_take_frame(conn);
	if (!f)
		return NULL;
	f->flags = FRAME_CSUM;
	seg_set(f, 0, 1);
	sndq_append_segment(conn, f);
	*segment = f;
	return f;
}

struct frame *tcp_sndq_growing(struct harp_conn *conn)
{
	struct frame *seg = sndq_open_tail(conn);

	if (seg && seg_frags(seg) < conn->tcp->tx_frags_max)
		return seg;
	seg = sndq_take_frame(conn);
	if (!seg)
		return NULL;
	seg->flags = FRAME_CSUM; /* of no bytes */
	seg_set(seg, 0, 1);
	sndq_append_segment(conn, seg);
	return seg;
}

size_t tcp_sndq_copy(struct harp_conn *conn, const uint8_t *src, size_t len)
{
	size_t done = 0;

	while (done < len) {
		struct frame *seg, *f = sndq_writable(conn, &seg);
		uint32_t room, n, sum;

		if (!f)
			break;
		room = f->pub.capacity - f->pub.len;
		n = conn->snd_mss_bytes - seg_bytes(seg);
		n = n < room ? n : room;
		n = len - done < n ? (uint32_t)(len - done) : n;
		/* COPY: the application's bytes into our frame, summed on the way. */
		sum = csum_copy(f->pub.data + f->pub.len, src + done, n, 0);
		f->csum = csum_append(f->csum, sum, f->pub.len);
		f->pub.len += n;
		seg_set(seg, seg_bytes(seg) + n, seg_frags(seg));
		conn->snd_end_seq += n;
		done += n;
	}
	conn->acct.tx_copied_bytes += done;
	conn->tcp->stats->tx_copied_bytes += done;
	conn->bytes_queued += done;
	return done;
}

size_t tcp_sndq_room(const struct harp_conn *conn)
{
	const struct tcp *tcp = conn->tcp;
	struct frame *seg = sndq_open_tail(conn);
	uint32_t frame_bytes = sndq_frame_bytes(tcp), floor = tcp_pool_floor_tx(conn);
	uint32_t frames = conn->tx_frames_budget > conn->tx_frames_held
				  ? conn->tx_frames_budget - conn->tx_frames_held
				  : 0;
	uint32_t pool = tcp->pool->free_count > floor ? tcp->pool->free_count - floor : 0;
	uint32_t per_segment = (conn->snd_mss_bytes + frame_bytes - 1) / frame_bytes;
	uint32_t rest;
	size_t room = 0;

	if (frames > pool)
		frames = pool;
	if (seg) {
		struct frame *last = tcp_sndq_last_frag(seg);

		if (last->flags & FRAME_CSUM)
			room += last->pub.capacity - last->pub.len;
		for (uint32_t n = seg_frags(seg); n < tcp->tx_frags_max && frames > 0 &&
						  room < conn->snd_mss_bytes - seg_bytes(seg);
		     n++, frames--)
			room += frame_bytes;
		if (room > conn->snd_mss_bytes - seg_bytes(seg))
			room = conn->snd_mss_bytes - seg_bytes(seg);
	}
	rest = frames % per_segment * frame_bytes;
	room += (size_t)(frames / per_segment) * conn->snd_mss_bytes + rest;
	return room;
}

struct frame *tcp_sndq_alloc(struct harp_conn *conn)
{
	struct frame *f = sndq_take_frame(conn);

	if (!f)
		return NULL;
	if (f->pub.capacity > conn->snd_mss_bytes)
		f->pub.capacity = conn->snd_mss_bytes;
	f->flags = FRAME_LENT;
	return f;
}

void tcp_sndq_frame(struct harp_conn *conn, struct frame *f)
{
	struct frame *seg = sndq_open_tail(conn);
	uint32_t len = f->pub.len;

	f->flags = 0;
	/* Now, as whoever filled it has just written it: by the time it leaves it may lie in no near cache. */
	if (!conn->tcp->csum_offload) {
		f->csum = csum_partial(f->pub.data, len, 0);
		f->flags = FRAME_CSUM;
	}
	if (seg && seg_bytes(seg) + len <= conn->snd_mss_bytes &&
	    seg_frags(seg) < conn->tcp->tx_frags_max) {
		tcp_sndq_last_frag(seg)->frag = f;
		seg_set(seg, seg_bytes(seg) + len, seg_frags(seg) + 1);
	} else {
		seg_set(f, len, 1);
		sndq_append_segment(conn, f);
	}
	conn->snd_end_seq += len;
	conn->bytes_queued += len;
}

bool tcp_sndq_fin(struct harp_conn *conn)
{
	struct frame *f = conn->snd_unsent ? conn->snd_tail : NULL;

	if (!f || (f->flags & FRAME_SENT)) {
		/* Beyond the budget: a FIN must not wait for the application. */
		f = frame_alloc(conn->tcp->pool, 0);
		if (!f)
			return false;
		f->frag = NULL;
		f->flags = FRAME_CSUM;
		f->tcp_flags = 0;
		f->csum = 0;
		f->pub.len = 0;
		f->sent_ns = 0;
		seg_set(f, 0, 1);
		conn->tx_frames_held++;
		conn->tcp->stats->frames_tcp_tx++;
		sndq_append_segment(conn, f);
	}
	f->flags |= FRAME_FIN;
	conn->snd_end_seq++;
	conn->flags |= CONN_FIN_QUEUED;
	return true;
}

bool tcp_sndq_split(struct harp_conn *conn, struct frame *seg, uint32_t bytes)
{
	struct tcp *tcp = conn->tcp;
	struct frame *f = seg, *rest, *piece = NULL;
	uint32_t keep = bytes, frags = 1, total = seg_bytes(seg), tail_frags = 0, moved;

	assert(bytes > 0 && bytes < total);
	/* The rest needs a first frame with headroom; beyond the budget, as it must not fail. */
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
	seg_set(seg, bytes, frags);
	seg_set(rest, total - bytes, tail_frags);
	seg->next = rest;
	if (conn->snd_tail == seg)
		conn->snd_tail = rest;
	conn->tx_frames_held++;
	tcp->stats->frames_tcp_tx++;
	tcp->stats->tx_copied_bytes += moved;
	conn->acct.tx_copied_bytes += moved;
	return true;
}

/* The first n bytes of a segment are acknowledged, the rest is not. */
static void sndq_trim(struct harp_conn *conn, struct frame *seg, uint32_t n)
{
	uint32_t total = seg_bytes(seg), frags = seg_frags(seg), left = n;

	for (struct frame *f = seg; left > 0; f = f->frag) {
		uint32_t cut = left < f->pub.len ? left : f->pub.len;

		/* The first frame keeps its headroom even when its payload is all gone. */
		f->pub.data += cut;
		f->pub.len -= cut;
		f->pub.capacity -= cut;
		f->flags &= (uint8_t)~FRAME_CSUM;
		left -= cut;
	}
	/* Continuation frames that are used up go; a NIC takes no empty descriptors. */
	while (seg->frag && seg->frag->pub.len == 0) {
		struct frame *empty = seg->frag;

		seg->frag = empty->frag;
		empty->frag = NULL;
		sndq_uncount(conn, empty, 1);
		frame_release(conn->tcp->pool, empty);
		frags--;
	}
	seg->seq += n;
	seg_set(seg, total - n, frags);
}

/* Room behind a frame's bytes, to the end of its chunk. */
static uint32_t sndq_chunk_room(const struct frame_pool *pool, const struct frame *f)
{
	if (frame_is_external(pool, f))
		return 0;
	return (uint32_t)(frame_chunk(pool, f) + pool->frame_size - (f->pub.data + f->pub.len));
}

/* The first `bytes` of the segment behind, which begins with an external frame, go to this one: moved, not
 * copied. False when they can't. */
static bool sndq_gather_external(struct harp_conn *conn, struct frame *seg, uint32_t bytes)
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

/* The segment behind the first unsent one has given its bytes away. */
static void sndq_drop_second(struct harp_conn *conn, struct frame *seg)
{
	struct frame *from = seg->next;

	seg->next = from->next;
	from->next = NULL;
	sndq_release(conn, from);
}

bool tcp_sndq_gather(struct harp_conn *conn, uint32_t bytes)
{
	struct tcp *tcp = conn->tcp;
	struct frame *seg = conn->snd_unsent;

	while (seg_bytes(seg) < bytes) {
		struct frame *last = tcp_sndq_last_frag(seg), *from = seg->next, *first = from;
		uint32_t room = sndq_chunk_room(tcp->pool, last), n = bytes - seg_bytes(seg);

		if (from->pub.len == 0 && frame_is_external(tcp->pool, from->frag)) {
			if (!sndq_gather_external(conn, seg, n))
				return false;
			if (seg_bytes(from) == 0)
				sndq_drop_second(conn, seg);
			continue;
		}
		if (room == 0) {
			if (seg_frags(seg) == tcp->tx_frags_max)
				return false;
			/* Beyond the budget, which whoever has enough to send has used up. */
			last->frag = frame_alloc(tcp->pool, tcp_pool_floor_tx(conn));
			if (!last->frag)
				return false;
			conn->tx_frames_held++;
			tcp->stats->frames_tcp_tx++;
			seg_set(seg, seg_bytes(seg), seg_frags(seg) + 1);
			continue;
		}
		if (first->pub.len == 0) /* its bytes went before */
			first = first->frag;
		n = n < room ? n : room;
		n = n < first->pub.len ? n : first->pub.len;
		/* COPY: bytes of the segments behind it. */
		memcpy(last->pub.data + last->pub.len, first->pub.data, n);
		last->pub.len += n;
		last->flags &= (uint8_t)~FRAME_CSUM;
		seg_set(seg, seg_bytes(seg) + n, seg_frags(seg));
		tcp->stats->tx_copied_bytes += n;
		conn->acct.tx_copied_bytes += n;
		sndq_trim(conn, from, n);
		if (seg_bytes(from) == 0)
			sndq_drop_second(conn, seg);
	}
	return true;
}

/* New frames with room for `bytes`; NULL: there are too few. Beyond the budget: they take the place of others. */
static struct frame *sndq_take_chain(struct harp_conn *conn, uint32_t bytes, uint32_t *frags)
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

ssize_t tcp_sndq_repack(struct harp_conn *conn, struct frame *seg)
{
	uint32_t frags = 0, left = seg_bytes(seg) - seg->pub.len, room;
	struct frame *old = seg->frag, *to = seg, *chain = NULL;
	ssize_t copied = left;

	/* Behind the bytes of the first frame: the card reads no further than those. */
	room = sndq_chunk_room(conn->tcp->pool, seg);
	if (left > room) {
		chain = sndq_take_chain(conn, left - room, &frags);
		if (!chain)
			return -ENOBUFS;
	}
	seg->frag = chain;
	for (const struct frame *f = old; f; f = f->frag) {
		for (uint32_t at = 0, n; at < f->pub.len; at += n) {
			if (sndq_chunk_room(conn->tcp->pool, to) == 0)
				to = to->frag;
			room = sndq_chunk_room(conn->tcp->pool, to);
			n = f->pub.len - at < room ? f->pub.len - at : room;
			/* COPY: the application wants its memory back. */
			memcpy(to->pub.data + to->pub.len, f->pub.data + at, n);
			to->pub.len += n;
		}
	}
	seg->flags &= (uint8_t)~FRAME_CSUM;
	sndq_uncount(conn, old, seg_frags(seg) - 1);
	frame_release_packet(conn->tcp->pool, old);
	conn->tx_frames_held += frags;
	conn->tcp->stats->frames_tcp_tx += frags;
	seg_set(seg, seg_bytes(seg), frags + 1);
	conn->acct.tx_copied_bytes += (uint64_t)copied;
	conn->tcp->stats->tx_copied_bytes += (uint64_t)copied;
	return copied;
}

void tcp_sndq_acked(struct harp_conn *conn, uint32_t ack, struct tcp_ack *a)
{
	while (conn->snd_head && conn->snd_head != conn->snd_unsent) {
		struct frame *seg = conn->snd_head;

		if (!seq_leq(seg->seq + seg_space(seg), ack)) {
			if (conn->loss_open && seq_gt(ack, seg->seq))
				tcp_sack_acked(conn, seg, ack - seg->seq, a);
			if (seq_gt(ack, seg->seq))
				sndq_trim(conn, seg, ack - seg->seq);
			break;
		}
		if (seg_bytes(seg) > conn->mtu_acked_bytes)
			conn->mtu_acked_bytes = (uint16_t)seg_bytes(seg);
		if (conn->loss_open)
			tcp_sack_acked(conn, seg, seg_space(seg), a);
		else
			a->sent_ns = (seg->flags & FRAME_RETRANS) ? 0 : seg->sent_ns;
		conn->snd_head = seg->next;
		sndq_release(conn, seg);
	}
	if (!conn->snd_head)
		conn->snd_tail = NULL;
}

void tcp_sndq_purge(struct harp_conn *conn)
{
	while (conn->snd_head) {
		struct frame *seg = conn->snd_head;

		conn->snd_head = seg->next;
		sndq_release(conn, seg);
	}
	conn->snd_tail = NULL;
	conn->snd_unsent = NULL;
	conn->sacked_bytes = 0;
	conn->sacked_segs = 0;
	conn->lost_bytes = 0;
}
