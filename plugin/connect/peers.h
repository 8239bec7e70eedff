/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h - cache of the peers' HARP ports: how their NICs choose queues, and which of them were
 * unreachable recently. A small table with LRU replacement. Any thread.
 */
#ifndef HARP_PLUGIN_PEERS_H
#define HARP_PLUGIN_PEERS_H

#include "wire/queue_placement.h"

#define PEERS_MAX 256u
#define PEERS_AVOID_NS 10000000000ull

/* The queue placement of the HARP port at remote. False: unknown. */
bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out);
/* Stores it; the peer is authenticated. */
void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end);
/* No packet got through between an engine (by index) and remote: avoid the pair for PEERS_AVOID_NS,
 * and forget remote's queue placement. */
void peers_avoid(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns);
bool peers_is_avoided(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns);
/* Forgets everything. */
void peers_reset(void);

#endif
