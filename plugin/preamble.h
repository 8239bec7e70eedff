/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preamble.h - the mutual proof at the beginning of a lane (docs/lanes.md section 3).
 *
 *   connector                    acceptor
 *   HELLO      ------------->               nonce, listen id, features
 *              <-------------   CHALLENGE   nonce, features, proof that it knows the secret
 *   PROOF      ------------->               the connector's proof
 *              <-------------   READY       accepted into a comm, or refused with a status
 *
 * Every proof is a keyed hash of the whole transcript so far under its own label.
 */
#ifndef HARP_PLUGIN_PREAMBLE_H
#define HARP_PLUGIN_PREAMBLE_H

#include "handle.h"
#include "lane.h"
#include "placement.h"

#define WIRE_VERSION 1u

#define PREAMBLE_NONCE_BYTES 16u
#define PREAMBLE_MAC_BYTES 16u
#define PREAMBLE_HELLO_BYTES 64u
#define PREAMBLE_CHALLENGE_BYTES 48u /* and extensions, and a MAC */
#define PREAMBLE_PROOF_BYTES 32u
#define PREAMBLE_READY_BYTES 32u
#define PREAMBLE_EXTENSION_BYTES_MAX 1024u
#define PREAMBLE_BYTES_MAX                                                                         \
	(PREAMBLE_HELLO_BYTES + PREAMBLE_CHALLENGE_BYTES + 2 * PREAMBLE_EXTENSION_BYTES_MAX +      \
	 PREAMBLE_MAC_BYTES + PREAMBLE_PROOF_BYTES + PREAMBLE_READY_BYTES)

/* The feature word. Low half: a side may ignore what it doesn't know. High half: it must refuse. */
#define FEATURE_NO_CREDIT 0x1ull    /* send me no CREDIT records (section 5.4) */
#define FEATURE_ACK_PROMPTLY 0x2ull /* my sends are done when TCP acknowledges them */
#define FEATURE_MANDATORY_MASK 0xffffffff00000000ull

enum preamble_status { PREAMBLE_ACCEPTED = 0, PREAMBLE_NOT_LISTENING = 1, PREAMBLE_NO_MEMORY = 2 };

/* What one side says of itself, and what it heard of the other. */
struct preamble_terms {
	uint64_t features;
	uint32_t eager_bytes;
	uint8_t nonce[PREAMBLE_NONCE_BYTES];
	/* Acceptor's own: said in CHALLENGE where there is something to say. The caller's; NULL: nothing. */
	const struct placement_end *placement;
};

enum preamble_step {
	PREAMBLE_SEND_HELLO,
	PREAMBLE_READ_CHALLENGE,
	PREAMBLE_SEND_PROOF,
	PREAMBLE_READ_READY,
	PREAMBLE_READ_HELLO,
	PREAMBLE_SEND_CHALLENGE,
	PREAMBLE_READ_PROOF,
	PREAMBLE_SEND_READY,
	PREAMBLE_DONE,
};

struct preamble {
	enum preamble_step step;
	struct preamble_terms own, peer;
	uint64_t listen_id, comm_id;
	uint8_t secret[HANDLE_SECRET_BYTES];
	const char *what; /* after an error: a few words */
	/* Acceptor: gives the secret of a listen id; false when nobody listens there. */
	bool (*lookup)(void *ctx, uint64_t listen_id, uint8_t secret[HANDLE_SECRET_BYTES]);
	void *lookup_ctx;
	size_t at;   /* bytes of the transcript sent and received */
	size_t end;  /* where the present message ends, as far as is known */
	size_t head; /* where it begins */
	size_t placement_at,
		placement_bytes; /* connector: extension 1 of CHALLENGE; 0: none came */
	uint8_t transcript[PREAMBLE_BYTES_MAX];
};

void preamble_connect(struct preamble *p, const struct handle *handle, uint64_t comm_id,
		      const struct preamble_terms *own);
void preamble_accept(struct preamble *p, const struct preamble_terms *own,
		     bool (*lookup)(void *, uint64_t, uint8_t[HANDLE_SECRET_BYTES]),
		     void *lookup_ctx);
/*
 * Goes on as far as the open lane allows. 1: done, the next byte of the lane is a record's.
 * 0: more is to come. -EPROTO, -EACCES (a proof does not hold), -EPROTONOSUPPORT (version or
 * mandatory feature), -ECONNREFUSED (READY says no), or the lane's error: p->what says it in words.
 */
int preamble_advance(struct preamble *p, struct lane *lane);
/* Connector, done: how the acceptor's NIC chooses queues. False: it did not say. */
bool preamble_placement(const struct preamble *p, struct placement_end *out);

#endif
