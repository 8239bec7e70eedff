/* SPDX-License-Identifier: Apache-2.0 */
/* place.c - writes received payload in whole aligned 8-byte units, in address order. */
#include "lane/place.h"

#include <string.h>

#define UNIT_BYTES 8u
#define BLOCK_BYTES 64u

/* 16 bytes: each aligned half is a unit, and CPUs do not split an aligned 8-byte store. */
typedef uint64_t vec16 __attribute__((vector_size(16), may_alias));
typedef uint64_t vec16_unaligned __attribute__((vector_size(16), may_alias, aligned(1)));
typedef uint64_t unit_t __attribute__((may_alias));
typedef uint64_t unit_unaligned_t __attribute__((may_alias, aligned(1)));

size_t place_commit_bytes(const void *dst, size_t len, size_t avail)
{
	uintptr_t begin = (uintptr_t)dst;
	uintptr_t end;

	if (avail >= len)
		return len;
	end = (begin + avail) & ~(uintptr_t)(UNIT_BYTES - 1);
	return end > begin ? end - begin : 0;
}

/* Keeps the compiler from turning the loops below into memcpy(), which has no store order, and from
 * merging their stores. */
static inline void place_barrier(void)
{
	__asm__ volatile("" ::: "memory");
}

/* Whole units from one piece: dst is aligned to a unit, n a multiple of it. */
static void place_units(uint8_t *dst, const uint8_t *src, size_t n)
{
	if (n >= UNIT_BYTES && ((uintptr_t)dst & UNIT_BYTES)) {
		*(unit_t *)dst = *(const unit_unaligned_t *)src;
		dst += UNIT_BYTES;
		src += UNIT_BYTES;
		n -= UNIT_BYTES;
		place_barrier();
	}
	for (; n >= BLOCK_BYTES; n -= BLOCK_BYTES) {
		vec16 a = *(const vec16_unaligned *)(src + 0);
		vec16 b = *(const vec16_unaligned *)(src + 16);
		vec16 c = *(const vec16_unaligned *)(src + 32);
		vec16 d = *(const vec16_unaligned *)(src + 48);

		*(vec16 *)(dst + 0) = a;
		*(vec16 *)(dst + 16) = b;
		*(vec16 *)(dst + 32) = c;
		*(vec16 *)(dst + 48) = d;
		place_barrier();
		dst += BLOCK_BYTES;
		src += BLOCK_BYTES;
	}
	for (; n >= UNIT_BYTES; n -= UNIT_BYTES) {
		*(unit_t *)dst = *(const unit_unaligned_t *)src;
		place_barrier();
		dst += UNIT_BYTES;
		src += UNIT_BYTES;
	}
}

/* Less than a unit: the unaligned start of a buffer, or the last bytes of a payload. In address
 * order, so that a flag, which follows its data, is never written first. */
static void place_bytes(uint8_t *dst, const uint8_t *src, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		dst[i] = src[i];
		place_barrier();
	}
}

const uint8_t *iov_cursor_at(struct iov_cursor *c, size_t *avail)
{
	while (c->piece < c->end && c->used == c->piece->iov_len) {
		c->piece++;
		c->used = 0;
	}
	if (c->piece == c->end) {
		*avail = 0;
		return NULL;
	}
	*avail = c->piece->iov_len - c->used;
	return (const uint8_t *)c->piece->iov_base + c->used;
}

/* Collects n bytes (at most a unit) that may lie in several pieces. */
static void cursor_take(struct iov_cursor *c, uint8_t *out, size_t n)
{
	while (n) {
		size_t avail;
		const uint8_t *src = iov_cursor_at(c, &avail);
		size_t take = n < avail ? n : avail;

		if (!src)
			return;
		memcpy(out, src, take);
		c->used += take;
		out += take;
		n -= take;
	}
}

void place_gather(void *dst_any, size_t n, const struct iovec *pieces, int piece_count)
{
	uint8_t *dst = dst_any;
	uint8_t unit[UNIT_BYTES];
	struct iov_cursor c = { pieces, pieces + piece_count, 0 };
	size_t head = (size_t)(-(uintptr_t)dst & (UNIT_BYTES - 1));

	if (head > n)
		head = n;
	if (head) {
		cursor_take(&c, unit, head);
		place_bytes(dst, unit, head);
		dst += head;
		n -= head;
	}
	while (n >= UNIT_BYTES) {
		size_t avail;
		const uint8_t *src = iov_cursor_at(&c, &avail);
		size_t whole = (avail < n ? avail : n) & ~(size_t)(UNIT_BYTES - 1);

		if (!src)
			return;
		if (whole) {
			place_units(dst, src, whole); /* COPY: the only one; counted by the lane */
			c.used += whole;
		} else { /* a unit in two pieces */
			cursor_take(&c, unit, UNIT_BYTES);
			place_units(dst, unit, UNIT_BYTES);
			whole = UNIT_BYTES;
		}
		dst += whole;
		n -= whole;
	}
	if (n) {
		cursor_take(&c, unit, n);
		place_bytes(dst, unit, n);
	}
}
