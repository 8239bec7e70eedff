/* SPDX-License-Identifier: Apache-2.0 */
/* flood.c - lines that are said again and again: the first, and then how often. */
#include "dpdk/flood.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Its place, or one of those that have been quiet for long enough: the one that has been for the longest, and if need be one
 * whose number has still to be told. NULL: there is none. */
static struct flood_line *flood_find(struct flood *flood, const char *line, uint64_t now_ns)
{
	struct flood_line *oldest = NULL;

	for (unsigned i = 0; i < FLOOD_LINES; i++) {
		struct flood_line *at = &flood->lines[i];

		if (strncmp(at->text, line, FLOOD_LINE_BYTES - 1) == 0)
			return at;
		if (at->text[0] && now_ns - at->said_ns < FLOOD_QUIET_NS)
			continue;
		if (!oldest || !at->kept > !oldest->kept ||
		    (!at->kept == !oldest->kept && at->said_ns < oldest->said_ns))
			oldest = at;
	}
	if (!oldest)
		return NULL;
	flood->others += oldest->kept;
	*oldest = (struct flood_line){ 0 };
	return oldest;
}

bool flood_line(struct flood *flood, const char *line, uint64_t now_ns, char out[FLOOD_TEXT_BYTES])
{
	struct flood_line *at = flood_find(flood, line, now_ns);

	if (!at) {
		flood->others++;
		return false;
	}
	if (at->text[0] && now_ns - at->said_ns < FLOOD_QUIET_NS) {
		at->kept++;
		return false;
	}
	if (at->kept > 0)
		snprintf(out, FLOOD_TEXT_BYTES, "%.512s (and %" PRIu64 " times before)", line,
			 at->kept);
	else
		snprintf(out, FLOOD_TEXT_BYTES, "%s", line);
	snprintf(at->text, sizeof(at->text), "%s", line);
	at->said_ns = now_ns;
	at->kept = 0;
	return true;
}

bool flood_rest(struct flood *flood, unsigned *place, char out[FLOOD_TEXT_BYTES])
{
	while (*place < FLOOD_LINES) {
		struct flood_line *at = &flood->lines[(*place)++];

		if (at->kept == 0)
			continue;
		snprintf(out, FLOOD_TEXT_BYTES, "%s (%" PRIu64 " times more)", at->text, at->kept);
		at->kept = 0;
		return true;
	}
	if (*place > FLOOD_LINES || flood->others == 0)
		return false;
	(*place)++;
	snprintf(out, FLOOD_TEXT_BYTES, "%" PRIu64 " other lines of DPDK's were not passed on",
		 flood->others);
	flood->others = 0;
	return true;
}
