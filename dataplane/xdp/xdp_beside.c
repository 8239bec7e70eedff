// SPDX-License-Identifier: Apache-2.0
/*
 * xdp_beside.c - harp_aside at an interface's ingress hook, and harp_side on the device beside it.
 *
 * The hook takes many programs, so that it is the device's name that there can be only one of: who finds it
 * taken, and no program of HARP's on the interface, is there before the kernel has removed a dead process's.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <string.h>
#include <time.h>

#include "xdp/xdp.h"

#define BESIDE_RETRY_NS 2000000
#define BESIDE_RETRIES 1000u
#define BESIDE_FIRST (1u << 3) /* BPF_F_BEFORE of Linux 6.6: before all programs that are there */

static int beside_device(struct harp_xdp *xdp, const struct why *why, uint32_t queues)
{
	const struct timespec pause = { .tv_nsec = BESIDE_RETRY_NS };
	bool native;
	int rc;

	if (queues > STEER_QUEUES_MAX)
		queues = STEER_QUEUES_MAX;
	for (unsigned i = 0; i < BESIDE_RETRIES; i++) {
		rc = side_make(&xdp->side, why, xdp->ifindex, queues ? queues : 1);
		if (rc != -EEXIST)
			return rc;
		if (xdp_attached(xdp->ifindex, &native) > 0)
			return -EBUSY;
		nanosleep(&pause, NULL);
	}
	return rc;
}

/* What is HARP's has somewhere to go before it is sent there. */
static int beside_links(struct harp_xdp *xdp, const struct why *why)
{
	LIBBPF_OPTS(bpf_link_create_opts, generic, .flags = XDP_FLAGS_SKB_MODE);
	LIBBPF_OPTS(bpf_link_create_opts, first, .flags = BESIDE_FIRST);
	int fd = bpf_link_create(xdp->side_program_fd, (int)xdp->side.ifindex, BPF_XDP, &generic);

	if (fd < 0)
		return why_fail(why, fd, "attaching XDP to %s: %s", xdp->side.name, strerror(-fd));
	xdp->side_link_fd = fd;
	fd = bpf_link_create(xdp->program_fd, (int)xdp->ifindex, XDP_TCX_INGRESS, &first);
	if (fd < 0)
		return why_fail(why, fd, "attaching to the ingress hook (tcx, Linux 6.6): %s",
				strerror(-fd));
	xdp->link_fd = fd;
	return 0;
}

int xdp_beside(struct harp_xdp *xdp, const struct why *why, uint32_t queues)
{
	int rc = beside_device(xdp, why, queues);

	if (!rc)
		rc = xdp_load_aside(why, xdp->side.ifindex, &xdp->program_fd, &xdp->side_program_fd,
				    xdp->map_fds);
	if (!rc)
		rc = beside_links(xdp, why);
	if (rc) {
		xdp_unlink(xdp);
		side_drop(&xdp->side);
	}
	return rc;
}
