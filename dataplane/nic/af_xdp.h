/* SPDX-License-Identifier: Apache-2.0 */
/* af_xdp.h - state of the AF_XDP NIC, shared by creation (af_xdp_make.c), adoption (af_xdp_adopt.c)
 * and data path (af_xdp.c). */
#ifndef HARP_NIC_AF_XDP_H
#define HARP_NIC_AF_XDP_H

#include <stdbool.h>

#include "base/memfd.h"
#include "nic/af_xdp_abi.h"

/*
 * One ring shared with the kernel (af_xdp.rst, "Rings"): single producer, single consumer. We
 * produce fill and tx, and consume rx and completion.
 *   our index: a plain copy in `head`, published with a release store
 *   the kernel's index: loaded with acquire into `limit` when the previous value is used up
 */
struct xsk_ring {
	uint32_t *producer, *consumer, *flags;
	void *entries;
	uint32_t size, mask;
	uint32_t head; /* our next index */
	/* producer rings: first index that we must not write; consumer rings: first index that we
	 * must not read */
	uint32_t limit;
	void *map;
	size_t map_bytes;
};

struct af_xdp {
	struct harp_nic nic; /* first: the harp_nic is this */
	struct xsk_ring rx, fill, tx, completion;
	int fd;
	bool zero_copy;
	bool tx_blocked; /* the kernel left entries in the tx ring at the last kick */
	size_t region_bytes;
	struct harp_nic_stats stats; /* counters that the kernel lacks */
};

extern const struct harp_nic_ops af_xdp_ops;

/* Unmaps a ring, if it is mapped. */
void af_xdp_ring_unmap(struct xsk_ring *ring);

static inline bool af_xdp_is_power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

/* A queue's memory is a multiple of this size, with or without huge pages. */
#define AF_XDP_HUGE_PAGE_BYTES ((size_t)2 << 20)
static inline size_t af_xdp_region_bytes(uint32_t frame_count, uint32_t frame_size)
{
	size_t bytes = (size_t)frame_count * frame_size;

	return (bytes + AF_XDP_HUGE_PAGE_BYTES - 1) & ~(AF_XDP_HUGE_PAGE_BYTES - 1);
}

#endif
