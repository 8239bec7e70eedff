/* SPDX-License-Identifier: Apache-2.0 */
/* preamble_proof.c - the preamble's keys and proofs: hashes of its transcript, each under a label of its own. */
#include <string.h>

#include "wire/blake2s.h"
#include "wire/preamble_impl.h"

const char preamble_label_challenge[PREAMBLE_LABEL_BYTES + 1] = "HARP1 acceptor  ";
const char preamble_label_proof[PREAMBLE_LABEL_BYTES + 1] = "HARP1 connector ";
const char preamble_label_ready[PREAMBLE_LABEL_BYTES + 1] = "HARP1 ready     ";
static const char label_comm_key[PREAMBLE_LABEL_BYTES + 1] = "HARP1 comm key  ";
static const char label_sealed[PREAMBLE_LABEL_BYTES + 1] = "HARP1 sealed    ";
static const char label_connector_sends[PREAMBLE_LABEL_BYTES + 1] = "HARP1 conn sends";
static const char label_acceptor_sends[PREAMBLE_LABEL_BYTES + 1] = "HARP1 acc sends ";

/* out_bytes from the key, a label and the first len bytes of the transcript. The key is the secret, or what
 * the pre-shared key makes of it. */
static void preamble_hash(const struct preamble *p, const char *label, size_t len, uint8_t *out,
			  size_t out_bytes)
{
	uint8_t key[BLAKE2S_KEY_BYTES_MAX];
	size_t key_bytes = PREAMBLE_KEY_BYTES;
	struct blake2s state;

	memcpy(key, p->key, PREAMBLE_KEY_BYTES);
	if (p->own.psk) {
		blake2s_init(&state, sizeof(key), p->own.psk, CRYPTO_PSK_BYTES);
		blake2s_update(&state, label_sealed, PREAMBLE_LABEL_BYTES);
		blake2s_update(&state, p->key, PREAMBLE_KEY_BYTES);
		blake2s_final(&state, key);
		key_bytes = sizeof(key);
	}
	blake2s_init(&state, out_bytes, key, key_bytes);
	explicit_bzero(key, sizeof(key));
	blake2s_update(&state, label, PREAMBLE_LABEL_BYTES);
	blake2s_update(&state, p->transcript, len);
	blake2s_final(&state, out);
}

static void preamble_mac(const struct preamble *p, const char *label, size_t len,
			 uint8_t out[PREAMBLE_MAC_BYTES])
{
	preamble_hash(p, label, len, out, PREAMBLE_MAC_BYTES);
}

void preamble_sign(struct preamble *p, const char *label)
{
	preamble_mac(p, label, p->end, p->transcript + p->end);
	p->end += PREAMBLE_MAC_BYTES;
}

bool preamble_holds(const struct preamble *p, const char *label)
{
	uint8_t mac[PREAMBLE_MAC_BYTES];
	size_t signed_bytes = p->end - PREAMBLE_MAC_BYTES;

	preamble_mac(p, label, signed_bytes, mac);
	return blake2s_equal(mac, p->transcript + signed_bytes, PREAMBLE_MAC_BYTES);
}

void preamble_comm_key(const struct preamble *p, uint8_t out[PREAMBLE_KEY_BYTES])
{
	preamble_mac(p, label_comm_key, p->end, out);
}

bool preamble_keys(const struct preamble *p, struct preamble_keys *out)
{
	bool acceptor = p->lookup != NULL;

	if (!p->own.psk)
		return false;
	preamble_hash(p, label_connector_sends, p->end, acceptor ? out->receive : out->send,
		      CRYPTO_KEY_BYTES);
	preamble_hash(p, label_acceptor_sends, p->end, acceptor ? out->send : out->receive,
		      CRYPTO_KEY_BYTES);
	return true;
}
