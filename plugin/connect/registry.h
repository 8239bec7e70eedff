/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.h - what HELLO may name: listen comms, by their listen ids, and the acceptor's multi-lane comms, by their comm ids.
 *
 * Any thread, a poller held or not: each call holds one lock for a few hundred instructions, and what comm_attach()
 * takes. Order: poller, then this lock.
 */
#ifndef HARP_PLUGIN_REGISTRY_H
#define HARP_PLUGIN_REGISTRY_H

#include "comm/comm.h"
#include "wire/preamble.h"

/* Connections of one listen comm that were sent READY: until the application accepts the comm, at most. Further peers with its
 * handle are turned away before READY, and come again. */
#define LISTEN_PEERS_MAX 64u

struct acceptor;
struct stack_listener;

/* A listen comm: an id and a secret under which peers are let in. */
struct listen_comm {
	struct listen_comm *next_of_ctx; /* under ctx_lock */
	struct plugin_ctx *ctx;
	struct acceptor *acceptor;
	struct stack_listener *listener; /* for HARP lanes; NULL: there is none */
	int dev;
	uint64_t id;
	uint8_t secret[HANDLE_SECRET_BYTES];
	/* The rest under the registry's lock. */
	struct listen_comm *next;
	struct comm *waiting; /* ready comms, oldest first, through comm->next */
	unsigned admitted;    /* these, and connections that were sent READY */
	bool full_logged;     /* that peers are turned away */
	int error; /* why a peer that was let in has no comm, until accept has reported it */
};

void registry_listen(struct listen_comm *listen);
/* Takes it away and closes the comms that wait in it. No poller held. */
void registry_unlisten(struct listen_comm *listen);
/* The next ready comm; 0 and NULL when there is none. An error is of a peer that registry_fail() was called for. */
int registry_accept(struct listen_comm *listen, struct comm **out);

/* A multi-lane comm, which further lanes may join by key. -EEXIST: there is one of that id; -ENOMEM. */
int registry_add(struct comm *comm, uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES]);
/* Nothing is being attached to the comm when this returns, nor will be; its id is free. A comm that is not there is
 * accepted. */
void registry_hide(struct comm *comm);
/* Likewise, before the comm is closed; no poller held. */
void registry_remove(struct comm *comm);

/* ---- for pending.c ---------------------------------------------------------------------------- */

/* The key of the comm of that id (joins), or the secret of that listen comm; false: there is none. */
bool registry_key(uint64_t id, bool joins, uint8_t key[PREAMBLE_KEY_BYTES]);
/* May a peer that has proved itself have READY? False: LISTEN_PEERS_MAX have had it, which is logged once. */
bool registry_admit(uint64_t listen_id, const struct harp_endpoint *peer);
/* Nothing came of a connection that was admitted. */
void registry_dismiss(uint64_t listen_id);
/* A connector that has READY gets no comm: it takes itself for connected, finds a reset and does not connect again. So
 * accept must not wait for it any longer. */
void registry_fail(uint64_t listen_id, const struct harp_endpoint *peer, int error);
/* An admitted connection became a comm, which waits for accept from now on. key: further lanes may join; NULL: a
 * single-lane comm. -ENOENT: the listen comm is closed; or what registry_add() returns. */
int registry_ready(uint64_t listen_id, struct comm *comm, uint64_t comm_id, const uint8_t *key);
/* Attaches a lane (poller of lane->poller held) that has proved that it knows the key. -ENOENT: there is no comm of that id
 * and key any more; or what comm_attach() returns: the lane stays the caller's. */
int registry_join(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES], struct lane *lane,
		  const struct comm_lane_options *opt);

#endif
