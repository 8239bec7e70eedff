// SPDX-License-Identifier: Apache-2.0
/*
 * xdp_beside.c - harp_aside at an interface's ingress hook, and harp_side on the device beside it.
 *
 * The hook takes many programs, so that it is the device's name that there can be only one of: who finds a device of
 * HARP's, and no program of HARP's on the interface, is there before the kernel has removed a dead process's.
 *
 * The kernel joins packets before the hook (GRO). Where it may join more than IP has a length for (BIG TCP) their
 * headers are not what harp_aside and the stack read.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <string.h>
#include <time.h>

#include "xdp/xdp.h"

#define BESIDE_RETRY_NS 2000000
#define BESIDE_RETRIES 1000u
#define BESIDE_GRO_IPV4_MAX_SIZE 64u /* IFLA_GRO_IPV4_MAX_SIZE of Linux 6.3 */

static int beside_answer(void *ctx, const struct nlmsghdr *message)
{
	const struct rtattr *attributes[BESIDE_GRO_IPV4_MAX_SIZE + 1];
	struct beside_interface *found = ctx;
	uint32_t v4, v6;

	if (message->nlmsg_type != RTM_NEWLINK)
		return 0;
	netlink_attributes(message, sizeof(struct ifinfomsg), attributes, BESIDE_GRO_IPV4_MAX_SIZE);
	v4 = netlink_u32(attributes[BESIDE_GRO_IPV4_MAX_SIZE], 0);
	v6 = netlink_u32(attributes[IFLA_GRO_MAX_SIZE], 0);
	found->joined_bytes = v4 > v6 ? v4 : v6;
	found->queues = netlink_u32(attributes[IFLA_NUM_RX_QUEUES], 1);
	return 0;
}

int beside_interface(uint32_t ifindex, struct beside_interface *found)
{
	struct netlink_message message;
	struct ifinfomsg *body;
	struct netlink nl;
	int rc = netlink_open(&nl, 0);

	*found = (struct beside_interface){ 0 };
	if (!rc) {
		body = netlink_begin(&message, RTM_GETLINK, 0, sizeof(*body));
		body->ifi_index = (int)ifindex;
		rc = netlink_call(&nl, &message, beside_answer, found);
		netlink_close(&nl);
	}
	return rc;
}

/* The queues that the device needs. */
static int beside_suits(const struct harp_xdp *xdp, const struct why *why, uint32_t *queues)
{
	struct beside_interface found;
	int rc = beside_interface(xdp->ifindex, &found);

	if (rc)
		return why_fail(why, rc, "asking for the interface: %s", strerror(-rc));
	if (found.joined_bytes > BESIDE_JOINED_BYTES_MAX)
		return why_fail(why, -EOPNOTSUPP,
				"the kernel joins packets up to %u bytes there (gro_max_size), and "
				"%u are taken",
				found.joined_bytes, BESIDE_JOINED_BYTES_MAX);
	*queues = xdp->queues ? xdp->queues : found.queues;
	return 0;
}

static int beside_device(struct harp_xdp *xdp, const struct why *why, uint32_t queues)
{
	const struct timespec pause = { .tv_nsec = BESIDE_RETRY_NS };
	bool native;
	int rc;

	if (queues > STEER_QUEUES_MAX)
		queues = STEER_QUEUES_MAX;
	for (unsigned i = 0; i < BESIDE_RETRIES; i++) {
		rc = side_make(&xdp->side, why, xdp->ifindex, queues ? queues : 1);
		if (rc != -EAGAIN)
			return rc;
		if (xdp_attached(xdp->ifindex, &native) > 0)
			return -EBUSY;
		nanosleep(&pause, NULL);
	}
	return rc;
}

/* What is HARP's has somewhere to go before it is sent there. */
/* A link on a device of this thread's network namespace. */
static int beside_link(const struct harp_xdp *xdp, uint32_t ifindex)
{
	LIBBPF_OPTS(bpf_link_create_opts, generic, .flags = XDP_FLAGS_SKB_MODE);

	return bpf_link_create(xdp->side_program_fd, (int)ifindex, BPF_XDP, &generic);
}

static int beside_link_away(void *ctx)
{
	const struct harp_xdp *xdp = ctx;

	return beside_link(xdp, xdp->side.away_ifindex);
}

static int beside_links(struct harp_xdp *xdp, const struct why *why)
{
	int fd = side_inside(&xdp->side, beside_link_away, xdp);

	if (fd < 0)
		return why_fail(why, fd, "attaching XDP to %s: %s", xdp->side.name, strerror(-fd));
	xdp->side_link_fd = fd;
	/* Nothing comes there. Who may not ask whose programs are at the hook sees it. */
	xdp->mark_link_fd = beside_link(xdp, xdp->side.ifindex);
	fd = xdp_link_create(xdp, false);
	if (fd < 0)
		return why_fail(why, fd, "attaching to the ingress hook (tcx, Linux 6.6): %s",
				strerror(-fd));
	xdp->link_fd = fd;
	return 0;
}

int xdp_beside(struct harp_xdp *xdp, const struct why *why)
{
	uint32_t queues = 0;
	int rc = beside_suits(xdp, why, &queues);

	if (!rc)
		rc = beside_device(xdp, why, queues);
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
