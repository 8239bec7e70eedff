/* SPDX-License-Identifier: Apache-2.0 */
/* port.h - local ports: reference counts and ephemeral port selection (RFC 6056). */
#ifndef HARP_TRANSPORT_PORT_H
#define HARP_TRANSPORT_PORT_H

#include "base/rng.h"
#include "harp.h"
#include "transport/flow.h"

#define PORT_STEPS 256u

struct port_table {
	uint32_t *users; /* per port: number of listeners and connections, or sockets */
	uint16_t port_min, port_max;
	struct siphash_key secret;
	uint16_t steps[PORT_STEPS];
	uint32_t draws;
	/* The owner's hooks; each may be NULL. */
	int (*acquire)(void *ctx, uint16_t port);
	void (*release)(void *ctx, uint16_t port);
	bool (*elsewhere)(void *ctx, uint8_t protocol, uint16_t port);
	void *ctx;
	/* -EMFILE or -ENFILE if the last port was refused for lack of descriptors; else 0 */
	int shortage;
};

/* acquire and release: the hooks of struct harp_stack_hooks for this protocol. */
int port_init(struct port_table *table, const struct harp_stack_options *opt,
	      int (*acquire)(void *ctx, uint16_t port), void (*release)(void *ctx, uint16_t port),
	      void *ctx, struct rng *rng);
void port_destroy(struct port_table *table);
/* Adds a user of an explicit port. -EADDRINUSE: the owner's hook refuses it; -EMFILE, -ENFILE: no
 * file descriptor to reserve it. */
int port_get(struct port_table *table, uint16_t port);
void port_put(struct port_table *table, uint16_t port);
static inline bool port_used(const struct port_table *table, uint16_t port)
{
	return table->users[port] != 0;
}
/* True if another stack with the same addresses has the port (struct harp_stack_options). */
static inline bool port_elsewhere(const struct port_table *table, uint8_t protocol, uint16_t port)
{
	return table->elsewhere && !port_used(table, port) &&
	       table->elsewhere(table->ctx, protocol, port);
}
/*
 * Chooses and acquires a port of the range for a connection to peer, or for an unbound listener or
 * socket (peer NULL). Prefers ports without users; then, if shared is not NULL, ports whose 4-tuple
 * shared() reports as free. Returns 0 if none is available; see table->shortage.
 */
uint16_t port_choose(struct port_table *table, const struct flow_key *peer,
		     bool (*shared)(void *ctx, uint16_t port), void *ctx);

#endif
