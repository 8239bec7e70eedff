/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acceptor.h - where peers connect: one per process and device, shared by all its listen comms.
 */
#ifndef HARP_PLUGIN_ACCEPTOR_H
#define HARP_PLUGIN_ACCEPTOR_H

#include "connect/ctx.h"
#include "wire/preamble.h"
#include "connect/rails.h"

/* Comms of one listen comm that wait to be accepted. Further peers with its handle are turned away before READY, and come
 * again. */
#define LISTEN_PEERS_MAX 64u

struct acceptor;
struct stack_listener;

/* Opens the kernel sockets. The control thread runs. */
int acceptor_open(struct acceptor **out, int dev);
/* A listener on each of the device's engines, unless there are any. Under ctx_lock. */
int acceptor_open_harp(struct acceptor *acceptor, struct engine_set *engines);
/* False: new connections wait in the backlog of the kernel sockets, until true. Any thread; never waits. */
void acceptor_admit(struct acceptor *acceptor, bool admits);
/* Drops all connections that are not in a comm. No listen comm is left. */
void acceptor_close(struct acceptor *acceptor);
int acceptor_dev(const struct acceptor *acceptor);

/* A listen comm: an id and a secret under which peers are let in. */
struct listen_comm {
	struct listen_comm *next_of_ctx; /* under ctx_lock */
	struct plugin_ctx *ctx;
	struct acceptor *acceptor;
	struct stack_listener *listener; /* for HARP lanes; NULL: there is none */
	unsigned turn; /* acceptor_accept()'s: which other listener is looked at */
	/* The rest under the acceptor's lock. */
	struct listen_comm *next;
	uint64_t id;
	uint8_t secret[HANDLE_SECRET_BYTES];
	struct comm *waiting; /* ready comms, oldest first, through comm->next */
	unsigned count;       /* of them */
	bool full_logged;     /* that peers are turned away */
	int error; /* why a peer that was let in has no comm, until accept has reported it */
};

/* Chooses its listener, too. */
void acceptor_add(struct acceptor *acceptor, struct listen_comm *listen);
/* Fills the endpoints of its handle. */
void acceptor_endpoints(const struct acceptor *acceptor, const struct listen_comm *listen,
			struct handle *handle);
/* By which devices lanes of its comms may come; itself first, RAIL_PAIRS_MAX at most. */
void acceptor_set_rails(struct acceptor *acceptor, struct acceptor *const *list, unsigned count);
/* Takes it away and drops the comms that wait in it. */
void acceptor_remove(struct acceptor *acceptor, struct listen_comm *listen);
/* Takes turns and the next ready comm; 0 and NULL when there is none yet. An error is of a peer that acceptor_fail() was called
 * for, and reported once: the next may be accepted. */
int acceptor_accept(struct acceptor *acceptor, struct listen_comm *listen, struct comm **out);

/* ---- for pending.c; any poller -------------------------------------------------------------------- */

/* The value of extension 2 of CHALLENGE, and its bytes. */
size_t acceptor_rails(struct acceptor *acceptor, uint8_t out[RAILS_BYTES_MAX]);
/* The secret of the listen comm of that id; false: there is none. */
bool acceptor_secret(struct acceptor *acceptor, uint64_t listen_id,
		     uint8_t secret[HANDLE_SECRET_BYTES]);
/* May a peer that has proved itself have READY? False: LISTEN_PEERS_MAX comms wait already, which is logged once. */
bool acceptor_has_room(struct acceptor *acceptor, uint64_t listen_id,
		       const struct harp_endpoint *peer);
/* A connector that has READY gets no comm: it takes itself for connected, finds a reset and does not connect again. So
 * accept must not wait for it any longer. */
void acceptor_fail(struct acceptor *acceptor, uint64_t listen_id, const struct harp_endpoint *peer,
		   int error);
/* Puts a comm where acceptor_accept() finds it, and lets further lanes in by key (NULL: a comm of one lane).
 * False: the listen comm is closed, or a comm of that id is there. */
bool acceptor_ready(struct acceptor *acceptor, uint64_t listen_id, struct comm *comm,
		    uint64_t comm_id, const uint8_t *key);

#endif
