/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_in.c - segments to an established connection: acceptance, RST, SYN, PAWS, checksum,
 * order. */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

/* A message of two full-sized segments and a short one, in one poll. */
static void message_of_three(uint8_t flags)
{
	rig_begin(&rig, NULL);
	for (unsigned i = 0; i < 2; i++) {
		rig_put(&rig, rig_usual(&rig, TCP_ACK, 1448));
		rig.seq += 1448;
	}
	rig_sends(&rig, TCP_ACK | flags, 1200);
}

TEST(two_full_segments_are_acknowledged_at_once)
{
	message_of_three(0);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_silent(&rig);
}

/* The application gets the message before the ACK is sent: its answer may carry the ACK. */
TEST(the_end_of_a_message_is_acknowledged_in_the_next_poll)
{
	message_of_three(TCP_PSH);
	rig_silent(&rig);
	CHECK_EQ(harp_stack_next_deadline_ns(rig.stack), rig.now_ns);
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_silent(&rig);
	rig_close(&rig);
	message_of_three(TCP_PSH);
	CHECK_EQ(rig_write(&rig, 8), 8);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->ack, rig.seq);
	rig_poll(&rig);
	rig_silent(&rig);
	rig_close(&rig);
}

/* No PSH: the sender has more data. */
TEST(in_the_middle_of_a_stream_acks_are_held)
{
	rig_begin(&rig, NULL);
	for (unsigned i = 0; i < 5; i++) {
		rig_sends(&rig, TCP_ACK, 1448);
		rig_silent(&rig);
	}
	CHECK_EQ(harp_stack_next_deadline_ns(rig.stack), rig.now_ns + TCP_ACK_HOLD_NS);
	rig_wait(&rig, TCP_ACK_HOLD_NS - 1);
	rig_silent(&rig);
	rig_wait(&rig, 1);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_silent(&rig);
}

TEST(a_held_ack_leaves_with_the_sixteenth_segment)
{
	rig_begin(&rig, NULL);
	for (unsigned i = 1; i <= TCP_ACK_EVERY_SEGMENTS; i++) {
		rig_silent(&rig);
		rig_sends(&rig, TCP_ACK, 1448);
	}
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_silent(&rig);
}

TEST(a_burst_is_acknowledged_at_its_end)
{
	rig_begin(&rig, NULL);
	for (unsigned i = 0; i < 2 * TCP_ACK_EVERY_SEGMENTS; i++) {
		rig_put(&rig, rig_usual(&rig, TCP_ACK, 1448));
		rig.seq += 1448;
	}
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_silent(&rig);
}

TEST(a_held_ack_leaves_with_a_short_segment)
{
	rig_begin(&rig, NULL);
	rig_sends(&rig, TCP_ACK, 1448);
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 100));
	rig_silent(&rig);
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq + 100);
}

#define DELAY_NS 200000u

static void open_delayed(void)
{
	rig_begin(&rig, NULL);
	CHECK_EQ(RIG_SET(&rig, delayed_ack_ns, DELAY_NS), 0);
}

/* harp_tcp_options.delayed_ack_ns: one ACK for several short segments, at its deadline or with
 * data. */
TEST(short_segments_acks_may_be_delayed)
{
	open_delayed();
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
	CHECK_EQ(rig_write(&rig, 8), 8);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->ack, rig.seq);
	rig_wait(&rig, DELAY_NS);
	rig_silent(&rig);
}

/* When two full segments' worth of data waits, the ACK is sent in the next poll. */
TEST(a_delayed_ack_is_of_two_segments_at_most)
{
	open_delayed();
	for (unsigned i = 0; i < 3; i++) {
		rig_silent(&rig);
		rig_sends(&rig, TCP_ACK | TCP_PSH, 1000);
		rig_silent(&rig);
		rig_poll(&rig);
	}
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
}

/* ACKs of a gap, of a full-sized segment and of a FIN are not delayed. */
TEST(a_delayed_ack_does_not_delay_others)
{
	open_delayed();
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_PSH, 40));
	rig_silent(&rig);
	rig.seq += 80;
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_PSH, 40));
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq - 40);
	rig_close(&rig);
	for (unsigned full = 0; full < 2; full++) {
		open_delayed();
		rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_PSH, 40));
		rig_silent(&rig);
		rig.seq += 40;
		if (full) {
			rig_sends(&rig, TCP_ACK | TCP_PSH, 1448);
			rig_poll(&rig);
		} else {
			rig_sends(&rig, TCP_ACK | TCP_FIN, 0);
		}
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		rig_close(&rig);
	}
}

#define SLOW_GAP_NS 100000u

/* A full-sized segment that the application reads at once. */
static void slow_segment(uint8_t flags)
{
	uint8_t buf[1448];

	rig_sends(&rig, TCP_ACK | flags, 1448);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 1448);
}

/* Enough segments, one by one, that their interval is known. No ACK is due at the end. */
static void slow_stream(void)
{
	rig_begin(&rig, NULL);
	for (unsigned i = 0; i < 100; i++) {
		slow_segment(0);
		rig_wait(&rig, SLOW_GAP_NS);
	}
	rig_wait(&rig, TCP_ACK_HOLD_SLOW_NS_MAX);
	rig.out_head = rig.out_tail;
}

/* RFC 5681 section 4.2, whatever the interval of the segments. */
TEST(a_slow_stream_is_acknowledged_by_twos)
{
	slow_stream();
	for (unsigned i = 0; i < 40; i++) {
		bool pushed = i % 4 == 0; /* the end of a write is no end of a message here */

		slow_segment(pushed ? TCP_PSH : 0);
		rig_wait(&rig, SLOW_GAP_NS);
		rig_silent(&rig);
		slow_segment(0);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		rig_wait(&rig, SLOW_GAP_NS);
		rig_silent(&rig);
	}
	slow_segment(0); /* no second one follows: the ACK waits for the limit */
	rig_wait(&rig, TCP_ACK_HOLD_SLOW_NS_MAX);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_silent(&rig);
}

/* A packet larger than the MSS was merged on the way (GRO) and counts as two segments. */
TEST(joined_segments_in_a_slow_stream_are_acknowledged_at_once)
{
	slow_stream();
	rig.conn->rcv.mss_bytes = 1448 / 2;
	for (unsigned i = 0; i < 10; i++) {
		slow_segment(0);
		rig_poll(&rig);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		rig_wait(&rig, SLOW_GAP_NS);
		rig_silent(&rig);
	}
}

TEST(short_messages_in_a_slow_stream_are_acknowledged_at_once)
{
	slow_stream();
	slow_segment(TCP_PSH);
	rig_wait(&rig, TCP_ACK_HOLD_SLOW_NS_MAX);
	rig_expect(&rig, TCP_ACK);
	for (unsigned i = 0; i < 10; i++) {
		slow_segment(TCP_PSH);
		rig_poll(&rig);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		rig_wait(&rig, SLOW_GAP_NS);
	}
	rig_silent(&rig);
}

/* The number of ACKs that wait is bounded, since each poll visits all of them. */
TEST(only_so_many_acks_wait_for_a_second_segment)
{
	slow_stream();
	rig.conn->tcp->acks_pending += TCP_ACKS_HELD_MAX;
	slow_segment(0);
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
	say = rig_usual(&rig, TCP_ACK | TCP_PSH, 100);
	say.seq += 100; /* the first 100 bytes are lost */
	rig_says(&rig, say);
	rig_expect(&rig, TCP_ACK);
	CHECK_EQ(rig_write(&rig, 1000), 1000);
	rig_expect(&rig, TCP_ACK | TCP_PSH);
	say = rig_usual(&rig, TCP_ACK | TCP_PSH, 100);
	say.ack += 1000;
	say.wnd = 10;
	rig_says(&rig, say);
	CHECK_EQ(rig.conn->snd.una_seq, say.ack);
	CHECK_EQ(rig.conn->snd.wnd_bytes, 10u << rig.conn->snd.wscale);
}
