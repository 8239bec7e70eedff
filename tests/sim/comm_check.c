/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_check.c - checks which errors and pauses the scenario explains, and that nothing is left at
 * the end. comm_app.c checks the bytes.
 */
#include "comm_sim.h"

#include <errno.h>
#include <string.h>

#include "double_env.h"
#include "lane/lane_harp.h"
#include "stack/stack.h"
#include "process/log.h"

#define CHECK_WARNS 16u
#define CHECK_NO_LANE_NS (50 * CSIM_MS) /* after this time without a lane, errors are allowed */
#define CHECK_QUICK_NS CSIM_S           /* after the lane timeout */
#define CHECK_SLACK_NS (5 * CSIM_S)     /* after the user timeout */

/* ---- log lines ------------------------------------------------------------------------------- */

static char check_warns[CHECK_WARNS][512];
static unsigned check_warn_count;

void csim_check_log(enum plugin_log_level level, const char *text)
{
	/* "no lane to" is about a rail, not about a comm. */
	if (level == PLUGIN_WARN && !strstr(text, "no lane to"))
		snprintf(check_warns[check_warn_count++ % CHECK_WARNS], sizeof(check_warns[0]),
			 "%s", text);
}

/* Does a warning name the peer? */
static bool check_is_peer_named(const struct csim_app *app)
{
	const struct csim *sim = app->sim;
	unsigned peer = sim->comms[app->number].app[!app->side].host;
	char addr[HARP_ADDR_TEXT_MAX];

	for (unsigned i = 0; i < CHECK_WARNS; i++) {
		for (unsigned rail = 0; rail < sim->scenario->world.rails; rail++) {
			struct harp_addr a = csim_addr(sim, peer, rail);

			if (strstr(check_warns[i], harp_addr_format(&a, addr)))
				return true;
		}
	}
	return false;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static bool check_has_usable_lane(const struct csim *sim, unsigned comm)
{
	for (unsigned i = 0; i < sim->lane_count; i++) {
		if (sim->lanes[i].spec->comm == comm && csim_lane_is_usable(&sim->lanes[i]))
			return true;
	}
	return false;
}

bool csim_check_error(struct csim_app *app, int error)
{
	struct csim *sim = app->sim;
	struct csim_comm *k = &sim->comms[app->number];
	struct csim_app *peer = &k->app[!app->side];

	if (!check_is_peer_named(app))
		return runner_fail("comm %u: error %d without a warning that names the peer",
				   app->number, error);
	if (k->spec->truncate_at || peer->error || (peer->closed && !k->spec->multi_lane) ||
	    k->no_lane_ns != CSIM_NEVER_NS || !check_has_usable_lane(sim, app->number) ||
	    (k->no_lane_until_ns &&
	     sim->now_ns < k->no_lane_until_ns + sim->scenario->world.user_timeout_ns))
		k->excused = true;
	return k->excused ||
	       runner_fail("comm %u: error %d at the %s end although a lane is usable", app->number,
			   error, app->side ? "receiving" : "sending");
}

/* An end of a lane was closed: does the scenario explain it? */
bool csim_check_lost_lane(struct csim_lane *lane, enum csim_side side)
{
	struct csim *sim = lane->sim;
	struct csim_comm *k = &sim->comms[lane->spec->comm];
	struct csim_app *app = &k->app[side];

	if (!lane->end[side].joined || lane->broken || lane->disturbed || lane->end[!side].closed ||
	    app->closed || app->error || k->excused || k->app[!side].closed ||
	    (app->comm && app->comm->error))
		return true;
	for (unsigned i = lane->number + 1; i < sim->lane_count; i++) {
		if (sim->lanes[i].spec->comm == lane->spec->comm &&
		    sim->lanes[i].index == lane->index)
			return true; /* replaced */
	}
	return runner_fail("comm %llu: lane %u was closed at the %s end without a reason",
			   (unsigned long long)lane->spec->comm, lane->index,
			   side ? "receiving" : "sending");
}

/* ---- progress -------------------------------------------------------------------------------- */

static uint64_t check_later(uint64_t a, uint64_t b)
{
	return a > b && a != CSIM_NEVER_NS ? a : b;
}

/* Does the scenario only contain deaths of lanes? */
static bool check_has_only_lane_deaths(const struct comm_scenario *s)
{
	for (unsigned i = 0; i < s->event_count; i++) {
		if (s->events[i].kind != CSN_RESET && s->events[i].kind != CSN_FIN &&
		    s->events[i].kind != CSN_SILENT && s->events[i].kind != CSN_FORGE)
			return false;
	}
	for (unsigned i = 0; i < s->nic_count; i++) {
		if (s->nics[i].loss_ppm || s->nics[i].reorder_ppm || s->nics[i].corrupt_ppm ||
		    s->nics[i].queue_bytes ||
		    (s->nics[i].rate_bps && s->nics[i].rate_bps < 1000000000))
			return false;
	}
	return true;
}

static bool check_comm_progress(struct csim *sim, unsigned number)
{
	struct csim_comm *k = &sim->comms[number];
	struct csim_app *s = &k->app[CSIM_SEND], *r = &k->app[CSIM_RECV];
	const struct csn_world *w = &sim->scenario->world;
	uint64_t since_ns, limit_ns;

	/* Progress is due for a message that both sides have posted, or for a completion. */
	if ((s->closed || s->error || s->done == s->posted) &&
	    (r->closed || r->error || r->done == r->posted))
		return true;
	if (!s->closed && !r->closed && !s->error && !r->error &&
	    (s->posted <= r->done || r->posted <= r->done) && s->done == r->done)
		return true;
	since_ns = check_later(s->progress_ns, r->progress_ns);
	since_ns = check_later(sim->heal_ns <= sim->now_ns ? sim->heal_ns : sim->now_ns, since_ns);
	since_ns = check_later(s->next_post_ns, since_ns);
	since_ns = check_later(r->next_post_ns, since_ns);
	limit_ns = w->user_timeout_ns + CHECK_SLACK_NS +
		   sim->scenario->comm_count * k->spec->size_max * 800;
	if (check_has_only_lane_deaths(sim->scenario) && check_has_usable_lane(sim, number) &&
	    k->spec->multi_lane)
		limit_ns = w->lane_timeout_ns + CHECK_QUICK_NS;
	if (sim->now_ns <= since_ns + limit_ns)
		return true;
	return runner_fail(
		"comm %u has made no progress since %.3f s: %llu of %llu sent, %llu of %llu received",
		number, (double)(since_ns - sim->zero_ns) / 1e9, (unsigned long long)s->done,
		(unsigned long long)s->posted, (unsigned long long)r->done,
		(unsigned long long)r->posted);
}

bool csim_check_progress(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		struct csim_comm *k = &sim->comms[i];

		if (check_has_usable_lane(sim, i)) {
			if (k->no_lane_ns != CSIM_NEVER_NS &&
			    sim->now_ns - k->no_lane_ns > CHECK_NO_LANE_NS)
				k->no_lane_until_ns = sim->now_ns;
			k->no_lane_ns = CSIM_NEVER_NS;
		} else if (k->no_lane_ns == CSIM_NEVER_NS) {
			k->no_lane_ns = sim->now_ns;
		}
		if (!check_comm_progress(sim, i) || !csim_reconnect_check(&k->app[CSIM_SEND]))
			return false;
	}
	return true;
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool check_nic_end(struct csim_nic *nic)
{
	uint64_t conns = 0, free_frames = 0, nic_frames = 0;

	if (!LIST_EMPTY(&nic->engine.lanes))
		return runner_fail("host %u rail %u: lanes remain", nic->host, nic->rail);
	(void)harp_stack_stat(nic->engine.stack, "tcp_conns", &conns);
	(void)harp_stack_stat(nic->engine.stack, "frames_free", &free_frames);
	(void)harp_stack_stat(nic->engine.stack, "frames_rx_nic", &nic_frames);
	if (conns)
		return runner_fail("host %u rail %u: %llu connections remain", nic->host, nic->rail,
				   (unsigned long long)conns);
	if (free_frames + nic_frames != nic->port->caps.frame_count)
		return runner_fail("host %u rail %u: %llu frames are missing", nic->host, nic->rail,
				   (unsigned long long)(nic->port->caps.frame_count - free_frames -
							nic_frames));
	return true;
}

bool csim_check_end(struct csim *sim)
{
	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		struct csim_comm *k = &sim->comms[i];

		for (unsigned side = 0; side < 2; side++) {
			const struct csim_app *app = &k->app[side];

			if (!app->closed)
				return runner_fail("comm %u: never closed", i);
			if (!csim_app_check(&k->app[side], true))
				return false;
			if (!k->excused && app->done_at_close != k->spec->messages)
				return runner_fail("comm %u: %llu of %llu messages %s", i,
						   (unsigned long long)app->done_at_close,
						   (unsigned long long)k->spec->messages,
						   side ? "received" : "sent");
		}
		if (k->spec->multi_lane && !k->spec->r_close_at && !k->excused &&
		    !sim->hosts[k->app[CSIM_RECV].host].dead &&
		    k->app[CSIM_SEND].done_at_close > k->app[CSIM_RECV].done_at_close)
			return runner_fail(
				"comm %u: %llu sends completed, only %llu messages received", i,
				(unsigned long long)k->app[CSIM_SEND].done_at_close,
				(unsigned long long)k->app[CSIM_RECV].done_at_close);
	}
	for (unsigned i = 0; i < sim->scenario->nic_count; i++) {
		if (!check_nic_end(&sim->nics[i]))
			return false;
	}
	return csim_streams_check_end(sim);
}

void csim_dump(struct csim *sim)
{
	static const char *const sides[2] = { "sends", "receives" };

	for (unsigned i = 0; i < sim->scenario->comm_count; i++) {
		for (unsigned side = 0; side < 2; side++) {
			const struct csim_app *app = &sim->comms[i].app[side];

			printf("comm %u, host %u %s: %llu of %llu posted requests completed, %llu messages; error %d%s\n",
			       i, app->host, sides[side], (unsigned long long)app->done,
			       (unsigned long long)app->posted,
			       (unsigned long long)sim->comms[i].spec->messages, app->error,
			       app->closed ? ", closed" : "");
		}
	}
	for (unsigned i = 0; i < sim->lane_count; i++) {
		const struct csim_lane *lane = &sim->lanes[i];

		printf("lane %u, comm %llu's %u, %s, port %u:%s%s%s%s%s%s\n", i,
		       (unsigned long long)lane->spec->comm, lane->index,
		       lane->spec->kind == CSN_HARP ? "harp" : "kernel", lane->port,
		       lane->end[0].joined ? " joined" : "", lane->end[1].joined ? " joined" : "",
		       lane->end[0].closed ? ", sender closed" : "",
		       lane->end[1].closed ? ", receiver closed" : "",
		       lane->broken ? ", broken" : "", csim_lane_is_usable(lane) ? ", usable" : "");
	}
	for (unsigned i = 0; i < CHECK_WARNS; i++) {
		if (check_warns[i][0])
			printf("warning: %s\n", check_warns[i]);
	}
}
