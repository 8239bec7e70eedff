/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - tables of figures that repeat, kept as text: written by `make tables`, compared by the tests.
 *
 * "== " begins a table, a line that does not begin with a space a part of it.
 */
#ifndef HARP_TESTS_TABLE_H
#define HARP_TESTS_TABLE_H

#define TABLE_MAX 65536u

/* Both return what main() does. */
int table_update(const char *path, const char *text);
/* Prints the lines that differ, with the headings they stand under. */
int table_check(const char *path, const char *text);

#endif
