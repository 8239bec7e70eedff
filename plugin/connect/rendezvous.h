/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - where peers connect: one per process and device, shared by all its listen comms.
 */
#ifndef HARP_PLUGIN_RENDEZVOUS_H
#define HARP_PLUGIN_RENDEZVOUS_H

#include "device/ctx.h"
#include "wire/preamble.h"
#include "connect/rails.h"

/* Of one listen comm: those that wait to be accepted and, at each door, those that READY is on its way to. Beyond, who holds
 * its handle is turned away before READY, and comes again. */
#define LISTEN_PEERS_MAX 64u

struct rendezvous;
struct harp_door;

/* Opens the kernel sockets. The control thread runs. */
int rendezvous_open(struct rendezvous **out, int dev);
/* A listener on each of the device's engines, unless there are any. Under ctx_lock. */
int rendezvous_open_harp(struct rendezvous *rdv, struct engine_set *engines);
/* New connections wait in the backlog of the kernel sockets, until peers are let in again. Any
 * thread; never waits. */
void rendezvous_hold(struct rendezvous *rdv);
void rendezvous_let_in(struct rendezvous *rdv);
/* Drops everybody who is not in a comm. No listen comm is left. */
void rendezvous_close(struct rendezvous *rdv);
int rendezvous_dev(const struct rendezvous *rdv);

/* A listen comm: an id and a secret under which peers are let in. */
struct listen_comm {
	struct listen_comm *next_of_ctx; /* under ctx_lock */
	struct plugin_ctx *ctx;
	struct rendezvous *rdv;
	struct harp_door *door; /* that peers with HARP lanes come to; NULL: there is none */
	unsigned turn;          /* rendezvous_accept()'s: which other door is looked at */
	/* The rest under the rendezvous' lock. */
	struct listen_comm *next;
	uint64_t id;
	uint8_t secret[HANDLE_SECRET_BYTES];
	struct comm *waiting; /* ready comms, oldest first, through comm->next */
	struct comm *left;    /* those that their connectors have given up: to be closed */
	unsigned count;       /* of both */
	bool full_said;       /* that peers are turned away for want of room */
	int error; /* why a peer that was let in has no comm; accept has not said it yet */
};

/* Chooses its door, too. */
void rendezvous_add(struct rendezvous *rdv, struct listen_comm *listen);
/* Fills the endpoints of its handle. */
void rendezvous_endpoints(const struct rendezvous *rdv, const struct listen_comm *listen,
			  struct handle *handle);
/* By which devices lanes of its comms may come; itself first, RAIL_PAIRS_MAX at most. */
void rendezvous_set_rails(struct rendezvous *rdv, struct rendezvous *const *list, unsigned count);
/* Takes it away and drops the comms that wait in it. */
void rendezvous_remove(struct rendezvous *rdv, struct listen_comm *listen);
/* Takes turns and the next ready comm; 0 and NULL when there is none yet. An error is of a peer that rendezvous_fail() was called
 * for, and told once: the next may be accepted. */
int rendezvous_accept(struct rendezvous *rdv, struct listen_comm *listen, struct comm **out);

/* ---- for guest.c; any baton -------------------------------------------------------------------- */

/* The value of extension 2 of CHALLENGE, and its bytes. */
size_t rendezvous_tell(struct rendezvous *rdv, uint8_t out[RAILS_BYTES_MAX]);
/* The secret of who listens under that id; false when nobody does. */
bool rendezvous_secret(struct rendezvous *rdv, uint64_t listen_id,
		       uint8_t secret[HANDLE_SECRET_BYTES]);
/* May it have READY, or wait so many to be accepted already? */
bool rendezvous_has_room(struct rendezvous *rdv, uint64_t listen_id);
/* A peer that has proved itself was turned away for want of room: said once. */
void rendezvous_say_full(struct rendezvous *rdv, uint64_t listen_id,
			 const struct harp_endpoint *peer);
/* A connector that has READY gets no comm: it believes itself connected, finds a reset and does not come again. So accept must
 * not wait for it any longer. */
void rendezvous_fail(struct rendezvous *rdv, uint64_t listen_id, const struct harp_endpoint *peer,
		     int error);
/* Puts a comm where rendezvous_accept() finds it, and lets further lanes in by key (NULL: a comm of one lane).
 * False when nobody listens there any more, or a comm of that id is there. */
bool rendezvous_ready(struct rendezvous *rdv, uint64_t listen_id, struct comm *comm,
		      uint64_t comm_id, const uint8_t *key);

#endif
