/* SPDX-License-Identifier: Apache-2.0 */
/* seal.c - segments of a sealed lane: who may be next, and under which key. */
#include "wire/seal.h"

#include <errno.h>
#include <string.h>

#include "wire/blake2s.h"
#include "wire/record.h"

static const char label_next[] = "HARP1 next key  "; /* 16 bytes, no NUL */

int seal_begin(struct seal_flow *flow, const uint8_t key[CRYPTO_KEY_BYTES], bool encrypt)
{
	flow->segment = 0;
	memcpy(flow->key, key, CRYPTO_KEY_BYTES);
	flow->gcm = crypto_gcm_new(key, encrypt);
	return flow->gcm ? 0 : -ENOMEM;
}

void seal_end(struct seal_flow *flow)
{
	crypto_gcm_free(flow->gcm);
	explicit_bzero(flow->key, sizeof(flow->key));
}

/* The nonce of the next segment; before it, when its time has come, the next key. */
static int seal_advance(struct seal_flow *flow, uint8_t nonce[CRYPTO_NONCE_BYTES])
{
	uint64_t segment = flow->segment;

	if (segment == UINT64_MAX) /* a nonce never comes again */
		return -ECONNABORTED;
	if (segment && segment % SEAL_KEY_SEGMENTS == 0) {
		uint8_t next[CRYPTO_KEY_BYTES];
		int rc;

		blake2s(next, sizeof(next), flow->key, sizeof(flow->key), label_next,
			sizeof(label_next) - 1);
		memcpy(flow->key, next, sizeof(flow->key));
		explicit_bzero(next, sizeof(next));
		rc = crypto_gcm_rekey(flow->gcm, flow->key);
		if (rc)
			return rc;
	}
	wire_put64(nonce, segment);
	memset(nonce + 8, 0, CRYPTO_NONCE_BYTES - 8);
	return 0;
}

int seal_close(struct seal_flow *flow, const struct iovec *pieces, int piece_count, size_t len,
	       uint8_t *out)
{
	uint8_t nonce[CRYPTO_NONCE_BYTES];
	int rc = seal_advance(flow, nonce);

	if (rc)
		return rc;
	flow->segment++; /* whatever comes: this number is used up */
	wire_put32(out, (uint32_t)len);
	return crypto_gcm_seal(flow->gcm, nonce, out, SEAL_HEAD_BYTES, pieces, piece_count,
			       out + SEAL_HEAD_BYTES); /* COPY, and the cipher */
}

int seal_open(struct seal_flow *flow, uint8_t *segment, size_t len)
{
	uint8_t nonce[CRYPTO_NONCE_BYTES];
	int rc = seal_advance(flow, nonce);

	if (!rc)
		rc = crypto_gcm_open(flow->gcm, nonce, segment, SEAL_HEAD_BYTES,
				     segment + SEAL_HEAD_BYTES, len);
	if (!rc)
		flow->segment++;
	return rc;
}
