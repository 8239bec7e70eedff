/* SPDX-License-Identifier: Apache-2.0 */
/* candidates.h - candidate lanes to a peer, best first: HARP lanes, then kernel lanes, by
 * family. */
#ifndef HARP_PLUGIN_CANDIDATES_H
#define HARP_PLUGIN_CANDIDATES_H

#include "poll/engine.h"
#include "wire/handle.h"

/* HARP lanes of a family: pairs of an own instance and a port of the peer. */
#define CANDIDATE_PAIRS_MAX 8u
#define CANDIDATES_MAX (2u * CANDIDATE_PAIRS_MAX + 2u)

struct candidate {
	struct harp_endpoint local; /* port 0; zero: the stack or the kernel chooses */
	struct harp_endpoint remote;
	struct engine *engine; /* of HARP lanes */
	bool harp;
	/* How the NIC of a remote HARP port chooses queues: enum placement_kind, its queues, the
	 * port's own. Zeros: the remote port is the kernel's. */
	uint8_t placement;
	uint16_t queues, queue;
};

struct candidates {
	unsigned pairs; /* HARP lanes of a family; more than one for NICs that connect some pairs
			 * of queues only */
	unsigned count;
	struct candidate list[CANDIDATES_MAX];
	bool same_host;       /* and the same network namespace */
	char why_kernel[384]; /* why there is no HARP lane; else empty */
};

/* Lists candidates of one kind (engines not NULL: HARP lanes) between a device and a NIC of the
 * peer; logs nothing; may find none. Any thread. */
void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct nic_endpoints *nic, const uint8_t host_id[HANDLE_HOST_ID_BYTES]);
/* Lists all candidates. -EPROTONOSUPPORT, with a WARN: there is none, or none of the path that
 * HARP_PATH forces. Queries the kernel's routes. Control thread, after interface_open(); ctx_lock
 * not held. */
int candidates_find(struct candidates *out, int dev, const struct handle *handle);

/* Writes the id of this host and a network namespace (its inode number; 0: this process's). It is
 * equal for two ends whose packets to each other never reach a NIC. 0 or -errno. */
int host_id_read(uint64_t netns, uint8_t out[HANDLE_HOST_ID_BYTES]);

#endif
