/* SPDX-License-Identifier: Apache-2.0 */
/*
 * external.h - external frames of one queue: mbufs whose bytes are the application's memory, and the memory that the
 * device may read.
 */
#ifndef HARP_DPDK_EXTERNAL_H
#define HARP_DPDK_EXTERNAL_H

#include <pthread.h>
#include <rte_dev.h>
#include <rte_mbuf.h>
#include <rte_spinlock.h>

/* What makes a driver let go of what it was given to send: harder and harder. */
enum port_flush {
	PORT_FLUSH_NONE,
	PORT_FLUSH_QUEUE, /* its queue is stopped, and started again */
	PORT_FLUSH_PORT,  /* the device is */
};

/* One external frame, and the mbuf that it is sent as. The driver's hold on the bytes is a reference to shared, its hold on
 * the item the mbuf, which it frees. */
struct external_item {
	struct rte_mbuf_ext_shared_info shared;
	struct rte_mbuf *mbuf; /* its own */
	const uint8_t *bytes;  /* of what is with the driver */
	uint32_t len;          /* 0: nothing is */
	bool undone;           /* the driver did not take it after all */
};

struct external {
	struct rte_mempool *mempool; /* the items' mbufs, without room */
	uint32_t count;
	const uint8_t **where; /* caps.external: where the bytes of each lie */
	struct external_item *items;
	struct rte_device
		*device; /* that reads memory by itself; NULL: its driver does, on this processor */
	struct external_memory {
		const uint8_t *base;
		size_t bytes;
		uint64_t refused_ns;     /* since when its removal is refused; 0: it is not */
		enum port_flush flushed; /* what has been done about that */
	} * memory;                      /* as often as it was added */
	uint32_t memory_count;
	/* Touched only by the thread inside one of the NIC's functions, without a lock. */
	pthread_t owner;      /* who that is; atomic; 0: nobody */
	uint32_t made, freed; /* mbufs, ever */
	uint32_t *done;
	uint32_t done_count;
	rte_spinlock_t lock; /* of what follows: drivers free in any thread */
	uint32_t *away;      /* freed by others */
	uint32_t away_count; /* also read without */
	struct external *next_retired;
};

/* -ENOMEM. */
int external_create(struct external **out, uint32_t count, struct rte_device *device,
		    int numa_node);
/* Nobody is inside any more. What a driver still holds stays valid: it is then kept, and given back by a later
 * external_retire() or external_reap() when all has come home. NULL is accepted. */
void external_retire(struct external *external);
void external_reap(void);
/* Does a driver hold any of it? */
bool external_out(const struct external *external);
/* Nobody is inside and nothing is out: as it was created, for another user. */
void external_reset(struct external *external);

/* Inside one of the NIC's functions, and out of it again. NULL is accepted. */
static inline void external_enter(struct external *external)
{
	if (external)
		__atomic_store_n(&external->owner, pthread_self(), __ATOMIC_RELAXED);
}
static inline void external_leave(struct external *external)
{
	if (external)
		__atomic_store_n(&external->owner, 0, __ATOMIC_RELAXED);
}

/* Can item i be sent with so many bytes? */
static inline bool external_good(const struct external *external, uint64_t i, uint32_t len)
{
	return i < external->count && len > 0 && len <= UINT16_MAX && external->items[i].len == 0;
}
/* Its mbuf. */
struct rte_mbuf *external_make(struct external *external, uint32_t i, uint32_t len);
/* The driver did not take it: the item is the caller's, as before. */
void external_undo(struct rte_mbuf *mbuf);
/* Items that the driver has let go of. Returns how many. */
unsigned external_complete(struct external *external, uint32_t *items, unsigned max);
/* An item that could not be sent comes back like one that was. */
void external_refuse(struct external *external, uint32_t i);

/* harp_nic_ops of the same names, for one queue. -EBUSY: an item that is out lies there; *flush: what it is time to do
 * about it, told once. flush NULL: by one that does nothing about it. */
int external_memory_add(struct external *external, const void *base, size_t bytes);
int external_memory_remove(struct external *external, const void *base, size_t bytes,
			   uint64_t now_ns, enum port_flush *flush);

/* mapping.c: what a device, which reads memory by itself, is told of. Processwide; pages are counted, so that ranges may
 * overlap. -ENOTSUP the device can't be told, -ENOMEM, other -errno of its driver. */
int mapping_add(struct rte_device *device, const void *base, size_t bytes);
void mapping_remove(struct rte_device *device, const void *base, size_t bytes);

#endif
