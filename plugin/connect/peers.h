/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h - what this process remembers of the HARP ports of its peers: how their NICs choose queues, and
 * which of them could not be reached a moment ago.
 *
 * A small table; the entry that was not used for longest is replaced first. Any thread.
 */
#ifndef HARP_PLUGIN_PEERS_H
#define HARP_PLUGIN_PEERS_H

#include "wire/queue_placement.h"

#define PEERS_MAX 256u
#define PEERS_AVOID_NS 10000000000ull

/* What the HARP port at remote said of its NIC. False: nothing, or it was forgotten. */
bool peers_recall(const struct harp_endpoint *remote, struct placement_end *out);
/* It says so, and has proved that it may. */
void peers_learn(const struct harp_endpoint *remote, const struct placement_end *end);
/* What it said was not true, or isn't any more. */
void peers_forget(const struct harp_endpoint *remote);
/* No connection came about from an engine (by its number) to remote: not again for PEERS_AVOID_NS. */
void peers_avoid(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns);
/* Seconds since peers_avoid(), while it holds; 0 when not. */
unsigned peers_avoided_s(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns);
/* Everything. */
void peers_reset(void);

#endif
