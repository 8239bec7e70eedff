/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - the frames of one queue as a DPDK mempool, whose every element is a frame of HARP's.
 *
 * An element, a power of two of bytes, begins at a multiple of itself from the pool's base:
 *
 *     0            64            192                                    stride
 *     | mempool    | struct      | data: harp_desc.addr points in here  |
 *     | header     | rte_mbuf    | (buf_addr is its beginning)          |
 *
 * so that a frame's mbuf is found by its number, and the reverse. The first frame_count elements are HARP's
 * frames, and HARP's own pool (memory/frame.h) is the master of who holds them. The others are *spares*: what
 * a driver takes when it is set up, before there is a stack to give it frames. A packet that arrives in a spare
 * is copied into a frame, and the spare rests until the next set-up.
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
static_assert(sizeof(struct rte_mbuf) == 128, "two cache lines, as POOL_RESERVED_BYTES has it");
static_assert(sizeof(struct rte_mempool_objhdr) <= POOL_MBUF_AT, "the header fits before the mbuf");

/* Who has an element. Frames and spares have states of their own: an mbuf that is freed twice, or that was never
 * the driver's, is noticed and left alone. */
enum pool_state {
	POOL_HOME,      /* frame: with the stack, which may use it for anything */
	POOL_EMPTY,     /* frame: in the list of those to receive into */
	POOL_RECEIVING, /* frame: the driver has it to receive into */
	POOL_SENDING,   /* frame: the driver reads it */
	POOL_SPARE,     /* spare: in the list */
	POOL_SPARE_OUT, /* spare: the driver has it */
};

/* A stack of element numbers. */
struct pool_list {
	uint32_t *items;
	uint32_t count, max;
};

/*
 * The lists are touched only by the thread inside one of the NIC's functions (*the owner*), without a lock. A
 * driver may also free and take mbufs in threads of its own, or in those of another port: what they free
 * waits in `away`, what they take are spares, both under the lock, which is a leaf: nobody who holds it takes another.
 */
struct pool {
	pthread_t owner; /* who is inside; atomic; 0: nobody */
	uint8_t *base;
	uint8_t *state; /* enum pool_state, of each element */
	struct pool_list empty, done;
	uint32_t shift, frame_count, element_count;
	uint32_t starved; /* takes that found too few frames */
	uint32_t bad;     /* frees of what was not out */
	struct rte_mempool *mempool;
	const struct rte_memzone *zone;
	rte_spinlock_t lock __rte_cache_aligned;
	struct pool_list away, spare; /* under the lock; away.count is also read without */
	uint32_t spare_out;
	struct pool *next_retired;
};

struct pool_options {
	uint32_t frame_size; /* a power of two */
	uint32_t frame_count, spare_count;
	int numa_node; /* SOCKET_ID_ANY: any */
};

/* Memory of DPDK's, elements made. -ENOMEM; why has been written. */
int pool_create(struct pool **out, const struct pool_options *opt, const struct why *why);
/* Nobody is inside any more. What a driver still holds stays valid: the pool is then kept, and given back by a later
 * pool_retire() or pool_reap() when all has come home. NULL is accepted. */
void pool_retire(struct pool *pool);
void pool_reap(void);
/* Elements that a driver holds. Nobody is inside. */
uint32_t pool_out(struct pool *pool);
/* Takes the stack's frames from it: those in the lists are home. Nobody is inside. */
void pool_reset(struct pool *pool);
/* The owner, or nobody is inside: sorts what others have freed. */
void pool_collect(struct pool *pool);

static inline void pool_enter(struct pool *pool)
{
	__atomic_store_n(&pool->owner, pthread_self(), __ATOMIC_RELAXED);
	/* The lock's release and acquire order what lies in it; this only asks whether it is empty. */
	if (__builtin_expect(__atomic_load_n(&pool->away.count, __ATOMIC_RELAXED) != 0, 0))
		pool_collect(pool);
}

static inline void pool_leave(struct pool *pool)
{
	/* Release: who sees nobody inside (gate.h) sees what was done inside. */
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

/* Where in the region a packet's bytes lie. */
static inline uint64_t pool_offset(const struct pool *pool, const struct rte_mbuf *mbuf)
{
	return (uint64_t)((const uint8_t *)mbuf->buf_addr + mbuf->data_off - pool->base);
}

#endif
