/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_train.c - segments that leave as one packet, which the card cuts again (TSO).
 *
 * A train is what would have left in this turn one by one: full-sized segments that were never sent, and
 * at its end perhaps a smaller one. It has the first one's headers; what the card writes into those of the
 * others is what we would have: sequence number and identification counted on, FIN and PSH on the last
 * only. So a segment with PSH ends a train. Each segment keeps its record in the send queue, so that an ACK, a SACK block or a loss
 * concerns segments, never trains; and what is sent again is sent alone.
 */
#include "transport/tcp.h"

#include <string.h>

void tcp_train_forget_sums(const struct harp_conn *conn, struct frame *seg)
{
	if (conn->tx_external_held == 0)
		return;
	for (struct frame *f = seg->frag; f; f = f->frag)
		if (frame_is_external(conn->tcp->pool, f))
			f->flags &= (uint8_t)~FRAME_CSUM;
}

bool tcp_train_is_read(const struct frame *seg)
{
	for (const struct frame *f = seg->frag; f; f = f->frag)
		if (f->nic_refs > 0)
			return true;
	return false;
}

/* A frame more of a copy; NULL: there is none, and the copy is gone. */
static struct frame *train_copy_grow(struct harp_conn *conn, struct frame **first,
				     struct frame *last, uint32_t *frags)
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

struct frame *tcp_train_copy(struct harp_conn *conn, const struct frame *seg, uint32_t *frags)
{
	uint32_t bytes = seg_bytes(seg);
	struct frame *first = NULL, *to;

	*frags = 0;
	to = train_copy_grow(conn, &first, NULL, frags);
	if (!to)
		return NULL;
	first->flags = FRAME_SENT; /* it is sent again */
	for (const struct frame *f = seg; f; f = f->frag) {
		for (uint32_t at = 0, n; at < f->pub.len; at += n) {
			if (to->pub.len == to->pub.capacity)
				to = train_copy_grow(conn, &first, to, frags);
			if (!to)
				return NULL;
			n = to->pub.capacity - to->pub.len;
			n = f->pub.len - at < n ? f->pub.len - at : n;
			/* COPY: the card keeps the frames that it was sent from. */
			memcpy(to->pub.data + to->pub.len, f->pub.data + at, n);
			to->pub.len += n;
		}
	}
	conn->acct.tx_copied_bytes += bytes;
	conn->tcp->stats->tx_copied_bytes += bytes;
	return first;
}

/* May it leave behind what the train has already? As tx_may_send(), but nothing is cut and no timer set. */
static bool train_admits(const struct harp_conn *conn, const struct tcp_train *train,
			 const struct frame *seg)
{
	const struct tcp *tcp = conn->tcp;
	uint32_t bytes = train->bytes + seg_bytes(seg);
	/* Headers of their own they have none. */
	uint32_t frags = train->frags + seg_frags(seg) - (seg->pub.len == 0 ? 1 : 0);

	return seg_bytes(seg) > 0 && seg_bytes(seg) <= conn->snd_mss_bytes &&
	       frags <= tcp->tx_frags_max && bytes <= tcp->io->tso_bytes_max &&
	       tcp_loss_pipe_bytes(conn) + bytes <= conn->cc.cwnd_bytes &&
	       conn_flight_bytes(conn) + train->bytes + seg_space(seg) <= conn->snd_wnd_bytes &&
	       (conn->cc.pacing_bytes_per_s == 0 || conn->pace.credit_bytes >= (int64_t)bytes) &&
	       !tcp_train_is_busy(seg);
}

struct tcp_train tcp_train_make(const struct harp_conn *conn, struct frame *seg)
{
	struct tcp_train train = tcp_train_one(seg);

	if (conn->loss_open ||
	    ((conn->tcp->io->features & HARP_NIC_TX_TSO_V4) && !harp_addr_is_v4(&conn->path.dst)) ||
	    (conn->flags &
	     CONN_ECN_CWR)) /* for one segment: cards differ in what they make of it */
		return train;
	while (seg_bytes(train.last) == conn->snd_mss_bytes && !(train.last->flags & FRAME_FIN) &&
	       !(train.last->tcp_flags & SEG_PUSH) && train.last->next &&
	       train_admits(conn, &train, train.last->next)) {
		train.last = train.last->next;
		train.segments++;
		train.frags += seg_frags(train.last) - (train.last->pub.len == 0 ? 1 : 0);
		train.bytes += seg_bytes(train.last);
	}
	return train;
}
