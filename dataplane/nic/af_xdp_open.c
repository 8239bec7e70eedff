/* SPDX-License-Identifier: Apache-2.0 */
/* af_xdp_open.c - opens an AF_XDP NIC: region, socket, rings, bind; raw system calls, libc only. */
#include <errno.h>
#include <linux/memfd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nic/af_xdp.h"
#include "nic/af_xdp_link.h"

#define HUGE_PAGE_BYTES (2u << 20)
#define BIND_RETRY_NS 2000000
/* Packets sent by one sendto() in copy mode: more than a burst of the stack's, few enough not to
 * keep the thread in the kernel while others wait. */
#define TX_BUDGET_PACKETS 128u

struct af_xdp_opening {
	struct harp_af_xdp_options opt; /* defaults filled in */
	struct af_xdp_link link;
	struct af_xdp *x;
	bool sg;
	char *why;
	size_t why_len;
};

/* Writes the one line and returns error, so that a failure is one statement. */
static int __attribute__((format(printf, 3, 4)))
opening_fail(struct af_xdp_opening *o, int error, const char *format, ...)
{
	va_list args;
	int used;

	if (!o->why || !o->why_len)
		return error;
	used = snprintf(o->why, o->why_len,
			"%s queue %u: ", o->opt.ifname ? o->opt.ifname : "(none)", o->opt.queue);
	if (used < 0 || (size_t)used >= o->why_len)
		return error;
	va_start(args, format);
	vsnprintf(o->why + used, o->why_len - (size_t)used, format, args);
	va_end(args);
	return error;
}

static bool is_power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

static int opening_options(struct af_xdp_opening *o, const struct harp_af_xdp_options *opt)
{
	struct harp_af_xdp_options *c = &o->opt;
	int rc;

	if (!opt || opt->size < sizeof(*opt))
		return opening_fail(o, -EINVAL, "options of an older size; rebuild the caller");
	*c = *opt;
	rc = af_xdp_link_read(c->ifname, &o->link);
	if (rc == -ENODEV)
		return opening_fail(o, rc, "no such interface; `ip link` lists them");
	if (rc)
		return opening_fail(o, rc, "cannot be used: %s", strerror(-rc));
	if (!c->frame_count)
		c->frame_count = 8192;
	if (!c->frame_size)
		c->frame_size = o->link.mtu_bytes <= 1500 ? 2048 : 4096;
	if (!c->ring_size)
		c->ring_size = 2048;
	if (!c->bind_retry_ms)
		c->bind_retry_ms = 500;
	if (c->frame_size != 2048 && c->frame_size != 4096)
		return opening_fail(o, -EINVAL, "frame size %u; the kernel takes 2048 or 4096",
				    c->frame_size);
	if (!is_power_of_two(c->ring_size) || c->ring_size < 64 || c->ring_size > 65536)
		return opening_fail(o, -EINVAL,
				    "ring size %u; a power of two in 64..65536 is needed",
				    c->ring_size);
	if (c->frame_count < 64 || c->frame_count > (1u << 20))
		return opening_fail(o, -EINVAL, "%u frames; 64..1048576 are possible",
				    c->frame_count);
	if (c->copy_mode > 2 || c->huge_pages > 2)
		return opening_fail(o, -EINVAL, "copy_mode %u or huge_pages %u above 2",
				    c->copy_mode, c->huge_pages);
	return 0;
}

/* ---- the region ----------------------------------------------------------------------------- */

static void *region_map(size_t bytes, unsigned memfd_flags)
{
	int fd = memfd_create("harp-frames", MFD_CLOEXEC | memfd_flags);
	void *region;

	if (fd < 0)
		return NULL;
	region = MAP_FAILED;
	if (ftruncate(fd, (off_t)bytes) == 0)
		region =
			mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	close(fd);
	return region == MAP_FAILED ? NULL : region;
}

static int opening_region(struct af_xdp_opening *o)
{
	struct harp_nic_caps *caps = &o->x->nic.caps;
	size_t bytes = (size_t)o->opt.frame_count * o->opt.frame_size;
	size_t rounded = (bytes + HUGE_PAGE_BYTES - 1) & ~(size_t)(HUGE_PAGE_BYTES - 1);

	o->x->region_bytes = rounded;
	if (o->opt.huge_pages != 1)
		caps->frame_base = region_map(rounded, MFD_HUGETLB | MFD_HUGE_2MB);
	if (!caps->frame_base && o->opt.huge_pages == 2)
		return opening_fail(o, -ENOMEM,
				    "no %zu huge pages of 2 MiB free; raise vm.nr_hugepages",
				    rounded / HUGE_PAGE_BYTES);
	if (!caps->frame_base)
		caps->frame_base = region_map(rounded, 0);
	if (!caps->frame_base)
		return opening_fail(o, -ENOMEM, "no memory for %u frames of %u; use fewer frames",
				    o->opt.frame_count, o->opt.frame_size);
	/* A forked child must not hold (nor scribble on) memory that the card reads and writes. */
	if (madvise(caps->frame_base, rounded, MADV_DONTFORK) < 0)
		return opening_fail(o, -errno, "madvise(MADV_DONTFORK): %s", strerror(errno));
	return 0;
}

/* ---- the socket ----------------------------------------------------------------------------- */

static int opening_socket(struct af_xdp_opening *o)
{
	struct xdp_umem_reg reg = {
		.addr = (uintptr_t)o->x->nic.caps.frame_base,
		.len = (uint64_t)o->opt.frame_count * o->opt.frame_size,
		.chunk_size = o->opt.frame_size,
	};
	int sndbuf_bytes = (int)(o->opt.ring_size * 2 * 4096);
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	o->x->fd = fd;
	if (fd < 0 && errno == EPERM)
		return opening_fail(o, -EPERM, "AF_XDP needs CAP_NET_RAW; run as root or add it");
	if (fd < 0 && (errno == EAFNOSUPPORT || errno == EINVAL))
		return opening_fail(o, -EOPNOTSUPP,
				    "this kernel has no AF_XDP; CONFIG_XDP_SOCKETS is needed");
	if (fd < 0)
		return opening_fail(o, -errno, "AF_XDP socket: %s", strerror(errno));
	if (setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)) < 0) {
		if (errno == ENOBUFS || errno == EPERM)
			return opening_fail(
				o, -EPERM,
				"%llu bytes exceed RLIMIT_MEMLOCK; raise `ulimit -l` or "
				"add CAP_IPC_LOCK",
				(unsigned long long)reg.len);
		return opening_fail(o, -errno, "registering %u frames of %u: %s",
				    o->opt.frame_count, o->opt.frame_size, strerror(errno));
	}
	/* Copy mode charges what is on its way to the socket; its default would hold less than a
	 * ring. A wish: sending works without. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &sndbuf_bytes, sizeof(sndbuf_bytes)) < 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf_bytes, sizeof(sndbuf_bytes));
	return 0;
}

static int ring_map(int fd, struct xsk_ring *ring, uint32_t size, size_t entry_bytes,
		    const struct xdp_ring_offset *offset, uint64_t page_offset)
{
	char *map;

	ring->map_bytes = offset->desc + size * entry_bytes;
	map = mmap(NULL, ring->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
		   (off_t)page_offset);
	if (map == MAP_FAILED)
		return -errno;
	ring->map = map;
	if (madvise(map, ring->map_bytes, MADV_DONTFORK) < 0)
		return -errno;
	ring->producer = (uint32_t *)(map + offset->producer);
	ring->consumer = (uint32_t *)(map + offset->consumer);
	ring->flags = (uint32_t *)(map + offset->flags);
	ring->entries = map + offset->desc;
	ring->size = size;
	ring->mask = size - 1;
	return 0;
}

static int opening_rings(struct af_xdp_opening *o)
{
	struct af_xdp *x = o->x;
	struct xdp_mmap_offsets offsets = { 0 };
	socklen_t len = sizeof(offsets);
	uint32_t budget = TX_BUDGET_PACKETS;
	const struct {
		struct xsk_ring *ring;
		int option;
		size_t entry_bytes;
		const struct xdp_ring_offset *offset;
		uint64_t page_offset;
	} rings[] = {
		{ &x->fill, XDP_UMEM_FILL_RING, 8, &offsets.fr, XDP_UMEM_PGOFF_FILL_RING },
		{ &x->completion, XDP_UMEM_COMPLETION_RING, 8, &offsets.cr,
		  XDP_UMEM_PGOFF_COMPLETION_RING },
		{ &x->rx, XDP_RX_RING, sizeof(struct xdp_desc), &offsets.rx, XDP_PGOFF_RX_RING },
		{ &x->tx, XDP_TX_RING, sizeof(struct xdp_desc), &offsets.tx, XDP_PGOFF_TX_RING },
	};

	for (unsigned i = 0; i < 4; i++)
		if (setsockopt(x->fd, SOL_XDP, rings[i].option, &o->opt.ring_size,
			       sizeof(o->opt.ring_size)) < 0)
			return opening_fail(o, -errno, "rings of %u: %s", o->opt.ring_size,
					    strerror(errno));
	if (getsockopt(x->fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &len) < 0)
		return opening_fail(o, -errno, "XDP_MMAP_OFFSETS: %s", strerror(errno));
	if (len < sizeof(offsets))
		return opening_fail(o, -EOPNOTSUPP,
				    "kernel without need-wakeup rings; 5.4 is needed");
	for (unsigned i = 0; i < 4; i++) {
		int rc = ring_map(x->fd, rings[i].ring, o->opt.ring_size, rings[i].entry_bytes,
				  rings[i].offset, rings[i].page_offset);
		if (rc)
			return opening_fail(o, rc, "mapping a ring: %s", strerror(-rc));
	}
	x->fill.limit = x->tx.limit = o->opt.ring_size;
	/* A wish too: kernels before 6.17 send 32 packets a call. */
	if (budget > o->opt.ring_size)
		budget = o->opt.ring_size;
	setsockopt(x->fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget));
	return 0;
}

/* ---- bind ----------------------------------------------------------------------------------- */

static int bind_once(const struct af_xdp_opening *o, unsigned flags)
{
	struct sockaddr_xdp address = {
		.sxdp_family = AF_XDP,
		.sxdp_flags = (uint16_t)(XDP_USE_NEED_WAKEUP | flags),
		.sxdp_ifindex = o->link.ifindex,
		.sxdp_queue_id = o->opt.queue,
	};

	return bind(o->x->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
}

/*
 * A queue stays busy for tens of milliseconds after its owner's death or clean close (the kernel
 * frees the old pool in a work queue), and no event tells the end: ask again for a bounded time.
 */
static int bind_patiently(const struct af_xdp_opening *o, unsigned flags)
{
	const struct timespec pause = { .tv_nsec = BIND_RETRY_NS };
	uint64_t tries = o->opt.bind_retry_ms * 1000000ull / BIND_RETRY_NS + 1;
	int rc;

	while ((rc = bind_once(o, flags)) == -EBUSY && --tries)
		nanosleep(&pause, NULL);
	return rc;
}

static int opening_bind_failed(struct af_xdp_opening *o, int rc)
{
	switch (rc) {
	case -EBUSY:
		return opening_fail(o, rc,
				    "another AF_XDP socket owns the queue; choose another queue or "
				    "stop its owner");
	case -EPERM:
		return opening_fail(o, rc, "binding needs CAP_NET_RAW; run as root or add it");
	case -ENETDOWN:
		return opening_fail(o, rc, "the interface is down; `ip link set %s up`",
				    o->opt.ifname);
	case -ENODEV:
		return opening_fail(o, rc, "the interface vanished");
	case -EINVAL:
		return opening_fail(o, rc,
				    "no such queue (the interface says %u receive, %u transmit); "
				    "choose a lower one",
				    o->link.rx_queues, o->link.tx_queues);
	case -EOPNOTSUPP:
		if (o->opt.copy_mode == 2)
			return opening_fail(o, rc,
					    "driver %s has no zero-copy AF_XDP; use copy mode",
					    o->link.driver);
		/* fall through */
	default:
		return opening_fail(o, rc, "bind: %s", strerror(-rc));
	}
}

/*
 * The best that kernel and driver take. Zero-copy: no machine that this was developed on can run it
 * (veth, tap and virtio answer EOPNOTSUPP); the fall-back to copy mode is what the tests see.
 */
static int opening_bind(struct af_xdp_opening *o)
{
	static const unsigned attempts[] = { XDP_ZEROCOPY | XDP_USE_SG, XDP_ZEROCOPY,
					     XDP_COPY | XDP_USE_SG, XDP_COPY };
	unsigned first = o->opt.copy_mode == 1 ? 2 : 0, last = o->opt.copy_mode == 2 ? 1 : 3;
	bool jumbo = o->link.mtu_bytes + 18 > o->opt.frame_size - AF_XDP_HEADROOM_BYTES;
	struct xdp_options options = { 0 };
	socklen_t len = sizeof(options);
	int rc = -EOPNOTSUPP;

	for (unsigned i = first; i <= last; i++) {
		unsigned flags = attempts[i];

		/* Without multi-buffer frames above one chunk would be dropped in silence. */
		if (jumbo && !(flags & XDP_USE_SG))
			continue;
		rc = bind_patiently(o, flags);
		o->sg = flags & XDP_USE_SG;
		if (rc != -EOPNOTSUPP && rc != -EINVAL)
			break;
	}
	if (rc == -EINVAL && jumbo && o->opt.queue < o->link.rx_queues)
		return opening_fail(
			o, -EOPNOTSUPP,
			"MTU %u needs multi-buffer AF_XDP, which this kernel lacks (6.6 "
			"has it); lower the MTU to %u",
			o->link.mtu_bytes, o->opt.frame_size - AF_XDP_HEADROOM_BYTES - 18);
	if (rc)
		return opening_bind_failed(o, rc);
	if (getsockopt(o->x->fd, SOL_XDP, XDP_OPTIONS, &options, &len) == 0)
		o->x->zero_copy = options.flags & XDP_OPTIONS_ZEROCOPY;
	return 0;
}

static void opening_caps(const struct af_xdp_opening *o)
{
	struct harp_nic_caps *caps = &o->x->nic.caps;

	snprintf(caps->name, sizeof(caps->name), "%s", o->opt.ifname);
	snprintf(caps->mode, sizeof(caps->mode), "af_xdp %s queue %u",
		 o->x->zero_copy ? "zero-copy" : "copy", o->opt.queue);
	caps->frame_size = o->opt.frame_size;
	caps->frame_count = o->opt.frame_count;
	caps->rx_headroom = AF_XDP_HEADROOM_BYTES;
	caps->rx_ring = caps->tx_ring = o->opt.ring_size;
	caps->mtu_bytes = o->link.mtu_bytes;
	memcpy(caps->mac, o->link.mac, sizeof(caps->mac));
	caps->tx_frags_max = 1;
	if (o->sg) {
		caps->features |= HARP_NIC_TX_MULTI;
		caps->tx_frags_max =
			o->x->zero_copy ? AF_XDP_ZEROCOPY_FRAGS_MIN : AF_XDP_COPY_FRAGS_MAX;
	}
	if (af_xdp_link_partial_csum(&o->link))
		caps->features |= HARP_NIC_RX_CSUM_PARTIAL;
}

int harp_nic_af_xdp_create(struct harp_nic **out, const struct harp_af_xdp_options *opt, char *why,
			   size_t why_len)
{
	struct af_xdp_opening o = { .why = why, .why_len = why_len };
	int rc;

	*out = NULL;
	rc = opening_options(&o, opt);
	if (rc)
		return rc;
	o.x = calloc(1, sizeof(*o.x));
	if (!o.x)
		return opening_fail(&o, -ENOMEM, "out of memory");
	o.x->nic.ops = &af_xdp_ops;
	o.x->fd = -1;
	o.x->queue = o.opt.queue;
	rc = opening_region(&o);
	if (!rc)
		rc = opening_socket(&o);
	if (!rc)
		rc = opening_rings(&o);
	if (!rc)
		rc = opening_bind(&o);
	if (rc) {
		o.x->nic.ops->destroy(&o.x->nic);
		return rc;
	}
	opening_caps(&o);
	*out = &o.x->nic;
	return 0;
}
