/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upkeep.h - the connector's further lanes of a comm: which there should be, dialled, and dialled again.
 *
 * A struct upkeep lives as long as its comm and belongs to the keeper (its baton), but for what is said otherwise.
 */
#ifndef HARP_PLUGIN_UPKEEP_H
#define HARP_PLUGIN_UPKEEP_H

#include "comm/comm.h"
#include "connect/dial.h"

struct upkeep;
struct comm;
struct engine_set;

/* Before the first lane is dialled; the keeper runs. NULL: out of memory. */
struct upkeep *upkeep_new(int dev, uint8_t dscp, const struct handle *handle);
/* Baton of the first lane held: comm has just been made of it, first is how. */
void upkeep_made(struct upkeep *u, struct comm *comm, const struct dial *first);
/* Any thread; never waits: the further lanes are planned and dialled from now on. */
void upkeep_begin(struct upkeep *u);
/* comm_options.lane_lost. */
bool upkeep_lost(struct comm *comm, unsigned index, enum comm_loss loss);
/* Before the comm is closed: nothing is being attached to it any more when this returns. No baton held. */
void upkeep_stop(struct upkeep *u);
/* After that. Both accept NULL. */
void upkeep_free(struct upkeep *u);

#endif
