/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_upkeep.c - comms whose further lanes are upkeep.c's: the plan (in the place of upkeep_plan.c, candidates.c, peers.c and
 * rails.c), and a ledger.
 *
 * Theory of operation. The ledger says of each lane of each plan when it was dialled and what came of it, from what is
 * seen outside of the plugin alone. Judged by it: nothing is dialled twice at a time, nor sooner after a failure, a short
 * life or a re-roll than docs/lanes.md says; a re-roll is no death; what upkeep.c takes for up is there, and what is not is
 * being dialled or will be.
 */
#include "comm_upkeep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "candidates.h"
#include "door.h"
#include "peers.h"
#include "registry.h"
#include "upkeep_impl.h"

#define UPKEEP_RULE_BACKOFF_NS (100 * CSIM_MS)
#define UPKEEP_RULE_BACKOFF_NS_MAX (5 * CSIM_S)
#define UPKEEP_RULE_PROVEN_NS CSIM_S
#define UPKEEP_RULE_REROLL_NS (5 * CSIM_S)
#define UPKEEP_RULE_DIAL_NS (5 * CSIM_S)
#define UPKEEP_LATE_NS CSIM_S /* what is due, and nobody looks */

static struct csim *upkeep_sim;

void csim_upkeep_begin(struct csim *sim)
{
	upkeep_sim = sim;
	csim_keepers_begin(sim);
}

/* ---- the ledger ---------------------------------------------------------------------------------- */

static struct csim_comm *ledger_comm(const struct csim_lane *lane)
{
	return &lane->sim->comms[lane->spec->comm];
}

/* May it be dialled now? */
void csim_ledger_dial(struct csim_comm *k, unsigned index, uint64_t now_ns)
{
	struct csim_ledger *e = &k->ledger[index];
	unsigned number = (unsigned)(k - upkeep_sim->comms);
	uint64_t pause_ns = UPKEEP_RULE_BACKOFF_NS;

	if (csim_dialled(upkeep_sim, (unsigned)(k - upkeep_sim->comms), index)) {
		(void)csim_fail(upkeep_sim, "comm %u: lane %u is dialled twice at a time", number,
				index);
		return;
	}
	for (unsigned i = 1; i < e->failures && pause_ns < UPKEEP_RULE_BACKOFF_NS_MAX; i++)
		pause_ns *= 2;
	if (pause_ns > UPKEEP_RULE_BACKOFF_NS_MAX)
		pause_ns = UPKEEP_RULE_BACKOFF_NS_MAX;
	if (comm_has_lane(k->app[CSIM_SEND].comm, index)) { /* a re-roll */
		upkeep_sim->rerolls++;
		if (e->rerolled_ns && now_ns < e->rerolled_ns + UPKEEP_RULE_REROLL_NS)
			(void)csim_fail(upkeep_sim, "comm %u: lane %u is re-rolled too often",
					number, index);
		e->rerolled_ns = now_ns;
	} else if (e->failures && now_ns < e->ended_ns + pause_ns) {
		(void)csim_fail(upkeep_sim, "comm %u: lane %u is dialled %.1f ms after %u failures",
				number, index, (double)(now_ns - e->ended_ns) / 1e6, e->failures);
	} else if (!e->failures && e->lost_ns && e->lost_ns < e->up_ns + UPKEEP_RULE_PROVEN_NS &&
		   now_ns < e->lost_ns + UPKEEP_RULE_BACKOFF_NS) {
		(void)csim_fail(upkeep_sim,
				"comm %u: lane %u that lived shortly is dialled at once", number,
				index);
	}
	e->begun_ns = now_ns;
	upkeep_sim->dialled++;
}

/* Of a re-roll that fails nothing comes: the lane that is there goes on. */
void csim_ledger_ended(struct csim_comm *k, unsigned index, bool rerolls, int error,
		       uint64_t now_ns)
{
	struct csim_ledger *e = &k->ledger[index];

	e->ended_ns = now_ns;
	if (!rerolls)
		e->failures = error ? e->failures + 1 : 0;
	if (error)
		return;
	e->up_ns = now_ns;
	e->lost_ns = 0;
}

bool csim_upkeep_lost(struct csim_comm *k, unsigned index, enum comm_loss loss)
{
	struct csim_ledger *e = &k->ledger[index];
	const struct csim_lane *next =
		csim_dialled(upkeep_sim, (unsigned)(k - upkeep_sim->comms), index);
	bool replaced;

	csim_keeper_at(upkeep_sim, k->app[CSIM_SEND].host);
	replaced = upkeep_lost(k->app[CSIM_SEND].comm, index, loss);
	if (loss == COMM_LOSS_SLOW)
		return replaced;
	upkeep_sim->deaths += !replaced;
	e->lost_ns = upkeep_sim->now_ns;
	/* A dial that has ended, and the keeper has not looked yet: it will see to it. */
	if (replaced && !next && !k->app[CSIM_SEND].upkeep->lanes[index].attempt)
		(void)csim_fail(upkeep_sim, "comm %u: lane %u has died and nothing replaces it",
				(unsigned)(k - upkeep_sim->comms), index);
	if (!replaced && loss == COMM_LOSS_BY_PEER && next && next->rerolls)
		(void)csim_fail(upkeep_sim, "comm %u: lane %u is replaced, and counts as dead",
				(unsigned)(k - upkeep_sim->comms), index);
	return replaced;
}

/* ---- the plan ------------------------------------------------------------------------------------ */

/* Of the peer's door there; none if its lanes are the kernel's. */
static uint16_t plan_port(const struct csn_lane *spec)
{
	const struct csn_comm *c = &upkeep_sim->scenario->comms[spec->comm];
	const struct csim_nic *nic = upkeep_sim->hosts[c->to].nics[spec->rail];

	return nic->door ? nic->door->port : 0;
}

static unsigned plan_rail(struct upkeep *u, const struct csn_lane *spec)
{
	const struct csn_comm *c = &upkeep_sim->scenario->comms[u->comm_id];
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
	u->rails[u->rail_count] = (struct upkeep_rail){
		.dev = (int)spec->rail,
		.backup = spec->backup,
		/* A set of one engine, which stands for it. */
		.engines = (struct engine_set *)(void *)upkeep_sim->hosts[c->from].nics[spec->rail],
		.handle = { .has_v4 = upkeep_sim->scenario->world.family == 4,
			    .harp_port = plan_port(spec) },
	};
	u->rails[u->rail_count].handle.v4 = u->rails[u->rail_count].handle.v6 =
		csim_addr(upkeep_sim, (unsigned)c->to, (unsigned)spec->rail);
	return u->rail_count++;
}

void upkeep_plan(struct upkeep *u)
{
	const struct comm_scenario *s = upkeep_sim->scenario;

	for (unsigned i = 0; i < s->lane_count; i++) {
		if (s->lanes[i].comm != u->comm_id)
			continue;
		u->lanes[u->lane_count] = (struct upkeep_lane){
			.index = (uint8_t)u->lane_count,
			.rail = (uint8_t)plan_rail(u, &s->lanes[i]),
			.harp = s->lanes[i].kind == CSN_HARP,
			.backoff_ns = UPKEEP_BACKOFF_NS_MIN,
		};
		u->lane_count++;
	}
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

/* None while its NIC is gone. */
void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct handle *handle)
{
	const struct csim_host *here = csim_keeper_host();
	unsigned host = (unsigned)(here - upkeep_sim->hosts);
	struct candidate *candidate = &out->list[0];

	memset(out, 0, sizeof(*out));
	if (here->nics[dev]->gone)
		return;
	out->count = 1;
	candidate->harp = engines != NULL;
	candidate->engine = engines ? engine_set_at(engines, 0) : NULL;
	candidate->local.addr = csim_addr(upkeep_sim, host, (unsigned)dev);
	candidate->remote.addr = handle->v4;
	candidate->remote.port = handle->harp_port;
	candidate->harp_port = true;
	candidate->peer_queues = 1;
	candidate->peer_placement = PLACEMENT_ONE_QUEUE;
}

void candidates_forget(struct candidates *c)
{
	(void)c;
}

unsigned peers_avoided_s(const struct harp_endpoint *remote, unsigned engine, uint64_t now_ns)
{
	(void)remote;
	(void)engine;
	(void)now_ns;
	return 0;
}

int rails_decode(struct rails *out, const uint8_t *in, size_t len)
{
	(void)out;
	(void)in;
	(void)len;
	return -EPROTO;
}

/* ---- comms ----------------------------------------------------------------------------------------- */

/* The comm has just been made of its first lane. */
void csim_upkeep_made(struct csim_lane *first, enum csim_side side)
{
	struct csim_comm *k = ledger_comm(first);
	struct csim_app *app = &k->app[side];
	struct handle handle = { 0 };
	struct dial dial = { .comm_id = first->spec->comm,
			     .candidate = { .harp = first->spec->kind == CSN_HARP },
			     .preamble = { .own.lanes = (uint8_t)k->lanes,
					   .peer.lanes = (uint8_t)k->lanes } };
	uint8_t key[PREAMBLE_KEY_BYTES];

	csim_keeper_at(upkeep_sim, app->host);
	/* The first lane had no words. */
	memcpy(dial.preamble.key, &k->spec->stream, sizeof(k->spec->stream));
	if (side == CSIM_RECV) {
		preamble_comm_key(&dial.preamble, key);
		if (registry_add(app->comm, first->spec->comm, key))
			abort();
		return;
	}
	app->upkeep = upkeep_new((int)first->spec->rail, 0, &handle);
	if (!app->upkeep)
		abort();
	upkeep_made(app->upkeep, app->comm, &dial);
}

void csim_upkeep_go(struct csim_app *app)
{
	csim_keeper_at(upkeep_sim, app->host);
	upkeep_begin(app->upkeep);
	upkeep_sim->comms[app->number].ledger[0].up_ns = upkeep_sim->now_ns;
}

void csim_upkeep_end(struct csim_app *app, bool abort)
{
	csim_keeper_at(upkeep_sim, app->host);
	if (app->side == CSIM_RECV)
		registry_remove(app->comm);
	upkeep_stop(app->upkeep);
	comm_close(app->comm, abort);
	csim_keeper_at(upkeep_sim, app->host);
	upkeep_free(app->upkeep);
	app->upkeep = NULL;
}

/* ---- judged ---------------------------------------------------------------------------------------- */

static bool judge_lane(struct csim_app *app, const struct upkeep_lane *lane)
{
	const struct csim_comm *k = &app->sim->comms[app->number];
	const struct csim_host *host = &app->sim->hosts[app->host];
	/* What was due then has been seen to. */
	uint64_t awake_ns = host->freeze_until_ns + 2 * UPKEEP_RULE_DIAL_NS < app->sim->now_ns
				    ? app->sim->now_ns - UPKEEP_LATE_NS
				    : 0;
	bool here = comm_has_lane(app->comm, lane->index);
	const char *wrong = NULL;

	if (lane->up && !here && !lane->attempt)
		wrong = "is taken for up";
	else if (!lane->up && here && !lane->attempt)
		wrong = "is there, and taken for down";
	else if (!lane->up && !lane->attempt && lane->next_ns == UINT64_MAX)
		wrong = "is down, and will never be dialled";
	else if (!lane->attempt && lane->next_ns < awake_ns)
		wrong = "is to be dialled, and is not";
	else if (lane->attempt && attempt_result(lane->attempt) != ATTEMPT_RUNS)
		wrong = "was dialled, and nobody looks what came of it";
	else if (csim_dialled(app->sim, app->number, lane->index) &&
		 k->ledger[lane->index].begun_ns + UPKEEP_RULE_DIAL_NS < awake_ns)
		wrong = "is dialled for ever";
	else if (!lane->up && !lane->attempt &&
		 lane->next_ns > app->sim->now_ns + UPKEEP_RULE_BACKOFF_NS_MAX)
		wrong = "is down, and will be dialled much later";
	return !wrong ||
	       csim_fail(app->sim, "comm %u: lane %u %s", app->number, lane->index, wrong);
}

bool csim_upkeep_judge(struct csim_app *app)
{
	struct upkeep *u = app->upkeep;
	unsigned up[RAIL_PAIRS_MAX] = { 0 };

	if (!u || !app->comm || app->closed || !atomic_load(&u->begun))
		return true;
	/* Deaths are not told of a comm that ends, and what is not looked at yet is not known. */
	if (app->comm->error || app->comm->end_error || app->comm->several->failing ||
	    app->comm->several->peer_closed || atomic_load(&u->work.queued))
		return true;
	if (atomic_load(&u->lost) || atomic_load(&u->slow))
		return csim_fail(app->sim, "comm %u: a lane is lost or slow, and nobody looks",
				 app->number);
	for (unsigned i = 0; i < u->lane_count; i++) {
		up[u->lanes[i].rail] += u->lanes[i].up;
		if (!judge_lane(app, &u->lanes[i]))
			return false;
	}
	for (unsigned i = 0; i < u->rail_count; i++) {
		if (up[i] != u->rails[i].up)
			return csim_fail(app->sim,
					 "comm %u: rail %u is said to have %u lanes of %u",
					 app->number, i, u->rails[i].up, up[i]);
	}
	return true;
}
