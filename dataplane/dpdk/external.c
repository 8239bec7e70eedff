/* SPDX-License-Identifier: Apache-2.0 */
/* external.c - the application's memory as mbufs (rte_pktmbuf_attach_extbuf), of one queue. */
#include "dpdk/external.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXTERNAL_MBUFS_MORE 64u /* an mbuf goes home a moment after its item does */

/* Any thread: the driver has let go. */
static void external_freed(void *bytes, void *opaque)
{
	struct external_item *item = opaque;
	struct external *external = item->external;

	(void)bytes;
	rte_spinlock_lock(&external->lock);
	if (!item->undone)
		external->done[external->done_count++] = (uint32_t)(item - external->items);
	rte_spinlock_unlock(&external->lock);
}

static void external_free(struct external *external)
{
	rte_mempool_free(external->mempool);
	free(external->memory);
	free(external->where);
	free(external->items);
	free(external->done);
	free(external);
}

int external_create(struct external **out, uint32_t count, struct rte_device *device, int numa_node)
{
	static unsigned number;
	struct external *external = calloc(1, sizeof(*external));
	char name[RTE_MEMPOOL_NAMESIZE];

	if (!external)
		return -ENOMEM;
	snprintf(name, sizeof(name), "harp_external_%u",
		 __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
	rte_spinlock_init(&external->lock);
	external->count = count;
	external->device = device;
	external->items = calloc(count, sizeof(*external->items));
	external->where = calloc(count, sizeof(*external->where));
	external->done = calloc(count, sizeof(*external->done));
	external->mempool =
		rte_pktmbuf_pool_create(name, count + EXTERNAL_MBUFS_MORE, 0, 0, 0, numa_node);
	if (!external->items || !external->where || !external->done || !external->mempool) {
		external_free(external);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < count; i++) {
		external->items[i].external = external;
		external->items[i].shared.free_cb = external_freed;
		external->items[i].shared.fcb_opaque = &external->items[i];
	}
	*out = external;
	return 0;
}

/* An mbuf goes home last, when its item's callback has returned. */
bool external_out(const struct external *external)
{
	return !rte_mempool_full(external->mempool);
}

static void external_forget_memory(struct external *external)
{
	for (uint32_t i = 0; i < external->memory_count && external->device; i++)
		mapping_remove(external->device, external->memory[i].base,
			       external->memory[i].bytes);
	external->memory_count = 0;
}

void external_reset(struct external *external)
{
	external_forget_memory(external);
	for (uint32_t i = 0; i < external->count; i++)
		external->items[i].len = 0;
	external->done_count = 0;
}

void external_destroy(struct external *external)
{
	if (!external)
		return;
	external_forget_memory(external);
	if (!external_out(external))
		external_free(external);
}

/* ---- what is sent ------------------------------------------------------------------------------ */

struct rte_mbuf *external_make(struct external *external, uint32_t i, uint32_t len)
{
	struct external_item *item = &external->items[i];
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(external->mempool);

	if (!mbuf)
		return NULL;
	item->bytes = external->where[i];
	item->len = len;
	item->undone = false;
	rte_mbuf_ext_refcnt_set(&item->shared, 1);
	/* Nobody writes there. The address is what a device reads by: mapping.c. */
	rte_pktmbuf_attach_extbuf(mbuf, (void *)(uintptr_t)item->bytes, (rte_iova_t)item->bytes,
				  (uint16_t)len, &item->shared);
	mbuf->data_len = (uint16_t)len;
	mbuf->pkt_len = len;
	return mbuf;
}

void external_undo(struct rte_mbuf *mbuf)
{
	struct external_item *item = mbuf->shinfo->fcb_opaque;

	item->undone = true;
	item->len = 0;
	mbuf->next = NULL;
	mbuf->nb_segs = 1;
	rte_pktmbuf_free_seg(mbuf);
}

void external_refuse(struct external *external, uint32_t i)
{
	rte_spinlock_lock(&external->lock);
	external->done[external->done_count++] = i;
	rte_spinlock_unlock(&external->lock);
}

unsigned external_complete(struct external *external, uint32_t *items, unsigned max)
{
	unsigned n = 0;

	if (__atomic_load_n(&external->done_count, __ATOMIC_RELAXED) == 0)
		return 0;
	rte_spinlock_lock(&external->lock);
	while (n < max && external->done_count > 0)
		items[n++] = external->done[--external->done_count];
	rte_spinlock_unlock(&external->lock);
	for (unsigned i = 0; i < n; i++)
		external->items[items[i]].len = 0;
	return n;
}

/* ---- memory ------------------------------------------------------------------------------------ */

int external_memory_add(struct external *external, const void *base, size_t bytes)
{
	struct external_memory *more;
	int err;

	if (!base || bytes == 0)
		return -EINVAL;
	more = realloc(external->memory, (external->memory_count + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	external->memory = more;
	err = external->device ? mapping_add(external->device, base, bytes) : 0;
	if (err)
		return err;
	more[external->memory_count++] = (struct external_memory){ base, bytes };
	return 0;
}

static bool external_lies_in(const struct external_memory *m, const struct external_item *item)
{
	return item->bytes >= m->base && (size_t)(item->bytes - m->base) <= m->bytes &&
	       item->len <= m->bytes - (size_t)(item->bytes - m->base);
}

/* Does something that is out lie in no memory but the last of the list? */
static bool external_needs_last(const struct external *external)
{
	uint32_t last = external->memory_count - 1;

	for (uint32_t i = 0; i < external->count; i++) {
		const struct external_item *item = &external->items[i];
		bool elsewhere = false;

		if (item->len == 0 || !external_lies_in(&external->memory[last], item))
			continue;
		for (uint32_t m = 0; m < last && !elsewhere; m++)
			elsewhere = external_lies_in(&external->memory[m], item);
		if (!elsewhere && rte_mbuf_ext_refcnt_read(&item->shared) > 0)
			return true;
	}
	return false;
}

int external_memory_remove(struct external *external, const void *base, size_t bytes)
{
	struct external_memory *last, removed;
	uint32_t i = 0;

	while (i < external->memory_count &&
	       (external->memory[i].base != base || external->memory[i].bytes != bytes))
		i++;
	if (i == external->memory_count)
		return -ENOENT;
	last = &external->memory[external->memory_count - 1];
	removed = external->memory[i];
	external->memory[i] = *last;
	*last = removed;
	if (external_needs_last(external))
		return -EBUSY;
	external->memory_count--;
	if (external->device)
		mapping_remove(external->device, base, bytes);
	return 0;
}
