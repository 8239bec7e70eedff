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
	uint8_t protocol;
	const struct harp_stack_options *opt; /* for the owner's hooks */
};

/* opt must outlive the table. */
int port_init(struct port_table *table, uint8_t protocol, const struct harp_stack_options *opt,
	      struct rng *rng);
void port_destroy(struct port_table *table);
/* Adds a user of this port. 0, or -errno of the owner's hook. */
int port_get(struct port_table *table, uint16_t port);
void port_put(struct port_table *table, uint16_t port);
static inline bool port_used(const struct port_table *table, uint16_t port)
{
	return table->users[port] != 0;
}
/* True if another stack with the same addresses has the port (struct harp_stack_options). */
static inline bool port_on_other_queue(const struct port_table *table, uint16_t port)
{
	return table->opt->port_on_other_queue && !port_used(table, port) &&
	       table->opt->port_on_other_queue(table->opt->hooks.ctx, table->protocol, port);
}
/*
 * Chooses and acquires a port of the range for a connection to peer, or for an unbound listener or
 * socket (peer NULL). Prefers ports without users; then, if shared is not NULL, ports whose 4-tuple
 * shared() reports as free. Returns the port, -EADDRINUSE if none is available, or another -errno
 * of the owner's hook.
 */
int port_choose(struct port_table *table, const struct flow_key *peer,
		bool (*shared)(void *ctx, uint16_t port), void *ctx);

#endif
