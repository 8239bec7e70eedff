/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_handle.c - a listener's NICs and queues in CHALLENGE and in the handle: decoded as
 * documented; damaged and impossible values are refused.
 */
#include "preamble_rig.h"
#include "wire/handle.h"

static struct preamble_terms acceptor_terms;

/* The acceptor sends acceptor_terms. */
static void run_acceptor(void)
{
	run_begin(&r, 1, FEATURE_ACK_PROMPTLY);
	preamble_accept(&r.acceptor, &acceptor_terms, lookup, NULL);
	run(&r);
}

static void init_toeplitz_end(struct placement_end *end)
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

#define DESCRIBED_BYTES (8u + 40 + 2) /* head, key, bitmap */

TEST(queues_and_NICs_are_described_in_challenge)
{
	const struct placement_end *received = &r.connector.placement;
	struct placement_end end;

	init_toeplitz_end(&end);
	set_terms(&acceptor_terms, FEATURE_ACK_PROMPTLY, 0x50);
	for (uint8_t count = 0; count <= PREAMBLE_NICS_MAX; count++) {
		acceptor_terms.placement = &end;
		acceptor_terms.nic_count = count;
		memset(acceptor_terms.nics, 3 * count, sizeof(acceptor_terms.nics));
		run_acceptor();
		CHECK_EQ(r.connected, 1);
		CHECK_EQ(r.accepted, 1);
		CHECK_EQ(received->kind, PLACEMENT_TOEPLITZ);
		CHECK_EQ(r.acceptor.placement.kind, PLACEMENT_NONE);
		CHECK_EQ(received->queue, 2);
		CHECK_EQ(received->queues, 4);
		CHECK_MEM(received->rss.key, end.rss.key, 40);
		for (uint32_t i = 0; i < 16; i++)
			CHECK_EQ(received->rss.table[i] == 2, i % 4 == 2);
		CHECK_EQ(r.connector.peer.nic_count, count);
		CHECK_MEM(r.connector.peer.nics, acceptor_terms.nics,
			  count * sizeof(struct nic_endpoints));
		CHECK_EQ(r.pair.pipes[1].written, PREAMBLE_CHALLENGE_BYTES + DESCRIBED_BYTES +
							  count * sizeof(struct nic_endpoints) +
							  PREAMBLE_MAC_BYTES +
							  PREAMBLE_READY_BYTES);
	}
}

/* Although the proof is right. */
TEST(an_impossible_queue_placement_is_refused)
{
	struct placement_end end;

	init_toeplitz_end(&end);
	end.queue = end.queues;
	set_terms(&acceptor_terms, FEATURE_ACK_PROMPTLY, 0x50);
	acceptor_terms.placement = &end;
	run_acceptor();
	CHECK_EQ(r.connected, -EPROTO);
	CHECK_STR(r.connector.what, "an invalid queue placement in CHALLENGE");
}

/* ---- the handle ------------------------------------------------------------------------------ */

TEST(a_handle_is_decoded_as_encoded_and_any_damaged_bit_is_detected)
{
	uint8_t bytes[PLUGIN_HANDLE_BYTES];
	struct handle out, in = handle;
	char why[192];

	in.encrypted = 1;
	in.tuner = 6;
	in.nic.placement = PLACEMENT_TOEPLITZ;
	in.nic.queues = 64;
	for (unsigned i = 0; i < NIC_PORTS_MAX; i++) {
		in.nic.harp[i].port = (uint16_t)(61000 + i);
		in.nic.harp[i].queue = (uint16_t)(300 + i);
	}
	handle_encode(bytes, &in);
	CHECK_EQ(handle_decode(bytes, &out, why, sizeof(why)), 0);
	CHECK_MEM(&out, &in, sizeof(in));
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
}

int main(void)
{
	set_example_handle();
	check_run();
	return check_done();
}
