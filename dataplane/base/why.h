/* SPDX-License-Identifier: Apache-2.0 */
/* why.h - one-line error texts: what failed, the cause, the remedy. */
#ifndef HARP_BASE_WHY_H
#define HARP_BASE_WHY_H

#include <stddef.h>

struct why {
	char *text; /* the caller's buffer of size bytes; NULL: discards the text */
	size_t size;
	char subject[64]; /* the subject, such as "veth0 queue 3" */
};

/* Sets the subject, which begins the line. */
void __attribute__((format(printf, 2, 3))) why_about(struct why *why, const char *format, ...);
/* Writes "subject: ...". */
void __attribute__((format(printf, 2, 3))) why_say(const struct why *why, const char *format, ...);

/* Writes the text and evaluates to the error. A macro, so that readers of the caller, and clang's
 * analyzer, see the error that is returned. */
#define why_fail(why, error, ...)                                                                  \
	({                                                                                         \
		int why_error = (error); /* first, because writing may change errno */             \
		why_say((why), __VA_ARGS__);                                                       \
		why_error;                                                                         \
	})

#endif
