/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum.h - the Internet checksum (RFC 1071). Sums are in memory order (the folded, complemented
 * result is stored without byte swapping), 32 bits wide, and unfolded, so that they can be added.
 */
#ifndef HARP_BASE_CHECKSUM_H
#define HARP_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Sum of len bytes; an odd last byte counts as if followed by zero. */
uint32_t csum_partial(const void *data, size_t len, uint32_t sum);
/* The same while copying: one pass over the bytes. */
uint32_t csum_copy(void *restrict dst, const void *restrict src, size_t len, uint32_t sum);
/* Folds a sum of 32-bit words with accumulated carries. */
static inline uint32_t csum_fold64(uint64_t sum)
{
	sum = (sum & 0xffffffffu) + (sum >> 32);
	return (uint32_t)((sum & 0xffffffffu) + (sum >> 32));
}
/* Sum of a header of 32-bit words (len a multiple of 4). Inline, because headers are summed right
 * after they are written, and loads no wider than the stores do not stall. */
static inline uint32_t csum_words(const void *data, size_t len, uint32_t sum)
{
	const uint8_t *p = data;
	uint64_t s = sum;

	for (size_t i = 0; i < len; i += 4) {
		uint32_t word;

		__builtin_memcpy(&word, p + i, sizeof(word));
		s += word;
	}
	return csum_fold64(s);
}
/* Folds to 16 bits and complements, ready to store. For a valid received packet the result is 0. */
static inline uint16_t csum_finish(uint32_t sum)
{
	sum = (sum & 0xffffu) + (sum >> 16);
	sum = (sum & 0xffffu) + (sum >> 16);
	return (uint16_t)~sum;
}
static inline uint32_t csum_add(uint32_t a, uint32_t b)
{
	uint64_t s = (uint64_t)a + b;
	return (uint32_t)s + (uint32_t)(s >> 32);
}
/* Adds the sum of a later piece, which begins at byte `offset`. */
static inline uint32_t csum_append(uint32_t sum, uint32_t piece, size_t offset)
{
	/* RFC 1071 2(B): an odd start swaps the bytes of the piece's sum. Swapping is a
	 * multiplication by 2^8 modulo 2^16 - 1, and so is a rotation of 32 bits by 8. */
	if (offset & 1)
		piece = piece << 8 | piece >> 24;
	return csum_add(sum, piece);
}

#endif
