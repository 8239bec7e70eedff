/* SPDX-License-Identifier: Apache-2.0 */
/* test_coll_reduce.c - reductions of all types and lengths, and float16 and bfloat16. */
#include <math.h>

#include "check.h"
#include "coll_impl.h"

#define COUNT 131u /* longer than any SIMD vector, and not a multiple of one */

/* Decodes by the format's definition, independent of the library. */
static double half_value(uint16_t half)
{
	int exponent = half >> 10 & 31, sign = half >> 15 ? -1 : 1;
	double fraction = half & 1023;

	if (exponent == 31)
		return fraction ? (double)NAN : sign * (double)INFINITY;
	return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

TEST(half_widens_every_value)
{
	for (unsigned half = 0; half < 65536; half++) {
		double expected = half_value((uint16_t)half);
		double value = (double)half_to_float((uint16_t)half);

		CHECK(isnan(expected) ? isnan(value) : value == expected);
		if (!isnan(expected))
			CHECK_EQ(half_from_float((float)expected), half);
	}
	CHECK(isnan(half_value(half_from_float(NAN))));
}

/* A value rounds to the nearer of two halves, and from the middle to the even one. */
TEST(half_rounds_to_nearest_even)
{
	for (unsigned half = 0; half < 0x7bff; half++) {
		float low = (float)half_value((uint16_t)half);
		float high = (float)half_value((uint16_t)(half + 1));
		float middle = (low + high) / 2;
		unsigned even = half & 1 ? half + 1 : half;

		CHECK_EQ(half_from_float(middle), even);
		CHECK_EQ(half_from_float(nextafterf(middle, low)), half);
		CHECK_EQ(half_from_float(nextafterf(middle, high)), half + 1);
		CHECK_EQ(half_from_float(-middle), even | 0x8000u);
	}
	CHECK_EQ(half_from_float(65519.996f), 0x7bff); /* just below the limit of overflow */
	CHECK_EQ(half_from_float(65520.0f), 0x7c00);
	CHECK_EQ(half_from_float(1e-30f), 0);
	CHECK_EQ(half_from_float(INFINITY), 0x7c00);
}

TEST(wire_formats)
{
	static const enum harp_coll_wire wires[] = { HARP_COLL_WIRE_FLOAT16,
						     HARP_COLL_WIRE_BFLOAT16 };
	float values[COUNT], decoded[COUNT], sums[COUNT];
	uint16_t encoded[COUNT];

	for (unsigned i = 0; i < COUNT; i++)
		values[i] = (float)((int)i - 60) / 8;
	for (unsigned w = 0; w < 2; w++) {
		half_encode(wires[w], encoded, values, COUNT);
		half_decode(wires[w], decoded, encoded, COUNT);
		half_decode_add(wires[w], sums, values, encoded, COUNT);
		for (unsigned i = 0; i < COUNT; i++) {
			CHECK(decoded[i] == values[i]);
			CHECK(sums[i] == 2 * values[i]);
		}
	}
	/* 257 needs nine bits: bfloat16 rounds it to even. */
	values[0] = 257;
	half_encode(HARP_COLL_WIRE_BFLOAT16, encoded, values, 1);
	CHECK_EQ(encoded[0], 0x4380);
}

static double plain_reduce(enum harp_coll_reduce reduce, double x, double y)
{
	switch (reduce) {
	case HARP_COLL_PROD:
		return x * y;
	case HARP_COLL_MIN:
		return isnan(x) || isnan(y) ? (double)NAN : x < y ? x : y;
	case HARP_COLL_MAX:
		return isnan(x) || isnan(y) ? (double)NAN : x > y ? x : y;
	case HARP_COLL_BAND:
		return (double)((int)x & (int)y);
	case HARP_COLL_BOR:
		return (double)((int)x | (int)y);
	case HARP_COLL_BXOR:
		return (double)((int)x ^ (int)y);
	default:
		return x + y;
	}
}

/* Uses values that all types represent exactly, so results are exact. */
#define TEST_TYPE(dtype, type, to, from)                                                           \
	for (int reduce = 0; reduce < HARP_COLL_REDUCES; reduce++) {                               \
		type a[COUNT], b[COUNT], out[COUNT];                                               \
                                                                                                   \
		if (!reduce_supported(dtype, (enum harp_coll_reduce)reduce))                       \
			continue;                                                                  \
		for (unsigned length = 0; length <= COUNT; length += length < 70 ? 1 : 61) {       \
			for (unsigned i = 0; i < length; i++) {                                    \
				a[i] = to((float)(i % 11));                                        \
				b[i] = to((float)(i % 7));                                         \
			}                                                                          \
			reduce_apply(dtype, (enum harp_coll_reduce)reduce, out, a, b, length);     \
			/* In place in the second operand, as an all-reduce does. */               \
			reduce_apply(dtype, (enum harp_coll_reduce)reduce, b, a, b, length);       \
			for (unsigned i = 0; i < length; i++) {                                    \
				double expected = plain_reduce((enum harp_coll_reduce)reduce,      \
							       i % 11, i % 7);                     \
                                                                                                   \
				CHECK((double)from(out[i]) == expected &&                          \
				      (double)from(b[i]) == expected);                             \
			}                                                                          \
		}                                                                                  \
	}

#define SAME(x) (x)

static uint16_t bfloat_of(float value)
{
	uint16_t encoded;

	half_encode(HARP_COLL_WIRE_BFLOAT16, &encoded, &value, 1);
	return encoded;
}

static float bfloat_value(uint16_t bfloat)
{
	float value;

	half_decode(HARP_COLL_WIRE_BFLOAT16, &value, &bfloat, 1);
	return value;
}

#define TO(type) (type)

TEST(all_types)
{
	TEST_TYPE(HARP_COLL_INT8, int8_t, TO(int8_t), SAME);
	TEST_TYPE(HARP_COLL_UINT8, uint8_t, TO(uint8_t), SAME);
	TEST_TYPE(HARP_COLL_INT16, int16_t, TO(int16_t), SAME);
	TEST_TYPE(HARP_COLL_UINT16, uint16_t, TO(uint16_t), SAME);
	TEST_TYPE(HARP_COLL_INT32, int32_t, TO(int32_t), SAME);
	TEST_TYPE(HARP_COLL_UINT32, uint32_t, TO(uint32_t), SAME);
	TEST_TYPE(HARP_COLL_INT64, int64_t, TO(int64_t), SAME);
	TEST_TYPE(HARP_COLL_UINT64, uint64_t, TO(uint64_t), SAME);
	TEST_TYPE(HARP_COLL_FLOAT16, uint16_t, half_from_float, half_to_float);
	TEST_TYPE(HARP_COLL_BFLOAT16, uint16_t, bfloat_of, bfloat_value);
	TEST_TYPE(HARP_COLL_FLOAT32, float, TO(float), SAME);
	TEST_TYPE(HARP_COLL_FLOAT64, double, TO(double), SAME);
}

TEST(nan_propagates)
{
	float a[3] = { NAN, 1, 2 }, b[3] = { 1, NAN, 3 }, out[3];

	for (int reduce = HARP_COLL_MIN; reduce <= HARP_COLL_MAX; reduce++) {
		reduce_apply(HARP_COLL_FLOAT32, (enum harp_coll_reduce)reduce, out, a, b, 3);
		CHECK(isnan(out[0]) && isnan(out[1]) && !isnan(out[2]));
	}
}

TEST(complex_and_bool)
{
	double a[4] = { 1, 2, 3, -1 }, b[4] = { 5, -3, 0, 2 }, out[4];
	uint8_t x[4] = { 0, 0, 1, 1 }, y[4] = { 0, 1, 0, 1 }, z[4];

	reduce_apply(HARP_COLL_COMPLEX128, HARP_COLL_PROD, out, a, b, 2);
	CHECK(out[0] == 11 && out[1] == 7 && out[2] == 2 && out[3] == 6);
	reduce_apply(HARP_COLL_COMPLEX128, HARP_COLL_SUM, out, a, b, 2);
	CHECK(out[0] == 6 && out[1] == -1 && out[2] == 3 && out[3] == 1);
	CHECK(!reduce_supported(HARP_COLL_COMPLEX64, HARP_COLL_MAX));
	CHECK(!reduce_supported(HARP_COLL_BOOL, HARP_COLL_AVG));
	CHECK(!reduce_supported(HARP_COLL_FLOAT32, HARP_COLL_BAND));
	reduce_apply(HARP_COLL_BOOL, HARP_COLL_BXOR, z, x, y, 4);
	CHECK(z[0] == 0 && z[1] == 1 && z[2] == 1 && z[3] == 0);
}

TEST(integers_wrap_and_divide)
{
	int8_t a = 127, b = 1, out;
	int32_t sums[3] = { 7, -7, 6 };

	reduce_apply(HARP_COLL_INT8, HARP_COLL_SUM, &out, &a, &b, 1);
	CHECK_EQ(out, -128);
	reduce_divide(HARP_COLL_INT32, sums, 3, 2);
	CHECK(sums[0] == 3 && sums[1] == -3 && sums[2] == 3); /* rounds toward zero */
}
