/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.h - one direction of a sealed lane: its key, its count, and its segments (docs/lanes.md section 8).
 *
 * A segment is the length of its plaintext, the ciphertext, the tag.
 */
#ifndef HARP_PLUGIN_SEAL_H
#define HARP_PLUGIN_SEAL_H

#include "wire/crypto.h"

#define SEAL_HEAD_BYTES 4u
#define SEAL_PLAIN_BYTES_MAX 16384u /* of a segment */
#define SEAL_EXTRA_BYTES (SEAL_HEAD_BYTES + CRYPTO_TAG_BYTES)
/* After so many segments of a direction comes the next key. */
#define SEAL_KEY_SEGMENTS (1u << 20)

struct seal_flow {
	struct crypto_gcm *gcm;
	uint64_t segment; /* the next one's number */
	uint8_t key[CRYPTO_KEY_BYTES];
};

/* -ENOMEM; seal_end() in any case. */
int seal_begin(struct seal_flow *flow, const uint8_t key[CRYPTO_KEY_BYTES], bool encrypt);
void seal_end(struct seal_flow *flow);
/* Writes the next segment, len bytes from the pieces, to out: len + SEAL_EXTRA_BYTES. -ECONNABORTED: there is
 * no number left; -EIO. */
int seal_close(struct seal_flow *flow, const struct iovec *pieces, int piece_count, size_t len,
	       uint8_t *out);
/* Opens the next segment, of len bytes of plaintext, where it lies: behind SEAL_HEAD_BYTES. -EBADMSG: it is not
 * what the count says, which stays; -ECONNABORTED and -EIO as above. */
int seal_open(struct seal_flow *flow, uint8_t *segment, size_t len);

#endif
