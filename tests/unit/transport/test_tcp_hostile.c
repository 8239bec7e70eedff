/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_hostile.c - the peer itself is the attacker: option bombs, SACKs of nothing, ACKs that are split,
 * optimistic, duplicated or simply too many. It may spoil its own connection, and costs no more than it
 * sends.
 */
#include "base/rng.h"
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

static void still_works(void)
{
	uint8_t buf[200];
	uint64_t before = harp_conn_acked_bytes(rig.conn);

	rig.out_head = rig.out_tail;
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 100));
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 100);
	rig.seq += 100;
	CHECK_EQ(rig_write(&rig, 100), 100);
	for (unsigned i = 0; i < 100 && rig.conn->sndq.head; i++) {
		rig_wait(&rig, RIG_MS);
		rig.ack = rig.conn->snd.nxt_seq;
		rig.tsecr = rig.conn->ts.sent;
		rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	}
	CHECK(!rig.conn->sndq.head && harp_conn_acked_bytes(rig.conn) >= before + 100);
	rig.out_head = rig.out_tail;
}

/* ---- Options ---- */

static void say_options(const uint8_t *options, uint32_t len, bool timestamp_first)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK, 0);
	uint32_t at = 0;

	say.raw_options = true;
	if (timestamp_first) {
		tcp_options_write_timestamp(say.options, rig.tsval, rig.tsecr);
		at = TCP_OPTIONS_TIMESTAMP_BYTES;
	}
	memcpy(say.options + at, options, len);
	say.options_len = (at + len + 3) & ~3u;
	rig_says(&rig, say);
	rig.out_head = rig.out_tail;
}

TEST(every_option_of_every_length)
{
	uint8_t options[40];

	rig_begin(&rig, NULL);
	for (unsigned kind = 0; kind < 256; kind++) {
		for (unsigned size = 0; size <= 40; size++) {
			memset(options, (int)(kind * 41 + size), sizeof(options));
			options[0] = (uint8_t)kind;
			options[1] = (uint8_t)size;
			say_options(options, 40, false);
			say_options(options, 28, true);
		}
	}
	still_works();
}

TEST(options_that_repeat_and_pad)
{
	uint8_t options[40];

	rig_begin(&rig, NULL);
	memset(options, 1, sizeof(options)); /* nothing but NOPs */
	say_options(options, 28, true);
	CHECK_EQ(rig_stat(&rig, "drop_tcp_options"), 0);
	for (unsigned i = 0; i < 28;
	     i += 10) { /* the timestamp, over and over: the last one counts */
		options[i] = 8;
		options[i + 1] = 10;
	}
	say_options(options, 28, true);
	memset(options, 0, sizeof(options));
	for (unsigned i = 0; i < 28; i += 4) /* seven MSS options on a connection long open */
		memcpy(options + i, "\2\4\0\1", 4);
	say_options(options, 28, true);
	CHECK_EQ(rig.conn->snd.mss_bytes, 1448);
	still_works();
}

TEST(sacks_of_nothing)
{
	uint8_t options[40];
	struct rng rng;
	uint64_t walked;

	rng_seed(&rng, 2018);
	rig_begin(&rig, NULL);
	rig.conn->options |= HARP_TCPI_SACK;
	CHECK_EQ(rig_write(&rig, 20 * 1448), 20 * 1448);
	walked = rig_stat(&rig, "tcp_sack_walked");
	for (unsigned i = 0; i < 10000; i++) {
		options[0] = options[1] = 1;
		options[2] = 5;
		options[3] = 2 + 3 * 8;
		for (unsigned b = 0; b < 6; b++) {
			uint32_t near = rig.conn->snd.una_seq + rng_below(&rng, 100000) - 50000;

			be32_store(options + 4 + 4 * b,
				   rng_below(&rng, 4) ? near : (uint32_t)rng_u64(&rng));
		}
		say_options(options, 28, true);
		CHECK(conn_flight_bytes(rig.conn) <= 40 * 1448);
	}
	/* What one SACK has us look at is bounded by what is outstanding. */
	CHECK((rig_stat(&rig, "tcp_sack_walked") - walked) / 10000 <= 3 * 40);
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 0);
	still_works();
}

/* ---- ACKs: Savage et al., "TCP congestion control with a misbehaving receiver" (1999) ---- */

TEST(no_ack_is_answered)
{
	rig_begin(&rig, NULL);
	for (unsigned i = 0; i < 10000; i++) {
		struct rig_say say = rig_usual(&rig, TCP_ACK, 0);

		say.wnd = i % 2 ? 60000 : 50000;
		rig_says(&rig, say);
	}
	rig_silent(&rig);
	still_works();
}
