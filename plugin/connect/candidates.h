/* SPDX-License-Identifier: Apache-2.0 */
/* candidates.h - the ways to a peer, best first: HARP lanes, then kernel lanes, by family. */
#ifndef HARP_PLUGIN_CANDIDATES_H
#define HARP_PLUGIN_CANDIDATES_H

#include "poll/engine.h"
#include "wire/handle.h"

#define CANDIDATE_WAYS_MAX 8u /* HARP lanes of a family: pairs of own instance and peer's port */
#define CANDIDATES_MAX (2u * CANDIDATE_WAYS_MAX + 2u)

struct candidate {
	struct harp_endpoint local; /* port 0; zero: chosen by the stack, or the kernel */
	struct harp_endpoint remote;
	struct engine *engine; /* of HARP lanes */
	/* Of the remote port, if it is a stack's, as the peer has said: enum placement_kind. */
	uint8_t peer_placement;
	uint16_t peer_queues, peer_queue;
	bool harp;
	bool harp_port; /* of the peer's stack: which queue matters over there too */
};

struct candidates {
	struct engine *engine; /* the first choice for HARP lanes; NULL: none */
	unsigned ways;         /* HARP lanes of a family; those beyond the first are for NICs that
				* bring packets from some queues to some others only */
	unsigned count;
	struct candidate list[CANDIDATES_MAX];
	bool same_host;       /* the same NIC, too */
	char why_kernel[384]; /* why no HARP lane; else empty */
};

/* Those of one kind (HARP lanes: engines is not NULL) between a device and a peer's, without a word; perhaps
 * none. Any thread. */
void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct handle *handle);
/* At least one. -EPROTONOSUPPORT, said by WARN: none, or none of the path that HARP_PATH asks
 * for. Asks the kernel for routes: by the control thread, after interface_open(). ctx_lock not held. */
int candidates_find(struct candidates *out, int dev, const struct handle *handle);

#endif
