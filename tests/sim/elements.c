/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elements.c - prints and parses scenarios as text, "conn client=0 server=1 c_bytes=3000", and
 * shrinks a scenario while it still fails.
 *
 * The shrinker removes one element after the other, without and with the elements that refer to it.
 * Then it tries for each number its simple value, zero, and half. Rounds repeat until one changes
 * nothing.
 */
#include "elements.h"

#include <stdlib.h>
#include <string.h>

/* ---- text ------------------------------------------------------------------------------------ */

void elements_print(const struct scn_layout *layout, const void *scenario, FILE *to)
{
	void *s = (void *)(uintptr_t)scenario; /* scn_element() reads only */

	for (unsigned k = 0; k < layout->kind_count; k++) {
		const struct scn_kind *kind = &layout->kinds[k];
		unsigned count = kind->count_at ? *scn_count(s, kind) : 1;

		for (unsigned i = 0; i < count; i++) {
			const uint64_t *values = scn_element(s, kind, i);
			const char *remark = layout->remark ? layout->remark(kind, values) : NULL;

			fprintf(to, "%s", kind->name);
			for (unsigned f = 0; f < kind->field_count; f++) {
				if (values[f])
					fprintf(to, " %s=%llu", kind->fields[f].name,
						(unsigned long long)values[f]);
			}
			if (kind->count_at)
				fprintf(to, " # %u", i);
			if (remark)
				fprintf(to, " %s", remark);
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

static const char *text_line(const struct scn_layout *layout, void *s, char *line)
{
	char *save, *word = strtok_r(line, " \t\n", &save);
	const struct scn_kind *kind = NULL;
	uint64_t *values;

	if (!word)
		return NULL;
	for (unsigned k = 0; k < layout->kind_count && !kind; k++)
		kind = strcmp(layout->kinds[k].name, word) == 0 ? &layout->kinds[k] : NULL;
	if (!kind)
		return "unknown element";
	if (kind->count_at && *scn_count(s, kind) == kind->max)
		return "too many of these elements";
	values = scn_element(s, kind, kind->count_at ? (*scn_count(s, kind))++ : 0);
	while ((word = strtok_r(NULL, " \t\n", &save)) != NULL) {
		if (!text_field(kind, values, word))
			return "an unknown field, or a value that is not a number";
	}
	return NULL;
}

bool elements_read(const struct scn_layout *layout, void *s, FILE *from, char *why, size_t why_len)
{
	char line[4096];
	unsigned number = 0;
	const char *problem = NULL;

	memset(s, 0, layout->size);
	while (!problem && fgets(line, sizeof(line), from)) {
		char *comment = strchr(line, '#');

		if (comment)
			*comment = 0;
		number++;
		problem = text_line(layout, s, line);
	}
	if (!problem)
		problem = layout->check(s);
	if (problem)
		snprintf(why, why_len, "line %u: %s", number, problem);
	return !problem;
}

/* ---- shrinking ------------------------------------------------------------------------------- */

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

static void shrink_cut(void *s, const struct scn_kind *kind, unsigned at)
{
	unsigned *count = scn_count(s, kind);

	(*count)--;
	memmove(scn_element(s, kind, at), scn_element(s, kind, at + 1), (*count - at) * kind->size);
	memset(scn_element(s, kind, *count), 0, kind->size);
}

/* Renumbers all references to elements of the kind `target` behind `index`. A reference to `index`
 * then refers to the next element, which the check may reject. Returns the number of such
 * fields. */
static unsigned shrink_references(struct shrink *k, unsigned target, unsigned index)
{
	unsigned references = 0;

	for (unsigned n = 0; n < k->layout->kind_count; n++) {
		const struct scn_kind *kind = &k->layout->kinds[n];
		unsigned count = kind->count_at ? *scn_count(k->trial, kind) : 1;

		for (unsigned f = 0; f < kind->field_count; f++) {
			if (kind->fields[f].simple != SCN_REF(target))
				continue;
			references++;
			for (unsigned i = 0; i < count; i++) {
				uint64_t *value = scn_element(k->trial, kind, i) + f;

				*value -= *value > index;
			}
		}
	}
	return references;
}

/* Removes an element and all elements that refer to it. */
static void shrink_cut_deep(struct shrink *k, unsigned target, unsigned index)
{
	for (unsigned n = k->layout->kind_count; n-- > 0;) {
		const struct scn_kind *kind = &k->layout->kinds[n];

		for (unsigned f = 0; f < kind->field_count && kind->count_at; f++) {
			if (kind->fields[f].simple != SCN_REF(target))
				continue;
			for (unsigned i = *scn_count(k->trial, kind); i-- > 0;) {
				if (scn_element(k->trial, kind, i)[f] == index)
					shrink_cut_deep(k, n, i);
			}
		}
	}
	shrink_cut(k->trial, &k->layout->kinds[target], index);
	(void)shrink_references(k, target, index);
}

static bool shrink_elements(struct shrink *k, unsigned n)
{
	const struct scn_kind *kind = &k->layout->kinds[n];
	bool has_shrunk = false;

	for (unsigned i = *scn_count(k->best, kind); i-- > 0;) {
		unsigned references;

		shrink_begin(k);
		shrink_cut(k->trial, kind, i);
		references = shrink_references(k, n, i);
		if (shrink_try(k)) {
			has_shrunk = true;
		} else if (references) {
			shrink_begin(k);
			shrink_cut_deep(k, n, i);
			has_shrunk |= shrink_try(k);
		}
	}
	return has_shrunk;
}

static bool shrink_number(struct shrink *k, size_t at, uint64_t simple)
{
	uint64_t *best = (uint64_t *)(void *)((char *)k->best + at);
	uint64_t *trial = (uint64_t *)(void *)((char *)k->trial + at);
	bool has_shrunk = false;

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
			return has_shrunk;
		has_shrunk = true;
	}
	return has_shrunk;
}

static bool shrink_numbers(struct shrink *k)
{
	bool has_shrunk = false;

	for (unsigned n = 0; n < k->layout->kind_count; n++) {
		const struct scn_kind *kind = &k->layout->kinds[n];
		unsigned count = kind->count_at ? *scn_count(k->best, kind) : 1;

		for (unsigned i = 0; i < count; i++) {
			for (unsigned f = 0; f < kind->field_count; f++)
				has_shrunk |= shrink_number(k, kind->at + i * kind->size + f * 8,
							    kind->fields[f].simple);
		}
	}
	return has_shrunk;
}

unsigned elements_shrink(const struct scn_layout *layout, void *scenario,
			 bool (*fails)(const void *scenario), unsigned tries_max)
{
	struct shrink k = {
		.layout = layout, .best = scenario, .fails = fails, .tries_max = tries_max
	};
	bool has_shrunk = true;

	k.trial = malloc(layout->size);
	if (!k.trial)
		abort();
	while (has_shrunk && k.tries < k.tries_max) {
		has_shrunk = false;
		for (unsigned n = layout->kind_count; n-- > 0;) {
			if (layout->kinds[n].count_at)
				has_shrunk |= shrink_elements(&k, n);
		}
		has_shrunk |= shrink_numbers(&k);
	}
	free(k.trial);
	return k.tries;
}
