/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_conn_info.c - harp_conn_info(): readable bytes, congestion state, backoff, and the
 * numbers of segments SACKed, lost and retransmitted.
 */
#include "tcp_sack_rig.h"

static struct harp_tcp_info info(void)
{
	return rig_info(&rig);
}

static void check_state(enum harp_ca_state state, uint64_t sacked, uint64_t lost, uint64_t retrans)
{
	struct harp_tcp_info got = info();

	CHECK_STR(harp_ca_state_name((enum harp_ca_state)got.ca_state), harp_ca_state_name(state));
	CHECK_EQ(got.sacked_out_segs, sacked);
	CHECK_EQ(got.lost_out_segs, lost);
	CHECK_EQ(got.retrans_out_segs, retrans);
}

/* ---- Readable bytes ---- */

TEST(readable_bytes)
{
	struct harp_frame *frame = NULL;
	struct rig_say say;
	struct iovec iov;
	uint8_t buf[1000];

	in_flight(0, true);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 0);
	rig_sends(&rig, TCP_ACK, 1000);
	rig_sends(&rig, TCP_ACK, 500);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1500);
	/* Bytes behind a gap are not readable. */
	say = rig_usual(&rig, TCP_ACK, 100);
	say.seq += 100;
	rig_says(&rig, say);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1500);
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 100));
	rig.seq += 200;
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1700);
	/* Peeking takes nothing, every kind of reading does. */
	CHECK_EQ(harp_conn_peek(rig.conn, &iov, 1), 1);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1700);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, 400), 400);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1300);
	harp_conn_consume(rig.conn, 600);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 700);
	CHECK_EQ(harp_conn_recv_frame(rig.conn, &frame), 1);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 700 - frame->len);
	harp_frame_release(rig.conn, frame);
	/* A FIN is no byte. After a reset the rest can still be read. */
	rig_sends(&rig, TCP_ACK | TCP_FIN, 0);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 200);
	rig_says(&rig, rig_usual(&rig, TCP_RST, 0));
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSED);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 200);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, 50), 50);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 150);
}

/* ---- Losses ---- */

TEST(a_fast_recovery)
{
	in_flight(10, true);
	check_state(HARP_CA_OPEN, 0, 0, 0);
	CHECK_EQ(info().snd_ssthresh_bytes, HARP_SSTHRESH_NONE);
	later(RTT_NS);
	sack(0, 1, 2);
	check_state(HARP_CA_DISORDER, 1, 0, 0);
	CHECK_EQ(info().snd_ssthresh_bytes, HARP_SSTHRESH_NONE);
	/* 0 is lost and sent again; 1 to 3 have arrived. */
	sack(0, 1, 4);
	check_state(HARP_CA_RECOVERY, 3, 0, 1);
	CHECK(info().snd_ssthresh_bytes < HARP_SSTHRESH_NONE);
	CHECK_EQ(info().retransmits, 1);
	CHECK_EQ(info().lost_segs, 1);
	/* The rest arrives before it does. */
	sack(0, 1, 10);
	check_state(HARP_CA_RECOVERY, 9, 0, 1);
	later(RTT_NS);
	ack(10);
	check_state(HARP_CA_OPEN, 0, 0, 0);
	CHECK_EQ(info().retransmits, 1);
	CHECK_EQ(info().lost_segs, 1);
	CHECK(info().snd_ssthresh_bytes < HARP_SSTHRESH_NONE);
}

/* Four segments are lost; those that do not fit in the window wait. */
TEST(lost_segments_wait_to_be_sent_again)
{
	struct harp_tcp_info got;

	in_flight(10, true);
	later(RTT_NS);
	sack(0, 4, 8);
	got = info();
	CHECK_EQ(got.ca_state, HARP_CA_RECOVERY);
	CHECK_EQ(got.sacked_out_segs, 4);
	CHECK_EQ(got.lost_out_segs + got.retrans_out_segs, 4);
	CHECK_EQ(got.retrans_out_segs, got.retransmits);
	CHECK(got.lost_out_segs > 0 && got.retrans_out_segs > 0);
	/* The retransmissions arrive, and the rest follows. */
	later(RTT_NS);
	sack2(0, 0, 1, 4, 10);
	later(RTT_NS);
	ack(10);
	check_state(HARP_CA_OPEN, 0, 0, 0);
}

TEST(a_timeout_backs_off)
{
	uint64_t rto_ns;

	in_flight(4, true);
	CHECK_EQ(info().backoff, 0);
	rto_ns = info().rto_ns;
	while (info().backoff == 0)
		rig_wait(&rig, RIG_MS);
	CHECK_EQ(info().ca_state, HARP_CA_LOSS);
	CHECK_EQ(info().lost_out_segs + info().retrans_out_segs, 4);
	CHECK(info().retrans_out_segs >= 1);
	CHECK_EQ(info().rto_ns, 2 * rto_ns);
	while (info().backoff == 1)
		rig_wait(&rig, RIG_MS);
	CHECK_EQ(info().backoff, 2);
	CHECK_EQ(info().rto_ns, 4 * rto_ns);
	CHECK_EQ(info().rto_count, 2);
	/* An ACK of new data ends the backoff, an ACK of all data the state. */
	ack(2);
	CHECK_EQ(info().backoff, 0);
	ack(4);
	check_state(HARP_CA_OPEN, 0, 0, 0);
}

/* After an undone recovery, retransmitted segments are still in flight. */
TEST(after_an_undo_what_was_sent_again_is_counted)
{
	const struct frame *seg;
	struct rig_say say;
	uint64_t again = 0;

	in_flight(10, true);
	later(RTT_NS);
	sack(0, 2, 8);
	CHECK(info().retrans_out_segs > 0);
	rig.conn->undo.tsval = rig.tsecr + 1; /* the echo is older than what was sent again */
	say = ack_say(1, 1, (const uint32_t[1][2]){ { 2, 8 } });
	rig_says(&rig, say);
	CHECK_EQ(info().undone_recoveries, 1);
	CHECK_EQ(info().lost_out_segs, rig.conn->loss.lost_bytes / MSS);
	for (seg = rig.conn->sndq.head; seg != rig.conn->sndq.unsent; seg = seg->next)
		again +=
			(seg->flags & FRAME_RETRANS) && !(seg->tcp_flags & (SEG_SACKED | SEG_LOST));
	CHECK(again > 0);
	CHECK_EQ(info().retrans_out_segs, again);
	ack(10);
	check_state(HARP_CA_OPEN, 0, 0, 0);
}

TEST(a_window_that_goes_down_for_ecn)
{
	in_flight(10, true);
	rig.conn->options |= HARP_TCPI_ECN;
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_ECE, 0));
	check_state(HARP_CA_CWR, 0, 0, 0);
	CHECK(info().snd_ssthresh_bytes < HARP_SSTHRESH_NONE);
}

TEST(states_and_controllers_have_names)
{
	CHECK_STR(harp_ca_state_name(HARP_CA_OPEN), "open");
	CHECK_STR(harp_ca_state_name(HARP_CA_LOSS), "loss");
	CHECK_STR(harp_ca_state_name((enum harp_ca_state)(HARP_CA_LOSS + 1)), "?");
	CHECK_STR(harp_ca_state_name((enum harp_ca_state) - 1), "?");
	for (int i = HARP_CONGESTION_DEFAULT; i <= HARP_CONGESTION_FIXED; i++)
		CHECK_EQ(harp_congestion_from_name(harp_congestion_name((enum harp_congestion)i)),
			 i);
	CHECK_EQ(harp_congestion_from_name("bbr"), -EINVAL);
	CHECK_STR(harp_congestion_name((enum harp_congestion)99), "?");
}

/* Older callers get the older fields, and later ones zeros. */
TEST(older_callers_get_the_older_fields)
{
	struct {
		struct harp_tcp_info info;
		uint64_t more;
	} large;
	struct harp_tcp_info old;

	in_flight(10, true);
	later(RTT_NS);
	sack(0, 1, 4);
	memset(&old, 0xee, sizeof(old));
	CHECK_EQ(harp_conn_info(rig.conn, &old, offsetof(struct harp_tcp_info, ca_state)), 0);
	CHECK_EQ(old.retransmits, 1);
	CHECK_EQ(old.ca_state, 0xeeeeeeee);
	memset(&large, 0xee, sizeof(large));
	CHECK_EQ(harp_conn_info(rig.conn, &large.info, sizeof(large)), 0);
	CHECK_EQ(large.info.ca_state, HARP_CA_RECOVERY);
	CHECK_EQ(large.more, 0);
	CHECK_EQ(harp_conn_info(rig.conn, &old, 0), 0);
}
