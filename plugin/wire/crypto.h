/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypto.h - AES-256-GCM of OpenSSL's libcrypto.so.3, opened when it is first needed.
 *
 * The plugin itself depends on libc alone: without HARP_ENCRYPT libcrypto is never looked for.
 */
#ifndef HARP_PLUGIN_CRYPTO_H
#define HARP_PLUGIN_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define CRYPTO_PSK_BYTES 32u /* of a pre-shared key (HARP_KEY_FILE) */
#define CRYPTO_KEY_BYTES 32u
#define CRYPTO_NONCE_BYTES 12u
#define CRYPTO_TAG_BYTES 16u

/* Finds libcrypto and what is used of it; one caller at a time. 0 (also when that was done before), or
 * -EPROTONOSUPPORT with one line in why. */
int crypto_load(char *why, size_t why_len);

/* One key, one direction; used by one thread at a time, any thread. */
struct crypto_gcm;
/* crypto_load() has succeeded. NULL: no memory. */
struct crypto_gcm *crypto_gcm_new(const uint8_t key[CRYPTO_KEY_BYTES], bool encrypt);
void crypto_gcm_free(struct crypto_gcm *gcm);
/* Decrypts len bytes where they lie; the tag is behind them. -EBADMSG: they are not what was encrypted, and
 * what lies there now is worth nothing. */
int crypto_gcm_decrypt(struct crypto_gcm *gcm, const uint8_t nonce[CRYPTO_NONCE_BYTES],
		       const void *head, size_t head_bytes, uint8_t *bytes, size_t len);

/*
 * One direction of an encrypted lane: its key, its count, and its segments (docs/lanes.md section 8). A segment is the
 * length of its plaintext, the ciphertext, and the tag.
 */
#define SEGMENT_HEAD_BYTES 4u
#define SEGMENT_PLAIN_BYTES_MAX 16384u /* of a segment */
#define SEGMENT_EXTRA_BYTES (SEGMENT_HEAD_BYTES + CRYPTO_TAG_BYTES)
/* After so many segments of a direction comes the next key. */
#define KEY_SEGMENTS (1u << 20)

struct segment_flow {
	struct crypto_gcm *gcm;
	uint64_t segment; /* the next one's number */
	uint8_t key[CRYPTO_KEY_BYTES];
};

/* -ENOMEM; segment_flow_end() in any case. */
int segment_flow_begin(struct segment_flow *flow, const uint8_t key[CRYPTO_KEY_BYTES],
		       bool encrypt);
void segment_flow_end(struct segment_flow *flow);
/* Writes the next segment, len bytes from the pieces, to out: len + SEGMENT_EXTRA_BYTES. -ECONNABORTED: there is
 * no number left; -EIO. */
int segment_encrypt(struct segment_flow *flow, const struct iovec *pieces, int piece_count,
		    size_t len, uint8_t *out);
/* Opens the next segment, of len bytes of plaintext, where it lies: behind SEGMENT_HEAD_BYTES. -EBADMSG: it is not
 * what the count says, which stays; -ECONNABORTED and -EIO as above. */
int segment_decrypt(struct segment_flow *flow, uint8_t *segment, size_t len);

#endif
