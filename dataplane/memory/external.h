/* SPDX-License-Identifier: Apache-2.0 */
/*
 * external.h - external frames refer to pieces of the application's memory that are sent in place.
 *
 * An external frame is a struct frame whose index follows those of the pool's region. It is held
 * and released like other frames. It is never the first frame of a packet, because headers need a
 * frame of the pool. Its bytes are within one memory region that was added to the NIC; the region
 * stays while external frames refer to it.
 */
#ifndef HARP_MEMORY_EXTERNAL_H
#define HARP_MEMORY_EXTERNAL_H

#include "memory/frame.h"

/* External frames reserved for splits, so that queued data can always be sent. */
#define EXTERNAL_RESERVE 32u

/* A memory region added to the NIC. */
struct frame_memory {
	const uint8_t *base;
	size_t bytes;
	uint32_t adds;  /* calls of external_memory_add(), minus removals */
	uint32_t users; /* external frames that refer to it */
	bool leaving;   /* being removed: no new references */
};

/* For a pool with allocated frames. -ENOMEM. */
int external_init(struct frame_pool *pool, const struct harp_nic_caps *caps);
void external_destroy(struct frame_pool *pool);

/* The region that contains data[0..len) and is not being removed; NULL: none. */
struct frame_memory *external_find(struct frame_pool *pool, const void *data, size_t len);
/* The region that was added with exactly this range; NULL: none. */
struct frame_memory *external_find_exact(struct frame_pool *pool, const void *base, size_t bytes);
/* Adds a region, or increments its count. -ENOMEM. */
int external_memory_add(struct frame_pool *pool, const void *base, size_t bytes);
/* Decrements a region's count and frees the region at zero, when it must have no users. */
void external_memory_drop(struct frame_pool *pool, struct frame_memory *memory);

/* Allocates an external frame for len bytes at data, inside memory, with stack_refs 1. NULL if
 * `floor` or fewer are free. Its capacity is its length, so it never grows. */
struct frame *external_alloc(struct frame_pool *pool, struct frame_memory *memory,
			     const uint8_t *data, uint32_t len, uint32_t floor);
static inline struct frame_memory *external_memory(const struct frame *f)
{
	return (struct frame_memory *)(uintptr_t)f->owner;
}
/* For frame.c: frees an external frame without references. */
void external_recycle(struct frame_pool *pool, struct frame *f);

#endif
