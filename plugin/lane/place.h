/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h - copies received bytes to memory that a GPU may be reading (NCCL's LL protocol).
 *
 * NCCL contract section 4.3: the reader accepts an 8-byte {data, flag} unit as soon as it sees the
 * flag, before the message is complete. So each aligned 8-byte unit is written by one aligned store
 * of 8 bytes or more, in address order. A unit is not written until all of its bytes have arrived.
 */
#ifndef HARP_PLUGIN_PLACE_H
#define HARP_PLUGIN_PLACE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * How many of the `avail` bytes that have arrived for dst may be written now: all if they include
 * the payload's end (avail >= len), else up to the last 8-byte boundary of the address.
 */
size_t place_commit_bytes(const void *dst, size_t len, size_t avail);

/* A position in an iovec array. */
struct iov_cursor {
	const struct iovec *piece, *end;
	size_t used; /* of *piece */
};
/* The contiguous bytes at the cursor, and their number in *avail; NULL at the end. */
const uint8_t *iov_cursor_at(struct iov_cursor *c, size_t *avail);

/* Writes n bytes, gathered from pieces in order (which hold at least n), to dst. */
void place_gather(void *dst, size_t n, const struct iovec *pieces, int piece_count);

#endif
