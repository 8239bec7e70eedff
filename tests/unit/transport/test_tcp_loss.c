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

/* RFC 6582 section 3.2 step 2. All that was outstanding when the repair began has arrived, new data is in flight, and the
 * peer has the copies of what was sent again in vain. */
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
	/* What is lost behind that is mended as ever. */
	rig_says(&rig, ack_of(recover + 1448));
	CHECK(conn_flight_bytes(rig.conn) > 0);
	for (unsigned i = 0; i < 3; i++)
		rig_says(&rig, ack_of(recover + 1448));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 2);
}

/* One segment was lost and mended, and what left right behind that repair is lost as well: one duplicate more than usual tells,
 * as the segment sent again may have had a copy. */
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

/* A mark takes the window down, and nothing was sent again: so nothing has copies. */
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

/* As long as recover_seq seems to lie ahead of what is outstanding: 2.25 GiB later, and nothing was lost meanwhile. */
TEST(duplicates_long_after_the_last_recovery)
{
	uint32_t first = ten_in_flight();

	rig.conn->loss.recover_seq = first - 0x90000000u;
	for (unsigned i = 0; i < 4; i++)
		rig_says(&rig, ack_of(first));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
}

/* A peer that repeats itself until all that is in flight has left, as it says, and then takes one byte:
 * what is outstanding is little, not next to 2^32, which would be the next ssthresh. */
TEST(duplicates_for_more_than_there_was)
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
	for (uint32_t i = 0; i < 5; i++) { /* data of the peer's own */
		say = rig_usual(&rig, TCP_ACK, 10);
		say.ack = first;
		say.wnd -= 50;
		rig_says(&rig, say);
		rig.seq += 10;
	}
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 0);
}

TEST(real_timeout_is_not)
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
 * RFC 6582 section 3.2 step 2: after a timeout, duplicate ACKs of no more than was sent by then come of what
 * was sent again, and lose nobody's segment. Beyond it they are what they always are.
 */
TEST(duplicates_after_a_timeout)
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
