/* SPDX-License-Identifier: Apache-2.0 */
/* port.h - local ports: who uses which, and choosing one (RFC 6056). */
#ifndef HARP_TRANSPORT_PORT_H
#define HARP_TRANSPORT_PORT_H

#include "base/rng.h"
#include "harp.h"
#include "transport/flow.h"

#define PORT_STEPS 256u

struct port_table {
	uint32_t *users; /* per port: listeners and connections, or sockets, on it */
	uint16_t port_min, port_max;
	struct siphash_key secret;
	uint16_t steps[PORT_STEPS];
	uint32_t draws;
	/* The owner's hooks; either may be NULL. */
	int (*acquire)(void *ctx, uint16_t port);
	void (*release)(void *ctx, uint16_t port);
	bool (*elsewhere)(void *ctx, uint8_t protocol, uint16_t port);
	void *ctx;
	int shortage; /* -EMFILE or -ENFILE, if the last port was refused for that; 0 */
};

/* acquire and release: the hooks of struct harp_stack_hooks for this protocol. */
int port_init(struct port_table *table, const struct harp_stack_options *opt,
	      int (*acquire)(void *ctx, uint16_t port), void (*release)(void *ctx, uint16_t port),
	      void *ctx, struct rng *rng);
void port_destroy(struct port_table *table);
/* One more user of an explicit port. -EADDRINUSE when the owner of the host refuses it; -EMFILE, -ENFILE he has no
 * descriptor to hold it with. */
int port_get(struct port_table *table, uint16_t port);
void port_put(struct port_table *table, uint16_t port);
static inline bool port_used(const struct port_table *table, uint16_t port)
{
	return table->users[port] != 0;
}
/* Is it another stack's of the same addresses (struct harp_stack_options)? */
static inline bool port_elsewhere(const struct port_table *table, uint8_t protocol, uint16_t port)
{
	return table->elsewhere && !port_used(table, port) &&
	       table->elsewhere(table->ctx, protocol, port);
}
/*
 * Chooses a port of the range and takes it, for a connection to peer, or for a listener or socket that
 * has none (NULL): at first only ports that nobody uses, then, when shared is not NULL, those for which
 * shared() says that the 4-tuple is still free. 0: none; table->shortage.
 */
uint16_t port_choose(struct port_table *table, const struct flow_key *peer,
		     bool (*shared)(void *ctx, uint16_t port), void *ctx);

#endif
