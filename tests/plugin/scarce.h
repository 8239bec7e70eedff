/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scarce.h - counts the calls of HARP's libraries to the C library and the kernel, and lets the test's choice of them fail.
 *
 * The functions that they call are defined here, in the program, where the loader looks first. Only calls from
 * files whose name has "harp" in it are counted, and only those can be refused.
 */
#ifndef HARP_TESTS_PLUGIN_SCARCE_H
#define HARP_TESTS_PLUGIN_SCARCE_H

#include <stdbool.h>

/* Resources that run out together. */
enum scarce_kind {
	SCARCE_MEMORY = 1,
	SCARCE_DESCRIPTORS = 2,
	SCARCE_THREADS = 4,
	SCARCE_CALLS = 8
};

/* From here on call number `at` (from 1) fails, and if for_good, every later one of its kind. */
void scarce_begin(unsigned at, bool for_good);
/* No call is refused any more. */
void scarce_end(void);
/* The one that was refused, and where it was called; "" when it has not come to that. */
const char *scarce_refused(void);
/* Blocks that were allocated since scarce_begin() and not freed; prints the caller of each. */
unsigned scarce_leaks(void);

#endif
