/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c - frames as mbufs: mempool operations whose lists are a NIC's fill ring and its
 * completions. */
#include "dpdk/pool.h"

#include <errno.h>
#include <rte_errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#define POOL_OPS_NAME "harp"

static inline void pool_push(struct pool_list *list, uint32_t index)
{
	assert(list->count < list->max);
	list->items[list->count++] = index;
}

/* Adds an element to the list that its state determines. Called by the owner. */
static void pool_sort(struct pool *pool, uint32_t index)
{
	switch (pool->state[index]) {
	case POOL_RECEIVING: /* taken, but unused */
		pool->state[index] = POOL_EMPTY;
		pool_push(&pool->empty, index);
		break;
	case POOL_SENDING:
		pool->state[index] = POOL_STACK;
		pool_push(&pool->done, index);
		break;
	default: /* not in use: freed twice, or never taken */
		break;
	}
}

/* The same for a spare. Under the lock. */
static void pool_sort_spare(struct pool *pool, uint32_t index)
{
	if (pool->state[index] != POOL_SPARE_HELD)
		return; /* freed twice, or never taken */
	pool->state[index] = POOL_SPARE;
	pool->spare_held--;
	pool_push(&pool->spare, index);
}

void pool_collect(struct pool *pool)
{
	rte_spinlock_lock(&pool->lock);
	for (uint32_t i = 0; i < pool->remote_free.count; i++)
		pool_sort(pool, pool->remote_free.items[i]);
	__atomic_store_n(&pool->remote_free.count, 0, __ATOMIC_RELAXED);
	rte_spinlock_unlock(&pool->lock);
}

static bool pool_is_owner(const struct pool *pool)
{
	return __atomic_load_n(&pool->owner, __ATOMIC_RELAXED) == pthread_self();
}

static void pool_free_remote(struct pool *pool, uint32_t index)
{
	rte_spinlock_lock(&pool->lock);
	if (index >= pool->frame_count)
		pool_sort_spare(pool, index);
	else if (pool->remote_free.count < pool->remote_free.max)
		__atomic_store_n(&pool->remote_free.count,
				 (pool->remote_free.items[pool->remote_free.count] = index,
				  pool->remote_free.count + 1),
				 __ATOMIC_RELAXED); /* else some elements were freed twice */
	rte_spinlock_unlock(&pool->lock);
}

static int pool_enqueue(struct rte_mempool *mempool, void *const *objects, unsigned count)
{
	struct pool *pool = mempool->pool_data;
	bool owner = pool_is_owner(pool);

	for (unsigned i = 0; i < count; i++) {
		uint32_t index = pool_index(pool, objects[i]);

		assert(index < pool->element_count);
		if (owner && index < pool->frame_count)
			pool_sort(pool, index);
		else
			pool_free_remote(pool, index);
	}
	return 0;
}

/* Returns spares to a driver that sets up a queue. */
static int pool_dequeue_spare(struct pool *pool, void **objects, unsigned count)
{
	int err = -ENOBUFS;

	rte_spinlock_lock(&pool->lock);
	if (pool->spare.count >= count) {
		for (unsigned i = 0; i < count; i++) {
			uint32_t index = pool->spare.items[--pool->spare.count];

			pool->state[index] = POOL_SPARE_HELD;
			objects[i] = pool_mbuf(pool, index);
		}
		pool->spare_held += count;
		err = 0;
	}
	rte_spinlock_unlock(&pool->lock);
	return err;
}

static int pool_dequeue(struct rte_mempool *mempool, void **objects, unsigned count)
{
	struct pool *pool = mempool->pool_data;

	if (!pool_is_owner(pool))
		return pool_dequeue_spare(pool, objects, count);
	if (pool->empty.count < count) {
		pool->alloc_failed++;
		return -ENOBUFS;
	}
	for (unsigned i = 0; i < count; i++) {
		uint32_t index = pool->empty.items[--pool->empty.count];

		pool->state[index] = POOL_RECEIVING;
		objects[i] = pool_mbuf(pool, index);
	}
	return 0;
}

static unsigned pool_get_count(const struct rte_mempool *mempool)
{
	const struct pool *pool = mempool->pool_data;

	return pool->empty.count + pool->spare.count;
}

static int pool_ops_alloc(struct rte_mempool *mempool)
{
	mempool->pool_data = mempool->pool_config;
	return 0;
}

static void pool_ops_free(struct rte_mempool *mempool)
{
	mempool->pool_data = NULL;
}

/* Adds elements one by one, because DPDK reports the boundaries of contiguous chunks. */
static int pool_populate(struct rte_mempool *mempool, unsigned max, void *address, rte_iova_t iova,
			 size_t bytes, rte_mempool_populate_obj_cb_t *init, void *init_arg)
{
	struct pool *pool = mempool->pool_config;
	size_t stride = (size_t)1 << pool->shift;
	unsigned count = 0;

	for (; count < max && (count + 1) * stride <= bytes; count++)
		init(mempool, init_arg, (uint8_t *)address + count * stride + POOL_MBUF_AT,
		     iova == RTE_BAD_IOVA ? RTE_BAD_IOVA : iova + count * stride + POOL_MBUF_AT);
	return (int)count;
}

static const struct rte_mempool_ops pool_ops = {
	.name = POOL_OPS_NAME,
	.alloc = pool_ops_alloc,
	.free = pool_ops_free,
	.enqueue = pool_enqueue,
	.dequeue = pool_dequeue,
	.get_count = pool_get_count,
	.populate = pool_populate,
};
RTE_MEMPOOL_REGISTER_OPS(pool_ops);

/* creation */

static void pool_free(struct pool *pool)
{
	rte_mempool_free(pool->mempool);
	if (pool->zone)
		rte_memzone_free(pool->zone);
	free(pool->state);
	free(pool->empty.items);
	free(pool->done.items);
	free(pool->remote_free.items);
	free(pool->spare.items);
	free(pool);
}

static int pool_list_init(struct pool_list *list, uint32_t max)
{
	list->items = calloc(max, sizeof(*list->items));
	list->max = max;
	return list->items ? 0 : -ENOMEM;
}

/* Creates a mempool in one piece of DPDK's memory and initializes its mbufs. */
static int pool_memory(struct pool *pool, const struct pool_options *opt)
{
	static unsigned number;
	unsigned n = __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED);
	size_t bytes = (size_t)pool->element_count << pool->shift;
	struct rte_pktmbuf_pool_private private = {
		.mbuf_data_room_size = (uint16_t)(opt->frame_size - POOL_RESERVED_BYTES),
	};
	char name[RTE_MEMZONE_NAMESIZE];
	int populated;

	snprintf(name, sizeof(name), "harp_frames_%u", n);
	pool->zone = rte_memzone_reserve_aligned(name, bytes, opt->numa_node, 0, opt->frame_size);
	if (!pool->zone)
		return -ENOMEM;
	pool->base = pool->zone->addr;
	snprintf(name, sizeof(name), "harp_%u", n);
	pool->mempool = rte_mempool_create_empty(name, pool->element_count,
						 opt->frame_size - POOL_MBUF_AT, 0, sizeof(private),
						 opt->numa_node, RTE_MEMPOOL_F_NO_SPREAD);
	if (!pool->mempool || rte_mempool_set_ops_byname(pool->mempool, POOL_OPS_NAME, pool) != 0)
		return -ENOMEM;
	rte_pktmbuf_pool_init(pool->mempool, &private);
	populated = rte_mempool_populate_virt(pool->mempool, (char *)pool->base, bytes,
					      pool->zone->hugepage_sz, NULL, NULL);
	if (populated < 0 || (uint32_t)populated != pool->element_count)
		return -ENOMEM;
	rte_mempool_obj_iter(pool->mempool, rte_pktmbuf_init, NULL);
	return 0;
}

int pool_create(struct pool **out, const struct pool_options *opt, const struct why *why)
{
	struct pool *pool = aligned_alloc(alignof(struct pool), sizeof(*pool));
	uint32_t count = opt->frame_count + opt->spare_count;

	if (!pool)
		return why_fail(why, -ENOMEM, "out of memory");
	*pool = (struct pool){
		.shift = (uint32_t)__builtin_ctz(opt->frame_size),
		.frame_count = opt->frame_count,
		.element_count = count,
	};
	rte_spinlock_init(&pool->lock);
	pool->state = calloc(count, 1);
	if (!pool->state || pool_list_init(&pool->empty, opt->frame_count) ||
	    pool_list_init(&pool->done, opt->frame_count) ||
	    pool_list_init(&pool->remote_free, count) ||
	    pool_list_init(&pool->spare, opt->spare_count) || pool_memory(pool, opt)) {
		why_fail(why, -ENOMEM,
			 "no memory for %u frames of %u bytes (%u MiB); give DPDK more "
			 "(HARP_DPDK_MEMORY_MIB), or use fewer frames",
			 count, opt->frame_size,
			 (unsigned)(((uint64_t)count * opt->frame_size) >> 20));
		pool_free(pool);
		return -ENOMEM;
	}
	memset(pool->state + pool->frame_count, POOL_SPARE, opt->spare_count);
	for (uint32_t i = count; i > pool->frame_count; i--)
		pool_push(&pool->spare, i - 1);
	*out = pool;
	return 0;
}

/* destruction */

uint32_t pool_count_held(struct pool *pool)
{
	uint32_t held;

	pool_collect(pool);
	rte_spinlock_lock(&pool->lock);
	held = pool->spare_held;
	rte_spinlock_unlock(&pool->lock);
	for (uint32_t i = 0; i < pool->frame_count; i++)
		held += pool->state[i] == POOL_RECEIVING || pool->state[i] == POOL_SENDING;
	return held;
}

void pool_reset(struct pool *pool)
{
	pool_collect(pool);
	for (uint32_t i = 0; i < pool->empty.count; i++)
		pool->state[pool->empty.items[i]] = POOL_STACK;
	pool->empty.count = 0;
	pool->done.count = 0;
}

/* Pools of closed ports whose frames are still in use (such as in the ring of a net_ring). */
static struct pool *pool_retired;
static pthread_mutex_t pool_retired_lock = PTHREAD_MUTEX_INITIALIZER;

void pool_reap(void)
{
	pthread_mutex_lock(&pool_retired_lock);
	for (struct pool **at = &pool_retired, *pool; (pool = *at);) {
		if (pool_count_held(pool) > 0) {
			at = &pool->next_retired;
			continue;
		}
		*at = pool->next_retired;
		pool_free(pool);
	}
	pthread_mutex_unlock(&pool_retired_lock);
}

void pool_retire(struct pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool_retired_lock);
	pool->next_retired = pool_retired;
	pool_retired = pool;
	pthread_mutex_unlock(&pool_retired_lock);
	pool_reap();
}
