/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_memory.c - applications that send from their own memory, in place.
 *
 * Each application has two copies of its stream, so the pieces of a segment come from several
 * places. Sometimes, and when its connection is closed, an application reclaims the memory,
 * retrying after each poll, and overwrites it. If the stack or the NIC still reads it, the peer
 * gets wrong bytes, or the wire, which hashes frames, reports a change. The memory is added again
 * before the next send from it.
 */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_RECLAIM_ONE_IN 100u /* one of this many polls reclaims memory */

static struct harp_stack *memory_stack(struct sim *sim, const struct sim_app *app)
{
	return sim->stacks[app->stack].stack;
}

/* Returns 0 or -errno. */
static int memory_make(struct sim *sim, struct sim_app *app)
{
	for (unsigned i = 0; i < 2; i++) {
		int err;

		app->memory[i] = malloc(app->send_total);
		if (!app->memory[i])
			return -ENOMEM;
		sim_bytes(app->stream, 0, app->memory[i], app->send_total);
		err = harp_stack_memory_add(memory_stack(sim, app), app->memory[i],
					    app->send_total);
		if (err) {
			free(app->memory[i]);
			app->memory[i] = NULL;
			return err;
		}
	}
	return 0;
}

/* Adds the memory again, before the next send from it. */
static int memory_lend(struct sim *sim, struct sim_app *app, unsigned i)
{
	struct harp_stack *stack = memory_stack(sim, app);
	int err;

	if (app->memory_owner[i] == MEMORY_OF_STACK)
		return 0;
	if (app->memory_owner[i] == MEMORY_OF_APP)
		sim_bytes(app->stream, 0, app->memory[i], app->send_total);
	err = harp_stack_memory_add(stack, app->memory[i], app->send_total);
	if (!err && app->memory_owner[i] == MEMORY_REVOKED) /* it is registered twice now */
		err = harp_stack_memory_remove(stack, app->memory[i], app->send_total);
	app->memory_owner[i] = MEMORY_OF_STACK;
	return err;
}

ssize_t sim_memory_send(struct sim *sim, struct sim_app *app, size_t len)
{
	unsigned i = rng_below(&sim->rng, 2);
	int err = app->memory[0] ? 0 : memory_make(sim, app);

	if (!err)
		err = memory_lend(sim, app, i);
	if (err) {
		runner_fail("connection %u, stack %u: harp_stack_memory_add: %s", app->pair,
			    app->stack, strerror(-err));
		return err;
	}
	return harp_conn_send_external(app->conn, app->memory[i] + app->sent, len);
}

/* While the connection is open: reclaims memory, or retries. */
static bool memory_reclaim_some(struct sim *sim, struct sim_app *app)
{
	for (unsigned i = 0; i < 2; i++) {
		struct harp_stack *stack = memory_stack(sim, app);
		int err;

		if (!app->memory[i] || app->memory_owner[i] == MEMORY_OF_APP ||
		    (app->memory_owner[i] == MEMORY_OF_STACK &&
		     rng_below(&sim->rng, MEMORY_RECLAIM_ONE_IN)))
			continue;
		(void)harp_stack_memory_evict(stack, app->memory[i], app->send_total);
		err = harp_stack_memory_remove(stack, app->memory[i], app->send_total);
		if (err && err != -EBUSY)
			return runner_fail("connection %u, stack %u: harp_stack_memory_remove: %s",
					   app->pair, app->stack, strerror(-err));
		app->memory_owner[i] = err ? MEMORY_REVOKED : MEMORY_OF_APP;
		if (!err)
			memset(app->memory[i], 0xdd, app->send_total);
	}
	return true;
}

static bool memory_reclaim_all(struct sim *sim, struct sim_app *app)
{
	for (unsigned i = 0; i < 2; i++) {
		int err;

		if (!app->memory[i])
			continue;
		if (app->memory_owner[i] == MEMORY_OF_APP) {
			free(app->memory[i]);
			app->memory[i] = NULL;
			continue;
		}
		/* Evicted memory can be removed at once: the stack copies data that it still
		 * needs. */
		if (rng_below(&sim->rng, 2))
			(void)harp_stack_memory_evict(memory_stack(sim, app), app->memory[i],
						      app->send_total);
		err = harp_stack_memory_remove(memory_stack(sim, app), app->memory[i],
					       app->send_total);
		if (err == -EBUSY)
			continue;
		if (err)
			return runner_fail("connection %u, stack %u: harp_stack_memory_remove: %s",
					   app->pair, app->stack, strerror(-err));
		memset(app->memory[i], 0xee, app->send_total);
		free(app->memory[i]);
		app->memory[i] = NULL;
	}
	return true;
}

bool sim_memory_step(struct sim *sim, unsigned stack)
{
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		for (unsigned role = 0; role < 2; role++) {
			struct sim_app *app = &sim->pairs[i].app[role];

			if (app->stack != stack || (!app->memory[0] && !app->memory[1]))
				continue;
			if (app->closed ? !memory_reclaim_all(sim, app)
					: !memory_reclaim_some(sim, app))
				return false;
		}
	}
	return true;
}

void sim_memory_free(struct sim *sim, unsigned stack)
{
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		for (unsigned role = 0; role < 2; role++) {
			struct sim_app *app = &sim->pairs[i].app[role];

			for (unsigned m = 0; m < 2 && app->stack == stack; m++) {
				free(app->memory[m]);
				app->memory[m] = NULL;
			}
		}
	}
}
