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

/* Unaligned on purpose; the compiler emits unaligned vector moves. */
typedef uint64_t csum_vec32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint64_t csum_vec64 __attribute__((vector_size(64), aligned(1), may_alias));

static inline uint64_t csum_load64(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof(w));
	return w;
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

/*
 * The one loop, by vectors that the processor has: wider ones are taken apart badly. `copy` is a constant at
 * every call, so each caller gets its own version. Two vectors a turn, so that no addition waits for the one before, each
 * loaded once (volatile: compilers load again for each use, and most lie across lines). All lanes together overflow
 * with 2^34 bytes.
 */
#define CSUM_STEP(bytes, at, low_sum, high_sum)                                                    \
	do {                                                                                       \
		csum_vec##bytes v = *(const volatile csum_vec##bytes *)(src + (at));               \
                                                                                                   \
		if (copy)                                                                          \
			*(csum_vec##bytes *)(dst + (at)) = v;                                      \
		low_sum += v & low;                                                                \
		high_sum += v >> 32;                                                               \
	} while (0)
#define CSUM_LOOP(bytes)                                                                           \
	static inline __attribute__((always_inline))                                               \
	uint64_t csum_loop_##bytes(uint8_t *dst, const uint8_t *src, size_t len, bool copy)        \
	{                                                                                          \
		const csum_vec##bytes low = (csum_vec##bytes){ 0 } + 0xffffffffu;                  \
		csum_vec##bytes a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };                        \
		uint64_t sum = 0;                                                                  \
                                                                                                   \
		for (; len >= 2 * (bytes); src += 2 * (bytes), len -= 2 * (bytes)) {               \
			CSUM_STEP(bytes, 0, a, b);                                                 \
			CSUM_STEP(bytes, bytes, c, d);                                             \
			dst = copy ? dst + 2 * (bytes) : dst;                                      \
		}                                                                                  \
		if (len >= (bytes)) {                                                              \
			CSUM_STEP(bytes, 0, a, b);                                                 \
			dst = copy ? dst + (bytes) : dst;                                          \
			src += (bytes);                                                            \
			len -= (bytes);                                                            \
		}                                                                                  \
		a += b;                                                                            \
		c += d;                                                                            \
		a += c;                                                                            \
		for (unsigned i = 0; i < (bytes) / 8; i++)                                         \
			sum += a[i];                                                               \
		return (uint64_t)csum_fold64(sum) + csum_fold64(csum_tail(dst, src, len, copy));   \
	}
CSUM_LOOP(32)

#ifdef __x86_64__
CSUM_LOOP(64)
#define CSUM_FOR(isa) __attribute__((target(isa), noinline))
static CSUM_FOR("avx512f") uint64_t csum_partial_avx512(const uint8_t *src, size_t len)
{
	return csum_loop_64(NULL, src, len, false);
}
static CSUM_FOR("avx512f") uint64_t csum_copy_avx512(uint8_t *dst, const uint8_t *src, size_t len)
{
	return csum_loop_64(dst, src, len, true);
}
static CSUM_FOR("avx2") uint64_t csum_partial_avx2(const uint8_t *src, size_t len)
{
	return csum_loop_32(NULL, src, len, false);
}
static CSUM_FOR("avx2") uint64_t csum_copy_avx2(uint8_t *dst, const uint8_t *src, size_t len)
{
	return csum_loop_32(dst, src, len, true);
}
#define CSUM_CHOOSE(what, ...)                                                                     \
	(__builtin_cpu_supports("avx512vbmi2") ? csum_##what##_avx512(__VA_ARGS__)                 \
	 : __builtin_cpu_supports("avx2")      ? csum_##what##_avx2(__VA_ARGS__)                   \
					       : csum_##what##_any(__VA_ARGS__))
#else
#define CSUM_CHOOSE(what, ...) csum_##what##_any(__VA_ARGS__)
#endif

static uint64_t csum_partial_any(const uint8_t *src, size_t len)
{
	return csum_loop_32(NULL, src, len, false);
}
static uint64_t csum_copy_any(uint8_t *dst, const uint8_t *src, size_t len)
{
	return csum_loop_32(dst, src, len, true);
}

uint32_t csum_partial(const void *data, size_t len, uint32_t sum)
{
	uint64_t s;

	if (len < sizeof(csum_vec64)) /* headers: not worth a vector */
		s = csum_tail(NULL, data, len, false);
	else
		s = CSUM_CHOOSE(partial, data, len);
	return csum_add(csum_fold64(s), sum);
}

uint32_t csum_copy(void *restrict dst, const void *restrict src, size_t len, uint32_t sum)
{
	uint64_t s;

	if (len < sizeof(csum_vec64))
		s = csum_tail(dst, src, len, true);
	else
		s = CSUM_CHOOSE(copy, dst, src, len);
	return csum_add(csum_fold64(s), sum);
}
