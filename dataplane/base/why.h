/* SPDX-License-Identifier: Apache-2.0 */
/* why.h - one-line error texts: what failed, the cause, the remedy. */
#ifndef HARP_BASE_WHY_H
#define HARP_BASE_WHY_H

#include <stddef.h>

struct why {
	char *text; /* the caller's, size bytes; NULL: nobody asks */
	size_t size;
	char subject[64]; /* what it is about: "veth0 queue 3" */
};

/* Names the subject; the line begins with it. */
void __attribute__((format(printf, 2, 3))) why_about(struct why *why, const char *format, ...);
/* Writes "subject: ...". */
void __attribute__((format(printf, 2, 3))) why_say(const struct why *why, const char *format, ...);

/* Says so and is the error, so that a failure is one statement. A macro: who reads the caller,
 * clang's analyzer too, sees which error comes back. */
#define why_fail(why, error, ...)                                                                  \
	({                                                                                         \
		int why_error = (error); /* first: saying it may change errno */                   \
		why_say((why), __VA_ARGS__);                                                       \
		why_error;                                                                         \
	})

#endif
