/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_reconnect.c - comms whose further lanes connector.c opens: the plan (in the place of candidates.c, peers.c and
 * rails.c), and whether connector.c's state agrees with the lanes. comm_reconnect_check.c checks the times.
 */
#include "comm_reconnect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connect/candidates.h"
#include "connect/listener.h"
#include "connect/peers.h"
#include "connect/registry.h"
#include "connect/connector.h"

static struct csim *reconnect_sim;

void csim_reconnect_begin(struct csim *sim)
{
	reconnect_sim = sim;
	csim_controls_begin(sim);
	csim_expect_begin(sim);
}

/* ---- the plan ------------------------------------------------------------------------------------ */

/* Of the peer's listener there; none if its lanes are the kernel's. */
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
	if (u->rail_count == RAIL_PAIRS_MAX)
		return same;
	u->rails[u->rail_count] = (struct connector_rail){
		.dev = (int)spec->rail,
		.backup = spec->backup,
		/* A set of one engine, which stands for it. */
		.engines =
			(struct engine_set *)(void *)reconnect_sim->hosts[c->from].nics[spec->rail],
		.handle = { .has_v4 = reconnect_sim->scenario->world.family == 4,
			    .harp_port = plan_port(spec) },
	};
	u->rails[u->rail_count].handle.v4 = u->rails[u->rail_count].handle.v6 =
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
			.backoff_ns = CONNECTOR_BACKOFF_NS_MIN,
		};
		u->lane_count++;
	}
}

enum harp_page_fallback engine_fallback(int dev)
{
	(void)dev;
	return HARP_PAGE_FALLBACK_none;
}

unsigned engine_set_count(const struct engine_set *set)
{
	return set ? 1 : 0;
}

struct engine *engine_set_at(const struct engine_set *set, unsigned index)
{
	(void)index;
	return (struct engine *)(uintptr_t)set;
}

/* The lane of that rail whose attempt is about to begin. */
static void plan_begins(const struct handle *handle)
{
	for (unsigned i = 0; i < reconnect_sim->scenario->comm_count; i++) {
		struct csim_comm *k = &reconnect_sim->comms[i];
		const struct connector *c = k->app[CSIM_SEND].connector;

		for (unsigned l = 0; c && l < c->lane_count; l++) {
			const struct attempt *a = c->lanes[l].attempt;

			if (&c->rails[c->lanes[l].rail].handle == handle && a && !a->poller)
				csim_expect_attempt(k, l, reconnect_sim->now_ns);
		}
	}
}

/* None while its NIC is gone. They differ in what means nothing where NICs have one queue. */
void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct handle *handle)
{
	const struct csim_host *here = csim_control_host();
	unsigned host = (unsigned)(here - reconnect_sim->hosts);

	memset(out, 0, sizeof(*out));
	plan_begins(handle);
	if (here->nics[dev]->gone)
		return;
	for (out->count = 0; out->count < CSIM_CANDIDATES; out->count++)
		out->list[out->count] = (struct candidate){
			.harp = engines != NULL,
			.engine = engines ? engine_set_at(engines, 0) : NULL,
			.local.addr = csim_addr(reconnect_sim, host, (unsigned)dev),
			.remote = { .addr = handle->v4, .port = handle->harp_port },
			.harp_port = true,
			.peer_queues = 1,
			.peer_placement = (uint8_t)out->count,
		};
}

bool peers_is_avoided(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	(void)remote;
	(void)engine;
	(void)now_ns;
	return false;
}

/* ---- comms ----------------------------------------------------------------------------------------- */

/* The comm has just been made of its first lane. */
/* The first lane's comm, as its listen comm accepts it. */
static void reconnect_accept(struct comm *comm, uint64_t comm_id, const uint8_t *key)
{
	struct listen_comm listen = { .id = comm_id, .ctx = comm->ctx };
	struct comm *accepted = NULL;

	registry_listen(&listen);
	if (registry_ready(listen.id, comm, comm_id, key) || registry_accept(&listen, &accepted) ||
	    accepted != comm)
		abort();
	registry_unlisten(&listen);
}

void csim_reconnect_made(struct csim_lane *first, enum csim_side side)
{
	struct csim_comm *k = &reconnect_sim->comms[first->spec->comm];
	struct csim_app *app = &k->app[side];
	struct handle handle = { 0 };
	struct attempt attempt = { .comm_id = first->spec->comm,
				   .candidate = { .harp = first->spec->kind == CSN_HARP },
				   .preamble = { .own.lanes = (uint8_t)k->lanes,
						 .peer.lanes = (uint8_t)k->lanes } };
	uint8_t key[PREAMBLE_KEY_BYTES];

	csim_control_at(reconnect_sim, app->host);
	/* The first lane had no preamble. */
	memcpy(attempt.preamble.key, &k->spec->stream, sizeof(k->spec->stream));
	if (side == CSIM_RECV) {
		preamble_comm_key(&attempt.preamble, key);
		reconnect_accept(app->comm, first->spec->comm, key);
		return;
	}
	app->connector = connector_new((int)first->spec->rail, 0, &handle, &csim_attempt_ops);
	if (!app->connector)
		abort();
	connector_made(app->connector, app->comm, &attempt);
}

void csim_reconnect_go(struct csim_app *app)
{
	csim_control_at(reconnect_sim, app->host);
	connector_begin(app->connector);
	csim_expect_go(&reconnect_sim->comms[app->number]);
}

void csim_reconnect_end(struct csim_app *app, bool abort)
{
	csim_control_at(reconnect_sim, app->host);
	if (app->side == CSIM_RECV)
		registry_remove(app->comm);
	csim_expect_closes(app->connector);
	connector_stop(app->connector);
	comm_close(app->comm, abort);
	csim_control_at(reconnect_sim, app->host);
	connector_free(app->connector);
	app->connector = NULL;
}

void csim_reconnect_lost(struct csim_comm *k, unsigned index, enum comm_loss loss)
{
	csim_control_at(reconnect_sim, k->app[CSIM_SEND].host);
	connector_lost(k->app[CSIM_SEND].comm, index, loss);
	csim_expect_lost(k, index, loss);
}

/* ---- checks ---------------------------------------------------------------------------------------- */

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
	return !wrong ||
	       csim_fail(app->sim, "comm %u: lane %u %s", app->number, lane->index, wrong);
}

bool csim_reconnect_check(struct csim_app *app)
{
	struct connector *u = app->connector;

	if (!u || !app->comm || app->closed || !atomic_load(&u->begun))
		return true;
	/* A comm that ends does not report losses; posted work is still to come. */
	if (app->comm->error || app->comm->end_error || atomic_load(&u->work.queued) ||
	    atomic_load(&app->comm->joining))
		return true;
	if (atomic_load(&u->slow))
		return csim_fail(app->sim,
				 "comm %u: a lane is slow, and its connector does not look",
				 app->number);
	for (unsigned i = 0; i < u->lane_count; i++)
		if (!check_lane(app, &u->lanes[i]))
			return false;
	return csim_expect_check(app);
}
