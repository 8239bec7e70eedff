/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elements_shrink.c - a failing scenario made smaller, while it fails.
 *
 * First elements go: those without references to them, in halves, quarters and so on down to one by one (delta
 * debugging), then the others, one by one, without and with what refers to them. Then every number tries its simple value, and
 * zero, and half. Rounds repeat until one changes nothing.
 */
#include "elements.h"

#include <stdlib.h>
#include <string.h>

struct shrink {
	const struct scn_layout *layout;
	void *best, *trial;
	bool (*fails)(const void *s);
	unsigned tries, tries_max;
};

static void shrink_begin(struct shrink *k)
{
	memcpy(k->trial, k->best, k->layout->size);
}

/* Keeps the trial when it still fails. */
static bool shrink_try(struct shrink *k)
{
	if (k->tries >= k->tries_max || k->layout->check(k->trial))
		return false;
	k->tries++;
	if (!k->fails(k->trial))
		return false;
	memcpy(k->best, k->trial, k->layout->size);
	return true;
}

static void shrink_cut(void *s, const struct scn_kind *kind, unsigned from, unsigned n)
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
			shrink_begin(k);
			shrink_cut(k->trial, kind, from, n);
			if (shrink_try(k))
				smaller = true;
			else
				from += n;
		}
	}
	return smaller;
}

/* Fields of any element that are numbers of elements of the kind. With gone: what refers behind it is
 * renumbered; what refers to it refers to the next one, and the check refuses nonsense. */
static unsigned shrink_references(struct shrink *k, unsigned referred, const unsigned *gone)
{
	unsigned references = 0;

	for (unsigned n = 0; n < k->layout->kind_count; n++) {
		const struct scn_kind *kind = &k->layout->kinds[n];
		unsigned count = kind->count_at ? *scn_count(k->trial, kind) : 1;

		for (unsigned f = 0; f < kind->field_count; f++) {
			if (kind->fields[f].simple != SCN_REF(referred))
				continue;
			references++;
			for (unsigned i = 0; gone && i < count; i++) {
				uint64_t *value = scn_element(k->trial, kind, i) + f;

				*value -= *value > *gone;
			}
		}
	}
	return references;
}

/* With all that refers to it. */
static void shrink_cut_deep(struct shrink *k, unsigned referred, unsigned gone)
{
	for (unsigned n = k->layout->kind_count; n-- > 0;) {
		const struct scn_kind *kind = &k->layout->kinds[n];

		for (unsigned f = 0; f < kind->field_count && kind->count_at; f++) {
			if (kind->fields[f].simple != SCN_REF(referred))
				continue;
			for (unsigned i = *scn_count(k->trial, kind); i-- > 0;) {
				if (scn_element(k->trial, kind, i)[f] == gone)
					shrink_cut_deep(k, n, i);
			}
		}
	}
	shrink_cut(k->trial, &k->layout->kinds[referred], gone, 1);
	shrink_references(k, referred, &gone);
}

static bool shrink_referred(struct shrink *k, unsigned referred)
{
	const struct scn_kind *kind = &k->layout->kinds[referred];
	bool smaller = false;

	for (unsigned i = *scn_count(k->best, kind); i-- > 0;) {
		shrink_begin(k);
		shrink_cut(k->trial, kind, i, 1);
		shrink_references(k, referred, &i);
		if (shrink_try(k)) {
			smaller = true;
			continue;
		}
		shrink_begin(k);
		shrink_cut_deep(k, referred, i);
		smaller |= shrink_try(k);
	}
	return smaller;
}

static bool shrink_number(struct shrink *k, size_t at, uint64_t simple)
{
	uint64_t *best = (uint64_t *)(void *)((char *)k->best + at);
	uint64_t *trial = (uint64_t *)(void *)((char *)k->trial + at);
	bool smaller = false;

	if (*best == simple || *best == 0 || simple >= SCN_REF(SCN_REFS_MAX))
		return false;
	shrink_begin(k);
	*trial = simple;
	if (shrink_try(k))
		return true;
	*trial = 0;
	if (shrink_try(k))
		return true;
	while (*best / 2 > simple) {
		shrink_begin(k);
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

	for (unsigned n = 0; n < k->layout->kind_count; n++) {
		const struct scn_kind *kind = &k->layout->kinds[n];
		unsigned count = kind->count_at ? *scn_count(k->best, kind) : 1;

		for (unsigned i = 0; i < count; i++) {
			for (unsigned f = 0; f < kind->field_count; f++)
				smaller |= shrink_number(k, kind->at + i * kind->size + f * 8,
							 kind->fields[f].simple);
		}
	}
	return smaller;
}

unsigned elements_shrink(const struct scn_layout *layout, void *scenario,
			 bool (*fails)(const void *scenario), unsigned tries_max)
{
	struct shrink k = {
		.layout = layout, .best = scenario, .fails = fails, .tries_max = tries_max
	};
	bool smaller = true;

	k.trial = malloc(layout->size);
	if (!k.trial)
		abort();
	while (smaller && k.tries < k.tries_max) {
		smaller = false;
		for (unsigned n = layout->kind_count; n-- > 0;) {
			shrink_begin(&k);
			if (!layout->kinds[n].count_at)
				continue;
			if (shrink_references(&k, n, NULL))
				smaller |= shrink_referred(&k, n);
			else
				smaller |= shrink_elements(&k, &layout->kinds[n]);
		}
		smaller |= shrink_numbers(&k);
	}
	free(k.trial);
	return k.tries;
}
