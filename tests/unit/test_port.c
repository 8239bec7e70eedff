/* SPDX-License-Identifier: Apache-2.0 */
/* test_port.c - local ports: counts, hooks, choice within the range, refusals by the owner. */
#include "transport/port.h"

#include <errno.h>

#include "check.h"

struct owner {
	unsigned acquired, released;
	uint16_t refused; /* 0: none */
};

static int acquire(void *ctx, uint16_t port)
{
	struct owner *owner = ctx;

	if (port == owner->refused)
		return -EADDRINUSE;
	owner->acquired++;
	return 0;
}

static void release(void *ctx, uint16_t port)
{
	struct owner *owner = ctx;

	(void)port;
	owner->released++;
}

static bool always(void *ctx, uint16_t port)
{
	(void)ctx;
	return port == 61001;
}

int main(void)
{
	struct owner owner = { .refused = 61002 };
	struct harp_stack_hooks hooks = { .ctx = &owner,
					  .port_acquire = acquire,
					  .port_release = release };
	struct harp_stack_options opt = { .port_min = 61000, .port_max = 61003 };
	struct port_table table;
	struct rng rng;
	bool seen[4] = { false };

	rng_seed(&rng, 7);
	CHECK_EQ(port_init(&table, &opt, hooks.port_acquire, hooks.port_release, hooks.ctx, &rng),
		 0);

	/* First and last user are told, the ones between are not. */
	CHECK_EQ(port_get(&table, 80), 0);
	CHECK_EQ(port_get(&table, 80), 0);
	CHECK_EQ(owner.acquired, 1);
	port_put(&table, 80);
	CHECK(port_used(&table, 80));
	CHECK_EQ(owner.released, 0);
	port_put(&table, 80);
	CHECK(!port_used(&table, 80));
	CHECK_EQ(owner.released, 1);
	CHECK_EQ(port_get(&table, 61002), -EADDRINUSE);

	/* All of the range but the refused one, each once, then none. */
	for (unsigned i = 0; i < 3; i++) {
		uint16_t port = port_choose(&table, NULL, NULL);

		CHECK(port >= 61000 && port <= 61003 && port != 61002 && !seen[port - 61000]);
		if (port >= 61000 && port <= 61003)
			seen[port - 61000] = true;
	}
	CHECK_EQ(port_choose(&table, NULL, NULL), 0);
	/* Shared when the 4-tuple is another one. */
	CHECK_EQ(port_choose(&table, always, NULL), 61001);
	CHECK_EQ(table.users[61001], 2);
	port_destroy(&table);
	CHECK_EQ(owner.released, owner.acquired); /* what was still in use is given back */
	return check_done();
}
