/* SPDX-License-Identifier: Apache-2.0 */
/*
 * af_xdp_adopt.c - creates a NIC from an existing AF_XDP queue: maps its rings and memory.
 *
 * The creator may be another process with another version of HARP. So this code verifies everything
 * that the kernel can report: a wrong number would cause a crash or silent failure much later. It
 * trusts facts that the kernel does not report (the socket's memory, its queue).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "base/why.h"
#include "nic/af_xdp.h"

/* More fragments than the kernel puts into one skb. */
#define FRAGS_MAX 255u
#define MTU_BYTES_MIN 68u /* RFC 791 */
#define FEATURES_KNOWN (HARP_NIC_RX_CSUM_PARTIAL | HARP_NIC_TX_MULTI)

struct adopter {
	const struct harp_queue *queue;
	struct af_xdp *x;
	struct why why;
};

struct ring_layout {
	struct xsk_ring *ring;
	size_t entry_bytes;
	const struct xdp_ring_offset *offset;
	uint64_t page_offset;
};

static int adopt_numbers(const struct adopter *a)
{
	const struct harp_queue *q = a->queue;

	if (q->frame_size != 2048 && q->frame_size != 4096)
		return why_fail(&a->why, -EPROTO, "frames of %u bytes; use 2048 or 4096",
				q->frame_size);
	if (q->frame_count < 64 || q->frame_count > (1u << 20))
		return why_fail(&a->why, -EPROTO, "%u frames; use 64..1048576", q->frame_count);
	if (!af_xdp_is_power_of_two(q->ring_size) || q->ring_size < 64 || q->ring_size > 65536)
		return why_fail(&a->why, -EPROTO, "rings of %u; use a power of two in 64..65536",
				q->ring_size);
	if (q->mtu_bytes < MTU_BYTES_MIN || q->mtu_bytes > 65535)
		return why_fail(&a->why, -EPROTO, "MTU %u; use 68..65535", q->mtu_bytes);
	if (!q->tx_frags_max || q->tx_frags_max > FRAGS_MAX || q->features & ~FEATURES_KNOWN)
		return why_fail(&a->why, -EPROTO,
				"packets of %u fragments or features %#x are not supported",
				q->tx_frags_max, q->features);
	if (!memchr(q->ifname, '\0', sizeof(q->ifname)))
		return why_fail(&a->why, -EPROTO, "unterminated interface name");
	return 0;
}

/* ---- the frames ------------------------------------------------------------------------------ */

static int adopt_frames(struct adopter *a)
{
	const struct harp_queue *q = a->queue;
	size_t bytes = af_xdp_region_bytes(q->frame_count, q->frame_size);
	int seals = fcntl(q->frames_fd, F_GET_SEALS);
	struct stat status;
	void *frames;

	if (seals < 0 || fstat(q->frames_fd, &status) < 0)
		return why_fail(&a->why, -EBADF, "its memory is not a memfd");
	if ((seals & MEMFD_SEALS) != MEMFD_SEALS)
		return why_fail(&a->why, -EPERM,
				"its memory is not sealed: its owner could truncate it");
	if ((uint64_t)status.st_size < bytes)
		return why_fail(&a->why, -EPROTO,
				"its memory has %lld bytes, %u frames of %u need %zu",
				(long long)status.st_size, q->frame_count, q->frame_size, bytes);
	frames = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, q->frames_fd,
		      0);
	if (frames == MAP_FAILED)
		return why_fail(&a->why, -errno, "mapping its %zu bytes of memory: %s", bytes,
				strerror(errno));
	a->x->nic.caps.frame_base = frames;
	a->x->region_bytes = bytes;
	/* A forked child must not hold or write memory that the NIC reads and writes. */
	if (madvise(frames, bytes, MADV_DONTFORK) < 0)
		return why_fail(&a->why, -errno, "madvise(MADV_DONTFORK): %s", strerror(errno));
	return 0;
}

/* ---- the rings ------------------------------------------------------------------------------- */

static int adopt_socket(const struct adopter *a, struct xdp_mmap_offsets *offsets)
{
	const int fd = a->x->fd;
	int domain = 0;
	socklen_t len = sizeof(domain);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 || domain != AF_XDP)
		return why_fail(&a->why, -EBADF, "its socket is not an AF_XDP socket");
	len = sizeof(*offsets);
	if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, offsets, &len) < 0)
		return why_fail(&a->why, -errno, "XDP_MMAP_OFFSETS: %s", strerror(errno));
	if (len < sizeof(*offsets))
		return why_fail(&a->why, -EOPNOTSUPP,
				"this kernel has no need-wakeup rings; use Linux 5.4 or later");
	/* Only queries the socket's state. ENETDOWN is transient, ENXIO is not. */
	if (recvfrom(fd, NULL, 0, MSG_DONTWAIT, NULL, NULL) < 0 && errno == ENXIO)
		return why_fail(&a->why, -EBADF, "its socket is not bound to a queue");
	return 0;
}

static void *adopt_map(const struct adopter *a, const struct ring_layout *r, uint32_t size,
		       size_t *bytes)
{
	*bytes = r->offset->desc + size * r->entry_bytes;
	return mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, a->x->fd,
		    (off_t)r->page_offset);
}

/* True if the ring is larger than stated, in which case indices would be misinterpreted. The kernel
 * maps whole pages up to the ring's size, so mapping twice the stated size must fail. */
static bool adopt_ring_is_larger(const struct adopter *a, const struct ring_layout *r)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes;
	void *map;

	if (r->offset->desc + 2 * a->queue->ring_size * r->entry_bytes <= page)
		return false; /* both sizes fit one page */
	map = adopt_map(a, r, 2 * a->queue->ring_size, &bytes);
	if (map == MAP_FAILED)
		return false;
	munmap(map, bytes);
	return true;
}

static int adopt_ring(const struct adopter *a, const struct ring_layout *r)
{
	struct xsk_ring *ring = r->ring;
	uint32_t size = a->queue->ring_size;
	char *map = adopt_map(a, r, size, &ring->map_bytes);

	if (map == MAP_FAILED)
		return why_fail(&a->why, errno == EINVAL ? -EPROTO : -errno,
				"its socket has no rings of %u: %s", size, strerror(errno));
	ring->map = map;
	if (madvise(map, ring->map_bytes, MADV_DONTFORK) < 0)
		return why_fail(&a->why, -errno, "madvise(MADV_DONTFORK): %s", strerror(errno));
	if (adopt_ring_is_larger(a, r))
		return why_fail(&a->why, -EPROTO, "its rings are larger than %u", size);
	ring->producer = (uint32_t *)(map + r->offset->producer);
	ring->consumer = (uint32_t *)(map + r->offset->consumer);
	ring->flags = (uint32_t *)(map + r->offset->flags);
	ring->entries = map + r->offset->desc;
	ring->size = size;
	ring->mask = size - 1;
	if (__atomic_load_n(ring->producer, __ATOMIC_ACQUIRE) ||
	    __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE))
		return why_fail(&a->why, -EPROTO, "its rings have been used before");
	return 0;
}

static int adopt_rings(const struct adopter *a)
{
	struct af_xdp *x = a->x;
	struct xdp_mmap_offsets offsets = { 0 };
	const struct ring_layout rings[] = {
		{ &x->fill, 8, &offsets.fr, XDP_UMEM_PGOFF_FILL_RING },
		{ &x->completion, 8, &offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING },
		{ &x->rx, sizeof(struct xdp_desc), &offsets.rx, XDP_PGOFF_RX_RING },
		{ &x->tx, sizeof(struct xdp_desc), &offsets.tx, XDP_PGOFF_TX_RING },
	};
	int rc = adopt_socket(a, &offsets);

	for (unsigned i = 0; !rc && i < ARRAY_SIZE(rings); i++)
		rc = adopt_ring(a, &rings[i]);
	x->fill.limit = x->tx.limit = a->queue->ring_size;
	return rc;
}

/* adoption */

static void adopt_caps(const struct adopter *a)
{
	const struct harp_queue *q = a->queue;
	struct harp_nic_caps *caps = &a->x->nic.caps;
	struct xdp_options options = { 0 };
	socklen_t len = sizeof(options);

	a->x->zero_copy = q->zero_copy;
	if (getsockopt(q->xsk_fd, SOL_XDP, XDP_OPTIONS, &options, &len) == 0)
		a->x->zero_copy = options.flags & XDP_OPTIONS_ZEROCOPY;
	snprintf(caps->name, sizeof(caps->name), "%s", q->ifname);
	snprintf(caps->mode, sizeof(caps->mode), "af_xdp %s queue %u",
		 a->x->zero_copy ? "zero-copy" : "copy", q->queue);
	caps->frame_size = q->frame_size;
	caps->frame_count = q->frame_count;
	caps->rx_headroom = AF_XDP_HEADROOM_BYTES;
	caps->rx_ring = caps->tx_ring = q->ring_size;
	caps->mtu_bytes = q->mtu_bytes;
	caps->features = q->features;
	caps->tx_frags_max = q->tx_frags_max;
	memcpy(caps->mac, q->mac, sizeof(caps->mac));
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

int harp_nic_af_xdp_adopt(struct harp_nic **out, const struct harp_queue *queue, char *why,
			  size_t why_len)
{
	struct adopter a = { .queue = queue, .why = { .text = why, .size = why_len } };
	int rc;

	*out = NULL;
	if (!queue || queue->size < sizeof(*queue)) {
		why_about(&a.why, "a queue");
		return why_fail(&a.why, -EINVAL,
				"the size of struct harp_queue is too small; rebuild the caller");
	}
	why_about(&a.why, "%.15s queue %u", queue->ifname, queue->queue);
	a.x = calloc(1, sizeof(*a.x));
	if (!a.x) {
		rc = why_fail(&a.why, -ENOMEM, "out of memory");
		close_fd(queue->xsk_fd);
		close_fd(queue->frames_fd);
		return rc;
	}
	a.x->nic.ops = &af_xdp_ops;
	a.x->fd = queue->xsk_fd; /* closed with the NIC */
	rc = adopt_numbers(&a);
	if (!rc)
		rc = adopt_rings(&a);
	if (!rc)
		rc = adopt_frames(&a);
	close_fd(queue->frames_fd);
	if (rc) {
		a.x->nic.ops->destroy(&a.x->nic);
		return rc;
	}
	adopt_caps(&a);
	*out = &a.x->nic;
	return 0;
}

int harp_nic_af_xdp_create(struct harp_nic **out, const struct harp_af_xdp_options *opt, char *why,
			   size_t why_len)
{
	struct harp_queue queue;
	int rc = harp_queue_make(&queue, opt, why, why_len);

	*out = NULL;
	return rc ? rc : harp_nic_af_xdp_adopt(out, &queue, why, why_len);
}
