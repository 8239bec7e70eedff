/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pattern.h - bytes of a stream that depend only on its seed and their position, so that lost,
 * repeated and swapped bytes are detected.
 */
#ifndef HARP_TOOLS_PATTERN_H
#define HARP_TOOLS_PATTERN_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t pattern_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline uint8_t pattern_byte(uint64_t seed, uint64_t offset)
{
	return (uint8_t)(pattern_mix(seed + offset / 8 * 0x9e3779b97f4a7c15u) >> offset % 8 * 8);
}

static inline void pattern_fill(uint64_t seed, uint64_t offset, uint8_t *buf, size_t len)
{
	size_t i = 0;

	for (; i < len && (offset + i) % 8; i++)
		buf[i] = pattern_byte(seed, offset + i);
	for (; i + 8 <= len; i += 8) {
		uint64_t word = pattern_mix(seed + (offset + i) / 8 * 0x9e3779b97f4a7c15u);

		for (unsigned b = 0; b < 8; b++)
			buf[i + b] = (uint8_t)(word >> b * 8);
	}
	for (; i < len; i++)
		buf[i] = pattern_byte(seed, offset + i);
}

/* Repeats the first `period` bytes of the pattern. */
static inline void pattern_repeat(uint64_t seed, size_t period, uint8_t *buf, size_t len)
{
	pattern_fill(seed, 0, buf, len < period ? len : period);
	for (size_t i = period; i < len; i++)
		buf[i] = buf[i - period];
}

#endif
