/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_memory.c - applications that send from their own memory, in place.
 *
 * Each has all that it will send, twice: pieces of a segment then come from memory in several places. Now and then, and
 * once its connection is over, an application takes the memory back, trying after each poll, and overwrites it: if the
 * stack or the NIC still reads it, the peer gets wrong bytes, or the wire, which hashes frames, reports a change. The
 * memory is added again before it is next sent from.
 */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_ASKS 100u /* one of this many polls takes memory back */

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

/* Before it is sent from again. */
static int memory_give_again(struct sim *sim, struct sim_app *app, unsigned i)
{
	struct harp_stack *stack = memory_stack(sim, app);
	int err;

	if (app->memory_back[i] == MEMORY_THEIRS)
		return 0;
	if (app->memory_back[i] == MEMORY_OURS)
		sim_bytes(app->stream, 0, app->memory[i], app->send_total);
	err = harp_stack_memory_add(stack, app->memory[i], app->send_total);
	if (!err && app->memory_back[i] == MEMORY_ASKED) /* now it is known twice */
		err = harp_stack_memory_remove(stack, app->memory[i], app->send_total);
	app->memory_back[i] = MEMORY_THEIRS;
	return err;
}

ssize_t sim_memory_send(struct sim *sim, struct sim_app *app, size_t len)
{
	unsigned i = rng_below(&sim->rng, 2);
	int err = app->memory[0] ? 0 : memory_make(sim, app);

	if (!err)
		err = memory_give_again(sim, app, i);
	if (err) {
		runner_fail("connection %u, stack %u: harp_stack_memory_add: %s", app->pair,
			    app->stack, strerror(-err));
		return err;
	}
	return harp_conn_send_external(app->conn, app->memory[i] + app->sent, len);
}

/* While the connection goes on: takes the memory back, or tries again. */
static bool memory_ask(struct sim *sim, struct sim_app *app)
{
	for (unsigned i = 0; i < 2; i++) {
		struct harp_stack *stack = memory_stack(sim, app);
		int err;

		if (!app->memory[i] || app->memory_back[i] == MEMORY_OURS ||
		    (app->memory_back[i] == MEMORY_THEIRS && rng_below(&sim->rng, MEMORY_ASKS)))
			continue;
		(void)harp_stack_memory_evict(stack, app->memory[i], app->send_total);
		err = harp_stack_memory_remove(stack, app->memory[i], app->send_total);
		if (err && err != -EBUSY)
			return runner_fail("connection %u, stack %u: taken back: %s", app->pair,
					   app->stack, strerror(-err));
		app->memory_back[i] = err ? MEMORY_ASKED : MEMORY_OURS;
		if (!err)
			memset(app->memory[i], 0xdd, app->send_total);
	}
	return true;
}

static bool memory_take_back(struct sim *sim, struct sim_app *app)
{
	for (unsigned i = 0; i < 2; i++) {
		int err;

		if (!app->memory[i])
			continue;
		if (app->memory_back[i] == MEMORY_OURS) {
			free(app->memory[i]);
			app->memory[i] = NULL;
			continue;
		}
		/* Evicted memory is free at once: the stack copies what it still needs. */
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
			if (app->closed ? !memory_take_back(sim, app) : !memory_ask(sim, app))
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
