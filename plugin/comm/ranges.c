/* SPDX-License-Identifier: Apache-2.0 */
/* ranges.c - see ranges.h. */
#include "comm/ranges.h"

#include <errno.h>
#include <string.h>

/* The first range that ends at or after byte `at` of the message, or belongs to a later message. */
static unsigned ranges_find(const struct ranges *ranges, uint64_t message, uint64_t at)
{
	unsigned low = 0, high = ranges->count;

	while (low < high) {
		unsigned middle = low + (high - low) / 2;
		const struct range *r = &ranges->table[middle];

		if (r->message < message || (r->message == message && r->end < at))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int ranges_have(const struct ranges *ranges, uint64_t message, uint64_t begin, uint64_t end)
{
	const struct range *r;
	unsigned at = ranges_find(ranges, message, begin);

	if (at < ranges->count && ranges->table[at].message == message &&
	    ranges->table[at].end == begin) /* only touches */
		at++;
	if (at == ranges->count)
		return 0;
	r = &ranges->table[at];
	if (r->message != message || r->begin >= end)
		return 0;
	return r->begin <= begin && end <= r->end ? 1 : -EPROTO;
}

static void ranges_delete(struct ranges *ranges, unsigned at, unsigned count)
{
	memmove(&ranges->table[at], &ranges->table[at + count],
		(ranges->count - at - count) * sizeof(*ranges->table));
	ranges->count -= count;
}

int ranges_add(struct ranges *ranges, uint64_t message, uint64_t begin, uint64_t end)
{
	int have = ranges_have(ranges, message, begin, end);
	unsigned at = ranges_find(ranges, message, begin);
	struct range *r = &ranges->table[at];

	if (have)
		return have == 1 ? 0 : have;
	if (at < ranges->count && r->message == message && r->end == begin) {
		r->end = end;
		if (at + 1 < ranges->count && r[1].message == message && r[1].begin == end) {
			r->end = r[1].end;
			ranges_delete(ranges, at + 1, 1);
		}
		return 1;
	}
	if (at < ranges->count && r->message == message && r->begin == end) {
		r->begin = begin;
		return 1;
	}
	if (ranges->count == ranges->max)
		return -ENOSPC;
	memmove(r + 1, r, (ranges->count - at) * sizeof(*r));
	*r = (struct range){ message, begin, end };
	ranges->count++;
	return 1;
}

uint64_t ranges_prefix(const struct ranges *ranges, uint64_t message)
{
	unsigned at = ranges_find(ranges, message, 0);

	if (at == ranges->count || ranges->table[at].message != message ||
	    ranges->table[at].begin != 0)
		return 0;
	return ranges->table[at].end;
}

void ranges_forget(struct ranges *ranges, uint64_t message)
{
	unsigned count = 0;

	while (count < ranges->count && ranges->table[count].message <= message)
		count++;
	if (count)
		ranges_delete(ranges, 0, count);
}
