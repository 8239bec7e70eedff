/* SPDX-License-Identifier: Apache-2.0 */
/*
 * external.h - external frames of one queue: mbufs that refer to the application's memory, and the
 * memory regions that the device may read.
 */
#ifndef HARP_DPDK_EXTERNAL_H
#define HARP_DPDK_EXTERNAL_H

#include <pthread.h>
#include <rte_dev.h>
#include <rte_mbuf.h>
#include <rte_spinlock.h>

/* Ways to make a driver release mbufs, in order of escalation. */
enum port_flush {
	PORT_FLUSH_NONE,
	PORT_FLUSH_QUEUE, /* stop and restart its queue */
	PORT_FLUSH_PORT,  /* stop and restart the device */
};

/* One external frame and its mbuf. `shared` is the driver's reference to the bytes, and the mbuf
 * its reference to the item. */
struct external_item {
	struct rte_mbuf_ext_shared_info shared;
	struct rte_mbuf *mbuf; /* allocated for this item */
	const uint8_t *bytes;  /* while the driver holds it */
	uint32_t len;          /* 0: not in use */
	bool is_refused;       /* the driver did not accept it */
};

struct external {
	struct rte_mempool *mempool; /* the items' mbufs, without data room */
	uint32_t count;
	const uint8_t **addresses; /* caps.external: address of each item's bytes */
	struct external_item *items;
	struct rte_device *device; /* device with DMA; NULL: the driver reads memory with the CPU */
	struct external_memory {
		const uint8_t *base;
		size_t bytes;
		uint64_t request_ns;     /* first call of external_memory_flush(); 0: none */
		enum port_flush flushed; /* escalation so far */
	} * memory;                      /* one entry per add */
	uint32_t memory_count;
	/* Accessed without a lock, only by the thread inside one of the NIC's functions. */
	pthread_t owner;          /* that thread; atomic; 0: none */
	uint32_t attached, freed; /* mbufs given to the driver and freed by it, in total */
	uint32_t *done;
	uint32_t done_count;
	rte_spinlock_t lock;   /* protects the following fields: drivers free mbufs in any thread */
	uint32_t *remote_free; /* freed by other threads */
	uint32_t remote_free_count; /* also read without the lock */
	struct external *next_retired;
};

/* -ENOMEM. */
int external_create(struct external **out, uint32_t count, struct rte_device *device,
		    int numa_node);
/* Requires that no thread is inside. If a driver holds references, they stay valid, and a later
 * external_retire() or external_reap() frees the object. NULL is accepted. */
void external_retire(struct external *external);
void external_reap(void);
/* True if a driver holds any item. */
bool external_is_held(const struct external *external);
/* Resets for another user. Requires that no thread is inside and no item in use. */
void external_reset(struct external *external);

/* Enters and leaves one of the NIC's functions. NULL is accepted. */
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

/* True if item i can be sent with this length. */
static inline bool external_valid(const struct external *external, uint64_t i, uint32_t len)
{
	return i < external->count && len > 0 && len <= UINT16_MAX && external->items[i].len == 0;
}
/* Builds the mbuf of item i. */
struct rte_mbuf *external_make(struct external *external, uint32_t i, uint32_t len);
/* Returns an item that the driver did not accept to the caller. */
void external_undo(struct rte_mbuf *mbuf);
/* Returns the items that the driver has released, and their number. */
unsigned external_complete(struct external *external, uint32_t *items, unsigned max);
/* Completes an item that could not be sent. */
void external_refuse(struct external *external, uint32_t i);

/* harp_nic_ops of the same names, for one queue. */
int external_memory_add(struct external *external, const void *base, size_t bytes);
int external_memory_remove(struct external *external, const void *base, size_t bytes);
/* Called while memory is being removed: the escalation that is due now. Returns each level once. */
enum port_flush external_memory_flush(struct external *external, const void *base, size_t bytes,
				      uint64_t now_ns);

/* mapping.c: registers memory with a device that has DMA. Per process; pages are counted, so ranges
 * may overlap. -ENOTSUP the device does not support it, -ENOMEM, other -errno of its driver. */
int mapping_add(struct rte_device *device, const void *base, size_t bytes);
void mapping_remove(struct rte_device *device, const void *base, size_t bytes);

#endif
