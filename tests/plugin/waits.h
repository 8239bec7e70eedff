/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waits.h - notices when a call of the plugin may wait.
 *
 * The program defines functions of the C library that the plugin calls, as harness.c does with the
 * clock.
 */
#ifndef HARP_TESTS_PLUGIN_WAITS_H
#define HARP_TESTS_PLUGIN_WAITS_H

/* From here on the calling thread must not wait; functions that may wait are recorded. */
void waits_begin(void);
/* The first such function since then; NULL: none. */
const char *waits_end(void);
/* As OK(), and the call must not wait. */
#define OK_AT_ONCE(call)                                                                           \
	do {                                                                                       \
		enum nccl_result once_result;                                                      \
		const char *once_waits;                                                            \
		waits_begin();                                                                     \
		once_result = (call);                                                              \
		once_waits = waits_end();                                                          \
		if (once_waits)                                                                    \
			fail(__FILE__, __LINE__, "%s may wait in %s", #call, once_waits);          \
		OK(once_result);                                                                   \
	} while (0)

#endif
