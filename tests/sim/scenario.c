/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenario.c - generates the scenario of a seed: stacks, their connections, and events.
 *
 * Limits keep a seed at a few milliseconds of work: about a megabyte in all, for any number of
 * connections. Outages add up to at most OUTAGE_NS_MAX, well below the connections' timeouts
 * (sim_tcp_options()). Only some connections have a short user timeout.
 */
#include "scenario.h"

#include <string.h>

#include "base/rng.h"
#include "harp.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

#define OUTAGE_NS_MAX (40 * S)
#define BYTES_MAX 1200000u /* of all connections, both directions */

/* ---- as data --------------------------------------------------------------------------------- */

static const struct scn_field text_world[] = { SCN_WORLD(SCN_FIELD) };
static const struct scn_field text_stack[] = { SCN_IMPAIR(SCN_FIELD) SCN_STACK(SCN_FIELD) };
static const struct scn_field text_listen[] = { SCN_LISTEN(SCN_FIELD) };
static const struct scn_field text_conn[] = { SCN_CONN(SCN_FIELD) SCN_SIDE(SCN_FIELD, c_)
						      SCN_SIDE(SCN_FIELD, s_) };
static const struct scn_field text_event[] = { SCN_EVENT(SCN_FIELD) SCN_IMPAIR(SCN_FIELD) };

#define TEXT_LIST(word, list, limit, first, number)                                                \
	SCN_KIND(struct scenario, word, list, limit, first, offsetof(struct scenario, number))
static const struct scn_kind text_kinds[] = {
	SCN_KIND(struct scenario, "world", text_world, 1, world, 0),
	TEXT_LIST("stack", text_stack, SCN_STACKS_MAX, stacks, stack_count),
	TEXT_LIST("listen", text_listen, SCN_LISTENS_MAX, listens, listen_count),
	TEXT_LIST("conn", text_conn, SCN_CONNS_MAX, conns, conn_count),
	TEXT_LIST("event", text_event, SCN_EVENTS_MAX, events, event_count),
};
static const char *const text_event_names[SCN_EVENT_KINDS] = { "degrade", "stall",   "down",
							       "cut",     "restart", "ring",
							       "starve",  "complete" };

static const char *text_remark(const struct scn_kind *kind, const uint64_t *values)
{
	if (strcmp(kind->name, "event") == 0 && values[0] < SCN_EVENT_KINDS)
		return text_event_names[values[0]];
	return NULL;
}

static const char *text_check(const void *scenario)
{
	const struct scenario *s = scenario;

	if (s->stack_count < 2)
		return "fewer than two stacks";
	for (unsigned i = 0; i < s->listen_count; i++) {
		if (s->listens[i].stack >= s->stack_count)
			return "a listener without a stack";
	}
	for (unsigned i = 0; i < s->conn_count; i++) {
		const struct scn_conn *c = &s->conns[i];

		if (c->client >= s->stack_count || c->server >= s->stack_count ||
		    c->client == c->server)
			return "a connection without two different stacks";
		if (c->kind != SCN_SIMULTANEOUS &&
		    (c->listen >= s->listen_count || s->listens[c->listen].stack != c->server))
			return "a connection without a listener on its server";
		if (c->kind == SCN_RPC && (c->request_bytes == 0 || c->answer_bytes == 0))
			return "empty requests or answers";
	}
	for (unsigned i = 0; i < s->event_count; i++) {
		const struct scn_event *e = &s->events[i];

		if (e->kind >= SCN_EVENT_KINDS || e->stack >= s->stack_count ||
		    e->peer >= s->stack_count)
			return "an event with an invalid kind or stack";
	}
	return NULL;
}

const struct scn_layout scenario_layout = {
	.kinds = text_kinds,
	.kind_count = sizeof(text_kinds) / sizeof(text_kinds[0]),
	.size = sizeof(struct scenario),
	.check = text_check,
	.remark = text_remark,
};

/* ---- from a seed ----------------------------------------------------------------------------- */

struct maker {
	struct scenario *s;
	struct rng rng;
	uint64_t horizon_ns; /* connections and events begin before this time */
	uint64_t outage_ns;  /* sum of the outages so far */
	bool can_restart;    /* a stack may restart: all connections have keepalive */
};

static uint64_t make_family(struct maker *m)
{
	return PICK(&m->rng, 4, 6);
}

/* Each end has its own congestion control; DCTCP requires ECN. */
static uint64_t make_congestion(struct maker *m)
{
	return PICK(&m->rng, HARP_CONGESTION_DEFAULT, HARP_CONGESTION_DEFAULT,
		    HARP_CONGESTION_NEWRENO, HARP_CONGESTION_CUBIC, HARP_CONGESTION_DCTCP,
		    HARP_CONGESTION_DELAY, HARP_CONGESTION_FIXED);
}

static uint64_t make_ecn(struct maker *m, uint64_t congestion)
{
	uint64_t ecn = PICK(&m->rng, HARP_ECN_DEFAULT, HARP_ECN_OFF, HARP_ECN_REQUEST);

	return congestion == HARP_CONGESTION_DCTCP && ecn == HARP_ECN_OFF ? HARP_ECN_DEFAULT : ecn;
}

static void make_world(struct maker *m)
{
	struct scn_world *w = &m->s->world;

	w->family = make_family(m);
	w->mtu_bytes = PICK(&m->rng, 1500, 1500, 1500, 3498, 9000, 1280);
	if (w->family == 4 && one_in(&m->rng, 6))
		w->mtu_bytes = 576;
	w->vlan_id = one_in(&m->rng, 4) ? 100 : 0;
	w->frame_bytes = PICK(&m->rng, 2048, 4096);
	w->frame_count = PICK(&m->rng, 512, 1024, 1024, 2048, 4096);
	w->packets_max = PICK(&m->rng, 8192, 8192, 8192, 64, 512);
	if (one_in(&m->rng, 2))
		w->complete_delay_ns = below64(&m->rng, 500 * US);
	m->s->stack_count = one_in(&m->rng, 2) ? 2 : 2 + below(&m->rng, SCN_STACKS_MAX - 1);
}

static void make_stack(struct maker *m, struct scn_stack *k)
{
	uint32_t badness = below(&m->rng, 4); /* 0: a good wire */

	k->path.delay_ns = 1 + below64(&m->rng, one_in(&m->rng, 8) ? 30 * MS : 100 * US);
	if (one_in(&m->rng, 2))
		k->path.rate_bps = 1000000000ull << below(&m->rng, 7);
	if (one_in(&m->rng, 4))
		k->path.jitter_ns = below(&m->rng, 20000);
	if (k->path.rate_bps && one_in(&m->rng, 3))
		k->path.queue_bytes = 20000 + below(&m->rng, 200000);
	if (k->path.rate_bps && one_in(&m->rng, 4))
		k->ecn_mark_bytes = 10000 + below(&m->rng, 60000);
	if (k->path.rate_bps && one_in(&m->rng, 3)) {
		k->inbound = 1;
		k->path.rate_bps = 100000000ull << below(&m->rng, 7);
		k->path.queue_bytes = 30000 + below(&m->rng, 200000);
	}
	k->poll_cost_ns = 100 + below(&m->rng, 3000);
	if (one_in(&m->rng, 4))
		k->poll_lag_ns = below64(&m->rng, one_in(&m->rng, 4) ? 3 * MS : 20 * US);
	k->eager = one_in(&m->rng, 8);
	if (badness == 0)
		return;
	k->path.loss_ppm = below(&m->rng, 50001) / (badness == 1 ? 10 : 1);
	if (one_in(&m->rng, 2))
		k->path.duplicate_ppm = below(&m->rng, 30000);
	if (one_in(&m->rng, 2)) {
		k->path.reorder_ppm = below(&m->rng, 50000);
		k->path.reorder_ns = below(&m->rng, 300000);
	}
	if (one_in(&m->rng, 2))
		k->path.corrupt_ppm = below(&m->rng, 10000);
}

static void make_listens(struct maker *m)
{
	struct scenario *s = m->s;

	for (unsigned stack = 0; stack < s->stack_count; stack++) {
		unsigned count = 1 + one_in(&m->rng, 3);

		for (unsigned i = 0; i < count; i++) {
			s->listens[s->listen_count++] = (struct scn_listen){
				.stack = stack,
				.port = 5000 + i,
				.rx_frames = PICK(&m->rng, 0, 8, 32, 64),
				.tx_frames = PICK(&m->rng, 0, 8, 32, 64),
				.backlog = m->can_restart && one_in(&m->rng, 4)
						   ? 1 + below(&m->rng, 4)
						   : 0,
				.keepalive_ns = m->can_restart || one_in(&m->rng, 4) ? 5 * S : 0,
				.congestion = make_congestion(m),
			};
			s->listens[s->listen_count - 1].ecn =
				make_ecn(m, s->listens[s->listen_count - 1].congestion);
		}
	}
}

static struct scn_side make_side(struct maker *m, uint32_t bytes_max)
{
	struct scn_side side = { .piece_bytes = PICK(&m->rng, 1, 64, 1000, 9000, 65000),
				 .send = below(&m->rng, 3),
				 .recv = below(&m->rng, 3) };

	if (!one_in(&m->rng, 8))
		side.bytes = below(&m->rng,
				   side.piece_bytes < 100 && bytes_max > 3000 ? 3000 : bytes_max);
	if (one_in(&m->rng, 3)) {
		side.stall_ppm = below(&m->rng, 200000);
		side.stall_ns = 1 + below(&m->rng, 50000000);
	}
	if (one_in(&m->rng, 10)) { /* the window stays closed for a long time */
		side.pause_at = below(&m->rng, 20000);
		side.pause_ns = below64(&m->rng, one_in(&m->rng, 4) ? 60 * S : S);
	}
	if (m->can_restart && one_in(&m->rng, 10))
		side.abort_at = 1 + below64(&m->rng, side.bytes + 1);
	if (one_in(&m->rng, 6))
		side.hold_ns = below64(&m->rng, one_in(&m->rng, 3) ? 100 * S : 100 * MS);
	if (one_in(&m->rng, 4))
		side.delayed_ack_ns = below64(&m->rng, one_in(&m->rng, 4) ? S / 2 : MS);
	return side;
}

static void make_conn(struct maker *m, struct scn_conn *c, uint32_t bytes_max)
{
	struct scenario *s = m->s;
	struct scn_side *a = &c->side[0], *b = &c->side[1];

	*a = make_side(m, bytes_max);
	*b = make_side(m, bytes_max);
	c->listen = below(&m->rng, s->listen_count);
	c->server = s->listens[c->listen].stack;
	c->client = (c->server + 1 + below(&m->rng, s->stack_count - 1)) % s->stack_count;
	c->kind = PICK(&m->rng, SCN_STREAM, SCN_STREAM, SCN_STREAM, SCN_RPC, SCN_HALF);
	if (one_in(&m->rng, 16))
		c->kind = SCN_SIMULTANEOUS;
	c->start_ns = one_in(&m->rng, 3) ? 0 : below64(&m->rng, m->horizon_ns);
	if (c->kind == SCN_RPC) {
		uint32_t message_max;

		c->rounds = 1 + below(&m->rng, 40);
		message_max = bytes_max / (uint32_t)c->rounds + 1;
		c->request_bytes = 1 + below(&m->rng, message_max);
		c->answer_bytes = 1 + below(&m->rng, message_max);
		a->bytes = c->rounds * c->request_bytes;
		b->bytes = c->rounds * c->answer_bytes;
		a->piece_bytes = b->piece_bytes = 9000;
	}
	c->rx_frames = PICK(&m->rng, 0, 8, 32, 64);
	c->tx_frames = PICK(&m->rng, 0, 8, 32, 64);
	if (one_in(&m->rng, 8))
		c->unsent_bytes_max = 1 + below(&m->rng, 100000);
	c->keepalive_ns = m->can_restart || one_in(&m->rng, 4) ? 5 * S : 0;
	if (m->can_restart && one_in(&m->rng, 8)) { /* short user timeout */
		c->user_timeout_ns = S + below64(&m->rng, 5 * S);
		c->keepalive_ns = S / 2;
	}
	c->congestion = make_congestion(m);
	c->ecn = make_ecn(m, c->congestion);
}

static void make_conns(struct maker *m)
{
	struct scenario *s = m->s;
	bool storm = one_in(&m->rng, 8);

	s->conn_count = storm ? 16 + below(&m->rng, SCN_CONNS_MAX - 15)
			      : 1 + below(&m->rng, one_in(&m->rng, 3) ? 16 : 6);
	for (unsigned i = 0; i < s->conn_count; i++) {
		struct scn_conn *c = &s->conns[i];

		make_conn(m, c, BYTES_MAX / 4 / s->conn_count);
		if (storm && i > 0 && !one_in(&m->rng, 4)) { /* a copy of the first connection */
			*c = s->conns[0];
			c->start_ns += below64(&m->rng, m->horizon_ns);
		}
		if (c->kind == SCN_SIMULTANEOUS)
			c->local_port = 2000 + i;
		else if (storm ? s->conns[0].local_port != 0 || one_in(&m->rng, 8)
			       : one_in(&m->rng, 16))
			c->local_port = 3000; /* the same four-tuple repeatedly */
	}
}

static void make_event(struct maker *m, struct scn_event *e)
{
	struct scn_stack stack = { 0 };

	e->kind = below(&m->rng, SCN_EVENT_KINDS);
	if (e->kind == SCN_RESTART && !m->can_restart)
		e->kind = SCN_DEGRADE;
	e->stack = below(&m->rng, m->s->stack_count);
	e->peer = (e->stack + 1 + below(&m->rng, m->s->stack_count - 1)) % m->s->stack_count;
	e->start_ns = below64(&m->rng, m->horizon_ns + m->horizon_ns / 2);
	e->duration_ns =
		1 + below64(&m->rng, PICK(&m->rng, 100 * US, MS, 10 * MS, 100 * MS, S, S, 20 * S));
	if (e->kind == SCN_DEGRADE) {
		make_stack(m, &stack);
		e->path = stack.path;
		e->path.loss_ppm *= PICK(&m->rng, 1, 1, 4);
		e->path.reorder_ppm *= PICK(&m->rng, 1, 1, 5);
		return;
	}
	if (m->outage_ns + e->duration_ns > OUTAGE_NS_MAX)
		e->duration_ns = 1 + below64(&m->rng, MS);
	m->outage_ns += e->duration_ns;
	e->one_way = e->kind == SCN_CUT && one_in(&m->rng, 3);
	e->count = e->kind == SCN_RING ? below(&m->rng, 20) : 0;
}

static void make_events(struct maker *m)
{
	struct scenario *s = m->s;

	if (one_in(&m->rng, 3))
		return;
	s->event_count = 1 + below(&m->rng, 6);
	for (unsigned i = 0; i < s->event_count; i++)
		make_event(m, &s->events[i]);
	if (one_in(&m->rng, 6)) { /* a flapping link */
		struct scn_event flap = s->events[0];
		uint64_t period_ns = 1 + below64(&m->rng, PICK(&m->rng, MS, 50 * MS, S));

		flap.kind = SCN_DOWN;
		flap.duration_ns = 1 + below64(&m->rng, period_ns);
		for (unsigned i = 0; i < 10; i++) {
			flap.start_ns += period_ns;
			s->events[s->event_count++] = flap;
		}
	}
}

/* Offloads of the NICs. Drawn last, so that older seeds keep the rest of their scenarios. */
static void make_cards(struct maker *m)
{
	struct scn_world *w = &m->s->world;

	if (one_in(&m->rng, 3))
		return;
	w->offloads = PICK(&m->rng, 0, HARP_NIC_TX_CSUM, HARP_NIC_TX_CSUM | HARP_NIC_TX_TSO,
			   HARP_NIC_TX_CSUM | HARP_NIC_TX_TSO);
	w->external_count = PICK(&m->rng, 0, 24, 64, 512, 4096);
	w->tx_frags = PICK(&m->rng, 0, 2, 17, 48, 64);
	for (unsigned i = 0; i < m->s->conn_count && w->external_count; i++) {
		for (unsigned side = 0; side < 2; side++) {
			if (!one_in(&m->rng, 3))
				m->s->conns[i].side[side].send = SCN_SEND_EXTERNAL;
		}
	}
}

void scenario_make(struct scenario *s, uint64_t seed)
{
	struct maker m = { .s = s };

	memset(s, 0, sizeof(*s));
	s->world.seed = seed;
	rng_seed(&m.rng, seed);
	m.can_restart = one_in(&m.rng, 4);
	m.horizon_ns = PICK(&m.rng, MS, 10 * MS, 100 * MS, S, 10 * S);
	make_world(&m);
	for (unsigned i = 0; i < s->stack_count; i++)
		make_stack(&m, &s->stacks[i]);
	make_listens(&m);
	make_conns(&m);
	make_events(&m);
	make_cards(&m);
}
