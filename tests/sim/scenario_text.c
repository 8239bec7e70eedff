/* SPDX-License-Identifier: Apache-2.0 */
/* scenario_text.c - what a scenario consists of, for text and shrinker, and whether it makes sense. */
#include "scenario.h"

#include <string.h>

static const struct scn_field text_world[] = { SCN_WORLD(SCN_FIELD) };
static const struct scn_field text_stack[] = { SCN_STACK(SCN_FIELD) };
static const struct scn_field text_listen[] = { SCN_LISTEN(SCN_FIELD) };
static const struct scn_field text_conn[] = { SCN_CONN(SCN_FIELD) };
static const struct scn_field text_event[] = { SCN_EVENT(SCN_FIELD) };

static const struct scn_kind text_kinds[] = {
	SCN_KIND(struct scenario, "world", text_world, 1, world, 0),
	SCN_KIND(struct scenario, "stack", text_stack, SCN_STACKS_MAX, stacks,
		 offsetof(struct scenario, stack_count)),
	SCN_KIND(struct scenario, "listen", text_listen, SCN_LISTENS_MAX, listens,
		 offsetof(struct scenario, listen_count)),
	SCN_KIND(struct scenario, "conn", text_conn, SCN_CONNS_MAX, conns,
		 offsetof(struct scenario, conn_count)),
	SCN_KIND(struct scenario, "event", text_event, SCN_EVENTS_MAX, events,
		 offsetof(struct scenario, event_count)),
};

static const char *const text_event_names[SCN_EVENT_KINDS] = { "impair", "stall",   "down",
							       "cut",    "restart", "ring",
							       "starve", "complete" };

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
			return "a listener on no stack";
	}
	for (unsigned i = 0; i < s->conn_count; i++) {
		const struct scn_conn *c = &s->conns[i];

		if (c->client >= s->stack_count || c->server >= s->stack_count ||
		    c->client == c->server)
			return "a connection that joins no two stacks";
		if (c->kind != SCN_SIMULTANEOUS &&
		    (c->listen >= s->listen_count || s->listens[c->listen].stack != c->server))
			return "a connection to no listener";
		if (c->kind == SCN_RPC && (c->request_bytes == 0 || c->answer_bytes == 0))
			return "requests or answers without bytes";
	}
	for (unsigned i = 0; i < s->event_count; i++) {
		const struct scn_event *e = &s->events[i];

		if (e->kind >= SCN_EVENT_KINDS || e->stack >= s->stack_count ||
		    e->peer >= s->stack_count)
			return "an event of no kind or on no stack";
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
