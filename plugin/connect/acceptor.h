/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acceptor.h - where peers connect: one per process and device, shared by all its listen comms.
 */
#ifndef HARP_PLUGIN_ACCEPTOR_H
#define HARP_PLUGIN_ACCEPTOR_H

#include "connect/ctx.h"
#include "connect/rails.h"
#include "connect/registry.h"
#include "wire/preamble.h"

struct acceptor;

/* Opens the device's kernel sockets. The control thread runs. Under ctx_lock. */
int acceptor_open(int dev);
/* The device's; NULL: it has none. Any thread. */
struct acceptor *acceptor_of(int dev);
/* A listener on each of the device's engines, unless there are any. Under ctx_lock. */
int acceptor_open_harp(struct acceptor *acceptor, struct engine_set *engines);
/* False: new connections wait in the backlog of the kernel sockets, until true. Any thread; never waits. */
void acceptor_admit(struct acceptor *acceptor, bool admits);
/* Drops all connections that are not in a comm, and all acceptors. No listen comm is left. */
void acceptors_close(void);
int acceptor_dev(const struct acceptor *acceptor);

/* Lets peers in by its id and secret, until registry_unlisten(). Chooses its listener, too. */
void acceptor_add(struct acceptor *acceptor, struct listen_comm *listen);
/* Fills the endpoints of its handle. */
void acceptor_endpoints(const struct listen_comm *listen, struct handle *handle);
/* Takes a turn and the next ready comm; 0 and NULL when there is none yet. An error is of a peer that registry_fail() was called
 * for, and reported once: the next may be accepted. */
int acceptor_accept(struct listen_comm *listen, struct comm **out);
/* For pending.c, any poller: the value of extension 2 of CHALLENGE, and its bytes. It names the NICs by which lanes of the
 * device's comms may come, itself first. */
size_t acceptor_rails(const struct acceptor *acceptor, uint8_t out[RAILS_BYTES_MAX]);

#endif
