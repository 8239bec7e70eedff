/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_xdp.h - libharp-xdp.so: loads the steering program and attaches it. Private to HARP: the host
 * layer opens the library on demand, so that nothing else needs libbpf.
 */
#ifndef HARP_XDP_H
#define HARP_XDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xdp/steer.h"

#define HARP_XDP_VERSION 2u
#define HARP_XDP_FDS_MAX 16u

struct harp_xdp;

/* The library's only symbol is harp_xdp_api(), so that one dlsym() gets all, checked by version. */
struct harp_xdp_api {
	uint32_t version; /* HARP_XDP_VERSION */
	uint32_t verdict_count;
	/*
	 * Loads and attaches. mode: enum harp_xdp_mode. The link is this process's: its death
	 * detaches. why: one line on failure; on success, if automatic choice was made, its reason.
	 * -EBUSY another XDP program is attached; -EPERM; -ENODEV; -EOPNOTSUPP.
	 */
	int (*attach)(struct harp_xdp **out, const char *ifname, uint32_t mode, char *why,
		      size_t why_len);
	bool (*native)(const struct harp_xdp *xdp);
	/* Each returns 0 or -errno. fd -1 takes the socket of that queue out. */
	int (*xsk_set)(struct harp_xdp *xdp, uint32_t queue, int fd);
	/* protocol: STEER_PORT_TCP or STEER_PORT_UDP. */
	int (*port_set)(struct harp_xdp *xdp, uint32_t protocol, uint16_t port, bool ours);
	int (*address_set)(struct harp_xdp *xdp, const uint8_t address[16], bool ours);
	/* Writes STEER_VERDICT_COUNT sums over all processors. */
	int (*verdicts)(const struct harp_xdp *xdp, uint64_t *counts, unsigned count);
	/* The descriptors that a forked child must close; returns how many. */
	unsigned (*fds)(const struct harp_xdp *xdp, int *fds, unsigned max);
	void (*detach)(struct harp_xdp *xdp);
	/* Number of the XDP program attached to the interface, 0 none, -errno. */
	int64_t (*attached_id)(uint32_t ifindex);
};

__attribute__((visibility("default"))) const struct harp_xdp_api *harp_xdp_api(void);

#endif
