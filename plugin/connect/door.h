/* SPDX-License-Identifier: Apache-2.0 */
/* door.h - where peers come in: listening sockets of the kernel's and listeners on our own stacks. */
#ifndef HARP_PLUGIN_DOOR_H
#define HARP_PLUGIN_DOOR_H

#include "connect/guest.h"

/* A listener on one engine's stack; what changes is under that engine's baton. */
struct harp_door {
	struct engine *engine;
	struct placement_end placement; /* of the engine; never changes */
	uint16_t port;
	struct harp_listener *listener;
	struct work work, open_work, close_work;
	int open_result;
	uint64_t look_ns; /* when the guests' deadlines are looked at again */
	struct guests guests;
};
int harp_door_open(struct harp_door **out, struct rendezvous *rdv, struct engine *engine);
/* Returns how many strangers came to it. */
uint64_t harp_door_close(struct harp_door *door);

/* A listening socket; the keeper's baton. Part of the caller's. */
struct kernel_door {
	int fd; /* -1: none */
	struct harp_endpoint local;
	struct keeper_source source;
	struct keeper_timer rest; /* no descriptor was left: it waits for one */
	struct guests *guests;
	const atomic_bool *held; /* accepts nobody while it is set; then kernel_door_let_in() */
};
/* On the device's own address; the kernel chooses the port. No baton yet. */
int kernel_door_listen(struct kernel_door *door, const struct harp_addr *addr, uint32_t scope_id,
		       struct guests *guests);
/* Lets in from now on; no baton needed. */
int kernel_door_open(struct kernel_door *door);
/* It is not held any more; baton held. */
void kernel_door_let_in(struct kernel_door *door);
/* Baton held. A door that was never opened is accepted. */
void kernel_door_close(struct kernel_door *door);

#endif
