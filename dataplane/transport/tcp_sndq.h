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
	SEG_SACKED = 0x01, /* the peer has it, but not all data before it */
	SEG_LOST = 0x02,   /* must be retransmitted */
	SEG_MARKS = SEG_SACKED | SEG_LOST,
	SEG_PUSH = 0x04, /* ends a send call of the application: every transmission has PSH */
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
	uint32_t segments; /* number of segments */
	uint32_t frags;    /* number of descriptors */
	uint32_t bytes;    /* payload of all segments */
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
/* Collects seg, which was never sent, and following segments that may be sent with it in one
 * packet. */
struct tcp_gso tcp_gso_build(const struct harp_conn *conn, struct frame *seg);
/* True if the NIC may still read a continuation frame of seg. */
bool tcp_gso_is_read(const struct frame *seg);
/* Before a retransmission: drops cached checksums of external frames, because the application may
 * have modified its memory. The peer would never accept a segment with a wrong checksum. */
void tcp_gso_drop_sums(const struct harp_conn *conn, struct frame *seg);
/* True if the NIC may still read frames of seg. Such a frame must not be queued again: that would
 * overwrite headers while the NIC reads them, and the NIC may identify frames by content. Drivers
 * that complete each descriptor separately hold the end of a packet longer. */
static inline bool tcp_gso_is_busy(const struct frame *seg)
{
	return seg->nic_refs > 0 || (seg->frag && tcp_gso_is_read(seg));
}

/* Returns a copy of seg, to be sent in its place; NULL: too few frames are free. */
struct frame *tcp_gso_copy(struct harp_conn *conn, const struct frame *seg, uint32_t *frags);

/* ---- tcp_external.c ---- */
/* Queues bytes of the application's memory; returns their number. *exhausted: it stopped because
 * the connection may take no more external frames. */
size_t tcp_external_queue(struct harp_conn *conn, struct frame_memory *memory, const uint8_t *src,
			  size_t len, bool *exhausted);
/* Returns a new external frame for the bytes of f after the first `keep`, which the caller must
 * remove from f. NULL: none is free. */
struct frame *tcp_external_cut(struct harp_conn *conn, struct frame *f, uint32_t keep);

/* Copies all queued data of this memory (NULL: of any) into frames of the pool. Returns the number
 * of bytes, or -ENOBUFS. */
ssize_t tcp_external_evict(struct harp_conn *conn, const struct frame_memory *memory);

/* ---- tcp_sndq.c ---- */
/* True if exactly one segment is outstanding. */
static inline bool tcp_sndq_is_single(const struct harp_conn *conn)
{
	return conn->sndq.head && conn->sndq.head->next == conn->sndq.unsent;
}
/* Accounts for `frags` frames of a segment, starting at f, that are about to be freed. */
void tcp_sndq_uncount(struct harp_conn *conn, const struct frame *f, uint32_t frags);
/* Returns the newest segment if it may take another frame, else a new empty one. NULL: budget or
 * pool exhausted. */
struct frame *tcp_sndq_growing(struct harp_conn *conn);
struct frame *tcp_sndq_last_frag(struct frame *seg);
/* Copies bytes into the queue; returns their number. */
size_t tcp_sndq_copy(struct harp_conn *conn, const uint8_t *src, size_t len);
size_t tcp_sndq_space(const struct harp_conn *conn);
struct frame *tcp_sndq_alloc(struct harp_conn *conn);
void tcp_sndq_frame(struct harp_conn *conn, struct frame *f);
/* Notes a send call of the application. complete: all of its bytes were accepted. */
static inline void tcp_sndq_note_send(struct harp_conn *conn, bool complete)
{
	conn->flags = (conn->flags & ~(uint32_t)CONN_PUSH) | (complete ? CONN_PUSH : 0u);
}
/* Queues the FIN; false if no frame is free. */
bool tcp_sndq_fin(struct harp_conn *conn);
/* Frees data before ack and records its delivery in a. */
void tcp_sndq_acked(struct harp_conn *conn, uint32_t ack, struct tcp_ack *a);
void tcp_sndq_purge(struct harp_conn *conn);
/* Maximum payload of a segment on this NIC. */
uint32_t tcp_sndq_segment_bytes_max(const struct tcp *tcp);

/* ---- tcp_resegment.c ---- */
/* Splits a segment after `bytes`. The remainder, perhaps only a FIN, becomes the next segment.
 * False if no frame is free. */
bool tcp_resegment_split(struct harp_conn *conn, struct frame *seg, uint32_t bytes);
/* Extends the first unsent segment to `bytes` with the data after it, which must suffice. False: a
 * frame is missing, or the segment has too many; it may have grown in part. */
bool tcp_resegment_gather(struct harp_conn *conn, uint32_t bytes);
/* Removes the first n bytes of a segment, but not all, because they are acknowledged. */
void tcp_resegment_trim(struct harp_conn *conn, struct frame *seg, uint32_t n);
/* Copies a segment's payload into frames of the pool, replacing all frames but the first. Returns
 * the bytes copied, or -ENOBUFS with nothing changed. */
ssize_t tcp_resegment_into_pool(struct harp_conn *conn, struct frame *seg);

#endif
