/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acceptor.h - the acceptor: one per process and device, shared by all its listen comms.
 */
#ifndef HARP_PLUGIN_ACCEPTOR_H
#define HARP_PLUGIN_ACCEPTOR_H

#include "connect/ctx.h"
#include "connect/registry.h"
#include "wire/preamble.h"

/* Opens the device's kernel sockets, and a listener on each engine (NULL: none), unless done.
 * The control thread is running. Under ctx_lock. */
int acceptor_open(int dev, struct engine_set *engines);
/* Drops pending connections and all acceptors. No listen comm is open. */
void acceptors_close(void);

/* Accepts connections for its id and secret on its device. Also chooses its listener. */
void acceptor_add(struct listen_comm *listen);
/* Accepts no more, and closes its ready comms. No poller held. */
void acceptor_remove(struct listen_comm *listen);
/* Describes its NIC, for the handle. */
void acceptor_endpoints(const struct listen_comm *listen, struct nic_endpoints *out);
/* Polls, and returns the next ready comm, or 0 and NULL. An error concerns one peer
 * (registry_fail()) and is reported once; the next may be accepted. */
int acceptor_accept(struct listen_comm *listen, struct comm **out);
/* Describes the other NICs for lanes of the device's comms, and returns how many. For pending.c,
 * with any poller held. */
uint8_t acceptor_nics(int dev, struct nic_endpoints out[PREAMBLE_NICS_MAX]);

#endif
