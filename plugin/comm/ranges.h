/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.h - the bytes of several messages that have arrived: sorted ranges, merged where they
 * touch.
 *
 * One table holds the ranges of all incomplete messages of a comm, so its size bounds the holes.
 */
#ifndef HARP_PLUGIN_RANGES_H
#define HARP_PLUGIN_RANGES_H

#include <stdint.h>

struct range {
	uint64_t message, begin, end;
};

struct ranges {
	struct range *table; /* by message and begin; the caller's array of max entries */
	unsigned count, max;
};

/* Adds bytes begin to end - 1 (begin < end). 1: added. 0: all of them had arrived. -EPROTO: some of
 * them had, -ENOSPC: the table is full; nothing is changed. */
int ranges_add(struct ranges *ranges, uint64_t message, uint64_t begin, uint64_t end);
/* 1: all of them have arrived, 0: none, -EPROTO: some. */
int ranges_have(const struct ranges *ranges, uint64_t message, uint64_t begin, uint64_t end);
/* The number of bytes that have arrived without a hole from the message's begin. */
uint64_t ranges_prefix(const struct ranges *ranges, uint64_t message);
/* Forgets the message and all before it. */
void ranges_forget(struct ranges *ranges, uint64_t message);

#endif
