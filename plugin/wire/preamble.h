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

#define WIRE_VERSION 1u

#define PREAMBLE_NONCE_BYTES 16u
#define PREAMBLE_KEY_BYTES HANDLE_SECRET_BYTES
#define PREAMBLE_LANES_MAX 32u
#define PREAMBLE_MAC_BYTES 16u
#define PREAMBLE_HELLO_BYTES 64u
#define PREAMBLE_CHALLENGE_BYTES 48u /* plus extensions and a MAC */
#define PREAMBLE_PROOF_BYTES 32u
#define PREAMBLE_READY_BYTES 32u
#define PREAMBLE_CONFIRM_BYTES 8u
#define PREAMBLE_EXTENSION_BYTES_MAX 1024u
#define PREAMBLE_BYTES_MAX                                                                         \
	(PREAMBLE_HELLO_BYTES + PREAMBLE_CHALLENGE_BYTES + 2 * PREAMBLE_EXTENSION_BYTES_MAX +      \
	 PREAMBLE_MAC_BYTES + PREAMBLE_PROOF_BYTES + PREAMBLE_READY_BYTES +                        \
	 PREAMBLE_CONFIRM_BYTES)

/* The feature word. A side ignores unknown bits of the low half, and refuses those of the high
 * half. */
#define FEATURE_NO_CREDIT 0x1ull    /* this side wants no CREDIT records (section 5.4) */
#define FEATURE_ACK_PROMPTLY 0x2ull /* its large sends are done when TCP acknowledges them */
#define FEATURE_BUFFERED 0x4ull     /* its small messages complete before they are acknowledged */
#define FEATURE_ENCRYPTED 0x100000000ull /* the lane is encrypted after the preamble */
#define FEATURE_MANDATORY_MASK 0xffffffff00000000ull

enum preamble_status { PREAMBLE_ACCEPTED = 0, PREAMBLE_NOT_LISTENING = 1 };

/* The terms of one side. */
struct preamble_terms {
	uint64_t features;
	uint32_t eager_bytes;
	uint8_t nonce[PREAMBLE_NONCE_BYTES];
	/* Of the comm: lanes that the connector plans, or the acceptor's
	 * limit, 1..PREAMBLE_LANES_MAX. Connector: this lane's index, and whether it joins an
	 * existing comm. */
	uint8_t lanes, index;
	bool join;
	/* Acceptor, for CHALLENGE; the caller's memory. NULL, 0 bytes: none. rails: the value of
	 * extension 2, from rails_encode(). */
	const struct placement_end *placement;
	const uint8_t *rails;
	size_t rails_bytes;
	/* CRYPTO_PSK_BYTES, the caller's memory: encrypt the lane (FEATURE_ENCRYPTED). NULL: do
	 * not. */
	const uint8_t *psk;
};

/* Addresses and ports of an acceptor's NICs: extension 2 of CHALLENGE (docs/lanes.md section
 * 3.2). */
#define RAILS_EXTENSION_TYPE 2u
#define RAIL_ENTRIES_MAX 16u
#define RAILS_BYTES_MAX (4u + 32u * RAIL_ENTRIES_MAX)

/* One address of a NIC of the acceptor, in wire format. */
struct rail_entry {
	struct harp_addr addr;
	uint16_t harp_port, kernel_port; /* 0: none; at least one exists */
	uint8_t placement;               /* of the HARP port: enum placement_kind, */
	uint8_t nic;                     /* number of the NIC; 0: the NIC of the handle */
	uint16_t queues, queue;          /* of the HARP port's NIC, and its own */
	uint16_t reserved;
	uint32_t speed_mbps; /* 0: unknown */
};
_Static_assert(sizeof(struct rail_entry) == 32, "an entry of the extension");

struct rails {
	unsigned count;
	struct rail_entry entry[RAIL_ENTRIES_MAX];
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
/* Acceptor: looks up the key for HELLO's listen id, or, if p->peer.join, for its comm id and lane
 * index. False: unknown. Called again after a valid PROOF, before READY. It may set p->full, and
 * p->own.rails in the first call. */
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
	/* Connector, when done: extensions 1 and 2 of CHALLENGE: how the acceptor's NIC chooses
	 * queues, and its NICs. PLACEMENT_NOT_SAID, count 0: not sent. */
	struct placement_end placement;
	struct rails rails;
	uint8_t transcript[PREAMBLE_BYTES_MAX];
};

/* key: the handle's secret, or the comm key if own->join. */
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
/* When done: do both sides support several lanes? */
bool preamble_is_multi_lane(const struct preamble *p);
/* Error text for a peer with another FEATURE_ENCRYPTED. */
const char *preamble_encryption_differs(bool peer_encrypts);
/* When done: this side's keys of an encrypted lane. False: the lane is not encrypted. */
struct preamble_keys {
	uint8_t send[CRYPTO_KEY_BYTES], receive[CRYPTO_KEY_BYTES];
};
bool preamble_keys(const struct preamble *p, struct preamble_keys *out);

/* Returns bytes written; 0: nothing to advertise. */
size_t rails_encode(const struct rails *rails, uint8_t out[RAILS_BYTES_MAX]);
/* -EPROTO: invalid. */
int rails_decode(struct rails *out, const uint8_t *in, size_t len);

#endif
