/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preamble_rig.h - both ends of a preamble over joined fake lanes: a listener's handle, a comm that further lanes may join,
 * and runs to the end. Nonces are fixed, so that docs/lanes.md can show what is said.
 */
#ifndef HARP_TESTS_PREAMBLE_RIG_H
#define HARP_TESTS_PREAMBLE_RIG_H

#include <errno.h>
#include <stdlib.h>

#include "connect/handshake.h"
#include "check.h"
#include "fake_lane.h"
#include "wire/handle.h"
#include "wire/preamble.h"

#define COMM_ID 0xc0ffeeull

static struct handle handle;
static bool listening;

static struct {
	bool there;
	uint64_t id;
	uint8_t key[PREAMBLE_KEY_BYTES];
} comm; /* that further lanes may join */

static uint8_t psk[32]; /* a pre-shared key; example_handle() fills it */

static inline bool lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	if (p->peer.features & FEATURE_JOIN) {
		memcpy(key, comm.key, PREAMBLE_KEY_BYTES);
		return comm.there && p->comm_id == comm.id;
	}
	memcpy(key, handle.secret, PREAMBLE_KEY_BYTES);
	return listening && p->listen_id == handle.listen_id;
}

static inline void terms(struct preamble_terms *t, uint64_t features, uint8_t nonce)
{
	memset(t, 0, sizeof(*t));
	t->features = features;
	t->eager_bytes = 262144;
	for (unsigned i = 0; i < PREAMBLE_NONCE_BYTES; i++)
		t->nonce[i] = (uint8_t)(nonce + i);
}

static inline void example_handle(void)
{
	memset(&handle, 0, sizeof(handle));
	handle.nic.addr[NIC_V4] = harp_addr_v4(192, 0, 2, 1);
	CHECK_EQ(harp_addr_parse("2001:db8::1", &handle.nic.addr[NIC_V6]), 0);
	handle.nic.kernel_port[NIC_V4] = 40001;
	handle.nic.kernel_port[NIC_V6] = 40002;
	handle.nic.harp[0].port = 61234;
	handle.listen_id = 0x1122334455667788ull;
	for (uint8_t i = 0; i < 16; i++) {
		handle.host_id[i] = (uint8_t)(0xa0 + i);
		handle.secret[i] = i;
	}
	for (unsigned i = 0; i < sizeof(psk); i++)
		psk[i] = (uint8_t)(0x80 + i);
	listening = true;
}

struct run {
	bool open;
	struct fake_pair pair;
	struct preamble connector, acceptor;
	int connected, accepted; /* results: 1, 0 or -errno */
};

static inline void run_end(struct run *r)
{
	if (r->open)
		fake_pair_free(&r->pair);
	r->open = false;
}

/* Ends the one before. */
static inline void run_begin(struct run *r, uint64_t seed, uint64_t connector_features)
{
	struct preamble_terms t;

	run_end(r);
	memset(r, 0, sizeof(*r));
	r->open = true;
	fake_pair_init(&r->pair, seed, 4096);
	terms(&t, connector_features, 0x10);
	preamble_connect(&r->connector, handle.listen_id, COMM_ID, handle.secret, &t);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	preamble_accept(&r->acceptor, &t, lookup, NULL);
}

static inline void run(struct run *r)
{
	for (int i = 0; i < 4000; i++) {
		if (!r->connected)
			r->connected = handshake_advance(&r->connector, &r->pair.lanes[0].lane);
		if (!r->accepted)
			r->accepted = handshake_advance(&r->acceptor, &r->pair.lanes[1].lane);
	}
}

/* With pre-shared keys, or NULL, on either side. */
static inline void run_begin_sealed(struct run *r, uint64_t seed, const uint8_t *connector_psk,
				    const uint8_t *acceptor_psk)
{
	struct preamble_terms t;

	run_begin(r, seed, FEATURE_ACK_PROMPTLY);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x10);
	t.psk = connector_psk;
	preamble_connect(&r->connector, handle.listen_id, COMM_ID, handle.secret, &t);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	t.psk = acceptor_psk;
	preamble_accept(&r->acceptor, &t, lookup, NULL);
}

/* The first lane of a comm; what is proved with from now on is in `comm`. */
static inline void run_first(struct run *r, uint64_t seed, uint64_t features)
{
	run_begin(r, seed, features);
	run(r);
	CHECK_EQ(r->connected, 1);
	CHECK_EQ(r->accepted, 1);
	comm.there = true;
	comm.id = COMM_ID;
	preamble_comm_key(&r->acceptor, comm.key);
	run_end(r);
}

/* A further lane, as a connector that knows key calls it. */
static inline void run_further(struct run *r, uint64_t seed, uint64_t comm_id, uint8_t index,
			       const uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct preamble_terms t;

	run_begin(r, seed, 0);
	terms(&t, FEATURE_JOIN, 0x20);
	t.index = index;
	preamble_connect(&r->connector, 0, comm_id, key, &t);
	terms(&t, 0, (uint8_t)(0x60 + seed));
	preamble_accept(&r->acceptor, &t, lookup, NULL);
	run(r);
}

static struct run r;
AFTER_EACH(run_end(&r))

#endif
