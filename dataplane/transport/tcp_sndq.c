/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_sndq.c - the send queue: bytes and frames of the application become segments.
 *
 * A segment is a frame, whose headroom is for the headers, and continuation frames with payload
 * only. The newest segment grows until it is full or sent. Afterwards its bytes do not change,
 * because the NIC may read them, and retransmissions do. tcp_resegment.c changes the size of
 * segments.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <string.h>

#include "base/checksum.h"

/* Payload capacity of a frame from frame_alloc(). */
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

	if (conn->frames.tx_held >= conn->frames.tx_budget) {
		tcp_budget_tune_tx(conn);
		if (conn->frames.tx_held >= conn->frames.tx_budget)
			return NULL;
	}
	f = frame_alloc(pool, pool->free_count >= conn->tcp->pool_high_frames
				      ? 0
				      : tcp_pool_floor_tx(conn));
	if (!f)
		return NULL;
	f->tcp_flags = 0;
	conn->frames.tx_held++;
	conn->tcp->stats->frames_tcp_tx++;
	return f;
}

void tcp_sndq_uncount(struct harp_conn *conn, const struct frame *f, uint32_t frags)
{
	struct harp_stats *stats = conn->tcp->stats;
	uint32_t external = 0;

	for (uint32_t i = 0; conn->budget.tx_external_held > 0 && i < frags; i++, f = f->frag)
		external += frame_is_external(conn->tcp->pool, f);
	conn->budget.tx_external_held -= external;
	stats->frames_tcp_external -= external;
	conn->frames.tx_held -= frags - external;
	stats->frames_tcp_tx -= frags - external;
}

static inline void sndq_release(struct harp_conn *conn, struct frame *seg)
{
	if (!seg->frag) { /* the first frame is never external */
		conn->frames.tx_held--;
		conn->tcp->stats->frames_tcp_tx--;
		frame_release(conn->tcp->pool, seg);
		return;
	}
	tcp_sndq_uncount(conn, seg, seg_frags(seg));
	frame_release_packet(conn->tcp->pool, seg);
}

static void sndq_append_segment(struct harp_conn *conn, struct frame *f)
{
	f->seq = conn->snd.end_seq;
	f->next = NULL;
	if (conn->sndq.tail)
		conn->sndq.tail->next = f;
	else
		conn->sndq.head = f;
	conn->sndq.tail = f;
	if (!conn->sndq.unsent)
		conn->sndq.unsent = f;
}

struct frame *tcp_sndq_last_frag(struct frame *seg)
{
	while (seg->frag)
		seg = seg->frag;
	return seg;
}

/* The newest segment if it may grow; else NULL. */
static struct frame *sndq_open_tail(const struct harp_conn *conn)
{
	struct frame *tail = conn->sndq.tail;

	if (!conn->sndq.unsent || (tail->flags & (FRAME_SENT | FRAME_FIN)) ||
	    seg_bytes(tail) >= conn->snd.mss_bytes)
		return NULL;
	return tail;
}

/* Returns a frame with space for the next byte, of *segment; NULL: budget or pool exhausted. */
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
	seg->flags = FRAME_CSUM; /* sum of no bytes */
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
		n = conn->snd.mss_bytes - seg_bytes(seg);
		n = n < room ? n : room;
		n = len - done < n ? (uint32_t)(len - done) : n;
		/* COPY: the application's bytes into our frame; computes the checksum. */
		sum = csum_copy(f->pub.data + f->pub.len, src + done, n, 0);
		f->csum = csum_append(f->csum, sum, f->pub.len);
		f->pub.len += n;
		seg_set(seg, seg_bytes(seg) + n, seg_frags(seg));
		conn->snd.end_seq += n;
		done += n;
	}
	conn->acct.tx_copied_bytes += done;
	conn->tcp->stats->tx_copied_bytes += done;
	conn->bytes_queued += done;
	return done;
}

size_t tcp_sndq_space(const struct harp_conn *conn)
{
	const struct tcp *tcp = conn->tcp;
	struct frame *seg = sndq_open_tail(conn);
	uint32_t frame_bytes = sndq_frame_bytes(tcp), floor = tcp_pool_floor_tx(conn);
	uint32_t budget = tcp_budget_tx_frames(conn);
	uint32_t frames = budget > conn->frames.tx_held ? budget - conn->frames.tx_held : 0;
	uint32_t pool = tcp->pool->free_count > floor ? tcp->pool->free_count - floor : 0;
	uint32_t per_segment = (conn->snd.mss_bytes + frame_bytes - 1) / frame_bytes;
	uint32_t remainder;
	size_t room = 0;

	if (frames > pool)
		frames = pool;
	if (seg) {
		struct frame *last = tcp_sndq_last_frag(seg);

		if (last->flags & FRAME_CSUM)
			room += last->pub.capacity - last->pub.len;
		for (uint32_t n = seg_frags(seg); n < tcp->tx_frags_max && frames > 0 &&
						  room < conn->snd.mss_bytes - seg_bytes(seg);
		     n++, frames--)
			room += frame_bytes;
		if (room > conn->snd.mss_bytes - seg_bytes(seg))
			room = conn->snd.mss_bytes - seg_bytes(seg);
	}
	remainder = frames % per_segment * frame_bytes;
	room += (size_t)(frames / per_segment) * conn->snd.mss_bytes + remainder;
	return room;
}

struct frame *tcp_sndq_alloc(struct harp_conn *conn)
{
	struct frame *f = sndq_take_frame(conn);

	if (!f)
		return NULL;
	if (f->pub.capacity > conn->snd.mss_bytes)
		f->pub.capacity = conn->snd.mss_bytes;
	f->flags = FRAME_LENT;
	return f;
}

void tcp_sndq_frame(struct harp_conn *conn, struct frame *f)
{
	struct frame *seg = sndq_open_tail(conn);
	uint32_t len = f->pub.len;

	f->flags = 0;
	/* The application has just written the data, so it is in the CPU cache. */
	if (!conn->tcp->csum_offload) {
		f->csum = csum_partial(f->pub.data, len, 0);
		f->flags = FRAME_CSUM;
	}
	if (seg && seg_bytes(seg) + len <= conn->snd.mss_bytes &&
	    seg_frags(seg) < conn->tcp->tx_frags_max) {
		tcp_sndq_last_frag(seg)->frag = f;
		seg_set(seg, seg_bytes(seg) + len, seg_frags(seg) + 1);
	} else {
		seg_set(f, len, 1);
		sndq_append_segment(conn, f);
	}
	conn->snd.end_seq += len;
	conn->bytes_queued += len;
}

bool tcp_sndq_fin(struct harp_conn *conn)
{
	struct frame *f = conn->sndq.unsent ? conn->sndq.tail : NULL;

	if (!f || (f->flags & FRAME_SENT)) {
		/* May exceed the budget, because a FIN must not wait for the application. */
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
		conn->frames.tx_held++;
		conn->tcp->stats->frames_tcp_tx++;
		sndq_append_segment(conn, f);
	}
	f->flags |= FRAME_FIN;
	conn->snd.end_seq++;
	conn->flags |= CONN_FIN_QUEUED;
	return true;
}

void tcp_sndq_acked(struct harp_conn *conn, uint32_t ack, struct tcp_ack *a)
{
	while (conn->sndq.head && conn->sndq.head != conn->sndq.unsent) {
		struct frame *seg = conn->sndq.head;

		if (!seq_leq(seg->seq + seg_space(seg), ack)) {
			if (conn->loss_open && seq_gt(ack, seg->seq))
				tcp_sack_acked(conn, seg, ack - seg->seq, a);
			if (seq_gt(ack, seg->seq))
				tcp_resegment_trim(conn, seg, ack - seg->seq);
			break;
		}
		if (seg_bytes(seg) > conn->mtu.acked_bytes)
			conn->mtu.acked_bytes = (uint16_t)seg_bytes(seg);
		if (conn->loss_open)
			tcp_sack_acked(conn, seg, seg_space(seg), a);
		else
			a->sent_ns = (seg->flags & FRAME_RETRANS) ? 0 : seg->sent_ns;
		conn->sndq.head = seg->next;
		sndq_release(conn, seg);
	}
	if (!conn->sndq.head)
		conn->sndq.tail = NULL;
}

void tcp_sndq_purge(struct harp_conn *conn)
{
	while (conn->sndq.head) {
		struct frame *seg = conn->sndq.head;

		conn->sndq.head = seg->next;
		sndq_release(conn, seg);
	}
	conn->sndq.tail = NULL;
	conn->sndq.unsent = NULL;
	conn->loss.sacked_bytes = 0;
	conn->loss.sacked_segs = 0;
	conn->loss.lost_bytes = 0;
}
