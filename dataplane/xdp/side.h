/* SPDX-License-Identifier: Apache-2.0 */
/*
 * side.h - the device beside an interface, where HARP's sockets receive what harp_aside sends there: one end of
 * a veth pair, up, with the interface's queues and no address; nothing is ever sent through it.
 *
 * Its life is its maker's. The pair's other end is in a network namespace that only a descriptor of the maker's
 * holds, so that the kernel takes both ends away when the maker has died.
 */
#ifndef HARP_XDP_SIDE_H
#define HARP_XDP_SIDE_H

#include <net/if.h>
#include <stdint.h>

#include "base/why.h"
#include "host/netlink.h"

struct side {
	uint32_t ifindex;     /* 0: there is none */
	struct netlink route; /* of the interface's network namespace */
	struct netlink away;  /* holds the other end's */
	char name[IFNAMSIZ];
};

void side_init(struct side *side);
/* Of the device beside that interface: harp<ifindex>. */
void side_name(char name[IFNAMSIZ], uint32_t ifindex);
/* Makes it. -EEXIST that is there already; -EPERM; other -errno. On failure nothing is left. */
int side_make(struct side *side, const struct why *why, uint32_t ifindex, uint32_t queues);
/* Removes it. Safe twice. */
void side_drop(struct side *side);

#endif
