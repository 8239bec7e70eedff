/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_loss.c - duplicate ACKs: limited transmit, fast retransmit, NewReno's partial ACKs. */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

/* Ten segments in flight; returns the first one's sequence number. */
static uint32_t ten_in_flight(void)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.congestion = HARP_CONGESTION_NEWRENO };
	uint32_t first;

	rig_begin(&rig, &opt);
	CHECK_EQ(rig_write(&rig, 20 * 1448), 20 * 1448);
	CHECK_EQ(rig_pending(&rig), 10); /* RFC 6928 */
	first = rig_expect(&rig, TCP_ACK)->seq;
	rig.out_head = rig.out_tail;
	return first;
}

static struct rig_say ack_of(uint32_t ack)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK, 0);

	say.ack = ack;
	return say;
}

/* RFC 6582 section 3.2 step 2: all data up to recover was only late. The peer reports the spurious
 * retransmissions by duplicate ACKs, which must not start a recovery. */
TEST(copies_of_what_was_sent_again_begin_no_repair)
{
	uint32_t first = ten_in_flight(), recover;

	for (unsigned i = 0; i < 4; i++)
		rig_says(&rig, ack_of(first));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	recover = rig.conn->loss.recover_seq;
	for (uint32_t ack = first + 1448; ack != recover; ack += 1448)
		rig_says(&rig, ack_of(ack)); /* it was only late: each of these sends one again */
	rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK(conn_flight_bytes(rig.conn) > 0);
	for (unsigned i = 0; i < 8; i++)
		rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	/* A loss beyond recover starts one. */
	rig_says(&rig, ack_of(recover + 1448));
	CHECK(conn_flight_bytes(rig.conn) > 0);
	for (unsigned i = 0; i < 3; i++)
		rig_says(&rig, ack_of(recover + 1448));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 2);
}

/* The segment sent right after the retransmission is lost as well. It takes one duplicate ACK more
 * than usual, because the retransmission itself may cause one. */
TEST(a_loss_behind_the_last_repair_is_mended)
{
	uint32_t first = ten_in_flight(), recover;

	for (unsigned i = 0; i < 5; i++)
		rig_says(&rig, ack_of(first));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK_EQ(rig.conn->acct.retransmits, 1);
	recover = rig.conn->loss.recover_seq;
	rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK(conn_flight_bytes(rig.conn) > 0);
	for (unsigned i = 0; i < 3; i++)
		rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
	rig.out_head = rig.out_tail;
	rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 2);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, recover);
}

/* ECN reduced the window without a retransmission, so no duplicate ACK is discounted. */
TEST(a_loss_behind_a_mark_is_mended)
{
	uint32_t first = ten_in_flight(), recover;

	tcp_loss_ecn(rig.conn);
	recover = rig.conn->loss.recover_seq;
	rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK_EQ(recover, first + 10 * 1448);
	for (unsigned i = 0; i < 4; i++) /* the first of them opens the window: it was the SYN's */
		rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
}

/* 2.25 GiB without a loss later, recover_seq seems to lie ahead of the data in flight. */
TEST(duplicate_acks_long_after_the_last_recovery)
{
	uint32_t first = ten_in_flight();

	rig.conn->loss.recover_seq = first - 0x90000000u;
	for (unsigned i = 0; i < 4; i++)
		rig_says(&rig, ack_of(first));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
}

/* More duplicate ACKs than segments in flight, then an ACK of one byte: FlightSize must not
 * underflow, because the next ssthresh follows from it. */
TEST(duplicate_acks_for_more_than_was_in_flight)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.congestion = HARP_CONGESTION_NEWRENO };
	uint32_t first;

	rig_begin(&rig, &opt);
	CHECK_EQ(rig_write(&rig, 10 * 1448), 10 * 1448);
	first = rig.out[rig.out_head % RIG_QUEUE].seq;
	for (unsigned i = 0; i < 40; i++)
		rig_says(&rig, ack_of(first));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	rig_says(&rig, ack_of(first + 1));
	CHECK(rig.conn->loss.dup_acked_bytes <= 10 * 1448 - 1);
	rig_wait(&rig, RIG_S);
	CHECK(rig_stat(&rig, "tcp_rto") > 0);
	CHECK(rig.conn->cc.ssthresh_bytes <= 5 * 1448);
}

TEST(not_every_repeated_ack_is_a_duplicate)
{
	uint32_t first = ten_in_flight();
	struct rig_say say;

	for (uint32_t i = 0; i < 5; i++) { /* window updates */
		say = ack_of(first);
		say.wnd -= 10 * (i + 1);
		rig_says(&rig, say);
	}
	for (uint32_t i = 0; i < 5; i++) { /* data segments */
		say = rig_usual(&rig, TCP_ACK, 10);
		say.ack = first;
		say.wnd -= 50;
		rig_says(&rig, say);
		rig.seq += 10;
	}
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 0);
}

TEST(a_timeout_that_lost_segments_is_not_undone)
{
	uint32_t first = ten_in_flight();

	rig_wait(&rig, 10 * RIG_MS);
	rig_expect(&rig, TCP_ACK); /* takes its timestamp, to echo it */
	rig_says(&rig, ack_of(first + 2 * 1448));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_RTO);
	CHECK(rig.conn->cc.cwnd_bytes < 10 * 1448);
}

static void take_all(void)
{
	for (unsigned i = rig.out_head; i != rig.out_tail; i++)
		rig.tsecr = rig.out[i % RIG_QUEUE].opt.tsval;
	rig.out_head = rig.out_tail;
}

/*
 * RFC 6582 section 3.2 step 2: after a timeout, duplicate ACKs up to recover come from
 * retransmissions and start no recovery. Beyond it they do.
 */
TEST(duplicate_acks_after_a_timeout)
{
	uint32_t first = ten_in_flight(), recover;

	rig_says(&rig, ack_of(first));
	while (rig.conn->recovery != TCP_RECOVERY_RTO) {
		rig_wait(&rig, 100 * RIG_MS);
		take_all();
	}
	recover = rig.conn->loss.recover_seq;
	CHECK_EQ(recover, first + 10 * 1448);
	rig_says(&rig, ack_of(recover));
	take_all();
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	for (unsigned i = 0; i < 4; i++)
		rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 0);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	take_all();
	rig_says(&rig, ack_of(recover + 1448));
	take_all();
	for (unsigned i = 0; i < 4; i++)
		rig_says(&rig, ack_of(recover + 1448));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
}
