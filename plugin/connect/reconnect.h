/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reconnect.h - the connector's further lanes of a comm: which there should be; opened, and opened again.
 *
 * A struct reconnect lives as long as its comm and belongs to the control thread, unless a function says otherwise.
 */
#ifndef HARP_PLUGIN_RECONNECT_H
#define HARP_PLUGIN_RECONNECT_H

#include "comm/comm.h"
#include "connect/attempt.h"

struct reconnect;

/* Before the first lane is opened. NULL: out of memory. */
struct reconnect *reconnect_new(int dev, uint8_t dscp, const struct handle *handle);
/* The poller of the first lane is held: comm has just been made of it by that attempt. */
void reconnect_made(struct reconnect *u, struct comm *comm, const struct attempt *first);
/* Any thread; never waits: the further lanes are planned and opened from now on. */
void reconnect_begin(struct reconnect *u);
/* comm_options.lane_lost. */
bool reconnect_lost(struct comm *comm, unsigned index, enum comm_loss loss);
/* Before the comm is closed: nothing is being attached to it any more when this returns. No poller held. */
void reconnect_stop(struct reconnect *u);
/* After that. Both accept NULL. */
void reconnect_free(struct reconnect *u);

#endif
