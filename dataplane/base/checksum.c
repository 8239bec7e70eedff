/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum.c - the Internet checksum (RFC 1071), alone and combined with a copy.
 *
 * RFC 1071 section 2(B), 2(C): a one's-complement sum may use the machine's byte order and wider
 * words. Each 64-bit word is split into 32-bit halves, which are added into 64-bit lanes. Those
 * cannot overflow below 2^32 words, so the loop has no carries and the compiler vectorizes it. On
 * x86-64 it is compiled twice, for AVX2 and for the baseline; a third variant adds 16-bit words by
 * AVX-512's dot product. Calls select a variant by the CPU flags that libgcc reads at load time.
 * (ifunc resolves too early for sanitizers, and not at all on other C libraries.)
 */
#include "base/checksum.h"

#include <stdbool.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define CSUM_VECTOR_BYTES_MIN 64u

/* Deliberately unaligned; the compiler emits unaligned vector moves. */
typedef uint64_t csum_vec __attribute__((vector_size(32), aligned(1), may_alias));

static inline uint64_t csum_load64(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, sizeof(w));
	return w;
}

/* Sums the bytes after the last block. The caller can add to the result without overflow. */
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
 * The main loop. `copy` is a constant in every call, so each caller gets its own version. An
 * iteration adds two vectors, so that additions do not depend on each other. Each is loaded once
 * (volatile): compilers would load it for each use, and most loads cross cache lines. The sums
 * overflow at 2^34 bytes.
 */
#define CSUM_STEP(at, low_sum, high_sum)                                                           \
	do {                                                                                       \
		csum_vec v = *(const volatile csum_vec *)(src + (at));                             \
                                                                                                   \
		if (copy)                                                                          \
			*(csum_vec *)(dst + (at)) = v;                                             \
		low_sum += v & low;                                                                \
		high_sum += v >> 32;                                                               \
	} while (0)
static inline __attribute__((always_inline)) uint64_t csum_loop(uint8_t *dst, const uint8_t *src,
								size_t len, bool copy)
{
	const csum_vec low = (csum_vec){ 0 } + 0xffffffffu;
	csum_vec a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
	uint64_t sum = 0;

	for (; len >= 64; src += 64, len -= 64, dst = copy ? dst + 64 : dst) {
		CSUM_STEP(0, a, b);
		CSUM_STEP(32, c, d);
	}
	if (len >= 32) {
		CSUM_STEP(0, a, b);
		dst = copy ? dst + 32 : dst;
		src += 32;
		len -= 32;
	}
	a += b;
	c += d;
	a += c;
	for (unsigned i = 0; i < 4; i++)
		sum += a[i];
	return (uint64_t)csum_fold64(sum) + csum_fold64(csum_tail(dst, src, len, copy));
}

#ifdef __x86_64__
#define CSUM_FOR(isa) __attribute__((target(isa), noinline))
#define CSUM_AVX512 "avx512f,avx512bw,avx512vnni"
#define CSUM_AVX512_BYTES_MAX 65536u /* the sum of this many bytes fits 32 bits */

/*
 * One instruction adds pairs of signed words into 32-bit lanes. So this adds each word minus 2^15,
 * which is the word with its top bit inverted, and finally 2^15 per word. It keeps four sums,
 * because an addition has a latency of four cycles.
 */
#define CSUM_WORDS(v, sum) sum = _mm512_dpwssd_epi32(sum, _mm512_xor_si512(v, top), one)
#define CSUM_BLOCK(at, sum)                                                                        \
	do {                                                                                       \
		__m512i v = _mm512_loadu_si512(src + (at));                                        \
                                                                                                   \
		if (copy)                                                                          \
			_mm512_storeu_si512(dst + (at), v);                                        \
		CSUM_WORDS(v, sum);                                                                \
	} while (0)
static inline __attribute__((always_inline, target(CSUM_AVX512))) uint64_t csum_loop_avx512(
	uint8_t *dst, const uint8_t *src, size_t len, bool copy)
{
	const __m512i top = _mm512_set1_epi16(INT16_MIN), one = _mm512_set1_epi16(1);
	const uint32_t blocks = (uint32_t)((len + 63) / 64);
	__m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;

	for (; len >= 256; len -= 256, src += 256, dst = copy ? dst + 256 : dst) {
		CSUM_BLOCK(0, a);
		CSUM_BLOCK(64, b);
		CSUM_BLOCK(128, c);
		CSUM_BLOCK(192, d);
	}
	for (; len >= 64; len -= 64, src += 64, dst = copy ? dst + 64 : dst)
		CSUM_BLOCK(0, a);
	if (len > 0) {
		const __mmask64 rest = ~UINT64_C(0) >> (64 - len);
		__m512i v = _mm512_maskz_loadu_epi8(rest, src);

		if (copy)
			_mm512_mask_storeu_epi8(dst, rest, v);
		CSUM_WORDS(v, b);
	}
	a = _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
	return (uint32_t)_mm512_reduce_add_epi32(a) + blocks * (32u << 15);
}
static CSUM_FOR(CSUM_AVX512) uint64_t csum_partial_avx512(const uint8_t *src, size_t len)
{
	return csum_loop_avx512(NULL, src, len, false);
}
static CSUM_FOR(CSUM_AVX512) uint64_t csum_copy_avx512(uint8_t *dst, const uint8_t *src, size_t len)
{
	return csum_loop_avx512(dst, src, len, true);
}
/* False on the first CPUs with AVX-512, which reduce their clock for it. */
static bool csum_can_avx512(size_t len)
{
	return len <= CSUM_AVX512_BYTES_MAX && __builtin_cpu_supports("avx512vbmi2") &&
	       __builtin_cpu_supports("avx512vnni");
}

static CSUM_FOR("avx2") uint64_t csum_partial_avx2(const uint8_t *src, size_t len)
{
	return csum_loop(NULL, src, len, false);
}
static CSUM_FOR("avx2") uint64_t csum_copy_avx2(uint8_t *dst, const uint8_t *src, size_t len)
{
	return csum_loop(dst, src, len, true);
}
#define CSUM_CHOOSE(what, ...)                                                                     \
	(csum_can_avx512(len)             ? csum_##what##_avx512(__VA_ARGS__)                      \
	 : __builtin_cpu_supports("avx2") ? csum_##what##_avx2(__VA_ARGS__)                        \
					  : csum_##what##_any(__VA_ARGS__))
#else
#define CSUM_CHOOSE(what, ...) csum_##what##_any(__VA_ARGS__)
#endif

static uint64_t csum_partial_any(const uint8_t *src, size_t len)
{
	return csum_loop(NULL, src, len, false);
}
static uint64_t csum_copy_any(uint8_t *dst, const uint8_t *src, size_t len)
{
	return csum_loop(dst, src, len, true);
}

uint32_t csum_partial(const void *data, size_t len, uint32_t sum)
{
	uint64_t s;

	if (len < CSUM_VECTOR_BYTES_MIN) /* headers: too short for vectors */
		s = csum_tail(NULL, data, len, false);
	else
		s = CSUM_CHOOSE(partial, data, len);
	return csum_add(csum_fold64(s), sum);
}

uint32_t csum_copy(void *restrict dst, const void *restrict src, size_t len, uint32_t sum)
{
	uint64_t s;

	if (len < CSUM_VECTOR_BYTES_MIN)
		s = csum_tail(dst, src, len, true);
	else
		s = CSUM_CHOOSE(copy, dst, src, len);
	return csum_add(csum_fold64(s), sum);
}
