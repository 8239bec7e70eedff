/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_xdp.h - libharp-xdp.so: loads the XDP program and attaches it. Private to HARP: the host
 * layer opens the library on demand, so that nothing else needs libbpf.
 */
#ifndef HARP_XDP_H
#define HARP_XDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xdp/steer.h"

#define HARP_XDP_VERSION 8u
#define HARP_XDP_FDS_MAX 16u
#define HARP_XDP_HOME_NONE 0xffffffffu /* the port's packets are taken on any queue */

struct harp_xdp;

/* Sources that may send to HARP: a prefix, with nothing set behind its bits. */
struct harp_xdp_source {
	uint8_t address_bytes; /* 4: IPv4, 16: IPv6 */
	uint8_t prefix_bits;
	uint8_t address[16];
};

/*
 * The library's only symbol is harp_xdp_api(), so that one dlsym() gets all, checked by version.
 * Calls return 0 or -errno; why is one line for people, "eth0: cause; remedy". Several threads may use one
 * harp_xdp at once, except for replace, pin and detach.
 */
struct harp_xdp_api {
	uint32_t version; /* HARP_XDP_VERSION */
	uint32_t verdict_count;
	/*
	 * Loads and attaches. mode: enum harp_xdp_mode. The link belongs to this process unless it is pinned: the
	 * process's death detaches it. why: on success too, the mode and its reason.
	 * -EBUSY another XDP program is attached; -EPERM; -ENODEV; -EOPNOTSUPP; -ECANCELED only generic mode is possible,
	 * and mode is HARP_XDP_NATIVE_OR_NONE.
	 */
	int (*attach)(struct harp_xdp **out, const char *ifname, uint32_t mode, char *why,
		      size_t why_len);
	bool (*native)(const struct harp_xdp *xdp);
	/* fd -1 takes the socket of that queue out. */
	int (*xsk_set)(struct harp_xdp *xdp, uint32_t queue, int fd);
	/*
	 * Ports first..last, both included, are ours or not, in the protocols named: STEER_PORT_TCP |
	 * STEER_PORT_UDP. home_queue: the queue of their stack, or HARP_XDP_HOME_NONE; without meaning when
	 * not ours. -EINVAL.
	 */
	int (*ports_set)(struct harp_xdp *xdp, uint32_t protocols, uint16_t first, uint16_t last,
			 uint32_t home_queue, bool ours);
	int (*address_set)(struct harp_xdp *xdp, const uint8_t address[16], bool ours);
	/* Writes STEER_VERDICT_COUNT sums over all processors. */
	int (*verdicts)(const struct harp_xdp *xdp, uint64_t *counts, unsigned count);
	/* The descriptors that a forked child must close, and no job may get; returns how many. */
	unsigned (*fds)(const struct harp_xdp *xdp, int *fds, unsigned max);
	/* Closes them. What is pinned stays attached, with its maps. */
	void (*detach)(struct harp_xdp *xdp);
	/* Number of the XDP program attached to the interface; 0 none, -errno. */
	int64_t (*attached_id)(uint32_t ifindex);
	/*
	 * Pins link, program and maps in a directory of a bpffs, made if its parent exists: from then on they outlive the
	 * process. On failure nothing is left pinned. A bpffs takes no dot in a name.
	 * -EOPNOTSUPP not on a bpffs; -EEXIST something of these names is there; -EINVAL a dot in the name; -ENOENT no parent; -EPERM;
	 * -EBUSY pinned already.
	 */
	int (*pin)(struct harp_xdp *xdp, const char *dir);
	/*
	 * Takes up what is pinned there, as it is, without touching a packet's way.
	 * -ENOENT nothing of ours is pinned there (nor is it a bpffs); -ESTALE incomplete, not ours, of
	 * another layout, or on another interface than ifname: unpin and attach anew; -EPERM; -ENODEV.
	 */
	int (*adopt)(struct harp_xdp **out, const char *dir, const char *ifname, char *why,
		     size_t why_len);
	/* This library's programs take the place of those attached, over the same maps; no packet misses
	 * both. Pins follow. On failure the old ones go on. */
	int (*replace)(struct harp_xdp *xdp, char *why, size_t why_len);
	/* Removes our names from dir, and dir if nothing else is in it; what no process holds open is then detached. Other
	 * files are left. 0 also when some were missing; -ENOENT none was there; -EPERM. */
	int (*unpin)(const char *dir);
	/* Sums over all processors of what came to queues 0..count-1, since the maps were made; of a queue
	 * beyond STEER_QUEUES_MAX nothing. */
	int (*arrivals)(const struct harp_xdp *xdp, struct steer_arrivals *sums, unsigned count);
	/*
	 * Is the program still attached? If it was detached by force, attaches (and pins) it again; may wait for the kernel.
	 * 0: it is attached; -ENODEV the interface is gone, or in another network namespace; other -errno: HARP receives
	 * nothing, and the next call tries again. why: empty unless something changed.
	 */
	int (*check)(struct harp_xdp *xdp, char *why, size_t why_len);
	/*
	 * Packets to HARP's ports, and ICMP errors about its flows, are taken from these sources only; count 0: from
	 * all, as after attach. A list without a prefix of a family excludes that family. It takes effect at once, for
	 * open connections too. -EINVAL not a prefix; -E2BIG more than STEER_SOURCES_MAX of a family; -ENOSPC, -ENOMEM:
	 * the list before is in force.
	 */
	int (*sources_set)(struct harp_xdp *xdp, const struct harp_xdp_source *sources,
			   unsigned count);
};

__attribute__((visibility("default"))) const struct harp_xdp_api *harp_xdp_api(void);

#endif
