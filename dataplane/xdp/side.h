/* SPDX-License-Identifier: Apache-2.0 */
/*
 * side.h - the device beside an interface, where HARP's sockets receive what harp_aside sends there: one end of
 * a veth pair, up, with the interface's queues and no address; nothing is ever sent through it.
 *
 * Its life is its maker's. The pair's other end is in a network namespace that only a descriptor of the maker's
 * holds, so that the kernel takes both ends away when the maker has died. A maker whose device must outlive it
 * (harpd's, pinned) keeps the namespace by a name, too: a bind mount of it on a file, as `ip netns` does. Who comes after
 * it takes the device up by that.
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
/* Keeps it by a file, which is made: -EEXIST it is there, -EPERM mounting takes CAP_SYS_ADMIN, other -errno. */
int side_keep(const struct side *side, const char *file);
/* Removes the file alone. */
int side_unkeep(const char *file);
/* Takes up the device whose other end is in the namespace that the file keeps, as that beside the interface ifindex of
 * this thread's. -ENOENT no such file; -ESTALE it keeps nothing, or no device of HARP's with an end here. */
int side_take_up(struct side *side, const struct why *why, const char *file, uint32_t ifindex);
/* Removes the file, and the device whose other end it keeps, wherever its end here is now. -ENOENT there is no such
 * file; -ESTALE it is none of ours, and left. */
int side_forget(const char *file);
/* Closes all; removes it, unless it is kept. Safe twice. */
void side_close(struct side *side);
/* Removes it, and closes all. Safe twice. */
void side_drop(struct side *side);

#endif
