/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.h - what of several messages has arrived: sorted ranges of bytes, joined where they touch.
 *
 * One table for all messages of a comm that are under way; a bound on it is a bound on holes.
 */
#ifndef HARP_PLUGIN_RANGES_H
#define HARP_PLUGIN_RANGES_H

#include <stdint.h>

struct range {
	uint64_t message, begin, end;
};

struct ranges {
	struct range *table; /* by message and begin; max of them; the caller's */
	unsigned count, max;
};

/* 1: none of it was there, and all of it is now. 0: all of it was there. -EPROTO: some of it was, -ENOSPC: the
 * table is full; then nothing has changed. begin < end. */
int ranges_add(struct ranges *ranges, uint64_t message, uint64_t begin, uint64_t end);
/* 1: all of it is there, 0: none, -EPROTO: some. */
int ranges_have(const struct ranges *ranges, uint64_t message, uint64_t begin, uint64_t end);
/* Bytes of the message that are there from its first on. */
uint64_t ranges_prefix(const struct ranges *ranges, uint64_t message);
/* The message and all before it. */
void ranges_forget(struct ranges *ranges, uint64_t message);

#endif
