/* SPDX-License-Identifier: Apache-2.0 */
/* candidates.h - the ways to a peer, best first: HARP lanes, then kernel lanes, by family. */
#ifndef HARP_PLUGIN_CANDIDATES_H
#define HARP_PLUGIN_CANDIDATES_H

#include "engine.h"
#include "handle.h"

#define CANDIDATES_MAX 6u

struct candidate {
	struct harp_endpoint local; /* of HARP lanes; zero: chosen by the stack */
	struct harp_endpoint remote;
	bool harp;
	bool harp_port; /* of the peer's stack: which queue matters over there too */
};

struct candidates {
	struct engine *engine; /* of HARP lanes; NULL: none */
	unsigned count;
	struct candidate list[CANDIDATES_MAX];
	bool same_host;       /* the same NIC, too */
	char why_kernel[384]; /* why no HARP lane; else empty */
};

/* At least one. -EPROTONOSUPPORT, said by WARN: none, or none of the path that HARP_PATH asks for. Takes a
 * place on the engine (engine_load) until candidates_forget(), on failure too. ctx_lock not held. */
int candidates_find(struct candidates *out, int dev, const struct handle *handle);
void candidates_forget(struct candidates *c);

#endif
