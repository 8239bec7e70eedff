/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_reduce.c - element-wise arithmetic of all types.
 *
 * Each loop is a function without inner branches, which the compiler vectorizes; COLL_CLONES
 * compiles it for several instruction sets. Floating-point expressions are evaluated as written (no
 * -ffast-math), because the algorithms define the order of additions.
 */
#include "coll_half.h"
#include "coll_impl.h"

typedef void reduce_fn(void *dst, const void *a, const void *b, size_t count);

#define LOOP(name, type, expression)                                                               \
	COLL_CLONES static void name(void *dst_, const void *a_, const void *b_, size_t count)     \
	{                                                                                          \
		type *dst = dst_;                                                                  \
		const type *a = a_, *b = b_;                                                       \
                                                                                                   \
		COLL_INDEPENDENT                                                                   \
		for (size_t i = 0; i < count; i++) {                                               \
			type x = a[i], y = b[i];                                                   \
                                                                                                   \
			dst[i] = (type)(expression);                                               \
		}                                                                                  \
	}

/* Signed sums and products wrap, as in numpy: they are computed in the unsigned type. */
#define INTEGER(name, type, wide)                                                                  \
	LOOP(reduce_sum_##name, type, (wide)x + (wide)y)                                           \
	LOOP(reduce_prod_##name, type, (wide)x *(wide)y)                                           \
	LOOP(reduce_min_##name, type, x < y ? x : y)                                               \
	LOOP(reduce_max_##name, type, x > y ? x : y)                                               \
	LOOP(reduce_band_##name, type, x &y)                                                       \
	LOOP(reduce_bor_##name, type, x | y)                                                       \
	LOOP(reduce_bxor_##name, type, x ^ y)

INTEGER(int8, int8_t, uint32_t)
INTEGER(uint8, uint8_t, uint32_t)
INTEGER(int16, int16_t, uint32_t)
INTEGER(uint16, uint16_t, uint32_t)
INTEGER(int32, int32_t, uint32_t)
INTEGER(uint32, uint32_t, uint32_t)
INTEGER(int64, int64_t, uint64_t)
INTEGER(uint64, uint64_t, uint64_t)

/* x != x: NaN. */
#define FLOATING(name, type)                                                                       \
	LOOP(reduce_sum_##name, type, x + y)                                                       \
	LOOP(reduce_prod_##name, type, x *y)                                                       \
	LOOP(reduce_min_##name, type, (x < y) | (x != x) ? x : y)                                  \
	LOOP(reduce_max_##name, type, (x > y) | (x != x) ? x : y)

FLOATING(float32, float)
FLOATING(float64, double)

#define HALF(name, widen, narrow)                                                                  \
	LOOP(reduce_sum_##name, uint16_t, narrow(widen(x) + widen(y)))                             \
	LOOP(reduce_prod_##name, uint16_t, narrow(widen(x) * widen(y)))                            \
	LOOP(reduce_min_##name, uint16_t, (widen(x) < widen(y)) | (widen(x) != widen(x)) ? x : y)  \
	LOOP(reduce_max_##name, uint16_t, (widen(x) > widen(y)) | (widen(x) != widen(x)) ? x : y)

HALF(float16, half_widen, half_narrow)
HALF(bfloat16, bfloat_widen, bfloat_narrow)

#define COMPLEX(name, type)                                                                        \
	COLL_CLONES static void reduce_sum_##name(void *dst_, const void *a_, const void *b_,      \
						  size_t count)                                    \
	{                                                                                          \
		type *dst = dst_;                                                                  \
		const type *a = a_, *b = b_;                                                       \
                                                                                                   \
		COLL_INDEPENDENT                                                                   \
		for (size_t i = 0; i < 2 * count; i++)                                             \
			dst[i] = a[i] + b[i];                                                      \
	}                                                                                          \
	static void reduce_prod_##name(void *dst_, const void *a_, const void *b_, size_t count)   \
	{                                                                                          \
		type *dst = dst_;                                                                  \
		const type *a = a_, *b = b_;                                                       \
                                                                                                   \
		for (size_t i = 0; i < 2 * count; i += 2) {                                        \
			type real = a[i] * b[i] - a[i + 1] * b[i + 1];                             \
			type imaginary = a[i] * b[i + 1] + a[i + 1] * b[i];                        \
                                                                                                   \
			dst[i] = real;                                                             \
			dst[i + 1] = imaginary;                                                    \
		}                                                                                  \
	}

COMPLEX(complex64, float)
COMPLEX(complex128, double)

LOOP(reduce_or_bool, uint8_t, (x | y) != 0)
LOOP(reduce_and_bool, uint8_t, (x != 0) & (y != 0))
LOOP(reduce_xor_bool, uint8_t, (x != 0) ^ (y != 0))

#define INTEGER_ROW(name)                                                                          \
	{                                                                                          \
		reduce_sum_##name, reduce_sum_##name, reduce_prod_##name, reduce_min_##name,       \
			reduce_max_##name, reduce_band_##name, reduce_bor_##name,                  \
			reduce_bxor_##name,                                                        \
	}
#define FLOATING_ROW(name)                                                                         \
	{                                                                                          \
		reduce_sum_##name, reduce_sum_##name, reduce_prod_##name, reduce_min_##name,       \
			reduce_max_##name,                                                         \
	}
#define COMPLEX_ROW(name)                                                                          \
	{                                                                                          \
		reduce_sum_##name, reduce_sum_##name, reduce_prod_##name,                          \
	}

static reduce_fn *const reduce_table[HARP_COLL_DTYPES][HARP_COLL_REDUCES] = {
	[HARP_COLL_INT8] = INTEGER_ROW(int8),
	[HARP_COLL_UINT8] = INTEGER_ROW(uint8),
	[HARP_COLL_INT16] = INTEGER_ROW(int16),
	[HARP_COLL_UINT16] = INTEGER_ROW(uint16),
	[HARP_COLL_INT32] = INTEGER_ROW(int32),
	[HARP_COLL_UINT32] = INTEGER_ROW(uint32),
	[HARP_COLL_INT64] = INTEGER_ROW(int64),
	[HARP_COLL_UINT64] = INTEGER_ROW(uint64),
	[HARP_COLL_FLOAT16] = FLOATING_ROW(float16),
	[HARP_COLL_BFLOAT16] = FLOATING_ROW(bfloat16),
	[HARP_COLL_FLOAT32] = FLOATING_ROW(float32),
	[HARP_COLL_FLOAT64] = FLOATING_ROW(float64),
	[HARP_COLL_COMPLEX64] = COMPLEX_ROW(complex64),
	[HARP_COLL_COMPLEX128] = COMPLEX_ROW(complex128),
	[HARP_COLL_BOOL] = { [HARP_COLL_SUM] = reduce_or_bool,
			     [HARP_COLL_PROD] = reduce_and_bool,
			     [HARP_COLL_MIN] = reduce_and_bool,
			     [HARP_COLL_MAX] = reduce_or_bool,
			     [HARP_COLL_BAND] = reduce_and_bool,
			     [HARP_COLL_BOR] = reduce_or_bool,
			     [HARP_COLL_BXOR] = reduce_xor_bool },
};

bool reduce_supported(enum harp_coll_dtype dtype, enum harp_coll_reduce reduce)
{
	return reduce_table[dtype][reduce] != NULL;
}

void reduce_apply(enum harp_coll_dtype dtype, enum harp_coll_reduce reduce, void *dst,
		  const void *a, const void *b, size_t count)
{
	reduce_table[dtype][reduce](dst, a, b, count);
}

#define DIVIDE(name, type, expression)                                                             \
	COLL_CLONES static void name(void *dst_, size_t count, unsigned divisor_)                  \
	{                                                                                          \
		type *dst = dst_;                                                                  \
                                                                                                   \
		COLL_INDEPENDENT                                                                   \
		for (size_t i = 0; i < count; i++) {                                               \
			type x = dst[i];                                                           \
                                                                                                   \
			dst[i] = (type)(expression);                                               \
		}                                                                                  \
	}

DIVIDE(divide_int8, int8_t, x / (int)divisor_)
DIVIDE(divide_uint8, uint8_t, x / divisor_)
DIVIDE(divide_int16, int16_t, x / (int)divisor_)
DIVIDE(divide_uint16, uint16_t, x / divisor_)
DIVIDE(divide_int32, int32_t, x / (int)divisor_)
DIVIDE(divide_uint32, uint32_t, x / divisor_)
DIVIDE(divide_int64, int64_t, x / (int64_t)divisor_)
DIVIDE(divide_uint64, uint64_t, x / divisor_)
DIVIDE(divide_float16, uint16_t, half_narrow(half_widen(x) / (float)divisor_))
DIVIDE(divide_bfloat16, uint16_t, bfloat_narrow(bfloat_widen(x) / (float)divisor_))
DIVIDE(divide_float32, float, x / (float)divisor_)
DIVIDE(divide_float64, double, x / divisor_)

void reduce_divide(enum harp_coll_dtype dtype, void *dst, size_t count, unsigned divisor)
{
	static void (*const table[HARP_COLL_DTYPES])(void *, size_t, unsigned) = {
		[HARP_COLL_INT8] = divide_int8,         [HARP_COLL_UINT8] = divide_uint8,
		[HARP_COLL_INT16] = divide_int16,       [HARP_COLL_UINT16] = divide_uint16,
		[HARP_COLL_INT32] = divide_int32,       [HARP_COLL_UINT32] = divide_uint32,
		[HARP_COLL_INT64] = divide_int64,       [HARP_COLL_UINT64] = divide_uint64,
		[HARP_COLL_FLOAT16] = divide_float16,   [HARP_COLL_BFLOAT16] = divide_bfloat16,
		[HARP_COLL_FLOAT32] = divide_float32,   [HARP_COLL_FLOAT64] = divide_float64,
		[HARP_COLL_COMPLEX64] = divide_float32, [HARP_COLL_COMPLEX128] = divide_float64,
	};
	bool is_complex = dtype == HARP_COLL_COMPLEX64 || dtype == HARP_COLL_COMPLEX128;

	table[dtype](dst, is_complex ? 2 * count : count, divisor);
}
