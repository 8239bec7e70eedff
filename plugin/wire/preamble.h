/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preamble.h - the preamble of a lane: mutual authentication (docs/lanes.md section 3).
 *
 *   connector                    acceptor
 *   HELLO      ------------->               nonce, listen id, features
 *              <-------------   CHALLENGE   nonce, features, proof that it knows the secret
 *   PROOF      ------------->               the connector's proof
 *              <-------------   READY       accepted into a comm, or refused with a status
 *   CONFIRM    ------------->               READY has arrived
 *
 * Every proof is a keyed hash of the transcript so far, with its own label.
 */
#ifndef HARP_PLUGIN_PREAMBLE_H
#define HARP_PLUGIN_PREAMBLE_H

#include "wire/crypto.h"
#include "wire/handle.h"
#include "wire/queue_placement.h"
#include <stddef.h>
#include "harp.h"

#define PREAMBLE_NONCE_BYTES 16u
#define PREAMBLE_KEY_BYTES HANDLE_SECRET_BYTES
#define PREAMBLE_LANES_MAX 32u
#define PREAMBLE_NICS_MAX 3u /* besides that of the handle */
#define PREAMBLE_MAC_BYTES 16u
#define PREAMBLE_HELLO_BYTES 64u
#define PREAMBLE_CHALLENGE_BYTES 48u /* plus a queue placement, NICs, and a MAC */
#define PREAMBLE_PROOF_BYTES 32u
#define PREAMBLE_READY_BYTES 32u
#define PREAMBLE_CONFIRM_BYTES 8u
#define PREAMBLE_BYTES_MAX                                                                         \
	(PREAMBLE_HELLO_BYTES + PREAMBLE_CHALLENGE_BYTES + PLACEMENT_BYTES_MAX +                   \
	 PREAMBLE_NICS_MAX * sizeof(struct nic_endpoints) + PREAMBLE_MAC_BYTES +                   \
	 PREAMBLE_PROOF_BYTES + PREAMBLE_READY_BYTES + PREAMBLE_CONFIRM_BYTES)

/* The feature word. A side ignores unknown bits of the low half, and refuses those of the high
 * half. */
#define FEATURE_NO_CREDIT 0x1ull         /* this side wants no CREDIT records (section 5.4) */
#define FEATURE_ACK_PROMPTLY 0x2ull      /* its large sends are done when TCP acknowledges them */
#define FEATURE_MULTI_LANE 0x4ull        /* connector: the comm may have more than one lane */
#define FEATURE_JOIN 0x8ull              /* connector: this lane joins an existing comm */
#define FEATURE_ENCRYPTED 0x100000000ull /* the lane is encrypted after the preamble */
#define FEATURE_MANDATORY_MASK 0xffffffff00000000ull

enum preamble_status { PREAMBLE_ACCEPTED = 0, PREAMBLE_NOT_LISTENING = 1 };

/* The terms of one side. */
struct preamble_terms {
	uint64_t features;
	uint32_t eager_bytes;
	uint8_t nonce[PREAMBLE_NONCE_BYTES];
	uint8_t index; /* connector: of this lane in its comm */
	/* Acceptor: its NICs besides that of the handle, for further lanes. */
	uint8_t nic_count;
	struct nic_endpoints nics[PREAMBLE_NICS_MAX];
	/* Acceptor, for CHALLENGE; the caller's memory. NULL: none. */
	const struct placement_end *placement;
	/* CRYPTO_PSK_BYTES, the caller's memory: encrypt the lane (FEATURE_ENCRYPTED). NULL: do
	 * not. */
	const uint8_t *psk;
};

enum preamble_step {
	PREAMBLE_SEND_HELLO,
	PREAMBLE_READ_CHALLENGE,
	PREAMBLE_SEND_PROOF,
	PREAMBLE_READ_READY,
	PREAMBLE_SEND_CONFIRM,
	PREAMBLE_READ_HELLO,
	PREAMBLE_SEND_CHALLENGE,
	PREAMBLE_READ_PROOF,
	PREAMBLE_SEND_READY,
	PREAMBLE_READ_CONFIRM,
	PREAMBLE_DONE,
};

struct preamble;
/* Acceptor: looks up the key for HELLO's listen id, or, for FEATURE_JOIN, for its comm id. False:
 * unknown. Called again after a valid PROOF, before READY. It may set p->full, and p->own.nics in
 * the first call. */
typedef bool preamble_lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES]);

struct preamble {
	enum preamble_step step;
	struct preamble_terms own, peer;
	uint64_t listen_id, comm_id;
	uint8_t key[PREAMBLE_KEY_BYTES];
	const char *what; /* error text */
	bool full; /* acceptor: over the admission limit; the lane is closed without an answer */
	preamble_lookup *lookup;
	void *lookup_ctx;
	size_t at;         /* bytes of the transcript sent and received */
	size_t sent_bytes; /* bytes of the transcript sent */
	size_t end;        /* end of the current message, as far as known */
	size_t head;       /* its begin */
	/* Connector, when done: how the acceptor's NIC chooses queues. PLACEMENT_NONE: not sent. */
	struct placement_end placement;
	uint8_t transcript[PREAMBLE_BYTES_MAX];
};

/* key: the handle's secret, or the comm key with FEATURE_JOIN. */
void preamble_connect(struct preamble *p, uint64_t listen_id, uint64_t comm_id,
		      const uint8_t key[PREAMBLE_KEY_BYTES], const struct preamble_terms *own);
void preamble_accept(struct preamble *p, const struct preamble_terms *own, preamble_lookup *lookup,
		     void *lookup_ctx);
/* True: send bytes next; false: receive. */
bool preamble_sends(const struct preamble *p);
/* The bytes to send next, or the buffer to receive to; never beyond the current message. */
uint8_t *preamble_bytes(struct preamble *p, size_t *len);
/*
 * n bytes were sent or received. 1: done, records follow. 0: continue. -EBUSY (p->full), -EPROTO,
 * -EKEYREJECTED (invalid proof), -EPROTONOSUPPORT (version or mandatory feature), -ECONNREFUSED
 * (refused by READY): with a text in p->what.
 */
int preamble_moved(struct preamble *p, size_t n);
/* When done: the comm key, which authenticates further lanes (docs/lanes.md section 3.4). */
void preamble_comm_key(const struct preamble *p, uint8_t out[PREAMBLE_KEY_BYTES]);
/* Error text for a peer with another FEATURE_ENCRYPTED. */
const char *preamble_encryption_differs(bool peer_encrypts);
/* When done: this side's keys of an encrypted lane. False: the lane is not encrypted. */
struct preamble_keys {
	uint8_t send[CRYPTO_KEY_BYTES], receive[CRYPTO_KEY_BYTES];
};
bool preamble_keys(const struct preamble *p, struct preamble_keys *out);

#endif
