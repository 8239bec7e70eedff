/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_half.c - float16 (IEEE 754 binary16) and bfloat16: conversions that round to nearest even.
 *
 * The conversions have no branches, so the compiler vectorizes the loops.
 * Results equal those of numpy and of x86's vcvtps2ph, except NaN payloads.
 */
#include <string.h>

#include "coll_impl.h"
#include "coll_half.h"

float half_to_float(uint16_t half)
{
	return half_widen(half);
}

uint16_t half_from_float(float value)
{
	return half_narrow(value);
}

COLL_CLONES void half_encode(enum harp_coll_wire wire, uint16_t *restrict dst,
			     const float *restrict src, size_t count)
{
	if (wire == HARP_COLL_WIRE_FLOAT16) {
		for (size_t i = 0; i < count; i++)
			dst[i] = half_narrow(src[i]);
	} else {
		for (size_t i = 0; i < count; i++)
			dst[i] = bfloat_narrow(src[i]);
	}
}

COLL_CLONES void half_decode(enum harp_coll_wire wire, float *restrict dst,
			     const uint16_t *restrict src, size_t count)
{
	if (wire == HARP_COLL_WIRE_FLOAT16) {
		for (size_t i = 0; i < count; i++)
			dst[i] = half_widen(src[i]);
	} else {
		for (size_t i = 0; i < count; i++)
			dst[i] = bfloat_widen(src[i]);
	}
}

/* dst[i] = a[i] + decoded b[i]; dst may equal a. */
COLL_CLONES void half_decode_add(enum harp_coll_wire wire, float *dst, const float *a,
				 const uint16_t *b, size_t count)
{
	if (wire == HARP_COLL_WIRE_FLOAT16) {
		COLL_INDEPENDENT
		for (size_t i = 0; i < count; i++)
			dst[i] = a[i] + half_widen(b[i]);
	} else {
		COLL_INDEPENDENT
		for (size_t i = 0; i < count; i++)
			dst[i] = a[i] + bfloat_widen(b[i]);
	}
}
