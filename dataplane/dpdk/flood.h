/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flood.h - lines that are said again and again: the first, and then how often.
 *
 * Drivers say a line for each packet that they lose, in the thread that polls. Whoever listens may be slow, or a pipe that
 * nobody reads until this process has ended.
 */
#ifndef HARP_DPDK_FLOOD_H
#define HARP_DPDK_FLOOD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLOOD_LINES 64u
#define FLOOD_LINE_BYTES 160u /* longer ones are told apart by so many */
#define FLOOD_TEXT_BYTES 640u /* a line and its number */
#define FLOOD_QUIET_NS                                                                             \
	10000000000u /* a line is said once in this time, and so many different ones */

struct flood_line {
	char text[FLOOD_LINE_BYTES];
	uint64_t said_ns;
	uint64_t kept; /* times it was not said since */
};

struct flood {
	struct flood_line lines[FLOOD_LINES]; /* "": unused */
	uint64_t others; /* lines that found no place here, or lost it, and were not said */
};

/* May it be said? Then out is what to say. */
bool flood_line(struct flood *flood, const char *line, uint64_t now_ns, char out[FLOOD_TEXT_BYTES]);
/* What was not said, one line a call, and forgets it; false: nothing is left. *place: 0 at first; each line has its turn once,
 * though others go on saying it. */
bool flood_rest(struct flood *flood, unsigned *place, char out[FLOOD_TEXT_BYTES]);

#endif
