/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_reconnect.c - comms whose further lanes connector.c opens: the plan (in the place of candidates.c, plan.c
 * and rails.c), and checks of connector.c.
 *
 * For each planned lane, this file records attempts, their results and losses, as seen from outside the plugin. From
 * these it checks that a lane that is down gets an attempt within the longest pause, that each attempt ends, that an
 * attempt that nothing disturbs succeeds, and that the connector and the comm's statistics agree.
 * tests/unit/connect/test_connector.c tests the pauses, the reports of rails and the count of failures.
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
#define EXPECT_LATE_NS                                                                             \
	(100 * CSIM_MS) /* the longest interval between two looks at an attempt's deadline */

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

/* Of the peer's HARP listener there; 0: it has none. */
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

/* Lanes of that rail have no candidate: this counts as an attempt that has ended. */
static void plan_has_none(const struct nic_endpoints *nic)
{
	for (unsigned i = 0; i < reconnect_sim->scenario->comm_count; i++) {
		struct csim_comm *k = &reconnect_sim->comms[i];
		const struct connector *c = k->app[CSIM_SEND].connector;

		for (unsigned l = 0; c && l < c->lane_count; l++)
			if (c->rails[c->lanes[l].rail].nic == nic && !k->planned[l].attempting)
				k->planned[l].since_ns = reconnect_sim->now_ns;
	}
}

/* None while its NIC is gone. */
void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct nic_endpoints *nic, const uint8_t host_id[HANDLE_HOST_ID_BYTES])
{
	const struct csim_host *here = csim_control_host();
	unsigned host = (unsigned)(here - reconnect_sim->hosts);

	(void)host_id;
	memset(out, 0, sizeof(*out));
	if (here->nics[dev]->gone) {
		plan_has_none(nic);
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

/* The attempt of a first lane, which had no preamble. */
static struct attempt first_attempt(const struct csim_lane *first)
{
	const struct csim_comm *k = &reconnect_sim->comms[first->spec->comm];
	struct attempt attempt = { .comm_id = (uint64_t)first->spec->comm,
				   .candidate = { .harp = first->spec->kind == CSN_HARP } };

	memcpy(attempt.preamble.key, &k->spec->stream, sizeof(k->spec->stream));
	return attempt;
}

/* The receiver's comm, by a listen comm. */
int csim_reconnect_accept(struct csim_lane *first, struct comm_options *opt)
{
	struct csim_app *app = &reconnect_sim->comms[first->spec->comm].app[CSIM_RECV];
	struct attempt attempt = first_attempt(first);
	struct listen_comm listen = { .id = opt->comm_id };
	uint8_t key[PREAMBLE_KEY_BYTES];
	int rc;

	csim_control_at(reconnect_sim, app->host);
	preamble_comm_key(&attempt.preamble, key);
	registry_listen(&listen);
	rc = registry_add(listen.id, first->end[CSIM_RECV].lane, opt, key);
	if (!rc && (registry_accept(&listen, &app->comm) || !app->comm))
		abort();
	registry_unlisten(&listen);
	return rc;
}

void csim_reconnect_made(struct csim_lane *first)
{
	struct csim_app *app = &reconnect_sim->comms[first->spec->comm].app[CSIM_SEND];
	struct attempt attempt = first_attempt(first);
	struct handle handle = { 0 };

	csim_control_at(reconnect_sim, app->host);
	app->connector = connector_new((int)first->spec->rail, 0, &handle, &csim_attempt_ops);
	if (!app->connector)
		abort();
	connector_set_comm(app->connector, app->comm, &attempt);
}

void csim_reconnect_go(struct csim_app *app)
{
	struct csim_comm *k = &reconnect_sim->comms[app->number];

	csim_control_at(reconnect_sim, app->host);
	connector_start(app->connector);
	for (unsigned i = 0; i < COMM_LANES_MAX; i++)
		k->planned[i] = (struct csim_planned){ .since_ns = reconnect_sim->now_ns,
						       .up = !i,
						       .opened = !i };
}

void csim_reconnect_end(struct csim_app *app, bool abort)
{
	csim_control_at(reconnect_sim, app->host);
	if (app->side == CSIM_RECV)
		registry_remove(app->comm);
	connector_stop(app->connector);
	comm_close(app->comm, abort);
	csim_control_at(reconnect_sim, app->host);
	connector_free(app->connector);
	app->connector = NULL;
}

void csim_reconnect_lost(struct csim_comm *k, unsigned index, enum comm_loss loss)
{
	struct csim_planned *planned = &k->planned[index];

	csim_control_at(reconnect_sim, k->app[CSIM_SEND].host);
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

void csim_expect_attempt(struct csim_comm *k, unsigned index)
{
	struct csim_planned *planned = &k->planned[index];

	if (planned->attempting)
		(void)runner_fail("comm %u: lane %u has two attempts at a time", comm_number(k),
				  index);
	planned->attempting = true;
	planned->since_ns = reconnect_sim->now_ns;
	reconnect_sim->attempts++;
	reconnect_sim->rerolls += planned->up;
}

void csim_expect_ended(struct csim_comm *k, struct csim_planned *planned, int error, uint16_t port)
{
	planned->attempting = false;
	planned->since_ns = reconnect_sim->now_ns;
	if (error)
		return;
	if (planned->up && port == planned->port)
		(void)runner_fail("comm %u: lane %u is replaced from the same port", comm_number(k),
				  (unsigned)(planned - k->planned));
	planned->rerolled += planned->up;
	k->lanes_replaced += !planned->up && planned->opened;
	planned->opened++;
	planned->port = port;
	planned->up = true;
}

void csim_expect_no_failure(const struct csim_lane *lane, int error)
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
	(void)runner_fail("comm %u: an undisturbed attempt for lane %u fails: %d", comm_number(k),
			  lane->index, error);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Time does not count while the host is frozen. */
static bool check_time(const struct csim_comm *k, unsigned index)
{
	const struct csim_planned *planned = &k->planned[index];
	uint64_t frozen_ns = reconnect_sim->hosts[k->app[CSIM_SEND].host].freeze_until_ns;
	uint64_t since_ns = frozen_ns > planned->since_ns ? frozen_ns : planned->since_ns;
	uint64_t passed_ns =
		reconnect_sim->now_ns > since_ns ? reconnect_sim->now_ns - since_ns : 0;
	const char *wrong = NULL;

	if (planned->attempting && passed_ns > EXPECT_ATTEMPT_NS + EXPECT_LATE_NS)
		wrong = "has an attempt that does not end";
	else if (!planned->attempting && !planned->up &&
		 passed_ns > EXPECT_PAUSE_NS + EXPECT_LATE_NS)
		wrong = "is down, and is not connected";
	return !wrong || runner_fail("comm %u: lane %u %s since %.1f ms", comm_number(k), index,
				     wrong, (double)passed_ns / 1e6);
}

/* The statistics agree with what happened. */
static bool check_statistics(const struct csim_comm *k)
{
	const struct comm *comm = k->app[CSIM_SEND].comm;
	const struct harp_page_comm *record = comm_stats_record(comm->stats);
	const char *wrong = NULL;

	if (atomic_load(&comm->joining)) /* these lanes are counted when they join */
		return true;
	if (stats_get(&record->value[HARP_COMM_lanes_died]) != k->lanes_died)
		wrong = "lanes lost";
	else if (stats_get(&record->value[HARP_COMM_lanes_replaced]) != k->lanes_replaced)
		wrong = "lanes replaced";
	for (unsigned i = 0; i < k->lanes && !wrong; i++) {
		const struct lane_stats *lane = comm_stats_lane(comm->stats, i);
		const uint64_t *value = lane ? lane->record->value : NULL;

		if (k->planned[i].opened != (value ? stats_get(&value[HARP_LANE_lanes]) : 0))
			wrong = "lanes opened";
		else if (value && k->planned[i].rerolled != stats_get(&value[HARP_LANE_rerolls]))
			wrong = "replaced lanes";
	}
	return !wrong ||
	       runner_fail("comm %u: the statistics have other %s", comm_number(k), wrong);
}

static bool check_lane(struct csim_app *app, const struct connector_lane *lane)
{
	bool here = comm_has_lane(app->comm, lane->index);
	const char *wrong = NULL;

	if (lane->up && !here && !lane->attempt)
		wrong = "is taken for up";
	else if (!lane->up && here && !lane->attempt)
		wrong = "is there, and taken for down";
	else if (lane->attempt && attempt_result(lane->attempt) != ATTEMPT_RUNNING)
		wrong = "has an attempt that has ended, which the connector does not see";
	return !wrong || runner_fail("comm %u: lane %u %s", app->number, lane->index, wrong);
}

bool csim_reconnect_check(struct csim_app *app)
{
	const struct csim_comm *k = &reconnect_sim->comms[app->number];
	struct connector *u = app->connector;

	if (!u || !app->comm || app->closed || !atomic_load(&u->advance))
		return true;
	/* A comm that ends does not report losses; posted work is still to come. */
	if (app->comm->error || app->comm->end_error || atomic_load(&u->work.queued) ||
	    atomic_load(&app->comm->joining))
		return true;
	if (atomic_load(&u->slow))
		return runner_fail("comm %u: a lane is slow, and its connector does not look",
				   app->number);
	for (unsigned i = 0; i < u->lane_count; i++)
		if (!check_lane(app, &u->lanes[i]) || !check_time(k, i))
			return false;
	return check_statistics(k);
}
