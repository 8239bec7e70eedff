/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h - putting received bytes where a GPU may already be reading (NCCL's LL protocol).
 *
 * NCCL contract section 4.3: the reader accepts an 8-byte {data, flag} unit as soon as its flag is
 * there, long before the message is complete. So an aligned 8-byte unit must appear at once: every
 * one is written by one aligned store of 8 bytes or more, in address order, and a unit of which
 * some bytes have not arrived is not touched.
 */
#ifndef HARP_PLUGIN_PLACE_H
#define HARP_PLUGIN_PLACE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * Of `avail` bytes that have arrived for dst, how many may be written now: all when they reach the
 * payload's end (avail >= len), else up to the last 8-byte boundary of the address.
 */
size_t place_commit_bytes(const void *dst, size_t len, size_t avail);

/* A place in an iovec. */
struct iov_cursor {
	const struct iovec *piece, *end;
	size_t used; /* of *piece */
};
/* What is there, in one piece of avail bytes; NULL at the end. */
const uint8_t *iov_cursor_at(struct iov_cursor *c, size_t *avail);

/* Writes n bytes, gathered from pieces in order (which hold at least n), to dst. */
void place_gather(void *dst, size_t n, const struct iovec *pieces, int piece_count);

#endif
