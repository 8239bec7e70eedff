/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preamble_rig.h - both ends of a preamble over fake lanes: a listener's handle, a comm that
 * further lanes can join, and complete runs. Nonces are fixed, for the examples in docs/lanes.md.
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
static bool is_listening;

static struct {
	bool exists;
	uint64_t id;
	uint8_t key[PREAMBLE_KEY_BYTES];
} comm; /* further lanes can join it */

static uint8_t psk[32]; /* a pre-shared key; set_example_handle() fills it */

static inline bool lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	if (p->peer.features & FEATURE_JOIN) {
		memcpy(key, comm.key, PREAMBLE_KEY_BYTES);
		return comm.exists && p->comm_id == comm.id;
	}
	memcpy(key, handle.secret, PREAMBLE_KEY_BYTES);
	return is_listening && p->listen_id == handle.listen_id;
}

static inline void set_terms(struct preamble_terms *t, uint64_t features, uint8_t nonce)
{
	memset(t, 0, sizeof(*t));
	t->features = features;
	t->eager_bytes = 262144;
	for (unsigned i = 0; i < PREAMBLE_NONCE_BYTES; i++)
		t->nonce[i] = (uint8_t)(nonce + i);
}

static inline void set_example_handle(void)
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
	is_listening = true;
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

/* Ends the previous run. */
static inline void run_begin(struct run *r, uint64_t seed, uint64_t connector_features)
{
	struct preamble_terms t;

	run_end(r);
	memset(r, 0, sizeof(*r));
	r->open = true;
	fake_pair_init(&r->pair, seed, 4096);
	set_terms(&t, connector_features, 0x10);
	preamble_connect(&r->connector, handle.listen_id, COMM_ID, handle.secret, &t);
	set_terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
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

/* With the pre-shared keys of both sides; NULL: that side does not encrypt. */
static inline void run_begin_encrypted(struct run *r, uint64_t seed, const uint8_t *connector_psk,
				       const uint8_t *acceptor_psk)
{
	struct preamble_terms t;

	run_begin(r, seed, FEATURE_ACK_PROMPTLY);
	set_terms(&t, FEATURE_ACK_PROMPTLY, 0x10);
	t.psk = connector_psk;
	preamble_connect(&r->connector, handle.listen_id, COMM_ID, handle.secret, &t);
	set_terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	t.psk = acceptor_psk;
	preamble_accept(&r->acceptor, &t, lookup, NULL);
}

/* Runs the preamble of a comm's first lane, and sets `comm`. */
static inline void run_first(struct run *r, uint64_t seed, uint64_t features)
{
	run_begin(r, seed, features);
	run(r);
	CHECK_EQ(r->connected, 1);
	CHECK_EQ(r->accepted, 1);
	comm.exists = true;
	comm.id = COMM_ID;
	preamble_comm_key(&r->acceptor, comm.key);
	run_end(r);
}

/* Runs the preamble of a further lane; the connector uses this key. */
static inline void run_further(struct run *r, uint64_t seed, uint64_t comm_id, uint8_t index,
			       const uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct preamble_terms t;

	run_begin(r, seed, 0);
	set_terms(&t, FEATURE_JOIN, 0x20);
	t.index = index;
	preamble_connect(&r->connector, 0, comm_id, key, &t);
	set_terms(&t, 0, (uint8_t)(0x60 + seed));
	preamble_accept(&r->acceptor, &t, lookup, NULL);
	run(r);
}

static struct run r;
AFTER_EACH(run_end(&r))

#endif
