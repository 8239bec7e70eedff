/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_external.c - segments that refer to the application's memory (memory/external.h). They are as
 * large as segments of copied data. Each consists of a frame for the headers and external frames
 * that refer to the payload.
 */
#include "transport/tcp.h"

#include <errno.h>

#include "memory/external.h"

#define EXTERNAL_HELD_MIN 16u /* external frames of a connection: see external_allows() */

/* True if this connection may take another external frame. A connection with EXTERNAL_HELD_MIN of
 * them must leave a quarter for others. */
static bool external_allows(struct harp_conn *conn)
{
	const struct frame_pool *pool = conn->tcp->pool;
	uint32_t quarter = pool->external_count / 4;
	uint32_t floor = EXTERNAL_RESERVE < quarter ? EXTERNAL_RESERVE : quarter;

	if (conn->budget.tx_external_held >= EXTERNAL_HELD_MIN)
		floor += quarter;
	if (conn->budget.tx_external_held >= conn->frames.tx_budget)
		tcp_budget_tune_tx(conn);
	return conn->budget.tx_external_held < conn->frames.tx_budget &&
	       pool->external_free_count > floor;
}

static void external_count(struct harp_conn *conn)
{
	conn->budget.tx_external_held++;
	conn->tcp->stats->frames_tcp_external++;
}

/* The last frame of seg if these bytes follow its bytes in memory; else NULL. */
static struct frame *external_tail(const struct harp_conn *conn, const struct frame *seg,
				   const struct frame_memory *memory, const uint8_t *src)
{
	struct frame *last = tcp_sndq_last_frag((struct frame *)seg);

	if (!frame_is_external(conn->tcp->pool, last) || external_memory(last) != memory ||
	    last->pub.data + last->pub.len != src)
		return NULL;
	return last;
}

size_t tcp_external_queue(struct harp_conn *conn, struct frame_memory *memory, const uint8_t *src,
			  size_t len, bool *exhausted)
{
	struct frame_pool *pool = conn->tcp->pool;
	size_t done = 0;

	*exhausted = false;
	while (done < len) {
		struct frame *seg, *f;
		uint32_t n;

		*exhausted = !external_allows(conn);
		seg = *exhausted ? NULL : tcp_sndq_growing(conn);
		if (!seg)
			break;
		n = conn->snd.mss_bytes - seg_bytes(seg);
		n = len - done < n ? (uint32_t)(len - done) : n;
		f = external_tail(conn, seg, memory, src + done);
		if (f) {
			f->pub.len += n;
			f->pub.capacity = f->pub.len;
			f->flags &= (uint8_t)~FRAME_CSUM;
			seg_set(seg, seg_bytes(seg) + n, seg_frags(seg));
		} else {
			f = external_alloc(pool, memory, src + done, n, 0);
			external_count(conn);
			tcp_sndq_last_frag(seg)->frag = f;
			seg_set(seg, seg_bytes(seg) + n, seg_frags(seg) + 1);
		}
		conn->snd.end_seq += n;
		done += n;
	}
	conn->tcp->stats->tx_external_bytes += done;
	conn->bytes_queued += done;
	return done;
}

struct frame *tcp_external_cut(struct harp_conn *conn, struct frame *f, uint32_t keep)
{
	struct frame *rest = external_alloc(conn->tcp->pool, external_memory(f), f->pub.data + keep,
					    f->pub.len - keep, 0);

	if (rest)
		external_count(conn);
	return rest;
}

static bool external_refers(const struct harp_conn *conn, const struct frame *seg,
			    const struct frame_memory *memory)
{
	for (const struct frame *f = seg->frag; f; f = f->frag)
		if (frame_is_external(conn->tcp->pool, f) &&
		    (!memory || external_memory(f) == memory))
			return true;
	return false;
}

ssize_t tcp_external_evict(struct harp_conn *conn, const struct frame_memory *memory)
{
	ssize_t total = 0;

	if (conn->budget.tx_external_held == 0)
		return 0;
	for (struct frame *seg = conn->sndq.head; seg; seg = seg->next) {
		ssize_t n;

		if (!external_refers(conn, seg, memory))
			continue;
		n = tcp_resegment_into_pool(conn, seg);
		if (n < 0)
			return n;
		conn->tcp->stats->tx_evicted_bytes += (uint64_t)n;
		total += n;
	}
	return total;
}
