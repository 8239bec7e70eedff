/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_in.c - segments to an established connection: when they are acknowledged, and their
 * options. tests/fuzz/fuzz_options.c writes options, parses them again, and compares the fast
 * parser with the full one.
 */
#include "rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

#define DELAY_NS 200000u
#define FIVE_HELD "F.-F.-F.-F.-F.-"
#define EIGHT_FULL "FFFFFFFF"

/*
 * A letter of a script is a segment (see letters[]) or an action:
 *
 * 	.	a poll
 * 	h	the time limit of a held ACK passes
 * 	!	checks that the next deadline is now
 * 	w	a write, whose segment acknowledges everything
 * 	A	expects one ACK of everything
 * 	-	expects no segment
 */
static const struct {
	char letter;
	uint8_t flags;
	uint32_t len;
} letters[] = {
	{ 'F', TCP_ACK, 1448 },           { 'P', TCP_ACK | TCP_PSH, 1448 }, { 'n', TCP_ACK, 1200 },
	{ 'p', TCP_ACK | TCP_PSH, 1200 }, { 'k', TCP_ACK | TCP_PSH, 1000 }, { 'q', TCP_ACK, 100 },
	{ 's', TCP_ACK | TCP_PSH, 40 },   { 'f', TCP_ACK | TCP_FIN, 0 },
};

static void play(char letter)
{
	for (unsigned i = 0; i < ARRAY_SIZE(letters); i++) {
		if (letters[i].letter != letter)
			continue;
		rig_put(&rig, rig_usual(&rig, letters[i].flags, letters[i].len));
		rig.seq += letters[i].len + (letter == 'f');
		return;
	}
	switch (letter) {
	case '.':
		rig_poll(&rig);
		break;
	case 'h':
		rig_wait(&rig, TCP_ACK_HOLD_NS - 1);
		rig_silent(&rig);
		rig_wait(&rig, 1);
		break;
	case '!':
		CHECK_EQ(harp_stack_next_deadline_ns(rig.stack), rig.now_ns);
		break;
	case 'w':
		CHECK_EQ(rig_writes(&rig, 8)->ack, rig.seq);
		break;
	case 'A':
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		rig_silent(&rig);
		break;
	default:
		CHECK_EQ(letter, '-');
		rig_silent(&rig);
	}
}

/* PSH ends a message: the ACK waits for a poll, so that the application's answer can carry it.
 * Without PSH the sender has more data. */
TEST(acks_are_sent_as_the_table_says)
{
	static const struct {
		const char *name, *script;
		uint32_t delayed_ack_ns;
	} rows[] = {
		{ "two full segments are acknowledged at once", "FFn.A", 0 },
		{ "the end of a message is acknowledged in the next poll", "FFp.-!.A", 0 },
		{ "an answer carries the ACK of a message", "FFp.-w.-", 0 },
		{ "ACKs in the middle of a stream are held", FIVE_HELD "hA", 0 },
		{ "a held ACK is sent at the sixteenth segment",
		  FIVE_HELD FIVE_HELD FIVE_HELD "F.A", 0 },
		{ "a burst is acknowledged at its end",
		  EIGHT_FULL EIGHT_FULL EIGHT_FULL EIGHT_FULL ".A", 0 },
		{ "a short segment ends the hold of an ACK", "F.-q.-.A", 0 },
		{ "a delayed ACK covers two segments at most", "k.-.-k.-.-k.-.A", DELAY_NS },
		{ "an ACK of a FIN is not delayed", "s.-f.A", DELAY_NS },
		{ "an ACK of a full segment is not delayed", "s.-P..A", DELAY_NS },
	};

	CHECK_EQ(TCP_ACK_EVERY_SEGMENTS, 16);
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		unsigned before = check_failures;

		rig_begin(&rig, RIG_OPTIONS(.delayed_ack_ns = rows[i].delayed_ack_ns));
		for (const char *letter = rows[i].script; *letter; letter++)
			play(*letter);
		if (check_failures != before)
			fprintf(stderr, "failed: %s\n", rows[i].name);
		rig_close(&rig);
	}
}

/* harp_tcp_options.delayed_ack_ns: one ACK for several short segments, at its deadline or with
 * data. */
TEST(acks_of_short_segments_may_be_delayed)
{
	rig_begin(&rig, NULL);
	CHECK_EQ(RIG_SET(&rig, delayed_ack_ns, DELAY_NS), 0);
	CHECK_EQ(RIG_SET(&rig, delayed_ack_ns, 500 * RIG_MS), -EINVAL);
	for (unsigned i = 0; i < 4; i++) {
		rig_sends(&rig, TCP_ACK | TCP_PSH, 40);
		rig_silent(&rig);
		CHECK_EQ(harp_stack_next_deadline_ns(rig.stack),
			 rig.now_ns + DELAY_NS - i * (DELAY_NS / 4));
		rig_wait(&rig, DELAY_NS / 4 - (i == 3));
		rig_silent(&rig);
	}
	rig_wait(&rig, 1);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_silent(&rig);
	rig_sends(&rig, TCP_ACK | TCP_PSH, 40);
	CHECK_EQ(rig_writes(&rig, 8)->ack, rig.seq);
	rig_wait(&rig, DELAY_NS);
	rig_silent(&rig);
}

TEST(an_ack_of_a_gap_is_not_delayed)
{
	rig_begin(&rig, RIG_OPTIONS(.delayed_ack_ns = DELAY_NS));
	rig_sends(&rig, TCP_ACK | TCP_PSH, 40);
	rig_silent(&rig);
	rig_says_at(&rig, TCP_ACK | TCP_PSH, 40, 40);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
}

#define SLOW_GAP_NS 100000u

/* The peer sends a full-sized segment, which the application reads at once. */
static void send_slow_segment(uint8_t flags)
{
	rig_sends(&rig, TCP_ACK | flags, 1448);
	rig_reads(&rig, rig.seq - 1448, 1448);
}

/* The peer sends single segments until the stack knows their interval. No ACK is due at the end. */
static void begin_slow_stream(void)
{
	rig_begin(&rig, NULL);
	for (unsigned i = 0; i < 100; i++) {
		send_slow_segment(0);
		rig_wait(&rig, SLOW_GAP_NS);
	}
	rig_wait(&rig, TCP_ACK_HOLD_SLOW_NS_MAX);
	rig.out_head = rig.out_tail;
}

/* RFC 5681 section 4.2, for any interval of the segments. */
TEST(every_second_segment_of_a_slow_stream_is_acknowledged)
{
	begin_slow_stream();
	for (unsigned i = 0; i < 40; i++) {
		bool has_push = i % 4 == 0; /* the end of a write, not of a message */

		send_slow_segment(has_push ? TCP_PSH : 0);
		rig_wait(&rig, SLOW_GAP_NS);
		rig_silent(&rig);
		send_slow_segment(0);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		rig_wait(&rig, SLOW_GAP_NS);
		rig_silent(&rig);
	}
	send_slow_segment(0); /* without a second segment the ACK waits for the limit */
	rig_wait(&rig, TCP_ACK_HOLD_SLOW_NS_MAX);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_silent(&rig);
}

/* A packet larger than the MSS was merged on the way (GRO) and counts as two segments. */
TEST(merged_segments_in_a_slow_stream_are_acknowledged_at_once)
{
	begin_slow_stream();
	rig.conn->rcv.mss_bytes = 1448 / 2;
	for (unsigned i = 0; i < 10; i++) {
		send_slow_segment(0);
		rig_poll(&rig);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		rig_wait(&rig, SLOW_GAP_NS);
		rig_silent(&rig);
	}
}

TEST(short_messages_in_a_slow_stream_are_acknowledged_at_once)
{
	begin_slow_stream();
	send_slow_segment(TCP_PSH);
	rig_wait(&rig, TCP_ACK_HOLD_SLOW_NS_MAX);
	rig_expect(&rig, TCP_ACK);
	for (unsigned i = 0; i < 10; i++) {
		send_slow_segment(TCP_PSH);
		rig_poll(&rig);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		rig_wait(&rig, SLOW_GAP_NS);
	}
	rig_silent(&rig);
}

/* The number of ACKs that wait is bounded, since each poll visits all of them. */
TEST(a_bounded_number_of_acks_wait_for_a_second_segment)
{
	begin_slow_stream();
	rig.conn->tcp->acks_pending += TCP_ACKS_HELD_MAX;
	send_slow_segment(0);
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig.conn->tcp->acks_pending -= TCP_ACKS_HELD_MAX;
	CHECK_EQ(rig.conn->tcp->acks_pending, 0);
}

/* SEG.SEQ is old but SEG.ACK is new: SND.UNA moves, so the window must come from the same
 * segment. */
TEST(the_window_of_a_retransmission_is_used)
{
	struct rig_say say;

	rig_begin(&rig, NULL);
	rig_says_at(&rig, TCP_ACK | TCP_PSH, 100, 100);
	rig_expect(&rig, TCP_ACK);
	rig_writes(&rig, 1000);
	say = rig_usual(&rig, TCP_ACK | TCP_PSH, 100);
	say.ack += 1000;
	say.wnd = 10;
	rig_says(&rig, say);
	CHECK_EQ(rig.conn->snd.una_seq, say.ack);
	CHECK_EQ(rig.conn->snd.wnd_bytes, 10u << rig.conn->snd.wscale);
}

/* ---- options --------------------------------------------------------------------------------- */

TEST(malformed_options_are_refused)
{
	static const struct {
		uint8_t len, bytes[12];
	} bad[] = {
		{ 1, { 2 } },    /* the length is missing */
		{ 2, { 2, 0 } }, /* a length that does not advance */
		{ 2, { 2, 1 } },
		{ 4, { 2, 5, 1, 2 } },       /* beyond the end */
		{ 3, { 2, 3, 5 } },          /* an MSS of one byte */
		{ 4, { 3, 4, 1, 1 } },       /* a window scale of two */
		{ 4, { 4, 3, 0, 0 } },       /* SACK-permitted with a body */
		{ 6, { 5, 6, 0, 0, 0, 0 } }, /* half a SACK block */
		{ 10, { 8, 9, 0 } },         /* a short timestamp */
	};
	struct tcp_options out;

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		CHECK(!tcp_options_parse(bad[i].bytes, bad[i].len, &out));
}

TEST(unknown_and_padded_options_are_accepted)
{
	static const uint8_t unknown[] = { 254, 4, 1, 2, 1, 2, 4, 5, 180 };
	static const uint8_t ended[] = { 1, 0, 2, 99 }; /* garbage after the end of options */
	static const uint8_t scale[] = { 3, 3, 200 };   /* RFC 7323 section 2.3 */
	static const uint8_t sack[] = { 5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 9 };
	struct tcp_options out;

	CHECK(tcp_options_parse(unknown, sizeof(unknown), &out));
	CHECK_EQ(out.seen, TCP_OPT_MSS);
	CHECK_EQ(out.mss_bytes, 1460);
	CHECK(tcp_options_parse(ended, sizeof(ended), &out));
	CHECK_EQ(out.seen, 0);
	CHECK(tcp_options_parse(scale, sizeof(scale), &out));
	CHECK_EQ(out.wscale, 14);
	CHECK(tcp_options_parse(sack, sizeof(sack), &out));
	CHECK_EQ(out.sack_count, 2);
	CHECK_EQ(out.sack[1].end_seq, 9);
}

/* Every kind with every length, first and after a timestamp: the parser terminates and stays within
 * the options. */
TEST(every_option_of_every_length_is_parsed)
{
	struct tcp_options out;

	for (unsigned kind = 0; kind < 256; kind++) {
		for (unsigned size = 0; size <= TCP_OPTIONS_BYTES_MAX; size++) {
			for (unsigned offset = 0; offset <= TCP_OPTIONS_TIMESTAMP_BYTES;
			     offset += 12) {
				uint8_t *bytes =
					malloc(TCP_OPTIONS_BYTES_MAX); /* ASan detects overruns */

				CHECK(bytes != NULL);
				memset(bytes, (int)(kind * 41 + size), TCP_OPTIONS_BYTES_MAX);
				if (offset)
					tcp_options_write_timestamp(bytes, 5, 6);
				bytes[offset] = (uint8_t)kind;
				bytes[offset + 1] = (uint8_t)size;
				(void)tcp_options_parse(bytes, TCP_OPTIONS_BYTES_MAX, &out);
				CHECK(out.sack_count <= TCP_SACK_BLOCKS_MAX);
				free(bytes);
			}
		}
	}
}
