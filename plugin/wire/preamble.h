/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preamble.h - the mutual proof at the beginning of a lane (docs/lanes.md section 3).
 *
 *   connector                    acceptor
 *   HELLO      ------------->               nonce, listen id, features
 *              <-------------   CHALLENGE   nonce, features, proof that it knows the secret
 *   PROOF      ------------->               the connector's proof
 *              <-------------   READY       accepted into a comm, or refused with a status
 *   CONFIRM    ------------->               READY has arrived
 *
 * Every proof is a keyed hash of the whole transcript so far under its own label.
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
#define PREAMBLE_CHALLENGE_BYTES 48u /* and extensions, and a MAC */
#define PREAMBLE_PROOF_BYTES 32u
#define PREAMBLE_READY_BYTES 32u
#define PREAMBLE_CONFIRM_BYTES 8u
#define PREAMBLE_EXTENSION_BYTES_MAX 1024u
#define PREAMBLE_BYTES_MAX                                                                         \
	(PREAMBLE_HELLO_BYTES + PREAMBLE_CHALLENGE_BYTES + 2 * PREAMBLE_EXTENSION_BYTES_MAX +      \
	 PREAMBLE_MAC_BYTES + PREAMBLE_PROOF_BYTES + PREAMBLE_READY_BYTES +                        \
	 PREAMBLE_CONFIRM_BYTES)

/* The feature word. Low half: a side may ignore what it doesn't know. High half: it must refuse. */
#define FEATURE_NO_CREDIT 0x1ull         /* send me no CREDIT records (section 5.4) */
#define FEATURE_ACK_PROMPTLY 0x2ull      /* my sends are done when TCP acknowledges them */
#define FEATURE_BUFFERED 0x4ull          /* small messages are buffered until acknowledged */
#define FEATURE_ENCRYPTED 0x100000000ull /* what follows READY is encrypted */
#define FEATURE_MANDATORY_MASK 0xffffffff00000000ull

enum preamble_status { PREAMBLE_ACCEPTED = 0, PREAMBLE_NOT_LISTENING = 1 };

/* What one side says of itself, and what it heard of the other. */
struct preamble_terms {
	uint64_t features;
	uint32_t eager_bytes;
	uint8_t nonce[PREAMBLE_NONCE_BYTES];
	/* Of the comm: lanes that the connector plans, or the acceptor takes at most, 1..PREAMBLE_LANES_MAX.
	 * Connector: this lane's place among them, and whether the comm is there already. */
	uint8_t lanes, index;
	bool join;
	/* Acceptor's own: said in CHALLENGE where there is something to say. The caller's; NULL, 0 bytes: nothing.
	 * rails: the value of extension 2, as rails_encode() writes it. */
	const struct placement_end *placement;
	const uint8_t *rails;
	size_t rails_bytes;
	/* CRYPTO_PSK_BYTES, the caller's: the lane is to be encrypted, FEATURE_ENCRYPTED is said. NULL: it is not. */
	const uint8_t *psk;
};

/* The addresses and ports of an acceptor's NICs: the extension of CHALLENGE (docs/lanes.md section 3.2). */
#define RAILS_EXTENSION_TYPE 2u
#define RAIL_ENTRIES_MAX 16u
#define RAILS_BYTES_MAX (4u + 32u * RAIL_ENTRIES_MAX)

/* One address of a NIC of the acceptor's, as it is on the wire. */
struct rail_entry {
	struct harp_addr addr;
	uint16_t harp_port, kernel_port; /* 0: none; one of them there is */
	uint8_t placement;               /* of the HARP port: enum placement_kind, */
	uint8_t nic;            /* entries of one NIC have the same; 0: the NIC of the handle */
	uint16_t queues, queue; /* of the HARP port's NIC, and its own */
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
/* Acceptor: the key of whom HELLO asks for, a listen id or, where p->peer.join, a comm id and the lane's
 * index. False: there is none. Asked again when PROOF holds, before READY. It may set p->full, at the first time p->own.rails. */
typedef bool preamble_lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES]);

struct preamble {
	enum preamble_step step;
	struct preamble_terms own, peer;
	uint64_t listen_id, comm_id;
	uint8_t key[PREAMBLE_KEY_BYTES];
	const char *what; /* after an error: a few words */
	bool full; /* acceptor: there is no room for it now; the lane ends with nothing more said */
	preamble_lookup *lookup;
	void *lookup_ctx;
	size_t at;         /* bytes of the transcript sent and received */
	size_t sent_bytes; /* of them */
	size_t end;        /* where the present message ends, as far as is known */
	size_t head;       /* where it begins */
	/* Connector, done: extensions 1 and 2 of CHALLENGE: how the acceptor's NIC chooses queues, and its NICs.
	 * PLACEMENT_NOT_SAID, count 0: none came. */
	struct placement_end placement;
	struct rails rails;
	uint8_t transcript[PREAMBLE_BYTES_MAX];
};

/* key: the secret of the handle, or the comm's where the comm is there (own->join). */
void preamble_connect(struct preamble *p, uint64_t listen_id, uint64_t comm_id,
		      const uint8_t key[PREAMBLE_KEY_BYTES], const struct preamble_terms *own);
void preamble_accept(struct preamble *p, const struct preamble_terms *own, preamble_lookup *lookup,
		     void *lookup_ctx);
/* True while bytes are to be sent, else bytes are to be received. */
bool preamble_sends(const struct preamble *p);
/* The bytes to be sent next, or the place for those to be received next; never beyond the present message. */
uint8_t *preamble_bytes(struct preamble *p, size_t *len);
/*
 * So many of them were sent or received. 1: done, the next byte of the lane is a record's. 0: more is to come. -EBUSY
 * (p->full), -EPROTO, -EKEYREJECTED (a proof does not hold), -EPROTONOSUPPORT (version or mandatory feature),
 * -ECONNREFUSED (READY says no): p->what says it in words.
 */
int preamble_moved(struct preamble *p, size_t n);
/* Done: the key that further lanes of this comm prove that they know (docs/lanes.md section 3.4). */
void preamble_comm_key(const struct preamble *p, uint8_t out[PREAMBLE_KEY_BYTES]);
/* Done: both sides can do with several lanes. */
bool preamble_is_multi_lane(const struct preamble *p);
/* Words for a peer that differs about FEATURE_ENCRYPTED. */
const char *preamble_encryption_differs(bool peer_encrypts);
/* Done: the keys of an encrypted lane, as this side uses them. False: the lane is not encrypted. */
struct preamble_keys {
	uint8_t send[CRYPTO_KEY_BYTES], receive[CRYPTO_KEY_BYTES];
};
bool preamble_keys(const struct preamble *p, struct preamble_keys *out);

/* Bytes written; 0: there is nothing to tell. */
size_t rails_encode(const struct rails *rails, uint8_t out[RAILS_BYTES_MAX]);
/* -EPROTO: not what rails_encode() writes. */
int rails_decode(struct rails *out, const uint8_t *in, size_t len);

#endif
