/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c - the schedule of stacks and applications.
 *
 * Theory of operation. Time jumps to the next event: an event of the scenario, the wake time of an
 * application, a packet that arrives at a NIC, a deadline of a stack. A stack is polled only when
 * harp_stack_next_deadline_ns() or its NIC's next_ns() has come, plus the lag that the scenario
 * allows. After the poll, its applications have a turn if the stack has an event for them or their
 * wake time has come. So no busy loop hides a missing deadline or event: the connection stalls, and
 * run_is_stalled() reports it.
 *
 * The run ends when nothing is due any more. By then all connections must be closed.
 */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stack/stack.h"

#define SIM_NS_MAX (3 * 3600 * SIM_S) /* virtual time */
#define SIM_POLLS_MAX UINT64_C(3000000)
/* Time without progress after the last event: the longest RTO, and one or two lost segments. */
#define SIM_STALL_NS_MAX (250 * SIM_S)
#define SIM_RETRY_NS (5 * SIM_S)

/* ---- opening connections --------------------------------------------------------------------- */

static void run_app_begin(struct sim *sim, struct sim_app *app, struct harp_conn *conn)
{
	struct harp_tcp_options opt = { .size = sizeof(opt) };

	app->conn = conn;
	app->progress_ns = sim->now_ns;
	(void)harp_conn_options(conn, &opt);
	opt.user = app;
	opt.delayed_ack_ns = app->spec->delayed_ack_ns;
	(void)harp_conn_set_options(conn, &opt);
}

static int run_connect(struct sim *sim, struct sim_pair *pair, enum sim_role role)
{
	const struct scn_conn *c = pair->spec;
	struct sim_app *app = &pair->app[role], *peer = &pair->app[!role];
	bool both = c->kind == SCN_SIMULTANEOUS;
	struct harp_endpoint local = { .port = (uint16_t)c->local_port };
	struct harp_endpoint remote = {
		.addr = sim_net_addr(sim, peer->stack),
		.port = (uint16_t)(both ? c->local_port : sim->scenario->listens[c->listen].port),
	};
	struct harp_tcp_options tcp =
		sim_tcp_options(c->rx_frames, c->tx_frames, c->keepalive_ns, c->congestion, c->ecn);
	struct harp_conn *conn;
	int err;

	tcp.unsent_bytes_max = (uint32_t)c->unsent_bytes_max;
	if (c->user_timeout_ns) { /* short user timeout */
		tcp.user_timeout_ns = c->user_timeout_ns;
		tcp.keepalive_count = 4;
	}
	err = harp_tcp_connect(sim->stacks[app->stack].stack, &local, &remote, &tcp, &conn);
	if (err)
		return err;
	run_app_begin(sim, app, conn);
	if (role == SIM_CLIENT) {
		pair->iss_seq = conn->iss_seq;
		harp_conn_endpoints(conn, &local, NULL);
		pair->client_port = local.port;
	}
	return 0;
}

/* Starts a connection; the client's stack was just polled. */
static bool run_start(struct sim *sim, struct sim_pair *pair)
{
	struct sim_stack *server = &sim->stacks[pair->app[SIM_SERVER].stack];
	bool both = pair->spec->kind == SCN_SIMULTANEOUS;
	int err;

	if (both && (!server->stack || server->stall_until_ns > sim->now_ns)) {
		pair->start_ns = sim->now_ns + SIM_RETRY_NS;
		return true;
	}
	if (both)
		harp_stack_poll(server->stack, sim->now_ns); /* update its clock */
	err = run_connect(sim, pair, SIM_CLIENT);
	if (!err && both)
		err = run_connect(sim, pair, SIM_SERVER);
	if (err == -EADDRINUSE || err == -ENOSPC) { /* an earlier connection is in TIME-WAIT */
		pair->start_ns = sim->now_ns + SIM_RETRY_NS;
		return true;
	}
	pair->started = true;
	return err == 0 ||
	       runner_fail("connection %u: connect: %s", pair->app[0].pair, strerror(-err));
}

static bool run_match_accepted(struct sim *sim, unsigned stack, struct harp_conn *conn)
{
	struct harp_endpoint remote;

	harp_conn_endpoints(conn, NULL, &remote);
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		struct sim_pair *pair = &sim->pairs[i];
		struct sim_app *app = &pair->app[SIM_SERVER];
		struct harp_addr client = sim_net_addr(sim, pair->app[SIM_CLIENT].stack);

		if (!pair->started || pair->iss_seq != conn->irs_seq || app->stack != stack ||
		    pair->client_port != remote.port ||
		    memcmp(&client, &remote.addr, sizeof(client)) != 0)
			continue;
		if (pair->accepted)
			return runner_fail("connection %u was accepted twice", i);
		pair->accepted = true;
		app->connected = app->ready = true;
		run_app_begin(sim, app, conn);
		return true;
	}
	return runner_fail("stack %u accepted a connection that was not opened", stack);
}

/* ---- a stack's turn -------------------------------------------------------------------------- */

static void run_stack_events(struct sim *sim, unsigned index)
{
	struct harp_conn *conn;
	uint32_t events;

	while ((conn = harp_stack_next_event(sim->stacks[index].stack, &events)) != NULL) {
		struct sim_app *app = harp_conn_user(conn);

		if (!app)
			continue; /* not accepted yet; it has a turn when it is */
		app->ready = true;
		if (events & HARP_EVENT_CONNECTED)
			app->connected = true;
		if (events & HARP_EVENT_WRITABLE)
			app->wait_writable = false;
	}
}

static bool run_accept(struct sim *sim, unsigned index)
{
	struct harp_conn *conn;

	for (unsigned i = 0; i < sim->scenario->listen_count; i++) {
		struct harp_listener *l = sim->stacks[index].listeners[i];

		while (l && harp_tcp_accept(l, &conn) == 0) {
			if (!run_match_accepted(sim, index, conn))
				return false;
		}
	}
	return true;
}

static bool run_poll(struct sim *sim, unsigned index)
{
	struct sim_stack *k = &sim->stacks[index];
	int did = harp_stack_poll(k->stack, sim->now_ns);

	sim->polls++;
	k->polled_ns = sim->now_ns;
	runner_trace(sim->now_ns);
	runner_trace((uint64_t)did << 32 | index << 28 | (k->stack->stats.tx_bytes & 0xfffffff));
	if (!sim_check_step(sim, index))
		return false;
	run_stack_events(sim, index);
	if (!run_accept(sim, index))
		return false;
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		struct sim_pair *pair = &sim->pairs[i];

		if (!pair->started && pair->start_ns <= sim->now_ns &&
		    pair->app[SIM_CLIENT].stack == index && !run_start(sim, pair))
			return false;
		for (unsigned role = 0; role < 2; role++) {
			struct sim_app *app = &pair->app[role];

			if (app->stack == index && (app->ready || app->wake_ns <= sim->now_ns) &&
			    !sim_app_turn(sim, app))
				return false;
		}
	}
	return sim_memory_step(sim, index);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void run_restart_begin(struct sim *sim, unsigned index)
{
	if (!sim->stacks[index].stack)
		return;
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		struct sim_pair *pair = &sim->pairs[i];

		for (unsigned role = 0; role < 2; role++) {
			struct sim_app *app = &pair->app[role];

			if (app->stack != index || !pair->started ||
			    (pair->app[0].closed && pair->app[1].closed))
				continue;
			pair->excused = true;
			if (app->conn)
				sim_app_lose_stack(app);
		}
	}
	sim_net_stack_destroy(sim, index);
}

static bool run_events(struct sim *sim)
{
	for (unsigned i = 0; i < sim->scenario->event_count; i++) {
		const struct scn_event *e = &sim->scenario->events[i];
		unsigned stack = (unsigned)e->stack;

		if (sim->event_state[i] == 0 && e->start_ns <= sim->now_ns) {
			sim->event_state[i] = 1;
			if (e->kind == SCN_RESTART)
				run_restart_begin(sim, stack);
			sim_net_event_begin(sim, e);
		}
		if (sim->event_state[i] == 1 && e->start_ns + e->duration_ns <= sim->now_ns) {
			sim->event_state[i] = 2;
			if (e->kind == SCN_RESTART && sim->stacks[stack].stack)
				continue; /* two overlapping restarts */
			sim_net_event_end(sim, e);
			if (e->kind == SCN_RESTART && !sim_net_stack_make(sim, stack))
				return false;
		}
	}
	return true;
}

static uint64_t run_event_next_ns(const struct sim *sim)
{
	uint64_t next_ns = SIM_NEVER_NS;

	for (unsigned i = 0; i < sim->scenario->event_count; i++) {
		const struct scn_event *e = &sim->scenario->events[i];
		uint64_t at_ns = e->start_ns + (sim->event_state[i] ? e->duration_ns : 0);

		if (sim->event_state[i] < 2 && at_ns < next_ns)
			next_ns = at_ns;
	}
	return next_ns;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* When each stack must run for its applications or for connections that start. */
static void run_wakes(const struct sim *sim, uint64_t *wake_ns)
{
	for (unsigned i = 0; i < sim->scenario->stack_count; i++)
		wake_ns[i] = SIM_NEVER_NS;
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		const struct sim_pair *pair = &sim->pairs[i];

		for (unsigned role = 0; role < 2; role++) {
			const struct sim_app *app = &pair->app[role];

			if (app->wake_ns < wake_ns[app->stack])
				wake_ns[app->stack] = app->wake_ns;
		}
		if (!pair->started && pair->start_ns < wake_ns[pair->app[SIM_CLIENT].stack])
			wake_ns[pair->app[SIM_CLIENT].stack] = pair->start_ns;
	}
}

static uint64_t run_due_ns(struct sim *sim, unsigned index, uint64_t wake_ns)
{
	const struct scn_stack *spec = &sim->scenario->stacks[index];
	struct sim_stack *k = &sim->stacks[index];
	uint64_t due_ns;

	if (!k->stack)
		return SIM_NEVER_NS;
	due_ns = earlier(harp_stack_next_deadline_ns(k->stack), sim_net_card_next_ns(&k->card));
	if (due_ns < SIM_NEVER_NS - spec->poll_lag_ns)
		due_ns += spec->poll_lag_ns;
	due_ns = earlier(due_ns, wake_ns);
	if (due_ns == SIM_NEVER_NS)
		return due_ns;
	due_ns = later(due_ns, k->polled_ns + spec->poll_cost_ns + 1);
	return later(due_ns, k->stall_until_ns);
}

/* Liveness: without events of the scenario, each connection progresses within SIM_STALL_NS_MAX. */
static bool run_is_stalled(struct sim *sim)
{
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		const struct sim_pair *pair = &sim->pairs[i];
		uint64_t last_ns = sim->heal_ns;

		if (!pair->started || (!pair->app[0].conn && !pair->app[1].conn))
			continue;
		for (unsigned role = 0; role < 2; role++) {
			last_ns = later(last_ns, pair->app[role].progress_ns);
			last_ns = later(last_ns, pair->app[role].stall_until_ns);
			last_ns = later(last_ns, pair->app[role].hold_until_ns);
		}
		if (sim->now_ns > last_ns + SIM_STALL_NS_MAX)
			return !runner_fail("connection %u has made no progress since %.3f s", i,
					    (double)last_ns / 1e9);
	}
	return false;
}

static bool run_step(struct sim *sim, const uint64_t *due_ns)
{
	bool polled = false;

	if (!run_events(sim))
		return false;
	for (unsigned i = 0; i < sim->scenario->stack_count; i++) {
		const struct sim_stack *k = &sim->stacks[i];
		bool eager = polled && sim->scenario->stacks[i].eager &&
			     k->polled_ns < sim->now_ns && k->stall_until_ns <= sim->now_ns;

		if (!k->stack || (due_ns[i] > sim->now_ns && !eager) ||
		    k->stall_until_ns > sim->now_ns)
			continue;
		polled = true;
		if (!run_poll(sim, i))
			return false;
	}
	return true;
}

static bool run_loop(struct sim *sim)
{
	uint64_t wake_ns[SCN_STACKS_MAX] = { 0 }, due_ns[SCN_STACKS_MAX] = { 0 }, checked_ns = 0;

	while (true) {
		uint64_t next_ns = run_event_next_ns(sim);

		run_wakes(sim, wake_ns);
		for (unsigned i = 0; i < sim->scenario->stack_count; i++) {
			due_ns[i] = run_due_ns(sim, i, wake_ns[i]);
			next_ns = earlier(next_ns, due_ns[i]);
		}
		if (next_ns == SIM_NEVER_NS)
			return true;
		sim->now_ns = later(sim->now_ns, next_ns);
		if (sim->now_ns > checked_ns + 10 * SIM_S) {
			checked_ns = sim->now_ns;
			if (run_is_stalled(sim))
				return false;
		}
		if (sim->now_ns > SIM_NS_MAX || sim->polls > SIM_POLLS_MAX)
			return runner_fail("no end after %llu polls, at %.3f s",
					   (unsigned long long)sim->polls,
					   (double)sim->now_ns / 1e9);
		if (!run_step(sim, due_ns))
			return false;
	}
}

/* ---- setup ----------------------------------------------------------------------------------- */

static void run_make_pairs(struct sim *sim)
{
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		const struct scn_conn *c = &sim->scenario->conns[i];
		struct sim_pair *pair = &sim->pairs[i];

		*pair = (struct sim_pair){ .spec = c, .start_ns = c->start_ns };
		for (unsigned role = 0; role < 2; role++) {
			pair->app[role] = (struct sim_app){
				.pair = i,
				.stack = (unsigned)(role == SIM_CLIENT ? c->client : c->server),
				.stream = rng_u64(&sim->rng),
				.send_total = c->side[role].bytes,
				.wake_ns = SIM_NEVER_NS,
				.spec = &c->side[role],
			};
		}
		if (c->kind == SCN_RPC) {
			pair->app[SIM_CLIENT].send_total = c->rounds * c->request_bytes;
			pair->app[SIM_SERVER].send_total = c->rounds * c->answer_bytes;
		}
	}
	for (unsigned i = 0; i < sim->scenario->event_count; i++) {
		const struct scn_event *e = &sim->scenario->events[i];

		sim->heal_ns = later(sim->heal_ns, e->start_ns + e->duration_ns);
	}
}

bool sim_run(struct sim *sim, const struct scenario *scenario, bool dump)
{
	bool good, verbose = sim->verbose;

	memset(sim, 0, sizeof(*sim));
	sim->verbose = verbose;
	sim->scenario = scenario;
	rng_seed(&sim->rng, scenario->world.seed ^ 0x73696d);
	run_make_pairs(sim);
	good = sim_segments_make(sim) && sim_net_make(sim) && run_loop(sim) && sim_check_end(sim);
	if (!good && dump)
		sim_dump(sim);
	for (unsigned i = 0; i < scenario->stack_count; i++)
		sim_memory_free(sim, i);
	sim_net_destroy(sim);
	free(sim->segments);
	sim->segments = NULL;
	return good;
}
