/* SPDX-License-Identifier: Apache-2.0 */
/* preamble.c - the preamble of a lane (mutual authentication), both roles. */
#include "wire/preamble.h"

#include <errno.h>
#include <string.h>

#include "wire/record.h"
#include "wire/blake2s.h"

/*
 * Theory of operation
 *
 * Both roles keep the transcript, every byte sent or received, in one buffer. A step is either
 * "send up to end" or "read up to end". When `at` reaches `end`, preamble_next() handles the
 * message and appends the next one. A proof is the hash of all bytes before it, so it is the last
 * field of its message. Reading stops at the end of the current message: bytes after the preamble
 * stay in the lane for the comm.
 */

#define MAGIC_HELLO 0x4f4c4548u     /* "HELO" */
#define MAGIC_CHALLENGE 0x474c4843u /* "CHLG" */
#define MAGIC_PROOF 0x464f5250u     /* "PROF" */
#define MAGIC_READY 0x59444552u     /* "REDY" */
#define MAGIC_CONFIRM 0x4d464e43u   /* "CNFM" */

/* Fields that all messages have. */
#define AT_MAGIC 0
#define AT_VERSION 4
#define AT_STATUS 6   /* READY; 0 in PROOF */
#define AT_FEATURES 8 /* HELLO, CHALLENGE */
#define AT_EAGER_BYTES 16
#define HELLO_AT_INDEX 20
#define HELLO_AT_LISTEN_ID 24
#define HELLO_AT_COMM_ID 32
#define HELLO_AT_NONCE 40
#define CHALLENGE_AT_PLACEMENT_BYTES 6
#define CHALLENGE_AT_NIC_COUNT 20
#define CHALLENGE_AT_NONCE 32

#define PREAMBLE_LABEL_BYTES 16u

static const char preamble_label_challenge[PREAMBLE_LABEL_BYTES + 1] = "HARP1 acceptor  ";
static const char preamble_label_proof[PREAMBLE_LABEL_BYTES + 1] = "HARP1 connector ";
static const char preamble_label_ready[PREAMBLE_LABEL_BYTES + 1] = "HARP1 ready     ";
static const char label_comm_key[PREAMBLE_LABEL_BYTES + 1] = "HARP1 comm key  ";
static const char label_encrypted[PREAMBLE_LABEL_BYTES + 1] = "HARP1 sealed    ";
static const char label_connector_sends[PREAMBLE_LABEL_BYTES + 1] = "HARP1 conn sends";
static const char label_acceptor_sends[PREAMBLE_LABEL_BYTES + 1] = "HARP1 acc sends ";

/* Hashes a label and the first len bytes of the transcript with the key: the secret, or what the
 * pre-shared key derives from it. */
static void preamble_hash(const struct preamble *p, const char *label, size_t len, uint8_t *out,
			  size_t out_bytes)
{
	uint8_t key[BLAKE2S_KEY_BYTES_MAX];
	size_t key_bytes = PREAMBLE_KEY_BYTES;
	struct blake2s state;

	memcpy(key, p->key, PREAMBLE_KEY_BYTES);
	if (p->own.psk) {
		blake2s_init(&state, sizeof(key), p->own.psk, CRYPTO_PSK_BYTES);
		blake2s_update(&state, label_encrypted, PREAMBLE_LABEL_BYTES);
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

static void preamble_append_mac(struct preamble *p, const char *label)
{
	preamble_hash(p, label, p->end, p->transcript + p->end, PREAMBLE_MAC_BYTES);
	p->end += PREAMBLE_MAC_BYTES;
}

static bool preamble_verify_mac(const struct preamble *p, const char *label)
{
	uint8_t mac[PREAMBLE_MAC_BYTES];
	size_t signed_bytes = p->end - PREAMBLE_MAC_BYTES;

	preamble_hash(p, label, signed_bytes, mac, PREAMBLE_MAC_BYTES);
	return blake2s_equal(mac, p->transcript + signed_bytes, PREAMBLE_MAC_BYTES);
}

/* When done: the length of the transcript up to READY, which keys depend on. CONFIRM follows it. */
static size_t preamble_ready_end(const struct preamble *p)
{
	return p->head;
}

void preamble_comm_key(const struct preamble *p, uint8_t out[PREAMBLE_KEY_BYTES])
{
	preamble_hash(p, label_comm_key, preamble_ready_end(p), out, PREAMBLE_KEY_BYTES);
}

bool preamble_keys(const struct preamble *p, struct preamble_keys *out)
{
	bool acceptor = p->lookup != NULL;

	if (!p->own.psk)
		return false;
	preamble_hash(p, label_connector_sends, preamble_ready_end(p),
		      acceptor ? out->receive : out->send, CRYPTO_KEY_BYTES);
	preamble_hash(p, label_acceptor_sends, preamble_ready_end(p),
		      acceptor ? out->send : out->receive, CRYPTO_KEY_BYTES);
	return true;
}

static int preamble_fail(struct preamble *p, int error, const char *what)
{
	p->what = what;
	return error;
}

/* One side requires encryption, and the other does not encrypt. */
static int preamble_check_encryption(struct preamble *p)
{
	if (!((p->own.features ^ p->peer.features) & FEATURE_ENCRYPTED))
		return 0;
	return preamble_fail(p, -EPROTONOSUPPORT, preamble_encryption_differs(!p->own.psk));
}

const char *preamble_encryption_differs(bool peer_encrypts)
{
	return peer_encrypts
		       ? "the peer encrypts its lanes (HARP_ENCRYPT) and this process does not: "
			 "set HARP_ENCRYPT and HARP_KEY_FILE alike on every rank"
		       : "this process encrypts its lanes (HARP_ENCRYPT) and the peer does not: "
			 "set HARP_ENCRYPT and HARP_KEY_FILE alike on every rank";
}

static void preamble_init(struct preamble *p, const struct preamble_terms *own)
{
	memset(p, 0, sizeof(*p));
	p->own = *own;
	if (own->psk)
		p->own.features |= FEATURE_ENCRYPTED;
}

static uint8_t *preamble_begin(struct preamble *p, enum preamble_step step, size_t len)
{
	uint8_t *m = p->transcript + p->end;

	p->head = p->end;
	p->end += len;
	p->step = step;
	memset(m, 0, len);
	return m;
}

static void preamble_begin_signed(struct preamble *p, enum preamble_step step, uint32_t magic,
				  uint16_t status, const char *label)
{
	uint8_t *m = preamble_begin(p, step, PREAMBLE_PROOF_BYTES - PREAMBLE_MAC_BYTES);

	wire_put32(m + AT_MAGIC, magic);
	wire_put16(m + AT_VERSION, WIRE_VERSION);
	wire_put16(m + AT_STATUS, status);
	preamble_append_mac(p, label);
}

void preamble_connect(struct preamble *p, uint64_t listen_id, uint64_t comm_id,
		      const uint8_t key[PREAMBLE_KEY_BYTES], const struct preamble_terms *own)
{
	uint8_t *m;

	preamble_init(p, own);
	p->listen_id = listen_id;
	p->comm_id = comm_id;
	memcpy(p->key, key, PREAMBLE_KEY_BYTES);
	m = preamble_begin(p, PREAMBLE_SEND_HELLO, PREAMBLE_HELLO_BYTES);
	wire_put32(m + AT_MAGIC, MAGIC_HELLO);
	wire_put16(m + AT_VERSION, WIRE_VERSION);
	wire_put64(m + AT_FEATURES, p->own.features);
	wire_put32(m + AT_EAGER_BYTES, own->eager_bytes);
	m[HELLO_AT_INDEX] = own->index;
	wire_put64(m + HELLO_AT_LISTEN_ID, p->listen_id);
	wire_put64(m + HELLO_AT_COMM_ID, comm_id);
	memcpy(m + HELLO_AT_NONCE, own->nonce, PREAMBLE_NONCE_BYTES);
}

void preamble_accept(struct preamble *p, const struct preamble_terms *own, preamble_lookup *lookup,
		     void *lookup_ctx)
{
	preamble_init(p, own);
	p->lookup = lookup;
	p->lookup_ctx = lookup_ctx;
	preamble_begin(p, PREAMBLE_READ_HELLO, PREAMBLE_HELLO_BYTES);
}

/* Reads the fields that HELLO and CHALLENGE share. */
static int preamble_read_terms(struct preamble *p, uint32_t magic)
{
	const uint8_t *m = p->transcript + p->head;

	if (wire_get32(m + AT_MAGIC) != magic)
		return preamble_fail(p, -EPROTO, "not HARP's preamble");
	if (wire_get16(m + AT_VERSION) != WIRE_VERSION)
		return preamble_fail(p, -EPROTONOSUPPORT, "another wire version");
	p->peer.features = wire_get64(m + AT_FEATURES);
	p->peer.eager_bytes = wire_get32(m + AT_EAGER_BYTES);
	if (p->peer.features & FEATURE_MANDATORY_MASK & ~FEATURE_ENCRYPTED)
		return preamble_fail(p, -EPROTONOSUPPORT, "an unknown mandatory feature");
	return 0;
}

/* label NULL: the message has no proof. */
static int preamble_check_short(struct preamble *p, uint32_t magic, const char *label)
{
	const uint8_t *m = p->transcript + p->head;

	if (wire_get32(m + AT_MAGIC) != magic || wire_get16(m + AT_VERSION) != WIRE_VERSION)
		return preamble_fail(p, -EPROTO, "not the next message of the preamble");
	if (label && !preamble_verify_mac(p, label))
		return preamble_fail(p, -EKEYREJECTED, "the peer's proof is wrong");
	return 0;
}

static void preamble_begin_challenge(struct preamble *p)
{
	uint8_t placement[PLACEMENT_BYTES_MAX], *m;
	size_t len = p->own.placement ? placement_encode(p->own.placement, placement) : 0;
	size_t nic_bytes = p->own.nic_count * sizeof(p->own.nics[0]);

	m = preamble_begin(p, PREAMBLE_SEND_CHALLENGE, PREAMBLE_CHALLENGE_BYTES + len + nic_bytes);
	wire_put32(m + AT_MAGIC, MAGIC_CHALLENGE);
	wire_put16(m + AT_VERSION, WIRE_VERSION);
	wire_put16(m + CHALLENGE_AT_PLACEMENT_BYTES, (uint16_t)len);
	wire_put64(m + AT_FEATURES, p->own.features);
	wire_put32(m + AT_EAGER_BYTES, p->own.eager_bytes);
	m[CHALLENGE_AT_NIC_COUNT] = p->own.nic_count;
	memcpy(m + CHALLENGE_AT_NONCE, p->own.nonce, PREAMBLE_NONCE_BYTES);
	memcpy(m + PREAMBLE_CHALLENGE_BYTES, placement, len);
	memcpy(m + PREAMBLE_CHALLENGE_BYTES + len, p->own.nics, nic_bytes);
	preamble_append_mac(p, preamble_label_challenge);
}

static int preamble_got_hello(struct preamble *p)
{
	const uint8_t *m = p->transcript + p->head;
	int rc = preamble_read_terms(p, MAGIC_HELLO);
	bool joins;

	if (rc)
		return rc;
	joins = p->peer.features & FEATURE_JOIN;
	p->listen_id = wire_get64(m + HELLO_AT_LISTEN_ID);
	p->comm_id = wire_get64(m + HELLO_AT_COMM_ID);
	p->peer.index = m[HELLO_AT_INDEX];
	if (p->peer.index >= (joins ? PREAMBLE_LANES_MAX : 1))
		return preamble_fail(p, -EPROTO, "an invalid lane index");
	if (!p->lookup(p->lookup_ctx, p, p->key))
		return preamble_fail(p, -ECONNREFUSED,
				     joins ? "there is no comm of that id"
					   : "no listener has that id");
	if (p->full)
		return preamble_fail(p, -EBUSY, "too many connections are pending");
	rc = preamble_check_encryption(p);
	if (rc)
		return rc;
	preamble_begin_challenge(p);
	return 0;
}

/* CHALLENGE is read in two steps: its fixed part has the lengths of the others. */
static int preamble_got_challenge(struct preamble *p)
{
	const uint8_t *m = p->transcript + p->head, *rest = m + PREAMBLE_CHALLENGE_BYTES;
	size_t len = wire_get16(m + CHALLENGE_AT_PLACEMENT_BYTES);
	uint8_t nic_count = m[CHALLENGE_AT_NIC_COUNT];
	int rc = preamble_read_terms(p, MAGIC_CHALLENGE);

	if (rc)
		return rc;
	if (len > PLACEMENT_BYTES_MAX || nic_count > PREAMBLE_NICS_MAX)
		return preamble_fail(p, -EPROTO, "an invalid length in CHALLENGE");
	if (p->end == p->head + PREAMBLE_CHALLENGE_BYTES) {
		p->end += len + nic_count * sizeof(p->peer.nics[0]) + PREAMBLE_MAC_BYTES;
		return 0;
	}
	rc = preamble_check_encryption(p);
	if (rc)
		return rc;
	if (!preamble_verify_mac(p, preamble_label_challenge))
		return preamble_fail(p, -EKEYREJECTED,
				     p->own.psk ? "the listener's proof is wrong: do the "
						  "pre-shared keys (HARP_KEY_FILE) differ?"
						: "the listener's proof is wrong");
	if (len && placement_decode(&p->placement, rest, len))
		return preamble_fail(p, -EPROTO, "an invalid queue placement in CHALLENGE");
	p->peer.nic_count = nic_count;
	memcpy(p->peer.nics, rest + len, nic_count * sizeof(p->peer.nics[0]));
	preamble_begin_signed(p, PREAMBLE_SEND_PROOF, MAGIC_PROOF, 0, preamble_label_proof);
	return 0;
}

static int preamble_got_proof(struct preamble *p)
{
	uint8_t key[PREAMBLE_KEY_BYTES];
	int rc = preamble_check_short(p, MAGIC_PROOF, preamble_label_proof);
	bool accepted;

	if (rc)
		return rc;
	accepted = p->lookup(p->lookup_ctx, p, key);
	if (p->full)
		return preamble_fail(p, -EBUSY, "too many comms wait for accept");
	/* If the listener has closed meanwhile, refuse explicitly. */
	preamble_begin_signed(p, PREAMBLE_SEND_READY, MAGIC_READY,
			      accepted ? PREAMBLE_ACCEPTED : PREAMBLE_NOT_LISTENING,
			      preamble_label_ready);
	return 0;
}

static int preamble_got_ready(struct preamble *p)
{
	int rc = preamble_check_short(p, MAGIC_READY, preamble_label_ready);
	uint8_t *m;

	if (rc)
		return rc;
	if (wire_get16(p->transcript + p->head + AT_STATUS) != PREAMBLE_ACCEPTED)
		return preamble_fail(p, -ECONNREFUSED, "the listener or comm is closed");
	m = preamble_begin(p, PREAMBLE_SEND_CONFIRM, PREAMBLE_CONFIRM_BYTES);
	wire_put32(m + AT_MAGIC, MAGIC_CONFIRM);
	wire_put16(m + AT_VERSION, WIRE_VERSION);
	return 0;
}

/* The current message is complete. 1: done, 0: continue, or the error. */
static int preamble_next(struct preamble *p)
{
	int rc;

	switch (p->step) {
	case PREAMBLE_SEND_HELLO:
		preamble_begin(p, PREAMBLE_READ_CHALLENGE, PREAMBLE_CHALLENGE_BYTES);
		return 0;
	case PREAMBLE_READ_CHALLENGE:
		return preamble_got_challenge(p);
	case PREAMBLE_SEND_PROOF:
		preamble_begin(p, PREAMBLE_READ_READY, PREAMBLE_READY_BYTES);
		return 0;
	case PREAMBLE_READ_READY:
		return preamble_got_ready(p);
	case PREAMBLE_READ_HELLO:
		return preamble_got_hello(p);
	case PREAMBLE_SEND_CHALLENGE:
		preamble_begin(p, PREAMBLE_READ_PROOF, PREAMBLE_PROOF_BYTES);
		return 0;
	case PREAMBLE_READ_PROOF:
		return preamble_got_proof(p);
	case PREAMBLE_SEND_READY:
		if (wire_get16(p->transcript + p->head + AT_STATUS) != PREAMBLE_ACCEPTED)
			return preamble_fail(p, -ECONNREFUSED, "no listener has that id");
		preamble_begin(p, PREAMBLE_READ_CONFIRM, PREAMBLE_CONFIRM_BYTES);
		return 0;
	case PREAMBLE_READ_CONFIRM:
		rc = preamble_check_short(p, MAGIC_CONFIRM, NULL);
		if (rc)
			return rc;
		break;
	case PREAMBLE_SEND_CONFIRM:
	case PREAMBLE_DONE:
		break;
	}
	p->step = PREAMBLE_DONE;
	return 1;
}

bool preamble_sends(const struct preamble *p)
{
	return p->step == PREAMBLE_SEND_HELLO || p->step == PREAMBLE_SEND_PROOF ||
	       p->step == PREAMBLE_SEND_CHALLENGE || p->step == PREAMBLE_SEND_READY ||
	       p->step == PREAMBLE_SEND_CONFIRM;
}

uint8_t *preamble_bytes(struct preamble *p, size_t *len)
{
	*len = p->end - p->at;
	return p->transcript + p->at;
}

int preamble_moved(struct preamble *p, size_t n)
{
	if (preamble_sends(p))
		p->sent_bytes += n;
	p->at += n;
	return p->at == p->end ? preamble_next(p) : 0;
}
