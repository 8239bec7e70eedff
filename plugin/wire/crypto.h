/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypto.h - AES-256-GCM of OpenSSL's libcrypto.so.3, loaded when first needed.
 *
 * The plugin itself depends on libc only: without encryption, libcrypto is not loaded.
 */
#ifndef HARP_PLUGIN_CRYPTO_H
#define HARP_PLUGIN_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define CRYPTO_PSK_BYTES 32u /* of a pre-shared key (HARP_KEY_FILE) */
#define CRYPTO_KEY_BYTES 32u
#define CRYPTO_TAG_BYTES 16u

/* Loads libcrypto unless that was done; one caller at a time. 0, or -EPROTONOSUPPORT with one line
 * in why. */
int crypto_load(char *why, size_t why_len);

/*
 * One direction of an encrypted lane: its key and segment counter (docs/lanes.md section 8). A
 * segment is the length of its plaintext, the ciphertext, and the tag.
 */
#define SEGMENT_HEAD_BYTES 4u
#define SEGMENT_PLAIN_BYTES_MAX 16384u /* of a segment */
#define SEGMENT_EXTRA_BYTES (SEGMENT_HEAD_BYTES + CRYPTO_TAG_BYTES)
/* A direction's key changes after this many segments. */
#define KEY_SEGMENTS (1u << 20)

struct crypto_gcm;
struct segment_flow {
	struct crypto_gcm *gcm;
	uint64_t segment; /* the next one's number */
	uint8_t key[CRYPTO_KEY_BYTES];
};

/* Called after crypto_load() succeeded. */
/* -ENOMEM; segment_flow_end() in any case. */
int segment_flow_begin(struct segment_flow *flow, const uint8_t key[CRYPTO_KEY_BYTES],
		       bool encrypt);
void segment_flow_end(struct segment_flow *flow);
/* Writes the next segment with len bytes from the pieces to out: len + SEGMENT_EXTRA_BYTES bytes.
 * -ECONNABORTED: out of segment numbers; -EIO: libcrypto failed. */
int segment_encrypt(struct segment_flow *flow, const struct iovec *pieces, int piece_count,
		    size_t len, uint8_t *out);
/* Decrypts the next segment in place: len bytes of plaintext, after SEGMENT_HEAD_BYTES. -EBADMSG:
 * authentication failed, and the counter stays; -ECONNABORTED and -EIO as above. */
int segment_decrypt(struct segment_flow *flow, uint8_t *segment, size_t len);

#endif
