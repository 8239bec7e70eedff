/* SPDX-License-Identifier: Apache-2.0 */
/* scenario_text.c - a scenario as text and back: "conn client=0 server=1 c_bytes=3000". */
#include "scenario.h"

#include <stdlib.h>
#include <string.h>

#define SCN_FIELD(name, simple) { #name, simple },
static const struct scn_field text_world[] = { SCN_WORLD(SCN_FIELD) };
static const struct scn_field text_stack[] = { SCN_STACK(SCN_FIELD) };
static const struct scn_field text_listen[] = { SCN_LISTEN(SCN_FIELD) };
static const struct scn_field text_conn[] = { SCN_CONN(SCN_FIELD) };
static const struct scn_field text_event[] = { SCN_EVENT(SCN_FIELD) };
#undef SCN_FIELD

#define TEXT_KIND(word, list, limit, first, number)                                                \
	{                                                                                          \
		.name = word, .fields = list, .field_count = sizeof(list) / sizeof(list[0]),       \
		.max = limit, .size = sizeof(list) / sizeof(list[0]) * sizeof(uint64_t),           \
		.at = offsetof(struct scenario, first), .count_at = number                         \
	}
const struct scn_kind scn_kinds[] = {
	TEXT_KIND("world", text_world, 1, world, 0),
	TEXT_KIND("stack", text_stack, SCN_STACKS_MAX, stacks,
		  offsetof(struct scenario, stack_count)),
	TEXT_KIND("listen", text_listen, SCN_LISTENS_MAX, listens,
		  offsetof(struct scenario, listen_count)),
	TEXT_KIND("conn", text_conn, SCN_CONNS_MAX, conns, offsetof(struct scenario, conn_count)),
	TEXT_KIND("event", text_event, SCN_EVENTS_MAX, events,
		  offsetof(struct scenario, event_count)),
};
const unsigned scn_kind_count = sizeof(scn_kinds) / sizeof(scn_kinds[0]);

static const char *const text_event_names[SCN_EVENT_KINDS] = { "impair", "stall",   "down",
							       "cut",    "restart", "ring",
							       "starve", "complete" };

void scenario_print(const struct scenario *scenario, FILE *to)
{
	struct scenario *s = (struct scenario *)(uintptr_t)scenario; /* scn_element() reads only */

	for (unsigned k = 0; k < scn_kind_count; k++) {
		const struct scn_kind *kind = &scn_kinds[k];
		unsigned count = kind->count_at ? *scn_count(s, kind) : 1;

		for (unsigned i = 0; i < count; i++) {
			const uint64_t *values = scn_element(s, kind, i);

			fprintf(to, "%s", kind->name);
			for (unsigned f = 0; f < kind->field_count; f++) {
				if (values[f])
					fprintf(to, " %s=%llu", kind->fields[f].name,
						(unsigned long long)values[f]);
			}
			if (kind->count_at)
				fprintf(to, " # %u", i);
			if (strcmp(kind->name, "event") == 0 && values[0] < SCN_EVENT_KINDS)
				fprintf(to, " %s", text_event_names[values[0]]);
			fprintf(to, "\n");
		}
	}
}

static bool text_field(const struct scn_kind *kind, uint64_t *values, char *word)
{
	char *equals = strchr(word, '='), *end;

	if (!equals)
		return false;
	*equals = 0;
	for (unsigned f = 0; f < kind->field_count; f++) {
		if (strcmp(kind->fields[f].name, word) == 0) {
			values[f] = strtoull(equals + 1, &end, 0);
			return end != equals + 1 && *end == 0;
		}
	}
	return false;
}

static const char *text_line(struct scenario *s, char *line)
{
	char *save, *word = strtok_r(line, " \t\n", &save);
	const struct scn_kind *kind = NULL;
	uint64_t *values;

	if (!word)
		return NULL;
	for (unsigned k = 0; k < scn_kind_count && !kind; k++)
		kind = strcmp(scn_kinds[k].name, word) == 0 ? &scn_kinds[k] : NULL;
	if (!kind)
		return "no such element";
	if (kind->count_at && *scn_count(s, kind) == kind->max)
		return "too many of them";
	values = scn_element(s, kind, kind->count_at ? (*scn_count(s, kind))++ : 0);
	while ((word = strtok_r(NULL, " \t\n", &save)) != NULL) {
		if (!text_field(kind, values, word))
			return "a field that this element does not have, or no number";
	}
	return NULL;
}

bool scenario_read(struct scenario *s, FILE *from, char *why, size_t why_len)
{
	char line[4096];
	unsigned number = 0;
	const char *wrong = NULL;

	memset(s, 0, sizeof(*s));
	while (!wrong && fgets(line, sizeof(line), from)) {
		char *comment = strchr(line, '#');

		if (comment)
			*comment = 0;
		number++;
		wrong = text_line(s, line);
	}
	if (!wrong)
		wrong = scenario_check(s);
	if (wrong)
		snprintf(why, why_len, "line %u: %s", number, wrong);
	return !wrong;
}

const char *scenario_check(const struct scenario *s)
{
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
