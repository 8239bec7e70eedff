/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.h - the acceptor's comms of several lanes, by the id that their further lanes name.
 *
 * Any thread, a poller held or not: each call holds one lock for a few hundred instructions, and what comm_attach()
 * takes. Order: poller, then this lock.
 */
#ifndef HARP_PLUGIN_REGISTRY_H
#define HARP_PLUGIN_REGISTRY_H

#include "comm/comm.h"
#include "wire/preamble.h"

/* A comm into which further lanes are let by key. -EEXIST: there is one of that id; -ENOMEM. */
int registry_add(struct comm *comm, uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES]);
/* Nothing is being attached to the comm when this returns, nor will be; its id is free. A comm that is not there is
 * accepted. */
void registry_hide(struct comm *comm);
/* Likewise, before the comm is closed; no poller held. */
void registry_remove(struct comm *comm);
/* The key of that comm; false: there is none of that id. */
bool registry_key(uint64_t comm_id, uint8_t key[PREAMBLE_KEY_BYTES]);
/* Attaches a lane (poller of lane->poller held) that has proved that it knows the key. -ENOENT: there is no comm of that id
 * and key any more; or what comm_attach() returns: the lane stays the caller's. */
int registry_join(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES], struct lane *lane,
		  const struct comm_lane_options *opt);

#endif
