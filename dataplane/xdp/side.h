/* SPDX-License-Identifier: Apache-2.0 */
/*
 * side.h - the device beside an interface, where HARP's sockets receive what harp_aside sends there: one end of
 * a veth pair, up, with the interface's queues and no address; nothing is ever sent through it.
 *
 * The pair's other end is in a network namespace that only a descriptor of the maker's holds, so that
 * the kernel removes both ends when the maker has died. A device that must outlive its maker (harpd's,
 * pinned) has its other end moved to a namespace that is mounted on a file, as `ip netns` does. The next
 * harpd takes the device up from there.
 */
#ifndef HARP_XDP_SIDE_H
#define HARP_XDP_SIDE_H

#include <net/if.h>
#include <stdint.h>

#include "base/why.h"
#include "host/netlink.h"

struct side {
	uint32_t ifindex;      /* 0: there is none */
	uint32_t away_ifindex; /* of the other end, where packets come out, in its namespace */
	int netns_fd;          /* of the other end's namespace */
	struct netlink route;  /* of the interface's network namespace */
	struct netlink away;   /* holds the other end's */
	char name[IFNAMSIZ];
	char away_name[IFNAMSIZ]; /* of the other end */
};

void side_init(struct side *side);
/* Of the device beside that interface: harp<ifindex>. */
void side_name(char name[IFNAMSIZ], uint32_t ifindex);
/* Makes it. -EEXIST a device has its name; -EAGAIN one of HARP's, which may be about to go; -EPERM; other -errno. On
 * failure nothing is left. */
int side_make(struct side *side, const struct why *why, uint32_t ifindex, uint32_t queues);
/* Runs fn in a thread in the other end's namespace; what it returned, or -errno. */
int side_inside(const struct side *side, int (*fn)(void *), void *ctx);
/* Has someone removed it, or moved it away? */
bool side_is_gone(struct side *side);
/* Removes it, wherever its end here is now. The descriptors stay. */
void side_remove(struct side *side);
/* *fresh becomes *fd, under its number if it has one. */
void side_move_fd(int *fd, int *fresh);
/* Becomes the other one, whose descriptors get the numbers of its own. */
void side_take_over(struct side *side, struct side *fresh);
/* Moves the other end to the namespace that is mounted on the file, and renames it. -ENOENT no such
 * file; -ESTALE no namespace is mounted there; -EEXIST the name is taken; other -errno. */
int side_keep(struct side *side, const char *file, const char *name);
/* Takes up the device whose other end has this name in the namespace that is mounted on the file, as that
 * beside the interface ifindex of this thread's. -ENOENT no such file; -ESTALE it keeps nothing, or no device
 * of HARP's with an end here. */
int side_take_up(struct side *side, const struct why *why, const char *file, const char *name,
		 uint32_t ifindex);
/* Removes the device whose other end has this name there, wherever its end here is now. -ENOENT there
 * is none; -ESTALE no namespace is mounted on the file. */
int side_forget(const char *file, const char *name);
/* Closes all; removes it, unless it is kept. Safe twice. */
void side_close(struct side *side);
/* Removes it, and closes all. Safe twice. */
void side_drop(struct side *side);

#endif
