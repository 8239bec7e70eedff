/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h - frames and their pool: one struct frame per chunk of the NIC's memory region.
 *
 * A frame has at most two references: one of the stack (a queue or the application) and one of the
 * NIC. It returns to the pool when both are released: acknowledged and completed. A packet is a
 * frame and its fragments, linked by `frag`; a queue links packets by `next`. A GSO packet consists
 * of several packets of a queue, which the NIC gets as one.
 */
#ifndef HARP_MEMORY_FRAME_H
#define HARP_MEMORY_FRAME_H

#include <assert.h>
#include "harp.h"

/*
 * Space for all headers before the payload of a frame that we fill: Ethernet 14 + VLAN 4 + IPv6 40
 * + TCP 60 = 118. The rest aligns packets for the kernel's copy (rep movsb) to offset 64 of a page
 * or half page: on AMD Zen a copy is several times slower if the destination is just above the
 * source, modulo 4096. With 128 bytes, packets began at offset 62; with 256, a stream over veth
 * moves an eighth more frames at MTU 1500 and a fifth more at 9000.
 */
#define FRAME_HEADROOM_BYTES 256u

enum frame_flag {
	FRAME_CSUM = 0x01, /* csum covers data[0..len): the payload's one's-complement sum */
	FRAME_RX_CSUM_VALID = 0x02, /* the NIC verified the transport checksum */
	FRAME_SENT = 0x04,          /* transmitted once; its segment boundary is fixed */
	FRAME_RETRANS = 0x08,
	FRAME_FIN = 0x10,
	FRAME_LENT = 0x20,    /* held by the application */
	FRAME_RX_NIC = 0x40,  /* held by the NIC alone, for reception */
	FRAME_LENT_RX = 0x80, /* with FRAME_LENT: a received frame, not one allocated to send */
};

struct frame {
	struct harp_frame pub; /* data, len, capacity: must be first */
	struct frame *next;    /* next packet of a queue */
	struct frame *frag;    /* next frame of the same packet */
	uint32_t index;        /* chunk number in the region; from frame_count on: external.h */
	uint8_t nic_refs;      /* transmissions of this frame that the NIC has not completed */
	uint8_t stack_refs;    /* 1 while a queue or the application holds it */
	uint8_t flags;         /* enum frame_flag */
	uint8_t tcp_flags;     /* TCP: enum seg_flag */
	uint32_t csum;         /* see FRAME_CSUM; not folded further than 32 bits */
	uint32_t seq;          /* TCP: sequence number of data[0] */
	uint64_t sent_ns;      /* TCP: last transmission; RACK and RTT sampling read it */
	uint64_t owner;        /* set by the layer that holds it (transport: the connection) */
};
static_assert(sizeof(struct frame) == 64, "one cache line per frame");

struct frame_pool {
	uint8_t *base;
	uint32_t frame_size, frame_shift, frame_count;
	uint32_t free_count;
	/* offset of the data in a frame, after the NIC's bytes and the headroom */
	uint32_t data_at;
	uint32_t *free_stack; /* indices of free frames, newest last */
	struct frame *frames; /* frame_count records, and external_count of external frames */
	/* External frames (external.h). */
	uint32_t external_count, external_free_count;
	uint32_t *external_free;  /* indices of free ones, from frame_count on */
	const uint8_t **external; /* the NIC's array of their addresses */
	struct frame_memory **memory;
	uint32_t memory_count, memory_room;
	uint32_t memory_hint; /* index of the last search result */
};

/* Sets up a pool over caps->frame_base; all frames free. -EINVAL, -ENOMEM. */
int frame_pool_init(struct frame_pool *pool, const struct harp_nic_caps *caps);
void frame_pool_destroy(struct frame_pool *pool);

/* Allocates an empty frame with stack_refs 1. Data begins FRAME_HEADROOM_BYTES after the NIC's
 * reserved bytes; capacity extends to the chunk's end. NULL if fewer than `floor` frames would
 * remain, which keeps the fill ring supplied. */
struct frame *frame_alloc(struct frame_pool *pool, uint32_t floor);
/* Releases the stack's reference to this frame and its fragments. */
void frame_release_packet(struct frame_pool *pool, struct frame *f);
/* The same for one frame without its fragments. */
void frame_release(struct frame_pool *pool, struct frame *f);
/* Removes n bytes from the front of a packet and frees empty frames. Returns the new first frame;
 * NULL: the packet is empty. */
struct frame *frame_packet_cut_front(struct frame_pool *pool, struct frame *f, uint32_t n);
/* Truncates a packet to its first len bytes (len > 0, at most its length). */
void frame_packet_cut_back(struct frame_pool *pool, struct frame *f, uint32_t len);
/* The NIC completed one transmission of this frame. */
void frame_nic_done(struct frame_pool *pool, struct frame *f);

/* Checksum of a packet's payload (unfolded), cached per frame (FRAME_CSUM). Stores the payload's
 * length in *len unless len is NULL. */
uint32_t frame_packet_sum(struct frame *packet, uint32_t *len);
/* The same with a fast path for one frame whose sum was computed when it was written. */
static inline uint32_t frame_sum(struct frame *packet)
{
	return (packet->flags & FRAME_CSUM) && !packet->frag ? packet->csum
							     : frame_packet_sum(packet, NULL);
}

/* The frame that contains this region offset; NULL: outside. */
static inline struct frame *frame_of_offset(struct frame_pool *pool, uint64_t offset)
{
	uint64_t index = offset >> pool->frame_shift;
	return index < pool->frame_count + pool->external_count ? &pool->frames[index] : NULL;
}
/* The data is in the application's memory. */
static inline bool frame_is_external(const struct frame_pool *pool, const struct frame *f)
{
	return f->index >= pool->frame_count;
}
/* The frame that follows f in a GSO packet; *more packets follow *packet. Skips the first frame of
 * a packet if it has no payload. NULL: f is the last frame. */
static inline struct frame *frame_after(const struct frame *f, struct frame **packet,
					uint32_t *more)
{
	struct frame *next = f->frag;

	while (!next && *more > 0) {
		--*more;
		*packet = (*packet)->next;
		next = (*packet)->pub.len > 0 ? *packet : (*packet)->frag;
	}
	return next;
}
static inline uint64_t frame_offset(const struct frame_pool *pool, const uint8_t *p)
{
	return (uint64_t)(p - pool->base);
}
static inline uint8_t *frame_chunk(const struct frame_pool *pool, const struct frame *f)
{
	return pool->base + ((uint64_t)f->index << pool->frame_shift);
}

#endif
