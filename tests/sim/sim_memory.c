/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_memory.c - applications that send from their own memory, in place.
 *
 * Each has all that it will send, twice: pieces of a segment then come from memory in several places. Once its
 * connection is over it takes the memory back, asking after each poll until it may, and scribbles over it: who
 * reads it afterwards, stack or card, is found out by the peer, or by the wire, which hashes what it holds.
 */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct harp_stack *memory_stack(struct sim *sim, const struct sim_app *app)
{
	return sim->stacks[app->stack].stack;
}

/* 0, or why there is none. */
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

ssize_t sim_memory_send(struct sim *sim, struct sim_app *app, size_t len)
{
	int err = app->memory[0] ? 0 : memory_make(sim, app);

	if (err) {
		sim_fail(sim, "connection %u, stack %u: harp_stack_memory_add: %s", app->pair,
			 app->stack, strerror(-err));
		return err;
	}
	return harp_conn_send_external(app->conn, app->memory[rng_below(&sim->rng, 2)] + app->sent,
				       len);
}

static bool memory_take_back(struct sim *sim, struct sim_app *app)
{
	for (unsigned i = 0; i < 2; i++) {
		int err;

		if (!app->memory[i])
			continue;
		/* It may want it back at once: what is still needed is copied. */
		if (rng_below(&sim->rng, 2))
			(void)harp_stack_memory_evict(memory_stack(sim, app), app->memory[i],
						      app->send_total);
		err = harp_stack_memory_remove(memory_stack(sim, app), app->memory[i],
					       app->send_total);
		if (err == -EBUSY)
			continue;
		if (err)
			return sim_fail(sim,
					"connection %u, stack %u: harp_stack_memory_remove: %s",
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

			if (app->stack == stack && app->closed &&
			    (app->memory[0] || app->memory[1]) && !memory_take_back(sim, app))
				return false;
		}
	}
	return true;
}

void sim_memory_forget(struct sim *sim, unsigned stack)
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
