/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.c - the pool: a stack of free frame numbers. The most recently used one is on top, because
 * it is most likely still cached.
 */
#include "memory/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "memory/external.h"

int frame_pool_init(struct frame_pool *pool, const struct harp_nic_caps *caps)
{
	uint32_t size = caps->frame_size, count = caps->frame_count;
	uint64_t records = (uint64_t)count + caps->external_count;
	int err;

	*pool = (struct frame_pool){ 0 };
	if (!caps->frame_base || count == 0 || size <= 2 * FRAME_HEADROOM_BYTES ||
	    caps->frame_reserved > size - 2 * FRAME_HEADROOM_BYTES || (size & (size - 1)) != 0 ||
	    caps->rx_headroom >= size || records > UINT32_MAX ||
	    (caps->external_count > 0 && !caps->external))
		return -EINVAL;

	pool->base = caps->frame_base;
	pool->frame_size = size;
	pool->frame_shift = (uint32_t)__builtin_ctz(size);
	pool->frame_count = count;
	pool->data_at = caps->frame_reserved + FRAME_HEADROOM_BYTES;
	pool->free_stack = malloc(count * sizeof(*pool->free_stack));
	pool->frames = aligned_alloc(sizeof(struct frame), records * sizeof(struct frame));
	err = external_init(pool, caps);
	if (!pool->free_stack || !pool->frames || err) {
		frame_pool_destroy(pool);
		return -ENOMEM;
	}
	memset(pool->frames, 0, records * sizeof(struct frame));
	for (uint32_t i = 0; i < records; i++)
		pool->frames[i].index = i;
	for (uint32_t i = 0; i < count; i++)
		pool->free_stack[i] = count - 1 - i;
	pool->free_count = count;
	return 0;
}

void frame_pool_destroy(struct frame_pool *pool)
{
	external_destroy(pool);
	free(pool->free_stack);
	free(pool->frames);
	*pool = (struct frame_pool){ 0 };
}

struct frame *frame_alloc(struct frame_pool *pool, uint32_t floor)
{
	if (pool->free_count <= floor)
		return NULL;

	struct frame *f = &pool->frames[pool->free_stack[--pool->free_count]];

	assert(f->stack_refs == 0 && f->nic_refs == 0 && !(f->flags & FRAME_RX_NIC));
	f->pub.data = frame_chunk(pool, f) + pool->data_at;
	f->pub.len = 0;
	f->pub.capacity = pool->frame_size - pool->data_at;
	f->next = NULL;
	f->frag = NULL;
	f->stack_refs = 1;
	f->flags = 0;
	f->csum = 0;
	f->seq = 0;
	f->sent_ns = 0;
	f->owner = 0;
	return f;
}

static inline void frame_recycle(struct frame_pool *pool, struct frame *f)
{
	f->flags = 0;
	if (__builtin_expect(frame_is_external(pool, f), 0)) {
		external_recycle(pool, f);
		return;
	}
	assert(pool->free_count < pool->frame_count);
	pool->free_stack[pool->free_count++] = f->index;
}

void frame_release(struct frame_pool *pool, struct frame *f)
{
	assert(f->index < pool->frame_count + pool->external_count && &pool->frames[f->index] == f);
	assert(f->stack_refs == 1);
	f->stack_refs = 0;
	if (f->nic_refs == 0)
		frame_recycle(pool, f);
}

void frame_release_packet(struct frame_pool *pool, struct frame *f)
{
	while (f) {
		struct frame *frag = f->frag;

		frame_release(pool, f);
		f = frag;
	}
}

struct frame *frame_packet_cut_front(struct frame_pool *pool, struct frame *f, uint32_t n)
{
	while (f && (n > 0 || f->pub.len == 0)) {
		if (n < f->pub.len) {
			f->pub.data += n;
			f->pub.len -= n;
			return f;
		}
		struct frame *rest = f->frag;

		n -= f->pub.len;
		f->frag = NULL;
		frame_release(pool, f);
		f = rest;
	}
	return f;
}

void frame_packet_cut_back(struct frame_pool *pool, struct frame *f, uint32_t len)
{
	while (len > f->pub.len) {
		len -= f->pub.len;
		f = f->frag;
	}
	f->pub.len = len;
	if (f->frag) {
		frame_release_packet(pool, f->frag);
		f->frag = NULL;
	}
}

void frame_nic_done(struct frame_pool *pool, struct frame *f)
{
	assert(f->nic_refs > 0);
	f->nic_refs--;
	if (f->nic_refs == 0 && f->stack_refs == 0)
		frame_recycle(pool, f);
}

uint32_t frame_packet_sum(struct frame *packet, uint32_t *len)
{
	uint32_t sum = 0, offset = 0;

	for (struct frame *f = packet; f; f = f->frag) {
		if (!(f->flags & FRAME_CSUM)) {
			f->csum = csum_partial(f->pub.data, f->pub.len, 0);
			f->flags |= FRAME_CSUM;
		}
		sum = csum_append(sum, f->csum, offset);
		offset += f->pub.len;
	}
	if (len)
		*len = offset;
	return sum;
}
