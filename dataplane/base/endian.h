/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endian.h - byte order in the type: be16_t and be32_t are bytes as a packet has them, so they have
 * no alignment and can't be mixed up with numbers. Compilers make one load and a swap of each.
 */
#ifndef HARP_BASE_ENDIAN_H
#define HARP_BASE_ENDIAN_H

#include <stdint.h>

typedef struct {
	uint8_t b[2];
} be16_t;
typedef struct {
	uint8_t b[4];
} be32_t;

static inline uint16_t be16_load(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}
static inline uint32_t be32_load(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline void be16_store(uint8_t *p, uint16_t x)
{
	p[0] = (uint8_t)(x >> 8);
	p[1] = (uint8_t)x;
}
static inline void be32_store(uint8_t *p, uint32_t x)
{
	p[0] = (uint8_t)(x >> 24);
	p[1] = (uint8_t)(x >> 16);
	p[2] = (uint8_t)(x >> 8);
	p[3] = (uint8_t)x;
}
static inline uint64_t le64_load(const uint8_t *p)
{
	return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
	       (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 |
	       (uint64_t)p[7] << 56;
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
