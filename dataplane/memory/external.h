/* SPDX-License-Identifier: Apache-2.0 */
/*
 * external.h - external frames: records of pieces of the application's memory that are sent in place.
 *
 * A record is a struct frame like any other, with a number behind those of the region, and is held and
 * let go in the same way. It is always a continuation frame (by ->frag): headers need a frame of the
 * pool before it. Its bytes are within one piece of *memory* that the NIC has been told of, and as long
 * as a record refers to a piece the piece stays.
 */
#ifndef HARP_MEMORY_EXTERNAL_H
#define HARP_MEMORY_EXTERNAL_H

#include "memory/frame.h"

/* Records that only cutting may take: what is queued must always be able to leave. */
#define EXTERNAL_RESERVE 32u

/* A piece of memory, as it was added. */
struct frame_memory {
	const uint8_t *base;
	size_t bytes;
	uint32_t adds;  /* how often */
	uint32_t users; /* records that refer to it, free ones not */
	bool leaving;   /* its application has asked for it back: no new ones */
};

/* Of a pool whose frames are allocated. -ENOMEM. */
int external_init(struct frame_pool *pool, const struct harp_nic_caps *caps);
void external_destroy(struct frame_pool *pool);

/* The piece that holds all of data[0..len) and is not leaving; NULL: none does. */
struct frame_memory *external_find(struct frame_pool *pool, const void *data, size_t len);
/* The piece that was added as exactly this; NULL: none was. */
struct frame_memory *external_find_exact(struct frame_pool *pool, const void *base, size_t bytes);
/* Notes a piece, or that it was added once more. -ENOMEM. */
int external_memory_add(struct frame_pool *pool, const void *base, size_t bytes);
/* Takes one adding back; without any the piece, which has no users, is forgotten. */
void external_memory_drop(struct frame_pool *pool, struct frame_memory *memory);

/* A record of len bytes at data, which lie in memory, with stack_refs 1; NULL when `floor` or fewer are
 * free. Its capacity is its length: it never grows into what follows. */
struct frame *external_alloc(struct frame_pool *pool, struct frame_memory *memory,
			     const uint8_t *data, uint32_t len, uint32_t floor);
static inline struct frame_memory *external_memory(const struct frame *f)
{
	return (struct frame_memory *)(uintptr_t)f->owner;
}
/* frame.c: both holders have let go. */
void external_go_home(struct frame_pool *pool, struct frame *f);

#endif
