/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - the frames of one queue as a DPDK mempool, in which every element is a frame.
 *
 * Elements have a power-of-two size and are aligned to it relative to the pool's base:
 *
 *     0            64            192                                    stride
 *     | mempool    | struct      | data: harp_desc.addr points in here  |
 *     | header     | rte_mbuf    | (buf_addr is its beginning)          |
 *
 * so a frame's number and its mbuf are converted by arithmetic. The first frame_count elements are
 * HARP's frames; HARP's own pool (memory/frame.h) decides who holds them. The others are *spares*,
 * which a driver takes when it is set up, before a stack can give it frames. A packet received into
 * a spare is copied into a frame, and the spare is unused until the next setup.
 */
#ifndef HARP_DPDK_POOL_H
#define HARP_DPDK_POOL_H

#include <pthread.h>
#include <rte_mbuf.h>
#include <rte_memzone.h>
#include <rte_mempool.h>
#include <rte_spinlock.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/why.h"

#define POOL_MBUF_AT 64u
#define POOL_RESERVED_BYTES (POOL_MBUF_AT + 128u)
static_assert(sizeof(struct rte_mbuf) == 128, "POOL_RESERVED_BYTES includes two cache lines");
static_assert(sizeof(struct rte_mempool_objhdr) <= POOL_MBUF_AT, "the header fits before the mbuf");

/* State of an element. It reveals mbufs that are freed twice or that the driver never had; these
 * are ignored. */
enum pool_state {
	POOL_STACK,      /* frame: owned by the stack */
	POOL_EMPTY,      /* frame: in the fill list */
	POOL_RECEIVING,  /* frame: the driver has it for reception */
	POOL_SENDING,    /* frame: the driver reads it */
	POOL_SPARE,      /* spare: in its list */
	POOL_SPARE_HELD, /* spare: the driver has it */
};

/* A stack of element numbers. */
struct pool_list {
	uint32_t *items;
	uint32_t count, max;
};

/*
 * Only the thread inside one of the NIC's functions (*the owner*) accesses the lists, without a
 * lock. Drivers may also free and allocate mbufs in their own threads, or in those that use another
 * port. Such frees go to `remote_free`, and such allocations get spares, both under the lock. No
 * other lock is taken under it.
 */
struct pool {
	pthread_t owner; /* the thread inside; atomic; 0: none */
	uint8_t *base;
	uint8_t *state; /* enum pool_state, of each element */
	struct pool_list empty, done;
	uint32_t shift, frame_count, element_count;
	uint32_t alloc_failed; /* number of allocations that found too few frames */
	struct rte_mempool *mempool;
	const struct rte_memzone *zone;
	rte_spinlock_t lock __rte_cache_aligned;
	struct pool_list remote_free,
		spare; /* under the lock; remote_free.count is also read without it */
	uint32_t spare_held;
	struct pool *next_retired;
};

struct pool_options {
	uint32_t frame_size; /* a power of two */
	uint32_t frame_count, spare_count;
	int numa_node; /* SOCKET_ID_ANY: any */
};

/* Allocates DPDK memory and its elements. -ENOMEM with why. */
int pool_create(struct pool **out, const struct pool_options *opt, const struct why *why);
/* Requires that no thread is inside. If a driver holds references, they stay valid, and a later
 * pool_retire() or pool_reap() frees the pool. NULL is accepted. */
void pool_retire(struct pool *pool);
void pool_reap(void);
/* Number of elements that a driver holds. Requires that no thread is inside. */
uint32_t pool_count_held(struct pool *pool);
/* Empties the lists, so that the stack owns all frames. Requires that no thread is inside. */
void pool_reset(struct pool *pool);
/* Processes the frees of other threads. Called by the owner, or with no thread inside. */
void pool_collect(struct pool *pool);

static inline void pool_enter(struct pool *pool)
{
	__atomic_store_n(&pool->owner, pthread_self(), __ATOMIC_RELAXED);
	/* The lock orders accesses to its contents; this only checks for emptiness. */
	if (__builtin_expect(__atomic_load_n(&pool->remote_free.count, __ATOMIC_RELAXED) != 0, 0))
		pool_collect(pool);
}

static inline void pool_leave(struct pool *pool)
{
	/* Release: a thread that sees no owner (quiesce.h) sees the owner's writes. */
	__atomic_store_n(&pool->owner, 0, __ATOMIC_RELEASE);
}

static inline struct rte_mbuf *pool_mbuf(const struct pool *pool, uint32_t index)
{
	return (struct rte_mbuf *)(pool->base + ((uint64_t)index << pool->shift) + POOL_MBUF_AT);
}

static inline uint32_t pool_index(const struct pool *pool, const void *element)
{
	return (uint32_t)((uint64_t)((const uint8_t *)element - pool->base) >> pool->shift);
}

/* Region offset of a packet's data. */
static inline uint64_t pool_offset(const struct pool *pool, const struct rte_mbuf *mbuf)
{
	return (uint64_t)((const uint8_t *)mbuf->buf_addr + mbuf->data_off - pool->base);
}

#endif
