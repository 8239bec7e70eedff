/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_handle.c - what a listener states: its NICs and queues in CHALLENGE, its ports and queues in the handle.
 * It is used as documented; damaged and impossible values are refused.
 */
#include "preamble_rig.h"
#include "connect/rails.h"
#include "wire/handle.h"

/* ---- rails, in CHALLENGE -------------------------------------------------------------------------- */

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

static void run_rails(struct run *one, const uint8_t *value, size_t len)
{
	struct preamble_terms t;

	run_begin(one, len, FEATURE_ACK_PROMPTLY);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	t.rails = value;
	t.rails_bytes = len;
	preamble_accept(&one->acceptor, &t, lookup, NULL);
	run(one);
}

TEST(rails_in_challenge_are_believed_unless_they_make_no_sense)
{
	uint8_t value[RAILS_BYTES_MAX + 8] = { 0 };
	struct rails rails;
	size_t len;

	example_rails(&rails);
	len = rails_encode(&rails, value);
	CHECK_EQ(len, 4 + 3 * 32);
	run_rails(&r, value, len);
	CHECK_EQ(r.connected, 1);
	CHECK_MEM(&r.connector.rails, &rails, sizeof(rails));
	CHECK_EQ(r.acceptor.rails.count, 0);
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
	}
}

/* ---- queues, in CHALLENGE and in the handle ------------------------------------------------------- */

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

#define PLACED_EXTENSION_BYTES 56u /* 4, 8, 40 bytes of key, 2 of table, padded */

TEST(a_toeplitz_nic_is_described_in_challenge)
{
	const struct placement_end *received = &r.connector.placement;
	struct preamble_terms t;
	struct placement_end end;

	toeplitz_end(&end);
	run_begin(&r, 1, FEATURE_ACK_PROMPTLY);
	terms(&t, FEATURE_ACK_PROMPTLY, 0x50);
	t.placement = &end;
	preamble_accept(&r.acceptor, &t, lookup, NULL);
	run(&r);
	CHECK_EQ(r.connected, 1);
	CHECK_EQ(r.accepted, 1);
	CHECK_EQ(received->kind, PLACEMENT_TOEPLITZ);
	CHECK_EQ(r.acceptor.placement.kind, PLACEMENT_NOT_SAID);
	CHECK_EQ(received->queue, 2);
	CHECK_EQ(received->queues, 4);
	CHECK_MEM(received->rss.key, end.rss.key, 40);
	for (uint32_t i = 0; i < 16; i++)
		CHECK_EQ(received->rss.table[i] == 2, i % 4 == 2);
	CHECK_EQ(r.pair.pipes[1].written, PREAMBLE_CHALLENGE_BYTES + PLACED_EXTENSION_BYTES +
						  PREAMBLE_MAC_BYTES + PREAMBLE_READY_BYTES);
}

/* ---- the handle ----------------------------------------------------------------------------------- */

TEST(a_handle_is_read_back_and_every_damaged_bit_is_noticed)
{
	uint8_t bytes[PLUGIN_HANDLE_BYTES];
	struct handle out, in = handle;
	char why[192];

	in.encrypted = true;
	in.harp_placement = PLACEMENT_TOEPLITZ;
	in.harp_queues = 64;
	in.harp_queue = 63;
	in.scope_id = 5;
	in.tuner = 6;
	for (unsigned i = 0; i < HANDLE_PORTS_MAX; i++)
		in.ports[i] = (struct handle_port){ (uint16_t)(61000 + i), (uint16_t)(300 + i) };
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
	example_handle();
	check_run();
	return check_done();
}
