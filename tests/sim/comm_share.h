/* SPDX-License-Identifier: Apache-2.0 */
/* comm_share.h - what a slow lane costs the others, as a table; see comm_share.c. */
#ifndef HARP_TESTS_COMM_SHARE_H
#define HARP_TESTS_COMM_SHARE_H

#include <stdbool.h>

/* Writes or compares the table. Returns what main() does. */
int comm_share(const char *path, bool update);

#endif
