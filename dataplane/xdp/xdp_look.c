// SPDX-License-Identifier: Apache-2.0
/*
 * xdp_look.c - looks after what a process has attached: is it all there, and what is to be done if not?
 *
 * Theory of operation
 *
 * The kernel tells of a device that goes (rtnetlink), and of nothing that becomes of a link: who looks asks, after such
 * an event and every so often.
 *
 *   the interface has gone   to another network namespace, maybe: nothing of ours stays on it. That is all
 *   a link was detached      it is attached again
 *   the device beside went   another one is made
 *   it cannot be beside      (any more: gso_max_size; or no other one can be made) the program goes on the
 *                            interface, as generic XDP, if the kernel need not be spared that
 *   nor that                 nothing comes; the next look tries all again
 *
 * A descriptor keeps its number whatever it is of: a forked child closes them by their numbers.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "xdp/xdp.h"

static bool look_is_attached(int link_fd)
{
	struct bpf_link_info info = { 0 };
	uint32_t len = sizeof(info);

	/* Of a tcx link the same field. Who may not ask (any more) has heard of no change. */
	return bpf_obj_get_info_by_fd(link_fd, &info, &len) || info.xdp.ifindex;
}

static void look_take_over(struct harp_xdp *xdp, struct harp_xdp *fresh)
{
	side_move_fd(&xdp->link_fd, &fresh->link_fd);
	side_move_fd(&xdp->program_fd, &fresh->program_fd);
	side_move_fd(&xdp->side_link_fd, &fresh->side_link_fd);
	side_move_fd(&xdp->mark_link_fd, &fresh->mark_link_fd);
	side_move_fd(&xdp->side_program_fd, &fresh->side_program_fd);
	side_take_over(&xdp->side, &fresh->side);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

enum look_trouble { LOOK_GOOD, LOOK_DETACHED, LOOK_AMISS };

static enum look_trouble look_beside(struct harp_xdp *xdp, uint32_t joined_bytes)
{
	if (joined_bytes > BESIDE_JOINED_BYTES_MAX)
		snprintf(xdp->trouble, sizeof(xdp->trouble),
			 "the kernel joins packets up to %u bytes now (gro_max_size)",
			 joined_bytes);
	else if (side_is_gone(&xdp->side))
		snprintf(xdp->trouble, sizeof(xdp->trouble), "%s was removed", xdp->side.name);
	else if (!look_is_attached(xdp->side_link_fd))
		snprintf(xdp->trouble, sizeof(xdp->trouble), "%s was detached", XDP_SIDE_NAME);
	else
		return LOOK_GOOD;
	return LOOK_AMISS;
}

static enum look_trouble look_trouble(struct harp_xdp *xdp, uint32_t joined_bytes)
{
	enum look_trouble trouble = LOOK_GOOD;

	if (xdp->nowhere)
		return LOOK_AMISS; /* still the same */
	if (xdp->side.ifindex)
		trouble = look_beside(xdp, joined_bytes);
	if (trouble || look_is_attached(xdp->link_fd))
		return trouble;
	snprintf(xdp->trouble, sizeof(xdp->trouble), "%s was detached",
		 xdp->side.ifindex ? XDP_ASIDE_NAME : XDP_PROGRAM_NAME);
	return LOOK_DETACHED;
}

/* What is before ours at the hook has each packet first. That is said once of each. */
static void look_first(struct harp_xdp *xdp, const struct why *why)
{
	uint32_t first = xdp->side.ifindex ? xdp_ingress_first(xdp->ifindex) : 0;

	if (!first || first == xdp->first)
		return;
	xdp->first = first;
	if (!xdp_is_ours(first))
		why_fail(
			why, 0,
			"program %u is before HARP's at the ingress hook: HARP gets what that leaves "
			"to it",
			first);
}

/* ---- what is done ---------------------------------------------------------------------------- */

/* The interface is gone, or another namespace's: nothing of ours stays on it. The descriptors do. */
static void look_let_go(struct harp_xdp *xdp)
{
	bpf_link_detach(xdp->link_fd);
	if (xdp->side.ifindex)
		side_remove(&xdp->side);
	xdp->gone = true;
}

static int look_attach_again(struct harp_xdp *xdp)
{
	int fd = xdp_link_create(xdp, xdp->native);

	if (fd < 0)
		return fd;
	side_move_fd(&xdp->link_fd, &fd);
	return 0;
}

/*
 * Everything anew, over the same maps. Meanwhile what is HARP's gets lost, and is sent again: where the kernel had it, its
 * RST would end connections. If it can't be made the kernel shall have it.
 */
static int look_make(struct harp_xdp *xdp, const struct why *why)
{
	struct harp_xdp fresh = *xdp;
	int rc;

	if (!xdp->nowhere)
		side_remove(&xdp->side); /* its name is wanted */
	fresh.link_fd = fresh.program_fd = fresh.side_link_fd = -1;
	fresh.side_program_fd = fresh.mark_link_fd = -1;
	side_init(&fresh.side);
	rc = xdp_attach_generic(&fresh, why, xdp->trouble);
	xdp->nowhere = rc;
	if (rc) {
		xdp_unlink(&fresh);
		bpf_link_detach(xdp->link_fd);
		return rc;
	}
	if (!fresh.side.ifindex)
		bpf_link_detach(xdp->link_fd);
	look_take_over(xdp, &fresh);
	xdp->first = 0;
	return HARP_XDP_ELSEWHERE;
}

static int look_mend(struct harp_xdp *xdp, const struct why *why, enum look_trouble trouble)
{
	int rc;

	/* Who pinned it has given its sockets away, and attaches anew. */
	if (trouble == LOOK_AMISS && xdp->pin_dir[0])
		return why_fail(why, -ENOLINK, "%s", xdp->trouble);
	if (trouble == LOOK_AMISS)
		return look_make(xdp, why);
	rc = look_attach_again(xdp);
	if (!rc && xdp->pin_dir[0])
		rc = xdp_pin_link_anew(xdp);
	if (rc)
		return why_fail(why, rc, "%s; attaching it again: %s", xdp->trouble, strerror(-rc));
	return why_fail(why, 0, "%s; it is attached again", xdp->trouble);
}

int xdp_look(struct harp_xdp *xdp, char *text, size_t text_len)
{
	struct why why = { .text = text, .size = text_len };
	struct beside_interface interface;
	enum look_trouble trouble;
	int rc;

	if (xdp->gone)
		return -ENODEV;
	why_about(&why, "%s", xdp->ifname);
	rc = beside_interface(xdp->ifindex, &interface);
	if (rc == -ENODEV)
		look_let_go(xdp);
	if (rc)
		return rc == -ENODEV ? rc : 0; /* the next look may hear more */
	trouble = look_trouble(xdp, interface.joined_bytes);
	if (trouble)
		return look_mend(xdp, &why, trouble);
	look_first(xdp, &why);
	return 0;
}
