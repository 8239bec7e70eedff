/* SPDX-License-Identifier: Apache-2.0 */
/* port.c - local ports: a count of users each; the owner's hooks hear of the first and the last. */
#include "transport/port.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define PORT_COUNT 65536u

int port_init(struct port_table *table, const struct harp_stack_options *opt,
	      int (*acquire)(void *ctx, uint16_t port), void (*release)(void *ctx, uint16_t port),
	      void *ctx, struct rng *rng)
{
	table->users = calloc(PORT_COUNT, sizeof(*table->users));
	if (!table->users)
		return -ENOMEM;
	table->port_min = opt->port_min;
	table->port_max = opt->port_max;
	table->rng = rng;
	table->acquire = acquire;
	table->release = release;
	table->ctx = ctx;
	return 0;
}

void port_destroy(struct port_table *table)
{
	if (!table->users)
		return;
	for (uint32_t port = 0; port < PORT_COUNT; port++) {
		if (table->users[port] != 0 && table->release)
			table->release(table->ctx, (uint16_t)port);
	}
	free(table->users);
	table->users = NULL;
}

int port_get(struct port_table *table, uint16_t port)
{
	if (table->users[port] == 0 && table->acquire && table->acquire(table->ctx, port) != 0)
		return -EADDRINUSE;
	table->users[port]++;
	return 0;
}

void port_put(struct port_table *table, uint16_t port)
{
	assert(table->users[port] > 0);
	if (--table->users[port] == 0 && table->release)
		table->release(table->ctx, port);
}

uint16_t port_choose(struct port_table *table, bool (*shared)(void *ctx, uint16_t port), void *ctx)
{
	uint32_t span = (uint32_t)table->port_max - table->port_min + 1u;
	uint32_t first = rng_below(table->rng, span);

	for (uint32_t pass = 0; pass < (shared ? 2u : 1u); pass++) {
		for (uint32_t i = 0; i < span; i++) {
			uint16_t port = (uint16_t)(table->port_min + (first + i) % span);

			if (port_used(table, port) && (pass == 0 || !shared(ctx, port)))
				continue;
			if (port_get(table, port) == 0)
				return port;
		}
	}
	return 0;
}
