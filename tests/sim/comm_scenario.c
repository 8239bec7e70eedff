/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_scenario.c - generates the scenario of a seed: hosts, comms, their lanes, and events.
 *
 * Limits keep a seed at a few milliseconds of work: about half a megabyte in all, sometimes more.
 */
#include "comm_scenario.h"

#include <string.h>

#include "base/rng.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

#define BYTES_MAX 400000u /* of all comms, in most seeds */
#define SLOW_BPS 100000000u

/* ---- as data --------------------------------------------------------------------------------- */

static const struct scn_field csn_world[] = { CSN_WORLD(SCN_FIELD) };
static const struct scn_field csn_nic[] = { SCN_IMPAIR(SCN_FIELD) };
static const struct scn_field csn_comm[] = { CSN_COMM(SCN_FIELD) };
static const struct scn_field csn_lane[] = { CSN_LANE(SCN_FIELD) };
static const struct scn_field csn_event[] = { CSN_EVENT(SCN_FIELD) SCN_IMPAIR(SCN_FIELD) };

#define CSN_LIST(word, list, limit, first, number)                                                 \
	SCN_KIND(struct comm_scenario, word, list, limit, first,                                   \
		 offsetof(struct comm_scenario, number))
static const struct scn_kind csn_kinds[] = {
	SCN_KIND(struct comm_scenario, "world", csn_world, 1, world, 0),
	CSN_LIST("nic", csn_nic, CSN_NICS_MAX, nics, nic_count),
	CSN_LIST("comm", csn_comm, CSN_COMMS_MAX, comms, comm_count),
	CSN_LIST("lane", csn_lane, CSN_LANES_MAX, lanes, lane_count),
	CSN_LIST("event", csn_event, CSN_EVENTS_MAX, events, event_count),
};
static const char *const csn_event_names[CSN_EVENT_KINDS] = { "reset", "fin",    "silent", "slow",
							      "forge", "impair", "cut",    "gone",
							      "stall", "freeze", "kill" };

static const char *csn_remark(const struct scn_kind *kind, const uint64_t *values)
{
	if (strcmp(kind->name, "event") == 0 && values[0] < CSN_EVENT_KINDS)
		return csn_event_names[values[0]];
	if (strcmp(kind->name, "lane") == 0)
		return values[1] == CSN_HARP ? "harp" : "kernel";
	return NULL;
}

static const char *csn_check(const void *scenario)
{
	const struct comm_scenario *s = scenario;
	unsigned lanes[CSN_COMMS_MAX] = { 0 };

	if (s->world.hosts < 2 || s->world.hosts > CSN_HOSTS_MAX || !s->world.rails ||
	    s->world.rails > CSN_RAILS_MAX || s->nic_count != s->world.hosts * s->world.rails)
		return "not two to four hosts with one NIC per rail";
	if (s->world.plant >= CSN_PLANT_KINDS)
		return "an unknown bug to plant";
	for (unsigned i = 0; i < s->lane_count; i++) {
		const struct csn_lane *l = &s->lanes[i];

		if (l->comm >= s->comm_count || l->rail >= s->world.rails ||
		    (l->kind != CSN_HARP && l->kind != CSN_KERNEL))
			return "a lane with an invalid comm, rail or kind";
		if (l->kind == CSN_KERNEL && l->buffer_bytes < 64)
			return "a kernel lane without a buffer";
		lanes[l->comm]++;
	}
	for (unsigned i = 0; i < s->comm_count; i++) {
		const struct csn_comm *c = &s->comms[i];

		if (c->from >= s->world.hosts || c->to >= s->world.hosts || c->from == c->to)
			return "a comm without two different hosts";
		if (c->multi_lane && !c->backoff_ns)
			return "a comm that reconnects without a pause";
		if (!lanes[i] || lanes[i] > 32 || (!c->multi_lane && lanes[i] > 1))
			return "a comm with too few or too many lanes";
		if (c->sizes >= CSN_SIZES_KINDS || !c->s_burst || !c->r_burst)
			return "a comm without sizes or requests";
	}
	for (unsigned i = 0; i < s->event_count; i++) {
		const struct csn_event *e = &s->events[i];

		if (e->kind >= CSN_EVENT_KINDS || e->lane >= s->lane_count ||
		    e->host >= s->world.hosts || e->rail >= s->world.rails)
			return "an event with an invalid kind, lane, host or rail";
	}
	return NULL;
}

const struct scn_layout comm_scenario_layout = {
	.kinds = csn_kinds,
	.kind_count = sizeof(csn_kinds) / sizeof(csn_kinds[0]),
	.size = sizeof(struct comm_scenario),
	.check = csn_check,
	.remark = csn_remark,
};

/* ---- from a seed ----------------------------------------------------------------------------- */

struct maker {
	struct comm_scenario *s;
	struct rng rng;
	uint64_t horizon_ns;
	bool is_clean;   /* the paths lose and alter no packets */
	bool has_deaths; /* processes may die, NICs may be removed */
	bool is_idle; /* few messages over many seconds, for long-lived lanes and long reconnects */
};

static void make_path(struct maker *m, struct scn_impair *n)
{
	n->delay_ns = PICK(&m->rng, 1 * US, 5 * US, 20 * US, 100 * US);
	n->jitter_ns = one_in(&m->rng, 4) ? below64(&m->rng, n->delay_ns) : 0;
	n->rate_bps = PICK(&m->rng, 0, 10000000000, 1000000000, 1000000000, SLOW_BPS);
	n->queue_bytes =
		n->rate_bps && one_in(&m->rng, 2) ? PICK(&m->rng, 30000, 100000, 1000000) : 0;
	if (m->is_clean)
		return;
	n->loss_ppm = PICK(&m->rng, 0, 100, 1000, 10000, 30000);
	n->duplicate_ppm = PICK(&m->rng, 0, 0, 1000, 20000);
	n->reorder_ppm = PICK(&m->rng, 0, 0, 1000, 30000);
	n->reorder_ns = n->reorder_ppm ? 1 + below64(&m->rng, 200 * US) : 0;
	n->corrupt_ppm = PICK(&m->rng, 0, 0, 0, 2000);
}

static void make_world(struct maker *m)
{
	struct csn_world *w = &m->s->world;

	w->hosts = PICK(&m->rng, 2, 2, 2, 3, 4);
	w->rails = PICK(&m->rng, 1, 1, 2, 3);
	w->family = PICK(&m->rng, 4, 6);
	w->mtu_bytes = PICK(&m->rng, 1500, 1500, 1500, 9000, 1280);
	w->lane_timeout_ns = PICK(&m->rng, 50 * MS, 200 * MS, 500 * MS);
	w->user_timeout_ns = PICK(&m->rng, 3 * S, 5 * S);
	w->probe_ns = PICK(&m->rng, 50 * MS, 250 * MS);
	w->linger_ns = 50 * MS;
	w->poller_lag_ns = PICK(&m->rng, 1 * US, 10 * US, 1 * MS);
	w->interleave_ppm = PICK(&m->rng, 0, 1000, 20000, 100000, 500000);
	w->hold_ppm = PICK(&m->rng, 0, 0, 20000, 100000);
	/* Needed if applications do not poll for seconds. */
	w->background = m->is_idle || (!w->no_ticks && one_in(&m->rng, 2));
	w->no_epoll_ppm =
		m->is_idle && one_in(&m->rng, 2) ? 300000 : PICK(&m->rng, 0, 0, 0, 0, 300000);
	m->s->nic_count = (unsigned)(w->hosts * w->rails);
	for (unsigned i = 0; i < m->s->nic_count; i++) {
		make_path(m, &m->s->nics[i]);
		/* Data in flight of all comms of a host takes 50 ms there and delays its ACKs. */
		if (m->s->nics[i].rate_bps == SLOW_BPS && w->lane_timeout_ns < 200 * MS)
			w->lane_timeout_ns = 200 * MS;
	}
}

static void make_lane(struct maker *m, unsigned comm, uint64_t kind, bool first)
{
	struct csn_lane *l = &m->s->lanes[m->s->lane_count++];

	l->comm = comm;
	l->kind = kind;
	l->rail = below(&m->rng, m->s->world.rails);
	l->backup = !first && one_in(&m->rng, 8);
	if (kind != CSN_KERNEL)
		return;
	l->delay_ns = PICK(&m->rng, 1 * US, 10 * US, 100 * US);
	l->rate_bps = PICK(&m->rng, 0, 10000000000, 1000000000, 100000000);
	if (m->is_idle)
		l->rate_bps = PICK(&m->rng, 1000000000, 1000000000, 20000000);
	l->buffer_bytes = PICK(&m->rng, 1000, 16384, 65536, 262144, 1000000);
	if (m->is_idle && l->buffer_bytes < 16384)
		l->buffer_bytes = 16384; /* a smaller buffer costs too many turns */
	l->short_ppm = PICK(&m->rng, 0, 10000, 300000);
}

static void make_sizes(struct maker *m, struct csn_comm *c, uint32_t budget)
{
	c->sizes = PICK(&m->rng, CSN_SIZES_TINY, CSN_SIZES_LL, CSN_SIZES_LL, CSN_SIZES_ODD,
			CSN_SIZES_ODD, CSN_SIZES_BULK);
	switch (c->sizes) {
	case CSN_SIZES_TINY:
		c->size_max = 64;
		break;
	case CSN_SIZES_LL:
		c->size_max = PICK(&m->rng, 64, 512, 4096, 65536);
		break;
	case CSN_SIZES_ODD:
		c->size_max = PICK(&m->rng, 1000, 10000, 100000, 300000);
		break;
	default:
		c->size_max = PICK(&m->rng, 65536, 131072, 524288);
		if (one_in(&m->rng, 40))
			c->size_max = 4u << 20;
	}
	c->messages = 1 + below(&m->rng, PICK(&m->rng, 4, 40, 400));
	if (c->messages * c->size_max / 2 > budget)
		c->messages = 1 + budget * 2 / c->size_max;
}

/* Either rare messages, or enough of them to detect a slow lane. */
static void make_idle(struct maker *m, struct csn_comm *c)
{
	bool busy = one_in(&m->rng, 2);

	c->messages = busy ? 60 + below(&m->rng, 40) : 20 + below(&m->rng, 40);
	c->sizes = busy ? CSN_SIZES_BULK : c->sizes;
	c->size_max = busy ? PICK(&m->rng, 65536, 131072) : c->size_max;
	c->s_burst = c->r_burst = 4;
	c->s_gap_ns = c->r_gap_ns = busy ? 300 * MS : 1 * S;
	c->multi_lane = 1;
}

static void make_comm(struct maker *m, struct csn_comm *c, uint32_t budget)
{
	c->stream = rng_u64(&m->rng);
	c->from = below(&m->rng, m->s->world.hosts);
	c->to = (c->from + 1 + below(&m->rng, m->s->world.hosts - 1)) % m->s->world.hosts;
	c->multi_lane = !one_in(&m->rng, 6);
	c->eager_bytes = PICK(&m->rng, 4096, 4096, 16384, 262144);
	make_sizes(m, c, budget);
	c->slack_bytes = PICK(&m->rng, 0, 0, 64, 4096);
	c->misalign_bytes = one_in(&m->rng, 4) ? below(&m->rng, 64) : 0;
	c->truncate_at = c->sizes != CSN_SIZES_TINY && one_in(&m->rng, 40)
				 ? 1 + below(&m->rng, c->messages)
				 : 0;
	c->s_burst = PICK(&m->rng, 1, 2, 8, 32, 32);
	c->r_burst = PICK(&m->rng, 1, 2, 8, 32, 32);
	c->s_gap_ns =
		one_in(&m->rng, 3) ? below64(&m->rng, PICK(&m->rng, 10 * US, MS, 20 * MS)) : 0;
	c->r_gap_ns =
		one_in(&m->rng, 3) ? below64(&m->rng, PICK(&m->rng, 10 * US, MS, 20 * MS)) : 0;
	if (m->is_idle)
		make_idle(m, c);
	c->r_delay_ns = !m->is_idle && one_in(&m->rng, 3) ? below64(&m->rng, m->horizon_ns) : 0;
	c->s_poll_ns = PICK(&m->rng, 1 * US, 5 * US, 50 * US);
	c->r_poll_ns = PICK(&m->rng, 1 * US, 5 * US, 50 * US);
	c->s_close_at = one_in(&m->rng, 12) ? 1 + below(&m->rng, c->messages) : 0;
	c->r_close_at = one_in(&m->rng, 12) ? 1 + below(&m->rng, c->messages) : 0;
	c->s_close_ns = one_in(&m->rng, 2) ? below64(&m->rng, 10 * MS) : 0;
	c->r_close_ns = one_in(&m->rng, 2) ? below64(&m->rng, 10 * MS) : 0;
	if (m->is_idle)
		c->s_close_ns = c->r_close_ns = one_in(&m->rng, 2) ? 30 * S : 0;
	c->backoff_ns = one_in(&m->rng, 2) ? 100 * MS : 1 + below64(&m->rng, 10 * MS);
}

/* The lanes of a comm are of one kind, or of both. */
static void make_lanes(struct maker *m, unsigned comm)
{
	struct csn_comm *c = &m->s->comms[comm];
	uint64_t kinds = 1 + below(&m->rng, 3);
	unsigned count = c->multi_lane ? 1 + below(&m->rng, PICK(&m->rng, 2, 4, 8)) : 1;

	for (unsigned i = 0; i < count; i++) {
		uint64_t kind = kinds == 3 ? 1 + below(&m->rng, 2) : kinds;

		make_lane(m, comm, kind, i == 0);
		if (i == 0)
			c->no_credit = kind == CSN_KERNEL;
	}
}

static void make_event(struct maker *m, struct csn_event *e)
{
	e->kind = below(&m->rng, CSN_EVENT_KINDS);
	if (e->kind >= CSN_GONE && e->kind != CSN_STALL && !m->has_deaths)
		e->kind = below(&m->rng, CSN_GONE);
	if ((e->kind == CSN_IMPAIR) && m->is_clean)
		e->kind = CSN_RESET;
	if (m->s->world.no_ticks) /* events that wake the comm */
		e->kind = PICK(&m->rng, CSN_RESET, CSN_RESET, CSN_FIN, CSN_FORGE, CSN_STALL);
	e->lane = below(&m->rng, m->s->lane_count);
	e->host = below(&m->rng, m->s->world.hosts);
	e->rail = below(&m->rng, m->s->world.rails);
	e->start_ns = below64(&m->rng, m->horizon_ns);
	e->duration_ns = 1 + below64(&m->rng, PICK(&m->rng, 100 * US, 10 * MS, 300 * MS,
						   m->is_idle ? 9 * S : 2 * S));
	if (m->is_idle && one_in(&m->rng, 3)) { /* until pauses reach their limit */
		e->kind = PICK(&m->rng, CSN_CUT, CSN_GONE);
		e->duration_ns = 30 * S;
	}
	/* The lane stalls, other lanes resend its data, and the lane returns with the same data. */
	if (!m->s->world.no_ticks && one_in(&m->rng, 4)) {
		e->kind = CSN_SILENT;
		e->duration_ns = 20 * MS + below64(&m->rng, 60 * MS);
	}
	e->one_way = one_in(&m->rng, 3);
	e->keep = one_in(&m->rng, 2);
	if (e->kind == CSN_SILENT && one_in(&m->rng, 3))
		e->duration_ns = 0;
	if (e->kind == CSN_IMPAIR) {
		make_path(m, &e->path);
		e->path.rate_bps /= PICK(&m->rng, 1, 10);
		e->path.loss_ppm *= PICK(&m->rng, 1, 4);
	}
}

void comm_scenario_make(struct comm_scenario *s, uint64_t seed)
{
	struct maker m = { .s = s };
	uint32_t budget;

	memset(s, 0, sizeof(*s));
	s->world.seed = seed;
	rng_seed(&m.rng, seed);
	m.is_clean = !one_in(&m.rng, 3);
	m.has_deaths = one_in(&m.rng, 4);
	s->world.no_ticks = m.is_clean && one_in(&m.rng, 3);
	m.is_idle = !s->world.no_ticks && one_in(&m.rng, 20);
	m.horizon_ns = m.is_idle ? 12 * S : PICK(&m.rng, 200 * US, 2 * MS, 20 * MS, 200 * MS);
	make_world(&m);
	s->comm_count = 1 + below(&m.rng, one_in(&m.rng, 4) ? 8 : 3);
	budget = (one_in(&m.rng, 20) ? 10 * BYTES_MAX : BYTES_MAX) / s->comm_count;
	for (unsigned i = 0; i < s->comm_count; i++) {
		make_comm(&m, &s->comms[i], budget);
		make_lanes(&m, i);
	}
	s->event_count = one_in(&m.rng, 4) ? 0 : 1 + below(&m.rng, PICK(&m.rng, 2, 6, 12));
	for (unsigned i = 0; i < s->event_count; i++)
		make_event(&m, &s->events[i]);
}

/* ---- small scenarios ------------------------------------------------------------------------- */

void comm_scenario_make_small(struct comm_scenario *s, unsigned which)
{
	static const struct {
		unsigned char lanes, kinds[4]; /* CSN_HARP, CSN_KERNEL */
		unsigned char sizes;
		uint32_t size_max, messages;
	} small[COMM_SCENARIO_SMALL] = {
		{ 2, { CSN_HARP, CSN_HARP }, CSN_SIZES_BULK, 40000, 3 },
		{ 2, { CSN_KERNEL, CSN_KERNEL }, CSN_SIZES_BULK, 40000, 3 },
		{ 3, { CSN_HARP, CSN_KERNEL, CSN_HARP }, CSN_SIZES_ODD, 20000, 6 },
		{ 3, { CSN_KERNEL, CSN_HARP, CSN_KERNEL }, CSN_SIZES_LL, 4096, 12 },
		{ 4, { CSN_HARP, CSN_HARP, CSN_KERNEL, CSN_KERNEL }, CSN_SIZES_BULK, 70000, 2 },
		{ 1, { CSN_HARP }, CSN_SIZES_ODD, 20000, 4 },
		{ 3, { CSN_HARP, CSN_HARP, CSN_HARP }, CSN_SIZES_ODD, 20000, 4 },
		{ 3, { CSN_HARP, CSN_KERNEL, CSN_KERNEL }, CSN_SIZES_ODD, 20000, 4 },
	};
	struct csn_comm *c = &s->comms[0];

	memset(s, 0, sizeof(*s));
	s->world = (struct csn_world){
		.seed = which,
		.hosts = 2,
		.rails = 2,
		.family = 4,
		.mtu_bytes = 1500,
		.lane_timeout_ns = 100 * MS,
		.user_timeout_ns = 2 * S,
		.probe_ns = 50 * MS,
		.linger_ns = 50 * MS,
		.poller_lag_ns = 1000,
		.background = which % 2,
	};
	s->nic_count = 4;
	for (unsigned i = 0; i < 4; i++)
		s->nics[i] = (struct scn_impair){ .delay_ns = 5 * US, .rate_bps = 1000000000 };
	*c = (struct csn_comm){
		.stream = which,
		.to = 1,
		.multi_lane = small[which].lanes > 1,
		.eager_bytes = 16384,
		.messages = small[which].messages,
		.sizes = small[which].sizes,
		.size_max = small[which].size_max,
		.s_burst = 4,
		.r_burst = 2,
		.s_poll_ns = 20 * US,
		.r_poll_ns = 20 * US,
		.backoff_ns = MS,
	};
	s->comm_count = 1;
	c->no_credit = small[which].kinds[0] == CSN_KERNEL;
	for (unsigned i = 0; i < small[which].lanes; i++)
		s->lanes[s->lane_count++] = (struct csn_lane){
			.kind = small[which].kinds[i],
			.rail = i % 2,
			.delay_ns = 5 * US,
			.rate_bps = 1000000000,
			.buffer_bytes = 16384,
		};
}
