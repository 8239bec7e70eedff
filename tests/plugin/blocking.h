/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocking.h - detects calls of the plugin that may block.
 *
 * The program overrides functions of the C library that the plugin calls, as harness.c does for the
 * clock.
 */
#ifndef HARP_TESTS_PLUGIN_BLOCKING_H
#define HARP_TESTS_PLUGIN_BLOCKING_H

/* Starts to record the calling thread's calls of functions that may block. */
void blocking_begin(void);
/* Stops; returns the first such function, or NULL. */
const char *blocking_end(void);
/* Like OK(), and the call must not block. */
#define OK_NONBLOCKING(call)                                                                       \
	do {                                                                                       \
		enum nccl_result once_result;                                                      \
		const char *once_blocked;                                                          \
		blocking_begin();                                                                  \
		once_result = (call);                                                              \
		once_blocked = blocking_end();                                                     \
		if (once_blocked)                                                                  \
			fail(__FILE__, __LINE__, "%s may block in %s", #call, once_blocked);       \
		OK(once_result);                                                                   \
	} while (0)

#endif
