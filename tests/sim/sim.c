/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c - a scenario from a seed: made, run from event to event, and judged. */
#include "sim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SIM_PORT 61000
#define SIM_US 1000ull
#define SIM_MS 1000000ull
#define SIM_S 1000000000ull
#define SIM_NS_MAX (3600 * SIM_S) /* virtual: what has not ended by then never will */
#define SIM_STEPS_MAX 3000000ull

bool sim_fail(struct sim *sim, const char *format, ...)
{
	va_list args;

	if (sim->reason[0] == 0) {
		va_start(args, format);
		vsnprintf(sim->reason, sizeof(sim->reason), format, args);
		va_end(args);
	}
	return false;
}

static uint64_t sim_stat(const struct sim *sim, int side, const char *name)
{
	uint64_t value = 0;

	if (harp_stack_stat(sim->stack[side], name, &value) != 0)
		fprintf(stderr, "sim: no statistic named %s\n", name);
	return value;
}

static uint32_t sim_pick(struct sim *sim, const uint32_t *values, uint32_t count)
{
	return values[rng_below(&sim->rng, count)];
}

/* ------------------------------------------------------------------------------------------------
 * The scenario.
 */
static struct harp_wire_impair sim_impair(struct sim *sim, const struct sim_limits *limits)
{
	struct rng *rng = &sim->rng;
	struct harp_wire_impair impair = { .delay_ns = 1 + rng_below(rng, 100000) };
	uint32_t badness = rng_below(rng, 4); /* 0: a good wire */

	if (rng_below(rng, 2))
		impair.rate_bps = 1000000000ull << rng_below(rng, 7);
	if (rng_below(rng, 4) == 0)
		impair.jitter_ns = rng_below(rng, 20000);
	if (impair.rate_bps && rng_below(rng, 3) == 0)
		impair.queue_bytes = 20000 + rng_below(rng, 200000);
	if (badness == 0)
		return impair;
	impair.loss_ppm = rng_below(rng, limits->loss_ppm_max + 1) / (badness == 1 ? 10 : 1);
	if (rng_below(rng, 2))
		impair.duplicate_ppm = rng_below(rng, 30000);
	if (rng_below(rng, 2)) {
		impair.reorder_ppm = rng_below(rng, 50000);
		impair.reorder_ns = rng_below(rng, 300000);
	}
	if (rng_below(rng, 2))
		impair.corrupt_ppm = rng_below(rng, 10000);
	return impair;
}

static int sim_make_wire(struct sim *sim, const struct sim_limits *limits)
{
	static const uint32_t mtus[] = { 1500, 1500, 1500, 3498, 9000, 576 };
	static const uint32_t sizes[] = { 2048, 4096 };
	struct harp_wire_options options = {
		.size = sizeof(options),
		.mtu_bytes = sim_pick(sim, mtus, 6),
		.frame_size = sim_pick(sim, sizes, 2),
		.frame_count = 1024u << rng_below(&sim->rng, 3),
		.strict = 1,
		.seed = rng_u64(&sim->rng),
		.impair = sim_impair(sim, limits),
	};
	int err;

	if (sim->v6 && options.mtu_bytes < 1280) /* IPv6 has no smaller links */
		options.mtu_bytes = 1280;
	if (rng_below(&sim->rng, 2))
		options.complete_delay_ns = rng_below(&sim->rng, 500000);
	err = harp_wire_create(&sim->wire, &options);
	if (!err && rng_below(&sim->rng, 2)) {
		struct harp_wire_impair other = sim_impair(sim, limits);

		err = harp_wire_set_impair(sim->wire, 1, &other);
	}
	return err;
}

static void sim_make_app(struct sim *sim, struct sim_app *app)
{
	static const uint32_t pieces[] = { 1, 64, 1000, 9000, 65000 };
	struct rng *rng = &sim->rng;

	app->stream = rng_u64(rng);
	app->piece_max = sim_pick(sim, pieces, 5);
	if (rng_below(rng, 8) > 0)
		app->send_total = rng_below(rng, app->piece_max < 100 ? 3000 : 300000);
	app->send = (enum sim_send)rng_below(rng, 3);
	app->recv = (enum sim_recv)rng_below(rng, 3);
	if (rng_below(rng, 3) == 0) {
		app->stall_ppm = rng_below(rng, 200000);
		app->stall_ns_max = 1 + rng_below(rng, 50000000);
	}
	app->aborts = sim->may_fail && rng_below(rng, 4) == 0;
}

static struct harp_tcp_options sim_tcp_options(struct sim *sim)
{
	static const uint32_t frames[] = { 0, 8, 32, 64 };

	return (struct harp_tcp_options){
		.size = sizeof(struct harp_tcp_options),
		.rx_frames = sim_pick(sim, frames, 4),
		.tx_frames = sim_pick(sim, frames, 4),
		.connect_timeout_ns = 120 * SIM_S,
		.user_timeout_ns = 1000 * SIM_S,
		/* Without it nobody learns of a peer that is gone and whose RST was lost. */
		.keepalive_idle_ns =
			sim->may_fail || rng_below(&sim->rng, 4) == 0 ? 10 * SIM_MS : 0,
		.keepalive_count = 60,
	};
}

static struct harp_addr sim_addr(const struct sim *sim, int side)
{
	struct harp_addr addr = harp_addr_v4(10, 0, 0, (uint8_t)(side + 1));

	if (sim->v6)
		addr = (struct harp_addr){ .bytes = { 0xfd, [15] = (uint8_t)(side + 1) } };
	return addr;
}

static bool sim_make(struct sim *sim, const struct sim_limits *limits)
{
	struct harp_endpoint at = { .port = SIM_PORT };
	struct harp_endpoint remote = { .addr = sim_addr(sim, SIM_SERVER), .port = SIM_PORT };
	struct harp_tcp_options tcp;
	int err = sim_make_wire(sim, limits);

	if (err)
		return sim_fail(sim, "harp_wire_create: %s", strerror(-err));
	for (int i = 0; i < 2; i++) {
		struct harp_stack_options options = { .size = sizeof(options),
						      .max_conns = 16,
						      .vlan_id = sim->vlan_id,
						      .seed = rng_u64(&sim->rng) };
		struct harp_addr addr = sim_addr(sim, i);

		sim->nic[i] = harp_wire_port(sim->wire, (unsigned)i);
		err = harp_stack_create(&sim->stack[i], sim->nic[i], &options);
		if (!err)
			err = harp_stack_address_add(sim->stack[i], &addr, sim->v6 ? 64 : 24);
		if (err)
			return sim_fail(sim, "harp_stack_create: %s", strerror(-err));
	}
	sim->may_fail = rng_below(&sim->rng, 8) == 0;
	tcp = sim_tcp_options(sim);
	err = harp_tcp_listen(sim->stack[SIM_SERVER], &at, &tcp, &sim->listener);
	if (err)
		return sim_fail(sim, "listen: %s", strerror(-err));
	sim->conns = 1 + rng_below(&sim->rng, SIM_CONNS_MAX);
	for (unsigned i = 0; i < sim->conns; i++) {
		struct sim_pair *pair = &sim->pairs[i];

		sim_make_app(sim, &pair->app[SIM_CLIENT]);
		sim_make_app(sim, &pair->app[SIM_SERVER]);
		tcp = sim_tcp_options(sim);
		tcp.user = &pair->app[SIM_CLIENT];
		err = harp_tcp_connect(sim->stack[SIM_CLIENT], NULL, &remote, &tcp,
				       &pair->app[SIM_CLIENT].conn);
		if (err)
			return sim_fail(sim, "connect: %s", strerror(-err));
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Running.
 */
/* The pair whose client has the port that the accepted connection comes from. */
static bool sim_accept(struct sim *sim)
{
	struct harp_conn *conn;

	while (harp_tcp_accept(sim->listener, &conn) == 0) {
		struct harp_endpoint remote, local;
		struct sim_app *app = NULL;

		harp_conn_endpoints(conn, NULL, &remote);
		for (unsigned i = 0; i < sim->conns; i++) {
			struct sim_pair *pair = &sim->pairs[i];

			if (pair->app[SIM_SERVER].conn || !pair->app[SIM_CLIENT].conn)
				continue;
			harp_conn_endpoints(pair->app[SIM_CLIENT].conn, &local, NULL);
			if (local.port == remote.port)
				app = &pair->app[SIM_SERVER];
		}
		if (!app) {
			/* The client may have aborted before we looked. */
			if (!sim->may_fail)
				return sim_fail(sim, "accepted a connection nobody opened");
			harp_conn_abort(conn);
			continue;
		}
		app->conn = conn;
		app->connected = true;
		harp_conn_set_user(conn, app);
	}
	return true;
}

static bool sim_events(struct sim *sim, int side)
{
	struct harp_conn *conn;
	uint32_t events;

	while ((conn = harp_stack_next_event(sim->stack[side], &events)) != NULL) {
		struct sim_app *app = harp_conn_user(conn);

		if (!app)
			continue; /* accepted with the listener's user: set in sim_accept() */
		if (events & HARP_EVENT_CONNECTED)
			app->connected = true;
		if (events & HARP_EVENT_WRITABLE)
			app->wait_writable = false;
		if ((events & HARP_EVENT_CLOSED) && !app->connected) {
			if (!sim->may_fail)
				return sim_fail(sim, "connect failed: %s",
						strerror(-harp_conn_error(conn)));
			harp_conn_close(conn);
			app->conn = NULL;
			app->closed = true;
		}
	}
	return true;
}

static void sim_trace(struct sim *sim, uint64_t value)
{
	sim->trace = (sim->trace ^ value) * 0x100000001b3ull;
	sim->trace ^= sim->trace >> 29;
}

static bool sim_step(struct sim *sim, bool *worked)
{
	*worked = false;
	for (int side = 0; side < 2; side++) {
		int did = harp_stack_poll(sim->stack[side], sim->now_ns);

		*worked |= did > 0;
		sim_trace(sim, (uint64_t)did << 32 | sim_stat(sim, side, "tx_bytes"));
		if (!sim_events(sim, side) || (side == SIM_SERVER && !sim_accept(sim)))
			return false;
		for (unsigned i = 0; i < sim->conns; i++) {
			if (!sim_app_turn(sim, &sim->pairs[i], (enum sim_side)side))
				return false;
		}
	}
	sim_trace(sim, sim->now_ns);
	return true;
}

static uint64_t sim_next_ns(const struct sim *sim)
{
	uint64_t next_ns = UINT64_MAX;

	for (int side = 0; side < 2; side++) {
		uint64_t stack_ns = harp_stack_next_deadline_ns(sim->stack[side]);
		uint64_t nic_ns = sim->nic[side]->ops->next_ns(sim->nic[side]);

		next_ns = stack_ns < next_ns ? stack_ns : next_ns;
		next_ns = nic_ns < next_ns ? nic_ns : next_ns;
		for (unsigned i = 0; i < sim->conns; i++) {
			uint64_t app_ns = sim_app_next_ns(&sim->pairs[i].app[side]);

			if ((app_ns > sim->now_ns || app_ns == 0) && app_ns < next_ns)
				next_ns = app_ns;
		}
	}
	return next_ns;
}

static bool sim_over(const struct sim *sim)
{
	for (unsigned i = 0; i < sim->conns; i++) {
		for (int side = 0; side < 2; side++) {
			if (sim->pairs[i].app[side].conn)
				return false;
		}
	}
	return sim_stat(sim, 0, "tcp_conns") == 0 && sim_stat(sim, 1, "tcp_conns") == 0 &&
	       harp_wire_in_flight(sim->wire) == 0 && sim_stat(sim, 0, "frames_tx_nic") == 0 &&
	       sim_stat(sim, 1, "frames_tx_nic") == 0;
}

static bool sim_loop(struct sim *sim)
{
	bool worked;

	while (!sim_over(sim)) {
		uint64_t next_ns;

		if (++sim->steps > SIM_STEPS_MAX)
			return sim_fail(sim, "no end after %llu steps, at %.3f s", SIM_STEPS_MAX,
					(double)sim->now_ns / 1e9);
		if (!sim_step(sim, &worked))
			return false;
		next_ns = sim_next_ns(sim);
		if (next_ns == UINT64_MAX && !worked && !sim_over(sim))
			return sim_fail(sim, "asleep for ever at %.6f s",
					(double)sim->now_ns / 1e9);
		/* Applications that work for several turns need polls without time passing. */
		if (next_ns <= sim->now_ns || (worked && rng_below(&sim->rng, 2)))
			next_ns = sim->now_ns + 1 + rng_below(&sim->rng, 2000);
		if (next_ns != UINT64_MAX)
			sim->now_ns = next_ns;
		if (sim->now_ns > SIM_NS_MAX)
			return sim_fail(sim, "no end after an hour");
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * The verdict.
 */
static bool sim_check_end(struct sim *sim)
{
	for (unsigned i = 0; i < sim->conns && !sim->may_fail; i++) {
		const struct sim_pair *pair = &sim->pairs[i];

		for (int side = 0; side < 2; side++) {
			if (pair->app[side].received != pair->app[!side].send_total)
				return sim_fail(sim, "pair %u side %d: %llu of %llu bytes", i, side,
						(unsigned long long)pair->app[side].received,
						(unsigned long long)pair->app[!side].send_total);
		}
	}
	for (int side = 0; side < 2; side++) {
		struct harp_wire_stats wire;
		uint64_t home =
			sim_stat(sim, side, "frames_free") + sim_stat(sim, side, "frames_rx_nic");

		if (home != sim->nic[side]->caps.frame_count)
			return sim_fail(sim, "side %d: %llu of %u frames came home", side,
					(unsigned long long)home, sim->nic[side]->caps.frame_count);
		if (sim_stat(sim, side, "frames_tcp_tx") || sim_stat(sim, side, "frames_tcp_rx"))
			return sim_fail(sim, "side %d: queues hold frames of nobody", side);
		/* Whatever the wire does, an honest peer echoes what it may: see tcp_check.c. */
		if (sim_stat(sim, side, "drop_tcp_echo"))
			return sim_fail(sim, "side %d: %llu honest echoes refused", side,
					(unsigned long long)sim_stat(sim, side, "drop_tcp_echo"));
		harp_wire_stats(sim->wire, (unsigned)side, &wire);
		if (wire.strict_violations)
			return sim_fail(sim, "side %d: %llu frames changed under the NIC", side,
					(unsigned long long)wire.strict_violations);
	}
	return true;
}

/* Where everyone stands, for people. */
static void sim_dump(const struct sim *sim)
{
	for (unsigned i = 0; i < sim->conns; i++) {
		for (int side = 0; side < 2; side++) {
			const struct sim_app *app = &sim->pairs[i].app[side];
			struct harp_tcp_info info = { .state = HARP_TCP_CLOSED };

			if (app->conn)
				harp_conn_info(app->conn, &info, sizeof(info));
			printf("pair %u side %d: %s, sent %llu of %llu, received %llu%s%s%s, flight %llu, "
			       "unsent %llu, wnd %llu/%llu, cwnd %llu, held %u/%u rx %u/%u tx, rto %llu\n",
			       i, side, harp_tcp_state_name((enum harp_tcp_state)info.state),
			       (unsigned long long)app->sent, (unsigned long long)app->send_total,
			       (unsigned long long)app->received, app->shut ? " shut" : "",
			       app->eof ? " eof" : "", app->closed ? " closed" : "",
			       (unsigned long long)info.bytes_in_flight,
			       (unsigned long long)info.bytes_unsent,
			       (unsigned long long)info.snd_wnd_bytes,
			       (unsigned long long)info.rcv_wnd_bytes,
			       (unsigned long long)info.snd_cwnd_bytes, info.rx_frames_held,
			       info.rx_frames_budget, info.tx_frames_held, info.tx_frames_budget,
			       (unsigned long long)info.rto_count);
		}
	}
	for (int side = 0; side < 2; side++) {
		printf("stack %d:", side);
		for (unsigned i = 0; i < harp_stats_count(); i++) {
			uint64_t value = sim_stat(sim, side, harp_stats_name(i));

			if (value)
				printf(" %s=%llu", harp_stats_name(i), (unsigned long long)value);
		}
		printf("\n");
	}
}

bool sim_run(struct sim *sim, uint64_t seed, const struct sim_limits *limits)
{
	bool good;

	memset(sim, 0, sizeof(*sim));
	sim->seed = seed;
	sim->v6 = seed % 2;
	sim->vlan_id = seed / 2 % 4 == 3 ? 100 : 0;
	sim->trace = 0xcbf29ce484222325ull;
	rng_seed(&sim->rng, seed);
	good = sim_make(sim, limits) && sim_loop(sim) && sim_check_end(sim);
	if (!good && limits->dump && sim->stack[1])
		sim_dump(sim);
	if (sim->listener)
		harp_listener_close(sim->listener);
	harp_stack_destroy(sim->stack[0]);
	harp_stack_destroy(sim->stack[1]);
	harp_wire_destroy(sim->wire);
	return good;
}
