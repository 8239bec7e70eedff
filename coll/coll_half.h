/* SPDX-License-Identifier: Apache-2.0 */
/* coll_half.h - conversions of one float16 or bfloat16, inlined into the loops that use them. */
#ifndef HARP_COLL_HALF_H
#define HARP_COLL_HALF_H

#include <stdint.h>
#include <string.h>

/* The compiler generates the function for several instruction sets, and the loader selects one.
 * The sanitizers are not initialized when it does. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
	!defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COLL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define COLL_CLONES
#endif

/* The destination of a loop equals a source or does not overlap it: iterations are independent. */
#ifdef __clang__
#define COLL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define COLL_INDEPENDENT _Pragma("GCC ivdep")
#endif

static inline uint32_t half_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float half_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline float half_widen(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
	uint32_t rest = half & 0x7fffu;
	/* The exponent's bias differs by 112; infinity and NaN need 112 more. */
	uint32_t normal = (rest << 13) + (112u << 23) + (rest >= 0x7c00u ? 112u << 23 : 0u);
	/* A subnormal half is an integer times 2^-24, which float32 holds exactly. */
	uint32_t small = half_bits((float)(int32_t)rest * 0x1p-24f);

	return half_float(sign | (rest < 0x0400u ? small : normal));
}

static inline uint16_t half_narrow(float value)
{
	uint32_t bits = half_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
	/* Normal: rebias, then round to nearest even at bit 13. */
	uint32_t normal = (rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;
	/* Subnormal: adding 0.5 aligns the value so that float32 rounds at 2^-24. */
	uint32_t small = half_bits(half_float(rest) + 0.5f) - (126u << 23);
	uint32_t special = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
	uint32_t half = rest < (113u << 23) ? small : normal;

	/* From 65520 on the nearest half is infinity. */
	half = rest >= 0x477ff000u ? special : half;
	return (uint16_t)(sign | half);
}

static inline float bfloat_widen(uint16_t bfloat)
{
	return half_float((uint32_t)bfloat << 16);
}

static inline uint16_t bfloat_narrow(float value)
{
	uint32_t bits = half_bits(value);
	uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
	uint32_t nan = (bits >> 16) | 0x40u;

	return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
