/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_reconnect.c - comms whose further lanes connector.c opens: the plan (replaces candidates.c,
 * plan.c and rails.c), and checks of connector.c.
 *
 * For each planned lane, this file records attempts, their results and losses, as seen from outside
 * the plugin. It checks that a lane that is down gets an attempt within the longest pause, that
 * each attempt ends, that an undisturbed attempt succeeds, and that the connector and the comm's
 * statistics agree. tests/unit/connect/test_connector.c tests the pauses, the log lines about rails
 * and the count of failures.
 */
#include "comm_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connect/attempt.h"
#include "connect/candidates.h"
#include "connect/connector.h"
#include "connect/listener.h"
#include "connect/registry.h"
#include "stats/lane_page.h"

#define EXPECT_PAUSE_NS (5 * CSIM_S)
#define EXPECT_ATTEMPT_NS (5 * CSIM_S)
/* The longest interval between two checks of an attempt's deadline. */
#define EXPECT_LATE_NS (100 * CSIM_MS)

static struct csim *reconnect_sim;

void csim_reconnect_begin(struct csim *sim)
{
	reconnect_sim = sim;
	csim_connect_begin(sim);
}

static unsigned comm_number(const struct csim_comm *k)
{
	return (unsigned)(k - reconnect_sim->comms);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Port of the peer's HARP listener there; 0: none. */
static uint16_t plan_port(const struct csn_lane *spec)
{
	const struct csn_comm *c = &reconnect_sim->scenario->comms[spec->comm];
	const struct csim_nic *nic = reconnect_sim->hosts[c->to].nics[spec->rail];

	return nic->lane_listener ? nic->lane_listener->port : 0;
}

static unsigned plan_rail(struct connector *u, const struct csn_lane *spec)
{
	const struct csn_comm *c = &reconnect_sim->scenario->comms[u->comm_id];
	unsigned same = 0;

	for (unsigned i = 0; i < u->rail_count; i++) {
		if (u->rails[i].dev != (int)spec->rail)
			continue;
		if (u->rails[i].backup == spec->backup)
			return i;
		same = i;
	}
	if (u->rail_count == RAILS_MAX)
		return same;
	u->rails[u->rail_count] = (struct connector_rail){
		.dev = (int)spec->rail,
		.backup = spec->backup,
		.engines = &reconnect_sim->hosts[c->from].nics[spec->rail]->engines,
		.nic = &u->nics[u->rail_count],
	};
	u->nics[u->rail_count].harp[0].port = plan_port(spec);
	u->nics[u->rail_count].addr[NIC_V4] =
		csim_addr(reconnect_sim, (unsigned)c->to, (unsigned)spec->rail);
	return u->rail_count++;
}

void connector_plan(struct connector *u)
{
	const struct comm_scenario *s = reconnect_sim->scenario;

	for (unsigned i = 0; i < s->lane_count; i++) {
		if (s->lanes[i].comm != u->comm_id)
			continue;
		u->lanes[u->lane_count] = (struct connector_lane){
			.index = (uint8_t)u->lane_count,
			.rail = (uint8_t)plan_rail(u, &s->lanes[i]),
			.harp = s->lanes[i].kind == CSN_HARP,
			.backoff_ns = s->comms[u->comm_id].backoff_ns,
		};
		u->lane_count++;
	}
}

enum harp_page_fallback engine_fallback(int dev)
{
	(void)dev;
	return HARP_PAGE_FALLBACK_none;
}

/* Lanes of that rail have no candidate; this counts as the end of an attempt. */
static void plan_restart_pauses(const struct nic_endpoints *nic)
{
	for (unsigned i = 0; i < reconnect_sim->scenario->comm_count; i++) {
		struct csim_comm *k = &reconnect_sim->comms[i];
		const struct connector *c = k->app[CSIM_SEND].connector;

		for (unsigned l = 0; c && l < c->lane_count; l++)
			if (c->rails[c->lanes[l].rail].nic == nic && !k->planned[l].attempting)
				k->planned[l].since_ns = reconnect_sim->now_ns;
	}
}

/* Lists no candidate while the NIC is removed. */
void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct nic_endpoints *nic, const uint8_t host_id[HANDLE_HOST_ID_BYTES])
{
	const struct csim_host *here = csim_control_host();
	unsigned host = (unsigned)(here - reconnect_sim->hosts);

	(void)host_id;
	memset(out, 0, sizeof(*out));
	if (here->nics[dev]->gone) {
		plan_restart_pauses(nic);
		return;
	}
	out->count = 1;
	out->list[0] = (struct candidate){
		.harp = engines != NULL,
		.engine = engines ? engines->engines[0] : NULL,
		.local.addr = csim_addr(reconnect_sim, host, (unsigned)dev),
		.remote = { .addr = nic->addr[NIC_V4], .port = nic->harp[0].port },
		.queues = 1,
	};
}

/* ---- comms ----------------------------------------------------------------------------------- */

/* Describes a first lane, which had no preamble, as an attempt. */
static struct attempt first_attempt(const struct csim_lane *first)
{
	const struct csim_comm *k = &reconnect_sim->comms[first->spec->comm];
	struct attempt attempt = { .comm_id = (uint64_t)first->spec->comm,
				   .candidate = { .harp = first->spec->kind == CSN_HARP } };

	memcpy(attempt.preamble.key, &k->spec->stream, sizeof(k->spec->stream));
	return attempt;
}

/* Creates the receiver's comm through a listen comm. */
int csim_reconnect_accept(struct csim_lane *first, struct comm_options *opt)
{
	struct csim_app *app = &reconnect_sim->comms[first->spec->comm].app[CSIM_RECV];
	struct attempt attempt = first_attempt(first);
	struct listen_comm listen = { .id = opt->comm_id };
	uint8_t key[PREAMBLE_KEY_BYTES];
	int rc;

	csim_control_select(reconnect_sim, app->host);
	preamble_comm_key(&attempt.preamble, key);
	registry_listen(&listen);
	rc = registry_add(listen.id, first->end[CSIM_RECV].lane, opt, key);
	if (!rc && (registry_accept(&listen, &app->comm) || !app->comm))
		abort();
	registry_unlisten(&listen);
	return rc;
}

void csim_reconnect_create(struct csim_lane *first)
{
	struct csim_app *app = &reconnect_sim->comms[first->spec->comm].app[CSIM_SEND];
	struct attempt attempt = first_attempt(first);
	struct handle handle = { 0 };

	csim_control_select(reconnect_sim, app->host);
	app->connector = connector_new((int)first->spec->rail, 0, &handle, &csim_attempt_ops);
	if (!app->connector)
		abort();
	connector_set_comm(app->connector, app->comm, &attempt);
}

void csim_reconnect_start(struct csim_app *app)
{
	struct csim_comm *k = &reconnect_sim->comms[app->number];

	csim_control_select(reconnect_sim, app->host);
	connector_start(app->connector);
	for (unsigned i = 0; i < COMM_LANES_MAX; i++)
		k->planned[i] = (struct csim_planned){ .since_ns = reconnect_sim->now_ns,
						       .up = !i,
						       .opened = !i };
}

void csim_reconnect_close(struct csim_app *app, bool abort)
{
	csim_control_select(reconnect_sim, app->host);
	if (app->side == CSIM_RECV)
		registry_remove(app->comm);
	connector_stop(app->connector);
	comm_close(app->comm, abort);
	csim_control_select(reconnect_sim, app->host);
	connector_free(app->connector);
	app->connector = NULL;
}

void csim_reconnect_record_loss(struct csim_comm *k, unsigned index, enum comm_loss loss)
{
	struct csim_planned *planned = &k->planned[index];

	csim_control_select(reconnect_sim, k->app[CSIM_SEND].host);
	connector_lane_lost(k->app[CSIM_SEND].comm, index, loss);
	if (loss == COMM_LOSS_SLOW)
		return;
	reconnect_sim->deaths++;
	k->lanes_died++;
	if (planned->up && !planned->attempting)
		planned->since_ns = reconnect_sim->now_ns;
	planned->up = false;
}

/* ---- attempts -------------------------------------------------------------------------------- */

void csim_planned_begin_attempt(struct csim_comm *k, unsigned index)
{
	struct csim_planned *planned = &k->planned[index];

	if (planned->attempting)
		(void)runner_fail("comm %u: lane %u has two attempts at once", comm_number(k),
				  index);
	planned->attempting = true;
	planned->since_ns = reconnect_sim->now_ns;
	reconnect_sim->attempts++;
	reconnect_sim->rehashes += planned->up;
}

void csim_planned_end_attempt(struct csim_comm *k, struct csim_planned *planned, int error,
			      uint16_t port)
{
	planned->attempting = false;
	planned->since_ns = reconnect_sim->now_ns;
	if (error)
		return;
	if (planned->up && port == planned->port)
		(void)runner_fail("comm %u: lane %u is replaced by one from the same port",
				  comm_number(k), (unsigned)(planned - k->planned));
	planned->rehashed += planned->up;
	k->lanes_replaced += !planned->up && planned->opened;
	planned->opened++;
	planned->port = port;
	planned->up = true;
}

void csim_check_attempt_failure(const struct csim_lane *lane, int error)
{
	const struct csim_comm *k = &reconnect_sim->comms[lane->spec->comm];

	if (lane->disturbed || lane->broken || error == -EMFILE || error == -ENOSPC ||
	    reconnect_sim->scenario->world.no_epoll_ppm || k->excused)
		return;
	for (unsigned side = 0; side < 2; side++) {
		const struct csim_app *app = &k->app[side];

		if (app->closed || app->error || !app->comm || app->comm->error ||
		    app->comm->end_error || app->comm->closing ||
		    (side == CSIM_RECV && app->comm->rx.peer_closed))
			return;
	}
	(void)runner_fail("comm %u: an undisturbed attempt for lane %u failed: %d", comm_number(k),
			  lane->index, error);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Frozen time does not count. */
static bool check_time(const struct csim_comm *k, unsigned index)
{
	const struct csim_planned *planned = &k->planned[index];
	uint64_t frozen_ns = reconnect_sim->hosts[k->app[CSIM_SEND].host].freeze_until_ns;
	uint64_t since_ns = frozen_ns > planned->since_ns ? frozen_ns : planned->since_ns;
	uint64_t passed_ns =
		reconnect_sim->now_ns > since_ns ? reconnect_sim->now_ns - since_ns : 0;
	const char *problem = NULL;

	if (planned->attempting && passed_ns > EXPECT_ATTEMPT_NS + EXPECT_LATE_NS)
		problem = "has been in one attempt";
	else if (!planned->attempting && !planned->up &&
		 passed_ns > EXPECT_PAUSE_NS + EXPECT_LATE_NS)
		problem = "has been down without an attempt";
	return !problem || runner_fail("comm %u: lane %u %s for %.1f ms", comm_number(k), index,
				       problem, (double)passed_ns / 1e6);
}

/* Checks that the statistics agree with the recorded events. */
static bool check_statistics(const struct csim_comm *k)
{
	const struct comm *comm = k->app[CSIM_SEND].comm;
	const struct harp_page_comm *record = comm_stats_record(comm->stats);
	const char *problem = NULL;

	if (atomic_load(&comm->joining)) /* lanes that have not joined yet are not counted */
		return true;
	if (stats_get(&record->value[HARP_COMM_lanes_died]) != k->lanes_died)
		problem = "lanes lost";
	else if (stats_get(&record->value[HARP_COMM_lanes_replaced]) != k->lanes_replaced)
		problem = "lanes replaced";
	for (unsigned i = 0; i < k->lanes && !problem; i++) {
		const struct lane_stats *lane = comm_stats_lane(comm->stats, i);
		const uint64_t *value = lane ? lane->record->value : NULL;

		if (k->planned[i].opened != (value ? stats_get(&value[HARP_LANE_lanes]) : 0))
			problem = "lanes opened";
		else if (value && k->planned[i].rehashed != stats_get(&value[HARP_LANE_rehashes]))
			problem = "slow lanes replaced";
	}
	return !problem ||
	       runner_fail("comm %u: wrong count in the statistics: %s", comm_number(k), problem);
}

static bool check_lane(struct csim_app *app, const struct connector_lane *lane)
{
	bool is_attached = comm_has_lane(app->comm, lane->index);
	const char *problem = NULL;

	if (lane->up && !is_attached && !lane->attempt)
		problem = "is missing, but the connector counts it as up";
	else if (!lane->up && is_attached && !lane->attempt)
		problem = "exists, but the connector counts it as down";
	else if (lane->attempt && attempt_result(lane->attempt) != ATTEMPT_RUNNING)
		problem = "has an attempt that ended without the connector noticing";
	return !problem || runner_fail("comm %u: lane %u %s", app->number, lane->index, problem);
}

bool csim_reconnect_check(struct csim_app *app)
{
	const struct csim_comm *k = &reconnect_sim->comms[app->number];
	struct connector *u = app->connector;

	if (!u || !app->comm || app->closed || !atomic_load(&u->advance))
		return true;
	/* A comm that ends does not report losses; queued work may still change the state. */
	if (app->comm->error || app->comm->end_error || atomic_load(&u->work.queued) ||
	    atomic_load(&app->comm->joining))
		return true;
	if (atomic_load(&u->slow))
		return runner_fail("comm %u: the connector ignores a slow lane", app->number);
	for (unsigned i = 0; i < u->lane_count; i++)
		if (!check_lane(app, &u->lanes[i]) || !check_time(k, i))
			return false;
	return check_statistics(k);
}
