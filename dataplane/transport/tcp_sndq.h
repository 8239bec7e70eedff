/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_sndq.h - the send queue: a list of segments (by ->next), oldest first.
 *
 * A segment is a frame and its continuation frames (by ->frag) and is never re-cut once sent, save for what its
 * receiver acknowledged or asked for smaller. tcp.h includes this.
 */
#ifndef HARP_TRANSPORT_TCP_SNDQ_H
#define HARP_TRANSPORT_TCP_SNDQ_H

#include "memory/frame.h"
#include "transport/tcp_conn.h"

struct tcp_ack;

/* frame.tcp_flags. A sent segment without a mark is on its way, as far as we know. */
enum seg_flag {
	SEG_SACKED = 0x01, /* the peer has it, and not all before it */
	SEG_LOST = 0x02,   /* it doesn't, and it is to be sent again */
	SEG_MARKS = SEG_SACKED | SEG_LOST,
	SEG_PUSH =
		0x04, /* the application handed over what ends in it: leaves with PSH, each time */
};

/* Segments keep their length and fragment count in frame.owner. */
static inline uint32_t seg_bytes(const struct frame *seg)
{
	return (uint32_t)(seg->owner & 0xffffffffu);
}
static inline uint32_t seg_frags(const struct frame *seg)
{
	return (uint32_t)(seg->owner >> 32);
}
static inline void seg_set(struct frame *seg, uint32_t bytes, uint32_t frags)
{
	seg->owner = (uint64_t)frags << 32 | bytes;
}
/* Sequence space it takes: a FIN counts as one. */
static inline uint32_t seg_space(const struct frame *seg)
{
	return seg_bytes(seg) + ((seg->flags & FRAME_FIN) ? 1u : 0u);
}

/* Segments of the send queue, one after the other, that leave as one packet. */
struct tcp_train {
	struct frame *first, *last;
	uint32_t segments; /* of these frames */
	uint32_t frags;    /* descriptors */
	uint32_t bytes;    /* payload of them all */
};

/* ---- tcp_train.c ---- */
/* The segment alone. */
static inline struct tcp_train tcp_train_one(struct frame *seg)
{
	return (struct tcp_train){ .first = seg,
				   .last = seg,
				   .segments = 1,
				   .frags = seg_frags(seg),
				   .bytes = seg_bytes(seg) };
}
/* seg, never sent, may leave: and what follows it and may leave with it, where the card can cut it. */
struct tcp_train tcp_train_make(const struct harp_conn *conn, struct frame *seg);
/* The card may still read a continuation frame of seg. */
bool tcp_train_is_read(const struct frame *seg);
/* seg is about to be sent again: its application may have broken its word and changed the bytes. A segment whose checksum
 * is that of others would never arrive. */
void tcp_train_forget_sums(const struct harp_conn *conn, struct frame *seg);
/* The card has frames of seg, and is given none twice: headers would be written under it, and it may know a frame by
 * what it reads there. Cards that complete each descriptor by itself keep the end of a packet for longer. */
static inline bool tcp_train_is_busy(const struct frame *seg)
{
	return seg->nic_refs > 0 || (seg->frag && tcp_train_is_read(seg));
}

/* Frames of nobody's with the bytes of seg, which may be sent as it; NULL: there are too few. */
struct frame *tcp_train_copy(struct harp_conn *conn, const struct frame *seg, uint32_t *frags);

/* ---- tcp_external.c ---- */
/* Queues bytes of the application's memory; how many were taken. *records: it were external frames that
 * ran out. */
size_t tcp_external_queue(struct harp_conn *conn, struct frame_memory *memory, const uint8_t *src,
			  size_t len, bool *records);
/* A record for what of an external frame lies behind keep bytes, which are all that f keeps; NULL: none. */
struct frame *tcp_external_cut(struct harp_conn *conn, struct frame *f, uint32_t keep);

/* Copies what the send queue refers to of this memory (NULL: of any) into frames. The bytes; -ENOBUFS. */
ssize_t tcp_external_evict(struct harp_conn *conn, const struct frame_memory *memory);

/* ---- tcp_sndq.c ---- */
/* So many frames of a segment are about to go home; of those from f on some are external. */
void tcp_sndq_uncount(struct harp_conn *conn, const struct frame *f, uint32_t frags);
/* The newest segment when it may grow by another frame, else a new one without any bytes; NULL: budget or
 * pool are used up. */
struct frame *tcp_sndq_growing(struct harp_conn *conn);
struct frame *tcp_sndq_last_frag(struct frame *seg);
/* Copies bytes in; how many were taken. */
size_t tcp_sndq_copy(struct harp_conn *conn, const uint8_t *src, size_t len);
size_t tcp_sndq_room(const struct harp_conn *conn);
struct frame *tcp_sndq_alloc(struct harp_conn *conn);
void tcp_sndq_frame(struct harp_conn *conn, struct frame *f);
/* The application called to send. whole: the call took all of its bytes, so that they end here. */
static inline void tcp_sndq_handed_over(struct harp_conn *conn, bool whole)
{
	conn->flags = (conn->flags & ~(uint32_t)CONN_PUSH) | (whole ? CONN_PUSH : 0u);
}
/* The FIN takes its place; false when no frame could be had. */
bool tcp_sndq_fin(struct harp_conn *conn);
/* Everything before ack is gone; a learns what that delivers. */
void tcp_sndq_acked(struct harp_conn *conn, uint32_t ack, struct tcp_ack *a);
void tcp_sndq_purge(struct harp_conn *conn);
/* Payload bytes that one of our segments can carry on this NIC. */
uint32_t tcp_sndq_segment_bytes_max(const struct tcp *tcp);

/* ---- tcp_recut.c ---- */
/* Cuts a segment after `bytes`; the rest, which may be a FIN alone, becomes the next one. False without a frame. */
bool tcp_recut_split(struct harp_conn *conn, struct frame *seg, uint32_t bytes);
/* Makes the first unsent segment, which is smaller, `bytes` long with what follows it: more than that is
 * queued. False when it can't; it may have grown all the same. */
bool tcp_recut_gather(struct harp_conn *conn, uint32_t bytes);
/* The first n bytes of a segment are acknowledged, the rest is not. */
void tcp_recut_trim(struct harp_conn *conn, struct frame *seg, uint32_t n);
/* Puts a segment's payload into frames of the pool, with none but the first of those it has. Bytes copied;
 * -ENOBUFS, and nothing has changed. */
ssize_t tcp_recut_into_pool(struct harp_conn *conn, struct frame *seg);

#endif
