/* SPDX-License-Identifier: Apache-2.0 */
/* listener.h - where peers come in: listening sockets of the kernel's and listeners on our own stacks. */
#ifndef HARP_PLUGIN_LISTENER_H
#define HARP_PLUGIN_LISTENER_H

#include "connect/pending.h"

/* A listener on one engine's stack; what changes is under that engine's poller. */
struct stack_listener {
	struct engine *engine;
	struct placement_end placement; /* of the engine; never changes */
	uint16_t port;
	struct harp_listener *listener;
	struct work work, open_work, close_work;
	int open_result;
	struct pending_set pending_set;
};
int stack_listener_open(struct stack_listener **out, struct acceptor *acceptor,
			struct engine *engine);
void stack_listener_close(struct stack_listener *listener);

/* A listening socket; the control thread. Part of the caller's. */
struct kernel_listener {
	int fd; /* -1: none */
	struct harp_endpoint local;
	struct control_source source;
	struct control_timer rest; /* no descriptor was left: it waits for one */
	struct pending_set *pending_set;
};
/* On the device's own address; the kernel chooses the port. No poller yet. */
int kernel_listener_listen(struct kernel_listener *listener, const struct harp_addr *addr,
			   uint32_t scope_id, struct pending_set *pending_set);
/* Accepts connections from now on, or lets them wait. The control thread. */
int kernel_listener_admit(struct kernel_listener *listener, bool admits);
/* Poller held. A listener that was never opened is accepted. */
void kernel_listener_close(struct kernel_listener *listener);

#endif
