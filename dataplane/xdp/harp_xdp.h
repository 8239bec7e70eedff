/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_xdp.h - libharp-xdp.so loads and attaches the XDP program. Private to HARP: the host layer
 * loads the library on demand, so only it depends on libbpf.
 */
#ifndef HARP_XDP_H
#define HARP_XDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xdp/steer.h"

#define HARP_XDP_VERSION 10u
#define HARP_XDP_FDS_MAX 16u
#define HARP_XDP_QUEUE_ANY 0xffffffffu /* packets to the port are redirected on any queue */

struct harp_xdp;

/* A prefix of sources that may send to HARP; bits after the prefix are zero. */
struct harp_xdp_source {
	uint8_t address_bytes; /* 4: IPv4, 16: IPv6 */
	uint8_t prefix_bits;
	uint8_t address[16];
};

/*
 * harp_xdp_api(), the library's only symbol, returns all functions and their version. Functions
 * return 0 or -errno; why receives one line, "eth0: cause; remedy". Several threads may use one
 * harp_xdp concurrently, except for replace, pin and detach.
 */
struct harp_xdp_api {
	uint32_t version; /* HARP_XDP_VERSION */
	/*
	 * Loads and attaches. mode: enum harp_xdp_mode. Unless the link is pinned, the kernel
	 * detaches it when this process exits. why: the mode and its reason, also on success.
	 * -EBUSY another XDP program is attached; -EPERM; -ENODEV; -EOPNOTSUPP; -ECANCELED only
	 * generic mode is possible, and mode is HARP_XDP_NATIVE_OR_NONE.
	 */
	int (*attach)(struct harp_xdp **out, const char *ifname, uint32_t mode, char *why,
		      size_t why_len);
	bool (*native)(const struct harp_xdp *xdp);
	/* Sets the socket of a queue; fd -1 removes it. */
	int (*xsk_set)(struct harp_xdp *xdp, uint32_t queue, int fd);
	/*
	 * Adds or removes ports first..last, inclusive, for the given protocols: STEER_PORT_TCP |
	 * STEER_PORT_UDP. rx_queue: the queue of their stack, or HARP_XDP_QUEUE_ANY; ignored on
	 * removal. -EINVAL.
	 */
	int (*ports_set)(struct harp_xdp *xdp, uint32_t protocols, uint16_t first, uint16_t last,
			 uint32_t rx_queue, bool ours);
	int (*address_set)(struct harp_xdp *xdp, const uint8_t address[16], bool ours);
	/* Writes STEER_VERDICT_COUNT sums over all CPUs. */
	int (*verdicts)(const struct harp_xdp *xdp, uint64_t *counts, unsigned count);
	/* Lists the descriptors that a forked child must close and that harpd must not pass to a
	 * job. Returns their number. */
	unsigned (*fds)(const struct harp_xdp *xdp, int *fds, unsigned max);
	/* Closes the descriptors. Pinned objects stay attached. */
	void (*detach)(struct harp_xdp *xdp);
	/* Id of the XDP program attached to the interface; 0 none, -errno. */
	int64_t (*attached_id)(uint32_t ifindex);
	/*
	 * Pins link, program and maps in a directory of a bpffs, so that they outlive the process.
	 * Creates the directory if its parent exists. On failure nothing stays pinned. bpffs names
	 * must not contain a dot. -EOPNOTSUPP not on a bpffs; -EEXIST one of the names exists;
	 * -EINVAL a dot in the name; -ENOENT no parent; -EPERM; -EBUSY already pinned.
	 */
	int (*pin)(struct harp_xdp *xdp, const char *dir);
	/*
	 * Adopts the pinned objects of dir without interrupting traffic. -ENOENT no object of HARP
	 * is pinned there (or it is not a bpffs); -ESTALE incomplete, not ours, another layout, or
	 * another interface than ifname: unpin and attach again; -EPERM; -ENODEV. why: the mode.
	 */
	int (*adopt)(struct harp_xdp **out, const char *dir, const char *ifname, char *why,
		     size_t why_len);
	/* Replaces the attached program with this library's, keeps the maps, and updates pins.
	 * Every packet passes one of the two programs. On failure the old program stays. */
	int (*replace)(struct harp_xdp *xdp, char *why, size_t why_len);
	/* Removes our names from dir, and dir if it is then empty. The kernel detaches objects that
	 * no process holds open. 0 also if some names were missing; -ENOENT all were missing;
	 * -EPERM. */
	int (*unpin)(const char *dir);
	/* Sums over all CPUs of packets that arrived on queues 0..count-1 since the maps were
	 * created; zero for queues from STEER_QUEUES_MAX on. */
	int (*arrivals)(const struct harp_xdp *xdp, struct steer_arrivals *sums, unsigned count);
	/*
	 * Checks that the program is still attached. If it was detached by force, attaches (and
	 * pins) it again; may wait for the kernel. 0: attached; -ENODEV the interface was removed
	 * or is in another network namespace; other -errno: HARP receives nothing, and the next
	 * call retries. why: empty unless something changed.
	 */
	int (*check)(struct harp_xdp *xdp, char *why, size_t why_len);
	/*
	 * Restricts the sources of packets to HARP's ports, and of ICMP errors about its flows.
	 * count 0: all sources, as after attach. A list without a prefix of a family excludes that
	 * family. Takes effect at once, also for open connections. -EINVAL not a prefix; -E2BIG
	 * more than STEER_SOURCES_MAX of a family; -ENOSPC, -ENOMEM: the old list stays.
	 */
	int (*sources_set)(struct harp_xdp *xdp, const struct harp_xdp_source *sources,
			   unsigned count);
	/* The result of libbpf_version_string(), such as "v1.1". */
	const char *(*libbpf_version)(void);
};

__attribute__((visibility("default"))) const struct harp_xdp_api *harp_xdp_api(void);

#endif
