/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_sndq.h - the send queue: a list of segments (by ->next), oldest first.
 *
 * A segment is a frame and its continuation frames (by ->frag). Once sent it keeps its boundaries,
 * unless a part is acknowledged or a smaller size is required. Included by tcp.h.
 */
#ifndef HARP_TRANSPORT_TCP_SNDQ_H
#define HARP_TRANSPORT_TCP_SNDQ_H

#include "memory/frame.h"
#include "transport/tcp_conn.h"

struct tcp_ack;

/* frame.tcp_flags. A sent segment without a mark counts as in flight. */
enum seg_flag {
	SEG_SACKED = 0x01, /* delivered, but not everything before it */
	SEG_LOST = 0x02,   /* lost; to be retransmitted */
	SEG_MARKS = SEG_SACKED | SEG_LOST,
	SEG_PUSH =
		/* ends a send call of the application: sent with PSH, also as a retransmission */
	0x04,
};

/* Length and fragment count of a segment are in frame.owner. */
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
/* Sequence space: payload, plus one for a FIN. */
static inline uint32_t seg_space(const struct frame *seg)
{
	return seg_bytes(seg) + ((seg->flags & FRAME_FIN) ? 1u : 0u);
}

/* Consecutive segments of the send queue that are sent as one TSO packet. */
struct tcp_gso {
	struct frame *first, *last;
	uint32_t segments; /* of these frames */
	uint32_t frags;    /* descriptors */
	uint32_t bytes;    /* total payload */
};

/* ---- tcp_gso.c ---- */
/* A single segment. */
static inline struct tcp_gso tcp_gso_one(struct frame *seg)
{
	return (struct tcp_gso){ .first = seg,
				 .last = seg,
				 .segments = 1,
				 .frags = seg_frags(seg),
				 .bytes = seg_bytes(seg) };
}
/* Collects seg, which is new, and the following segments that may be sent with it in one packet, if
 * the NIC supports TSO. */
struct tcp_gso tcp_gso_build(const struct harp_conn *conn, struct frame *seg);
/* True if the NIC may still read a continuation frame of seg. */
bool tcp_gso_is_read(const struct frame *seg);
/* Before a retransmission: drops cached checksums, because the application may have modified the
 * memory. A segment with a wrong checksum would never be accepted. */
void tcp_gso_drop_sums(const struct harp_conn *conn, struct frame *seg);
/* True if the NIC still has frames of seg. A frame must not be queued twice: headers would be
 * overwritten while the NIC reads them, and the NIC may identify frames by content. Drivers that
 * complete each descriptor separately keep the end of a packet longer. */
static inline bool tcp_gso_is_busy(const struct frame *seg)
{
	return seg->nic_refs > 0 || (seg->frag && tcp_gso_is_read(seg));
}

/* Copies seg into unowned frames, which can be sent in its place; NULL: too few are free. */
struct frame *tcp_gso_copy(struct harp_conn *conn, const struct frame *seg, uint32_t *frags);

/* ---- tcp_external.c ---- */
/* Queues bytes of the application's memory; returns their number. *records: it stopped for lack of
 * external frames. */
size_t tcp_external_queue(struct harp_conn *conn, struct frame_memory *memory, const uint8_t *src,
			  size_t len, bool *records);
/* Returns an external frame for the part of f after keep bytes, and shortens f to keep bytes. NULL:
 * none is free. */
struct frame *tcp_external_cut(struct harp_conn *conn, struct frame *f, uint32_t keep);

/* Copies all queued data of this memory (NULL: of any) into frames of the pool. Returns the bytes,
 * or -ENOBUFS. */
ssize_t tcp_external_evict(struct harp_conn *conn, const struct frame_memory *memory);

/* ---- tcp_sndq.c ---- */
/* Accounts for frags frames of a segment that are about to be freed; those from f on may be
 * external. */
void tcp_sndq_uncount(struct harp_conn *conn, const struct frame *f, uint32_t frags);
/* The newest segment if it may take another frame, else a new empty one; NULL: budget or pool
 * exhausted. */
struct frame *tcp_sndq_growing(struct harp_conn *conn);
struct frame *tcp_sndq_last_frag(struct frame *seg);
/* Copies bytes in; returns their number. */
size_t tcp_sndq_copy(struct harp_conn *conn, const uint8_t *src, size_t len);
size_t tcp_sndq_space(const struct harp_conn *conn);
struct frame *tcp_sndq_alloc(struct harp_conn *conn);
void tcp_sndq_frame(struct harp_conn *conn, struct frame *f);
/* The application has made a send call. whole: all of its bytes were accepted, so its end is
 * here. */
static inline void tcp_sndq_handed_over(struct harp_conn *conn, bool whole)
{
	conn->flags = (conn->flags & ~(uint32_t)CONN_PUSH) | (whole ? CONN_PUSH : 0u);
}
/* Queues the FIN; false without a free frame. */
bool tcp_sndq_fin(struct harp_conn *conn);
/* Frees all data before ack and adds it to the delivered data of a. */
void tcp_sndq_acked(struct harp_conn *conn, uint32_t ack, struct tcp_ack *a);
void tcp_sndq_purge(struct harp_conn *conn);
/* Maximum payload of a segment on this NIC. */
uint32_t tcp_sndq_segment_bytes_max(const struct tcp *tcp);

/* ---- tcp_resegment.c ---- */
/* Splits a segment after `bytes`. The rest, perhaps a FIN alone, becomes the next segment. False
 * without a free frame. */
bool tcp_resegment_split(struct harp_conn *conn, struct frame *seg, uint32_t bytes);
/* Extends the first unsent segment to `bytes` with the following data, which must suffice. After a
 * failure it may have grown in part. */
bool tcp_resegment_gather(struct harp_conn *conn, uint32_t bytes);
/* The first n bytes of a segment, but not all, are acknowledged. */
void tcp_resegment_trim(struct harp_conn *conn, struct frame *seg, uint32_t n);
/* Copies a segment's payload into frames of the pool, replacing all frames but the first. Returns
 * the bytes copied, or -ENOBUFS with nothing changed. */
ssize_t tcp_resegment_into_pool(struct harp_conn *conn, struct frame *seg);

#endif
