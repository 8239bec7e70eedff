/* SPDX-License-Identifier: Apache-2.0 */
/* why.h - the one line for people that says why something failed: what, cause, remedy. */
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
/* Writes "subject: ..." and returns error, so that a failure is one statement. */
int __attribute__((format(printf, 3, 4)))
why_fail(const struct why *why, int error, const char *format, ...);

#endif
