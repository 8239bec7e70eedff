/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - reads the layout file. Its lines are "field NAME OFFSET BITS" (both in bits) or
 * "number NAME=VALUE". It has only the fields of that NCCL version; using others ends the process.
 */
#include "layout.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "emulation.h"

struct layout layout = {
#define X(id, text) .id = { .name = (text) },
	LAYOUT_FIELDS(X)
#undef X
#define X(id, text) .id = LAYOUT_ABSENT,
		LAYOUT_NUMBERS(X)
#undef X
};

static void layout_set_field(const char *name, unsigned offset_bits, unsigned bits)
{
#define X(id, text)                                                                                \
	if (!strcmp(name, text))                                                                   \
		layout.id = (struct field){ (text), offset_bits, bits };
	LAYOUT_FIELDS(X)
#undef X
}

static void layout_set_number(const char *name, long value)
{
#define X(id, text)                                                                                \
	if (!strcmp(name, text))                                                                   \
		layout.id = value;
	LAYOUT_NUMBERS(X)
#undef X
}

void layout_load(const char *path)
{
	char line[256], name[128];
	unsigned offset_bits, bits;
	long value;
	FILE *file = fopen(path, "re");

	if (!file)
		emulation_fail("%s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "field %127s %u %u", name, &offset_bits, &bits) == 3)
			layout_set_field(name, offset_bits, bits);
		else if (sscanf(line, "number %127[^=]=%ld", name, &value) == 2)
			layout_set_number(name, value);
		else
			emulation_fail("%s: invalid line: %s", path, line);
	}
	fclose(file);
}

static void field_require(struct field field)
{
	if (!field_exists(field))
		emulation_fail("NCCL %d has no field %s, which the emulation needs",
			       library_version(), field.name);
}

char *field_at(const void *base, struct field field)
{
	field_require(field);
	return (char *)memory_view(base) + field.offset_bits / 8;
}

uint64_t field_value(const void *base, struct field field)
{
	unsigned shift = field.offset_bits % 8;
	uint64_t value = 0;

	memcpy(&value, field_at(base, field), (shift + field.bits + 7) / 8);
	value >>= shift;
	return field.bits < 64 ? value & ((UINT64_C(1) << field.bits) - 1) : value;
}

void *field_pointer(const void *base, struct field field)
{
	return (void *)(uintptr_t)field_value(base, field);
}

int field_int(const void *base, struct field field)
{
	return (int)field_value(base, field);
}

void field_set(const void *base, struct field field, uint64_t value)
{
	memcpy(field_at(base, field), &value, field.bits / 8);
}
