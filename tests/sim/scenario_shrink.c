/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenario_shrink.c - a failing scenario made smaller, while it fails.
 *
 * First elements go, in halves, quarters and so on down to one by one (delta debugging): events, then
 * connections, then listeners and stacks that nobody uses. Then every number tries its simple value,
 * and zero, and half. Rounds repeat until one changes nothing.
 */
#include "scenario.h"

#include <stdlib.h>
#include <string.h>

struct shrink {
	struct scenario *best;
	struct scenario trial;
	bool (*fails)(const struct scenario *s, void *ctx);
	void *ctx;
	unsigned tries, tries_max;
};

/* Keeps the trial when it still fails. */
static bool shrink_try(struct shrink *k)
{
	if (k->tries >= k->tries_max || scenario_check(&k->trial))
		return false;
	k->tries++;
	if (!k->fails(&k->trial, k->ctx))
		return false;
	*k->best = k->trial;
	return true;
}

static void shrink_cut(struct scenario *s, const struct scn_kind *kind, unsigned from, unsigned n)
{
	unsigned *count = scn_count(s, kind);

	memmove(scn_element(s, kind, from), scn_element(s, kind, from + n),
		(*count - from - n) * kind->size);
	*count -= n;
	memset(scn_element(s, kind, *count), 0, n * kind->size);
}

static bool shrink_elements(struct shrink *k, const struct scn_kind *kind)
{
	bool smaller = false;

	for (unsigned n = *scn_count(k->best, kind); n > 0; n /= 2) {
		for (unsigned from = 0; from + n <= *scn_count(k->best, kind);) {
			k->trial = *k->best;
			shrink_cut(&k->trial, kind, from, n);
			if (shrink_try(k))
				smaller = true;
			else
				from += n;
		}
	}
	return smaller;
}

static const struct scn_kind *shrink_kind(const char *name)
{
	for (unsigned i = 0; i < scn_kind_count; i++) {
		if (strcmp(scn_kinds[i].name, name) == 0)
			return &scn_kinds[i];
	}
	abort();
}

static void shrink_renumber(uint64_t *reference, uint64_t gone)
{
	*reference -= *reference > gone;
}

static bool shrink_listens(struct shrink *k)
{
	bool smaller = false;

	for (unsigned i = k->best->listen_count; i-- > 0;) {
		bool used = false;

		for (unsigned c = 0; c < k->best->conn_count; c++)
			used |= k->best->conns[c].listen == i;
		if (used)
			continue;
		k->trial = *k->best;
		shrink_cut(&k->trial, shrink_kind("listen"), i, 1);
		for (unsigned c = 0; c < k->trial.conn_count; c++)
			shrink_renumber(&k->trial.conns[c].listen, i);
		smaller |= shrink_try(k);
	}
	return smaller;
}

static bool shrink_stacks(struct shrink *k)
{
	bool smaller = false;

	for (unsigned i = k->best->stack_count; i-- > 0;) {
		struct scenario *t = &k->trial;

		*t = *k->best;
		shrink_cut(t, shrink_kind("stack"), i, 1);
		/* What refers to it refers to the next one, and the check refuses nonsense. */
		for (unsigned c = 0; c < t->conn_count; c++) {
			shrink_renumber(&t->conns[c].client, i);
			shrink_renumber(&t->conns[c].server, i);
		}
		for (unsigned l = 0; l < t->listen_count; l++)
			shrink_renumber(&t->listens[l].stack, i);
		for (unsigned e = 0; e < t->event_count; e++) {
			shrink_renumber(&t->events[e].stack, i);
			shrink_renumber(&t->events[e].peer, i);
		}
		smaller |= shrink_try(k);
	}
	return smaller;
}

static bool shrink_number(struct shrink *k, size_t at, uint64_t simple)
{
	uint64_t *best = (uint64_t *)(void *)((char *)k->best + at);
	uint64_t *trial = (uint64_t *)(void *)((char *)&k->trial + at);
	bool smaller = false;

	if (*best == simple || *best == 0 || simple == SCN_KEEP)
		return false;
	k->trial = *k->best;
	*trial = simple;
	if (shrink_try(k))
		return true;
	*trial = 0;
	if (shrink_try(k))
		return true;
	while (*best / 2 > simple) {
		k->trial = *k->best;
		*trial = *best / 2;
		if (!shrink_try(k))
			return smaller;
		smaller = true;
	}
	return smaller;
}

static bool shrink_numbers(struct shrink *k)
{
	bool smaller = false;

	for (unsigned n = 0; n < scn_kind_count; n++) {
		const struct scn_kind *kind = &scn_kinds[n];
		unsigned count = kind->count_at ? *scn_count(k->best, kind) : 1;

		for (unsigned i = 0; i < count; i++) {
			for (unsigned f = 0; f < kind->field_count; f++)
				smaller |= shrink_number(k, kind->at + i * kind->size + f * 8,
							 kind->fields[f].simple);
		}
	}
	return smaller;
}

unsigned scenario_shrink(struct scenario *s, bool (*fails)(const struct scenario *s, void *ctx),
			 void *ctx, unsigned tries_max)
{
	static struct shrink k; /* large */
	bool smaller = true;

	k = (struct shrink){ .best = s, .fails = fails, .ctx = ctx, .tries_max = tries_max };
	while (smaller && k.tries < k.tries_max) {
		smaller = shrink_elements(&k, shrink_kind("event"));
		smaller |= shrink_elements(&k, shrink_kind("conn"));
		smaller |= shrink_listens(&k);
		smaller |= shrink_stacks(&k);
		smaller |= shrink_numbers(&k);
	}
	return k.tries;
}
