/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acceptor.h - the acceptor: one per process and device, shared by all its listen comms.
 */
#ifndef HARP_PLUGIN_ACCEPTOR_H
#define HARP_PLUGIN_ACCEPTOR_H

#include "connect/ctx.h"
#include "connect/rails.h"
#include "connect/registry.h"
#include "wire/preamble.h"

struct acceptor;

/* Opens the device's kernel sockets. The control thread is running. Under ctx_lock. */
int acceptor_open(int dev);
/* The device's acceptor; NULL: none. Any thread. */
struct acceptor *acceptor_of(int dev);
/* Opens a listener on each of the device's engines, unless done. Under ctx_lock. */
int acceptor_open_harp(struct acceptor *acceptor, struct engine_set *engines);
/* False: new connections stay in the backlog of the kernel sockets. Any thread; never waits. */
void acceptor_admit(struct acceptor *acceptor, bool admits);
/* Drops pending connections and all acceptors. No listen comm is open. */
void acceptors_close(void);
int acceptor_dev(const struct acceptor *acceptor);

/* Accepts connections for its id and secret. Also chooses its listener. */
void acceptor_add(struct acceptor *acceptor, struct listen_comm *listen);
/* Accepts no more, and closes its ready comms. No poller held. */
void acceptor_remove(struct listen_comm *listen);
/* Fills the endpoints of its handle. */
void acceptor_endpoints(const struct listen_comm *listen, struct handle *handle);
/* Polls, and returns the next ready comm, or 0 and NULL. An error concerns one peer
 * (registry_fail()) and is reported once; the next may be accepted. */
int acceptor_accept(struct listen_comm *listen, struct comm **out);
/* Writes extension 2 of CHALLENGE and returns its bytes: the NICs for lanes of the device's comms,
 * its own first. For pending.c, with any poller held. */
size_t acceptor_rails(const struct acceptor *acceptor, uint8_t out[RAILS_BYTES_MAX]);

#endif
