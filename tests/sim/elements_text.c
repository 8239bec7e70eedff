/* SPDX-License-Identifier: Apache-2.0 */
/* elements_text.c - a scenario as text and back: "conn client=0 server=1 c_bytes=3000". */
#include "elements.h"

#include <stdlib.h>
#include <string.h>

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

bool elements_read(const struct scn_layout *layout, void *s, FILE *from, char *why, size_t why_len)
{
	char line[4096];
	unsigned number = 0;
	const char *wrong = NULL;

	memset(s, 0, layout->size);
	while (!wrong && fgets(line, sizeof(line), from)) {
		char *comment = strchr(line, '#');

		if (comment)
			*comment = 0;
		number++;
		wrong = text_line(layout, s, line);
	}
	if (!wrong)
		wrong = layout->check(s);
	if (wrong)
		snprintf(why, why_len, "line %u: %s", number, wrong);
	return !wrong;
}
