/* SPDX-License-Identifier: Apache-2.0 */
/* keyfile.h - the pre-shared key of HARP_KEY_FILE in this process. */
#ifndef HARP_PLUGIN_KEYFILE_H
#define HARP_PLUGIN_KEYFILE_H

#include <stddef.h>
#include <stdint.h>

#include "wire/crypto.h"

/*
 * Called by the first init, before the key is used. Reads the key if encryption is required: by
 * HARP_ENCRYPT, or by a key file that HARP_KEY_FILE names or that exists at host_path
 * (HARP_CONFIG_KEY_FILE). 0; -EINVAL (no usable file, or one that contradicts HARP_ENCRYPT=off),
 * -EPROTONOSUPPORT (no libcrypto), -ENOMEM, each with one WARN that includes the remedy.
 */
int keyfile_load(const char *host_path);
/* Called with the last context: wipes the key. */
void keyfile_forget(void);
/* CRYPTO_PSK_BYTES; NULL: lanes are not encrypted. */
const uint8_t *keyfile_key(void);

/* Reads 64 hexadecimal digits from a file that no other user can read. 0, or -errno with one line
 * in why. */
int keyfile_read(const char *path, uint8_t key[CRYPTO_PSK_BYTES], char *why, size_t why_len);

/*
 * Reads a text file that no other user can write, into text, which has bytes_max + 2 bytes. 1:
 * read; 0: no such file; -EINVAL: it cannot be read or trusted, with the reason in why.
 */
int toml_read(const char *path, char *text, size_t bytes_max, char *why, size_t why_len);

/*
 * 1: line *line of the file may require encryption; 0: no line does, or there is no file. -EINVAL:
 * unknown (no permission, not a regular file, writable by others), with the reason in why.
 */
int toml_scan_encrypt(const char *path, unsigned *line, char *why, size_t why_len);

#endif
