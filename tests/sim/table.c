/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - see table.h. */
#include "table.h"

#include <stdio.h>
#include <string.h>

int table_update(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
		perror(path);
		return 2;
	}
	printf("%s written\n", path);
	return 0;
}

int table_check(const char *path, const char *text)
{
	static char old[TABLE_MAX];
	FILE *file = fopen(path, "r");
	const char *a, *b, *next_a, *next_b;
	char table[64] = "", heading[64] = "";
	unsigned differences = 0;

	if (!file) {
		perror(path);
		return 2;
	}
	old[fread(old, 1, sizeof(old) - 1, file)] = 0;
	fclose(file);
	for (a = old, b = text; *a || *b; a = next_a, b = next_b) {
		size_t len_a = strcspn(a, "\n"), len_b = strcspn(b, "\n");

		next_a = a + len_a + (a[len_a] != 0);
		next_b = b + len_b + (b[len_b] != 0);
		if (strncmp(b, "== ", 3) == 0)
			snprintf(table, sizeof(table), "%.*s", (int)len_b - 3, b + 3);
		else if (*b && *b != ' ' && len_b > 0)
			snprintf(heading, sizeof(heading), "%.*s", (int)len_b, b);
		if (len_a == len_b && memcmp(a, b, len_a) == 0)
			continue;
		printf("%s: %s\n  was %.*s\n  is  %.*s\n", table, heading, (int)len_a, a,
		       (int)len_b, b);
		differences++;
	}
	if (differences)
		printf("%u lines differ. If this is intended, run: make tables\n", differences);
	return differences ? 1 : 0;
}
