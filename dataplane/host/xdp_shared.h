/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_shared.h - the XDP programs of this process: one per interface, shared by its stand-alone
 * instances on different queues. The last user detaches it.
 */
#ifndef HARP_HOST_XDP_SHARED_H
#define HARP_HOST_XDP_SHARED_H

#include "xdp/harp_xdp.h"

struct xdp_shared;

struct xdp_request {
	const char *ifname;
	uint32_t ifindex;
	uint32_t mode;       /* enum harp_xdp_mode */
	const char *lib_dir; /* as library_open() */
};

/* Returns the interface's program with a new reference, attaching it if necessary. Any thread. why:
 * as for attach() of harp_xdp.h; empty if it was attached before. -EBUSY also if it runs in another
 * mode than requested. */
int xdp_shared_get(struct xdp_shared **out, const struct xdp_request *request, char *why,
		   size_t why_len);
/* NULL is accepted. */
void xdp_shared_put(struct xdp_shared *shared);
const struct harp_xdp_api *xdp_shared_api(const struct xdp_shared *shared);
struct harp_xdp *xdp_shared_program(const struct xdp_shared *shared);
/* As check() of harp_xdp.h. May wait for the kernel. Any thread. */
int xdp_shared_check(struct xdp_shared *shared, char *why, size_t why_len);
/* Number of instances that use it. */
unsigned xdp_shared_users(const struct xdp_shared *shared);
/* In a forked child: closes the program's descriptors, the first time. Async-signal-safe. */
void xdp_shared_fork_child(struct xdp_shared *shared);

#endif
