/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_sim.c - the schedule: which host, engine and application runs at which time.
 *
 * Theory of operation. Time jumps from one event to the next. The background poller polls an engine
 * when its deadline or its NIC is due, after a small delay. An application runs after an event on
 * its host, and otherwise at growing intervals; its calls poll engines and kernel lanes as NCCL's
 * threads do.
 *
 * Everything runs in one thread, but simulated threads interleave. In the middle of a lane's send()
 * or receive(), other threads of the host may take turns with free pollers. A preempted thread may
 * hold a poller for a while. sched_yield() counts its calls to detect a thread that waits for a
 * poller or lock that it holds itself.
 *
 * The plugin uses the virtual clock: this file defines clock_gettime() and sched_yield().
 */
#include "comm_sim.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm_impl.h"
#include "double_env.h"

#define SIM_START_NS (100 * CSIM_S)
#define SIM_NS_MAX (600 * CSIM_S)
#define SIM_STEPS_MAX UINT64_C(2000000)
#define SIM_YIELDS_MAX 100000u
#define SIM_SETUP_NS_MAX (10 * CSIM_S)

static struct csim *current_sim;

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	(void)clock;
	ts->tv_sec = (time_t)(current_sim->now_ns / 1000000000u);
	ts->tv_nsec = (long)(current_sim->now_ns % 1000000000u);
	return 0;
}

bool __real_comm_run_background(struct comm *comm, uint64_t now_ns);
bool __wrap_comm_run_background(struct comm *comm, uint64_t now_ns);

/* The control thread's turns of a comm hide missing wake-ups, and ticks that miss a lane. */
bool __wrap_comm_run_background(struct comm *comm, uint64_t now_ns)
{
	if (!current_sim->scenario->world.background && !comm->closing)
		return false;
	return __real_comm_run_background(comm, now_ns);
}

static void sim_release(struct csim *sim, struct csim_host *host)
{
	struct poller *poller = host->held;

	host->held = NULL;
	if (host->held_comm) { /* runs the turns that were requested meanwhile */
		struct comm *comm = host->held_comm;

		host->held_comm = NULL;
		comm_release(comm);
		return;
	}
	poller_release(poller);
	(void)poller_run(poller, sim->now_ns);
}

/* A thread waits: lets the preempted threads continue. */
int sched_yield(void)
{
	for (unsigned i = 0; i < current_sim->scenario->world.hosts; i++) {
		if (current_sim->hosts[i].held)
			sim_release(current_sim, &current_sim->hosts[i]);
	}
	if (++current_sim->yields > SIM_YIELDS_MAX) {
		fprintf(stderr, "a thread waits for a poller or a lock that it holds itself\n");
		abort();
	}
	return 0;
}

/* ---- used by all files ----------------------------------------------------------------------- */

void csim_note(struct csim *sim, const char *format, ...)
{
	va_list args;

	if (!sim->verbose)
		return;
	printf("%12.6f ms step %-6llu ", (double)(int64_t)(sim->now_ns - sim->zero_ns) / 1e6,
	       (unsigned long long)sim->steps);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

void csim_wake_apps(struct csim *sim, unsigned host)
{
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		for (unsigned side = 0; side < 2; side++) {
			struct csim_app *app = &sim->comms[i].app[side];
			uint64_t poll_ns = side == CSIM_SEND ? app->sim->comms[i].spec->s_poll_ns
							     : app->sim->comms[i].spec->r_poll_ns;

			if (app->host != host || app->closed || app->done == app->posted)
				continue;
			app->poll_ns = poll_ns;
			if (app->wake_ns > sim->now_ns + 1 + poll_ns)
				app->wake_ns = sim->now_ns + 1 + rng_u64(&sim->rng) % (poll_ns + 1);
		}
	}
}

static struct csim_app *sim_random_app(struct csim *sim)
{
	return &sim->comms[rng_below(&sim->rng, sim->scenario->comm_count)]
			.app[rng_below(&sim->rng, 2)];
}

static bool sim_app_can_run(const struct csim_app *app)
{
	const struct csim *sim = app->sim;

	return app->comm && !app->closed && !app->in_turn && sim->zero_ns &&
	       !csim_is_frozen(sim, app->host) &&
	       sim->hosts[app->host].stall_until_ns <= sim->now_ns;
}

void csim_interleave(struct csim *sim, unsigned host)
{
	if (sim->depth || !csim_chance(&sim->rng, sim->scenario->world.interleave_ppm))
		return;
	sim->depth++;
	for (unsigned n = 1 + rng_below(&sim->rng, 3); n > 0; n--) {
		struct csim_app *app = sim_random_app(sim);
		unsigned rail = rng_below(&sim->rng, (uint32_t)sim->scenario->world.rails);

		if (app->host == host && sim->scenario->world.background && sim_app_can_run(app) &&
		    rng_below(&sim->rng, 2)) {
			/* The control thread runs a comm in the background. */
			(void)comm_run_background(app->comm, sim->now_ns);
		} else if (rng_below(&sim->rng, 2)) {
			(void)poller_run(&sim->hosts[host].nics[rail]->engine.poller, sim->now_ns);
		} else if (app->host == host && sim_app_can_run(app)) {
			csim_app_turn(app);
		}
	}
	sim->depth--;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void event_disturb(struct csim *sim, unsigned host, int rail, enum csn_lane_kind kind)
{
	for (unsigned i = 0; i < sim->lane_count; i++) {
		struct csim_lane *lane = &sim->lanes[i];

		if ((csim_lane_host(lane, 0) == host || csim_lane_host(lane, 1) == host) &&
		    (rail < 0 || lane->spec->rail == (unsigned)rail) &&
		    (!kind || lane->spec->kind == kind))
			lane->disturbed = true;
	}
}

/* Finds the newest lane for the event's lane of the scenario. */
static struct csim_lane *event_lane(struct csim *sim, const struct csn_event *e)
{
	for (unsigned i = sim->lane_count; i-- > 0;) {
		if (sim->lanes[i].spec == &sim->scenario->lanes[e->lane])
			return &sim->lanes[i];
	}
	return NULL;
}

static void event_reset(struct csim *sim, struct csim_lane *lane, const struct csn_event *e)
{
	lane->broken = lane->disturbed = true;
	if (lane->stream) {
		csim_stream_reset(lane->stream, e->keep, e->kind == CSN_FIN);
		return;
	}
	for (unsigned side = 0; side < 2 && lane->spec->kind == CSN_HARP; side++)
		csim_inject_rst(sim, lane, side, true);
}

static void event_silence(struct csim *sim, struct csim_lane *lane, const struct csn_event *e)
{
	uint64_t until_ns = e->duration_ns ? sim->now_ns + e->duration_ns : CSIM_NEVER_NS;

	lane->disturbed = true;
	lane->broken |= !e->duration_ns;
	lane->silent_since_ns = sim->now_ns;
	lane->silent_until_ns[CSIM_SEND] = until_ns;
	if (!e->one_way)
		lane->silent_until_ns[CSIM_RECV] = until_ns;
}

/* At a tenth of the rate, the data in its buffer may take about as long as the lane timeout. */
static void event_slow(struct csim_lane *lane)
{
	const struct csn_lane *spec = lane->spec;
	uint64_t timeout_ns = lane->sim->scenario->world.lane_timeout_ns;

	lane->disturbed |= spec->rate_bps &&
			   spec->buffer_bytes * 80 * CSIM_S / spec->rate_bps > timeout_ns / 2;
	csim_stream_slow(lane->stream, true);
}

static void event_kill(struct csim *sim, unsigned host)
{
	if (sim->hosts[host].dead)
		return;
	if (sim->hosts[host].held)
		sim_release(sim, &sim->hosts[host]);
	sim->hosts[host].dead = true;
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		struct csim_comm *k = &sim->comms[i];

		for (unsigned side = 0; side < 2; side++) {
			if (k->app[side].host != host)
				continue;
			k->excused = true;
			csim_app_end(&k->app[side], true);
		}
	}
	csim_listeners_drop(&sim->hosts[host]);
	for (unsigned i = 0; i < sim->lane_count; i++) {
		for (unsigned side = 0; side < 2; side++) {
			struct csim_end *end = &sim->lanes[i].end[side];

			if (csim_lane_host(&sim->lanes[i], side) != host || !end->lane)
				continue;
			sim->lanes[i].broken = true;
			end->lane->ops->close(end->lane, true);
		}
	}
	for (unsigned rail = 0; rail < sim->scenario->world.rails; rail++)
		csim_nic_kill(sim->hosts[host].nics[rail]);
}

static void event_begin(struct csim *sim, const struct csn_event *e)
{
	unsigned host = (unsigned)e->host, rail = (unsigned)e->rail;
	struct csim_nic *nic = sim->hosts[host].nics[rail];
	uint64_t until_ns = sim->now_ns + e->duration_ns;
	struct csim_lane *lane = event_lane(sim, e);

	csim_note(sim, "event %u of kind %u begins", (unsigned)(e - sim->scenario->events),
		  (unsigned)e->kind);
	switch ((enum csn_event_kind)e->kind) {
	case CSN_RESET:
	case CSN_FIN:
		if (lane)
			event_reset(sim, lane, e);
		break;
	case CSN_SILENT:
		if (lane)
			event_silence(sim, lane, e);
		break;
	case CSN_SLOW:
		if (lane && lane->stream)
			event_slow(lane);
		break;
	case CSN_FORGE:
		for (unsigned side = 0; side < 2 && lane && lane->spec->kind == CSN_HARP; side++)
			csim_inject_rst(sim, lane, side, false);
		break;
	case CSN_IMPAIR:
		event_disturb(sim, host, (int)rail, CSN_HARP);
		csim_nic_impair(nic, &e->path);
		break;
	case CSN_CUT:
		event_disturb(sim, host, (int)rail, 0);
		nic->cut_until_ns = until_ns;
		if (!e->one_way)
			nic->cut_out_until_ns = until_ns;
		break;
	case CSN_GONE:
		event_disturb(sim, host, (int)rail, 0);
		nic->gone = true;
		nic->due_ns = sim->now_ns;
		break;
	case CSN_STALL:
		sim->hosts[host].stall_until_ns = until_ns;
		break;
	case CSN_FREEZE:
		event_disturb(sim, host, -1, 0);
		sim->hosts[host].freeze_until_ns = until_ns;
		break;
	default:
		event_kill(sim, host);
	}
	for (unsigned i = 0; i < sim->lane_count; i++) {
		if (sim->lanes[i].stream && e->kind >= CSN_CUT && e->kind <= CSN_GONE)
			sim->lanes[i].silent_since_ns = sim->now_ns;
	}
}

static void event_end(struct csim *sim, const struct csn_event *e)
{
	struct csim_lane *lane = event_lane(sim, e);

	if (e->kind == CSN_IMPAIR)
		csim_nic_impair(sim->hosts[e->host].nics[e->rail], NULL);
	if (e->kind == CSN_SLOW && lane && lane->stream)
		csim_stream_slow(lane->stream, false);
	csim_wake_apps(sim, (unsigned)e->host);
}

static uint64_t event_start_ns(const struct csim *sim, const struct csn_event *e)
{
	if (e->step)
		return sim->steps >= e->step ? sim->now_ns : CSIM_NEVER_NS;
	return sim->zero_ns + e->start_ns;
}

static uint64_t sim_events(struct csim *sim)
{
	/* Start times of the events, by number. */
	static uint64_t start_ns[CSN_EVENTS_MAX];
	uint64_t next_ns = CSIM_NEVER_NS;

	for (unsigned i = 0; i < sim->scenario->event_count && sim->zero_ns; i++) {
		const struct csn_event *e = &sim->scenario->events[i];
		uint64_t at_ns;

		if (sim->event_state[i] == 0 && event_start_ns(sim, e) <= sim->now_ns) {
			sim->event_state[i] = 1;
			start_ns[i] = sim->now_ns;
			event_begin(sim, e);
			if (sim->now_ns + e->duration_ns > sim->heal_ns)
				sim->heal_ns = sim->now_ns + e->duration_ns;
		}
		at_ns = sim->event_state[i] ? start_ns[i] + e->duration_ns : event_start_ns(sim, e);
		if (sim->event_state[i] == 1 && at_ns <= sim->now_ns) {
			sim->event_state[i] = 2;
			event_end(sim, e);
		}
		if (sim->event_state[i] < 2 && at_ns < next_ns)
			next_ns = at_ns;
	}
	return next_ns;
}

/* Repeats RSTs that were invalid because more data was in flight. */
static void sim_repeat_resets(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->event_count; i++) {
		const struct csn_event *e = &sim->scenario->events[i];
		struct csim_lane *lane = sim->event_state[i] ? event_lane(sim, e) : NULL;

		if (lane && lane->broken && lane->spec->kind == CSN_HARP &&
		    (e->kind == CSN_RESET || e->kind == CSN_FIN)) {
			for (unsigned side = 0; side < 2; side++)
				csim_inject_rst(sim, lane, side, true);
		}
	}
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void sim_end_step(struct csim *sim, uint64_t id)
{
	sim->steps++;
	sim->yields = 0;
	runner_trace(id ^ sim->now_ns << 16);
	if (!sim->zero_ns || sim->unchecked)
		return;
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		if (!csim_app_check(&sim->comms[i].app[CSIM_RECV], false))
			return;
		(void)csim_app_check(&sim->comms[i].app[CSIM_SEND], false);
	}
}

static void sim_nic_turn(struct csim *sim, struct csim_nic *nic)
{
	nic->due_ns = CSIM_NEVER_NS;
	nic->last_turn_ns = sim->now_ns;
	(void)poller_run(&nic->engine.poller, sim->now_ns);
	csim_lanes_settle(sim, nic->host);
	sim_end_step(sim, 1000 + nic->host * 16 + nic->rail);
}

static void sim_app_turn(struct csim *sim, struct csim_app *app)
{
	struct csim_host *host = &sim->hosts[app->host];
	uint64_t rails = sim->scenario->world.rails;

	if (!host->held && csim_chance(&sim->rng, sim->scenario->world.hold_ppm)) {
		struct poller *poller =
			&host->nics[rng_below(&sim->rng, (uint32_t)rails)]->engine.poller;
		bool comm = app->comm && !app->closed && rng_below(&sim->rng, 2);

		if (comm)
			poller = &app->comm->poller;
		if (poller_try(poller)) {
			host->held = poller;
			host->held_comm = comm ? app->comm : NULL;
			host->held_until_ns = sim->now_ns + 1 + rng_below(&sim->rng, 100000);
		}
	}
	csim_app_turn(app);
	csim_lanes_settle(sim, app->host);
	sim_end_step(sim, 2000 + app->number * 2 + (unsigned)app->side);
}

/* ---- time ------------------------------------------------------------------------------------ */

static uint64_t sim_nic_due_ns(struct csim *sim, struct csim_nic *nic)
{
	uint64_t next_ns = csim_nic_next_ns(nic);
	uint64_t lag_ns = sim->scenario->world.poller_lag_ns;

	if (next_ns < nic->due_ns) {
		next_ns = later(next_ns, nic->last_turn_ns + 1);
		nic->due_ns = next_ns + (lag_ns ? rng_u64(&sim->rng) % lag_ns : 0);
	}
	if (nic->due_ns == CSIM_NEVER_NS)
		return nic->due_ns;
	if (sim->hosts[nic->host].held == &nic->engine.poller)
		return later(nic->due_ns, sim->hosts[nic->host].held_until_ns);
	return later(nic->due_ns, sim->hosts[nic->host].freeze_until_ns);
}

static uint64_t sim_app_due_ns(const struct csim_app *app)
{
	const struct csim_host *host = &app->sim->hosts[app->host];

	if (!app->comm || app->closed || app->wake_ns == CSIM_NEVER_NS)
		return CSIM_NEVER_NS;
	return later(app->wake_ns, later(host->stall_until_ns, host->freeze_until_ns));
}

/* Wakes applications for kernel lanes, which wake no thread of the plugin. */
static uint64_t sim_streams(struct csim *sim)
{
	uint64_t next_ns = CSIM_NEVER_NS;

	for (unsigned i = 0; i < sim->lane_count; i++) {
		struct csim_lane *lane = &sim->lanes[i];

		for (unsigned side = 0; side < 2 && lane->stream; side++) {
			if (csim_stream_next_ns(lane->stream, side) <= sim->now_ns) {
				csim_stream_clear_events(lane->stream, side);
				csim_wake_apps(sim, csim_lane_host(lane, side));
			}
			next_ns = earlier(next_ns, csim_stream_next_ns(lane->stream, side));
		}
	}
	return next_ns;
}

static uint64_t sim_next_ns(struct csim *sim)
{
	uint64_t next_ns = earlier(sim_events(sim), sim_streams(sim));

	next_ns = earlier(next_ns, csim_controls_next_ns(sim));
	for (unsigned i = 0; i < sim->scenario->nic_count; i++)
		next_ns = earlier(next_ns, sim_nic_due_ns(sim, &sim->nics[i]));
	for (unsigned i = 0; i < sim->scenario->comm_count && sim->zero_ns; i++) {
		for (unsigned side = 0; side < 2; side++)
			next_ns = earlier(next_ns, sim_app_due_ns(&sim->comms[i].app[side]));
	}
	for (unsigned i = 0; i < sim->scenario->world.hosts; i++) {
		if (sim->hosts[i].held)
			next_ns = earlier(next_ns, sim->hosts[i].held_until_ns);
	}
	return next_ns;
}

/* All comms are connected: starts the scenario. */
static void sim_begin(struct csim *sim)
{
	sim->zero_ns = sim->heal_ns = sim->now_ns;
	csim_hosts_impair(sim);
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		struct csim_comm *k = &sim->comms[i];

		if (k->spec->multi_lane)
			csim_reconnect_start(&k->app[CSIM_SEND]);
		k->app[CSIM_SEND].wake_ns = sim->now_ns;
		k->app[CSIM_RECV].wake_ns = k->app[CSIM_RECV].next_post_ns =
			sim->now_ns + k->spec->r_delay_ns;
	}
}

static bool sim_is_ready(const struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		if (!sim->comms[i].app[0].comm || !sim->comms[i].app[1].comm)
			return false;
	}
	return true;
}

static void sim_step(struct csim *sim)
{
	unsigned first = rng_below(&sim->rng, CSN_COMMS_MAX);

	for (unsigned i = 0; i < sim->scenario->world.hosts; i++) {
		if (sim->hosts[i].held && sim->hosts[i].held_until_ns <= sim->now_ns)
			sim_release(sim, &sim->hosts[i]);
	}
	csim_controls_run(sim);
	for (unsigned h = 0; h < sim->scenario->world.hosts; h++)
		csim_lanes_settle(sim, h);
	for (unsigned i = 0; i < sim->scenario->nic_count && !runner_has_failed(); i++) {
		struct csim_nic *nic = &sim->nics[(i + first) % sim->scenario->nic_count];

		if (sim_nic_due_ns(sim, nic) <= sim->now_ns)
			sim_nic_turn(sim, nic);
	}
	for (unsigned i = 0; i < sim->scenario->comm_count && !runner_has_failed() && sim->zero_ns;
	     i++) {
		struct csim_comm *k = &sim->comms[(i + first) % sim->scenario->comm_count];

		for (unsigned side = 0; side < 2 && !runner_has_failed(); side++) {
			if (sim_app_due_ns(&k->app[side]) <= sim->now_ns)
				sim_app_turn(sim, &k->app[side]);
		}
	}
}

/* Before time passes. */
static void sim_check_idle(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->comm_count && sim->zero_ns; i++) {
		for (unsigned side = 0; side < 2 && !runner_has_failed(); side++)
			(void)csim_check_idle(&sim->comms[i].app[side]);
	}
}

static bool sim_loop(struct csim *sim)
{
	uint64_t checked_ns = 0;

	while (!runner_has_failed()) {
		uint64_t next_ns;

		if (!sim->zero_ns && sim_is_ready(sim))
			sim_begin(sim);
		next_ns = sim_next_ns(sim);
		if (next_ns == CSIM_NEVER_NS)
			return true;
		if (next_ns > sim->now_ns)
			sim_check_idle(sim);
		sim->now_ns = later(sim->now_ns, next_ns);
		(void)sim_events(sim);
		sim_step(sim);
		if (!sim->zero_ns && sim->now_ns > SIM_START_NS + SIM_SETUP_NS_MAX)
			return runner_fail("the first lanes do not open");
		if (sim->zero_ns && sim->now_ns > checked_ns + CSIM_MS) {
			checked_ns = sim->now_ns;
			sim_repeat_resets(sim);
			(void)csim_check_progress(sim);
		}
		if (sim->now_ns > SIM_START_NS + SIM_NS_MAX || sim->steps > SIM_STEPS_MAX)
			return runner_fail("no end after %llu steps",
					   (unsigned long long)sim->steps);
	}
	return false;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void sim_settings(const struct csn_world *w)
{
	env_log = csim_check_log;
	env_config.lane_timeout_ns = w->lane_timeout_ns;
	env_config.user_timeout_ns = w->user_timeout_ns;
	env_config.probe_interval_ns = w->probe_ns;
	env_config.close_linger_ns = w->linger_ns;
}

/* Closes everything, also after a failure: other runs follow in this process. */
static void sim_close_all(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->world.hosts; i++) {
		if (sim->hosts[i].held)
			sim_release(sim, &sim->hosts[i]);
		sim->hosts[i].dead = true;
	}
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		for (unsigned side = 0; side < 2; side++)
			csim_app_end(&sim->comms[i].app[side], true);
	}
	csim_controls_end(sim);
}

bool csim_run(struct csim *sim, const struct comm_scenario *scenario, bool dump)
{
	bool good, verbose = sim->verbose, unchecked = sim->unchecked;

	memset(sim, 0, sizeof(*sim));
	sim->verbose = verbose;
	sim->unchecked = unchecked;
	sim->scenario = scenario;
	sim->now_ns = SIM_START_NS;
	rng_seed(&sim->rng, scenario->world.seed ^ 0x636f6d6d);
	rng_seed(&sim->check_rng, scenario->world.seed);
	current_sim = sim;
	sim_settings(&scenario->world);
	lane_notices_forget();
	csim_streams_begin(sim);
	csim_reconnect_begin(sim);
	good = csim_hosts_make(sim) && csim_apps_make(sim) && csim_lanes_start(sim) &&
	       sim_loop(sim) && csim_check_end(sim) && !runner_has_failed();
	if (!good && dump)
		csim_dump(sim);
	sim_close_all(sim);
	for (unsigned i = 0; i < sim->scenario->nic_count; i++)
		csim_nic_drop(&sim->nics[i]);
	csim_apps_destroy(sim);
	csim_hosts_destroy(sim);
	return good;
}
