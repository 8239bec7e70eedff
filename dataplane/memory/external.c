/* SPDX-License-Identifier: Apache-2.0 */
/* external.c - external frames, and the memory regions that they refer to. */
#include "memory/external.h"

#include <errno.h>
#include <stdlib.h>

int external_init(struct frame_pool *pool, const struct harp_nic_caps *caps)
{
	uint32_t count = caps->external_count;

	if (count == 0)
		return 0;
	pool->external_free = malloc(count * sizeof(*pool->external_free));
	if (!pool->external_free)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++)
		pool->external_free[i] = pool->frame_count + count - 1 - i;
	pool->external_count = count;
	pool->external_free_count = count;
	pool->external = caps->external;
	return 0;
}

void external_destroy(struct frame_pool *pool)
{
	for (uint32_t i = 0; i < pool->memory_count; i++)
		free(pool->memory[i]);
	free(pool->memory);
	free(pool->external_free);
}

static bool external_holds(const struct frame_memory *m, const uint8_t *data, size_t len)
{
	return data >= m->base && len <= m->bytes && (size_t)(data - m->base) <= m->bytes - len;
}

struct frame_memory *external_find(struct frame_pool *pool, const void *data, size_t len)
{
	/* Starts at the last match, because applications send a buffer from start to end. */
	for (uint32_t i = 0, at = pool->memory_hint; i < pool->memory_count; i++, at++) {
		if (at >= pool->memory_count)
			at = 0;
		if (external_holds(pool->memory[at], data, len) && !pool->memory[at]->leaving) {
			pool->memory_hint = at;
			return pool->memory[at];
		}
	}
	return NULL;
}

struct frame_memory *external_find_exact(struct frame_pool *pool, const void *base, size_t bytes)
{
	for (uint32_t i = 0; i < pool->memory_count; i++)
		if (pool->memory[i]->base == base && pool->memory[i]->bytes == bytes)
			return pool->memory[i];
	return NULL;
}

int external_memory_add(struct frame_pool *pool, const void *base, size_t bytes)
{
	struct frame_memory *m = external_find_exact(pool, base, bytes);

	if (m) {
		m->adds++;
		m->leaving = false;
		return 0;
	}
	if (pool->memory_count == pool->memory_room) {
		uint32_t room = pool->memory_room ? pool->memory_room * 2 : 16;
		struct frame_memory **more = realloc(pool->memory, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		pool->memory = more;
		pool->memory_room = room;
	}
	m = malloc(sizeof(*m));
	if (!m)
		return -ENOMEM;
	*m = (struct frame_memory){ .base = base, .bytes = bytes, .adds = 1 };
	pool->memory[pool->memory_count++] = m;
	return 0;
}

void external_memory_drop(struct frame_pool *pool, struct frame_memory *memory)
{
	uint32_t i = 0;

	if (--memory->adds > 0)
		return;
	assert(memory->users == 0);
	while (pool->memory[i] != memory)
		i++;
	pool->memory[i] = pool->memory[--pool->memory_count];
	pool->memory_hint = 0;
	free(memory);
}

struct frame *external_alloc(struct frame_pool *pool, struct frame_memory *memory,
			     const uint8_t *data, uint32_t len, uint32_t floor)
{
	struct frame *f;

	if (pool->external_free_count <= floor)
		return NULL;
	f = &pool->frames[pool->external_free[--pool->external_free_count]];
	assert(f->stack_refs == 0 && f->nic_refs == 0);
	assert(external_holds(memory, data, len));
	/* Never written: headers are in the preceding frame, and reception uses other frames. */
	f->pub.data = (uint8_t *)(uintptr_t)data;
	f->pub.len = len;
	f->pub.capacity = len;
	f->next = NULL;
	f->frag = NULL;
	f->stack_refs = 1;
	f->flags = 0;
	f->csum = 0;
	f->owner = (uintptr_t)memory;
	memory->users++;
	return f;
}

void external_recycle(struct frame_pool *pool, struct frame *f)
{
	assert(pool->external_free_count < pool->external_count);
	external_memory(f)->users--;
	pool->external_free[pool->external_free_count++] = f->index;
}
