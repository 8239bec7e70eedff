/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endian.h - types with a byte order. be16_t and be32_t are bytes in wire order, so they have no
 * alignment and cannot be confused with integers. Words are copied and swapped whole: compilers
 * turn bytes and shifts into a single load, but not always into a single store.
 */
#ifndef HARP_BASE_ENDIAN_H
#define HARP_BASE_ENDIAN_H

#include <endian.h>
#include <stdint.h>

typedef struct {
	uint8_t b[2];
} be16_t;
typedef struct {
	uint8_t b[4];
} be32_t;

static inline uint16_t be16_load(const uint8_t *p)
{
	uint16_t x;

	__builtin_memcpy(&x, p, sizeof(x));
	return be16toh(x);
}
static inline uint32_t be32_load(const uint8_t *p)
{
	uint32_t x;

	__builtin_memcpy(&x, p, sizeof(x));
	return be32toh(x);
}
static inline void be16_store(uint8_t *p, uint16_t x)
{
	x = htobe16(x);
	__builtin_memcpy(p, &x, sizeof(x));
}
static inline void be32_store(uint8_t *p, uint32_t x)
{
	x = htobe32(x);
	__builtin_memcpy(p, &x, sizeof(x));
}
static inline uint64_t le64_load(const uint8_t *p)
{
	uint64_t x;

	__builtin_memcpy(&x, p, sizeof(x));
	return le64toh(x);
}

static inline uint16_t be16_get(be16_t x)
{
	return be16_load(x.b);
}
static inline uint32_t be32_get(be32_t x)
{
	return be32_load(x.b);
}
static inline be16_t be16_of(uint16_t x)
{
	be16_t r;

	be16_store(r.b, x);
	return r;
}
static inline be32_t be32_of(uint32_t x)
{
	be32_t r;

	be32_store(r.b, x);
	return r;
}

#endif
