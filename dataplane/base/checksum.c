/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum.c - the Internet checksum (RFC 1071), alone and fused with a copy.
 *
 * RFC 1071 section 2(B), 2(C): a one's-complement sum may be taken in the machine's byte order and
 * in wider words. Each 64-bit word is split into its two 32-bit halves, which are added into 64-bit
 * lanes: those can't overflow below 2^32 words, so the loop has no carries and the compiler turns
 * it into plain vector code. The loop is compiled twice on x86-64, for AVX2 and for the baseline;
 * a flag that libgcc fills at load time chooses (no ifunc: those resolve too early for sanitizers
 * and not at all on other C libraries).
 */
#include "base/checksum.h"

#include <stdbool.h>
#include <string.h>

#define CSUM_BLOCK 64u

/* Unaligned on purpose; the compiler emits unaligned vector moves. */
typedef uint64_t csum_vec __attribute__((vector_size(32), aligned(1), may_alias));

static inline uint64_t csum_load64(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof(w));
	return w;
}

static inline uint32_t csum_fold64(uint64_t sum)
{
	sum = (sum & 0xffffffffu) + (sum >> 32);
	sum = (sum & 0xffffffffu) + (sum >> 32);
	return (uint32_t)sum;
}

/* The bytes that fill no block. Returns a sum that can't overflow what follows. */
static inline uint64_t csum_tail(uint8_t *dst, const uint8_t *src, size_t len, bool copy)
{
	uint64_t sum = 0, last = 0;

	while (len >= 8) {
		uint64_t w = csum_load64(src);

		if (copy)
			memcpy(dst, &w, 8);
		sum += (w & 0xffffffffu) + (w >> 32);
		src += 8;
		dst = copy ? dst + 8 : dst;
		len -= 8;
	}
	for (size_t i = 0; i < len; i++) {
		((uint8_t *)&last)[i] = src[i];
		if (copy)
			dst[i] = src[i];
	}
	return sum + (last & 0xffffffffu) + (last >> 32);
}

/* The one loop. `copy` is a constant at every call, so each caller gets its own version. */
static inline __attribute__((always_inline)) uint64_t csum_loop(uint8_t *dst, const uint8_t *src,
								size_t len, bool copy)
{
	const csum_vec low = { 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu };
	csum_vec a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

	while (len >= CSUM_BLOCK) {
		csum_vec v = *(const csum_vec *)src, w = *(const csum_vec *)(src + 32);

		if (copy) {
			*(csum_vec *)dst = v;
			*(csum_vec *)(dst + 32) = w;
			dst += CSUM_BLOCK;
		}
		a += v & low;
		b += v >> 32;
		c += w & low;
		d += w >> 32;
		src += CSUM_BLOCK;
		len -= CSUM_BLOCK;
	}
	a += b;
	c += d;
	a += c;
	/* Folded before they meet: four lanes of up to 2^63 would overflow together. */
	return (uint64_t)csum_fold64(a[0]) + csum_fold64(a[1]) + csum_fold64(a[2]) +
	       csum_fold64(a[3]) + csum_fold64(csum_tail(dst, src, len, copy));
}

#ifdef __x86_64__
#define CSUM_AVX2 __attribute__((target("avx2"), noinline))
static CSUM_AVX2 uint64_t csum_partial_avx2(const uint8_t *src, size_t len)
{
	return csum_loop(NULL, src, len, false);
}
static CSUM_AVX2 uint64_t csum_copy_avx2(uint8_t *dst, const uint8_t *src, size_t len)
{
	return csum_loop(dst, src, len, true);
}
static inline bool csum_have_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}
#else
#define csum_partial_avx2(src, len) 0
#define csum_copy_avx2(dst, src, len) 0
#define csum_have_avx2() false
#endif

uint32_t csum_partial(const void *data, size_t len, uint32_t sum)
{
	uint64_t s;

	if (len < CSUM_BLOCK) /* headers: not worth a vector */
		s = csum_tail(NULL, data, len, false);
	else if (csum_have_avx2())
		s = csum_partial_avx2(data, len);
	else
		s = csum_loop(NULL, data, len, false);
	return csum_add(csum_fold64(s), sum);
}

uint32_t csum_copy(void *restrict dst, const void *restrict src, size_t len, uint32_t sum)
{
	uint64_t s;

	if (len < CSUM_BLOCK)
		s = csum_tail(dst, src, len, true);
	else if (csum_have_avx2())
		s = csum_copy_avx2(dst, src, len);
	else
		s = csum_loop(dst, src, len, true);
	return csum_add(csum_fold64(s), sum);
}

uint32_t csum_append(uint32_t sum, uint32_t piece, size_t offset)
{
	/* RFC 1071 2(B): an odd start swaps the bytes of the piece's sum. Swapping is a
	 * multiplication by 2^8 modulo 2^16 - 1, and so is a rotation of 32 bits by 8. */
	if (offset & 1)
		piece = piece << 8 | piece >> 24;
	return csum_add(sum, piece);
}

uint16_t csum_finish(uint32_t sum)
{
	sum = (sum & 0xffffu) + (sum >> 16);
	sum = (sum & 0xffffu) + (sum >> 16);
	return (uint16_t)~sum;
}
