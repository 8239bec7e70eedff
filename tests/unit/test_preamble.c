/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_preamble.c - the mutual proof and the handle: accepted as documented, refused in every other
 * case. Argument: docs/lanes.md, whose worked example is compared with what the code does.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "fake_lane.h"
#include "handle.h"
#include "lane_sealed.h"
#include "preamble.h"
#include "rails.h"
#include "record.h"

static struct handle handle;
static bool listening;

static struct {
	bool there;
	uint64_t id;
	uint8_t key[PREAMBLE_KEY_BYTES];
} comm; /* that further lanes may join */

static bool lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	(void)ctx;
	if (p->peer.join) {
		memcpy(key, comm.key, PREAMBLE_KEY_BYTES);
		return comm.there && p->comm_id == comm.id;
	}
	memcpy(key, handle.secret, PREAMBLE_KEY_BYTES);
	return listening && p->listen_id == handle.listen_id;
}

static void terms(struct preamble_terms *t, uint64_t features, uint8_t nonce)
{
	memset(t, 0, sizeof(*t));
	t->features = features;
	t->eager_bytes = 262144;
	t->lanes = 1;
	for (unsigned i = 0; i < PREAMBLE_NONCE_BYTES; i++)
		t->nonce[i] = (uint8_t)(nonce + i);
}

static void example_handle(void)
{
	memset(&handle, 0, sizeof(handle));
	handle.wire_min = handle.wire_max = WIRE_VERSION;
	handle.has_v4 = handle.has_v6 = true;
	handle.harp_port = 61234;
	handle.kernel_port_v4 = 40001;
	handle.kernel_port_v6 = 40002;
	handle.v4 = harp_addr_v4(192, 0, 2, 1);
	CHECK_EQ(harp_addr_parse("2001:db8::1", &handle.v6), 0);
	handle.listen_id = 0x1122334455667788ull;
	for (uint8_t i = 0; i < 16; i++) {
		handle.host_id[i] = (uint8_t)(0xa0 + i);
		handle.secret[i] = i;
	}
	listening = true;
}

struct run {
	struct fake_pair pair;
	struct preamble connector, acceptor;
	int connected, accepted; /* results: 1, 0 or -errno */
};

static void run_begin(struct run *r, uint64_t seed, uint64_t connector_features)
{
	struct preamble_terms t;

	memset(r, 0, sizeof(*r));
	fake_pair_init(&r->pair, seed, 4096);
	terms(&t, connector_features, 0x10);
	preamble_connect(&r->connector, handle.listen_id, 0xc0ffee, handle.secret, &t);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	preamble_accept(&r->acceptor, &t, lookup, NULL);
}

static void run(struct run *r)
{
	for (int i = 0; i < 4000; i++) {
		if (!r->connected)
			r->connected = preamble_advance(&r->connector, &r->pair.lanes[0].lane);
		if (!r->accepted)
			r->accepted = preamble_advance(&r->acceptor, &r->pair.lanes[1].lane);
	}
}

/* With pre-shared keys, or NULL, on either side. */
static void run_begin_sealed(struct run *r, uint64_t seed, const uint8_t *connector_psk,
			     const uint8_t *acceptor_psk)
{
	struct preamble_terms t;

	run_begin(r, seed, FEATURE_ACK_PROMPTLY);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x10);
	t.psk = connector_psk;
	preamble_connect(&r->connector, handle.listen_id, 0xc0ffee, handle.secret, &t);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	t.psk = acceptor_psk;
	preamble_accept(&r->acceptor, &t, lookup, NULL);
}

static void test_accepted(void)
{
	for (uint64_t seed = 0; seed < 200; seed++) {
		static const uint8_t data[5] = { 1, 2, 3, 4, 5 };
		uint8_t got[5] = { 0 };
		struct run r;

		run_begin(&r, seed, FEATURE_NO_CREDIT);
		run(&r);
		CHECK_EQ(r.connected, 1);
		CHECK_EQ(r.accepted, 1);
		CHECK_EQ(r.acceptor.comm_id, 0xc0ffee);
		CHECK_EQ(r.acceptor.peer.features, FEATURE_NO_CREDIT);
		CHECK_EQ(r.connector.peer.features, FEATURE_ACK_PROMPTLY);
		CHECK_EQ(r.connector.peer.eager_bytes, 262144);
		/* What follows the preamble is still in the lane. */
		CHECK_EQ(r.pair.pipes[0].written, PREAMBLE_HELLO_BYTES + PREAMBLE_PROOF_BYTES);
		CHECK_EQ(fake_inject(&r.pair.lanes[1], data, 5), 5);
		CHECK_EQ(r.pair.pipes[0].count, 5);
		for (size_t at = 0; at < 5;)
			at += (size_t)r.pair.lanes[1].lane.ops->recv(&r.pair.lanes[1].lane,
								     got + at, 5 - at, 1);
		CHECK_MEM(got, data, 5);
		fake_pair_free(&r.pair);
	}
}

/* Every bit of every message counts. */
static void test_damage(void)
{
	for (int direction = 0; direction < 2; direction++) {
		for (uint64_t at = 0; at < 96; at++) {
			struct run r;

			run_begin(&r, at, 0);
			r.pair.pipes[direction].flip_at = at;
			r.pair.pipes[direction].flip = (uint8_t)(1u << (at % 8));
			run(&r);
			CHECK(r.connected != 1);
			/* READY is the acceptor's last word: damage to it only the connector sees. */
			if (direction == 0 || at < 64)
				CHECK(r.accepted != 1);
			fake_pair_free(&r.pair);
		}
	}
}

static void test_wrong_secret(void)
{
	struct run r;

	run_begin(&r, 1, 0);
	r.connector.key[3] ^= 1;
	run(&r);
	CHECK_EQ(r.connected, -EACCES); /* the acceptor's proof does not hold */
	CHECK_EQ(r.accepted, 0);
	fake_pair_free(&r.pair);
}

/* All that a connector once said, said again. */
static void test_replay(void)
{
	uint8_t said[PREAMBLE_HELLO_BYTES + PREAMBLE_PROOF_BYTES];
	struct preamble_terms t;
	struct run r;

	run_begin(&r, 2, 0);
	run(&r);
	memcpy(said, r.connector.transcript, PREAMBLE_HELLO_BYTES);
	memcpy(said + PREAMBLE_HELLO_BYTES,
	       r.connector.transcript + PREAMBLE_HELLO_BYTES + PREAMBLE_CHALLENGE_BYTES +
		       PREAMBLE_MAC_BYTES,
	       PREAMBLE_PROOF_BYTES);
	fake_pair_free(&r.pair);

	run_begin(&r, 3, 0);
	terms(&t, 0, 0x77); /* a fresh nonce, as every acceptor's */
	preamble_accept(&r.acceptor, &t, lookup, NULL);
	r.connected = -1;
	CHECK_EQ(fake_inject(&r.pair.lanes[1], said, sizeof(said)), sizeof(said));
	run(&r);
	CHECK_EQ(r.accepted, -EACCES);
	fake_pair_free(&r.pair);
}

static void test_refusals(void)
{
	struct run r;

	run_begin(&r, 4, 1ull << 40); /* a mandatory feature of the future */
	run(&r);
	CHECK_EQ(r.accepted, -EPROTONOSUPPORT);
	fake_pair_free(&r.pair);

	run_begin(&r, 5, 1ull << 20); /* an optional one */
	run(&r);
	CHECK_EQ(r.accepted, 1);
	CHECK_EQ(r.connected, 1);
	fake_pair_free(&r.pair);

	run_begin(&r, 6, 0);
	listening = false;
	run(&r);
	CHECK_EQ(r.accepted, -ECONNREFUSED);
	listening = true;
	fake_pair_free(&r.pair);

	/* The listener goes while the proof is under way: READY says so. */
	run_begin(&r, 7, 0);
	while (r.acceptor.step != PREAMBLE_READ_PROOF) {
		preamble_advance(&r.connector, &r.pair.lanes[0].lane);
		preamble_advance(&r.acceptor, &r.pair.lanes[1].lane);
	}
	listening = false;
	run(&r);
	CHECK_EQ(r.accepted, -ECONNREFUSED);
	CHECK_EQ(r.connected, -ECONNREFUSED);
	listening = true;
	fake_pair_free(&r.pair);
}

/* ---- sealed lanes ----------------------------------------------------------------------------- */

static uint8_t psk[32], other_psk[32];

/* Both lanes are sealed after the preamble, each with the other's keys; plaintext is counted on. */
static void test_sealed(void)
{
	for (uint64_t seed = 0; seed < 50; seed++) {
		struct iovec there = { "there", 5 }, back = { "back", 4 };
		struct lane *lanes[2];
		uint8_t got[8];
		struct run r;

		run_begin_sealed(&r, seed, psk, psk);
		run(&r);
		CHECK_EQ(r.connected, 1);
		CHECK_EQ(r.accepted, 1);
		CHECK_EQ(r.connector.peer.features, FEATURE_ACK_PROMPTLY | FEATURE_SEALED);
		lanes[0] = &r.pair.lanes[0].lane;
		lanes[1] = &r.pair.lanes[1].lane;
		CHECK_EQ(preamble_seal(&r.connector, &lanes[0]), 0);
		CHECK_EQ(preamble_seal(&r.acceptor, &lanes[1]), 0);
		CHECK_EQ(lanes[0]->ops->send(lanes[0], &there, 1), 5);
		CHECK_EQ(lanes[1]->ops->send(lanes[1], &back, 1), 4);
		for (int i = 0; i < 200; i++)
			fake_pair_turn(&r.pair);
		CHECK_EQ(lanes[1]->ops->recv(lanes[1], got, 5, 1), 5);
		CHECK_MEM(got, "there", 5);
		CHECK_EQ(lanes[0]->ops->recv(lanes[0], got, 4, 1), 4);
		CHECK_MEM(got, "back", 4);
		CHECK_EQ(lanes[0]->ops->done_bytes(lanes[0]),
			 PREAMBLE_HELLO_BYTES + PREAMBLE_PROOF_BYTES + 5);
		CHECK_EQ(lanes[1]->ops->done_bytes(lanes[1]),
			 PREAMBLE_CHALLENGE_BYTES + PREAMBLE_MAC_BYTES + PREAMBLE_READY_BYTES + 4);
		lanes[0]->ops->close(lanes[0], true);
		lanes[1]->ops->close(lanes[1], true);
		fake_pair_free(&r.pair);
	}
}

static void test_not_sealed_alike(void)
{
	struct lane *lane;
	struct run r;

	run_begin_sealed(&r, 1, NULL, NULL);
	run(&r);
	CHECK_EQ(r.connected, 1);
	lane = &r.pair.lanes[0].lane;
	CHECK_EQ(preamble_seal(&r.connector, &lane), 0);
	CHECK(lane == &r.pair.lanes[0].lane);
	fake_pair_free(&r.pair);

	run_begin_sealed(&r, 2, psk, NULL);
	run(&r);
	CHECK_EQ(r.accepted, -EPROTONOSUPPORT);
	CHECK(strstr(r.acceptor.what, "the peer encrypts") != NULL);
	fake_pair_free(&r.pair);

	run_begin_sealed(&r, 3, NULL, psk);
	run(&r);
	CHECK_EQ(r.accepted, -EPROTONOSUPPORT);
	CHECK(strstr(r.acceptor.what, "the peer does not") != NULL);
	fake_pair_free(&r.pair);
}

static void test_wrong_psk(void)
{
	struct run r;

	run_begin_sealed(&r, 4, psk, other_psk);
	run(&r);
	CHECK_EQ(r.connected, -EACCES);
	CHECK(strstr(r.connector.what, "pre-shared keys") != NULL);
	CHECK_EQ(r.accepted, 0);
	fake_pair_free(&r.pair);

	/* Somebody on the way takes the feature out of HELLO: the transcripts differ. */
	run_begin_sealed(&r, 5, psk, NULL);
	r.pair.pipes[0].flip_at = 12; /* bit 32 of HELLO's features */
	r.pair.pipes[0].flip = 1;
	run(&r);
	CHECK(r.connected < 0);
	CHECK(r.accepted != 1);
	fake_pair_free(&r.pair);
}

/* HELLO with extensions: the optional are skipped, the mandatory and the broken refused. */
static void test_extensions(void)
{
	static const struct {
		uint16_t type, len, total;
		int result;
	} cases[] = {
		{ 1, 12, 16, 0 },
		{ 1, 0, 8, 0 },
		{ 0x8001, 12, 16, -EPROTONOSUPPORT },
		{ 1, 13, 16, -EPROTO },
		{ 1, 65535, 16, -EPROTO },
		{ 1, 4, 12, -EPROTO },
		{ 1, 12, 1032, -EPROTO },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint8_t hello[PREAMBLE_HELLO_BYTES + 1040];
		struct run r;

		run_begin(&r, i, 0);
		memset(hello, 0, sizeof(hello));
		memcpy(hello, r.connector.transcript, PREAMBLE_HELLO_BYTES);
		wire_put16(hello + 6, cases[i].total);
		wire_put16(hello + PREAMBLE_HELLO_BYTES, cases[i].type);
		wire_put16(hello + PREAMBLE_HELLO_BYTES + 2, cases[i].len);
		fake_inject(&r.pair.lanes[1], hello, PREAMBLE_HELLO_BYTES + cases[i].total);
		r.connected = -1;
		run(&r);
		CHECK_EQ(r.accepted, cases[i].result);
		if (!cases[i].result)
			CHECK_EQ(r.acceptor.step, PREAMBLE_READ_PROOF);
		fake_pair_free(&r.pair);
	}
}

/* ---- comms of several lanes ------------------------------------------------------------------- */

#define COMM_ID 0xc0ffeeull

/* The first lane of a comm of several; what is proved with from now on is in `comm`. */
static void run_first(struct run *r, uint64_t seed, uint8_t planned, uint8_t taken)
{
	struct preamble_terms t;

	run_begin(r, seed, 0);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x10);
	t.lanes = planned;
	preamble_connect(&r->connector, handle.listen_id, COMM_ID, handle.secret, &t);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	t.lanes = taken;
	preamble_accept(&r->acceptor, &t, lookup, NULL);
	run(r);
	CHECK_EQ(r->connected, 1);
	CHECK_EQ(r->accepted, 1);
	comm.there = true;
	comm.id = COMM_ID;
	preamble_comm_key(&r->acceptor, comm.key);
	fake_pair_free(&r->pair);
}

/* A further lane, as a connector that knows key calls it. */
static void run_further(struct run *r, uint64_t seed, uint64_t comm_id, uint8_t index,
			const uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct preamble_terms t;

	run_begin(r, seed, 0);
	terms(&t, 0, 0x20);
	t.lanes = 4;
	t.index = index;
	t.join = true;
	preamble_connect(&r->connector, 0, comm_id, key, &t);
	terms(&t, 0, (uint8_t)(0x60 + seed));
	t.lanes = 32;
	preamble_accept(&r->acceptor, &t, lookup, NULL);
	run(r);
}

static void test_comm_key(void)
{
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct run r;

	run_first(&r, 1, 3, 32);
	preamble_comm_key(&r.connector, key);
	CHECK_MEM(key, comm.key, sizeof(key));
	CHECK(memcmp(key, handle.secret, sizeof(key)) != 0);
	CHECK(preamble_several(&r.connector));
	CHECK(preamble_several(&r.acceptor));
	run_first(&r, 1, 1, 32);
	CHECK(!preamble_several(&r.connector) && !preamble_several(&r.acceptor));
	run_first(&r, 1, 3, 1);
	CHECK(!preamble_several(&r.connector) && !preamble_several(&r.acceptor));
	/* Another comm, another key: nonces and comm id are in the transcript. */
	preamble_comm_key(&r.connector, key);
	run_first(&r, 1, 3, 2);
	CHECK(memcmp(key, comm.key, sizeof(key)) != 0);
}

static void test_further_lanes(void)
{
	struct run r;

	run_first(&r, 1, 4, 32);
	listening = false; /* the listen comm may be closed by then */
	for (uint8_t index = 0; index < 4; index++) {
		run_further(&r, index, COMM_ID, index, comm.key);
		CHECK_EQ(r.connected, 1);
		CHECK_EQ(r.accepted, 1);
		CHECK(r.acceptor.peer.join);
		CHECK_EQ(r.acceptor.peer.index, index);
		CHECK_EQ(r.acceptor.comm_id, COMM_ID);
		CHECK_EQ(r.acceptor.sent_bytes, r.pair.pipes[1].written);
		CHECK_EQ(r.connector.sent_bytes, r.pair.pipes[0].written);
		fake_pair_free(&r.pair);
	}
	/* Neither the handle's secret nor another comm's key will do. */
	run_further(&r, 5, COMM_ID, 1, handle.secret);
	CHECK_EQ(r.connected, -EACCES);
	CHECK(r.accepted != 1);
	fake_pair_free(&r.pair);
	/* A comm that there is not. */
	run_further(&r, 6, COMM_ID + 1, 1, comm.key);
	CHECK_EQ(r.accepted, -ECONNREFUSED);
	CHECK_STR(r.acceptor.what, "there is no comm of that id");
	fake_pair_free(&r.pair);
	/* A lane beyond those that there are. */
	run_further(&r, 7, COMM_ID, 4, comm.key);
	CHECK_EQ(r.accepted, -EPROTO);
	CHECK_STR(r.acceptor.what, "a lane of an impossible number");
	fake_pair_free(&r.pair);
	listening = true;
}

static void test_further_replay(void)
{
	uint8_t said[PREAMBLE_HELLO_BYTES + PREAMBLE_PROOF_BYTES];
	struct run r;

	run_first(&r, 1, 4, 32);
	run_further(&r, 2, COMM_ID, 1, comm.key);
	CHECK_EQ(r.accepted, 1);
	memcpy(said, r.connector.transcript, PREAMBLE_HELLO_BYTES);
	memcpy(said + PREAMBLE_HELLO_BYTES,
	       r.connector.transcript + PREAMBLE_HELLO_BYTES + PREAMBLE_CHALLENGE_BYTES +
		       PREAMBLE_MAC_BYTES,
	       PREAMBLE_PROOF_BYTES);
	fake_pair_free(&r.pair);
	run_begin(&r, 3, 0);
	r.connected = -1;
	CHECK_EQ(fake_inject(&r.pair.lanes[1], said, sizeof(said)), sizeof(said));
	run(&r);
	CHECK_EQ(r.accepted, -EACCES);
	fake_pair_free(&r.pair);
}

/* Numbers of lanes and flags as no connector says them. */
static void test_lane_numbers(void)
{
	static const struct {
		uint8_t index, lanes, flags;
		int result;
	} cases[] = {
		{ 0, 0, 0, -EPROTO },   { 0, 33, 0, -EPROTO }, { 0, 255, 0, -EPROTO },
		{ 1, 1, 0, -EPROTO },   { 1, 1, 1, -EPROTO },  { 32, 32, 1, -EPROTO },
		{ 255, 2, 1, -EPROTO }, { 1, 2, 0, -EPROTO },  { 1, 2, 1, 0 },
		{ 31, 32, 1, 0 },       { 0, 32, 0, 0 },       { 0, 1, 0xfe, 0 },
	};

	comm.there = true;
	comm.id = COMM_ID;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint8_t hello[PREAMBLE_HELLO_BYTES];
		struct run r;

		run_begin(&r, i, 0);
		memcpy(hello, r.connector.transcript, PREAMBLE_HELLO_BYTES);
		hello[20] = cases[i].index;
		hello[21] = cases[i].lanes;
		hello[22] = cases[i].flags;
		fake_inject(&r.pair.lanes[1], hello, sizeof(hello));
		r.connected = -1;
		run(&r);
		CHECK_EQ(r.accepted, cases[i].result);
		if (!cases[i].result)
			CHECK_EQ(r.acceptor.step, PREAMBLE_READ_PROOF);
		fake_pair_free(&r.pair);
	}
	comm.there = false;
}

/* ---- rails, in CHALLENGE ---------------------------------------------------------------------- */

static void example_rails(struct rails *rails)
{
	memset(rails, 0, sizeof(*rails));
	rails->count = 3;
	for (uint8_t i = 0; i < 3; i++) {
		rails->entry[i] = (struct rail_entry){
			.addr = harp_addr_v4(192, 0, 2, (uint8_t)(1 + i)),
			.nic = (uint8_t)(i / 2),
			.harp_port = (uint16_t)(61000 + i),
			.kernel_port = (uint16_t)(40000 + i),
			.placement = PLACEMENT_ONE_QUEUE,
			.queues = 1,
			.speed_mbps = 100000,
		};
	}
	CHECK_EQ(harp_addr_parse("2001:db8::2", &rails->entry[1].addr), 0);
}

static void run_rails(struct run *r, const uint8_t *value, size_t len)
{
	struct preamble_terms t;

	run_begin(r, len, FEATURE_ACK_PROMPTLY);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	t.rails = value;
	t.rails_bytes = len;
	preamble_accept(&r->acceptor, &t, lookup, NULL);
	run(r);
}

static void test_rails(void)
{
	uint8_t value[RAILS_BYTES_MAX + 8] = { 0 };
	struct rails rails, heard;
	const uint8_t *told;
	struct run r;
	size_t len;

	example_rails(&rails);
	len = rails_encode(&rails, value);
	CHECK_EQ(len, 4 + 3 * 32);
	run_rails(&r, value, len);
	CHECK_EQ(r.connected, 1);
	told = preamble_rails(&r.connector, &len);
	CHECK_EQ(rails_decode(&heard, told, len), 0);
	CHECK_EQ(heard.count, 3);
	for (unsigned i = 0; i < 3; i++) {
		CHECK_MEM(&heard.entry[i].addr, &rails.entry[i].addr, 16);
		CHECK_EQ(heard.entry[i].nic, rails.entry[i].nic);
		CHECK_EQ(heard.entry[i].harp_port, rails.entry[i].harp_port);
		CHECK_EQ(heard.entry[i].kernel_port, rails.entry[i].kernel_port);
		CHECK_EQ(heard.entry[i].speed_mbps, 100000);
	}
	fake_pair_free(&r.pair);
	(void)preamble_rails(&r.acceptor, &len);
	CHECK_EQ(len, 0);
	/* Nothing that makes no sense is believed, though its proof holds. */
	for (unsigned i = 0; i < 6; i++) {
		example_rails(&rails);
		if (i == 0)
			rails.entry[2].nic = RAIL_ENTRIES_MAX;
		else if (i == 1)
			rails.entry[2].nic = 0; /* a second IPv4 address of that NIC */
		else if (i == 2)
			rails.entry[1].harp_port = rails.entry[1].kernel_port = 0;
		len = rails_encode(&rails, value);
		if (i == 3)
			value[0] = 4;
		else if (i == 4)
			value[0] = 0;
		else if (i == 5)
			len -= 4;
		run_rails(&r, value, len);
		CHECK_EQ(r.connected, -EPROTO);
		CHECK_STR(r.connector.what, "an extension that makes no sense");
		fake_pair_free(&r.pair);
	}
}

/* ---- queues, in CHALLENGE and in the handle --------------------------------------------------- */

static void toeplitz_end(struct placement_end *end)
{
	struct harp_rss rss = {
		.kind = HARP_RSS_TOEPLITZ, .queues = 4, .key_bytes = 40, .table_count = 16
	};

	for (uint8_t i = 0; i < 40; i++)
		rss.key[i] = (uint8_t)(3 * i + 1);
	for (uint16_t i = 0; i < 16; i++)
		rss.table[i] = i % 4;
	placement_own(end, &rss, 2);
}

static void run_begin_placed(struct run *r, uint64_t seed, const struct placement_end *end)
{
	struct preamble_terms t;

	run_begin(r, seed, FEATURE_ACK_PROMPTLY);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	t.placement = end;
	preamble_accept(&r->acceptor, &t, lookup, NULL);
}

#define PLACED_EXTENSION_BYTES 56u /* 4, 8, 40 bytes of key, 2 of table, padded */

static void test_placement_said(void)
{
	for (uint64_t seed = 0; seed < 100; seed++) {
		struct placement_end end, heard;
		struct run r;

		toeplitz_end(&end);
		run_begin_placed(&r, seed, &end);
		run(&r);
		CHECK_EQ(r.connected, 1);
		CHECK_EQ(r.accepted, 1);
		CHECK(preamble_placement(&r.connector, &heard));
		CHECK(!preamble_placement(&r.acceptor, &heard));
		CHECK_EQ(heard.queue, 2);
		CHECK_EQ(heard.queues, 4);
		CHECK_MEM(heard.rss.key, end.rss.key, 40);
		for (uint32_t i = 0; i < 16; i++)
			CHECK_EQ(heard.rss.table[i] == 2, i % 4 == 2);
		CHECK_EQ(r.pair.pipes[1].written,
			 PREAMBLE_CHALLENGE_BYTES + PLACED_EXTENSION_BYTES + PREAMBLE_MAC_BYTES +
				 PREAMBLE_READY_BYTES);
		fake_pair_free(&r.pair);
	}
}

static void test_placement_not_said(void)
{
	struct placement_end one = { .kind = PLACEMENT_ONE_QUEUE, .queues = 1 }, heard;
	struct run r;

	run_begin_placed(&r, 1, &one);
	run(&r);
	CHECK_EQ(r.connected, 1);
	CHECK(!preamble_placement(&r.connector, &heard));
	CHECK_EQ(r.pair.pipes[1].written,
		 PREAMBLE_CHALLENGE_BYTES + PREAMBLE_MAC_BYTES + PREAMBLE_READY_BYTES);
	fake_pair_free(&r.pair);
}

/* Damaged on the way: each bit of the extension is proved, and nothing of it is believed. */
static void test_placement_damage(void)
{
	for (uint64_t at = 0; at < PLACED_EXTENSION_BYTES; at++) {
		struct placement_end end;
		struct run r;

		toeplitz_end(&end);
		run_begin_placed(&r, at, &end);
		r.pair.pipes[1].flip_at = PREAMBLE_CHALLENGE_BYTES + at;
		r.pair.pipes[1].flip = (uint8_t)(1u << (at % 8));
		run(&r);
		CHECK(r.connected < 0);
		CHECK(r.accepted != 1);
		fake_pair_free(&r.pair);
	}
}

/* A peer that knows the secret and lies: what makes no sense is refused, and said. */
static void test_placement_lies(void)
{
	for (unsigned i = 0; i < 4; i++) {
		struct placement_end end;
		struct run r;

		toeplitz_end(&end);
		if (i == 0)
			end.queue = 4; /* of four */
		else if (i == 1)
			end.queues = 0;
		else if (i == 2)
			end.rss.key_bytes = 39;
		else
			end.rss.table_count = 0;
		run_begin_placed(&r, i, &end);
		run(&r);
		CHECK_EQ(r.connected, -EPROTO);
		CHECK_STR(r.connector.what, "an extension that makes no sense");
		CHECK(r.accepted != 1);
		fake_pair_free(&r.pair);
	}
}

static void test_handle_placement(void)
{
	uint8_t bytes[PLUGIN_HANDLE_BYTES];
	struct handle out, in = handle;
	char why[192];

	in.sealed = true;
	in.harp_placement = PLACEMENT_TOEPLITZ;
	in.harp_queues = 64;
	in.harp_queue = 63;
	handle_encode(bytes, &in);
	CHECK_EQ(handle_decode(bytes, &out, why, sizeof(why)), 0);
	CHECK_EQ(out.harp_placement, PLACEMENT_TOEPLITZ);
	CHECK_EQ(out.harp_queues, 64);
	CHECK_EQ(out.harp_queue, 63);
	CHECK(out.sealed);
	CHECK_EQ(out.doors[0].port, 0);
	for (unsigned i = 0; i < HANDLE_DOORS_MAX; i++)
		in.doors[i] = (struct handle_door){ (uint16_t)(61000 + i), (uint16_t)(300 + i) };
	handle_encode(bytes, &in);
	CHECK_EQ(handle_decode(bytes, &out, why, sizeof(why)), 0);
	CHECK_MEM(out.doors, in.doors, sizeof(in.doors));
	/* An older listener's are zero: not said. */
	handle_encode(bytes, &handle);
	CHECK_EQ(handle_decode(bytes, &out, why, sizeof(why)), 0);
	CHECK_EQ(out.harp_placement, PLACEMENT_NOT_SAID);
	CHECK(!out.sealed);
}

/* ---- the handle ------------------------------------------------------------------------------- */

static void test_handle(void)
{
	uint8_t bytes[PLUGIN_HANDLE_BYTES];
	struct handle out;
	char why[192];

	handle_encode(bytes, &handle);
	CHECK_EQ(handle_decode(bytes, &out, why, sizeof(why)), 0);
	CHECK_EQ(out.harp_port, handle.harp_port);
	CHECK_EQ(out.kernel_port_v6, handle.kernel_port_v6);
	CHECK_EQ(out.listen_id, handle.listen_id);
	CHECK_MEM(&out.v4, &handle.v4, 16);
	CHECK_MEM(&out.v6, &handle.v6, 16);
	CHECK_MEM(out.secret, handle.secret, 16);
	CHECK_MEM(out.host_id, handle.host_id, 16);
	for (unsigned bit = 0; bit < 8 * PLUGIN_HANDLE_BYTES; bit++) {
		bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		why[0] = 0;
		CHECK_EQ(handle_decode(bytes, &out, why, sizeof(why)), -EPROTONOSUPPORT);
		CHECK(strlen(why) > 20);
		bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
	memset(bytes, 0, sizeof(bytes));
	CHECK_EQ(handle_decode(bytes, &out, why, sizeof(why)), -EPROTONOSUPPORT);
	CHECK(strstr(why, "not HARP's") != NULL);
	CHECK_EQ(handle_host_id(0, out.host_id), 0);
}

/* ---- the document ----------------------------------------------------------------------------- */

static void print_hex(const char *name, const uint8_t *bytes, size_t len)
{
	printf("%s\n", name);
	for (size_t i = 0; i < len; i++)
		printf("%02x%s", bytes[i],
		       i % 32 == 31 || i == len - 1 ? "\n"
		       : i % 8 == 7                 ? " "
						    : "");
}

/* Does the text, spaces and line ends left out, hold these bytes? */
static void check_in_text(const char *digits, const char *name, const uint8_t *bytes, size_t len)
{
	char *hex = calloc(1, 2 * len + 1);

	for (size_t i = 0; i < len; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
	if (!strstr(digits, hex)) {
		fprintf(stderr, "docs/lanes.md does not have the %s of the worked example:\n",
			name);
		print_hex(name, bytes, len);
		check_failures++;
	}
	free(hex);
}

static char *read_digits(const char *path)
{
	FILE *file = fopen(path, "r");
	char *text = calloc(1, 1 << 20);
	size_t n = 0;
	int c;

	while (file && (c = fgetc(file)) != EOF && n < (1 << 20) - 1)
		if (!isspace(c))
			text[n++] = (char)c;
	CHECK(file != NULL);
	if (file)
		fclose(file);
	return text;
}

/* The sealed example: the same preamble with a pre-shared key, and the connector's CLOSE. */
static void check_sealed_in_text(const char *digits)
{
	size_t hello = PREAMBLE_HELLO_BYTES, challenge = PREAMBLE_CHALLENGE_BYTES + 16;
	uint8_t record[RECORD_HEADER_BYTES];
	struct iovec iov = { record, sizeof(record) };
	struct lane *lane;
	struct run r;

	run_begin_sealed(&r, 1, psk, psk);
	run(&r);
	CHECK_EQ(r.connected, 1);
	check_in_text(digits, "sealed HELLO", r.connector.transcript, hello);
	check_in_text(digits, "sealed CHALLENGE", r.connector.transcript + hello, challenge);
	check_in_text(digits, "sealed PROOF", r.connector.transcript + hello + challenge, 32);
	check_in_text(digits, "sealed READY", r.connector.transcript + hello + challenge + 32, 32);
	record_encode(record, &(struct record){ .type = RECORD_CLOSE, .message = 4 });
	lane = &r.pair.lanes[0].lane;
	CHECK_EQ(preamble_seal(&r.connector, &lane), 0);
	CHECK_EQ(lane->ops->send(lane, &iov, 1), sizeof(record));
	for (int i = 0; i < 200; i++)
		fake_pair_turn(&r.pair);
	check_in_text(digits, "sealed segment", r.pair.pipes[0].bytes + r.pair.pipes[0].begin,
		      sizeof(record) + SEAL_EXTRA_BYTES);
	lane->ops->close(lane, true);
	fake_pair_free(&r.pair);
}

static void test_document(const char *path, bool have_crypto)
{
	size_t hello = PREAMBLE_HELLO_BYTES, challenge = PREAMBLE_CHALLENGE_BYTES + 16;
	char *digits = read_digits(path);
	uint8_t bytes[PLUGIN_HANDLE_BYTES], record[RECORD_HEADER_BYTES];
	struct run r;

	handle_encode(bytes, &handle);
	check_in_text(digits, "handle", bytes, sizeof(bytes));
	run_begin(&r, 1, FEATURE_ACK_PROMPTLY);
	run(&r);
	check_in_text(digits, "HELLO", r.connector.transcript, hello);
	check_in_text(digits, "CHALLENGE", r.connector.transcript + hello, challenge);
	check_in_text(digits, "PROOF", r.connector.transcript + hello + challenge, 32);
	check_in_text(digits, "READY", r.connector.transcript + hello + challenge + 32, 32);
	preamble_comm_key(&r.connector, comm.key);
	check_in_text(digits, "comm key", comm.key, sizeof(comm.key));
	fake_pair_free(&r.pair);
	comm.there = true;
	comm.id = COMM_ID;
	run_further(&r, 0, COMM_ID, 1, comm.key);
	check_in_text(digits, "HELLO of a further lane", r.connector.transcript, hello);
	check_in_text(digits, "CHALLENGE of a further lane", r.connector.transcript + hello,
		      challenge);
	record_encode(record, &(struct record){ .type = RECORD_DATA,
						.length = 4096,
						.message = 3,
						.total = 5000,
						.offset = 0,
						.tag = 7 });
	check_in_text(digits, "DATA header", record, sizeof(record));
	fake_pair_free(&r.pair);
	if (have_crypto)
		check_sealed_in_text(digits);
	free(digits);
}

int main(int argc, char **argv)
{
	char why[256];
	bool have_crypto = !crypto_load(why, sizeof(why));

	if (!have_crypto)
		fprintf(stderr, "without sealed lanes: %s\n", why);
	for (uint8_t i = 0; i < sizeof(psk); i++)
		other_psk[i] = psk[i] = (uint8_t)(0x80 + i);
	other_psk[31] ^= 1;
	example_handle();
	test_accepted();
	test_damage();
	test_wrong_secret();
	test_replay();
	test_refusals();
	test_not_sealed_alike();
	test_wrong_psk();
	if (have_crypto)
		test_sealed();
	test_extensions();
	test_comm_key();
	test_further_lanes();
	test_further_replay();
	test_lane_numbers();
	test_rails();
	test_placement_said();
	test_placement_not_said();
	test_placement_damage();
	test_placement_lies();
	test_handle();
	test_handle_placement();
	if (argc > 1)
		test_document(argv[1], have_crypto);
	return check_done();
}
