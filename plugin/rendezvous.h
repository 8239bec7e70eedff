/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - where peers connect: one per process and device, shared by all its listen comms.
 */
#ifndef HARP_PLUGIN_RENDEZVOUS_H
#define HARP_PLUGIN_RENDEZVOUS_H

#include "ctx.h"

struct rendezvous;

/* Opens the kernel sockets, and a listener on the device's engine (NULL: none). */
int rendezvous_open(struct rendezvous **out, int dev, struct engine *engine);
/* Drops everybody who is not in a comm. No listen comm is left. */
void rendezvous_close(struct rendezvous *rdv);
/* Fills the endpoints of a handle. */
void rendezvous_endpoints(const struct rendezvous *rdv, struct handle *handle);

/* A listen comm: an id and a secret under which peers are let in. */
struct listen_comm {
	struct listen_comm *next_of_ctx; /* under ctx_lock */
	struct plugin_ctx *ctx;
	struct rendezvous *rdv;
	/* The rest under the rendezvous' lock. */
	struct listen_comm *next;
	uint64_t id;
	uint8_t secret[HANDLE_SECRET_BYTES];
	struct comm *waiting; /* ready comms, oldest first, through comm->next */
};

void rendezvous_add(struct rendezvous *rdv, struct listen_comm *listen);
/* Takes it away and drops the comms that wait in it. */
void rendezvous_remove(struct rendezvous *rdv, struct listen_comm *listen);
/* Takes turns and the next ready comm, NULL when there is none yet. */
struct comm *rendezvous_accept(struct rendezvous *rdv, struct listen_comm *listen);

#endif
