/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upkeep.h - the connector's further lanes of a comm: which there should be, dialled, and dialled again.
 *
 * A struct reconnect lives as long as its comm and belongs to the keeper (its baton), but for what is said otherwise.
 */
#ifndef HARP_PLUGIN_UPKEEP_H
#define HARP_PLUGIN_UPKEEP_H

#include "comm/comm.h"
#include "connect/attempt.h"

struct reconnect;
struct comm;
struct engine_set;

/* Before the first lane is dialled; the keeper runs. NULL: out of memory. */
struct reconnect *reconnect_new(int dev, uint8_t dscp, const struct handle *handle);
/* Baton of the first lane held: comm has just been made of it, first is how. */
void reconnect_made(struct reconnect *u, struct comm *comm, const struct attempt *first);
/* Any thread; never waits: the further lanes are planned and dialled from now on. */
void reconnect_begin(struct reconnect *u);
/* comm_options.lane_lost. */
bool reconnect_lost(struct comm *comm, unsigned index, enum comm_loss loss);
/* Before the comm is closed: nothing is being attached to it any more when this returns. No baton held. */
void reconnect_stop(struct reconnect *u);
/* After that. Both accept NULL. */
void reconnect_free(struct reconnect *u);

#endif
