/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_gso.c - several segments as one packet, which the NIC segments again (TSO).
 *
 * A GSO packet consists of the segments that this phase would have sent one by one: full-sized
 * segments that were never sent, and perhaps a smaller one at the end. It has the headers of the
 * first segment. The NIC derives the headers of the others: it increments sequence number and
 * identification, and sets FIN and PSH only on the last. So a segment with PSH ends the packet.
 * Each segment keeps its own frame in the send queue: ACKs, SACK blocks and losses apply to
 * segments, never to GSO packets. Retransmissions are sent one by one.
 */
#include "transport/tcp.h"

#include <string.h>

void tcp_gso_drop_sums(const struct harp_conn *conn, struct frame *seg)
{
	if (conn->budget.tx_external_held == 0)
		return;
	for (struct frame *f = seg->frag; f; f = f->frag)
		if (frame_is_external(conn->tcp->pool, f))
			f->flags &= (uint8_t)~FRAME_CSUM;
}

bool tcp_gso_is_read(const struct frame *seg)
{
	for (const struct frame *f = seg->frag; f; f = f->frag)
		if (f->nic_refs > 0)
			return true;
	return false;
}

/* Adds a frame to the copy that begins with *first. NULL: no frame is free, and the copy was
 * freed. */
static struct frame *gso_copy_grow(struct harp_conn *conn, struct frame **first, struct frame *last,
				   uint32_t *frags)
{
	struct tcp *tcp = conn->tcp;
	struct frame *f = *frags < tcp->tx_frags_max ? frame_alloc(tcp->pool, 0) : NULL;

	if (!f) {
		frame_release_packet(tcp->pool, *first);
		return NULL;
	}
	if (last)
		last->frag = f;
	else
		*first = f;
	++*frags;
	return f;
}

struct frame *tcp_gso_copy(struct harp_conn *conn, const struct frame *seg, uint32_t *frags)
{
	uint32_t bytes = seg_bytes(seg);
	struct frame *first = NULL, *to;

	*frags = 0;
	to = gso_copy_grow(conn, &first, NULL, frags);
	if (!to)
		return NULL;
	first->flags = FRAME_SENT; /* a retransmission */
	for (const struct frame *f = seg; f; f = f->frag) {
		for (uint32_t at = 0, n; at < f->pub.len; at += n) {
			if (to->pub.len == to->pub.capacity)
				to = gso_copy_grow(conn, &first, to, frags);
			if (!to)
				return NULL;
			n = to->pub.capacity - to->pub.len;
			n = f->pub.len - at < n ? f->pub.len - at : n;
			/* COPY: the NIC still owns the original frames. */
			memcpy(to->pub.data + to->pub.len, f->pub.data + at, n);
			to->pub.len += n;
		}
	}
	conn->acct.tx_copied_bytes += bytes;
	conn->tcp->stats->tx_copied_bytes += bytes;
	return first;
}

/* True if seg may be added. The conditions are those of tx_may_send(), which also splits segments
 * and sets timers. */
static bool gso_admits(const struct harp_conn *conn, const struct tcp_gso *gso,
		       const struct frame *seg)
{
	const struct tcp *tcp = conn->tcp;
	uint32_t bytes = gso->bytes + seg_bytes(seg);
	/* A frame for headers only is not part of the packet, unless it is the first. */
	uint32_t frags = gso->frags + seg_frags(seg) - (seg->pub.len == 0 ? 1 : 0);

	return seg_bytes(seg) > 0 && seg_bytes(seg) <= conn->snd.mss_bytes &&
	       frags <= tcp->tx_frags_max && bytes <= tcp->io->tso_bytes_max &&
	       tcp_loss_pipe_bytes(conn) + bytes <= conn->cc.cwnd_bytes &&
	       conn_flight_bytes(conn) + gso->bytes + seg_space(seg) <= conn->snd.wnd_bytes &&
	       (conn->cc.pacing_bytes_per_s == 0 || conn->pace.credit_bytes >= (int64_t)bytes) &&
	       !tcp_gso_is_busy(seg);
}

struct tcp_gso tcp_gso_build(const struct harp_conn *conn, struct frame *seg)
{
	struct tcp_gso gso = tcp_gso_one(seg);

	/* CWR belongs on one segment only, but NICs differ in how they copy it. */
	if (conn->loss_open ||
	    ((conn->tcp->io->features & HARP_NIC_TX_TSO_V4) && !harp_addr_is_v4(&conn->path.dst)) ||
	    (conn->flags & CONN_ECN_CWR))
		return gso;
	while (seg_bytes(gso.last) == conn->snd.mss_bytes && !(gso.last->flags & FRAME_FIN) &&
	       !(gso.last->tcp_flags & SEG_PUSH) && gso.last->next &&
	       gso_admits(conn, &gso, gso.last->next)) {
		gso.last = gso.last->next;
		gso.segments++;
		gso.frags += seg_frags(gso.last) - (gso.last->pub.len == 0 ? 1 : 0);
		gso.bytes += seg_bytes(gso.last);
	}
	return gso;
}
