/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_shared.h - the XDP programs of this process: one for each interface, shared by all its
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
/* check of harp_xdp.h. May wait for the kernel; any thread. */
int xdp_shared_check(struct xdp_shared *shared, char *why, size_t why_len);
/* How many instances use it. */
unsigned xdp_shared_users(const struct xdp_shared *shared);
/* In a forked child: closes its descriptors, the first time. Async-signal-safe. */
void xdp_shared_fork_child(struct xdp_shared *shared);

#endif
