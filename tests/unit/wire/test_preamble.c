/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_preamble.c - mutual authentication of first and further lanes, encrypted or not: accepted as
 * documented, refused otherwise.
 */
#include "connect/handshake.h"
#include "lane/lane.h"
#include "preamble_rig.h"
#include "wire/record.h"

TEST(both_sides_accept_each_other_and_read_only_the_preamble)
{
	for (uint64_t seed = 0; seed < 200; seed++) {
		static const uint8_t data[5] = { 1, 2, 3, 4, 5 };
		uint8_t got[5] = { 0 };

		run_begin(&r, seed, FEATURE_NO_CREDIT);
		run(&r);
		CHECK_EQ(r.connected, 1);
		CHECK_EQ(r.accepted, 1);
		CHECK_EQ(r.acceptor.comm_id, 0xc0ffee);
		CHECK_EQ(r.acceptor.peer.features, FEATURE_NO_CREDIT);
		CHECK_EQ(r.connector.peer.features, FEATURE_ACK_PROMPTLY);
		CHECK_EQ(r.connector.peer.eager_bytes, 262144);
		/* What follows the preamble is still in the lane. */
		CHECK_EQ(r.pair.pipes[0].written,
			 PREAMBLE_HELLO_BYTES + PREAMBLE_PROOF_BYTES + PREAMBLE_CONFIRM_BYTES);
		CHECK_EQ(fake_inject(&r.pair.lanes[1], data, 5), 5);
		CHECK_EQ(r.pair.pipes[0].count, 5);
		for (size_t at = 0; at < 5;)
			at += (size_t)r.pair.lanes[1].lane.ops->recv(&r.pair.lanes[1].lane,
								     got + at, 5 - at, 1);
		CHECK_MEM(got, data, 5);
	}
}

TEST(a_damaged_bit_of_any_message_is_refused)
{
	for (int direction = 0; direction < 2; direction++) {
		for (uint64_t at = 0; at < 96; at++) {
			run_begin(&r, at, 0);
			r.pair.pipes[direction].flip_at = at;
			r.pair.pipes[direction].flip = (uint8_t)(1u << (at % 8));
			run(&r);
			CHECK(r.connected != 1);
			CHECK(r.accepted != 1);
		}
	}
	for (uint64_t at = 96; at < 96 + PREAMBLE_CONFIRM_BYTES - 2; at++) { /* 2 are reserved */
		run_begin(&r, at, 0);
		r.pair.pipes[0].flip_at = at;
		r.pair.pipes[0].flip = (uint8_t)(1u << (at % 8));
		run(&r);
		CHECK_EQ(r.accepted, -EPROTO);
	}
}

TEST(a_wrong_secret_is_refused)
{
	run_begin(&r, 1, 0);
	r.connector.key[3] ^= 1;
	run(&r);
	CHECK_EQ(r.connected, -EKEYREJECTED); /* the acceptor's proof is wrong */
	CHECK_EQ(r.accepted, 0);
}

#define REPLAY_BYTES (PREAMBLE_HELLO_BYTES + PREAMBLE_PROOF_BYTES)

static void copy_messages(const struct preamble *connector, uint8_t messages[REPLAY_BYTES])
{
	memcpy(messages, connector->transcript, PREAMBLE_HELLO_BYTES);
	memcpy(messages + PREAMBLE_HELLO_BYTES,
	       connector->transcript + PREAMBLE_HELLO_BYTES + PREAMBLE_CHALLENGE_BYTES +
		       PREAMBLE_MAC_BYTES,
	       PREAMBLE_PROOF_BYTES);
}

TEST(a_replayed_connector_is_refused)
{
	uint8_t messages[REPLAY_BYTES];
	struct preamble_terms t;

	run_begin(&r, 2, 0);
	run(&r);
	copy_messages(&r.connector, messages);

	run_begin(&r, 3, 0);
	set_terms(&t, 0, 0x77); /* each acceptor has a new nonce */
	preamble_accept(&r.acceptor, &t, lookup, NULL);
	r.connected = -1;
	CHECK_EQ(fake_inject(&r.pair.lanes[1], messages, sizeof(messages)), sizeof(messages));
	run(&r);
	CHECK_EQ(r.accepted, -EKEYREJECTED);
}

TEST(unknown_requirements_and_closed_listeners_are_refused_as_documented)
{
	run_begin(&r, 4, 1ull << 40); /* an unknown requirement */
	run(&r);
	CHECK_EQ(r.accepted, -EPROTONOSUPPORT);

	run_begin(&r, 4, 0);
	r.connector.transcript[0] = 'G'; /* another protocol */
	run(&r);
	CHECK_EQ(r.accepted, -EPROTO);
	CHECK_STR(r.acceptor.what, "not HARP's preamble");

	run_begin(&r, 5, 1ull << 20); /* an unknown declaration */
	run(&r);
	CHECK_EQ(r.accepted, 1);
	CHECK_EQ(r.connected, 1);

	run_begin(&r, 6, 0);
	is_listening = false;
	run(&r);
	CHECK_EQ(r.accepted, -ECONNREFUSED);
	is_listening = true;

	/* The listener closes before PROOF arrives: READY reports it. */
	run_begin(&r, 7, 0);
	while (r.acceptor.step != PREAMBLE_READ_PROOF) {
		handshake_advance(&r.connector, &r.pair.lanes[0].lane);
		handshake_advance(&r.acceptor, &r.pair.lanes[1].lane);
	}
	is_listening = false;
	run(&r);
	CHECK_EQ(r.accepted, -ECONNREFUSED);
	CHECK_EQ(r.connected, -ECONNREFUSED);
	is_listening = true;
}

/* ---- encrypted lanes ------------------------------------------------------------------------- */

/* Each side decrypts what the other sends; byte counts continue from the preamble in plaintext. */
static void test_encrypted(void)
{
	for (uint64_t seed = 0; seed < 50; seed++) {
		struct iovec data = { "there", 5 }, reply = { "back", 4 };
		struct lane *lanes[2];
		uint8_t got[8];

		run_begin_encrypted(&r, seed, psk, psk);
		run(&r);
		CHECK_EQ(r.connected, 1);
		CHECK_EQ(r.accepted, 1);
		CHECK_EQ(r.connector.peer.features, FEATURE_ACK_PROMPTLY | FEATURE_ENCRYPTED);
		lanes[0] = &r.pair.lanes[0].lane;
		lanes[1] = &r.pair.lanes[1].lane;
		CHECK_EQ(handshake_encrypt(&r.connector, &lanes[0]), 0);
		CHECK_EQ(handshake_encrypt(&r.acceptor, &lanes[1]), 0);
		CHECK_EQ(lanes[0]->ops->send(lanes[0], &data, 1), 5);
		CHECK_EQ(lanes[1]->ops->send(lanes[1], &reply, 1), 4);
		for (int i = 0; i < 200; i++)
			fake_pair_turn(&r.pair);
		CHECK_EQ(lanes[1]->ops->recv(lanes[1], got, 5, 1), 5);
		CHECK_MEM(got, "there", 5);
		CHECK_EQ(lanes[0]->ops->recv(lanes[0], got, 4, 1), 4);
		CHECK_MEM(got, "back", 4);
		CHECK_EQ(lanes[0]->ops->done_bytes(lanes[0]),
			 PREAMBLE_HELLO_BYTES + PREAMBLE_PROOF_BYTES + PREAMBLE_CONFIRM_BYTES + 5);
		CHECK_EQ(lanes[1]->ops->done_bytes(lanes[1]),
			 PREAMBLE_CHALLENGE_BYTES + PREAMBLE_MAC_BYTES + PREAMBLE_READY_BYTES + 4);
		lanes[0]->ops->close(lanes[0], true);
		lanes[1]->ops->close(lanes[1], true);
	}
}

TEST(a_lane_that_one_side_encrypts_is_refused)
{
	struct lane *lane;

	run_begin_encrypted(&r, 1, NULL, NULL);
	run(&r);
	CHECK_EQ(r.connected, 1);
	lane = &r.pair.lanes[0].lane;
	CHECK_EQ(handshake_encrypt(&r.connector, &lane), 0);
	CHECK(lane == &r.pair.lanes[0].lane);

	run_begin_encrypted(&r, 2, psk, NULL);
	run(&r);
	CHECK_EQ(r.accepted, -EPROTONOSUPPORT);
	CHECK(strstr(r.acceptor.what, "the peer encrypts") != NULL);

	run_begin_encrypted(&r, 3, NULL, psk);
	run(&r);
	CHECK_EQ(r.accepted, -EPROTONOSUPPORT);
	CHECK(strstr(r.acceptor.what, "the peer does not") != NULL);
}

TEST(a_wrong_pre_shared_key_is_refused)
{
	uint8_t other_psk[sizeof(psk)];

	memcpy(other_psk, psk, sizeof(psk));
	other_psk[31] ^= 1;
	run_begin_encrypted(&r, 4, psk, other_psk);
	run(&r);
	CHECK_EQ(r.connected, -EKEYREJECTED);
	CHECK(strstr(r.connector.what, "pre-shared keys") != NULL);
	CHECK_EQ(r.accepted, 0);

	/* An attacker clears the feature in HELLO: the transcripts differ. */
	run_begin_encrypted(&r, 5, psk, NULL);
	r.pair.pipes[0].flip_at = 12; /* bit 32 of HELLO's features */
	r.pair.pipes[0].flip = 1;
	run(&r);
	CHECK(r.connected < 0);
	CHECK(r.accepted != 1);
}

TEST(an_impossible_length_in_CHALLENGE_is_refused)
{
	static const struct {
		uint16_t placement_bytes;
		uint8_t nic_count;
	} cases[] = {
		{ PLACEMENT_BYTES_MAX + 1, 0 },
		{ 0xffff, 0 },
		{ 0, PREAMBLE_NICS_MAX + 1 },
		{ 0, 255 },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint8_t challenge[PREAMBLE_CHALLENGE_BYTES] = "CHLG";

		run_begin(&r, i, 0);
		wire_put16(challenge + 4, WIRE_VERSION);
		wire_put16(challenge + 6, cases[i].placement_bytes);
		challenge[20] = cases[i].nic_count;
		fake_inject(&r.pair.lanes[0], challenge, sizeof(challenge));
		r.accepted = -1;
		run(&r);
		CHECK_EQ(r.connected, -EPROTO);
		CHECK_STR(r.connector.what, "an invalid length in CHALLENGE");
	}
}

/* ---- multi-lane comms ------------------------------------------------------------------------ */

TEST(both_sides_derive_the_same_comm_key)
{
	uint8_t key[PREAMBLE_KEY_BYTES];

	run_first(&r, 1, FEATURE_MULTI_LANE);
	preamble_comm_key(&r.connector, key);
	CHECK_MEM(key, comm.key, sizeof(key));
	CHECK(memcmp(key, handle.secret, sizeof(key)) != 0);
	/* Another transcript gives another key. */
	run_first(&r, 1, FEATURE_MULTI_LANE | FEATURE_NO_CREDIT);
	CHECK(memcmp(key, comm.key, sizeof(key)) != 0);
}

TEST(a_further_lane_joins_with_the_comm_key_only)
{
	run_first(&r, 1, FEATURE_MULTI_LANE);
	is_listening = false; /* the listen comm may be closed by then */
	for (uint8_t index = 0; index < 4; index++) {
		run_further(&r, index, COMM_ID, index, comm.key);
		CHECK_EQ(r.connected, 1);
		CHECK_EQ(r.accepted, 1);
		CHECK(r.acceptor.peer.features & FEATURE_JOIN);
		CHECK_EQ(r.acceptor.peer.index, index);
		CHECK_EQ(r.acceptor.comm_id, COMM_ID);
		CHECK_EQ(r.acceptor.sent_bytes, r.pair.pipes[1].written);
		CHECK_EQ(r.connector.sent_bytes, r.pair.pipes[0].written);
	}
	/* The handle's secret is not accepted. */
	run_further(&r, 5, COMM_ID, 1, handle.secret);
	CHECK_EQ(r.connected, -EKEYREJECTED);
	CHECK(r.accepted != 1);
	/* A comm that does not exist. */
	run_further(&r, 6, COMM_ID + 1, 1, comm.key);
	CHECK_EQ(r.accepted, -ECONNREFUSED);
	CHECK_STR(r.acceptor.what, "there is no comm of that id");
	is_listening = true;
}

TEST(an_invalid_lane_index_is_refused)
{
	static const struct {
		uint64_t features;
		uint8_t index;
		int result;
	} cases[] = {
		{ 0, 0, 0 },
		{ 0, 1, -EPROTO },
		{ FEATURE_JOIN, 0, 0 },
		{ FEATURE_JOIN, PREAMBLE_LANES_MAX - 1, 0 },
		{ FEATURE_JOIN, PREAMBLE_LANES_MAX, -EPROTO },
		{ FEATURE_JOIN, 255, -EPROTO },
	};

	comm.exists = true;
	comm.id = COMM_ID;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint8_t hello[PREAMBLE_HELLO_BYTES];

		run_begin(&r, i, cases[i].features);
		memcpy(hello, r.connector.transcript, PREAMBLE_HELLO_BYTES);
		hello[20] = cases[i].index;
		fake_inject(&r.pair.lanes[1], hello, sizeof(hello));
		r.connected = -1;
		run(&r);
		CHECK_EQ(r.accepted, cases[i].result);
		if (!cases[i].result)
			CHECK_EQ(r.acceptor.step, PREAMBLE_READ_PROOF);
	}
	comm.exists = false;
}

int main(void)
{
	char why[256];
	bool has_crypto = !crypto_load(why, sizeof(why));

	if (!has_crypto)
		fprintf(stderr, "encrypted lanes are not tested: %s\n", why);
	set_example_handle();
	check_run();
	if (has_crypto)
		test_encrypted();
	return check_done();
}
