/* SPDX-License-Identifier: Apache-2.0 */
/*
 * af_xdp_make.c - creates an AF_XDP queue: memory, socket, ring sizes, bind. Uses raw system calls
 * and libc only. af_xdp_adopt.c maps the queue, in this process or another.
 */
#include <errno.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/why.h"
#include "base/util.h"
#include "nic/af_xdp.h"
#include "nic/af_xdp_link.h"

#define BIND_RETRY_NS 2000000
/* Packets per sendto() in copy mode: more than a burst of the stack, but few enough that the call
 * returns soon. */
#define TX_BUDGET_PACKETS 128u

struct queue_maker {
	struct harp_af_xdp_options opt; /* with defaults */
	struct af_xdp_link link;
	struct harp_queue *queue;
	bool sg;
	struct why why;
};

static int make_options(struct queue_maker *m, const struct harp_af_xdp_options *opt)
{
	struct harp_af_xdp_options *c = &m->opt;
	int rc;

	why_about(&m->why, "%s queue %u", opt && opt->ifname ? opt->ifname : "(none)",
		  opt ? opt->queue : 0);
	if (!opt || opt->size < sizeof(*opt))
		return why_fail(&m->why, -EINVAL,
				"the size of the options is too small; rebuild the caller");
	*c = *opt;
	rc = af_xdp_link_read(c->ifname, &m->link);
	if (rc == -ENODEV)
		return why_fail(&m->why, rc, "no such interface; `ip link` lists them");
	if (rc)
		return why_fail(&m->why, rc, "cannot be used: %s", strerror(-rc));
	if (!c->frame_count)
		c->frame_count = 8192;
	if (!c->frame_size)
		c->frame_size = m->link.mtu_bytes <= 1500 ? 2048 : 4096;
	if (!c->ring_size)
		c->ring_size = 2048;
	if (!c->bind_retry_ms)
		c->bind_retry_ms = 2000;
	if (c->frame_size != 2048 && c->frame_size != 4096)
		return why_fail(&m->why, -EINVAL, "frame size %u; use 2048 or 4096", c->frame_size);
	if (!af_xdp_is_power_of_two(c->ring_size) || c->ring_size < 64 || c->ring_size > 65536)
		return why_fail(&m->why, -EINVAL, "ring size %u; use a power of two in 64..65536",
				c->ring_size);
	if (c->frame_count < 64 || c->frame_count > (1u << 20))
		return why_fail(&m->why, -EINVAL, "%u frames; use 64..1048576", c->frame_count);
	if (c->copy_mode > 2 || c->huge_pages > 2)
		return why_fail(&m->why, -EINVAL, "copy_mode %u or huge_pages %u exceeds 2",
				c->copy_mode, c->huge_pages);
	return 0;
}

/* frame memory */

/* Creates a memfd of sealed size, which the caller owns; or -errno. */
static int frames_create(size_t bytes, unsigned memfd_flags)
{
	int fd = memfd_sealed("harp-frames", memfd_flags, bytes);
	void *frames;

	if (fd < 0)
		return fd;
	/* The kernel reserves huge pages when they are mapped, not before. */
	frames = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (frames == MAP_FAILED) {
		close(fd);
		return -ENOMEM;
	}
	munmap(frames, bytes);
	return fd;
}

static int make_frames(struct queue_maker *m)
{
	size_t bytes = af_xdp_region_bytes(m->opt.frame_count, m->opt.frame_size);
	int fd = -1;

	if (m->opt.huge_pages != 1)
		fd = frames_create(bytes, MFD_HUGETLB | MFD_HUGE_2MB);
	if (fd < 0 && m->opt.huge_pages == 2)
		return why_fail(&m->why, -ENOMEM,
				"no %zu huge pages of 2 MiB free; raise vm.nr_hugepages",
				bytes / AF_XDP_HUGE_PAGE_BYTES);
	if (fd < 0)
		fd = frames_create(bytes, 0);
	if (fd == -EFBIG)
		return why_fail(&m->why, fd,
				"%zu bytes of frames exceed the limit; raise it (ulimit -f)",
				bytes);
	if (fd < 0)
		return why_fail(&m->why, -ENOMEM, "no memory for %u frames of %u; use fewer frames",
				m->opt.frame_count, m->opt.frame_size);
	m->queue->frames_fd = fd;
	return 0;
}

/* ---- the socket ----------------------------------------------------------------------------- */

/* Maps the frames only during the call: the kernel keeps the pages, not their address. */
static int frames_register(const struct queue_maker *m)
{
	size_t bytes = af_xdp_region_bytes(m->opt.frame_count, m->opt.frame_size);
	struct xdp_umem_reg reg = {
		.len = (uint64_t)m->opt.frame_count * m->opt.frame_size,
		.chunk_size = m->opt.frame_size,
	};
	void *frames = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			    m->queue->frames_fd, 0);
	int rc = 0;

	if (frames == MAP_FAILED)
		return -ENOMEM;
	reg.addr = (uintptr_t)frames;
	if (setsockopt(m->queue->xsk_fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)) < 0)
		rc = -errno;
	munmap(frames, bytes);
	return rc;
}

static int make_socket(const struct queue_maker *m)
{
	int sndbuf_bytes = (int)(m->opt.ring_size * 2 * 4096);
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	m->queue->xsk_fd = fd;
	if (fd < 0 && errno == EPERM)
		return why_fail(&m->why, -EPERM, "AF_XDP needs CAP_NET_RAW; run as root or add it");
	if (fd < 0 && (errno == EAFNOSUPPORT || errno == EINVAL))
		return why_fail(&m->why, -EOPNOTSUPP,
				"this kernel has no AF_XDP; it needs CONFIG_XDP_SOCKETS");
	if (fd < 0)
		return why_fail(&m->why, -errno, "AF_XDP socket: %s", strerror(errno));
	/* Copy mode charges packets in flight to the socket, whose default limit is less than a
	 * ring. Optional: sending works without. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &sndbuf_bytes, sizeof(sndbuf_bytes)) < 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf_bytes, sizeof(sndbuf_bytes));
	return 0;
}

static int make_memory(const struct queue_maker *m)
{
	unsigned long long bytes = (unsigned long long)m->opt.frame_count * m->opt.frame_size;
	int rc = frames_register(m);

	if (rc == -ENOBUFS || rc == -EPERM)
		return why_fail(&m->why, -EPERM,
				"%llu bytes exceed RLIMIT_MEMLOCK; raise `ulimit -l` or "
				"add CAP_IPC_LOCK",
				bytes);
	if (rc)
		return why_fail(&m->why, rc, "registering %u frames of %u: %s", m->opt.frame_count,
				m->opt.frame_size, strerror(-rc));
	return 0;
}

static int make_rings(const struct queue_maker *m)
{
	static const int rings[] = { XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING,
				     XDP_TX_RING };
	const int fd = m->queue->xsk_fd;
	uint32_t budget = TX_BUDGET_PACKETS;

	for (unsigned i = 0; i < ARRAY_SIZE(rings); i++)
		if (setsockopt(fd, SOL_XDP, rings[i], &m->opt.ring_size, sizeof(m->opt.ring_size)) <
		    0)
			return why_fail(&m->why, -errno, "rings of %u: %s", m->opt.ring_size,
					strerror(errno));
	/* Optional: kernels before 6.17 send 32 packets per call. */
	if (budget > m->opt.ring_size)
		budget = m->opt.ring_size;
	setsockopt(fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget));
	return 0;
}

/* ---- bind ----------------------------------------------------------------------------------- */

static int bind_once(const struct queue_maker *m, unsigned flags)
{
	struct sockaddr_xdp address = {
		.sxdp_family = AF_XDP,
		.sxdp_flags = (uint16_t)(XDP_USE_NEED_WAKEUP | flags),
		.sxdp_ifindex = m->link.ifindex,
		.sxdp_queue_id = m->opt.queue,
	};

	return bind(m->queue->xsk_fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno
											: 0;
}

/*
 * A queue stays busy for tens of milliseconds after its owner exits or closes it: the kernel frees
 * the old pool in a work queue. No event reports the end, so this retries for a bounded time.
 */
static int bind_with_retry(const struct queue_maker *m, unsigned flags)
{
	const struct timespec pause = { .tv_nsec = BIND_RETRY_NS };
	uint64_t tries = m->opt.bind_retry_ms * 1000000ull / BIND_RETRY_NS + 1;
	int rc;

	while ((rc = bind_once(m, flags)) == -EBUSY && --tries)
		nanosleep(&pause, NULL);
	return rc;
}

static int make_bind_failed(struct queue_maker *m, int rc)
{
	switch (rc) {
	case -EBUSY:
		return why_fail(&m->why, rc,
				"another AF_XDP socket owns the queue; choose another queue or "
				"stop its owner");
	case -EPERM:
		return why_fail(&m->why, rc, "binding needs CAP_NET_RAW; run as root or add it");
	case -ENETDOWN:
		return why_fail(&m->why, rc, "the interface is down; `ip link set %s up`",
				m->opt.ifname);
	case -ENODEV:
		return why_fail(&m->why, rc, "the interface was removed");
	case -EINVAL:
		return why_fail(&m->why, rc,
				"no such queue (the interface has %u receive, %u transmit); "
				"choose a lower one",
				m->link.rx_queues, m->link.tx_queues);
	case -EOPNOTSUPP:
		if (m->opt.copy_mode == 2)
			return why_fail(&m->why, rc,
					"driver %s has no zero-copy AF_XDP; use copy mode",
					m->link.driver);
		/* fall through */
	default:
		return why_fail(&m->why, rc, "bind: %s", strerror(-rc));
	}
}

/*
 * Binds in the best mode that kernel and driver accept. Zero-copy is untested: veth, tap and virtio
 * return EOPNOTSUPP, so the tests cover only the fallback to copy mode.
 */
static int make_bind(struct queue_maker *m)
{
	static const unsigned attempts[] = { XDP_ZEROCOPY | XDP_USE_SG, XDP_ZEROCOPY,
					     XDP_COPY | XDP_USE_SG, XDP_COPY };
	unsigned first = m->opt.copy_mode == 1 ? 2 : 0, last = m->opt.copy_mode == 2 ? 1 : 3;
	bool jumbo = m->link.mtu_bytes + 18 > m->opt.frame_size - AF_XDP_HEADROOM_BYTES;
	struct xdp_options options = { 0 };
	socklen_t len = sizeof(options);
	int rc = -EOPNOTSUPP;

	for (unsigned i = first; i <= last; i++) {
		unsigned flags = attempts[i];

		/* Without multi-buffer support, the kernel would silently drop packets larger than
		 * one chunk. */
		if (jumbo && !(flags & XDP_USE_SG))
			continue;
		rc = bind_with_retry(m, flags);
		m->sg = flags & XDP_USE_SG;
		if (rc != -EOPNOTSUPP && rc != -EINVAL)
			break;
	}
	if (rc == -EINVAL && jumbo && m->opt.queue < m->link.rx_queues)
		return why_fail(&m->why, -EOPNOTSUPP,
				"MTU %u needs multi-buffer AF_XDP, which this kernel lacks (6.6 "
				"has it); lower the MTU to %u",
				m->link.mtu_bytes, m->opt.frame_size - AF_XDP_HEADROOM_BYTES - 18);
	if (rc)
		return make_bind_failed(m, rc);
	if (getsockopt(m->queue->xsk_fd, SOL_XDP, XDP_OPTIONS, &options, &len) == 0)
		m->queue->zero_copy = !!(options.flags & XDP_OPTIONS_ZEROCOPY);
	return 0;
}

/* Fills in the parameters for af_xdp_adopt.c, except descriptors. */
static void make_describe(const struct queue_maker *m)
{
	struct harp_queue *queue = m->queue;

	snprintf(queue->ifname, sizeof(queue->ifname), "%s", m->opt.ifname);
	queue->ifindex = m->link.ifindex;
	queue->queue = m->opt.queue;
	queue->frame_size = m->opt.frame_size;
	queue->frame_count = m->opt.frame_count;
	queue->ring_size = m->opt.ring_size;
	queue->mtu_bytes = m->link.mtu_bytes;
	memcpy(queue->mac, m->link.mac, sizeof(queue->mac));
	queue->tx_frags_max = 1;
	if (m->sg) {
		queue->features |= HARP_NIC_TX_MULTI;
		queue->tx_frags_max =
			queue->zero_copy ? AF_XDP_ZEROCOPY_FRAGS_MIN : AF_XDP_COPY_FRAGS_MAX;
	}
	if (af_xdp_link_partial_csum(&m->link))
		queue->features |= HARP_NIC_RX_CSUM_PARTIAL;
}

int harp_queue_make(struct harp_queue *out, const struct harp_af_xdp_options *opt, char *why,
		    size_t why_len)
{
	struct queue_maker m = { .queue = out, .why = { .text = why, .size = why_len } };
	int rc;

	*out = (struct harp_queue){ .size = sizeof(*out), .xsk_fd = -1, .frames_fd = -1 };
	rc = make_options(&m, opt);
	if (!rc)
		rc = make_frames(&m);
	if (!rc)
		rc = make_socket(&m);
	if (!rc)
		rc = make_memory(&m);
	if (!rc)
		rc = make_rings(&m);
	if (!rc)
		rc = make_bind(&m);
	if (!rc) {
		make_describe(&m);
		return 0;
	}
	if (out->xsk_fd >= 0)
		close(out->xsk_fd);
	if (out->frames_fd >= 0)
		close(out->frames_fd);
	out->xsk_fd = out->frames_fd = -1;
	return rc;
}
