/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.h - the ids that HELLO may name: listen ids of listen comms, and comm ids of the
 * acceptor's multi-lane comms.
 *
 * Any thread, with or without a poller held: each call holds one lock, most of them for a few
 * hundred instructions; registry_add() makes a comm under it. Lock order: poller, then this lock.
 */
#ifndef HARP_PLUGIN_REGISTRY_H
#define HARP_PLUGIN_REGISTRY_H

#include "comm/comm.h"
#include "wire/preamble.h"

/* Comms of a listen comm that wait for accept, at most. Further peers are refused before READY, and
 * connect again. */
#define LISTEN_WAITING_MAX 64u

struct stack_listener;

/* A listen comm: an id and a secret that admit peers. */
struct listen_comm {
	struct listen_comm *next_of_ctx; /* under ctx_lock */
	struct plugin_ctx *ctx;
	struct stack_listener *listener; /* for HARP lanes; NULL: none */
	int dev;
	uint64_t id;
	uint8_t secret[HANDLE_SECRET_BYTES];
	/* Under the registry's lock. */
	struct listen_comm *next;
	struct comm *waiting; /* ready comms, oldest first, through comm->next */
	unsigned waiting_count;
	bool full_logged; /* refused peers were logged */
	int error;        /* why a peer that was sent READY got no comm, until accept reports it */
};

void registry_listen(struct listen_comm *listen);
/* Removes it and closes its ready comms. No poller held. */
void registry_unlisten(struct listen_comm *listen);
/* The next ready comm, or 0 and NULL. An error concerns one peer (registry_fail()). */
int registry_accept(struct listen_comm *listen, struct comm **out);

/* Removes a comm: when this returns, no lane is being attached to it, nor will be. Accepts a comm
 * that is not registered. */
void registry_hide(struct comm *comm);
/* Same, before the comm is closed; no poller held. */
void registry_remove(struct comm *comm);

/* ---- for pending.c -------------------------------------------------------------------------- */

/* The key of the comm (joins) or the secret of the listen comm of that id; false: unknown id. */
bool registry_key(uint64_t id, bool joins, uint8_t key[PREAMBLE_KEY_BYTES]);
/* May an authenticated peer be sent READY? False: LISTEN_WAITING_MAX is reached, which is logged
 * once. */
bool registry_admits(uint64_t listen_id, const struct harp_endpoint *peer);
/* A connector that has received READY gets no comm. It considers itself connected, sees a reset,
 * and does not connect again. So accept reports the error instead of waiting for it. */
void registry_fail(uint64_t listen_id, const struct harp_endpoint *peer, int error);
/* Makes a comm of an authenticated first lane (poller of lane->poller held), ready for accept. key:
 * of further lanes, which may join if the comm is multi-lane. Takes ownership of the lane, except
 * on error: -ENOENT: the listen comm is closed; -EEXIST: the comm id is in use; -ENOMEM. */
int registry_add(uint64_t listen_id, struct lane *lane, struct comm_options *opt,
		 const uint8_t key[PREAMBLE_KEY_BYTES]);
/* Attaches a lane (poller of lane->poller held) that was authenticated by the key. -ENOENT: no comm
 * has that id and key; or an error of comm_attach(). On error, the caller keeps the lane. */
int registry_join(uint64_t comm_id, const uint8_t key[PREAMBLE_KEY_BYTES], struct lane *lane,
		  const struct comm_lane_options *opt);

#endif
