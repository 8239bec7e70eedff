/* SPDX-License-Identifier: Apache-2.0 */
/* listener.h - listening kernel sockets, and listeners on HARP's stacks. */
#ifndef HARP_PLUGIN_LISTENER_H
#define HARP_PLUGIN_LISTENER_H

#include "connect/pending.h"

/* A listener on one engine's stack, under that engine's poller. */
struct stack_listener {
	struct engine *engine;
	struct placement_end placement; /* of the engine; constant */
	uint16_t port;
	struct harp_listener *listener;
	struct work work; /* in each turn of the engine */
	int open_result;
	struct pending_set pending_set;
};
int stack_listener_open(struct stack_listener **out, int dev, struct engine *engine);
void stack_listener_close(struct stack_listener *listener);

/* A listening socket, used by the control thread. Embedded. */
struct kernel_listener {
	int fd; /* -1: none */
	struct harp_endpoint local;
	struct control_source source;
	int watch_result;
	struct control_timer pause_timer; /* pause without descriptors */
	struct pending_set *pending_set;
};
/* Opens it on the device's address; the kernel chooses the port. Waits for the control thread,
 * which accepts connections from now on. */
int kernel_listener_listen(struct kernel_listener *listener, const struct harp_addr *addr,
			   uint32_t scope_id, struct pending_set *pending_set);
/* Closes it; accepts one that was never opened. Control thread. */
void kernel_listener_close(struct kernel_listener *listener);

#endif
