/* SPDX-License-Identifier: Apache-2.0 */
/* external.c - the application's memory as mbufs (rte_pktmbuf_attach_extbuf), for one queue. */
#include "dpdk/external.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXTERNAL_OPS_NAME "harp_external"
/* A device completes packets within microseconds. Some drivers check for that only on the next
 * transmission, or never, until their queue is stopped. A paused link takes longer; then only
 * stopping the device helps. */
#define EXTERNAL_QUEUE_NS UINT64_C(20000000)
#define EXTERNAL_PORT_NS UINT64_C(1000000000)

/* The mempool: nothing is allocated from it, and freed mbufs are completions. */

static inline uint32_t *external_number(void *mbuf)
{
	return rte_mbuf_to_priv(mbuf);
}

/* Records that the driver has released item i. Called by the owner, or with no thread inside. */
static inline void external_sort(struct external *external, uint32_t i)
{
	external->freed++;
	if (!external->items[i].is_refused)
		external->done[external->done_count++] = i;
}

/* Processes the frees of other threads. */
static void external_collect(struct external *external)
{
	if (__atomic_load_n(&external->remote_free_count, __ATOMIC_RELAXED) == 0)
		return;
	rte_spinlock_lock(&external->lock);
	for (uint32_t n = 0; n < external->remote_free_count; n++)
		external_sort(external, external->remote_free[n]);
	__atomic_store_n(&external->remote_free_count, 0, __ATOMIC_RELAXED);
	rte_spinlock_unlock(&external->lock);
}

static void external_free_remote(struct external *external, uint32_t i)
{
	rte_spinlock_lock(&external->lock);
	external->remote_free[external->remote_free_count] = i;
	__atomic_store_n(&external->remote_free_count, external->remote_free_count + 1,
			 __ATOMIC_RELAXED);
	rte_spinlock_unlock(&external->lock);
}

/* Any thread. The owner takes no lock, because an atomic instruction would wait until the driver's
 * copies of all packets have reached memory. */
static int external_enqueue(struct rte_mempool *mempool, void *const *mbufs, unsigned count)
{
	struct external *external = mempool->pool_data;
	bool owner =
		external && __atomic_load_n(&external->owner, __ATOMIC_RELAXED) == pthread_self();

	if (!external)
		return 0; /* during creation */
	for (unsigned n = 0; n < count; n++) {
		if (owner)
			external_sort(external, *external_number(mbufs[n]));
		else
			external_free_remote(external, *external_number(mbufs[n]));
	}
	return 0;
}

static int external_dequeue(struct rte_mempool *mempool, void **mbufs, unsigned count)
{
	(void)mempool;
	(void)mbufs;
	(void)count;
	return -ENOBUFS;
}

static unsigned external_get_count(const struct rte_mempool *mempool)
{
	const struct external *external = mempool->pool_data;

	return external ? external->count - (external->attached - external->freed) : 0;
}

static int external_ops_alloc(struct rte_mempool *mempool)
{
	mempool->pool_data = NULL;
	return 0;
}

static void external_ops_free(struct rte_mempool *mempool)
{
	(void)mempool;
}

static const struct rte_mempool_ops external_ops = {
	.name = EXTERNAL_OPS_NAME,
	.alloc = external_ops_alloc,
	.free = external_ops_free,
	.enqueue = external_enqueue,
	.dequeue = external_dequeue,
	.get_count = external_get_count,
};
RTE_MEMPOOL_REGISTER_OPS(external_ops);

/* Nothing to do: the driver frees the mbuf right after the bytes. */
static void external_freed(void *bytes, void *opaque)
{
	(void)bytes;
	(void)opaque;
}

static void external_item_init(struct rte_mempool *mempool, void *opaque, void *mbuf, unsigned i)
{
	struct external *external = opaque;
	struct external_item *item = &external->items[i];

	rte_pktmbuf_init(mempool, NULL, mbuf, i);
	*external_number(mbuf) = i;
	*item = (struct external_item){ .mbuf = mbuf,
					.shared.free_cb = external_freed,
					.shared.fcb_opaque = item };
}

/* Creates an mbuf for each item. */
static int external_mempool(struct external *external, int numa_node)
{
	static unsigned number;
	struct rte_pktmbuf_pool_private private = { .mbuf_priv_size = RTE_MBUF_PRIV_ALIGN };
	char name[RTE_MEMPOOL_NAMESIZE];

	snprintf(name, sizeof(name), "harp_external_%u",
		 __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
	external->mempool = rte_mempool_create_empty(name, external->count,
						     sizeof(struct rte_mbuf) + RTE_MBUF_PRIV_ALIGN,
						     0, sizeof(private), numa_node, 0);
	if (!external->mempool ||
	    rte_mempool_set_ops_byname(external->mempool, EXTERNAL_OPS_NAME, NULL) != 0)
		return -ENOMEM;
	rte_pktmbuf_pool_init(external->mempool, &private);
	if (rte_mempool_populate_default(external->mempool) < 0)
		return -ENOMEM;
	rte_mempool_obj_iter(external->mempool, external_item_init, external);
	external->mempool->pool_data = external;
	return 0;
}

static void external_free(struct external *external)
{
	rte_mempool_free(external->mempool);
	free(external->memory);
	free(external->addresses);
	free(external->items);
	free(external->done);
	free(external->remote_free);
	free(external);
}

int external_create(struct external **out, uint32_t count, struct rte_device *device, int numa_node)
{
	struct external *external = calloc(1, sizeof(*external));

	if (!external)
		return -ENOMEM;
	rte_spinlock_init(&external->lock);
	external->count = count;
	external->device = device;
	external->items = calloc(count, sizeof(*external->items));
	external->addresses = calloc(count, sizeof(*external->addresses));
	external->done = calloc(count, sizeof(*external->done));
	external->remote_free = calloc(count, sizeof(*external->remote_free));
	if (!external->items || !external->addresses || !external->done || !external->remote_free ||
	    external_mempool(external, numa_node) != 0) {
		external_free(external);
		return -ENOMEM;
	}
	*out = external;
	return 0;
}

bool external_is_held(const struct external *external)
{
	return external->attached !=
	       external->freed + __atomic_load_n(&external->remote_free_count, __ATOMIC_ACQUIRE);
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
	external_collect(external);
	external_forget_memory(external);
	for (uint32_t i = 0; i < external->count; i++)
		external->items[i].len = 0;
	external->done_count = 0;
}

/* Objects of closed ports whose mbufs a driver still holds. Under the lock. */
static struct external *external_retired;
static pthread_mutex_t external_retired_lock = PTHREAD_MUTEX_INITIALIZER;

/* Takes the lock, so that the thread that freed the last mbuf has left it. */
static bool external_is_returned(struct external *external)
{
	bool held;

	rte_spinlock_lock(&external->lock);
	held = external_is_held(external);
	rte_spinlock_unlock(&external->lock);
	return !held;
}

void external_reap(void)
{
	pthread_mutex_lock(&external_retired_lock);
	for (struct external **at = &external_retired, *external; (external = *at);) {
		if (!external_is_returned(external)) {
			at = &external->next_retired;
			continue;
		}
		*at = external->next_retired;
		external_free(external);
	}
	pthread_mutex_unlock(&external_retired_lock);
}

void external_retire(struct external *external)
{
	if (!external)
		return;
	external_forget_memory(external);
	pthread_mutex_lock(&external_retired_lock);
	external->next_retired = external_retired;
	external_retired = external;
	pthread_mutex_unlock(&external_retired_lock);
	external_reap();
}

/* transmission */

struct rte_mbuf *external_make(struct external *external, uint32_t i, uint32_t len)
{
	struct external_item *item = &external->items[i];
	struct rte_mbuf *mbuf = item->mbuf;

	external->attached++;
	item->bytes = external->addresses[i];
	item->len = len;
	item->is_refused = false;
	rte_mbuf_ext_refcnt_set(&item->shared, 1);
	/* Never written. mapping.c maps this address for the device. */
	rte_pktmbuf_attach_extbuf(mbuf, (void *)(uintptr_t)item->bytes, (rte_iova_t)item->bytes,
				  (uint16_t)len, &item->shared);
	mbuf->data_len = (uint16_t)len;
	mbuf->pkt_len = len;
	return mbuf;
}

void external_undo(struct rte_mbuf *mbuf)
{
	struct external_item *item = mbuf->shinfo->fcb_opaque;

	item->is_refused = true;
	item->len = 0;
	mbuf->next = NULL;
	mbuf->nb_segs = 1;
	rte_pktmbuf_free_seg(mbuf);
}

void external_refuse(struct external *external, uint32_t i)
{
	external->done[external->done_count++] = i;
}

unsigned external_complete(struct external *external, uint32_t *items, unsigned max)
{
	unsigned n = 0;

	external_collect(external);
	while (n < max && external->done_count > 0)
		items[n++] = external->done[--external->done_count];
	for (unsigned i = 0; i < n; i++)
		external->items[items[i]].len = 0;
	return n;
}

/* ---- memory ---- */

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
	more[external->memory_count++] = (struct external_memory){ .base = base, .bytes = bytes };
	return 0;
}

static bool external_contains(const struct external_memory *m, const struct external_item *item)
{
	return item->bytes >= m->base && (size_t)(item->bytes - m->base) <= m->bytes &&
	       item->len <= m->bytes - (size_t)(item->bytes - m->base);
}

/* True if an item in flight is in no region except the last of the list. */
static bool external_needs_last(const struct external *external)
{
	uint32_t last = external->memory_count - 1;

	for (uint32_t i = 0; i < external->count; i++) {
		const struct external_item *item = &external->items[i];
		bool in_other = false;

		if (item->len == 0 || !external_contains(&external->memory[last], item))
			continue;
		for (uint32_t m = 0; m < last && !in_other; m++)
			in_other = external_contains(&external->memory[m], item);
		if (!in_other && rte_mbuf_ext_refcnt_read(&item->shared) > 0)
			return true;
	}
	return false;
}

/* NULL: it was not added. */
static struct external_memory *external_memory_find(struct external *external, const void *base,
						    size_t bytes)
{
	for (uint32_t i = 0; i < external->memory_count; i++)
		if (external->memory[i].base == base && external->memory[i].bytes == bytes)
			return &external->memory[i];
	return NULL;
}

int external_memory_remove(struct external *external, const void *base, size_t bytes)
{
	struct external_memory *m = external_memory_find(external, base, bytes), match, *last;

	if (!m)
		return -ENOENT;
	last = &external->memory[external->memory_count - 1];
	match = *m;
	*m = *last;
	*last = match;
	if (external_needs_last(external))
		return -EBUSY;
	external->memory_count--;
	if (external->device)
		mapping_remove(external->device, base, bytes);
	return 0;
}

enum port_flush external_memory_flush(struct external *external, const void *base, size_t bytes,
				      uint64_t now_ns)
{
	struct external_memory *m = external_memory_find(external, base, bytes);

	if (!m)
		return PORT_FLUSH_NONE;
	if (m->request_ns == 0)
		m->request_ns = now_ns;
	if (m->flushed < PORT_FLUSH_QUEUE && now_ns - m->request_ns >= EXTERNAL_QUEUE_NS)
		return m->flushed = PORT_FLUSH_QUEUE;
	if (m->flushed < PORT_FLUSH_PORT && now_ns - m->request_ns >= EXTERNAL_PORT_NS)
		return m->flushed = PORT_FLUSH_PORT;
	return PORT_FLUSH_NONE;
}
