/* SPDX-License-Identifier: Apache-2.0 */
/* crypto.c - AES-256-GCM by libcrypto's EVP functions, loaded by dlopen(). */
#include "wire/crypto.h"
#include "base/util.h"
#include "wire/blake2s.h"
#include "wire/record.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/*
 * Theory of operation
 *
 * The functions are declared here, from OpenSSL 3.0's manual pages EVP_EncryptInit(3),
 * EVP_CIPHER_fetch(3) and OPENSSL_init_crypto(3), so that the build needs no headers. The types are
 * opaque there, too; the constants below are part of OpenSSL's ABI.
 *
 * The process has one libcrypto, which the application may use, too. So this file uses the default
 * library context, as configured by the administrator, leaves no error in a thread's queue (a tag
 * mismatch adds none), and never unloads the library, which is not safe. If HARP is its first user,
 * its cleanup at exit() is turned off, because engine threads may be using it then.
 */

#define CRYPTO_LIBRARY "libcrypto.so.3"
#define OPENSSL_INIT_NO_ATEXIT 0x00080000ull
#define EVP_CTRL_AEAD_GET_TAG 0x10
#define EVP_CTRL_AEAD_SET_TAG 0x11
#define ENCRYPT_UNCHANGED (-1)
#define NONCE_BYTES 12u

/* name, result, arguments. A crypto_gcm is an EVP_CIPHER_CTX. */
#define CRYPTO_FUNCTIONS(FN)                                                                       \
	FN(OPENSSL_init_crypto, int, (uint64_t options, const void *settings))                     \
	FN(EVP_CIPHER_fetch, void *, (void *context, const char *name, const char *properties))    \
	FN(EVP_CIPHER_CTX_new, struct crypto_gcm *, (void))                                        \
	FN(EVP_CIPHER_CTX_free, void, (struct crypto_gcm *))                                       \
	FN(EVP_CIPHER_CTX_ctrl, int, (struct crypto_gcm *, int type, int arg, void *ptr))          \
	FN(EVP_CipherInit_ex, int,                                                                 \
	   (struct crypto_gcm *, const void *cipher, void *engine, const uint8_t *key,             \
	    const uint8_t *iv, int encrypt))                                                       \
	FN(EVP_CipherUpdate, int,                                                                  \
	   (struct crypto_gcm *, uint8_t * out, int *out_bytes, const uint8_t *in, int in_bytes))  \
	FN(EVP_CipherFinal_ex, int, (struct crypto_gcm *, uint8_t * out, int *out_bytes))

/* Writer: crypto_load. */
static struct {
#define FN(name, result, arguments) result(*name) arguments;
	CRYPTO_FUNCTIONS(FN)
#undef FN
	void *aes_256_gcm; /* NULL: not loaded */
} crypto;

static const char *const crypto_names[] = {
#define FN(name, result, arguments) #name,
	CRYPTO_FUNCTIONS(FN)
#undef FN
};
#define CRYPTO_FUNCTION_COUNT (ARRAY_SIZE(crypto_names))

/* The table is filled as an array of pointers. */
_Static_assert(sizeof(crypto) == (CRYPTO_FUNCTION_COUNT + 1) * sizeof(void *), "one type of entry");

int crypto_load(char *why, size_t why_len)
{
	void **entry = (void **)&crypto, *library;

	if (crypto.aes_256_gcm)
		return 0;
	library = dlopen(CRYPTO_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!library) {
		snprintf(why, why_len,
			 "%s cannot be opened (%s): install OpenSSL 3's library (Debian, Ubuntu: "
			 "libssl3; Red Hat: openssl-libs)",
			 CRYPTO_LIBRARY, dlerror());
		return -EPROTONOSUPPORT;
	}
	for (size_t i = 0; i < CRYPTO_FUNCTION_COUNT; i++) {
		entry[i] = dlsym(library, crypto_names[i]);
		if (!entry[i]) {
			snprintf(why, why_len,
				 "%s has no %s: it is not OpenSSL 3's; install OpenSSL 3's library",
				 CRYPTO_LIBRARY, crypto_names[i]);
			return -EPROTONOSUPPORT;
		}
	}
	if (crypto.OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL) == 1)
		crypto.aes_256_gcm = crypto.EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
	if (!crypto.aes_256_gcm) {
		snprintf(why, why_len,
			 "OpenSSL offers no AES-256-GCM here: does its configuration (openssl.cnf) "
			 "leave out the provider that has it?");
		return -EPROTONOSUPPORT;
	}
	return 0;
}

/* ---- segments ------------------------------------------------------------------------------- */

static const char label_next[] = "HARP1 next key  "; /* 16 bytes, no NUL */

int segment_flow_begin(struct segment_flow *flow, const uint8_t key[CRYPTO_KEY_BYTES], bool encrypt)
{
	flow->segment = 0;
	memcpy(flow->key, key, CRYPTO_KEY_BYTES);
	flow->gcm = crypto.EVP_CIPHER_CTX_new();
	if (!flow->gcm ||
	    crypto.EVP_CipherInit_ex(flow->gcm, crypto.aes_256_gcm, NULL, key, NULL, encrypt) != 1)
		return -ENOMEM;
	return 0;
}

void segment_flow_end(struct segment_flow *flow)
{
	if (flow->gcm)
		crypto.EVP_CIPHER_CTX_free(flow->gcm); /* and wipes it */
	explicit_bzero(flow->key, sizeof(flow->key));
}

static bool segment_change_key(struct segment_flow *flow)
{
	uint8_t next[CRYPTO_KEY_BYTES];

	blake2s(next, sizeof(next), flow->key, sizeof(flow->key), label_next,
		sizeof(label_next) - 1);
	memcpy(flow->key, next, sizeof(flow->key));
	explicit_bzero(next, sizeof(next));
	return crypto.EVP_CipherInit_ex(flow->gcm, NULL, NULL, flow->key, NULL,
					ENCRYPT_UNCHANGED) == 1;
}

/* Sets key and nonce of the next segment. Its head is authenticated, but not encrypted. */
static int segment_begin(struct segment_flow *flow, const uint8_t head[SEGMENT_HEAD_BYTES])
{
	uint8_t nonce[NONCE_BYTES] = { 0 };
	int n;

	if (flow->segment == UINT64_MAX) /* a nonce is never reused */
		return -ECONNABORTED;
	if (flow->segment && flow->segment % KEY_SEGMENTS == 0 && !segment_change_key(flow))
		return -EIO;
	wire_put64(nonce, flow->segment);
	if (crypto.EVP_CipherInit_ex(flow->gcm, NULL, NULL, NULL, nonce, ENCRYPT_UNCHANGED) != 1 ||
	    crypto.EVP_CipherUpdate(flow->gcm, NULL, &n, head, SEGMENT_HEAD_BYTES) != 1)
		return -EIO;
	return 0;
}

int segment_encrypt(struct segment_flow *flow, const struct iovec *pieces, int piece_count,
		    size_t len, uint8_t *out)
{
	int rc, n;

	wire_put32(out, (uint32_t)len);
	rc = segment_begin(flow, out);
	if (rc)
		return rc;
	flow->segment++; /* used up, even on error */
	out += SEGMENT_HEAD_BYTES;
	for (int i = 0; i < piece_count; i++) { /* COPY, and the cipher */
		if (crypto.EVP_CipherUpdate(flow->gcm, out, &n, pieces[i].iov_base,
					    (int)pieces[i].iov_len) != 1)
			return -EIO;
		out += n;
	}
	if (crypto.EVP_CipherFinal_ex(flow->gcm, out, &n) != 1 ||
	    crypto.EVP_CIPHER_CTX_ctrl(flow->gcm, EVP_CTRL_AEAD_GET_TAG, CRYPTO_TAG_BYTES, out) !=
		    1)
		return -EIO;
	return 0;
}

int segment_decrypt(struct segment_flow *flow, uint8_t *segment, size_t len)
{
	uint8_t *bytes = segment + SEGMENT_HEAD_BYTES;
	int rc = segment_begin(flow, segment), n;

	if (rc)
		return rc;
	if (crypto.EVP_CipherUpdate(flow->gcm, bytes, &n, bytes, (int)len) != 1 ||
	    crypto.EVP_CIPHER_CTX_ctrl(flow->gcm, EVP_CTRL_AEAD_SET_TAG, CRYPTO_TAG_BYTES,
				       bytes + len) != 1)
		return -EIO;
	if (crypto.EVP_CipherFinal_ex(flow->gcm, bytes + len, &n) != 1)
		return -EBADMSG;
	flow->segment++;
	return 0;
}
