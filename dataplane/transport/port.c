/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port.c - local ports: reference counts, with hooks for the first and the last reference.
 *
 * An off-path attacker must not be able to guess an ephemeral port (RFC 6056 section 1).
 * Connections use algorithm 4, double-hash port selection (section 3.3.4). Each combination of
 * addresses and remote port starts its search at its own offset and proceeds cyclically, so the
 * same remote endpoint sees a port again as late as possible. The result depends only on a keyed
 * hash and reveals nothing about the stack's random generator.
 */
#include "transport/port.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define PORT_COUNT 65536u
#define PORT_STEP_MAX 8u

int port_init(struct port_table *table, uint8_t protocol, const struct harp_stack_options *opt,
	      struct rng *rng)
{
	table->users = calloc(PORT_COUNT, sizeof(*table->users));
	if (!table->users)
		return -ENOMEM;
	table->port_min = opt->port_min;
	table->port_max = opt->port_max;
	table->secret = rng_key(rng);
	for (uint32_t i = 0; i < PORT_STEPS; i++)
		table->steps[i] = (uint16_t)rng_u64(rng);
	table->protocol = protocol;
	table->opt = opt;
	return 0;
}

static void port_release(const struct port_table *table, uint16_t port)
{
	if (table->opt->hooks.port_release)
		table->opt->hooks.port_release(table->opt->hooks.ctx, table->protocol, port);
}

void port_destroy(struct port_table *table)
{
	if (!table->users)
		return;
	for (uint32_t port = 0; port < PORT_COUNT; port++) {
		if (table->users[port] != 0)
			port_release(table, (uint16_t)port);
	}
	free(table->users);
	table->users = NULL;
}

int port_get(struct port_table *table, uint16_t port)
{
	const struct harp_stack_hooks *hooks = &table->opt->hooks;
	int rc = 0;

	if (table->users[port] == 0 && hooks->port_acquire)
		rc = hooks->port_acquire(hooks->ctx, table->protocol, port);
	if (!rc)
		table->users[port]++;
	return rc;
}

void port_put(struct port_table *table, uint16_t port)
{
	assert(table->users[port] > 0);
	if (--table->users[port] == 0)
		port_release(table, port);
}

struct port_input {
	struct flow_key peer;
	uint32_t draw;
};
static_assert(sizeof(struct port_input) == sizeof(struct flow_key) + 4, "hashed: no padding");

static uint32_t port_first(struct port_table *table, const struct flow_key *peer)
{
	struct port_input in = { .draw = ++table->draws };
	uint64_t draw = siphash24(&table->secret, &in, sizeof(in)), hash;
	uint16_t *step;

	if (!peer)
		return (uint32_t)draw;
	/* RFC 6056 section 3.3.4: offset = F() and index = G() are the two halves of one keyed
	 * hash. The step is random, because a remote endpoint that shares the counter could
	 * otherwise count our connections. */
	in = (struct port_input){ .peer = *peer };
	in.peer.local_port = 0;
	hash = siphash24(&table->secret, &in, sizeof(in));
	step = &table->steps[hash % PORT_STEPS];
	*step = (uint16_t)(*step + 1 + draw % PORT_STEP_MAX);
	return (uint32_t)(hash >> 32) + *step;
}

int port_choose(struct port_table *table, const struct flow_key *peer,
		bool (*shared)(void *ctx, uint16_t port), void *ctx)
{
	uint32_t span = (uint32_t)table->port_max - table->port_min + 1u;
	uint32_t first = port_first(table, peer) % span;
	int rc;

	for (uint32_t pass = 0; pass < (shared ? 2u : 1u); pass++) {
		for (uint32_t i = 0; i < span; i++) {
			uint32_t offset = first + i < span ? first + i : first + i - span;
			uint16_t port = (uint16_t)(table->port_min + offset);

			if (port_used(table, port) ? pass == 0 || !shared(ctx, port) : pass == 1)
				continue;
			rc = port_get(table, port);
			if (rc != -EADDRINUSE)
				return rc ? rc : port;
		}
	}
	return -EADDRINUSE;
}
