/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blake2s.h - the keyed hash of RFC 7693 (BLAKE2s, up to 32 bytes), for the lanes' preambles.
 *
 * out_len is 1..32 and key_len 0..32, by assertion.
 */
#ifndef HARP_PLUGIN_BLAKE2S_H
#define HARP_PLUGIN_BLAKE2S_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLAKE2S_OUT_BYTES_MAX 32u
#define BLAKE2S_KEY_BYTES_MAX 32u
#define BLAKE2S_BLOCK_BYTES 64u

struct blake2s {
	uint32_t h[8];
	uint64_t hashed_bytes;
	uint8_t block[BLAKE2S_BLOCK_BYTES]; /* held back: the last block is hashed differently */
	uint32_t block_bytes;
	uint32_t out_bytes;
};

void blake2s_init(struct blake2s *state, size_t out_len, const void *key, size_t key_len);
void blake2s_update(struct blake2s *state, const void *data, size_t len);
/* Writes out_len bytes and wipes the state. */
void blake2s_final(struct blake2s *state, void *out);
/* Init, update and final in one call. */
void blake2s(void *out, size_t out_len, const void *key, size_t key_len, const void *data,
	     size_t len);
/* Compares in constant time. */
bool blake2s_equal(const void *a, const void *b, size_t len);

#endif
