/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h - what this process remembers of the HARP ports of its peers: how their NICs choose queues, and which of them
 * could not be reached a moment ago. A small table; the entry that was not used for longest is replaced first. Any thread.
 */
#ifndef HARP_PLUGIN_PEERS_H
#define HARP_PLUGIN_PEERS_H

#include "wire/queue_placement.h"

#define PEERS_MAX 256u
#define PEERS_AVOID_NS 10000000000ull

/* What the HARP port at remote said of its NIC. False: nothing, or it was forgotten. */
bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out);
/* It says so, and is authenticated. */
void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end);
/* No packet got from an engine (by its number) to remote and back: not again for PEERS_AVOID_NS. What remote said of its
 * NIC is forgotten. */
void peers_avoid(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns);
bool peers_is_avoided(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns);
/* Forgets everything. */
void peers_reset(void);

#endif
