/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_shared.h - the steering programs of this process: one for each interface, shared by all its
 * stand-alone instances there, on different queues. The last one to go detaches it.
 */
#ifndef HARP_HOST_XDP_SHARED_H
#define HARP_HOST_XDP_SHARED_H

#include "xdp/harp_xdp.h"

struct xdp_shared;

struct xdp_wish {
	const char *ifname;
	uint32_t ifindex;
	uint32_t mode;       /* enum harp_xdp_mode */
	const char *lib_dir; /* as xdp_library_open() */
};

/* The program of that interface, attached if this process has none there yet; +1 reference. Any thread.
 * why: as attach of harp_xdp.h; empty when it was there. -EBUSY also: it runs in another mode than wished. */
int xdp_shared_get(struct xdp_shared **out, const struct xdp_wish *wish, char *why, size_t why_len);
/* NULL is accepted. */
void xdp_shared_put(struct xdp_shared *shared);
const struct harp_xdp_api *xdp_shared_api(const struct xdp_shared *shared);
struct harp_xdp *xdp_shared_program(const struct xdp_shared *shared);
/* Where the sockets receive. */
struct xdp_shared_place {
	unsigned generation; /* 0 at first; another one: another device, by other sockets */
	uint32_t ifindex;    /* the device beside; 0: the interface itself */
	int netns_fd;        /* its network namespace */
};
/* Of the device that sockets receive from now. */
unsigned xdp_shared_generation(const struct xdp_shared *shared);
/* Is all that was attached still there? Mended if not, where that is possible. 0, or look's -errno in harp_xdp.h; why
 * is empty if all is as it was. May wait for the kernel; any thread. */
int xdp_shared_look(struct xdp_shared *shared, struct xdp_shared_place *place, char *why,
		    size_t why_len);
/* How many instances use it. */
unsigned xdp_shared_users(const struct xdp_shared *shared);
/* In a forked child: closes its descriptors, the first time. Async-signal-safe. */
void xdp_shared_fork_child(struct xdp_shared *shared);

#endif
