/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_scenario.c - generates the scenario of a seed: ranks, NICs, calls, and events of a rank.
 *
 * Limits keep a seed at some tens of milliseconds of work: about a megabyte in all.
 */
#include "coll_sim.h"

#include <string.h>

#include "base/rng.h"
#include "harp_coll.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define BYTES_MAX 1000000u /* of all ranks and calls */

/* ---- as data --------------------------------------------------------------------------------- */

static const struct scn_field cln_world[] = { CLN_WORLD(SCN_FIELD) };
static const struct scn_field cln_nic[] = { CLN_NIC(SCN_FIELD) };
static const struct scn_field cln_call[] = { CLN_CALL(SCN_FIELD) };
static const struct scn_field cln_event[] = { CLN_EVENT(SCN_FIELD) };

#define CLN_LIST(word, list, limit, first, number)                                                 \
	SCN_KIND(struct coll_scenario, word, list, limit, first,                                   \
		 offsetof(struct coll_scenario, number))
static const struct scn_kind cln_kinds[] = {
	SCN_KIND(struct coll_scenario, "world", cln_world, 1, world, 0),
	CLN_LIST("nic", cln_nic, CLN_RANKS_MAX, nics, nic_count),
	CLN_LIST("call", cln_call, CLN_CALLS_MAX, calls, call_count),
	CLN_LIST("event", cln_event, CLN_EVENTS_MAX, events, event_count),
};
static const char *const cln_event_names[CLN_EVENT_KINDS] = { "late", "cut", "absent", "mismatch" };

static const char *cln_remark(const struct scn_kind *kind, const uint64_t *values)
{
	if (strcmp(kind->name, "event") == 0 && values[0] < CLN_EVENT_KINDS)
		return cln_event_names[values[0]];
	if (strcmp(kind->name, "call") == 0)
		return harp_coll_op_name((enum harp_coll_op)values[0]);
	return NULL;
}

static const char *cln_check(const void *scenario)
{
	const struct coll_scenario *s = scenario;

	if (s->world.ranks < 2 || s->world.ranks > CLN_RANKS_MAX || s->nic_count != s->world.ranks)
		return "not two to eight ranks with one NIC each";
	if (!s->world.groups || !s->world.timeout_ms)
		return "no group, or no timeout";
	for (unsigned i = 0; i < s->call_count; i++) {
		const struct cln_call *c = &s->calls[i];

		if (c->op > HARP_COLL_SEND || c->peer >= s->world.ranks ||
		    (c->op == HARP_COLL_SEND && !c->peer))
			return "a call with an invalid operation or peer";
	}
	for (unsigned i = 0; i < s->event_count; i++)
		if (s->events[i].kind >= CLN_EVENT_KINDS || s->events[i].rank >= s->world.ranks ||
		    s->events[i].call >= s->call_count)
			return "an event with an invalid kind, rank or call";
	return NULL;
}

const struct scn_layout coll_scenario_layout = {
	.kinds = cln_kinds,
	.kind_count = sizeof(cln_kinds) / sizeof(cln_kinds[0]),
	.size = sizeof(struct coll_scenario),
	.check = cln_check,
	.remark = cln_remark,
};

/* ---- from a seed ----------------------------------------------------------------------------- */

struct maker {
	struct coll_scenario *s;
	struct rng rng;
};

static void make_nics(struct maker *m)
{
	struct coll_scenario *s = m->s;
	struct cln_nic path = { .delay_ns = PICK(&m->rng, 1 * US, 10 * US, 100 * US),
				.rate_bps = PICK(&m->rng, 0, 10000000000, 1000000000) };
	bool clean = one_in(&m->rng, 3);

	s->nic_count = (unsigned)s->world.ranks;
	for (unsigned i = 0; i < s->nic_count; i++) {
		struct cln_nic *n = &s->nics[i];

		*n = path;
		if (one_in(&m->rng, 4)) /* slower than the others */
			n->delay_ns *= 5;
		n->jitter_ns = one_in(&m->rng, 3) ? n->delay_ns / 2 : 0;
		if (clean)
			continue;
		n->late_ppm = PICK(&m->rng, 0, 1000, 10000, 100000);
		n->late_ns = PICK(&m->rng, 1 * MS, 20 * MS, 200 * MS);
	}
}

/* Sizes near those at which the library changes its algorithm, and any sizes. */
static uint64_t make_count(struct maker *m)
{
	uint64_t near;

	switch (below(&m->rng, 4)) {
	case 0:
		return below(&m->rng, 20);
	case 1:
		near = PICK(&m->rng, 256, 8192, 16384, 16384 * 2);
		return near - 2 + below(&m->rng, 5);
	case 2:
		return below(&m->rng, 3000);
	default:
		return below(&m->rng, 60000);
	}
}

static uint64_t call_bytes(const struct coll_scenario *s, const struct cln_call *c)
{
	bool is_wide = c->op == HARP_COLL_ALLGATHER || c->op == HARP_COLL_REDUCE_SCATTER ||
		       c->op == HARP_COLL_GATHER || c->op == HARP_COLL_SCATTER ||
		       c->op == HARP_COLL_ALLTOALL;

	return c->count * 4 * s->world.ranks * (is_wide ? s->world.ranks : 1);
}

static void make_calls(struct maker *m)
{
	struct coll_scenario *s = m->s;
	uint64_t left = BYTES_MAX;

	s->call_count = 1 + below(&m->rng, CLN_CALLS_MAX);
	for (unsigned i = 0; i < s->call_count; i++) {
		struct cln_call *c = &s->calls[i];

		c->op = one_in(&m->rng, 3) ? HARP_COLL_ALLREDUCE
					   : below(&m->rng, HARP_COLL_SEND + 1);
		c->count = c->op == HARP_COLL_BARRIER ? 0 : make_count(m);
		c->peer = below(&m->rng, (uint32_t)s->world.ranks);
		if (c->op == HARP_COLL_SEND && !c->peer)
			c->peer = 1;
		c->in_place = below(&m->rng, 2);
		c->overlaps = one_in(&m->rng, 3);
		while (call_bytes(s, c) > left)
			c->count /= 2;
		left -= call_bytes(s, c);
	}
}

static void make_events(struct maker *m)
{
	struct coll_scenario *s = m->s;
	struct cln_event *e = &s->events[0];

	if (one_in(&m->rng, 2))
		return;
	s->event_count = 1;
	e->kind = below(&m->rng, CLN_EVENT_KINDS);
	e->call = below(&m->rng, s->call_count);
	e->rank = below(&m->rng, (uint32_t)s->world.ranks);
	switch ((enum cln_event_kind)e->kind) {
	case CLN_LATE:
		e->duration_ns = PICK(&m->rng, 100 * US, 10 * MS, 1500 * MS);
		return;
	case CLN_CUT:
		e->duration_ns = PICK(&m->rng, 0, 1 * MS, 50 * MS, 300 * MS);
		break;
	default:
		break;
	}
	if (e->kind == CLN_CUT && e->duration_ns)
		return;
	/* The event ends the group. The last call is one in which each rank waits for all
	 * others. */
	s->world.groups = 1;
	s->world.hosts = 0;
	s->call_count = (unsigned)e->call + 1;
	for (unsigned i = 0; i < s->call_count; i++)
		s->calls[i].overlaps = 0;
	s->calls[e->call].op = HARP_COLL_ALLREDUCE;
	if (!s->calls[e->call].count)
		s->calls[e->call].count = 1;
}

void coll_scenario_make(struct coll_scenario *scenario, uint64_t seed)
{
	struct maker m = { .s = scenario };
	struct cln_world *world = &scenario->world;

	memset(scenario, 0, sizeof(*scenario));
	rng_seed(&m.rng, seed);
	world->seed = seed;
	world->ranks = PICK(&m.rng, 2, 2, 3, 4, 4, 5, 6, 7, 8);
	world->hosts = PICK(&m.rng, 0, 0, 0, 1, 2, 3);
	world->groups = one_in(&m.rng, 4) ? 2 : 1;
	world->timeout_ms = 3000;
	world->store_ns = PICK(&m.rng, 1 * US, 200 * US, 5 * MS);
	world->refuse_ppm = one_in(&m.rng, 2) ? 0 : 200000;
	make_nics(&m);
	make_calls(&m);
	make_events(&m);
}
