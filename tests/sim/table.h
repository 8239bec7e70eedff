/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - tables of reproducible figures, kept as text files: `make tables` writes them, the
 * tests compare.
 *
 * "== " begins a table; a line that does not begin with a space begins a part of it.
 */
#ifndef HARP_TESTS_TABLE_H
#define HARP_TESTS_TABLE_H

#define TABLE_MAX 65536u

/* Both return the exit status for main(). */
int table_update(const char *path, const char *text);
/* Prints the lines that differ, with their headings. */
int table_check(const char *path, const char *text);

#endif
