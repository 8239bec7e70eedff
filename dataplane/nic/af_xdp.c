/* SPDX-License-Identifier: Apache-2.0 */
/* af_xdp.c - the AF_XDP NIC's data path: bursts over four rings shared with the kernel. */
#include "nic/af_xdp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- rings ---------------------------------------------------------------------------------- */

/* Entries that we may write. Acquire: pairs with the kernel's release after it has consumed them.
 * The kernel no longer reads entries that its index has passed. */
static uint32_t ring_room(struct xsk_ring *ring, uint32_t wanted)
{
	uint32_t room = ring->limit - ring->head;

	if (room < wanted) {
		ring->limit = __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE) + ring->size;
		room = ring->limit - ring->head;
	}
	assert(room <= ring->size);
	return room;
}

/* Entries that we may read. Acquire: pairs with the kernel's release after it has written them. */
static uint32_t ring_waiting(struct xsk_ring *ring, uint32_t wanted)
{
	uint32_t waiting = ring->limit - ring->head;

	if (waiting < wanted) {
		ring->limit = __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE);
		waiting = ring->limit - ring->head;
	}
	assert(waiting <= ring->size);
	return waiting;
}

/* Release: our reads are complete and the kernel sees our entries before the index moves. */
static void ring_publish(struct xsk_ring *ring, uint32_t *index)
{
	__atomic_store_n(index, ring->head, __ATOMIC_RELEASE);
}

static struct harp_desc *ring_desc(const struct xsk_ring *ring, uint32_t index)
{
	return (struct harp_desc *)ring->entries + (index & ring->mask);
}

static uint64_t *ring_addr(const struct xsk_ring *ring, uint32_t index)
{
	return (uint64_t *)ring->entries + (index & ring->mask);
}

static bool ring_needs_wakeup(const struct xsk_ring *ring)
{
	return __atomic_load_n(ring->flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP;
}

/* ---- receiving ------------------------------------------------------------------------------ */

static unsigned af_xdp_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned count)
{
	struct af_xdp *x = (struct af_xdp *)nic;
	uint32_t room = ring_room(&x->fill, count);
	unsigned taken = 0;

	for (; taken < count && room; taken++, room--) {
		assert(addrs[taken] < x->region_bytes);
		*ring_addr(&x->fill, x->fill.head++) = addrs[taken];
	}
	ring_publish(&x->fill, x->fill.producer);
	return taken;
}

/* Number of descriptors of the packet at the ring's head; 0: its end has not arrived. */
static unsigned af_xdp_packet_descs(struct af_xdp *x, uint32_t waiting)
{
	for (unsigned n = 0; n < waiting; n++)
		if (!(ring_desc(&x->rx, x->rx.head + n)->flags & XDP_PKT_CONTD))
			return n + 1;
	return 0;
}

static unsigned af_xdp_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max,
			  uint64_t now_ns)
{
	struct af_xdp *x = (struct af_xdp *)nic;
	uint32_t waiting = ring_waiting(&x->rx, max);
	unsigned taken = 0;

	(void)now_ns;
	while (waiting) {
		unsigned count = af_xdp_packet_descs(x, waiting);

		if (!count)
			break;
		if (taken + count > max)
			break;
		for (unsigned i = 0; i < count; i++) {
			struct harp_desc *desc = &descs[taken++];

			*desc = *ring_desc(&x->rx, x->rx.head++);
			desc->flags &= HARP_DESC_MORE;
			assert(desc->addr + desc->len <= x->region_bytes);
		}
		waiting -= count;
	}
	if (taken)
		ring_publish(&x->rx, x->rx.consumer);
	return taken;
}

/* ---- transmitting --------------------------------------------------------------------------- */

static unsigned af_xdp_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned count,
			  uint64_t now_ns)
{
	struct af_xdp *x = (struct af_xdp *)nic;
	uint32_t room = ring_room(&x->tx, count);
	unsigned taken = 0;

	(void)now_ns;
	while (taken < count) {
		unsigned end = taken;

		while (end < count && (descs[end].flags & HARP_DESC_MORE))
			end++;
		/* Caller error: a packet without an end, or with too many fragments. */
		assert(end < count && end - taken < nic->caps.tx_frags_max);
		if (end == count || end + 1 - taken > room)
			break;
		room -= end + 1 - taken;
		for (; taken <= end; taken++) {
			struct harp_desc *desc = ring_desc(&x->tx, x->tx.head++);

			assert(descs[taken].addr + descs[taken].len <= x->region_bytes);
			*desc = descs[taken];
			desc->flags &= XDP_PKT_CONTD;
		}
	}
	ring_publish(&x->tx, x->tx.producer);
	return taken;
}

/*
 * Makes the kernel send. In copy mode one sendto() sends a batch (32 packets before Linux 6.17) and
 * returns EAGAIN if more are left. EBUSY (the device's queue is full), ENOBUFS (no memory, or
 * socket buffer full), EAGAIN without progress (completion ring full) and ENETDOWN leave the rest
 * in the ring; complete(), which every poll calls, retries. Each iteration requires progress, so
 * the loop ends.
 */
static void af_xdp_kick_tx(struct af_xdp *x)
{
	uint32_t left = x->tx.head - __atomic_load_n(x->tx.consumer, __ATOMIC_ACQUIRE);

	x->tx_blocked = false;
	while (left) {
		uint32_t before = left;
		ssize_t rc;

		if (x->zero_copy && !ring_needs_wakeup(&x->tx))
			return; /* the driver is already active */
		rc = sendto(x->fd, NULL, 0, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
		x->stats.kicks++;
		left = x->tx.head - __atomic_load_n(x->tx.consumer, __ATOMIC_ACQUIRE);
		if (rc < 0 && errno != EAGAIN && errno != EINTR) {
			x->tx_blocked = left;
			return;
		}
		if (left == before) {
			x->tx_blocked = true;
			return;
		}
	}
}

static void af_xdp_kick(struct harp_nic *nic, uint64_t now_ns)
{
	struct af_xdp *x = (struct af_xdp *)nic;

	(void)now_ns;
	/* A driver that has run out of fill frames sleeps until this wakeup. */
	if (ring_needs_wakeup(&x->fill)) {
		recvfrom(x->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
		x->stats.kicks++;
	}
	af_xdp_kick_tx(x);
}

static unsigned af_xdp_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max,
				uint64_t now_ns)
{
	struct af_xdp *x = (struct af_xdp *)nic;
	uint32_t waiting = ring_waiting(&x->completion, max);
	unsigned taken = 0;

	(void)now_ns;
	for (; taken < max && waiting; taken++, waiting--)
		addrs[taken] = *ring_addr(&x->completion, x->completion.head++);
	if (taken)
		ring_publish(&x->completion, x->completion.consumer);
	if (x->tx_blocked)
		af_xdp_kick_tx(x);
	return taken;
}

/* management */

static int af_xdp_poll_fd(struct harp_nic *nic)
{
	return ((struct af_xdp *)nic)->fd;
}

static void af_xdp_stats(struct harp_nic *nic, struct harp_nic_stats *out)
{
	const struct af_xdp *x = (const struct af_xdp *)nic;
	struct xdp_statistics kernel = { 0 };
	socklen_t len = sizeof(kernel);

	*out = x->stats;
	if (getsockopt(x->fd, SOL_XDP, XDP_STATISTICS, &kernel, &len) < 0)
		return;
	out->rx_dropped += kernel.rx_dropped;
	out->rx_ring_full += kernel.rx_ring_full;
	out->rx_fill_empty += kernel.rx_fill_ring_empty_descs;
	out->rx_invalid += kernel.rx_invalid_descs;
	out->tx_invalid += kernel.tx_invalid_descs;
}

void af_xdp_ring_unmap(struct xsk_ring *ring)
{
	if (ring->map)
		munmap(ring->map, ring->map_bytes);
}

static void af_xdp_destroy(struct harp_nic *nic)
{
	struct af_xdp *x = (struct af_xdp *)nic;

	/* A mapped ring keeps the socket and the queue alive: unmap first, close last. */
	af_xdp_ring_unmap(&x->rx);
	af_xdp_ring_unmap(&x->fill);
	af_xdp_ring_unmap(&x->tx);
	af_xdp_ring_unmap(&x->completion);
	if (x->fd >= 0)
		close(x->fd);
	if (nic->caps.frame_base)
		munmap(nic->caps.frame_base, x->region_bytes);
	free(x);
}

const struct harp_nic_ops af_xdp_ops = {
	.rx = af_xdp_rx,
	.tx = af_xdp_tx,
	.complete = af_xdp_complete,
	.fill = af_xdp_fill,
	.kick = af_xdp_kick,
	.fd = af_xdp_poll_fd,
	.stats = af_xdp_stats,
	.destroy = af_xdp_destroy,
};

int harp_nic_af_xdp_fd(const struct harp_nic *nic)
{
	return nic && nic->ops == &af_xdp_ops ? ((const struct af_xdp *)nic)->fd : -EINVAL;
}
