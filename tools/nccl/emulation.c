/* SPDX-License-Identifier: Apache-2.0 */
/* emulation.c - errors that end the process. */
#include "emulation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void emulation_fail(const char *format, ...)
{
	char line[1024];
	va_list args;
	int used = snprintf(line, sizeof(line), "harp-nccl-rank: ");

	va_start(args, format);
	vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
	va_end(args);
	fprintf(stderr, "%s\n", line);
	/* Not exit(), because threads may be inside NCCL. */
	_exit(EMULATION_EXIT);
}

void *emulation_alloc(size_t bytes)
{
	void *memory = calloc(1, bytes ? bytes : 1);

	if (!memory)
		emulation_fail("out of memory: %zu bytes", bytes);
	return memory;
}
