/* SPDX-License-Identifier: Apache-2.0 */
/* why.c - one-line error texts. */
#include "base/why.h"

#include <stdarg.h>
#include <stdio.h>

void why_about(struct why *why, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why->subject, sizeof(why->subject), format, args);
	va_end(args);
}

void why_say(const struct why *why, const char *format, ...)
{
	va_list args;
	int used;

	if (!why->text || !why->size)
		return;
	used = snprintf(why->text, why->size, "%s: ", why->subject);
	if (used < 0 || (size_t)used >= why->size)
		return;
	va_start(args, format);
	vsnprintf(why->text + used, why->size - (size_t)used, format, args);
	va_end(args);
}
